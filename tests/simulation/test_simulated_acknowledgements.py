"""What simulated ends of connections hear of acknowledgements: as much as TCP tells real ones."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from edgepeer.ids import PeerId
from edgepeer.peer import driver
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.simulation.clock import Clock
from edgepeer.simulation.connection import LOOK_S, LOOK_SELDOM_S
from edgepeer.simulation.peer import SimulatedPeer
from edgepeer.simulation.pipe import Message, Pipe
from edgepeer.simulation.story import SMALL_SEGMENTS
from edgepeer.simulation.task import Workload
from edgepeer.simulation.ways import LinkModel, Ways
from edgepeer.simulation.world import World

P0, P1, P2 = PeerId("p0"), PeerId("p1"), PeerId("p2")
PATIENCE_S = 0.022
"""A round trip of the simulated ways, and what a scheduler may take."""
WATCHED_S = 0.03
"""What counts at most of the time between two looks."""
SOON_S = 0.15
"""From when on something is sent until its sender has closed the connection: far less than a heartbeat takes."""


class Closes:
    """Which connections peers close, and why."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.found: list[tuple[float, PeerId, PeerId, str]] = []
        for peer in world.alive:
            self._listen(peer)

    def _listen(self, peer: SimulatedPeer) -> None:
        handle, tick = peer.node.handle, peer.node.tick

        def noted(effects: list[fx.Effect]) -> list[fx.Effect]:
            now = self._world.clock.now
            closes = [effect for effect in effects if isinstance(effect, fx.CloseLink)]
            self.found += [(now, peer.id, effect.peer, effect.reason) for effect in closes]
            return effects

        peer.node.handle = lambda event, now: noted(handle(event, now))  # type: ignore[method-assign]
        peer.node.tick = lambda now: noted(tick(now))  # type: ignore[method-assign]

    def unacknowledged(self) -> list[tuple[float, PeerId, PeerId]]:
        return [close[:3] for close in self.found if "nothing acknowledged" in close[3]]


def fleet(peers: int = 3, *, rounds: int = 1000) -> tuple[World, Closes]:
    """In the middle of its rounds."""
    world = World(
        seed=1,
        workload=Workload(rounds=rounds, size=200, run="run", wait_for=peers, compute_s=0.05),
        link=LinkModel(),
        limits=SMALL_SEGMENTS,
    )
    for number in range(peers):
        world.add(f"p{number}")
    assert world.run_rounds(5, limit_s=60)
    return world, Closes(world)


def pass_time(world: World, seconds: float) -> None:
    assert not world.run_until(lambda: False, seconds)


def test_simulated_peers_look_as_often_as_real_ones() -> None:
    assert (LOOK_S, LOOK_SELDOM_S) == (driver.LOOK_S, driver.LOOK_SELDOM_S)


def test_while_all_is_well_nothing_is_missing() -> None:
    world, closes = fleet()
    pass_time(world, 5.0)
    assert closes.unacknowledged() == []


@pytest.mark.parametrize("cuts", [[(P0, P1)], [(P1, P0)], [(P0, P1), (P1, P0)]])
def test_a_cut_in_whichever_direction_is_noticed_by_what_is_not_acknowledged(cuts: list[tuple[PeerId, PeerId]]) -> None:
    world, closes = fleet()
    began = world.clock.now
    for source, target in cuts:
        world.cut(source, target)
    pass_time(world, SOON_S)
    assert closes.unacknowledged()
    for at, peer, other in closes.unacknowledged():
        assert {peer, other} == {P0, P1}
        assert PATIENCE_S < at - began < SOON_S
    assert all(PeerId(name) in world.living for name in ("p0", "p1", "p2"))


def test_a_machine_without_power_acknowledges_nothing() -> None:
    world, closes = fleet()
    began = world.clock.now
    world.kill(world.peers[P1], silently=True, will=False)
    pass_time(world, SOON_S + SMALL_SEGMENTS.heartbeat_min_s)
    assert {other for _, _, other in closes.unacknowledged()} == {P1}
    assert all(at - began > PATIENCE_S for at, _, _ in closes.unacknowledged())


