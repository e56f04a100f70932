"""A run is not over while a state of it is on its way, wherever its giver and its taker stand."""

from __future__ import annotations

from functools import partial

import pytest
from company import Company
from states import OVER_S, RUN, at_seven, state
from transcript import Machine, vector, view

from edgepeer.ids import Generation, Lineage, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.wire import frames as fr

PIECES = Limits(state_segment_bytes=8, state_window_bytes=8)
"""One piece of 8 bytes every two latencies."""
LATENCY_S = 0.2


def joined(*, wants: bool = True, kind: type[Company] = Company, limits: Limits = PIECES) -> Company:
    """a has done rounds 1 to 7 alone; b has joined since. `wants`: and takes part in the run."""
    company = kind(view(1, "a", run="r"), latency_s=LATENCY_S, limits=limits)
    company.until(1.0)
    for _ in range(7):
        company.hear("a", ev.Contribute(vector(1), 1.0))
        company.until(company.now + 0.1)
    assert company["a"].node.allreduce.committed == 7
    company.machines[PeerId("b")] = Machine("b", limits=limits, hidden=())
    company["b"].now = company.now
    company["b"].node.parts.place.pass_time(company.now)
    if wants:
        company.hear("b", ev.RunWanted("r"))
    for name in "ab":
        company.learn(name, view(2, "ab", run="r", first_round=8))
    company.until(company.now + 4.0)
    return company


@pytest.mark.parametrize("quits", [True, False])
@pytest.mark.parametrize("begun_s", [LATENCY_S / 2, 3.0])
def test_a_newcomer_gets_it_though_who_gives_it_has_none_any_more(begun_s: float, quits: bool) -> None:
    """That takes 40 s; the giver's owner loses the state, or quits and wants the run again, before the first piece is
    there or in the middle."""
    pieces = 100
    company = joined()
    before = company["a"].node.view.beginning
    company.hear("a", ev.StateReady(PeerId("b"), "r", 7, b"x" * 8 * pieces))
    company.until(company.now + begun_s)
    for event in (ev.RunWanted(None), ev.RunWanted("r")) if quits else (ev.StateLost(),):
        company.hear("a", event)
    company.until(company.now + 2 * LATENCY_S * pieces + 1.0)
    assert [name for _, name, _ in company.effects(fx.StateReceived)] == ["b"]
    assert {company[name].node.view.beginning for name in "ab"} == {before}


@pytest.mark.parametrize("packs_s", [9.0, 19.0])
def test_so_it_does_where_the_owner_has_yet_to_pack_it(packs_s: float) -> None:
    company = joined()
    before, begun = company["a"].node.view.beginning, company.now
    company.until(begun + 1.0)
    company.hear("a", ev.StateLost())
    company.until(begun + packs_s)
    company.hear("a", ev.StateReady(PeerId("b"), "r", 7, b"seven"))
    company.until(company.now + 1.0)
    assert [name for _, name, _ in company.effects(fx.StateReceived)] == ["b"]
    assert company["a"].node.view.beginning == before


class Slow(Company):
    """A piece of a state takes a minute to come, and what goes behind it waits; that bytes come is seen."""

    free_at: dict[tuple[str, str], float]
    PIECE_S = 60.0

    def _deliver(self, source, target, frame, data, life, *, late=False):  # type: ignore[no-untyped-def, override]
        if late:
            super()._deliver(source, target, frame, data, life)
            return
        self.__dict__.setdefault("free_at", {})
        at = max(self.free_at.get((source, target), 0.0), self.now)
        if isinstance(frame, fr.State):
            self._later(at - self.now, lambda: self[target].node.sink(PeerId(source), frame, len(data)))
            for beat in range(int(4 * self.PIECE_S)):
                self._later(at + beat / 4 - self.now, partial(self._heard, source, target))
            at += self.PIECE_S
        self.free_at[source, target] = at
        self._later(at - self.now, partial(self._deliver, source, target, frame, data, life, late=True))

    def _heard(self, source, target) -> None:  # type: ignore[no-untyped-def]
        self.hear(target, ev.Heard(source, self.now))


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_slow_line_is_waited_for(pieces: int) -> None:
    """As 256 KiB at 4 kB/s; the giver's owner loses the state a second after it was packed."""
    company = joined(kind=Slow, limits=Limits(state_segment_bytes=8, state_window_bytes=64))
    before = company["a"].node.view.beginning
    company.hear("a", ev.StateReady(PeerId("b"), "r", 7, b"x" * 8 * pieces))
    company.until(company.now + 1.0)
    company.hear("a", ev.StateLost())
    company.until(company.now + Slow.PIECE_S * pieces + 5.0)
    assert [name for _, name, _ in company.effects(fx.StateReceived)] == ["b"]
    assert {company[name].node.view.beginning for name in "ab"} == {before}


