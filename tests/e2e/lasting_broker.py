"""A mosquitto that keeps what it retains on disk, so that what was said by the dead outlives it, too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from ports import free_port
from real_programs import DEADLINE_S

from edgepeer.fabric.mosquitto import find_mosquitto
from edgepeer.processes import dies_with_parent

__all__ = ["LastingBroker", "lasting_broker"]


class LastingBroker:
    """One mosquitto with persistence, always at the same port, in the directory `home`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._port = free_port()
        self._process: asyncio.subprocess.Process | None = None
        home.mkdir()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self._port}"

    async def start(self, *more: str) -> None:
        """Start it, with `more` lines of configuration, and wait until it accepts connections."""
        program = find_mosquitto()
        assert program is not None
        lines = [
            f"listener {self._port} 127.0.0.1",
            "allow_anonymous true",
            "persistence true",
            f"persistence_location {self._home}/",
            "autosave_interval 0",
            "max_queued_messages 0",
            "max_inflight_messages 0",
            *more,
        ]
        if os.geteuid() == 0:
            lines.append(f"user {pwd.getpwuid(0).pw_name}")  # else it becomes one that may not write here
        config = self._home / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n")
        self._process = await asyncio.create_subprocess_exec(
            program, "-c", config, stderr=asyncio.subprocess.DEVNULL, preexec_fn=dies_with_parent()
        )
        async with asyncio.timeout(DEADLINE_S):
            while not await self._accepts():
                assert self._process.returncode is None, "mosquitto has ended at once"

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    async def kill(self, *, forget: bool = False) -> None:
        """End it at once, all that it retains being on disk; with `forget`, nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        kept = self._home / "mosquitto.db"
        kept.unlink(missing_ok=True)
        if not forget:
            async with asyncio.timeout(DEADLINE_S):
                while not kept.exists():
                    assert process.returncode is None, "mosquitto has ended by itself"
                    process.send_signal(signal.SIGUSR1)  # again: one that comes while it does so is lost
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            while not kept.exists():  # noqa: ASYNC110  # it says nothing when it has done so
                                await asyncio.sleep(0)
        process.send_signal(signal.SIGKILL)
        await process.wait()


@contextlib.asynccontextmanager
async def lasting_broker(home: Path) -> AsyncIterator[LastingBroker]:
    """A broker that runs, until the context ends."""
    broker = LastingBroker(home)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.kill()