def test_a_process_that_does_not_read_is_not_taken_for_a_cut() -> None:
    """Not even when the buffer of its kernel is full: that says so."""
    world, closes = fleet()
    for connection in world.network._of(P1):
        for end in connection.ends:
            end.buffered = 1 << 30  # as after a vector that nobody has read
    world.freeze(world.peers[P1])
    pass_time(world, 2.0)
    assert closes.found  # by their heartbeats
    assert closes.unacknowledged() == []


def test_but_a_cut_to_the_machine_of_a_stopped_process_is() -> None:
    world, closes = fleet()
    world.freeze(world.peers[P0])
    world.cut(P0, P1)
    world.cut(P1, P0)
    pass_time(world, SOON_S)
    assert {(peer, other) for _, peer, other in closes.unacknowledged()} == {(P1, P0)}


def test_who_was_stopped_itself_does_not_take_its_own_absence_for_the_networks() -> None:
    """It has something under way when it is stopped, and looks again a second later: that says next to nothing of the
    time between; what is missing before and from then on does."""
    world, closes = fleet()
    hears: list[tuple[float, float]] = []
    stopped = world.peers[P1]
    handle: Callable[[ev.Event, float], list[fx.Effect]] = stopped.node.handle

    def heard(event: ev.Event, now: float) -> list[fx.Effect]:
        if isinstance(event, ev.Unacknowledged) and event.peer == P0:
            hears.append((now, now - event.since))
        return handle(event, now)

    stopped.node.handle = heard  # type: ignore[method-assign]
    world.cut(P1, P0)
    world.cut(P0, P1)
    assert world.run_until(lambda: bool(hears), 1.0)
    world.freeze(stopped)
    pass_time(world, 1.0)
    before, back = len(hears), world.clock.now
    world.thaw(stopped)
    pass_time(world, SOON_S)
    assert hears[before:]
    for at, quiet in hears[before:]:
        assert quiet <= hears[before - 1][1] + WATCHED_S + at - back + 1e-9
    assert all(at >= back for at, peer, _ in closes.unacknowledged() if peer == P1)


def test_nor_closes_what_is_whole_again_when_it_goes_on() -> None:
    """What it has left under way has arrived meanwhile."""
    world, closes = fleet()
    world.cut(P1, P0)
    world.cut(P0, P1)
    stopped = world.peers[P1]
    ends = [end for connection in world.network._of(P1) for end in connection.ends if end.owner is stopped]
    assert world.run_until(lambda: any(end.missing_since is not None for end in ends), 1.0)
    world.freeze(stopped)
    world.heal(P1, P0)
    world.heal(P0, P1)
    pass_time(world, 1.0)
    world.thaw(stopped)
    pass_time(world, SOON_S)
    assert [peer for _, peer, _ in closes.unacknowledged() if peer == P1] == []


def test_what_was_cut_off_before_is_not_counted_when_it_is_cut_off_again() -> None:
    """Acknowledgements alone get lost, twice: in between all that had come was acknowledged."""
    clock = Clock()
    ways = Ways(clock, random.Random(1), LinkModel(latency_s=0.001))
    told: list[float] = []
    pipe = Pipe(ways, P0, P1, lambda message: True)
    pipe.unheard = lambda: told.append(clock.now)

    def send() -> None:
        pipe.send(Message(100, lambda: None))
        clock.run(until=lambda: False, limit_s=0.01)

    def cut(times: int) -> None:
        ways.cuts[P1, P0] = times
        if not times:
            del ways.cuts[P1, P0]
            pipe.try_again()

    cut(1)
    send()
    assert pipe.missing_since == told[0]
    cut(0)
    assert pipe.missing_since is None
    clock.run(until=lambda: False, limit_s=5.0)
    cut(1)
    assert pipe.missing_since is None
    began = clock.now
    send()
    assert pipe.missing_since == told[1] >= began
