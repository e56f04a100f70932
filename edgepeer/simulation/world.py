"""A whole fleet in virtual time: peers, network, broker, faults, and the trace of what everybody did."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgepeer.baselines import STATIC_TIMEOUT_S
from edgepeer.coding.scheme import parse_scheme
from edgepeer.errors import ConfigError
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.code import Coding
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.machine import ProtocolName
from edgepeer.simulation.broker import Broker
from edgepeer.simulation.clock import Clock
from edgepeer.simulation.coded_app import chunk_vector
from edgepeer.simulation.ledger import Ledger
from edgepeer.simulation.network import BROKER, LinkModel, Network
from edgepeer.simulation.peer import SimulatedPeer, vector_of
from edgepeer.simulation.split_app import SplitWork

__all__ = ["Everybody", "Workload", "World"]


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


class Everybody:
    """Asks whether something holds for all who live, as often as after everything that happens: so for whom it did not
    hold the last time is asked first."""

    def __init__(self, alive: dict[PeerId, SimulatedPeer]) -> None:
        self._alive = alive
        self._doubtful: SimulatedPeer | None = None

    def __call__(self, holds: Callable[[SimulatedPeer], bool]) -> bool:
        doubtful = self._doubtful
        if doubtful is not None and doubtful.alive and not holds(doubtful):
            return False
        self._doubtful = next((peer for peer in self._alive.values() if not holds(peer)), None)
        return self._doubtful is None


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
        protocol: ProtocolName = "ft-tree",
        static_timeout_s: float = STATIC_TIMEOUT_S,
        code: str = "none",
        wait: str = "exact",
        split: SplitWork | None = None,
    ) -> None:
        self.protocol = protocol
        self.static_timeout_s = static_timeout_s
        self.workload = workload or Workload()
        self.fanout = fanout
        self.limits = limits or Limits()
        self.clock = Clock()
        self.rng = random.Random(seed)
        model = link or LinkModel()
        self.network = Network(self.clock, self.rng, model)
        self.broker = Broker(self.network, self.rng)
        self.rounds = self.workload.rounds
        self.run_id = self.workload.run or ""
        self.run = (self.workload.run, self.workload.wait_for) if self.workload.run else None
        self.notes: list[str] = []
        self.brought: dict[tuple[PeerId, int], tuple[FloatVector, float]] = {}
        """What a peer contributes to a round instead of what it would."""
        self.scheme = parse_scheme(code, wait)
        """How rounds are coded, if they are: then Workload.compute_s is for a chunk."""
        self.coding: Coding | None = None
        """The same, for the machines."""
        if (scheme := self.scheme) is not None:
            self.coding = Coding(
                name=scheme.name, build=scheme.build, enough=scheme.enough, deadline_s=scheme.deadline_s
            )
        self.split = split
        """What is trained, if it is a network that is divided: then Workload.size says nothing, and its rounds are what
        that asks for."""
        brought = split.brought if split is not None else lambda peer, number: [self.contribution(peer, number)]
        self.ledger = Ledger(brought, protocol, self.all_chunks if self.coding else None)
        self._agreed = Everybody(self.network.alive)
        self._digest = hashlib.blake2b(digest_size=16)
        self.on_effect: Callable[[float, PeerId, fx.Effect], None] | None = None
        """Told of everything that any peer does, and when."""
        self.log: list[str] | None = None
        """Set to a list to keep the whole trace."""

    # -- what is in it -----------------------------------------------------------------------------------

    def add(self, name: str, *, incarnation: int = 1, delay_s: float = 0.0) -> SimulatedPeer:
        """A peer that starts after `delay_s`."""
        peer = SimulatedPeer(self, PeerId(name), incarnation)
        self.network.peers[peer.id] = peer
        self.clock.after(delay_s, peer.start)
        return peer

    def restart(self, peer: SimulatedPeer, *, delay_s: float = 0.0) -> SimulatedPeer:
        """The same device starts again, with nothing but its id."""

        def power() -> None:
            self.network.off.discard(peer.id)

        self.clock.after(delay_s, power)
        return self.add(peer.id, incarnation=(peer.incarnation >> 16) + 1 << 16, delay_s=delay_s)

    def kill(self, peer: SimulatedPeer, *, will: bool = True, silently: bool = False) -> None:
        """The peer's process ends: its kernel closes its connections; the broker notices if `will`.

        `silently`: its machine does. Nobody hears of that, and the broker only after a while.
        """
        peer.stop()
        self.network.died(peer, silently=silently)
        if silently:
            self.network.off.add(peer.id)
            self.broker.check(peer)
        else:
            self.broker.disconnect(peer.client, will=will)

    def cut(self, source: PeerId, target: PeerId) -> None:
        """Nothing gets from one to the other any more, though perhaps back. Either may be BROKER."""
        self.network.cut(source, target)
        self._recheck(source, target)

    def heal(self, source: PeerId, target: PeerId) -> None:
        """One such cut less."""
        self.network.heal(source, target)
        self._recheck(source, target)

    def freeze(self, peer: SimulatedPeer) -> None:
        """The peer's process is stopped, its kernel goes on."""
        peer.freeze()
        self.broker.check(peer)

    def thaw(self, peer: SimulatedPeer) -> None:
        """The peer's process goes on."""
        if peer.frozen:
            peer.thaw()
            self.network.resumed(peer.id)
            self.broker.check(peer)

    def _recheck(self, source: PeerId, target: PeerId) -> None:
        if BROKER in (source, target):
            peer = self.network.alive.get(target if source == BROKER else source)
            if peer is not None:
                self.broker.check(peer)

    @property
    def alive(self) -> list[SimulatedPeer]:
        return list(self.network.alive.values())

    # -- time ----------------------------------------------------------------------------------------------

    def run_until(self, condition: Callable[[], bool], limit_s: float = 600.0) -> bool:
        """Let time pass until the condition holds; False if it does not within `limit_s`."""
        return self.clock.run(until=condition, limit_s=limit_s)

    def run_rounds(self, rounds: int | None = None, limit_s: float = 600.0) -> bool:
        """Let time pass until `rounds` rounds (default: all) are over at every living peer."""
        alive, everybody = self.network.alive, Everybody(self.network.alive)

        def over(peer: SimulatedPeer) -> bool:
            return peer.finished if rounds is None else peer.done >= rounds

        return self.run_until(lambda: bool(alive) and everybody(over), limit_s)

    def settled(self) -> bool:
        """Whether all living peers work in one view that holds exactly them."""
        alive = self.network.alive
        view = next((peer.node.view for peer in alive.values()), None)
        if view is None or view.size != len(alive):
            return False

        def agrees(peer: SimulatedPeer) -> bool:
            return peer.id in view and (own := peer.node.view) is not None and own.stamp == view.stamp

        return self._agreed(agrees)

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

    def all_chunks(self, outcome: fx.RoundCommitted) -> list[FloatVector]:
        """Of a coded round: the plain sum over all chunks, for each number of slots that its view may have had.

        An outcome names the generation in which it was decided; what is held from an earlier one is put forward again
        as it is, so its view is any of that number whose members all contributors are.
        """
        assert self.scheme is not None
        views = [v for p in self.network.peers.values() for v in p.views if v.epoch == outcome.epoch and v.slots]
        load, sums = self.workload, []
        for slots, fanout in sorted(
            {(len(v.slots), v.fanout) for v in views if set(outcome.contributors) <= set(v.ids)}
        ):
            try:
                code = self.scheme.build(slots, fanout)
            except ConfigError:  # too small a view for this code: nothing can have been added up in it
                continue
            vectors = [chunk_vector(c, outcome.round, load.size, "<f8", code.blocks) for c in range(code.chunks)]
            sums.append(np.asarray(np.sum(vectors, axis=0)))
        return sums

    def compute_s(self) -> float:
        """How long an application is busy with something."""
        return self.rng.expovariate(1 / self.workload.compute_s) if self.workload.compute_s > 0 else 0.0

    # -- the trace -----------------------------------------------------------------------------------------

    def trace(self, peer: PeerId, effect: fx.Effect) -> None:
        what = f"{type(effect.frame).__name__}>{effect.peer}" if isinstance(effect, fx.Send) else type(effect).__name__
        if self.on_effect is not None:
            self.on_effect(self.clock.now, peer, effect)
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
