"""One life of a peer as a table of states: what it does in each of them about each thing that can happen to it.

What a peer does depends on its own state and on the event alone. So each pair is worked out once, by the real machine,
and looked up from then on, whatever goes on elsewhere.

The machine's application contributes when the explorer says so, and hands over and takes up states of the run at once;
also who had lost its own, and has another's now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from edgepeer.coding.scheme import parse_scheme
from edgepeer.errors import ProtocolBug
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.node import Node
from edgepeer.protocol.succession import CURRENT
from edgepeer.simulation.exploration.calls import OTHER_CALLS, CodedCalls, contribution, is_sum
from edgepeer.simulation.exploration.canon import BEAT_S, NOW, Canon, Value
from edgepeer.simulation.task import another_scheme
from edgepeer.topology.view import Member, View
from edgepeer.wire.codec import has_document, unwrap, wrap
from edgepeer.wire.frames import Call, Frame, Knock, Ping, Poll, Propose, Via, Vote

__all__ = [
    "DROPPED", "LIMITS", "Committed", "Facts", "Frames", "Lives", "Op", "Step", "Table",
]  # fmt: skip

LIMITS: Final = Limits(
    heartbeat_min_s=BEAT_S,
    heartbeat_s=BEAT_S,
    silence_s=0.9,
    refused_s=0.25,
    relay_after_s=0.25,
    settle_s=0.25,
    settle_limit_s=1.0,
    join_batch_s=0.25,
    takeover_s=0.25,
    poll_s=0.25,
    penalty_s=0.5,
    found_s=0.5,
    anew_s=1.5,
    anew_run_s=2.5,
    penalty_limit_s=0.5,
    redial_min_s=0.5,
    redial_max_s=1.0,
    dial_back_s=0.5,
)
"""All times of one kind, so that few states differ by nothing but a time."""
DROPPED: Final = b"dropped"
"""Stands for the sum of a round that ended without one."""
_LATE_S: Final = 2.0
"""By how much a frozen process is late."""
_NO_STATE: Final = b"-"

Op: TypeAlias = tuple[Any, ...]
"""What is wanted of the network or the broker: ("send", peer, frame), ("relay", peer, frame), ("dial", peer),
("close", peer, abrupt), ("view", view), ("present", member), ("clear", member); ("left",): it is let go, and ends."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What an application was told of the end of a round, in hashable form."""

    generation: Generation
    round: int
    epoch: int
    total: bytes
    """The bits of the sum, DROPPED if there is none."""
    contributors: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """What comes of an event."""

    after: int
    """The state; -1 if the machine broke."""
    ops: tuple[Op, ...] = ()
    ends: tuple[Committed, ...] = ()
    """Rounds that have ended here."""
    views: tuple[View, ...] = ()
    """Installed."""
    broken: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the explorer may know of a state: nothing of it is the machine's own opinion of what is right."""

    peer: PeerId
    me: Member
    view: View | None
    rounds: dict[int, bytes]
    """How the rounds of which the application knows have ended."""
    over: int
    knew: int
    """The same of what it knew before it lost its state."""
    holding: bool
    """Whether a result is here that is not decided yet."""
    begins: bool
    """Whether the application may contribute to round `over` + 1."""
    cancels: bool
    """Whether it may cancel the call that it is in ..."""
    loses: bool
    """... or lose its state of the run, if it is in none."""
    goes_on: bool
    """Whether it has something to say in the call that it is in ..."""
    computes: bool
    """... or something left to compute."""
    settled: bool
    """Whether it takes its view to be settled."""
    proven: int
    """The stamp of the last view that has decided a round for it."""
    leaving: bool
    """Whether it wants to leave; then its application contributes no more."""
    frozen: bool
    """Whether it has promised not to help to decide rounds of its view any more."""
    accepted: tuple[int, View] | None
    """The ballot and the proposal that it has accepted last."""
    leading: int
    """The ballot that it leads, -1: none. One that it has given up is void: it alone would count the votes."""
    asked: int
    """The number of its last Poll or Propose."""
    heard: frozenset[PeerId]
    """Of whose Polls and Proposes it remembers some, its own answers included."""
    tunnels: tuple[tuple[PeerId, int, int, int], ...]
    """To whom, the number, and how much has gone and come through it."""
    fingerprint: bytes

    @property
    def stands(self) -> tuple[object, ...]:
        """What else must be looked at when it changes, though nothing is sent."""
        return self.me.incarnation, self.accepted, self.leading, self.settled


