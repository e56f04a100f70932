"""The other end of the hub: starts it, asks it, ends it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import tempfile
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec

from edgepeer.errors import EdgepeerError
from edgepeer.processes import dies_with_parent

__all__ = ["MESSAGE_BYTES", "HubProcess", "KernelRefused"]

MESSAGE_BYTES: Final = 192 << 10
"""The longest request or answer: every peer of 64 cut off from every other."""
_ANSWER_S: Final = 30.0
_END_S: Final = 5.0


class KernelRefused(Exception):
    """The kernel does not do what was asked for. The text says why."""


class HubProcess:
    """The hub, running while its context is open."""

    async def __aenter__(self) -> HubProcess:
        self._turn = asyncio.Lock()
        async with AsyncExitStack() as stack:
            self._log = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack closes it
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._control.setblocking(False)
            stack.callback(self._control.close)
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "edgepeer.emulation.network.hub",
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    preexec_fn=dies_with_parent(signal.SIGKILL),
                )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._control.close()  # which is what it ends for
        try:
            async with asyncio.timeout(_END_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            await self._stack.aclose()

    @property
    def pid(self) -> int:
        """The hub's process, whose namespaces are the network's."""
        return self._process.pid

    async def ask(self, request: str, **arguments: object) -> Any:
        """Have a request of Hub's answered.

        Raises:
            KernelRefused: the kernel does not do it.
            EdgepeerError: the hub has ended, or does not answer.
        """
        result, _ = await self._ask(request, arguments)
        return result

    async def listener(self) -> tuple[socket.socket, int]:
        """A socket that listens in the network, and its port. Raises as `ask`."""
        port, descriptors = await self._ask("listen", {})
        return socket.socket(fileno=descriptors[0]), port

    async def _ask(self, request: str, arguments: dict[str, object]) -> tuple[Any, list[int]]:
        async with self._turn:
            try:
                self._control.send(msgspec.json.encode((request, arguments)))
                async with asyncio.timeout(_ANSWER_S):
                    await self._readable()
                message, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
            except TimeoutError:
                raise EdgepeerError(f"emulated network: no answer within {_ANSWER_S:g} s to: {request}") from None
            except OSError as error:
                raise EdgepeerError(f"emulated network: has ended: {self._last_words() or error}") from None
        if not message:
            raise EdgepeerError(f"emulated network: has ended: {self._last_words()}")
        answer = msgspec.json.decode(message)
        if "error" in answer:
            raise KernelRefused(answer["error"])
        return answer["result"], descriptors

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._control, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._control)

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
