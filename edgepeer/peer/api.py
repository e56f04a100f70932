"""Peer: one member of a fabric, for a program with an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import msgspec

from edgepeer.coding.scheme import CodingScheme, parse_scheme
from edgepeer.elapsed import elapsed
from edgepeer.enrol.keeping import kept
from edgepeer.errors import ConfigError, LeftFabric, NotReady, PeerError
from edgepeer.fabric import events as seen
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.documents import MAX_ADDRESS_CHARS, MAX_ADDRESSES
from edgepeer.fabric.inbox import JOB_LIMIT_BYTES
from edgepeer.fabric.topics import Group, Topics
from edgepeer.ids import Generation, Lineage, PeerId, check_fabric, check_peer_id, keep_generation, load_identity
from edgepeer.peer.arguments import Arguments
from edgepeer.peer.bell import Bell
from edgepeer.peer.calls import ROUND_TIMEOUT_S, Calls
from edgepeer.peer.coded_call import Gradient, Pace
from edgepeer.peer.control import ControlPlane
from edgepeer.peer.driver import Driver
from edgepeer.peer.hearsay import Hearsay
from edgepeer.peer.keeper import StateKeeper
from edgepeer.peer.last_view import LastView
from edgepeer.peer.leaving import let_go
from edgepeer.peer.letters import Letters
from edgepeer.peer.machines import FtTree, MachineFactory
from edgepeer.peer.meeting import meet_others
from edgepeer.peer.moving import follow_addresses, may_move
from edgepeer.peer.outcome import FloatArray, Outcome, as_peers, as_seconds
from edgepeer.peer.reach import warn_of_reach
from edgepeer.peer.switchboard import Switchboard
from edgepeer.peer.tasks import task_group
from edgepeer.peer.whereabouts import this_machine
from edgepeer.processes import os_reason
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import LinkState
from edgepeer.protocol.machine import ProtocolName
from edgepeer.protocol.shape import Choice
from edgepeer.sockets import unguarded
from edgepeer.topology.view import Member, View
from edgepeer.transport.base import Traffic, Transport
from edgepeer.transport.options import advertised, parse_address
from edgepeer.transport.tcp import TcpTransport
from edgepeer.trust.lives import begin_life
from edgepeer.trust.names import Role
from edgepeer.wire.frames import Hello, State
from edgepeer.wire.precision import Precision

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["ROUND_TIMEOUT_S", "Peer"]

_log = logging.getLogger(__name__)

_HANG_UP_S: Final = 1.0
"""How long what was sent may take to arrive when all else is over."""
_ENTER: Final = "enter it first, as in `async with Peer(...) as peer`"
_FT_TREE: Final = FtTree()


class Peer:
    """A member of a fabric. Use it as an async context manager; leaving it leaves the fabric.

    It speaks with others on the event loop that it is entered on. A program that computes there keeps it from that, and
    is taken for gone after three seconds: compute in a thread (`asyncio.to_thread`), or use `edgepeer.connect`, which
    has a loop of its own.

    Args:
        broker: mqtt://[user:password@]host[:port]
        fabric: name of the fleet; peers of one fabric find each other.

        Who this peer is:
        peer_id: a fixed id; default: the one kept in `state_dir`, or a random one.
        state_dir: where the identity, and who the others were, is kept over restarts.

        How others reach it:
        listen: host:port for other peers to connect to; the default is for this machine only.
        insecure: listen beyond this machine without a fleet, on a network all of which you trust: whoever reaches the
            port can read and change everything.
        advertise: addresses to announce instead of those that `listen` is reached under.

        The fleet, if this peer makes its first view:
        fanout: children per peer in the tree; auto: 2, and then as what is measured says.
        lanes: into how many ranges a vector is divided, each of which moves over a tree of its own; auto: 1, and then
            as what is measured says. With either auto, the order of peers follows that, too.
        quorum: how many peers it takes to go on without the others, if that is more than a majority.

        Rounds, the same at all peers:
        code: how gradients are coded, for `allreduce_chunks`.
        wait: when the root may close a coded round: exact, error<E or deadline:SECONDS.
        machine: what rounds run by; the default is the fault-tolerant tree, for others see edgepeer.baselines.
        limits: when to give up on what.

        The fleet that this peer is of:
        trust: its identity there. Then it speaks with members of that fleet only, by whom nobody else's word is taken
            for theirs, and what they say can be read by nobody else. Its id and fabric are the identity's.

        Programs that do more than allreduce:
        aside: listen only, until `come_back`: the others do not know of this peer.
        on_fabric_event: also told what the fabric client tells.
        on_hearsay: told of peers' documents about the fabric's job, as `tell` has told them.

    Raises (on entering):
        PeerError: it has been entered before.
        ConfigError: an argument is wrong, or `listen` can't be used.
        FabricError: the broker can't be reached or refuses us.
    """

    def __init__(
        self,
        broker: str = "mqtt://127.0.0.1:1883",
        fabric: str = "default",
        *,
        peer_id: str | None = None,
        state_dir: Path | str | None = None,
        listen: str = "127.0.0.1:0",
        insecure: bool = False,
        advertise: Sequence[str] = (),
        fanout: int | Literal["auto"] = "auto",
        lanes: int | Literal["auto"] = "auto",
        quorum: int = 0,
        code: str = "none",
        wait: str = "exact",
        machine: MachineFactory = _FT_TREE,
        limits: Limits | None = None,
        trust: Identity | None = None,
        aside: bool = False,
        on_fabric_event: Callable[[seen.FabricEvent], None] | None = None,
        on_hearsay: Callable[[PeerId, bytes], None] | None = None,
    ) -> None:
        given = Arguments.of(vars())
        self._broker = BrokerAddress.parse(broker)
        self._fabric_name = check_fabric(fabric)
        self._trust = trust
        if trust is not None:
            peer_id = _named(trust, fabric, peer_id)
        elif peer_id is not None:
            check_peer_id(peer_id)
        self._identity_args = (given.state_dir, peer_id)
        self._last_view = LastView(given.state_dir, self._fabric_name)
        self._listen = listen
        host, _ = parse_address(listen)
        if (reason := unguarded(host, guarded=trust is not None, insecure=insecure)) is not None:
            raise ConfigError(
                f"listen {listen}: {reason} and give trust=..., or insecure=True on a network that you trust"
            )
        for address in given.advertise:
            parse_address(address)
        if len(given.advertise) > MAX_ADDRESSES or any(len(address) > MAX_ADDRESS_CHARS for address in given.advertise):
            raise ConfigError(
                f"advertise = {', '.join(given.advertise)}: must be at most {MAX_ADDRESSES} addresses, of at most "
                f"{MAX_ADDRESS_CHARS} characters each"
            )
        self._advertise = tuple(given.advertise)
        self._first_view = 2 if fanout == "auto" else fanout, 1 if lanes == "auto" else lanes, quorum
        auto = Choice(fanout=fanout == "auto", lanes=lanes == "auto")
        self._choice = auto if auto.fanout or auto.lanes else None
        self._machine = machine
        self._limits = given.limits or Limits()
        self._aside = aside
        self._on_fabric_event = on_fabric_event
        self._on_hearsay = on_hearsay
        self._scheme = parse_scheme(code, wait)
        if self._scheme is not None and machine.protocol != "ft-tree":
            raise ConfigError(f"code = {code!r}: only rounds of ft-tree can be coded, not of {machine.protocol}")
        if lanes not in ("auto", 1) and machine.protocol != "ft-tree":
            raise ConfigError(f"lanes = {lanes}: rounds of {machine.protocol} have none; use ft-tree")
        if lanes not in ("auto", 1) and self._scheme is not None:
            raise ConfigError(
                f"lanes = {lanes}: a coded round moves over the one tree of its code; leave out lanes or code"
            )
        self._view: View | None = None
        self._kept: Generation | None = None
        """The generation that `state_dir` knows of, as far as this peer has been in it."""
        self.bell = Bell()
        """Rings whenever the view or anything else of this peer has changed."""
        self._calls = Calls(self.bell)
        self._left: asyncio.Event = asyncio.Event()
        self._closed = False
        self.address = ""
        """Where this peer listens; empty before it does."""
        self.broker_there: bool | None = None
        """Whether a broker has let this peer in, and has not gone since; None before the first has."""
        self._entered = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """That this peer lives in."""
        self._stack = contextlib.AsyncExitStack()
        self._keeper: StateKeeper | None = None
        self._takes_part = aside
        """Whether runs are this peer's business: they are an agent's, and a program's that has asked for one."""
        self._kept_out = ""
        """Why this peer, which has no business here, has left."""
        self._came: fx.StateReceived | None = None
        """The last state of a neighbour that the keeper was given, until it is in use."""
        self._letters: Letters | None = None

    # -- life --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._entered:
            raise PeerError("a Peer is entered once: make another, of the same arguments, to be in the fabric again")
        self._entered = True
        self._loop = asyncio.get_running_loop()
        try:
            await self._start()
        except BaseException:
            self._closed = self._calls.closed = True
            self.bell.ring()
            await self._stack.__aexit__(None, None, None)
            raise
        return self

    async def _start(self) -> None:
        identity = load_identity(*self._identity_args)
        if self._trust is not None and self._identity_args[0] is None:
            # Its id outlives it all the same, and the others know which of its lives was the last.
            identity = dataclasses.replace(identity, incarnation=begin_life(self._trust.directory))
        self.id: PeerId = identity.peer_id
        transport = self._transport()
        self.traffic: Traffic = transport.traffic
        await self._stack.enter_async_context(kept(self._trust))
        tasks = await self._stack.enter_async_context(task_group())
        # From here on, in reverse order of what must happen at the end.
        letters = self._letters = self._new_letters()
        key = letters.key if letters is not None else msgspec.UNSET
        machine = this_machine()
        me = Member(id=self.id, incarnation=identity.incarnation, key=key, machine=machine or msgspec.UNSET)
        fanout, lanes, quorum = self._first_view
        node = self._machine(
            me,
            fanout=fanout,
            lanes=lanes,
            choice=self._choice,
            quorum=quorum,
            limits=self._limits,
            known=identity.known,
            now=elapsed(),
        )
        self._driver = Driver(node, self, letters)
        if self._on_hearsay is not None:
            self._driver.hearsay = Hearsay(
                self._driver.send,
                self._on_hearsay,
                limit_bytes=JOB_LIMIT_BYTES,
                piece_bytes=self._limits.state_segment_bytes,
            )
        self._calls.run_on(self._driver)
        switchboard = Switchboard(
            transport,
            self._hello,
            self._driver,
            tasks,
            max_links=self._limits.max_links,
            known=self._knows,
            machine=machine,
        )
        self._driver.switchboard = switchboard
        self._stack.push_async_callback(self._hang_up, switchboard)
        self._stack.callback(self._driver.stop)
        self._stack.callback(self._calls.end)
        listener = await switchboard.listen(self._listen)
        self._stack.push_async_callback(listener.close)
        self.address = listener.address
        self.bell.ring()
        addresses = self._advertise or advertised(listener.address)
        node.introduce(addresses)
        self.fabric = FabricClient(
            self._broker,
            self._fabric_name,
            self.id,
            on_event=self._hear,
            will_topic=Topics(self._fabric_name).presence(self.id),
            interests=Group.PEERS | Group.VIEW | Group.JOB | Group.RELAY,
            identity=self._trust,
        )
        self.control = ControlPlane(
            self.fabric, self.traffic, self._driver.dispatch, aside=self._aside, letters=letters
        )
        # Not before: from its first event on the machine may want anything, and does where time has stood still.
        self._calls.use(self._scheme)
        tasks.create_task(self.fabric.run(), name="fabric")
        self._stack.push_async_callback(self.fabric.close)
        await self.fabric.connected()
        warn_of_reach(listener.address, addresses, self._broker.host, sealed=self._trust is not None)
        self.publish_presence()
        self._driver.start()
        if (last := self._last_view.load()) is not None:
            self._driver.dispatch(ev.ViewSeen(last))
        tasks.create_task(self._watch(), name="watch")
        self._stack.callback(tasks.create_task(meet_others(switchboard, lambda: self._view), name="meet").cancel)
        if not self._advertise and may_move(listener.address):
            moves = follow_addresses(
                listener.address, addresses, lambda now: self.control.move(self._driver.node.me, now)
            )
            self._stack.callback(tasks.create_task(moves, name="addresses").cancel)
        self._stack.push_async_callback(self._leave)

    def _transport(self) -> Transport:
        if self._trust is None:
            return TcpTransport()
        from edgepeer.transport.secure import SecureTransport  # here: it needs cryptography, which others don't

        transport = SecureTransport(self._trust)
        self._stack.callback(transport.close)
        return transport

    def _new_letters(self) -> Letters | None:
        if self._trust is None:
            return None
        from edgepeer.trust.sealing import Correspondence

        return Letters(self.id, Correspondence(self._fabric_name, self.id), self.traffic)

    def _knows(self, peer: PeerId) -> bool:
        return self.fabric.is_present(peer) or (self._view is not None and peer in self._view)

    async def _watch(self) -> None:
        """Let a bug in the machine end everything, loudly."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._driver.failure

    async def _hang_up(self, switchboard: Switchboard) -> None:
        """Close all connections. Where the machine has broken down in mid-round, what is queued may lie in an array
        that is the caller's again."""
        switchboard.close("leaving", abrupt=self._driver.node.allreduce.contributed and self._driver.broken)
        await switchboard.emptied(_HANG_UP_S)

    async def _leave(self) -> None:
        """Wait until the others have let this peer go."""
        self._closed = self._calls.closed = True
        self.bell.ring()
        self._driver.dispatch(ev.LeaveWanted())
        if self._driver.failure.done():
            return
        lines = self._driver.switchboard
        await let_go(self._left, lambda: lines.undelivered if lines is not None else 0)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # which would take any name for one that is there

        def __getattr__(self, name: str) -> Any:
            """What there is not before it is entered, such as `id` and `links`."""
            why = "" if name.startswith("__") or self._entered else f": {_ENTER}"
            raise AttributeError(f"this Peer has no {name!r}{why}", name=name, obj=self)

    def _check_loop(self) -> None:
        """That it is called where it lives.

        Raises:
            PeerError: it isn't: nothing would wake the call up there, and the machine is for one thread.
        """
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise PeerError(
                "this peer lives in another event loop: call it there (asyncio.run_coroutine_threadsafe), or use "
                "edgepeer.connect"
            )

    # -- the fleet ---------------------------------------------------------------------------------------

    @property
    def protocol(self) -> ProtocolName:
        """What rounds run by."""
        return self._machine.protocol

    @property
    def view(self) -> View | None:
        """The view this peer works in; None while it is in none."""
        return self._view

    @property
    def closed(self) -> bool:
        """Whether this peer leaves, or has left."""
        return self._closed

    async def ready(self, peers: int = 1, *, timeout: float = 60.0) -> View:
        """Wait until at least `peers` peers, this one included, are in its view.

        Raises:
            NotReady: not within `timeout` seconds.
            LeftFabric: this peer has left.
            PeerError: it has not been entered, or a call was told that the fabric works on a job.
            TypeError, ValueError: `peers` or `timeout` is no such number.
        """
        peers, timeout = as_peers(peers), as_seconds(timeout)
        if not self._entered:
            raise PeerError(f"this peer is in no fabric: {_ENTER}")
        if self._kept_out:
            raise PeerError(self._kept_out)
        try:
            async with asyncio.timeout(timeout):
                async for view in self.views():
                    if view.size >= peers:
                        return view
        except TimeoutError:
            pass
        else:
            raise LeftFabric("this peer has left the fabric")
        there = self._view.size if self._view is not None else 0
        raise NotReady(f"{there} of {peers} peers are in fabric {self._fabric_name!r} after {timeout:g} s")

    async def views(self) -> AsyncIterator[View]:
        """The view, and every later one; views that the caller is too slow for are skipped."""
        self._check_loop()
        told: View | None = None
        while not self._closed:
            count = self.bell.count
            if self._view is not None and self._view is not told:
                told = self._view
                yield told
            else:
                await self.bell.wait(count)

    # -- allreduce ---------------------------------------------------------------------------------------

    async def allreduce(
        self,
        value: FloatArray | Sequence[FloatArray],
        *,
        weight: float = 1.0,
        timeout: float = ROUND_TIMEOUT_S,
        precision: Precision = "float32",
    ) -> Outcome:
        """Add up the peers' arrays. The k-th call of a peer belongs to the k-th of every other.

        Args:
            value: float32 or float64 array, or list of arrays of one of these types; alike at all peers, of which
                only the type and the number of elements are compared. It is not copied and must not change until
                the call returns or is cancelled.
            weight: what the value counts for (a number of samples, say); finite, not negative.
            timeout: seconds until this peer asks for the round to be given up, by everybody.
            precision: what numbers are rounded to where they travel, the same at all peers. float32: they are not,
                and float64 isn't either. bf16 and int8 take a half and a quarter of the bytes of float32 arrays;
                the outcome says which it was, and is the same bits at every peer all the same.

        Raises:
            NotReady: this peer is in no view yet.
            RoundTimeout: not all contributions came in time. Unless the text begins with the round's number, nobody has
                said yet whether that counts; if it does, the next call raises FellBehind.
            ContributionMismatch: peers brought different sizes, dtypes or precisions; or the others have decided the
                round without this peer, with another size than this one's.
            NotFinite: in bf16 or int8, a value, or a partial sum, is infinite or not a number.
            FellBehind: rounds were decided since this peer's last call, without it or its hearing how; it may have been
                in no view meanwhile. The next call is of the round that comes next.
            BegunAnew: a newer generation has begun, without this peer: what it had of the one before is given up.
            LeftFabric: this peer left, or was removed.
            PeerError: another allreduce of this peer has not ended: its round goes on even if the call was
                cancelled. Or the fabric works on a job, in which this peer takes no part; it has left.
            TypeError, ValueError: an argument is not as said above, or the arrays have more than 1 GiB.

        Cancelling ends the call, not the round: the value counts, and until the others have brought theirs, or the
        call's `timeout` is over, this peer can't call again. To limit how long all wait, use `timeout`. Who does not
        want to go on, or can't wait for that, leaves, for which it is given 5 s where its round does not end; to come
        again, as another Peer, takes less than a second.
        """
        if precision != "float32" and self.protocol != "ft-tree":
            raise ValueError(f"precision = {precision!r}: only rounds of ft-tree can do it, not of {self.protocol}")
        self._check_loop()
        self._check_place()
        return await self._calls.allreduce(value, weight, timeout, precision)

    async def allreduce_chunks(
        self, gradient: Gradient, *, timeout: float = ROUND_TIMEOUT_S, pace: Pace | None = None
    ) -> Outcome:
        """Add up the gradients of all chunks of a data set, each of which several peers can compute.

        This peer computes its chunks in the order of the code, until enough has been computed anywhere; then it
        brings what it has, and gets the sum. Calls count as those of `allreduce` do, which can't be mixed with these.

        Args:
            gradient: awaited with (chunk, number of chunks); returns the chunk's gradient (float32 or float64 array,
                or list of arrays), alike at all peers, and what it counts for. Blocking work belongs in a thread.
                It is cancelled when the round is over.
            timeout: seconds until this peer asks for the round to be given up, by everybody.
            pace: how long a chunk takes at least, to emulate a slower device.

        Raises:
            As `allreduce`; ContributionMismatch: peers use different codes. What `gradient` raises.

        Where the call is cancelled, or `gradient` raises, what has been computed counts, and no more comes. If the code
        can't do without the rest, all wait for the first `timeout`, or until this peer has left: see `allreduce`.
        """
        self._check_loop()
        self._check_place()
        return await self._calls.allreduce_chunks(gradient, timeout, pace)

    def _check_place(self) -> None:
        """Refuse calls of a program in a fabric of agents: it would wait for rounds in which it has no part, and they
        for what it does not bring. It leaves."""
        view = self._view
        if view is not None and view.run and not (self._takes_part or self._kept_out or self._closed):
            self._kept_out = (
                f"fabric {self._fabric_name!r} works on job {view.run}, and this program takes no part in that: "
                "give it a fabric of its own"
            )
            self.stand_aside()
        if self._kept_out:
            raise PeerError(self._kept_out)

    def use_scheme(self, scheme: CodingScheme | None) -> None:
        """Rounds are coded so from the next view on, or, if they are coded already, from the next round on; None: no
        more. The same at all peers, and not in an `allreduce_chunks`.

        Raises:
            PeerError: this peer is not entered yet; give `Peer` `code` and `wait`.
        """
        self._calls.use(scheme)

    # -- state of a run --------------------------------------------------------------------------------------

    def attach(self, keeper: StateKeeper) -> None:
        """Ask this one about the state of runs from now on.

        Raises:
            PeerError: another one is asked: a peer takes part in one run at a time.
        """
        if self._keeper is not None and self._keeper is not keeper:
            raise PeerError("this peer takes part in a run already, whose state another keeps: one at a time")
        self._keeper = keeper

    def detach(self, keeper: StateKeeper) -> None:
        """Ask this one no more, if it was asked."""
        if self._keeper is keeper:
            self._keeper = self._came = None

    def expect_run(self, run: str, peers: int) -> None:
        """Say that this peer is to ask for a run, of at least so many peers, once it is ready: so it does not begin
        without them what those who are at work on it would have to follow."""
        self._driver.dispatch(ev.RunExpected(run, peers))

    def want_run(
        self,
        run: str | None,
        peers: int = 1,
        have: int = 0,
        of: Lineage | None = None,
        slots: tuple[str, ...] = (),
    ) -> None:
        """Ask for a run: the coordinator starts it once `peers` peers are in.

        `have`: the last round whose state is in use here, from a checkpoint; 0: none. `of`: `View.lineage` of the view
        that this round ended in. `slots`: `View.slots` of that.
        """
        self._takes_part = True
        self._driver.dispatch(ev.RunWanted(run, peers, have, of, slots))

    def stand_aside(self) -> None:
        """Leave the view but stay in reach; `come_back` undoes it. Not in an allreduce."""
        self._driver.dispatch(ev.LeaveWanted())

    def come_back(self) -> None:
        """Join, having started aside or after `stand_aside`, as soon as that is through. Who is in stays in."""
        self._left.clear()
        self.control.join(self._driver.node.me)
        self._driver.dispatch(ev.JoinWanted())

    def tell(self, document: bytes, peer: PeerId | None = None) -> None:
        """Tell of the fabric's job over connections, to all peers, those included that connect later; or to one."""
        hearsay = self._driver.hearsay
        assert hearsay is not None, "whoever tells hears as well"
        if peer is None:
            hearsay.say(document)
        else:
            hearsay.tell(peer, document)

    def give_state(self, peer: PeerId, run: str, number: int, state: bytes | memoryview) -> None:
        """Answer `StateKeeper.state_wanted`: the state after round `number`, which may be empty."""
        self._driver.dispatch(ev.StateReady(peer, run, number, state))

    def adopt(self, run: str, number: int, state: memoryview | None = None) -> None:
        """Say that the state after round `number` is in use here. `state`: as it came, if more may have come."""
        came = self._came
        superseded = came is not None and state is not None and state is not came.state
        if came is None or superseded or (came.run, came.round) != (run, number):
            return  # another has come meanwhile, and is put to use next
        self._came = None
        self._calls.adopted(number)
        self._driver.dispatch(ev.Adopted(run, number, came.of, came.life))

    def lose_state(self) -> None:
        """Say that the state in use here is not that of the others: a neighbour's comes, as for who joins."""
        self._driver.dispatch(ev.StateLost())

    def give_part(self, peer: PeerId, name: str, number: int, part: bytes | memoryview) -> None:
        """Answer `StateKeeper.part_wanted`, on the connection that it was asked on. An empty part: there is none."""
        view, step = memoryview(part), self._limits.state_segment_bytes
        for start in range(0, max(len(view), 1), step):
            frame = State(run=name, round=number, offset=start, total=len(view))
            self._driver.send(peer, frame, view[start : start + step])

    @property
    def waits(self) -> str:
        """Why the fleet can't go on, as far as this peer knows; empty if nothing is in its way."""
        return self._driver.node.waits

    @property
    def certificate_ends(self) -> float | None:
        """Until when this peer is of its fleet, if its certificate is not renewed (Unix time); None without one."""
        return None if self._trust is None else self._trust.ends

    @property
    def shape(self) -> str:
        """Why the trees are as they are; empty if nothing was found, and at peers that are not at the head."""
        return self._driver.node.shape

    @property
    def links(self) -> tuple[LinkState, ...]:
        """How this peer's links are, and what they run over."""
        return self._driver.node.link_states()

    @property
    def missed(self) -> int:
        """How many rounds are over that this peer's program has not asked for yet: its next calls return the outcomes,
        and raise for those that were dropped, at once."""
        return self._calls.missed + self._driver.node.allreduce.owed

    @property
    def engaged(self) -> bool:
        """Whether a round goes on that this peer has brought something to, be it in a call that was cancelled since."""
        return self._driver.node.allreduce.contributed

    @property
    def committed(self) -> int:
        """The last round that is over at this peer; -1 while it waits for the state of a run."""
        return self._driver.node.allreduce.committed

    @property
    def has_state(self) -> bool:
        """Whether the state of the run after that round is in use here. Its program may have lost it, or given the run
        up and want it again."""
        return self._driver.node.allreduce.has_state

    def diagnosis(self) -> dict[str, Any]:
        """Why nothing goes on: all that decides what this peer does next, as JSON has it. For people to read: what is
        in it changes with the protocol."""
        return self._driver.node.diagnosis(elapsed())

    # -- what the driver says (driver.Owner) -------------------------------------------------------------------

    def publish_presence(self) -> None:
        self.control.publish_presence(self._driver.node.me)

    def _hello(self) -> Hello:
        """What whoever connects hears first: in which life this peer is now."""
        life = self._driver.node.me.incarnation
        return Hello(fabric=self._fabric_name, peer=self.id, incarnation=life, protocol=self.protocol)

    def view_installed(self, view: View) -> None:
        self._keep(view)
        self._view = view
        if self._letters is not None:
            self._letters.view(view)
        self.fabric.works_in(view)
        self._calls.installed(view)
        self.bell.ring()

    def _keep(self, view: View) -> None:
        state_dir = self._identity_args[0]
        try:
            if self._kept != view.generation:
                # On the disk before anything is done in it, though the loop waits: who loses power and has forgotten it
                # could begin another that counts no more than this one, while checkpoints, and others, are of this one.
                keep_generation(state_dir, view.generation)
                self._kept = view.generation
            self._last_view.keep(view)
        except OSError as error:  # a full disk must not end a run
            text = (
                "state_dir %s: can't keep the view there: %s; until it can, a restart looks for those of the one before"
            )
            _log.warning(text, state_dir, os_reason(error))

    def removed(self, effect: fx.Removed) -> None:
        self._view = None
        self.fabric.works_in(None)
        self._calls.removed(effect)
        self.bell.ring()
        if effect.wanted:
            self._left.set()
        elif not self._closed:
            _log.warning("out of the view: %s; joining again", effect.reason)

    def round_committed(self, effect: fx.RoundCommitted) -> None:
        self._calls.committed(effect)

    def refused(self, effect: fx.Refused) -> None:
        self.traffic.frames_rejected += 1
        self._calls.refused(effect)

    def encode_wanted(self, effect: fx.EncodeWanted) -> None:
        self._calls.encode_wanted(effect)

    def round_aborted(self, effect: fx.RoundAborted) -> None:
        self._calls.aborted(effect)

    def provide_state(self, effect: fx.ProvideState) -> None:
        if self._keeper is not None:
            asyncio.get_running_loop().call_soon(self._keeper.state_wanted, effect.peer, effect.run, effect.round)

    def state_received(self, effect: fx.StateReceived) -> None:
        if self._keeper is not None:
            self._came = effect
            asyncio.get_running_loop().call_soon(self._keeper.state_came, effect.run, effect.round, effect.state)

    def part_wanted(self, peer: PeerId, name: str) -> None:
        if self._keeper is not None:
            asyncio.get_running_loop().call_soon(self._keeper.part_wanted, peer, name)
        else:
            asyncio.get_running_loop().call_soon(self.give_part, peer, name, 0, b"")

    def behind(self, effect: fx.Behind) -> None:
        self._calls.behind(effect)

    # -- what MQTT says ------------------------------------------------------------------------------------

    def _hear(self, event: seen.FabricEvent) -> None:
        if (switchboard := self._driver.switchboard) is not None:
            if isinstance(event, seen.Evicted):
                switchboard.leave_out(event.peer_id)
            elif isinstance(event, seen.PresenceSeen):
                told = event.presence
                switchboard.take_in(PeerId(told.id), told.incarnation, told.moved_to)
        self.control.hear(event)
        if isinstance(event, seen.Connected | seen.Disconnected):
            self.broker_there = isinstance(event, seen.Connected)
            self.bell.ring()
        if isinstance(event, seen.Disconnected) and not self._closed:
            _log.warning("broker is away (%s); rounds go on, joining waits", event.reason)
        if self._on_fabric_event is not None:
            self._on_fabric_event(event)


def _named(trust: Identity, fabric: str, peer_id: str | None) -> str:
    """The id that a certificate gives a peer. Raises ConfigError."""
    holder = trust.holder
    if holder.role is not Role.PEER:
        raise ConfigError(f"fleet = {trust.directory}: is of {holder}, but only a peer's certificate lets a peer in")
    if (holder.fabric, holder.id) != (fabric, peer_id or holder.id):
        wanted = f"{peer_id} of {fabric}" if peer_id else f"fabric {fabric}"
        raise ConfigError(f"fleet = {trust.directory}: is of {holder}, not of {wanted}: give neither, or the same")
    return holder.id