class Frames:
    """Everything that is under way somewhere, by number: frames, documents, words of the broker."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._things: list[Any] = []
        self.fingerprints: list[bytes] = []
        self._kinds: list[type] = []
        self._askers: list[str] = []
        self._ways: list[tuple[str, str] | None] = []

    def number(self, thing: Any) -> int:
        found = self._numbers.get(thing)
        if found is None:
            found = self._numbers[thing] = len(self._things)
            self._things.append(thing)
            self.fingerprints.append(blake2b(repr(thing).encode(), digest_size=8).digest())
            carried = thing[1] if thing[0] == "relayed" else thing[0]
            way = None
            if isinstance(carried, Via):
                way = (carried.source, carried.target) if carried.tunnel else None
                carried = unwrap(carried, len(thing[-1]))
            self._kinds.append(type(carried) if way is None else Via)
            self._askers.append(carried.candidate if isinstance(carried, Poll | Propose | Vote) else "")
            self._ways.append(way)
        return found

    def __getitem__(self, number: int) -> Any:
        return self._things[number]

    def frame(self, frame: Frame, payload: memoryview | bytes | None) -> int:
        """A frame without the times in it: every peer has its own clock."""
        data = bytes(payload or b"")
        if isinstance(frame, Via):
            kind, header = wrap(_timeless(unwrap(frame, len(data))))
            return self.number((msgspec.structs.replace(frame, kind=kind, header=header), data))
        return self.number((_timeless(frame), data))

    def is_ping(self, number: int) -> bool:
        return self._kinds[number] is Ping

    def is_call(self, number: int) -> bool:
        return self._kinds[number] is Call

    def asked_by(self, number: int) -> str:
        """Whose Poll or Propose it is, or is an answer to, carried by somebody or not; "": none."""
        return self._askers[number]

    def through(self, number: int) -> tuple[str, str] | None:
        """What goes through a tunnel: from whom to whom."""
        return self._ways[number]


def _timeless(frame: Frame) -> Frame:
    if isinstance(frame, Call):
        # Any letter is of now, however long it is under way. By the time when a beat sends it, its answer would come
        # before it was asked for, and count for nothing.
        return msgspec.structs.replace(frame, stamp=NOW)
    if isinstance(frame, Ping):
        return msgspec.structs.replace(frame, stamp=0.0, echo=0.0, held=0.0)
    return msgspec.structs.replace(frame, stamp=0.0, lost=0.0) if isinstance(frame, Knock) else frame


class _Life:
    """The machine with its application: what `Canon` takes and puts back."""

    def __init__(self, me: Member, run: str, wait_for: int, fanout: int, lanes: int, coded: tuple[str, str]) -> None:
        self.node = Node(me, fanout=fanout, lanes=lanes, limits=LIMITS, now=NOW)
        scheme = parse_scheme(*coded)
        self.run, self.wait_for = run, wait_for
        self.blocks = scheme.blocks if scheme is not None else 1
        self.size = lanes * self.blocks
        """Elements of a vector: each lane has some, and each block."""
        self.coded = CodedCalls(scheme, another_scheme(coded[0]), self.size) if scheme is not None else None
        self.rounds: dict[int, bytes] = {}
        self.over = 0
        self.owed = 0
        self.without = False
        """Whether it has lost its state of the run. Then `rounds` is what it has seen end all the same."""
        self.asked: fx.ProvideState | None = None
        """Who wants one meanwhile."""
        self.knew = 0
        """Up to which round it knew how all had ended, when it forgot."""
        self.current = ""
        """Of which run all this is."""

    @property
    def begins(self) -> bool:
        return self._in_step and not self.node.allreduce.contributed and not self.without

    @property
    def cancels(self) -> bool:
        """Whether it is in a call that it may cancel."""
        rd = self.node.parts.course.round
        return self.coded is None and self.node.allreduce.contributed and not rd.brings.abandoned

    @property
    def loses(self) -> bool:
        """Whether it has a state of the run to lose, and is in no call."""
        return self.begins and bool(self.run) and self.coded is None

    @property
    def _in_step(self) -> bool:
        view = self.node.view
        if view is None or view.run != self.run or self.node.parts.membership.leaving:
            return False
        return self.node.allreduce.committed >= 0

    @property
    def goes_on(self) -> bool:
        return self.coded is not None and self.coded.goes_on(self.node)

    @property
    def computes(self) -> bool:
        return self.coded is not None and self.coded.computes(self.node)

    @property
    def next_round(self) -> int:
        return max(self.over, 0 if self.run else self.node.allreduce.committed) + 1


@dataclass(frozen=True, slots=True)
class Numbers:
    """What counts without end in a machine. Where nothing of it is under way, it may begin again from the same."""

    asked: int
    heard: frozenset[PeerId]
    tunnels: tuple[tuple[PeerId, int, int, int], ...]

    @classmethod
    def of(cls, node: Node) -> Numbers:
        """As they are."""
        links = ((peer, link.tunnel) for peer, link in node.parts.links.all())
        return cls(
            node.parts.succession.number,
            frozenset(PeerId(candidate) for candidate, _, _ in node.parts.succession.seen),
            tuple((peer, at.number, at.sent, at.received) for peer, at in links if at is not None),
        )

    @staticmethod
    def renew(node: Node, what: str, peer: PeerId) -> None:
        """Begin again: "asked", what `peer` has asked, "tunnel", what goes to and comes from it."""
        succession = node.parts.succession
        if what == "tunnel":
            tunnel = node.parts.links[peer].tunnel
            assert tunnel is not None
            tunnel.renew()
        elif peer == node.id:
            older = succession.number - CURRENT
            succession.answers = {voter: at - older for voter, at in succession.answers.items()}
            succession.came = {voter: at - older for voter, at in succession.came.items()}
            succession.begun = max(succession.begun - older, 0)
            succession.number = CURRENT
            views = node.views
            views.gone_before = {gone: max(at - older, 0) for gone, at in views.gone_before.items()}
            views.over_before, views.asked_before = (
                max(views.over_before - older, 0),
                max(views.asked_before - older, 0),
            )
        else:
            for key in [key for key in succession.seen if key[0] == peer]:
                del succession.seen[key]


class Lives:
    """All states that lives of one peer have been in, and what they do.

    Args:
        peer: a letter and its number.
        frames: shared by all peers.
        run: what the application works on; "": plain allreduce calls.
        wait_for: with how many peers the run begins.
        fanout, lanes: of the tree, and how many there are.
        coded: the code of its rounds, and when the root may close one; the code "none": they are not.
    """

    def __init__(
        self,
        peer: PeerId,
        frames: Frames,
        *,
        run: str,
        wait_for: int,
        fanout: int,
        lanes: int,
        coded: tuple[str, str] = ("none", "exact"),
    ) -> None:
        self._peer = peer
        self._frames = frames
        self._life = _Life(Member(id=peer, incarnation=0), run, wait_for, fanout, lanes, coded)
        self._canon = Canon(self._life)
        self._blank = self._canon.take(NOW)
        self._numbers: dict[Value, int] = {}
        self._states: list[Value] = []
        self.facts: list[Facts] = []
        self._steps: dict[tuple[int, Op], Step] = {}

    # -- states --------------------------------------------------------------------------------------------------

    def begin(self, incarnation: int) -> int:
        """The state of a life that begins."""
        self._canon.put(self._blank)
        node = self._life.node
        node.parts.membership.me = Member(id=self._peer, incarnation=incarnation)
        if self._life.coded is not None:
            node.handle(self._life.coded.wanted, NOW)
        if self._life.run:
            node.handle(ev.RunWanted(self._life.run, self._life.wait_for), NOW)
        return self._number(NOW)

    def _number(self, now: float) -> int:
        state = self._canon.take(now)
        found = self._numbers.get(state)
        if found is None:
            found = self._numbers[state] = len(self._states)
            self._states.append(state)
            life, node = self._life, self._life.node
            numbers = Numbers.of(node)
            fingerprint = blake2b(repr(state).encode(), digest_size=8).digest()
            self.facts.append(
                Facts(
                    peer=self._peer,
                    me=node.parts.membership.me,
                    view=node.view,
                    rounds=dict(life.rounds),
                    over=life.next_round - 1,
                    knew=life.knew,
                    holding=node.parts.course.holding,
                    begins=life.begins,
                    cancels=life.cancels,
                    loses=life.loses,
                    goes_on=life.goes_on,
                    computes=life.computes,
                    settled=node.parts.membership.settled,
                    proven=node.parts.place.proven,
                    leaving=node.parts.membership.leaving,
                    frozen=node.parts.succession.frozen,
                    accepted=node.parts.succession.accepted,
                    leading=node.parts.succession.leading,
                    asked=numbers.asked,
                    heard=numbers.heard,
                    tunnels=numbers.tunnels,
                    fingerprint=fingerprint,
                )
            )
        return found

    # -- steps ---------------------------------------------------------------------------------------------------

    def step(self, state: int, event: Op) -> Step:
        """What happens in that state because of ("frame", peer, frame), ("up", peer, incarnation), ("down", peer),
        ("failed", peer, refused), ("contribute",), ("compute",), one of `OTHER_CALLS`, ("cancel",), ("lose",),
        ("leave",), ("timeout",), ("late",), ("renew", numbers of what, peer), ("beat", connected peers that are there),
        or ("word", word) of the broker, by number: ("seen", member), ("gone", peer), ("view", view), ("synced",), or
        ("relayed", frame, payload).
        """
        known = self._steps.get((state, event))
        if known is None:
            known = self._steps[state, event] = self._work_out(state, event)
        return known

    def _work_out(self, state: int, event: Op) -> Step:
        self._canon.put(self._states[state])
        table = Table(self._life, self._frames)
        try:
            now = table.happen(event)
            after = self._number(now)
        except Exception as error:  # whatever it is, it is a find
            said = " ".join(str(error).split())
            return Step(-1, broken=said if isinstance(error, ProtocolBug) else f"{type(error).__name__}: {said}")
        return Step(after, tuple(table.ops), tuple(table.ends), tuple(table.views))


class Table:
    """An event at a life, and what comes of it."""

    def __init__(self, life: _Life, frames: Frames) -> None:
        self._life = life
        self._node = life.node
        self._frames = frames
        self._now = NOW
        self.ops: list[Op] = []
        self.ends: list[Committed] = []
        self.views: list[View] = []
        self._on_effect: dict[type, Callable[[Any], None]] = {
            fx.Send: lambda e: self._say("send", e.peer, e.frame, e.payload),
            fx.Relay: lambda e: self._say("relay", e.peer, e.frame, e.payload),
            fx.Dial: lambda e: self.ops.append(("dial", PeerId(e.member.id))),
            fx.CloseLink: lambda e: self.ops.append(("close", e.peer, e.abrupt)),
            fx.PublishView: lambda e: self.ops.append(("view", e.view)),
            fx.ClearPresence: lambda e: self.ops.append(("clear", e.member)),
            fx.PublishPresence: lambda e: self.ops.append(("present", self._node.parts.membership.me)),
            fx.ViewInstalled: self._on_view,
            fx.Removed: self._on_removed,
            fx.RoundCommitted: self._on_committed,
            fx.EncodeWanted: self._on_encode,
            fx.RoundAborted: self._on_aborted,
            fx.Behind: self._on_behind,
            fx.ProvideState: self._provide,
            fx.StateReceived: self._load,
            fx.Note: lambda e: None,
            fx.Refused: lambda e: None,
        }

    def happen(self, event: Op) -> float:
        """Let it happen. Returns what the clock shows then."""
        kind = event[0]
        if kind == "beat":
            self._now = NOW + BEAT_S
            for peer in event[1]:
                self._handle(ev.Heard(peer, self._now))
            if self._node.next_deadline() <= self._now:
                self._do(self._node.tick(self._now))
        elif kind == "late":
            self._now = NOW + _LATE_S
            self._do(self._node.tick(self._now))
        elif kind in ("contribute", "compute", *OTHER_CALLS):
            self._call(kind)
        elif kind == "cancel":
            self._cancel()
        elif kind == "lose":
            self._life.without = True
            self._handle(ev.StateLost())
        elif kind == "renew":
            Numbers.renew(self._node, event[1], event[2])
        else:
            self._handle(self._event(event))
        life = self._life
        if life.without and self._node.allreduce.committed < 0:  # the machine has forgotten all of it as well
            life.knew = max(life.knew, life.over)
            life.rounds, life.over = {}, 0
        return self._now

    def _event(self, event: Op) -> ev.Event:
        event = self._frames[event[1]] if event[0] == "word" else event
        kind = event[0]
        if kind == "frame":
            return self._received(event[1], *self._frames[event[2]])
        if kind == "relayed":
            return ev.Relayed(event[1], event[2])
        make: dict[str, Callable[..., ev.Event]] = {
            "leave": ev.LeaveWanted,
            "timeout": lambda: ev.TimedOut("time is up"),
            "up": ev.LinkUp,
            "down": lambda peer: ev.LinkDown(peer, "closed"),
            "failed": lambda peer, refused: ev.DialFailed(peer, "no answer", refused),
            "seen": ev.PresenceSeen,
            "gone": ev.PresenceGone,
            "view": ev.ViewSeen,
            "synced": ev.ControlSynced,
        }
        return make[kind](*event[1:])

    def _received(self, peer: PeerId, frame: Frame, data: bytes) -> ev.Event:
        if has_document(frame):
            return ev.FrameReceived(peer, frame, data, len(data))
        sink = self._node.sink(peer, frame, len(data))
        if sink is not None:
            if len(sink) != len(data):
                raise ProtocolBug(f"sink of {len(sink)} bytes for {len(data)}")
            sink[:] = data
        return ev.FrameReceived(peer, frame, None, len(data), sink is not None)

    # -- effects ---------------------------------------------------------------------------------------------------

    def _handle(self, event: ev.Event) -> None:
        self._do(self._node.handle(event, self._now))

    def _do(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            self._on_effect[type(effect)](effect)

    def _say(self, how: str, peer: PeerId, frame: Frame, payload: memoryview | bytes | None) -> None:
        self.ops.append((how, peer, self._frames.frame(frame, payload)))

    def _on_removed(self, effect: fx.Removed) -> None:
        self._forget()
        if effect.wanted:
            self.ops.append(("left",))

    def _forget(self) -> None:
        life = self._life
        life.rounds, life.over, life.owed, life.without, life.asked, life.knew = {}, 0, 0, False, None, 0
        self._end_call()

    def _on_view(self, effect: fx.ViewInstalled) -> None:
        life = self._life
        if life.current != effect.view.run:
            self._forget()
            life.current = effect.view.run
        self.views.append(effect.view)

    def _call(self, kind: str) -> None:
        life, node, number = self._life, self._node, self._life.next_round
        if life.coded is None:
            self._handle(ev.Contribute(contribution(node.id, number, life.size), 1.0))
        elif kind == "compute":
            life.coded.compute(node, number, self._handle)
        elif life.goes_on:
            life.coded.go_on(node, number, self._handle)
        else:
            life.coded.begin(kind, node, number, self._handle)

    def _cancel(self) -> None:
        """The vector's memory is used for something else from now on."""
        own = self._node.parts.course.round.brings.vector
        self._handle(ev.Abandoned())
        if own is not None:
            own.fill(np.nan)

    def _end_call(self) -> None:
        if self._life.coded is not None:
            self._life.coded.over()

    def _on_encode(self, effect: fx.EncodeWanted) -> None:
        assert self._life.coded is not None
        self._life.coded.ask(effect)

    def _over(self, number: int, total: bytes) -> None:
        life = self._life
        self._end_call()
        if number <= life.over or (life.run and number != life.over + 1):
            raise ProtocolBug(f"round {number} ends after round {life.over}")
        life.over, life.rounds[number] = number, total

    def _on_committed(self, effect: fx.RoundCommitted) -> None:
        total = effect.sum.tobytes()
        if not is_sum(effect, self._life.blocks):
            raise ProtocolBug(f"round {effect.round} is not the sum over {', '.join(effect.contributors)}")
        self._over(effect.round, total)
        self.ends.append(Committed(effect.generation, effect.round, effect.epoch, total, effect.contributors))

    def _on_aborted(self, effect: fx.RoundAborted) -> None:
        life = self._life
        if effect.cause in ("mismatch", "timeout") and effect.round > life.over:
            self._over(effect.round, DROPPED)
            view = self._node.view
            if view is not None:
                self.ends.append(Committed(view.generation, effect.round, view.stamp, DROPPED, ()))
            life.owed += not effect.mine
        elif effect.mine:
            self._end_call()
            life.owed -= life.owed > 0

    def _on_behind(self, effect: fx.Behind) -> None:
        self._life.over, self._life.owed = effect.committed, 0

    def _provide(self, effect: fx.ProvideState) -> None:
        life, size = self._life, 8 * self._life.size
        if life.without:
            life.asked = effect
            return
        state = b"".join(total.ljust(size, b"\0") for total in life.rounds.values()) or _NO_STATE
        self._handle(ev.StateReady(effect.peer, effect.run, life.over, state))

    def _load(self, effect: fx.StateReceived) -> None:
        life, blob, size = self._life, bytes(effect.state), 8 * self._life.size
        pieces = [blob[at : at + size] for at in range(0, len(blob), size)] if blob != _NO_STATE else []
        if len(pieces) != effect.round:
            raise ProtocolBug(f"a state of {len(pieces)} rounds for round {effect.round}")
        life.without = effect.round < self._node.allreduce.committed  # the round has ended meanwhile
        if not life.without:
            life.rounds = {number: piece.rstrip(b"\0") if piece.startswith(DROPPED) else piece
                           for number, piece in enumerate(pieces, start=1)}  # fmt: skip
            life.over, life.owed = effect.round, 0
        self._handle(ev.Adopted(effect.run, effect.round, effect.of, effect.life))
        asked, life.asked = life.asked, None
        if asked is not None and not life.without:
            self._provide(asked)
