"""Whatever comes over the wire: a machine raises nothing, and counts no round twice. See also `Node`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from transcript import Machine, member, vector, view

from edgepeer.coding.scheme import parse_scheme
from edgepeer.errors import WireError
from edgepeer.ids import Generation, Lineage, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.streams import bytes_of, digest_of
from edgepeer.wire import codec
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack
from edgepeer.wire.precision import PRECISIONS

SEVERAL = view(8, "abcde", lanes=3)
FIVE = view(1, "abcde")
IN_RUN = view(2, "abcde", run="r", first_round=3)
NEXT = view(3, "bacd", first_round=2)
SMALL = Limits(max_vector_bytes=1 << 10, max_state_bytes=1 << 10, tunnel_bytes=16, relay_bytes=8, max_links=20)
CODED = view(6, "abcde", slots="abcde")
NEXT_CODED = view(7, "bacd", slots="bacdb", first_round=1)
CODES = (
    parse_scheme("partial:l=2,replication=2"),
    parse_scheme("cyclic:s=1", "deadline:0.3"),
    parse_scheme("coded-reduce:s=1"),
)
VIEWS = (
    FIVE, IN_RUN, NEXT, view(2, "cb"), view(2, "xyz"), view(5, "abcdefghijklmno"), view(4, "b", b=7), CODED, NEXT_CODED,
    SEVERAL,
)  # fmt: skip
SUMS = {size: vector(*[3.0] * size) for size in range(4)}

# -- frames that are nearly right, and now and then right ------------------------------------------------------

NOW = -1
"""Stands for the stamp of the machine's view, or for its next round."""
peers = st.sampled_from("aaaddecx")
lanes = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 2, 3, 16])
stamps = st.sampled_from([NOW] * 10 + [0, *(world.stamp for world in VIEWS), FIVE.stamp + 1, 2**53])
numbers = st.sampled_from([NOW] * 6 + [0, 1, 2, 3, 2**53])
ballots = st.sampled_from([0, 0, 1, 4096, 4097, 4098, 4099, 8192, 8195, 2**53])
generations = st.sampled_from([None, *[Generation()] * 4, Generation(1, 5, 7), Generation(2), Generation(2**31 - 1)])
sizes = st.sampled_from([0, 1, 1, 2, 3, 300, 2**53])
bits = st.sampled_from([b"", b"\x01", b"\x02", b"\x04", b"\x08", b"\x10", b"\x1a", b"\x1f", b"\xff" * 512])
seconds = st.sampled_from([0.0, 1e-300, 0.05, 1.0, 4.0, float(2**53), math.inf, math.nan])
runs = st.sampled_from(["", "r", "other"])
names = st.sampled_from([*(code.name for code in CODES), "other"])
counts = st.sampled_from([b"", b"\1", bytes(5), b"\1\1\1\1\1", b"\3\3\3\3\3", b"\2\0\3\1\1", b"\xff" * 5, b"\3" * 4096])
precisions = st.sampled_from([*["float32"] * 4, "bf16", "int8"])
digests = [digest_of(values, precision) for values in SUMS.values() for precision in PRECISIONS]
commits = st.builds(
    fr.Commit, decided_in=stamps, held_in=stamps, contributors=bits, weight=seconds, exact=st.booleans(),
    digest=st.sampled_from([bytes(16), *digests]), final=st.booleans(),
    dropped=st.sampled_from([None, None, None, None, *get_args(fr.Cause)]), chunks=bits, error=seconds,
    precision=precisions,
)  # fmt: skip
plain: dict[type[fr.Frame], st.SearchStrategy[fr.Frame]] = {
    fr.Hello: st.builds(fr.Hello, fabric=peers, peer=peers, incarnation=numbers),
    fr.Sync: st.builds(
        fr.Sync, epoch=stamps, run=runs, committed=st.sampled_from([-2, -1, 0, 1, 2, 9, 2**53]), generation=generations,
        restored=st.none() | st.builds(Lineage, generations, numbers), kept=st.sampled_from([0, 0, 1, 2, 2**53]),
        have=st.lists(sizes, max_size=4).map(tuple),
    ),
    fr.ViewFrame: st.builds(fr.ViewFrame, epoch=stamps),
    fr.Ping: st.builds(
        fr.Ping, waiting=st.booleans(), stamp=seconds, echo=seconds, held=seconds, every=seconds, epoch=stamps,
        reaches=bits, orphan=st.booleans(), level=st.integers(-1, 3),
        settled=st.booleans(), ballot=ballots,
    ),
    fr.Reduce: st.builds(
        fr.Reduce, epoch=stamps, round=numbers, offset=sizes, total=sizes, dtype=st.sampled_from(["<f4", "<f8"]),
        contributors=bits, weight=seconds, rate_bytes_per_s=seconds, blocks=st.sampled_from([1, 1, 2, 2, 3, 255]),
        lane=lanes, precision=precisions,
    ),
    fr.Result: st.builds(
        fr.Result, epoch=stamps, round=numbers, offset=sizes, total=sizes, dtype=st.sampled_from(["<f4", "<f8"]),
        commit=st.none() | commits, up=st.booleans(), rate_bytes_per_s=seconds, lane=lanes, precision=precisions,
    ),
    fr.Abort: st.builds(
        fr.Abort, epoch=stamps, round=numbers, cause=st.sampled_from(get_args(fr.Cause)), reason=st.text(),
        over=st.booleans(), clear=st.booleans(),
    ),
    fr.Measured: st.builds(
        fr.Measured,
        epoch=stamps,
        peer=peers,
        rate_bytes_per_s=st.floats(0, 1e13),
        links=st.lists(
            st.builds(
                fr.OfLink,
                position=st.integers(0, 4095) | st.integers(0, 3),
                rate_bytes_per_s=st.floats(0, 1e13),
                trip_s=st.floats(0, 60),
                reach=st.integers(-1, 1),
            )
        ).map(tuple),
    ),
    fr.Suspect: st.builds(fr.Suspect, epoch=stamps, peer=peers, reason=st.text()),
    fr.Leave: st.builds(fr.Leave, peer=peers, incarnation=numbers, until=st.integers(-1, 2)),
    fr.StateRequest: st.builds(fr.StateRequest, run=runs, round=numbers, received=sizes),
    fr.State: st.builds(fr.State, run=runs, round=numbers, offset=sizes, total=sizes),
    fr.Bye: st.builds(fr.Bye, reason=st.text()),
    fr.Have: st.builds(fr.Have, epoch=stamps, round=numbers, holding=bits),
    fr.Progress: st.builds(
        fr.Progress, epoch=stamps, round=numbers, code=names, began=bits, holding=st.booleans(), done=counts
    ),
    fr.Release: st.builds(fr.Release, epoch=stamps, round=numbers, done=counts, anew=st.booleans()),
    fr.Decide: st.builds(fr.Decide, epoch=stamps, round=numbers),
    fr.Knock: st.builds(fr.Knock, incarnation=st.integers(0, 2), answer=st.booleans()),
    fr.NoWay: st.builds(fr.NoWay, target=peers, tunnel=numbers),
    fr.Poll: st.builds(fr.Poll, epoch=stamps, candidate=peers, number=numbers, ballot=ballots),
    fr.Propose: st.builds(fr.Propose, epoch=stamps, candidate=peers, number=numbers, ballot=ballots),
    fr.Vote: st.builds(
        fr.Vote, epoch=stamps, candidate=peers, number=numbers, voter=peers, promised=ballots,
        accepted=st.just(-1) | ballots, committed=st.integers(-1, 3), holding=st.booleans(),
    ),
    fr.Call: st.builds(
        fr.Call, incarnation=numbers, generation=generations, epoch=stamps, known=generations, view=st.booleans(),
    ),
    fr.Here: st.builds(
        fr.Here, incarnation=numbers, generation=generations, epoch=stamps, known=generations, aside=st.booleans(),
    ),
    fr.Meta: st.builds(fr.Meta, epoch=stamps, round=numbers, what=st.just("reduce_sent"), about=numbers),
}  # fmt: skip
documents = st.sampled_from([b"", b"\xc1", b"{}", *(pack(world) for world in VIEWS)])
payloads = st.one_of(documents, st.sampled_from([vector.tobytes() for vector in SUMS.values()]))
tunnels = st.sampled_from([77, 78, 0])
"""The last is none: what is in it is a letter, if it comes through the broker."""


