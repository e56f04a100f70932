"""A simulated peer: the real protocol machine, simulated I/O, and an application that runs rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.node import Node
from edgepeer.topology.view import Member, View
from edgepeer.wire.frames import Frame, has_document

if TYPE_CHECKING:
    from edgepeer.simulation.world import World

__all__ = ["SimulatedPeer"]


class SimulatedPeer:
    """One peer. Its application contributes `world.vector(peer, round)` to each round after a compute time.

    The application's state is the list of digests it has committed; joiners receive it like a model's.
    """

    def __init__(self, world: World, peer: PeerId, incarnation: int) -> None:
        self._world = world
        self.id = peer
        self.incarnation = incarnation
        self.alive = True
        self.member = Member(id=peer, incarnation=incarnation)
        self.node = Node(self.member, fanout=world.fanout, limits=world.limits, now=world.clock.now)
        self.bytes_sent = 0
        self.digests: list[bytes] = []
        """Digest of every round committed, from round 1."""
        self.views: list[View] = []
        self.outcomes: list[fx.RoundCommitted] = []
        self.ended = False
        self._computing = 0
        self._timer = float("inf")
        self._handlers: dict[type, Callable[..., None]] = {
            fx.Send: self._do_send,
            fx.Dial: lambda e: world.network.dial(self.id, PeerId(e.member.id)),
            fx.CloseLink: lambda e: world.network.close(self.id, e.peer, e.reason),
            fx.PublishView: lambda e: world.broker.publish_view(e.view) if e.view is not None else None,
            fx.PublishPresence: lambda e: self._present(),
            fx.ViewInstalled: self._do_view,
            fx.Removed: self._do_removed,
            fx.RoundCommitted: self._do_committed,
            fx.RoundAborted: lambda e: self._next_round() if e.mine else None,
            fx.ProvideState: self._do_provide,
            fx.StateReceived: self._do_state,
            fx.Behind: lambda e: self._next_round(),
            fx.Note: lambda e: world.note(self.id, f"{e.level}: {e.text}"),
        }

    def start(self) -> None:
        self._world.broker.connect(self.member, self.receive)
        if self._world.run is not None:
            self.receive(ev.RunWanted(*self._world.run))
        self._arm()

    # -- events in, effects out ----------------------------------------------------------------------------

    def receive(self, event: ev.Event) -> None:
        if self.alive:
            self._do(self.node.handle(event, self._world.clock.now))

    def receive_frame(self, source: PeerId, frame: Frame, payload: memoryview | bytes | None, seconds: float) -> None:
        if not self.alive:
            return
        data = payload if payload is not None else b""
        if has_document(frame):
            self.receive(ev.FrameReceived(source, frame, bytes(data), len(data), True, seconds))
            return
        sink = self.node.sink(source, frame, len(data))
        if sink is not None:
            if len(sink) != len(data):
                raise ProtocolBug(f"sink of {len(sink)} bytes for {len(data)}")
            sink[:] = data
        self.receive(ev.FrameReceived(source, frame, None, len(data), sink is not None, seconds))

    def _do(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            self._world.trace(self.id, effect)
            self._handlers[type(effect)](effect)
        self._arm()

    def _arm(self) -> None:
        deadline = self.node.next_deadline()
        if deadline >= self._timer:
            return
        self._timer = deadline

        def fire() -> None:
            if self._timer == deadline:
                self._timer = float("inf")
                if self.alive:
                    self._do(self.node.tick(self._world.clock.now))

        self._world.clock.at(deadline, fire)

    def _do_send(self, effect: fx.Send) -> None:
        self.bytes_sent += self._world.network.send(self.id, effect.peer, effect.frame, effect.payload)

    def _present(self) -> None:
        self.member = self.node.membership.me
        self.incarnation = self.member.incarnation
        self._world.broker.present(self.member)

    # -- the application -------------------------------------------------------------------------------------

    @property
    def committed(self) -> int:
        return len(self.digests)

    def _do_view(self, effect: fx.ViewInstalled) -> None:
        self.views.append(effect.view)
        if effect.view.run and (self.node.allreduce.run != effect.view.run):
            self.digests = []
        self._world.clock.after(0.0, self._next_round)

    def _do_removed(self, effect: fx.Removed) -> None:
        self.digests = []
        if effect.wanted:
            self.alive = False
            self._world.broker.disconnect(self.id)
            self._world.network.drop_all(self.id)

    def _next_round(self) -> None:
        """Compute for the next round, unless that is being done or there is nothing to do."""
        node, view = self.node, self.node.view
        number = node.allreduce.committed + 1
        if (
            not self.alive
            or view is None
            or view.run != self._world.run_id
            or node.allreduce.contributed
            or number < 1
            or number > self._world.rounds
            or self._computing == number
        ):
            return
        self._computing = number

        def computed() -> None:
            if self._computing != number:
                return
            self._computing = 0
            if self.alive and node.view is not None and node.allreduce.committed + 1 == number:
                vector, weight = self._world.contribution(self.id, number)
                self.receive(ev.Contribute(vector, weight))

        self._world.clock.after(self._world.compute_s(self.id, number), computed)

    def _do_committed(self, effect: fx.RoundCommitted) -> None:
        if effect.round != self.committed + 1:
            raise ProtocolBug(f"{self.id} commits round {effect.round} after {self.committed}")
        self.digests.append(effect.digest)
        self.outcomes.append(effect)
        self._world.committed(self, effect)
        self._next_round()

    def _do_provide(self, effect: fx.ProvideState) -> None:
        state = b"".join(self.digests) or b"-"
        self.receive(ev.StateReady(effect.peer, effect.run, self.committed, state))

    def _do_state(self, effect: fx.StateReceived) -> None:
        blob = bytes(effect.state)
        self.digests = [blob[i : i + 16] for i in range(0, len(blob), 16)] if blob != b"-" else []
        if len(self.digests) != effect.round:
            raise ProtocolBug(f"state of {len(self.digests)} rounds for round {effect.round}")
        self.receive(ev.Adopted(effect.run, effect.round))
        self._next_round()


def vector_of(peer: str, number: int, size: int, dtype: str = "<f4") -> ev.FloatVector:
    """A vector that depends on all its arguments and on nothing else."""
    seed = np.frombuffer(f"{peer}/{number}".encode(), dtype=np.uint8).astype(np.uint32)
    return np.random.Generator(np.random.PCG64(seed.tolist())).standard_normal(size).astype(dtype)
