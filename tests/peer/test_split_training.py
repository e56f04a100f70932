"""Split training over real peers: whoever errs, dies or comes, the model is that of undivided training."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from peer_fleet import DEADLINE_S, QUICK, until

from edgepeer import Outcome, Peer, SplitOutcome, connect, train_split
from edgepeer.errors import ConfigError, JobError, LeftFabric
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.peer.agent import run_agent
from edgepeer.settings import PeerSettings
from edgepeer.training.split.assembly import assembled
from edgepeer.training.split.cell import Cell
from edgepeer.training.split.faults import parse_flip
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network
from edgepeer.training.split.program import Program

sys.path.insert(0, str(Path(__file__).parents[1] / "training" / "split"))
from undivided import batches_for, undivided

SPLIT = "codenet:m=2,n=2,t=1"
NODES = 12
NETWORK = Network(sizes=(20, 16, 5), learning_rate=0.1)
BATCHES = batches_for(NETWORK)


def off(outcomes: list[SplitOutcome], iterations: int, split: str = SPLIT) -> float:
    """The largest difference to undivided training in any layer, as a part of the layer's largest weight."""
    divided, worst = parse_split(split, NETWORK.dtype), 0.0
    cells = {}
    for outcome in outcomes:
        if outcome.node is not None and outcome.cell is not None:
            cells[outcome.node] = Cell(NETWORK, divided, outcome.node, blank=True)
            cells[outcome.node].unpack(outcome.cell)
    for layer, wanted in enumerate(undivided(NETWORK, BATCHES, iterations)):
        stored = {node: cell.blocks[layer] for node, cell in cells.items()}
        whole = assembled(divided, NETWORK.shape(layer), stored)
        worst = max(worst, float(np.abs(whole - wanted).max() / np.abs(wanted).max()))
    return worst


class Held(Peer):
    """One that brings nothing while its fleet is held."""

    fleet: Fleet

    async def allreduce(self, *args: Any, **kwargs: Any) -> Outcome:
        await self.fleet.may_go_on(self)
        return await super().allreduce(*args, **kwargs)