@pytest.mark.parametrize("quit_after_s", [0.02, 0.1, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("offset_s", [0.0, 0.3, 0.6])
def test_that_one_takes_no_part_may_be_of_a_while_ago(quit_after_s: float, offset_s: float) -> None:
    """b comes to want the run, and is given its state; then a's program quits. All that a knows of b may be the Ping
    that said that nobody there takes part."""
    company = joined(wants=False)
    before = company["a"].node.view.beginning
    company.until(company.now + offset_s)
    company.hear("b", ev.RunWanted("r"))
    company.until(company.now + 2.5 * LATENCY_S)
    company.hear("a", ev.StateReady(PeerId("b"), "r", 7, b"seven"))
    company.until(company.now + 1.5 * LATENCY_S)
    company.hear("b", ev.Adopted("r", 7))
    assert company["b"].node.allreduce.has_state
    company.until(company.now + quit_after_s)
    company.hear("a", ev.RunWanted(None))
    company.until(company.now + OVER_S)
    assert {company[name].node.view.beginning for name in "ab"} == {before}


def test_what_comes_too_late_names_no_checkpoint() -> None:
    """a's first piece takes more than 5 s; c, with a later checkpoint, is asked as well, and delivers. Then that piece
    of a's is there, and is thrown away: b has taken c's state, of c's checkpoint."""
    earlier, later = Lineage(Generation(1, 3, 11), 2), Lineage(Generation(2, 3, 22), 2)
    world = view(3, "bac", run="r", first_round=1)
    b = Machine("b").join(world)

    def met(peer: str, of: Lineage) -> None:
        b.hear(ev.LinkUp(PeerId(peer), 1))
        b.frame(peer, fr.Sync(epoch=world.epoch, run="r", committed=7, restored=of))

    def alive(until: float, *peers: str) -> None:
        while b.now < until:
            for peer in peers:
                b.frame(peer, fr.Ping(waiting=False, stamp=b.now + 1.0, every=1.0, epoch=world.epoch, stands=7))
            b.until(b.now + 0.5)

    met("a", earlier)
    alive(1.0, "a")
    first_of_a = fr.State(run="r", round=7, offset=0, total=8)
    slow = b.node.sink(PeerId("a"), first_of_a, 4)  # its header is there
    assert slow is not None
    met("c", later)
    alive(8.0, "a", "c")
    state(b, "c", b"CCCC", number=7, total=8)
    slow[:] = b"aaaa"
    b.hear(ev.FrameReceived(PeerId("a"), first_of_a, None, 4, True, 6.0))
    state(b, "c", b"CCCC", number=7, offset=4, total=8)
    came = [effect for effect in b.effects if isinstance(effect, fx.StateReceived)]
    assert [(bytes(effect.state), effect.of) for effect in came] == [(b"CCCCCCCC", later)]


def test_who_takes_one_and_has_said_that_it_has_none_is_waited_for_where_others_have_an_earlier_one() -> None:
    """The head has seen round 7 and lost the state, b has that of after 5; c says in its Pings that one is coming."""
    world = view(1, "abc", run="r")
    a = Machine("a")
    a.hear(ev.RunWanted("r", 3, have=7, of=world.lineage))
    a.learn(world)
    a.node.parts.place.restored = None  # rounds have been over since
    a.level("b", 5)
    a.level("c", -1)
    a.hear(ev.StateLost())
    said: list[str] = []
    while a.now < 2 * OVER_S:
        for peer, stands in (("b", 5), ("c", None)):
            a.frame(peer, fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=world.epoch, stands=stands))
        said += a.until(a.now + 0.5)
    assert not any("view 2" in line for line in said)


class Uneven(Company):
    """The line from b to a is slower than the others, by 0.6 s, after second 6."""

    def _deliver(self, source, target, frame, data, life, *, late=False):  # type: ignore[no-untyped-def, override]
        if (source, target) == ("b", "a") and not late and self.now > 6.0:
            self._later(0.6, partial(self._deliver, source, target, frame, data, life, late=True))
        else:
            super()._deliver(source, target, frame, data, life)


@pytest.mark.parametrize("at_s", [20.0, 20.5])
@pytest.mark.parametrize("after_s", [0.02, 0.3, 2.0])
def test_that_its_giver_has_none_any_more_may_be_heard_of_before_its_taker_has_it(at_s: float, after_s: float) -> None:
    """Two trees. a and b have lost the state after round 1; c gives it to b, and its owner quits and wants it again.
    What b says comes to a later than what c says."""
    company = Uneven(view(1, "abc", run="r", lanes=2))
    company.until(1.0)
    for name in "bc":
        company.hear("a", ev.StateReady(PeerId(name), "r", 0, b"x"))
    company.until(2.0)
    for name in "bc":
        company.hear(name, ev.Adopted("r", 0))
    company.until(3.0)
    for name in "abc":
        company.hear(name, ev.Contribute(vector(1, 2, 3, 4), 1.0))
    company.until(5.0)
    assert [company[name].node.allreduce.committed for name in "abc"] == [1, 1, 1]
    for name in "ab":
        company.hear(name, ev.StateLost())
    company.until(at_s)
    asked = {effect.peer for _, name, effect in company.effects(fx.ProvideState, since=5.0) if name == "c"}
    assert PeerId("b") in asked
    company.hear("c", ev.StateReady(PeerId("b"), "r", 1, b"one"))
    company.until(company.now + after_s)
    assert company["b"].node.parts.place.loading
    for run in (None, "r"):
        company.hear("c", ev.RunWanted(run))
    company.until(company.now + 2 * OVER_S)
    assert {company[name].node.view.beginning for name in "abc"} == {("r", 1)}


def stands(b: Machine, seconds: float, others: int | tuple[int, int]) -> list[tuple[int, int] | None]:
    """What b says of how it stands meanwhile, while its neighbours say that."""
    said, until = [], b.now + seconds
    while b.now < until:
        for name in "ade":
            b.frame(name, fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=RUN.stamp, stands=others))
        b.until(b.now + 0.5)
        said.append(b.node.parts.vitals._stands())
    return said