@st.composite
def vias(draw: st.DrawFn) -> fr.Via:
    """A frame in a tunnel, or what claims to be one."""
    inner = draw(st.one_of(plain[fr.Knock], *plain.values()))
    changes = {name: FIVE.stamp if name == "epoch" else 1 for name in ("epoch", "round") if hasattr(inner, name)}
    kind, header = codec.wrap(msgspec.structs.replace(inner, **changes) if draw(st.booleans()) else inner)
    if draw(st.integers(0, 9)) == 0:
        kind, header = draw(st.integers(1, 255)), draw(st.binary(max_size=9))
    serial = draw(st.sampled_from([0, 1, 2, 3]))
    return fr.Via(
        source=draw(peers | st.just("b")), target=draw(st.sampled_from("bbbad")), tunnel=draw(tunnels), serial=serial,
        kind=kind, header=header, hops=draw(st.integers(1, 4)),
    )  # fmt: skip


frames = {**plain, fr.Via: vias()}

# -- the machine -------------------------------------------------------------------------------------------------


def outside() -> Machine:
    return Machine("b", limits=SMALL)


def inner() -> Machine:
    """The tree: a over bc, b over de."""
    return Machine("b", limits=SMALL).join(FIVE, up="ade")


def at_work() -> Machine:
    b = inner()
    b.contribute(1)
    return b


