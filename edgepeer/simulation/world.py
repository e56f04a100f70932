"""A whole fleet in virtual time: peers, network, broker, faults, and what must hold of every round.

Checked at every commit, not at the end: all peers that commit a round have the same bits, and those bits are
the sum over exactly the stated contributors.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.limits import Limits
from edgepeer.simulation.broker import Broker
from edgepeer.simulation.clock import Clock
from edgepeer.simulation.network import LinkModel, Network
from edgepeer.simulation.peer import SimulatedPeer, vector_of

__all__ = ["Workload", "World"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What the simulated application does."""

    rounds: int = 10
    size: int = 16
    """Elements of each vector."""
    dtype: str = "<f4"
    compute_s: float = 0.01
    """Mean compute time of a round, exponentially distributed."""
    run: str | None = "run"
    """With a run, joiners receive state; None: plain allreduce calls."""
    wait_for: int = 1
    """How many peers must be in before the run starts."""
    weights: tuple[float, ...] = (0.5, 1.0, 2.0, 0.0)
    """Of the contributions, in turn. What has the weight 0 is full of NaN."""


class World:
    """A fleet. Build it, `add` peers, and let time pass with `run`."""

    def __init__(
        self,
        *,
        seed: int,
        workload: Workload | None = None,
        fanout: int = 2,
        link: LinkModel | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.workload = workload or Workload()
        self.fanout = fanout
        self.limits = limits or Limits()
        self.clock = Clock()
        self.rng = random.Random(seed)
        model = link or LinkModel()
        self.network = Network(self.clock, self.rng, model)
        self.broker = Broker(self.clock, self.rng, model.latency_s)
        self.rounds = self.workload.rounds
        self.run_id = self.workload.run or ""
        self.run = (self.workload.run, self.workload.wait_for) if self.workload.run else None
        self.notes: list[str] = []
        self.brought: dict[tuple[PeerId, int], tuple[FloatVector, float]] = {}
        """What a peer contributes to a round instead of what it would."""
        self._digest = hashlib.blake2b(digest_size=16)
        self._sums: dict[int, tuple[bytes, tuple[PeerId, ...]] | None] = {}
        self.log: list[str] | None = None
        """Set to a list to keep the whole trace."""
        self.checked = 0
        """How many commits were compared with a plain sum or with another peer's."""

    # -- what is in it -----------------------------------------------------------------------------------

    def add(self, name: str, *, incarnation: int = 1, delay_s: float = 0.0) -> SimulatedPeer:
        """A peer that starts after `delay_s`."""
        peer = SimulatedPeer(self, PeerId(name), incarnation)
        self.network.peers[peer.id] = peer
        self.clock.after(delay_s, peer.start)
        return peer

    def restart(self, peer: SimulatedPeer, *, delay_s: float = 0.0) -> SimulatedPeer:
        """The same device starts again, with nothing but its id."""
        return self.add(peer.id, incarnation=(peer.incarnation >> 16) + 1 << 16, delay_s=delay_s)

    def kill(self, peer: SimulatedPeer, *, will: bool = True, silently: bool = False) -> None:
        """The peer's process ends: connections break; the broker notices if `will`.

        `silently`: its machine does; nobody's connection breaks.
        """
        peer.stop()
        self.network.drop_all(peer.id, silently=silently)
        self.broker.disconnect(peer.client, clear=will)

    def cut(self, one: SimulatedPeer, other: SimulatedPeer) -> None:
        """Nothing gets from one to the other any more."""
        self.network.cut.add(frozenset((one.id, other.id)))

    def heal(self, one: SimulatedPeer, other: SimulatedPeer) -> None:
        """They can reach each other again; a connection from before has lost something and breaks."""
        self.network.cut.discard(frozenset((one.id, other.id)))
        self.network.reset(one.id, other.id, "reset by peer")

    @property
    def alive(self) -> list[SimulatedPeer]:
        return list(self.network.alive.values())

    # -- time ----------------------------------------------------------------------------------------------

    def run_until(self, condition: Callable[[], bool], limit_s: float = 600.0) -> bool:
        """Let time pass until the condition holds; False if it does not within `limit_s`."""
        return self.clock.run(until=condition, limit_s=limit_s)

    def run_rounds(self, rounds: int | None = None, limit_s: float = 600.0) -> bool:
        """Let time pass until `rounds` rounds (default: all) are over at every living peer."""
        target = rounds if rounds is not None else self.rounds
        alive = self.network.alive
        return self.run_until(lambda: bool(alive) and all(p.done >= target for p in alive.values()), limit_s)

    def settled(self) -> bool:
        """Whether all living peers work in one view that holds exactly them."""
        alive = self.alive
        views = {peer.node.view for peer in alive}
        view = next(iter(views)) if len(views) == 1 else None
        return view is not None and set(view.ids) == {peer.id for peer in alive}

    # -- the application -----------------------------------------------------------------------------------

    def weight(self, peer: PeerId, number: int) -> float:
        return self.workload.weights[(sum(peer.encode()) + number) % len(self.workload.weights)]

    def contribution(self, peer: PeerId, number: int) -> tuple[FloatVector, float]:
        if (brought := self.brought.get((peer, number))) is not None:
            return brought
        return vector_of(peer, number, self.workload.size, self.workload.dtype), self.weight(peer, number)

    def brought_by(self, peer: PeerId, number: int) -> tuple[FloatVector, float]:
        """What the peer's application hands to the machine."""
        vector, weight = self.contribution(peer, number)
        return (np.full_like(vector, np.nan) if weight == 0 else vector), weight

    def compute_s(self) -> float:
        """How long an application is busy with something."""
        return self.rng.expovariate(1 / self.workload.compute_s) if self.workload.compute_s > 0 else 0.0

    # -- what must hold --------------------------------------------------------------------------------------

    def committed(self, peer: SimulatedPeer, outcome: fx.RoundCommitted) -> None:
        """A peer has committed a round: it must be everybody's round, and the sum that it says it is."""
        self.checked += 1
        mine = outcome.sum.tobytes(), outcome.contributors
        if outcome.round in self._sums and self._sums[outcome.round] == mine:
            return
        if (other := self._holder(peer, outcome.round)) is not None:
            raise ProtocolBug(f"{peer.id} commits other bits or contributors for round {outcome.round} than {other}")
        plain = np.zeros(outcome.sum.size, dtype=np.float64)
        weight = 0.0
        for contributor in outcome.contributors:
            vector, share = self.contribution(contributor, outcome.round)
            plain += vector.astype(np.float64) * share
            weight += share
        tolerance = 1e-5 if outcome.sum.dtype == np.float32 else 1e-12
        if abs(weight - outcome.weight) > 1e-9 * max(weight, 1):
            raise ProtocolBug(f"round {outcome.round}: weight {outcome.weight}, contributors have {weight}")
        if not np.allclose(outcome.sum, plain, rtol=tolerance, atol=tolerance * max(len(outcome.contributors), 1)):
            raise ProtocolBug(f"round {outcome.round} is not the sum over {outcome.contributors}")
        self._sums[outcome.round] = mine

    def aborted(self, peer: SimulatedPeer, outcome: fx.RoundAborted) -> None:
        """A round is over without a sum: for everybody."""
        self.checked += 1
        if self._sums.get(outcome.round) is not None and (other := self._holder(peer, outcome.round)) is not None:
            raise ProtocolBug(f"{peer.id} drops round {outcome.round}, which {other} has committed")
        self._sums[outcome.round] = None

    def _holder(self, peer: SimulatedPeer, number: int) -> PeerId | None:
        """Who else knows another end of a round: somebody who lives, or left with what `peer` has contributed to.

        What died with a peer is nobody's any more.
        """
        known = self._sums.get(number)
        ours = known is not None and peer.id in known[1]
        for other in self.network.peers.values():
            if other is not peer and (other.alive or (other.left and ours)) and number in other.digests:
                return other.id
        return None

    # -- the trace -----------------------------------------------------------------------------------------

    def trace(self, peer: PeerId, effect: fx.Effect) -> None:
        what = f"{type(effect.frame).__name__}>{effect.peer}" if isinstance(effect, fx.Send) else type(effect).__name__
        self._digest.update(f"{self.clock.now:.9f} {peer} {what}\n".encode())
        if self.log is not None:
            told = f"to {effect.peer}: {effect.frame}" if isinstance(effect, fx.Send) else str(effect)
            self.log.append(f"{self.clock.now:.6f} {peer} {told}")

    def note(self, peer: PeerId, text: str) -> None:
        self.notes.append(f"{self.clock.now:.3f} {peer} {text}")

    @property
    def trace_digest(self) -> str:
        """Fingerprint of everything that every peer did, and when."""
        return self._digest.hexdigest()
