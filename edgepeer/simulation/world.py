"""A whole fleet in virtual time: peers, network, broker, faults, and the trace of what everybody did."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from edgepeer.baselines import STATIC_TIMEOUT_S, MachineMaker
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.machine import ProtocolName
from edgepeer.protocol.shape import Choice
from edgepeer.simulation.broker import Broker
from edgepeer.simulation.clock import Clock
from edgepeer.simulation.ledger import Ledger
from edgepeer.simulation.network import Network
from edgepeer.simulation.peer import PeerFactory, SimulatedPeer, Surroundings
from edgepeer.simulation.split_app import SplitWork
from edgepeer.simulation.task import Task, Workload
from edgepeer.simulation.ways import BROKER, LinkModel, Ways
from edgepeer.topology.view import View

__all__ = ["Everybody", "World"]


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
    """A fleet. Build it, `add` peers, and let time pass with `run`. `peer` makes them; the clocks of their lives differ
    by up to `clocks_s`."""

    def __init__(
        self,
        *,
        seed: int,
        workload: Workload | None = None,
        fanout: int = 2,
        lanes: int = 1,
        quorum: int = 0,
        choice: Choice | None = None,
        link: LinkModel | None = None,
        limits: Limits | None = None,
        protocol: ProtocolName = "ft-tree",
        static_timeout_s: float = STATIC_TIMEOUT_S,
        code: str = "none",
        wait: str = "exact",
        split: SplitWork | None = None,
        clocks_s: float = 0.0,
        twice: float = 0.0,
        peer: PeerFactory = SimulatedPeer,
    ) -> None:
        rng = random.Random(seed)
        make = MachineMaker(protocol, static_timeout_s)
        self._make_peer = peer
        self.clock = Clock()
        self.peers: dict[PeerId, SimulatedPeer] = {}
        """The newest life of every peer that ever was."""
        self.living: dict[PeerId, SimulatedPeer] = {}
        self.network = Network(Ways(self.clock, rng, link or LinkModel()), rng, self.peers)
        self.broker = Broker(self.network, rng, twice)
        self.task = Task(workload or Workload(), rng, code=code, wait=wait, split=split)
        self.ledger = Ledger(self._brought, protocol, self.all_chunks if self.task.scheme else None, self.views)
        self.notes: list[str] = []
        self._around = Surroundings(
            clock=self.clock,
            network=self.network,
            broker=self.broker,
            task=self.task,
            ledger=self.ledger,
            disks={},
            living=self.living,
            machine=lambda me, now: make(
                me, fanout=fanout, lanes=lanes, choice=choice, quorum=quorum, limits=limits, now=now
            ),
            ahead_s=lambda peer, life: clocks_s * random.Random(f"{seed} {peer} {life}").random(),
            trace=self._trace,
            note=self._note,
        )
        self._agreed = Everybody(self.living)
        self._digest = hashlib.blake2b(digest_size=16)
        self.on_effect: Callable[[float, PeerId, fx.Effect], None] | None = None
        """Told of everything that any peer does, and when."""
        self.log: list[str] | None = None
        """Set to a list to keep the whole trace."""

    # -- what is in it -----------------------------------------------------------------------------------

    def add(self, name: str, *, incarnation: int = 1, delay_s: float = 0.0) -> SimulatedPeer:
        """A peer that starts after `delay_s`."""
        peer = self._make_peer(self._around, PeerId(name), incarnation)
        self.peers[peer.id] = peer
        self.clock.after(delay_s, peer.start)
        return peer

    def restart(self, peer: SimulatedPeer, *, delay_s: float = 0.0) -> SimulatedPeer:
        """The same device starts again, with its id, and what it has kept."""

        def power() -> None:
            self.network.off.discard(peer.id)

        self.clock.after(delay_s, power)
        return self.add(peer.id, incarnation=(peer.incarnation >> 16) + 1 << 16, delay_s=delay_s)

    def kill(self, peer: SimulatedPeer, *, will: bool = True, silently: bool = False) -> None:
        """The peer's process ends: its kernel closes its connections; the broker notices if `will`.

        `silently`: its machine does. Nobody hears of that, and the broker only after a while.
        """
        peer.die(will=will, silently=silently)

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
        self.broker.check(peer.client)

    def thaw(self, peer: SimulatedPeer) -> None:
        """The peer's process goes on."""
        if peer.frozen:
            peer.thaw()
            self.network.resumed(peer.id)
            self.broker.check(peer.client)

    def _recheck(self, source: PeerId, target: PeerId) -> None:
        if BROKER in (source, target):
            peer = self.living.get(target if source == BROKER else source)
            if peer is not None:
                self.broker.check(peer.client)

    @property
    def alive(self) -> list[SimulatedPeer]:
        return list(self.living.values())

    # -- time ----------------------------------------------------------------------------------------------

    def run_until(self, condition: Callable[[], bool], limit_s: float = 600.0) -> bool:
        """Let time pass until the condition holds; False if it does not within `limit_s`."""
        return self.clock.run(until=condition, limit_s=limit_s)

    def run_rounds(self, rounds: int | None = None, limit_s: float = 600.0) -> bool:
        """Let time pass until `rounds` rounds (default: all) are over at every living peer."""
        alive, everybody = self.living, Everybody(self.living)

        def over(peer: SimulatedPeer) -> bool:
            return peer.finished if rounds is None else peer.done >= rounds

        return self.run_until(lambda: bool(alive) and everybody(over), limit_s)

    def settled(self) -> bool:
        """Whether all living peers work in one view that holds exactly them."""
        alive = self.living
        view = next((peer.node.view for peer in alive.values()), None)
        if view is None or view.size != len(alive):
            return False

        def agrees(peer: SimulatedPeer) -> bool:
            return peer.id in view and (own := peer.node.view) is not None and own.stamp == view.stamp

        return self._agreed(agrees)

    def _brought(self, outcome: fx.RoundCommitted, peer: PeerId) -> Sequence[tuple[FloatVector, float]]:
        """What a peer brought to a round; where its lives brought different vectors, all of them."""
        if self.task.split is not None:
            return self.task.split.brought(peer, outcome.round)
        return [self.task.summed(peer, outcome.round, outcome.run, outcome.sum.size)]

    def all_chunks(self, outcome: fx.RoundCommitted) -> list[FloatVector]:
        """Of a coded round: the plain sum over all chunks, for each number of slots that its view may have had."""
        return self.task.all_chunks(outcome, self.views())

    def views(self) -> Iterable[View]:
        """All that the newest lives of peers have been in."""
        return chain.from_iterable(peer.views for peer in self.peers.values())

    # -- the trace -----------------------------------------------------------------------------------------

    def _trace(self, peer: PeerId, effect: fx.Effect) -> None:
        what = f"{type(effect.frame).__name__}>{effect.peer}" if isinstance(effect, fx.Send) else type(effect).__name__
        if self.on_effect is not None:
            self.on_effect(self.clock.now, peer, effect)
        self._digest.update(f"{self.clock.now:.9f} {peer} {what}\n".encode())
        if self.log is not None:
            told = f"to {effect.peer}: {effect.frame}" if isinstance(effect, fx.Send) else str(effect)
            self.log.append(f"{self.clock.now:.6f} {peer} {told}")

    def _note(self, peer: PeerId, text: str) -> None:
        self.notes.append(f"{self.clock.now:.3f} {peer} {text}")

    @property
    def trace_digest(self) -> str:
        """Fingerprint of everything that every peer did, and when."""
        return self._digest.hexdigest()