def test_what_is_left_of_one_that_is_not_needed_any_more_is_not_on_its_way() -> None:
    """b is a round behind for a moment, and asks for the state, whose first piece comes; the round's end comes before
    the rest, of which nothing comes then. Hours later all lose the state: b says so."""
    b = at_seven("b", RUN)
    for name in "de":
        b.level(name, 7)
        b.reduce(name, vector(1), name, number=8)
    b.contribute(1)
    b.sync("a", 8)
    assert any("a <- state of r?" in line for line in b.until(b.now + 1.0))
    state(b, "a", b"fir", number=8, total=5)
    b.result("a", vector(4), "abde", number=8)
    for name in "ade":
        b.sync(name, 8)
    assert b.node.allreduce.committed == 8
    assert stands(b, 100.0, 8)[-1] == (8, 8)
    b.hear(ev.StateLost())
    assert b.node.allreduce.committed == -1
    assert stands(b, 100.0, (-1, 8))[0] == (-1, 8)


def test_what_who_is_no_neighbour_any_more_was_giving_and_has_given_up_is_not_on_its_way() -> None:
    """b's parent has given it a first piece. In the next view it is a brother, with whom b is connected still."""
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    for name in "de":
        b.level(name, -1)
    b.until(b.now + 1.0)
    state(b, "a", b"fir", number=7, total=5)
    two = view(4, "cbade", run="r", first_round=8)
    b.learn(two)
    b.hear(ev.LinkUp(PeerId("c"), 1))
    for name in "cde":
        b.sync(name, -1)
    for name in "cde":
        b.frame(name, fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=two.stamp, stands=(-1, 7)))
    assert b.node.parts.vitals._stands() is None
    b.frame("a", fr.Sync(epoch=two.stamp, run="r", committed=-1))
    assert b.node.parts.vitals._stands() == (-1, 7)


def test_who_gives_up_what_it_was_giving_tells_who_is_no_neighbour_any_more() -> None:
    """b's owner loses the state; d, which has taken the first piece, is a member that b is still connected with."""
    b = at_seven("b", RUN)
    b.level("d", -1)
    b.frame("d", fr.StateRequest(run="r"))
    b.hear(ev.StateReady(PeerId("d"), "r", 7, b"seven"))
    two = view(4, "abcde", run="r", first_round=8, fanout=4)
    b.learn(two)
    assert PeerId("d") not in two.neighbours(PeerId("b"))
    b.sync("a", 7)
    assert "d <- sync 4 r after -2" in b.hear(ev.StateLost())


@pytest.mark.parametrize("askers", ["d", "de"])
def test_what_an_owner_packs_that_hangs_is_not_on_its_way_for_long(askers: str) -> None:
    """b has an earlier state than is missing, and others come who ask for that, again and again."""
    b = Machine("b").join(RUN)
    b.level("a", committed=5)
    state(b, "a", b"five", number=5)
    b.hear(ev.Adopted("r", 5))
    for name in "de":
        b.level(name, -1)
    begun, known = b.now, []
    asks = dict(zip(askers, (0.0, 17.0), strict=False))
    while b.now < begun + 300:
        for name, at in asks.items():
            if b.now >= begun + at:
                b.frame(name, fr.StateRequest(run="r"))
                asks[name] += 35.0
        known += stands(b, 0.5, (5, 7))
    assert known[0] is None
    assert set(known[42:]) == {(5, 7)}


def test_a_checkpoint_of_a_generation_that_goes_on_with_the_run_is_of_what_stands_there() -> None:
    b = at_seven("b", RUN)
    anew = Generation.after(RUN.generation, [("a", 1)])
    two = RUN.successor(first_round=8, generation=anew)
    b.learn(two)
    b.level("d", 7)
    b.hear(ev.RunWanted(None))
    b.hear(ev.RunWanted("r", 3, have=7, of=two.lineage))
    assert b.node.allreduce.has_state