def holding() -> Machine:
    b = at_work()
    b.result("a", SUMS[1], "abcde", final=False)
    return b


def held_before() -> Machine:
    """Root of the second view that it holds a result in."""
    b = holding()
    b.learn(view(2, "badce"))
    for peer in "ad":
        b.level(peer)
    return b


def in_a_run() -> Machine:
    return Machine("b", limits=SMALL).join(IN_RUN, up="ade", committed=2)


def tunnelled() -> Machine:
    b = at_work()
    b.hear(ev.LinkDown(PeerId("d"), "reset"))
    b.until(0.6)
    kind, header = codec.wrap(fr.Knock(incarnation=1, answer=False))
    b.hear(ev.Relayed(fr.Via(source="d", target="b", tunnel=77, serial=0, kind=kind, header=header), b""))
    return b


def root() -> Machine:
    b = Machine("b", limits=SMALL).join(view(1, "badce"), up="ad")
    b.contribute(1)
    return b


def coded(which: int = 0) -> Machine:
    b = Machine("b", limits=SMALL)
    b.hear(ev.CodeWanted(CODES[which]))
    b.join(CODED, up="ade")
    b.did({1: 2})
    return b


def coded_whole() -> Machine:
    return coded(1)


def coded_in_layers() -> Machine:
    return coded(2)


def closed(which: int = 0) -> Machine:
    b = coded(which)
    b.release("a", "22222")
    return b


def closed_without_own() -> Machine:
    b = coded(1)
    b.release("a", "20222")
    return b


def closed_anew() -> Machine:
    b = coded()
    b.release("a", "00000", anew=True)
    return b


def coded_root() -> Machine:
    b = coded()
    b.learn(NEXT_CODED)
    for peer in "ac":
        b.level(peer)
    b.did({0: 2, 4: 2})
    return b


