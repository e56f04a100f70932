"""The blocks of a split job's model, of all peers that have some: asked for one by one, or from files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from edgepeer.errors import JobError, WireError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.topics import Group
from edgepeer.following.observe import observe
from edgepeer.following.picture import Picture, saver_id
from edgepeer.following.result import JobResult
from edgepeer.processes import os_reason
from edgepeer.training.checkpoint import list_checkpoints, read_checkpoint
from edgepeer.training.split.part import Part, name_of_part, unpack_part
from edgepeer.training.state import name_of_state, unpack_run_state
from edgepeer.transport.base import Channel
from edgepeer.transport.tcp import TcpTransport
from edgepeer.wire.frames import Frame, Hello, Ping, State, StateRequest

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["parts_from_files", "parts_from_fleet", "state_from_peer"]

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 8
_DIAL_S: Final = 5.0
_HELLO_S: Final = 5.0
"""A peer says who it is at once. For one whose process stands still the kernel takes connections all the same."""
_PING_S: Final = 0.2
_LIMIT_BYTES: Final = 4 << 30


async def parts_from_fleet(
    broker: str, fabric: str, result: JobResult, *, timeout: float, identity: Identity | None = None
) -> list[Part]:
    """Ask each peer that has finished a split job for its blocks. Who does not answer is left out.

    Args:
        timeout: seconds in which nothing comes from a peer, after which it is given up; sooner where it does not even
            say who it is.
        identity: who asks, in a fleet.

    Raises:
        FabricError: the broker can't be reached.
    """
    holders = [peer for peer in result.done if result.reports[peer].cell >= 0]
    found = []
    for part in await _asked(broker, fabric, holders, name_of_part(result.job), timeout, identity):
        try:
            found.append(unpack_part(part))
        except WireError as error:
            _log.warning("%s", error)
    return found


async def state_from_peer(
    broker: str, fabric: str, result: JobResult, *, timeout: float, identity: Identity
) -> memoryview:
    """Ask a peer of a fleet that has finished a job for its state, being an operator, who can't join as a peer.

    Raises:
        FabricError: the broker can't be reached.
        JobError: nobody hands it over.
    """
    name = name_of_state(result.job.id)
    for peer in result.done:
        if states := await _asked(broker, fabric, [peer], name, timeout, identity):
            return unpack_run_state(memoryview(states[0]))[1]
    raise JobError("no peer has handed over the model")


async def _asked(
    broker: str, fabric: str, peers: Sequence[str], name: str, timeout: float, identity: Identity | None
) -> list[bytes]:
    """What each of these gives by that name."""
    picture = Picture()
    at = BrokerAddress.parse(broker)
    async with observe(at, fabric, picture.take, interests=Group.PEERS, identity=identity) as client:
        pass
    me = saver_id() if identity is None else identity.holder.common_name
    hello = Hello(fabric=fabric, peer=me, incarnation=1)
    few = asyncio.Semaphore(_AT_ONCE)

    async def ask(transport: TcpTransport, peer: str) -> bytes | None:
        if peer not in picture.peers:
            _log.warning("%s does not hand over its part: it is not at broker %s", peer, client.broker)
            return None
        async with few:
            for address in picture.peers[peer].places:
                try:
                    if answer := await _Asking(transport, hello, peer, name).ask(address, timeout=timeout):
                        return answer
                    _log.warning("%s does not hand over its part: it has none", peer)
                    return None
                except (OSError, WireError) as error:  # TimeoutError is one
                    reason = os_reason(error) if isinstance(error, OSError) else str(error)
                    _log.warning("%s at %s does not hand over its part: %s", peer, address, reason)
        return None

    with _transport(identity) as transport:
        answers = await asyncio.gather(*(ask(transport, peer) for peer in peers))
    return [answer for answer in answers if answer is not None]


@contextlib.contextmanager
def _transport(identity: Identity | None) -> Iterator[TcpTransport]:
    if identity is None:
        yield TcpTransport()
        return
    from edgepeer.transport.secure import SecureTransport  # here: it needs cryptography, which others don't

    with contextlib.closing(SecureTransport(identity)) as transport:
        yield transport


class _Asking:
    """A connection with one peer, for one question. A `transport.base.Receiver`."""

    def __init__(self, transport: TcpTransport, hello: Hello, peer: str, name: str) -> None:
        self._transport = transport
        self._hello = hello
        self._peer = peer
        self._name = name
        self._buffer = bytearray()
        self._received = 0
        self._moved = time.monotonic()
        self._heard = False
        self._found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def ask(self, address: str, *, timeout: float) -> bytes:
        """The peer's answer; empty: it has nothing of that name.

        Raises:
            OSError: it can't be had.
        """

        def accept(channel: Channel) -> _Asking:
            channel.send(msgspec.structs.replace(self._hello, wanted=self._peer))
            channel.send(StateRequest(run=self._name))
            return self

        channel = await self._transport.dial(address, accept, timeout=_DIAL_S)
        self._moved = time.monotonic()
        try:
            while not self._found.done():
                patience = timeout if self._heard else min(timeout, _HELLO_S)
                if time.monotonic() - self._moved > patience:
                    raise TimeoutError(f"nothing has come for {patience:g} s")
                await asyncio.wait([self._found], timeout=_PING_S)
                channel.send(Ping(waiting=False))  # who is silent is hung up on
            return self._found.result()
        finally:
            self._found.cancel()  # nobody asks any more what becomes of it
            channel.close("that was all")

    def sink(self, frame: Frame, payload_bytes: int) -> memoryview | None:
        if not isinstance(frame, State) or frame.run != self._name or frame.offset != self._received:
            return None
        if frame.offset == 0:
            if frame.total > _LIMIT_BYTES:
                return None
            self._buffer = bytearray(frame.total)
        elif frame.total != len(self._buffer):
            return None
        return memoryview(self._buffer)[frame.offset : frame.offset + payload_bytes]

    def admits(self, frame: Frame, payload_bytes: int) -> bool:
        return True  # a view: small, and of no interest here

    def received(
        self, frame: Frame, payload: memoryview | None, payload_bytes: int, stored: bool, seconds: float
    ) -> None:
        self._heard = True
        if stored and isinstance(frame, State):
            self._received, self._moved = frame.offset + payload_bytes, time.monotonic()
            if self._received == frame.total and not self._found.done():
                self._found.set_result(bytes(self._buffer))

    def closed(self, reason: str) -> None:
        if not self._found.done():
            self._found.set_exception(ConnectionError(reason))


async def parts_from_files(homes: Sequence[Path], result: JobResult) -> list[Part]:
    """The blocks after a split job's last round, from the checkpoints in the state directories of peers on this
    machine."""
    return [
        part for home in homes if (part := await asyncio.to_thread(_part_in, home / "checkpoints", result)) is not None
    ]


def _part_in(directory: Path, result: JobResult) -> Part | None:
    try:
        for path in list_checkpoints(directory)[:1]:
            checkpoint = read_checkpoint(path)
            if checkpoint.job.id == result.job.id and checkpoint.round == result.rounds:
                return unpack_part(checkpoint.state)
    except (OSError, WireError) as error:
        _log.warning("%s", error)
    return None
