"""Rounds that are over before a peer's program has brought anything: its next calls are of these, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from peer_fleet import DEADLINE_S

from edgepeer.coding.scheme import parse_scheme
from edgepeer.errors import BegunAnew, ContributionMismatch, FellBehind, NotReady, RoundTimeout
from edgepeer.ids import Generation, PeerId
from edgepeer.peer import calls
from edgepeer.peer.bell import Bell
from edgepeer.peer.calls import Calls
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.topology.view import Member, View
from edgepeer.wire.precision import Precision

GENERATION = Generation()
MEMBERS = (Member(id=PeerId("a"), incarnation=1), Member(id=PeerId("b"), incarnation=1))


class Machine:
    """As much of a driver and its machine as calls need: answers to contributions come from here."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.dropped: list[int] = []
        self.calls = Calls(Bell())
        self.committed = 0
        self.contributed = False
        self.answers = True
        """Whether a round is over as soon as this peer has contributed."""
        self.give_up: Callable[[], object] = lambda: None
        """What the program does when a round was given up by all."""
        self.time_out: Callable[[], object] = self._give_up
        """What becomes of a round when this peer's time is over."""
        self.node: Any = SimpleNamespace(allreduce=self, me=Member(id=PeerId("a"), incarnation=1))
        self.calls.run_on(self)  # type: ignore[arg-type]
        self.run = "r"
        self.calls.installed(View(epoch=1, members=MEMBERS, run="r"))

    def enter(self, run: str = "", *, first_round: int = 1, counter: int = 1) -> None:
        """Be in a view, of the same members."""
        self.run, self.committed = run, first_round - 1
        generation = Generation(counter=counter)
        view = View(generation=generation, epoch=9, members=MEMBERS, run=run, first_round=first_round)
        self.calls.installed(view)

    def leave(self) -> None:
        self.contributed = False
        self.calls.removed(fx.Removed("taken for lost", wanted=False))

    @property
    def owed(self) -> int:
        return len(self.dropped)

    def missing(self) -> list[str]:
        return []

    def dispatch(self, event: ev.Event) -> None:
        self.events.append(event)
        if isinstance(event, ev.Contribute | ev.ChunksDone) and self.dropped:
            self.calls.aborted(fx.RoundAborted("r", self.dropped.pop(0), "timeout", "given up", mine=True))
        elif isinstance(event, ev.Contribute) and self.answers:
            self.decide(mine=True)
        elif isinstance(event, ev.TimedOut):
            self.time_out()

    def _give_up(self) -> None:
        self.committed += 1
        self.contributed = False
        self.give_up()

    def decide(self, *, mine: bool, precision: Precision = "float32") -> None:
        """A round is over, with a sum: its own number."""
        self.committed += 1
        total = np.array([float(self.committed)], dtype=np.float32)
        who = (PeerId("a"), PeerId("b")) if mine else (PeerId("b"),)
        self.calls.committed(
            fx.RoundCommitted(
                run=self.run, round=self.committed, generation=GENERATION, epoch=1, sum=total, weight=1.0,
                contributors=who, exact=True, digest=b"", mine=mine, precision=precision,
            )
        )  # fmt: skip

    def drop(self) -> None:
        """A round is over, without one."""
        self.committed += 1
        self.dropped.append(self.committed)

    async def call(self) -> float:
        async with asyncio.timeout(DEADLINE_S):
            outcome = await self.calls.allreduce(np.zeros(1, dtype=np.float32), 1.0, DEADLINE_S, "float32")
        assert outcome.sum == outcome.round
        return outcome.round

    async def call_coded(self) -> int:
        async def gradient(chunk: int, chunks: int) -> tuple[np.ndarray, float]:
            return np.zeros(0, dtype=np.float32), 1.0  # without leaving the loop to others

        async with asyncio.timeout(DEADLINE_S):
            outcome = await self.calls.allreduce_chunks(gradient, DEADLINE_S, None)
        return outcome.round

    @property
    def missed(self) -> int:
        return self.calls.missed + self.owed