def coded_holding() -> Machine:
    b = closed()
    b.result("a", SUMS[2], "abcde", final=False)
    return b


def coded_root_held_before() -> Machine:
    b = coded_holding()
    b.learn(NEXT_CODED)
    for peer in "ac":
        b.level(peer)
    return b


def rounding() -> Machine:
    b = inner()
    b.hear(ev.Contribute(SUMS[2].copy(), 1.0, "int8"))
    return b


def rounding_root() -> Machine:
    a = Machine("a").join(view(1, "abc"), up="bc")
    a.hear(ev.Contribute(SUMS[3].copy(), 1.0, "bf16"))
    return a


def of_several_trees() -> Machine:
    """Root of one tree, with all others for neighbours."""
    b = Machine("b", limits=SMALL).join(SEVERAL, up="acde")
    b.hear(ev.Contribute(SUMS[3].copy(), 1.0, "float32"))
    return b


def a_way_around_several_trees() -> Machine:
    b = of_several_trees()
    b.hear(ev.LinkDown(PeerId("d"), "reset"))
    b.until(0.6)
    kind, header = codec.wrap(fr.Knock(incarnation=1, answer=False, hops=3))
    for hop in "ace":
        via = fr.Via(source="d", target="b", tunnel=77, serial=0, kind=kind, header=header)
        b.hear(ev.FrameReceived(PeerId(hop), via, b"", 0))
    return b


def leaving() -> Machine:
    b = at_work()
    b.hear(ev.LeaveWanted())
    return b


def named(thing: Any) -> str:
    return str(thing.__name__)


KINDS = sorted(frames.keys(), key=named)


STATES: tuple[Callable[[], Machine], ...] = (
    outside, inner, at_work, holding, held_before, in_a_run, tunnelled, root, leaving, coded, coded_whole,
    coded_in_layers, closed, closed_without_own, closed_anew, coded_root, coded_holding, coded_root_held_before,
    rounding, rounding_root, of_several_trees, a_way_around_several_trees,
)  # fmt: skip


WITH_PAYLOAD = (fr.Reduce, fr.Result, fr.State, fr.ViewFrame, fr.Propose, fr.Vote, fr.Via)