class Fleet:
    """Peers in the test's loop, each of which trains.

    Args:
        hold_at: after so many iterations all wait until the peer `freed_by` takes part.
    """

    def __init__(
        self,
        broker: EmbeddedBroker,
        iterations: int,
        *,
        hold_at: float = math.inf,
        **options: Any,
    ) -> None:
        self._broker, self._iterations, self._options = broker, iterations, options
        self._hold_at, self._free = hold_at, asyncio.Event()
        self.freed_by = ""
        self.peers: dict[str, Peer] = {}
        self._tasks: dict[str, asyncio.Task[SplitOutcome]] = {}
        self.reached = 0
        self._news = asyncio.Event()
        self.tell: Callable[[int, float], None] = lambda number, loss: None

    def start(self, *names: str) -> None:
        for name in names:
            self._tasks[name] = asyncio.create_task(self._train(name))

    async def _train(self, name: str) -> SplitOutcome:
        async with Held(self._broker.address.url(), "lab", peer_id=name, limits=QUICK) as peer:
            peer.fleet = self
            self.peers[name] = peer
            return await train_split(
                peer,
                NETWORK,
                SPLIT,
                BATCHES,
                iterations=self._iterations,
                on_iteration=self._on_iteration,
                **self._options,
            )

    def _on_iteration(self, number: int, loss: float) -> None:
        self.reached = max(self.reached, number)
        self._news.set()
        self.tell(number, loss)

    async def may_go_on(self, peer: Peer) -> None:
        """Returns if the fleet is not held, or as soon as it is no more."""
        if self.reached >= self._hold_at:
            if peer.id == self.freed_by:
                self._free.set()
            await self._free.wait()

    async def until(self, iteration: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.reached < iteration:
                self._news.clear()
                await self._news.wait()

    async def vanish(self, name: str) -> None:
        """As if the process were killed: its connections are gone, and it says nothing more."""
        peer, task = self.peers.pop(name), self._tasks.pop(name)
        peer._driver.stop()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def outcomes(self) -> list[SplitOutcome]:
        async with asyncio.timeout(DEADLINE_S):
            return list(await asyncio.gather(*self._tasks.values()))


def names(count: int) -> list[str]:
    return [f"p{number:02}" for number in range(count)]


async def test_the_model_is_that_of_undivided_training(broker_elsewhere: EmbeddedBroker) -> None:
    fleet = Fleet(broker_elsewhere, 20)
    fleet.start(*names(NODES))
    outcomes = await fleet.outcomes()
    assert sorted(outcome.node for outcome in outcomes if outcome.node is not None) == list(range(NODES))
    assert len({outcome.digest for outcome in outcomes}) == 1
    assert len({outcome.losses for outcome in outcomes}) == 1
    assert off(outcomes, 20) < 1e-5
    counts = outcomes[0].counts
    assert (counts.lines, counts.erased, counts.odd, counts.regenerated, counts.restored) == (0, 0, 0, 0, 0)


async def test_a_second_run_of_the_same_peers_has_a_name_of_its_own(broker_elsewhere: EmbeddedBroker) -> None:
    async with contextlib.AsyncExitStack() as stack:
        made = [Peer(broker_elsewhere.address.url(), "lab", peer_id=name, limits=QUICK) for name in names(2)]
        await asyncio.gather(*(stack.enter_async_context(peer) for peer in made))

        async def all_train(name: str) -> list[SplitOutcome]:
            runs = (train_split(each, NETWORK, "none:m=2,n=1", BATCHES, iterations=5, name=name) for each in made)
            async with asyncio.timeout(DEADLINE_S):
                return list(await asyncio.gather(*runs))

        first, second = await all_train("first"), await all_train("second")
        assert {outcome.losses for outcome in first} == {outcome.losses for outcome in second}
        with pytest.raises(JobError, match="this peer has been in this run"):
            await all_train("first")


async def test_whose_call_was_cancelled_comes_again_as_another_peer(broker_elsewhere: EmbeddedBroker) -> None:
    async def two(made: list[Peer], **options: Any) -> list[SplitOutcome | BaseException]:
        runs = (train_split(each, NETWORK, "none:m=2,n=1", BATCHES, iterations=5, **options) for each in made)
        async with asyncio.timeout(DEADLINE_S):
            return await asyncio.gather(*runs, return_exceptions=True)

    def stop(iteration: int, loss: float) -> None:
        raise asyncio.CancelledError

    async with contextlib.AsyncExitStack() as stack:
        a, b = (Peer(broker_elsewhere.address.url(), "lab", peer_id=name, limits=QUICK) for name in names(2))
        await stack.enter_async_context(a)
        with pytest.raises(TimeoutError):  # before the run has begun
            async with asyncio.timeout(0.01):
                await train_split(a, NETWORK, "none:m=2,n=1", BATCHES, iterations=5)
        await stack.enter_async_context(b)
        assert all(isinstance(ended, asyncio.CancelledError) for ended in await two([a, b], on_iteration=stop))
        for error in await two([a, b]):
            assert isinstance(error, JobError)
            assert "come again as another Peer" in str(error)
        assert all(isinstance(outcome, SplitOutcome) for outcome in await two([a, b], name="again"))


async def test_errors_on_purpose_are_found_and_nothing_of_them_stays(broker_elsewhere: EmbeddedBroker) -> None:
    flips = ("1@3:kind=garbage,place=product", "4@6:kind=sparse", "7@9:kind=nan", "2@12:kind=sparse,place=activation")
    fleet = Fleet(broker_elsewhere, 20, faults=[parse_flip(flip) for flip in flips])
    fleet.start(*names(NODES))
    outcomes = await fleet.outcomes()
    made = [error for outcome in outcomes for error in outcome.soft_errors]
    assert sorted((error.where.node, error.where.iteration) for error in made) == [(1, 3), (2, 12), (4, 6), (7, 9)]
    assert {error.fate for error in made} == {"found"}
    assert outcomes[0].counts.regenerated > 0
    assert outcomes[0].counts.restored == 0
    assert off(outcomes, 20) < 1e-5


async def test_a_death_costs_no_restore_and_a_spare_gets_the_blocks(broker_elsewhere: EmbeddedBroker) -> None:
    fleet = Fleet(broker_elsewhere, 25, peers=NODES + 1)
    fleet.start(*names(NODES + 1))
    await fleet.until(5)
    view = fleet.peers["p00"].view
    assert view is not None
    await fleet.vanish(view.ids[3])  # the first ones hold the nodes, the last one is the spare
    outcomes = await fleet.outcomes()
    assert len(outcomes) == NODES
    assert outcomes[0].counts.restored == 0
    assert outcomes[0].counts.erased > 0
    assert outcomes[0].counts.regenerated > 0
    assert sorted(outcome.node for outcome in outcomes if outcome.node is not None) == list(range(NODES))
    assert off(outcomes, 25) < 1e-5


async def test_who_comes_again_gets_its_blocks_from_the_others(broker_elsewhere: EmbeddedBroker) -> None:
    fleet = Fleet(broker_elsewhere, 60, hold_at=10)
    fleet.start(*names(NODES))
    await fleet.until(5)
    await fleet.vanish("p05")
    fleet.freed_by = "p05"  # or the others might do all that there is to do before it comes
    fleet.start("p05")
    outcomes = await fleet.outcomes()
    assert len(outcomes) == NODES
    assert outcomes[-1].node is not None
    assert outcomes[-1].cell is not None
    assert outcomes[-1].held_bytes == outcomes[0].held_bytes
    assert outcomes[0].counts.restored == 0
    assert off(outcomes[-1:] + outcomes[:3] + outcomes[6:-1], 60) < 1e-5


def reachable(root: object) -> Iterator[np.ndarray]:
    """All arrays that an object leads to, whatever holds them."""
    seen, queue = {id(root)}, [root]
    while queue:
        each = queue.pop()
        if isinstance(each, np.ndarray):
            yield each
            each = each.base
            following = [] if each is None else [each]
        elif isinstance(each, FunctionType):
            following = [each.__closure__, each.__defaults__]  # not all that its module has
        else:
            following = gc.get_referents(each)
        for other in following:
            if id(other) not in seen and not isinstance(other, ModuleType | type):
                seen.add(id(other))
                queue.append(other)


async def test_no_peer_ever_has_a_whole_matrix(broker_elsewhere: EmbeddedBroker) -> None:
    """After each iteration, every array that any program leads to is smaller than each of the matrices."""
    network = Network(sizes=(120, 100, 40), learning_rate=0.01)
    batches = batches_for(network, batch=1, different=1)
    sizes = [rows * columns for rows, columns in map(network.shape, range(network.layers))]
    largest: list[int] = []
    programs: dict[int, Program] = {}  # kept: who is done lets go of its own, while others still look

    def look(number: int, loss: float) -> None:
        found = (each for each in gc.get_objects() if isinstance(each, Program) and each.network is network)
        programs.update((id(each), each) for each in found)
        assert len(programs) == NODES
        largest.extend(max(array.size for array in reachable(program)) for program in programs.values())

    async def train(name: str) -> SplitOutcome:
        async with Peer(broker_elsewhere.address.url(), "lab", peer_id=name, limits=QUICK) as peer:
            return await train_split(peer, network, SPLIT, batches, iterations=3, scrub_every=1, on_iteration=look)

    outcomes = await asyncio.gather(*map(train, names(NODES)))
    assert 50 * 61 <= max(largest) < min(sizes)
    for outcome in outcomes:
        assert 0.24 < outcome.held_bytes / (4 * sum(sizes)) < 0.27
        assert outcome.cell is not None
        assert len(outcome.cell) < 1.1 * outcome.held_bytes + 1000


async def test_who_goes_on_from_something_else_is_given_the_others_state(
    broker_elsewhere: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """What a peer has in common with the others is spoiled in its memory, where no step would mend it."""
    spoiled: list[Program] = []

    def spoil(number: int, loss: float) -> None:
        if number == 4 and not spoiled:
            programs = [each for each in gc.get_objects() if isinstance(each, Program) and each.network is NETWORK]
            spoiled.append(next(each for each in programs if each.node == 5 and not each.done))
            spoiled[0]._common.scrubs += 1

    fleet = Fleet(broker_elsewhere, 40)
    fleet.tell = spoil
    fleet.start(*names(NODES))
    outcomes = await fleet.outcomes()
    assert len(spoiled) == 1
    assert [record.getMessage() for record in caplog.records if "reseeded" in record.getMessage()] == [
        f"reseeded: peer {spoiled[0].me}: what it has in common with the others is not what they have"
    ]
    assert spoiled[0].done
    assert len({outcome.digest for outcome in outcomes}) == 1
    assert outcomes[0].counts.restored == 0
    assert off(outcomes, 40) < 1e-5


async def test_it_ends_with_its_peer(broker_elsewhere: EmbeddedBroker) -> None:
    """Whatever it waits for then, here that the others come."""
    async with Peer(broker_elsewhere.address.url(), "lab", limits=QUICK) as peer:
        training = asyncio.create_task(train_split(peer, NETWORK, SPLIT, BATCHES, iterations=4))
        await peer.ready()
        while peer._keeper is None:  # noqa: ASYNC110  # no Event
            await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(LeftFabric):
            await training


async def test_peers_with_other_numbers_are_of_another_run(broker_elsewhere: EmbeddedBroker) -> None:
    """They wait for their like instead of spoiling the others' sums."""
    async with Peer(broker_elsewhere.address.url(), "lab", peer_id="a", limits=QUICK) as peer:
        task = asyncio.create_task(train_split(peer, NETWORK, "none:m=1,n=1", BATCHES, iterations=2, peers=2))
        async with Peer(broker_elsewhere.address.url(), "lab", peer_id="b", limits=QUICK) as other:
            await until(other, lambda: other.view is not None and other.view.size == 2)
            assert not task.done()
            same = train_split(other, NETWORK, "none:m=1,n=1", BATCHES, iterations=2, peers=2)
            async with asyncio.timeout(DEADLINE_S):
                outcomes = await asyncio.gather(task, same)
    assert {outcome.node for outcome in outcomes} == {0, None}
    assert [outcome.held_bytes > 0 for outcome in outcomes].count(True) == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"flip": ("3",)}, "flip '3': must be NODE@"),
        ({"flip": ("3@0",)}, "flip '3@0': rounds count from 1"),
        ({"flip": ("3@5:kind=loud",)}, "a kind sparse, garbage, flip, nan"),
        ({"soft_errors": "p=2"}, "p = 2.0 is no probability"),
        ({"soft_errors": "q=2"}, "there are p, steps and kind, not 'q'"),
    ],
)
async def test_errors_that_can_not_be_made_are_refused_when_the_peer_starts(
    settings: dict[str, Any], says: str
) -> None:
    """No broker is there: none is asked for one."""
    given = PeerSettings(broker="mqtt://127.0.0.1:9", **settings)
    with pytest.raises(ConfigError) as refused:
        await run_agent(given, stop=asyncio.Event())
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"split": "codenet:m=2,n=2,t=x"}, "t must be a whole number up to 1000"),
        ({"split": "fountain"}, "there is no split 'fountain', only"),
        ({"split": "codenet:m=6,n=2,t=1"}, "can't be cut into"),
        ({"guarantee": "sincere"}, "guarantee = 'sincere': must be adversarial or generic"),
        ({"peers": 11}, "peers = 11: split codenet:m=2,n=2,t=1 has 12 nodes and takes as many peers or more"),
        ({"iterations": -1}, "0 or more"),
    ],
)
async def test_bad_use_is_refused_before_anything_is_asked_for(
    broker_elsewhere: EmbeddedBroker, change: dict[str, Any], says: str
) -> None:
    options: dict[str, Any] = {"split": SPLIT, "iterations": 2, **change}
    async with Peer(broker_elsewhere.address.url(), "lab", limits=QUICK) as peer:
        with pytest.raises(ConfigError) as refused:
            await train_split(peer, NETWORK, options.pop("split"), BATCHES, **options)
        assert says in str(refused.value)
        assert "\n" not in str(refused.value)
        assert peer.view is None or peer.view.run == ""