async def test_what_neighbours_tell_of_is_the_outcome_of_the_next_call() -> None:
    """Somebody has taken a state over and is told of the round after it before its program has computed anything: its
    machine is through with that round, and its program must not wait for it."""
    machine = Machine()
    machine.decide(mine=False)
    machine.decide(mine=False)
    assert (machine.missed, machine.committed) == (2, 2)
    assert [await machine.call() for _ in range(3)] == [1, 2, 3]
    assert machine.missed == 0
    assert sum(isinstance(event, ev.Contribute) for event in machine.events) == 1


async def test_rounds_that_were_dropped_between_are_answered_in_their_order() -> None:
    machine = Machine()
    machine.drop()
    machine.decide(mine=False)
    machine.drop()
    machine.decide(mine=False)
    for number in (2, 4):
        with pytest.raises(RoundTimeout, match=f"round {number - 1}: given up"):
            await machine.call()
        assert await machine.call() == number
    assert await machine.call() == 5


@pytest.mark.parametrize("value", [np.zeros(3, np.float32), [np.zeros(0, np.float32)] * 2, np.zeros(1, np.float64)])
@pytest.mark.parametrize("missed", [True, False])
async def test_a_sum_of_another_length_or_type_that_others_have_decided_is_a_mismatch(missed: bool, value: Any) -> None:
    """A list of fewer elements would be given the first of them, and no word said."""
    machine = Machine()
    if missed:
        machine.decide(mine=False)
    with pytest.raises(
        ContributionMismatch, match=rf"round 1: {'' if missed else 'a, '}b decided it with 1 (float32 )?elements"
    ):
        await machine.calls.allreduce(value, 1.0, DEADLINE_S, "float32")
    assert await machine.call() == 2


async def test_a_state_that_comes_has_what_was_missed() -> None:
    machine = Machine()
    for _ in range(3):
        machine.decide(mine=False)
    machine.calls.adopted(2)
    assert [await machine.call() for _ in range(2)] == [3, 4]


async def test_what_was_missed_of_a_run_is_none_of_it_once_it_has_begun_anew() -> None:
    """Without a view between: this peer may have missed that. It would never be in step again."""
    machine = Machine()
    machine.decide(mine=False)
    machine.decide(mine=False)
    before = machine.calls.view
    assert before is not None
    machine.committed = 0
    machine.calls.installed(before.successor(first_round=3, run="s").successor(first_round=1, run="r"))
    assert machine.calls.missed == 0
    assert await machine.call() == 1


async def test_who_has_missed_too_much_is_told_and_wants_the_state() -> None:
    machine = Machine()
    for _ in range(9):
        machine.decide(mine=False)
    assert [type(event) for event in machine.events] == [ev.StateLost]
    with pytest.raises(FellBehind, match="rounds up to 9 were decided without this peer"):
        await machine.call()
    assert await machine.call() == 10


async def test_so_is_who_is_behind_while_its_program_computes() -> None:
    machine = Machine()
    machine.decide(mine=False)
    machine.committed = 7
    machine.calls.behind(fx.Behind(7))
    assert (machine.missed, [type(event) for event in machine.events]) == (0, [ev.StateLost])
    with pytest.raises(FellBehind, match="rounds up to 7 were decided without this peer"):
        await machine.call()
    assert await machine.call() == 8


async def test_so_is_who_was_in_no_view_between_two_calls() -> None:
    """Nobody has a state of plain rounds to hand over, and the machine begins with whatever round comes next."""
    machine = Machine()
    machine.enter()
    assert [await machine.call() for _ in range(2)] == [1, 2]
    machine.leave()
    with pytest.raises(NotReady):
        await machine.call()
    machine.enter(first_round=7)
    with pytest.raises(FellBehind, match="rounds up to 6 were decided without this peer"):
        await machine.call()
    assert [await machine.call() for _ in range(2)] == [7, 8]
    machine.leave()
    machine.enter(first_round=9)
    assert await machine.call() == 9  # it has missed nothing
    machine.leave()
    machine.enter(first_round=12, counter=2)
    with pytest.raises(BegunAnew):  # which says as much
        await machine.call()
    assert await machine.call() == 12


