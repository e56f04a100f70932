"""Stories of simulated fleets: what happens to whom and when, as data that Hypothesis can draw and shrink."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hypothesis import strategies as st

from edgepeer.protocol.limits import Limits
from edgepeer.simulation.network import LinkModel
from edgepeer.simulation.peer import SimulatedPeer
from edgepeer.simulation.world import Workload, World

SMALL_SEGMENTS = Limits(smallest_segment_bytes=256, first_segment_bytes=512)
"""Vectors of a few hundred elements are cut in many segments."""

KINDS = (
    "kill", "kill silently", "kill without will", "kill several", "leave", "all leave", "join", "restart",
    "broker", "cut", "reset", "time out",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """Something that happens `at` seconds after the run has begun; `pick` chooses whom it happens to."""

    at: float
    kind: str
    pick: int
    seconds: float = 1.0
    """How long it lasts, or how long until a restart."""


@dataclass(frozen=True)
class Story:
    peers: int
    faults: tuple[Fault, ...] = ()
    fanout: int = 2
    rounds: int = 12
    size: int = 100
    dtype: str = "<f4"
    compute_s: float = 0.2
    weights: tuple[float, ...] = (0.5, 1.0, 2.0, 0.0)
    run: str | None = "run"
    latency_s: float = 1e-3
    jitter_s: float = 0.0
    rate: float = 1e6
    seed: int = 1


class Teller:
    """Lets a story happen. One peer, the anchor, is spared, so that the fleet never dies out."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.world = World(
            seed=story.seed,
            fanout=story.fanout,
            workload=Workload(
                rounds=story.rounds,
                size=story.size,
                dtype=story.dtype,
                compute_s=story.compute_s,
                weights=story.weights,
                run=story.run,
                wait_for=story.peers,
            ),
            link=LinkModel(latency_s=story.latency_s, jitter_s=story.jitter_s, rate_bytes_per_s=story.rate),
            limits=SMALL_SEGMENTS,
        )
        self.happened: list[str] = []
        """The faults that found somebody to happen to."""
        names = [f"p{number}" for number in range(story.peers)]
        self.anchor = random.Random(story.seed).choice(names)
        self._joined = 0
        for name in names:
            self.world.add(name)

    def tell(self) -> World:
        """Let everything happen and check how it ends.

        Raises:
            AssertionError: rounds did not end, peers did not agree, or did not settle in one view.
            ProtocolBug: a wrong sum, or a state that the machine rules out.
        """
        world, story = self.world, self.story
        assert world.run_until(self._begun, 60), "the fleet did not come together"
        for fault in story.faults:
            world.clock.after(fault.at, lambda fault=fault: self._happen(fault))
        last = max((fault.at + 2 * fault.seconds for fault in story.faults), default=0.0)
        world.run_until(lambda: False, last)
        assert world.run_rounds(limit_s=200), f"rounds did not end: {self._where()}"
        assert world.run_until(world.settled, 120), f"no common view: {self._where()}"
        assert world.run_rounds(limit_s=200), f"the last to come did not catch up: {self._where()}"
        assert world.ledger.checked or not story.rounds
        if story.run:
            assert len({tuple(peer.digests.items()) for peer in world.alive}) == 1
        return world

    def _begun(self) -> bool:
        alive = self.world.alive
        views = [peer.node.view for peer in alive]
        return bool(views) and all(
            view is not None and view.size >= len(alive) and view.run == self.world.run_id for view in views
        )

    def _where(self) -> dict[str, tuple[int, int, int | None]]:
        return {
            peer.id: (peer.done, peer.node.allreduce.committed, peer.node.view.epoch if peer.node.view else None)
            for peer in self.world.alive
        }

    # -- what happens ----------------------------------------------------------------------------------------

    def _happen(self, fault: Fault) -> None:
        world, pick = self.world, random.Random(fault.pick)
        others = [peer for peer in world.alive if peer.id != self.anchor and not peer.leaving]
        happen: dict[str, Callable[[], object]] = {
            "kill": lambda: world.kill(self._victim(others, pick)),
            "kill silently": lambda: world.kill(self._victim(others, pick), silently=True),
            "kill without will": lambda: world.kill(self._victim(others, pick), will=False),
            "kill several": lambda: [world.kill(p) for p in pick.sample(others, pick.randint(1, len(others)))],
            "leave": lambda: self._victim(others, pick).leave(),
            "all leave": lambda: [peer.leave() for peer in others],
            "restart": lambda: self._restart(self._victim(others, pick), fault.seconds, will=pick.random() < 0.5),
        }
        if fault.kind in happen:
            if not others:
                return
            happen[fault.kind]()
        elif fault.kind == "join":
            self._joined += 1
            world.add(f"{pick.choice('aq')}{self._joined}")
        elif fault.kind == "broker" and world.broker.up:
            world.broker.go_down(forget=pick.random() < 0.5)
            world.clock.after(fault.seconds, world.broker.come_up)
        elif fault.kind == "cut" and len(world.alive) > 1:
            one, other = pick.sample(world.alive, 2)
            for source, target in ((one.id, other.id), (other.id, one.id)):
                world.cut(source, target)
                world.clock.after(min(fault.seconds, 6.0), partial(world.heal, source, target))
        elif fault.kind == "reset" and world.network.connections():
            world.network.reset(*pick.choice(world.network.connections()))
        elif fault.kind == "time out" and world.alive:
            pick.choice(world.alive).time_out()
        else:
            return
        self.happened.append(fault.kind)

    def _victim(self, others: list[SimulatedPeer], pick: random.Random) -> SimulatedPeer:
        """Every other time the coordinator."""
        heads = [peer for peer in others if peer.node.membership.coordinator]
        return heads[0] if heads and pick.random() < 0.5 else pick.choice(others)

    def _restart(self, peer: SimulatedPeer, seconds: float, *, will: bool) -> None:
        self.world.kill(peer, will=will)
        self.world.restart(peer, delay_s=seconds)


faults = st.builds(
    Fault,
    at=st.floats(0, 8).map(lambda s: round(s, 4)),
    kind=st.sampled_from(KINDS),
    pick=st.integers(0, 1 << 16),
    seconds=st.sampled_from([0.001, 0.1, 1.0, 3.0, 12.0]),
)

stories = st.builds(
    Story,
    peers=st.integers(1, 8),
    faults=st.lists(faults, max_size=6).map(tuple),
    fanout=st.integers(1, 4),
    rounds=st.integers(1, 15),
    size=st.sampled_from([0, 1, 7, 100, 1001]),
    dtype=st.sampled_from(["<f4", "<f8"]),
    compute_s=st.sampled_from([0.0, 0.02, 0.3]),
    run=st.sampled_from(["run", None]),
    latency_s=st.sampled_from([1e-4, 1e-3, 2e-2]),
    jitter_s=st.sampled_from([0.0, 1e-3, 2e-2]),
    rate=st.sampled_from([1e5, 1e6, 1e9]),
    seed=st.integers(0, 1 << 16),
)