def test_without_an_event_loop(broker_elsewhere: EmbeddedBroker) -> None:
    seen: list[int] = []
    tell: Callable[[int, float], None] = lambda number, loss: seen.append(number)  # noqa: E731
    with connect(broker_elsewhere.address.url(), "lab", limits=QUICK) as peer:
        outcome = peer.train_split(NETWORK, "none:m=1,n=1", BATCHES, iterations=5, on_iteration=tell)
    assert seen == [1, 2, 3, 4, 5]
    assert off([outcome], 5, "none:m=1,n=1") < 1e-5


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"split": None}, "split = None: must be text"),
        ({"iterations": 1.5}, "iterations = 1.5: must be a whole number"),
        ({"peers": -1}, "peers = -1: must be a whole number"),
        ({"soft_errors": "p=0.1"}, "must be SoftErrors"),
        ({"faults": ["1@2"]}, "'1@2' must be a PlannedError"),
        ({"faults": [parse_flip("12@2")]}, "never happens: nodes are 0 to 11, iterations 0 to 4"),
        ({"faults": [parse_flip("1@5")]}, "never happens"),
    ],
)
async def test_what_a_program_asks_for_is_looked_at(
    wrong: dict[str, Any], says: str, broker_elsewhere: EmbeddedBroker
) -> None:
    async with Peer(broker_elsewhere.address.url(), "lab", peer_id="a", limits=QUICK) as peer:
        how = {"split": SPLIT, "iterations": 5, **wrong}
        with pytest.raises(ConfigError, match=says):
            await train_split(peer, NETWORK, how.pop("split"), BATCHES, **how)