class Victim:
    """A machine that hears all kinds of things. What it does is looked at, for what must never happen."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.node = machine.node
        self.committed = 0
        self.asked = 1 if self.node.allreduce.contributed else 0
        """How many vectors the owner has contributed ..."""
        self.answered = 0
        """... and of how many it has been told how their round has ended."""
        self.did: dict[int, int] = {}
        """What it has computed last."""
        self.asked_to_encode: fx.EncodeWanted | None = None

    def obey(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, fx.RoundCommitted | fx.RoundAborted) and effect.mine:
                self.answered += 1
                assert self.answered <= self.asked
            if isinstance(effect, fx.RoundCommitted):
                assert effect.round > self.committed
                self.committed = effect.round
            elif isinstance(effect, fx.EncodeWanted):
                self.asked_to_encode = effect
                world = self.node.view
                assert world is not None
                own = world.owned.get(self.node.id, ())
                assert all(effect.done[slot] <= self.did.get(slot, 2) for slot in own)
            elif isinstance(effect, fx.ViewInstalled | fx.Removed | fx.StateReceived):
                self.committed = 0  # it may be another run
        assert self.node.next_deadline() < self.machine.now + 2.0
        assert len(list(self.node.parts.links.all())) < 40

    def hear(self, event: ev.Event) -> None:
        self.obey(self.node.handle(event, self.machine.now))

    def wait(self, for_s: float) -> None:
        until = self.machine.now + for_s
        while (due := max(self.node.next_deadline(), self.machine.now)) <= until:
            self.machine.now = due
            self.obey(self.node.tick(due))
            assert self.node.next_deadline() > due
        self.machine.now = until

    def frame(self, peer: str, frame: fr.Frame, payload: bytes) -> None:
        """As a transport does: what is no frame ends the connection, and does not come here."""
        frame = self.timely(frame)
        data = payload if isinstance(frame, WITH_PAYLOAD) else b""
        try:
            head = codec.encode(frame, len(data))
            kind, size, payload_bytes = codec.decode_prelude(head)
            frame = codec.decode_header(kind, head[-size:], payload_bytes)
        except WireError:
            self.hear(ev.LinkDown(PeerId(peer), "no frame"))
            return
        if codec.has_document(frame):
            self.hear(ev.FrameReceived(PeerId(peer), frame, data, len(data)))
            return
        sink = self.node.sink(PeerId(peer), frame, len(data))
        if sink is not None:
            assert len(sink) == len(data)
            sink[:] = data
        self.hear(ev.FrameReceived(PeerId(peer), frame, None, len(data), sink is not None, 1e-3))

    def timely(self, frame: fr.Frame) -> fr.Frame:
        """The frame with what it says of NOW."""
        view, changes = self.node.view, dict[str, Any]()
        stamp = view.stamp if view is not None else 0
        if getattr(frame, "epoch", 0) == NOW:
            changes["epoch"] = stamp
        for field in ("round", "incarnation", "number", "tunnel", "about"):
            if getattr(frame, field, 0) == NOW:
                changes[field] = self.node.allreduce.committed + 1
        if isinstance(frame, fr.Result) and frame.commit is not None:
            stamps = {field: getattr(frame.commit, field) for field in ("decided_in", "held_in")}
            right = {field: stamp for field, at in stamps.items() if at == NOW}
            changes["commit"] = msgspec.structs.replace(frame.commit, **right)
        return msgspec.structs.replace(frame, **changes)

    def compute(self, many: int) -> None:
        """The owner has computed so many chunks for each of its slots, and encodes what it was asked for."""
        view, machine = self.node.view, self.node.allreduce
        if view is not None and view.slots:
            before = machine.contributed
            self.did = dict.fromkeys(view.owned.get(self.node.id, ()), many)
            self.hear(ev.ChunksDone(view.stamp, machine.committed + 1, self.did))
            self.asked += not before
        if (asked := self.asked_to_encode) is not None:
            size = 1 if asked.narrow is not None else 2
            self.hear(ev.Encoded(asked.epoch, asked.round, SUMS[size].copy()))

    def contribute(self, which: int) -> None:
        if not self.node.allreduce.contributed:
            self.asked += 1
            self.hear(ev.Contribute(SUMS[which % 4].copy(), 1.0, PRECISIONS[which // 4]))


@st.composite
def deliveries(draw: st.DrawFn, kind: type[fr.Frame]) -> tuple[str, fr.Frame, bytes]:
    """A frame and its payload, often of the size that the frame says."""
    frame = draw(frames[kind])
    if isinstance(frame, fr.Reduce | fr.Result | fr.State) and draw(st.integers(0, 9)):
        size = draw(st.integers(0, 3))
        payload = SUMS[3].tobytes()[:size]
        if not isinstance(frame, fr.State):
            if frame.dtype == "<f4":
                payload = bytes(bytes_of(SUMS[size], frame.precision))
            else:
                payload = SUMS[size].astype(frame.dtype).tobytes()
            if payload and not draw(st.integers(0, 9)):
                payload = draw(st.binary(min_size=len(payload), max_size=len(payload)))
        changes: dict[str, Any] = {"offset": 0, "total": max(size, 1)} if draw(st.integers(0, 2)) else {}
        if isinstance(frame, fr.Result):
            complete = changes.get("offset", frame.offset) + size == changes.get("total", frame.total)
            changes["commit"] = draw(commits) if complete or (frame.lane and draw(st.booleans())) else None
        frame = msgspec.structs.replace(frame, **changes)
    else:
        payload = draw(documents if kind in (fr.ViewFrame, fr.Propose, fr.Vote) else payloads)
    return draw(peers), frame, payload


anything = st.sampled_from(KINDS).flatmap(deliveries)
happenings: st.SearchStrategy[ev.Event | float | int | bytes] = st.one_of(
    st.builds(lambda peer, life: ev.LinkUp(PeerId(peer), life), peers, st.integers(1, 2)),
    st.builds(lambda peer: ev.LinkDown(PeerId(peer), "reset"), peers),
    st.builds(lambda peer, refused: ev.DialFailed(PeerId(peer), "no", refused), peers, st.booleans()),
    st.builds(lambda peer, life: ev.PresenceSeen(member(peer, life)), peers, st.integers(1, 3)),
    st.builds(lambda peer: ev.PresenceGone(PeerId(peer)), peers),
    st.builds(ev.ViewSeen, st.sampled_from(VIEWS)),
    st.builds(lambda via, payload: ev.Relayed(via, payload), vias(), payloads),
    st.builds(lambda run, have: ev.RunWanted(run or None, 1, have), runs, st.sampled_from([0, 5])),
    st.builds(ev.RunExpected, runs, st.sampled_from([1, 3])),
    st.builds(lambda run, number: ev.Adopted(run, number), runs, st.integers(1, 9)),
    st.builds(lambda peer, run: ev.StateReady(PeerId(peer), run, 1, b"state"), peers, runs),
    st.sampled_from([ev.ControlSynced(), ev.Abandoned(), ev.TimedOut("late"), ev.JoinWanted()]),
    st.sampled_from([0.0, 0.01, 0.1, 0.3, 4.0]),  # time passes
    st.integers(0, 3) | st.integers(0, 11),  # the owner contributes
    st.sampled_from([b"", b"1", b"22"]),  # the owner computes so many chunks
    st.sampled_from([ev.CodeWanted(None), *(ev.CodeWanted(code) for code in CODES), ev.StateLost()]),
)


def happen(victim: Victim, event: ev.Event | float | int | bytes) -> None:
    if isinstance(event, bytes):
        victim.compute(len(event))
    elif isinstance(event, float):
        victim.wait(event)
    elif isinstance(event, int):
        victim.contribute(event)
    else:
        victim.hear(event)


@pytest.mark.parametrize("kind", KINDS, ids=named)
@given(data=st.data())
@settings(max_examples=10)
def test_a_frame_of_any_kind_in_any_state(kind: type[fr.Frame], data: st.DataObject) -> None:
    """What is drawn comes to a machine in each of the states: to draw frames takes longer than to handle them."""
    came = [data.draw(deliveries(kind)) for _ in range(3)]
    for state in STATES:
        note(named(state))
        victim = Victim(state())
        for delivery in came:
            victim.frame(*delivery)
        victim.wait(0.5)


@pytest.mark.parametrize("through", ["connection", "tunnel"])
def test_a_frame_of_another_protocol(through: str) -> None:
    b = tunnelled()
    frame: fr.Frame = fr.Meta(epoch=FIVE.stamp, round=1, what="reduce_sent", about=0)
    if through == "tunnel":
        kind, header = codec.wrap(frame)
        b.hear(ev.Relayed(fr.Via(source="d", target="b", tunnel=77, serial=1, kind=kind, header=header), b""))
    else:
        b.frame("a", frame)


@pytest.mark.parametrize("state", STATES, ids=named)
@given(story=st.lists(st.one_of(anything, happenings), max_size=40))
def test_any_mixture_of_frames_and_events(
    state: Callable[[], Machine], story: list[tuple[str, fr.Frame, bytes] | ev.Event | float | int | bytes]
) -> None:
    victim = Victim(state())
    for step in story:
        if isinstance(step, tuple):
            victim.frame(*step)
        else:
            happen(victim, step)
    victim.wait(4.0)
