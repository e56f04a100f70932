"""The head chooses the trees by what is measured: fleets with slow lines, two sites, and peers that nobody can dial."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.shape import Choice
from edgepeer.simulation.network import DIAL_TIMEOUT_S
from edgepeer.simulation.task import Workload
from edgepeer.simulation.ways import LinkModel
from edgepeer.simulation.world import World
from edgepeer.topology.view import View

PEERS = tuple(PeerId(f"p{at:02d}") for at in range(15))
FAST = 2.5e6
SIZE = 25_000
"""100 kB: 40 ms of a fast line."""
ORDER = Choice(fanout=False, lanes=False)


@dataclass
class Told:
    """A fleet of 15, and what it does."""

    link: LinkModel
    choice: Choice | None = ORDER
    rounds: int = 80
    size: int = SIZE
    seed: int = 1
    compute_s: float = 0.0
    peers: int = 15
    lanes: int = 1
    views: list[tuple[float, View]] = field(default_factory=list)
    times: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        workload = Workload(rounds=self.rounds, size=self.size, compute_s=self.compute_s, wait_for=self.peers, run=None)
        self.world = World(seed=self.seed, workload=workload, link=self.link, choice=self.choice, lanes=self.lanes)
        self.world.on_effect = self._see
        for name in PEERS[: self.peers]:
            self.world.add(name)

    def _see(self, now: float, peer: PeerId, effect: fx.Effect) -> None:
        if isinstance(effect, fx.ViewInstalled) and (not self.views or self.views[-1][1].precedes(effect.view)):
            self.views.append((now, effect.view))
        elif isinstance(effect, fx.RoundCommitted):
            self.times.setdefault(effect.round, now)

    def run(self) -> Told:
        assert self.world.run_rounds()
        return self

    @property
    def last(self) -> View:
        return self.views[-1][1]

    @property
    def reformed(self) -> int:
        """How often there were other trees."""
        shapes = [(view.ids, view.fanout, view.lanes, view.leaves) for _, view in self.views]
        return sum(one != other for one, other in pairwise(shapes))

    def took(self, first: int, last: int) -> float:
        """The mean round of these."""
        return (self.times[last] - self.times[first]) / (last - first)


def slow(*which: int, jitter_s: float = 0.0) -> LinkModel:
    lines = {name: FAST / 10 if at in which else FAST for at, name in enumerate(PEERS)}
    return LinkModel(latency_s=5e-3, jitter_s=jitter_s, lines=lines)


def inside(view: View) -> set[PeerId]:
    return {peer for lane in range(view.trees) for peer in view.ids if view.children(peer, lane)}


@pytest.mark.parametrize("which", [(1, 2, 5), (0, 4, 9)])
def test_slow_peers_become_leaves_the_head_as_well(which: tuple[int, ...]) -> None:
    fleet = Told(slow(*which), rounds=30, size=50_000).run()
    assert not inside(fleet.last) & {PEERS[at] for at in which}
    assert fleet.reformed <= 2
    own = 4 * 50_000 / (FAST / 10)
    assert fleet.took(24, 30) < 1.3 * own
    assert fleet.took(24, 30) < 0.5 * fleet.took(2, 6)
    assert "against" in fleet.last.why


def test_both_children_of_the_root_are_slow() -> None:
    """Everything goes through them at first, so that all lines seem to be slow; over more trees some show that they are
    not."""
    free = Choice(fanout=True, lanes=True)
    link = LinkModel(latency_s=5e-3, lines={name: 1.2e6 if at in (1, 2) else 12e6 for at, name in enumerate(PEERS)})
    fleet = Told(link, choice=free, rounds=110, size=38_000, peers=7).run()
    assert not inside(fleet.last) & {PEERS[1], PEERS[2]}
    assert fleet.reformed <= 3


def test_alike_peers_stay_where_they_are_for_a_long_time_with_jitter() -> None:
    fleet = Told(slow(jitter_s=5e-3), rounds=120, size=10_000).run()
    assert fleet.reformed == 0
    assert "nothing is found" in fleet.world.peers[PEERS[0]].node.shape


def test_lanes_are_chosen_where_they_pay_and_stay() -> None:
    fleet = Told(slow(), choice=Choice(fanout=True, lanes=True), rounds=50, size=50_000).run()
    assert fleet.last.trees > 1
    assert fleet.reformed <= 2
    assert fleet.took(42, 50) < 0.8 * fleet.took(2, 6)


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_leaf_behind_a_slow_line_is_not_waited_for_longer_over_two_trees(lanes: int) -> None:
    """What comes together slowly goes on in small segments, over fast links, in each of them."""
    rate, size = 0.6e6, 38_500
    link = LinkModel(latency_s=7e-3, lines={**dict.fromkeys(PEERS, 12e6), PEERS[6]: rate})
    fleet = Told(link, choice=None, lanes=lanes, peers=7, rounds=24, size=size).run()
    assert fleet.last.trees == lanes
    assert PEERS[6] not in inside(fleet.last)
    assert fleet.took(16, 23) < 1.4 * 4 * size / rate


def test_two_sites_are_joined_by_few_links() -> None:
    sites = {name: at % 2 for at, name in enumerate(PEERS)}
    link = LinkModel(
        latency_s=5e-4, jitter_s=5e-4, lines=dict.fromkeys(PEERS, 1e7), sites=sites, far_s=0.02, between_bytes_per_s=1e6
    )
    fleet = Told(link, rounds=60, size=20_000).run()

    def crossing(view: View) -> int:
        return sum(sites[peer] != sites[above] for peer in view.ids if (above := view.parent(peer)) is not None)

    assert crossing(fleet.views[0][1]) >= 7
    assert crossing(fleet.last) <= 2
    assert fleet.reformed <= 3
    assert fleet.took(50, 60) < 0.5 * fleet.took(2, 6)


def test_of_each_link_one_end_can_be_dialled() -> None:
    hidden = frozenset(PEERS[at] for at in (1, 4, 9))
    fleet = Told(LinkModel(latency_s=5e-3, hidden=hidden), rounds=160, size=5000).run()
    first, last = fleet.views[0][1], fleet.last
    assert any({peer, first.parent(peer)} <= hidden for peer in first.ids)
    assert not any({peer, last.parent(peer)} <= hidden for peer in last.ids)
    assert fleet.reformed <= 2
    assert last.why.endswith("by the same in the order before")


def test_small_vectors_over_long_ways_take_a_wider_tree() -> None:
    fleet = Told(LinkModel(latency_s=0.05), choice=Choice(fanout=True, lanes=False), rounds=60, size=1000).run()
    assert fleet.last.fanout > 2
    assert fleet.took(50, 60) < 0.8 * fleet.took(2, 6)


@pytest.mark.parametrize("direction", ["both", "up", "down"])
def test_the_trees_do_without_a_connection_that_stays_broken(direction: str) -> None:
    """At a boundary, as soon as it could not be made again, twice; and they stay when it is whole again. These two are
    neighbours in both trees."""
    fleet = Told(slow(), rounds=70, size=50_000, lanes=2, peers=7)
    world, pair = fleet.world, (PEERS[5], PEERS[2])
    ways = {"both": (pair, pair[::-1]), "up": (pair,), "down": (pair[::-1],)}[direction]
    assert world.run_until(lambda: len(fleet.times) == 20, 200)
    before, cut_at = fleet.last, world.clock.now
    assert before.parent(pair[0]) == pair[1]
    for way in ways:
        world.cut(*way)
    assert world.run_until(lambda: len(fleet.times) == 50, 200)
    for way in ways:
        world.heal(*way)
    assert world.run_rounds()
    first = next(at for at, view in fleet.views if view.ids != before.ids)
    assert 2 * DIAL_TIMEOUT_S < first - cut_at < 2 * DIAL_TIMEOUT_S + 4 * fleet.took(10, 20)

    def beside(view: View) -> int:
        return sum(view.parent(a, lane) == b for lane in range(2) for a, b in (pair, pair[::-1]))

    assert beside(before) == 2
    assert beside(fleet.last) == 0
    assert fleet.took(40, 50) < 1.3 * fleet.took(10, 20)
    assert fleet.reformed == 1
    assert fleet.last.size == 7


def test_what_goes_over_three_trees_goes_around_through_as_many_neighbours_and_the_trees_stay() -> None:
    fleet = Told(slow(), rounds=50, size=50_000, lanes=4, peers=7)
    pair = PEERS[5], PEERS[2]
    assert fleet.world.run_until(lambda: len(fleet.times) == 20, 200)
    for way in (pair, pair[::-1]):
        fleet.world.cut(*way)
    assert fleet.world.run_rounds()
    path = next(each.path for each in fleet.world.peers[pair[0]].node.link_states() if each.peer == pair[1])
    assert path.startswith("via")
    assert path.count("+") == 2
    assert fleet.times[21] - fleet.times[20] < fleet.took(10, 20) + 0.2
    assert fleet.took(22, 50) < 1.35 * fleet.took(10, 20)
    assert fleet.reformed == 0


def test_and_not_without_one_that_is_whole_again_soon() -> None:
    fleet = Told(slow(), rounds=70, size=50_000, lanes=2, peers=7)
    world, pair = fleet.world, (PEERS[5], PEERS[2])
    assert world.run_until(lambda: len(fleet.times) == 20, 200)
    for way in (pair, pair[::-1]):
        world.cut(*way)
    healed_at = world.clock.now + DIAL_TIMEOUT_S / 2
    assert world.run_until(lambda: world.clock.now > healed_at, 200)
    for way in (pair, pair[::-1]):
        world.heal(*way)
    assert world.run_rounds()
    assert fleet.reformed == 0


def test_same_seed_same_trace() -> None:
    one, other = (Told(slow(1, 2, 5, jitter_s=2e-3), rounds=14, seed=7).run() for _ in range(2))
    assert one.world.trace_digest == other.world.trace_digest
    assert one.reformed


def test_who_leaves_the_choice_to_nobody_measures_for_nobody() -> None:
    fleet = Told(slow(1, 2, 5), choice=None, rounds=10)
    fleet.world.log = []
    fleet.run()
    assert not fleet.reformed
    assert not any("Measured" in line for line in fleet.world.log)


@pytest.mark.parametrize("seed", range(2))
def test_peers_die_and_come_back_meanwhile(seed: int) -> None:
    """Nothing is proposed while somebody is missed; who is back comes last, and the slow stay outside in the end."""
    which = (1, 2, 5)
    fleet = Told(slow(*which, jitter_s=1e-3), rounds=120, seed=seed)
    world = fleet.world
    for at, when in ((3, 4.0), (1, 9.0), (0, 14.0), (8, 19.0)):
        world.clock.at(when, lambda at=at: world.kill(world.peers[PEERS[at]]))  # type: ignore[misc]  # its default binds it
        world.clock.at(when + 3, lambda at=at: world.restart(world.peers[PEERS[at]]))  # type: ignore[misc]  # as before
    assert world.run_until(lambda: world.clock.now > 25 and world.settled() and fleet.last.size == 15, 200)
    assert world.run_until(lambda: not inside(fleet.last) & {PEERS[at] for at in which}, 200)
    assert not [line for line in world.notes if "error" in line]