async def test_but_not_who_has_had_no_outcome_nor_who_was_in_a_run_meanwhile() -> None:
    machine = Machine()
    machine.enter()
    machine.leave()
    machine.enter(first_round=5)
    assert await machine.call() == 5
    machine.enter("s")
    machine.enter(first_round=7)
    assert await machine.call() == 7


@pytest.mark.parametrize("counts", [True, False])
async def test_who_has_given_a_round_up_alone_hears_that_it_counts(
    counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_VERDICT_S", 0.0)
    machine = Machine()
    machine.enter()
    assert await machine.call() == 1
    machine.answers = False
    machine.time_out = lambda: setattr(machine, "contributed", True)  # it goes on
    with pytest.raises(RoundTimeout, match="the coordinator has not said whether the round counts"):
        async with asyncio.timeout(DEADLINE_S):
            await machine.calls.allreduce(np.zeros(1, dtype=np.float32), 1.0, 1e-3, "float32")
    machine.answers, machine.contributed = True, False
    if counts:
        machine.decide(mine=True)
        with pytest.raises(FellBehind, match="rounds up to 2 were decided without this peer"):
            await machine.call()
    else:
        machine.committed = 2
        machine.calls.aborted(fx.RoundAborted("", 2, "timeout", "given up", mine=True))
    assert await machine.call() == 3


async def test_a_round_whose_call_was_cancelled_is_nothing_to_be_told_of() -> None:
    """Who cancels knows that it has no outcome."""
    machine = Machine()
    machine.enter()
    assert await machine.call() == 1
    machine.answers = False
    await cancelled_in_mid_round(machine, timeout=DEADLINE_S)
    machine.answers, machine.contributed = True, False
    machine.decide(mine=True)
    assert await machine.call() == 3


@pytest.mark.parametrize("told", [False, True])
async def test_so_is_who_is_behind_before_its_program_has_had_the_last_outcome(told: bool) -> None:
    """What comes in one piece from a neighbour is taken at once, and the program has its turn after it."""
    machine = Machine()
    machine.answers = False
    call = asyncio.create_task(machine.call())
    await asyncio.sleep(0)
    if told:
        machine.calls.aborted(fx.RoundAborted("r", 1, "run", "the run went on without this peer", mine=True))
    else:
        machine.decide(mine=True)
    machine.committed = 7
    machine.calls.behind(fx.Behind(7))
    machine.answers = True
    if not told:
        assert await call == 1
        call = asyncio.create_task(machine.call())
    with pytest.raises(FellBehind):
        await call
    assert await machine.call() == 8  # it is told once


async def test_a_round_that_was_cancelled_and_given_up_ends_no_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that the first call had is over while nobody waits, and the program calls again soon."""
    monkeypatch.setattr(calls, "_VERDICT_S", 0.0)
    machine = Machine()
    machine.answers = False
    given_up = asyncio.get_running_loop().create_future()
    machine.give_up = lambda: given_up.set_result(asyncio.create_task(machine.call()))
    await cancelled_in_mid_round(machine, timeout=1e-3)
    async with asyncio.timeout(DEADLINE_S):
        call = await given_up
    for _ in range(5):  # turns in which the verdict would come
        await asyncio.sleep(0)
    machine.decide(mine=True)
    assert await call == 2


async def test_nor_does_one_that_was_cancelled_and_has_come_to_its_end() -> None:
    """Rounds count anew where another run begins: numbers don't tell whose time is over."""
    machine = Machine()
    machine.answers, machine.committed = False, 7
    await cancelled_in_mid_round(machine, timeout=DEADLINE_S)
    timer = machine.calls._timer
    assert timer is not None
    assert not timer.cancelled()  # the round is to end in time
    machine.contributed, machine.committed = False, 0
    call = asyncio.create_task(machine.call())
    await asyncio.sleep(0)
    assert timer.cancelled()
    machine.decide(mine=True)
    assert await call == 1


async def test_nothing_waits_for_the_time_of_a_call_when_the_peer_has_left() -> None:
    """It would keep the peer, and its vectors, in memory until then."""
    machine = Machine()
    machine.answers = False
    await cancelled_in_mid_round(machine, timeout=DEADLINE_S)
    timer = machine.calls._timer
    assert timer is not None
    machine.calls.end()
    assert timer.cancelled()


async def cancelled_in_mid_round(machine: Machine, *, timeout: float) -> None:
    """A call that the program does not wait for any more; its round goes on."""
    call = asyncio.create_task(machine.calls.allreduce(np.zeros(1, dtype=np.float32), 1.0, timeout, "float32"))
    await asyncio.sleep(0)
    machine.contributed = True
    call.cancel()
    await asyncio.wait([call])


@pytest.fixture
def coded() -> Machine:
    machine = Machine()
    machine.calls.use(parse_scheme("first:s=1", "exact"))
    machine.calls.installed(View(epoch=2, members=MEMBERS, run="r", slots=("a", "b")))
    machine.events.clear()
    return machine


async def test_a_coded_call_that_is_answered_at_once_is_of_no_later_round(coded: Machine) -> None:
    """Nor does it say so in views that come before the next call: the peer would take part in a round that its program
    has not come to, which then were told that another call of it has not ended."""
    coded.decide(mine=False)
    coded.decide(mine=False)
    assert await coded.call_coded() == 1
    coded.calls.installed(View(epoch=3, members=MEMBERS, run="r", slots=("a", "b")))
    await asyncio.sleep(0)  # what the view asks for is done in a turn of its own
    assert coded.events == []
    assert await coded.call_coded() == 2


async def test_a_coded_call_before_the_run_has_begun_is_of_its_first_round(coded: Machine) -> None:
    """As a plain one is. The machine takes part with it, and would have waited for the rest of it for good."""
    coded.committed = -1
    call = asyncio.create_task(coded.call_coded())
    await asyncio.sleep(0)
    view, coded.committed = coded.calls.view, 0
    for _ in range(2):
        coded.calls.installed(view)  # as whenever the application is to look again
        await asyncio.sleep(0)
    assert [event.round for event in coded.events if isinstance(event, ev.ChunksDone)] == [0, 0, 1]
    coded.decide(mine=True)
    assert await call == 1


async def test_the_outcome_of_a_coded_call_says_what_its_sum_was_rounded_to(coded: Machine) -> None:
    """A plain round, say, that was put forward before rounds were coded."""
    coded.decide(mine=False, precision="int8")

    async def gradient(chunk: int, chunks: int) -> tuple[np.ndarray, float]:
        return np.zeros(0, dtype=np.float32), 1.0

    assert (await coded.calls.allreduce_chunks(gradient, DEADLINE_S, None)).precision == "int8"


async def test_nothing_is_computed_for_a_coded_round_that_was_dropped(coded: Machine) -> None:
    """What is said to be computed is an answer to the call: were it said twice, the next round's answer were lost."""
    coded.drop()
    coded.drop()
    for number in (1, 2):
        with pytest.raises(RoundTimeout, match=f"round {number}: given up"):
            await coded.call_coded()
        assert (coded.missed, len(coded.events)) == (2 - number, number)


@pytest.mark.parametrize("given_up", [False, True])
async def test_what_was_computed_beside_a_state_that_is_given_up_is_not_for_another(
    given_up: bool, coded: Machine
) -> None:
    """The call was cancelled, and its round goes on, or comes anew after another state: with the same number."""
    call = asyncio.create_task(coded.call_coded())
    await asyncio.sleep(0)
    coded.contributed = True
    call.cancel()
    await asyncio.wait([call])
    coded.events.clear()
    coded.calls.installed(View(epoch=3, members=MEMBERS, run="r", slots=("a", "b")))
    if given_up:
        coded.calls.aborted(fx.RoundAborted("r", 1, "run", "its state is lost", mine=True))
    await asyncio.sleep(0)
    assert any(isinstance(each, ev.ChunksDone) for each in coded.events) == (not given_up)
