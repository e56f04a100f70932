"""All connections of a peer: at most one for each other peer, whoever opened it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from edgepeer.complaints import Complaints
from edgepeer.ids import PeerId
from edgepeer.peer.session import NOBODY, FrameListener, Session
from edgepeer.peer.whereabouts import Whereabouts
from edgepeer.processes import os_reason
from edgepeer.topology.view import Member
from edgepeer.transport.base import Channel, Listener, Transport
from edgepeer.wire.frames import Frame, Hello

__all__ = ["Switchboard"]

_log = logging.getLogger(__name__)

DIAL_TIMEOUT_S: Final = 2.0
STAGGER_S: Final = 0.25
"""The next address is tried this long after the one before it, if that has not answered yet."""
CROSSING_S: Final = 2.0
"""Two connections made within this time may be two peers who dialled each other at once."""
STRANGERS_BYTES: Final = 8 << 20
"""So much of documents, together, is held for peers that nobody has told of."""


class Switchboard:
    """Connections by peer. `hello`: what to say on a new one; `tasks` owns the attempts to connect; `known`: whether a
    peer is expected to call; `machine`: this one (`this_machine`)."""

    def __init__(
        self,
        transport: Transport,
        hello: Callable[[], Hello],
        lines: FrameListener,
        tasks: asyncio.TaskGroup,
        *,
        max_links: int,
        known: Callable[[PeerId], bool],
        machine: str = "",
    ) -> None:
        self._hello = hello
        self._me = hello().peer
        self._transport = transport
        self.lines = lines
        self._tasks = tasks
        self._max_links = max_links
        self._sessions: dict[PeerId, Session] = {}
        self._leaving: dict[Session, None] = {}
        """Closed, longest ago first, but what is queued there still goes out."""
        self._strangers: dict[Session, None] = {}
        """Those that have not said yet who they are, longest first."""
        self._dialling: set[PeerId] = set()
        self._evicted: set[PeerId] = set()
        self._whereabouts = Whereabouts(machine)
        self._calls: set[asyncio.Task[None]] = set()
        self._closed = False
        self._empty = asyncio.Event()
        """There are no connections any more, and will be none."""
        self._known = known
        self._borrowed = 0
        self.refused = Complaints(_log)

    async def listen(self, address: str) -> Listener:
        return await self._transport.listen(address, self._accept)

    def send(self, peer: PeerId, frame: Frame, payload: memoryview | bytes | None) -> None:
        session = self._sessions.get(peer)
        if session is not None:
            session.channel.send(frame, payload)

    def receiving(self) -> list[tuple[PeerId, float]]:
        """The peers of whom a part of a frame has come since this was last asked, and when."""
        found = ((peer, session.channel.progressed()) for peer, session in self._sessions.items())
        return [(peer, at) for peer, at in found if at is not None]

    def missing(self, now: float) -> list[tuple[PeerId, float, float]]:
        """The peers to whom something is under way, from when on nothing of it was acknowledged, and within which time
        it should be."""
        found = ((peer, session.channel.missing(now)) for peer, session in self._sessions.items())
        return [(peer, *each) for peer, each in found if each is not None]

    def hang_up(self, peer: PeerId, reason: str, *, abrupt: bool = False) -> None:
        """Close the connection to a peer, if there is one; `link_down` is not called. `abrupt`: drop what is queued for
        it, on connections that were closed before, too: it lies in memory that is about to change."""
        session = self._sessions.pop(peer, None)
        if not abrupt:
            if session is not None:
                self._let_go(session, reason)
            return
        for each in [session, *(each for each in self._leaving if each.peer == peer)]:
            if each is not None:
                each.channel.abort(reason)

    def _let_go(self, session: Session, reason: str) -> None:
        self._leaving[session] = None
        session.channel.close(reason)
        if len(self._leaving) > self._max_links:  # whoever connects again and again, and reads nothing, has but so many
            oldest = next(iter(self._leaving))
            del self._leaving[oldest]
            oldest.channel.abort(reason)

    def close(self, reason: str, *, abrupt: bool = False) -> None:
        """Close everything. `abrupt`: without sending what is queued, also over what is being closed already."""
        self._closed = True
        for call in self._calls:
            call.cancel()
        for session in [*self._sessions.values(), *self._strangers, *(self._leaving if abrupt else ())]:
            if abrupt:
                session.channel.abort(reason)
            else:
                self._let_go(session, reason)
        self._sessions.clear()
        self._check_empty()

    async def emptied(self, within_s: float) -> None:
        """Wait until what was closed has gone, for so long at most: where a process ends before, so does what is on its
        way to others."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._empty.wait()

    @property
    def undelivered(self) -> int:
        """How many bytes others have yet to get."""
        return sum(session.channel.undelivered for session in self._sessions.values())

    def _check_empty(self) -> None:
        if self._closed and not self._leaving:
            self._empty.set()

    # -- making connections ----------------------------------------------------------------------------------

    def dial(self, member: Member) -> None:
        """Try the peer's addresses; `link_up` or `dial_failed` follows, unless a connection arrives meanwhile."""
        peer = PeerId(member.id)
        if peer in self._dialling or self._closed:
            return
        attempts = self._dial(peer, member)
        try:
            call = self._tasks.create_task(attempts, name=f"dial {peer}")
        except RuntimeError:  # something else has failed, and ends all tasks of this peer
            attempts.close()
            return
        self._dialling.add(peer)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    def leave_out(self, peer: PeerId) -> None:
        """A peer is of the fleet no more. It is not dialled: whether it answers or not, for this fleet nobody lives
        there, and the others need not wait for it."""
        self._evicted.add(peer)

    def take_in(self, peer: PeerId, incarnation: int, moved_to: tuple[str, ...]) -> None:
        """A peer is of the fleet, with another certificate than before if it was out. `moved_to`: where that life of it
        listens by now, if not where it did when it began."""
        self._evicted.discard(peer)
        self._whereabouts.moved(peer, incarnation, moved_to)

    def may_meet(self, member: Member) -> bool:
        """Whether that peer has not been found yet where it says that it is, and may be."""
        places = self._whereabouts.elsewhere(member)
        if not places or member.id in (self._me, *self._evicted):
            return False
        return not self._whereabouts.is_known(member)

    async def meet(self, peer: PeerId, member: Member) -> None:
        """See whether it is that peer who answers there, and hang up: to the other end that is a wrong number."""
        for address in self._whereabouts.elsewhere(member):
            made: list[Session] = []
            try:
                call = partial(self._call, NOBODY, made)
                await self._transport.dial(address, call, timeout=DIAL_TIMEOUT_S, quiet=True)
                await made[0].settled
            except OSError:
                continue
            finally:
                if made:
                    made[0].channel.close("wanted to hear who is there")
            if made[0].vouched == peer:
                self._whereabouts.found(peer, address)
                break

    def _call(self, peer: PeerId, made: list[Session], channel: Channel) -> Session:
        made.append(Session(self, channel, self._hello(), self._transport.traffic, wanted=peer))
        self._strangers[made[0]] = None
        return made[0]

    async def _dial(self, peer: PeerId, member: Member) -> None:
        failures: list[OSError] = []
        answered = asyncio.Event()
        addresses = self._whereabouts.addresses(member)
        if peer in self._evicted:
            failures, addresses = [ConnectionRefusedError("it was evicted")], ()
        try:
            async with asyncio.TaskGroup() as attempts:
                pending = [
                    attempts.create_task(self._attempt(peer, address, n * STAGGER_S, answered, failures))
                    for n, address in enumerate(addresses)
                ]
                if addresses:
                    waiter = attempts.create_task(answered.wait())
                    await asyncio.wait([waiter, attempts.create_task(_all(pending))], return_when="FIRST_COMPLETED")
                    for task in [waiter, *pending]:
                        task.cancel()
        finally:
            self._dialling.discard(peer)
        if peer not in self._sessions and not self._closed:
            refused = bool(failures) and all(isinstance(failure, ConnectionRefusedError) for failure in failures)
            refused = refused and (peer in self._evicted or self._whereabouts.is_known(member))
            self.lines.dial_failed(peer, "; ".join(map(str, failures)) or "it advertises no address", refused)

    async def _attempt(
        self, peer: PeerId, address: str, delay: float, answered: asyncio.Event, failures: list[OSError]
    ) -> None:
        await asyncio.sleep(delay)
        made: list[Session] = []
        try:
            await self._transport.dial(address, partial(self._call, peer, made), timeout=DIAL_TIMEOUT_S)
            await made[0].settled
        except OSError as error:  # TimeoutError is one
            failures.append(type(error)(f"{address}: {os_reason(error)}"))
            return
        except asyncio.CancelledError:
            if made and made[0].peer is None:
                made[0].channel.close("another address answered")
            raise
        if made[0].vouched == peer:
            self._whereabouts.found(peer, address)
        if made[0].peer == peer or peer in self._sessions:
            answered.set()
        elif made[0].named not in ("", peer):
            failures.append(ConnectionRefusedError(f"{address}: {made[0].named} is there now"))
        else:
            failures.append(OSError(f"{address}: nobody there says who it is"))

    def _accept(self, channel: Channel) -> Session:
        session = Session(self, channel, self._hello(), self._transport.traffic)
        if len(self._strangers) + len(self._sessions) >= self._max_links and not self._make_room():
            self.refused.add("connection from %s refused: %d links are in use", channel.remote, self._max_links)
            channel.close("too many connections")
        else:
            self._strangers[session] = None
        return session

    def _make_room(self) -> bool:
        """Hang up on whoever has connected and not said for longest who it is, that none of these keeps others out: a
        peer says so at once. Whether there is one."""
        silent = next((each for each in self._strangers if each.wanted is None), None)
        if silent is None:
            return False
        del self._strangers[silent]
        self.refused.add("connection from %s closed: it has not said who it is, and others come", silent.channel.remote)
        silent.channel.close("too many connections")
        return True

    # -- sessions --------------------------------------------------------------------------------------------

    def introduced(self, session: Session) -> bool:
        peer = session.peer
        assert peer is not None
        self._strangers.pop(session, None)
        if session.wanted is None:
            self._whereabouts.found(peer, session.channel.remote)
        old = self._sessions.get(peer)
        if self._closed or (old is not None and self._keeps(old, session)):
            return False
        if old is not None:
            del self._sessions[peer]
            self._let_go(old, "replaced by a newer connection")
            self.lines.link_down(peer, "replaced by a newer connection")
        self._sessions[peer] = session
        self.lines.link_up(peer, session.incarnation, dialled=session.wanted is not None)
        return True

    def admits(self, session: Session, payload_bytes: int) -> bool:
        assert session.peer is not None
        if session.wanted is not None or self._known(session.peer):
            return True
        if self._borrowed + payload_bytes > STRANGERS_BYTES:
            return False
        session.borrowed = payload_bytes
        self._borrowed += payload_bytes
        return True

    def give_back(self, session: Session) -> None:
        self._borrowed -= session.borrowed
        session.borrowed = 0

    def _keeps(self, old: Session, new: Session) -> bool:
        """Whether of two connections with one peer the old one stays.

        The newer one stays, since the other end may have lost the old one without our knowing. But where both
        dialled each other at once, both must decide alike: for the one that the smaller id opened.
        """
        if new.met_at - old.met_at > CROSSING_S or (old.wanted is None) == (new.wanted is None):
            return False
        opened_by_us_stays = self._me < str(new.peer)
        return (old.wanted is not None) == opened_by_us_stays

    def session_closed(self, session: Session, reason: str) -> None:
        self._strangers.pop(session, None)
        self._leaving.pop(session, None)
        self._check_empty()
        if session.peer is not None and self._sessions.get(session.peer) is session:
            del self._sessions[session.peer]
            if not self._closed:
                self.lines.link_down(session.peer, reason)


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
