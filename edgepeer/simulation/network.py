"""The network between simulated machines: who can reach whom, who has power, and connections made and broken.

A dial takes a handshake: refused at once where no process listens, and given up after DIAL_TIMEOUT_S where
nothing comes back, be it a cut in either direction or a machine without power. What a connection does is the
business of connection.py and pipe.py.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from edgepeer.ids import PeerId
from edgepeer.simulation.connection import Connection, Owner
from edgepeer.simulation.pipe import Pipe
from edgepeer.simulation.ways import BROKER, Ways

__all__ = ["DIAL_TIMEOUT_S", "Network"]

DIAL_TIMEOUT_S: Final = 2.0
SYN_AT_S: Final = (0.0, 1.0)
"""When a dial tries, from its beginning on: Linux' retransmissions of a SYN."""
BACKLOG: Final = 128
"""So many connections wait for a process that does not accept them."""


class Network:
    """Machines and the connections between them. `peers`: the newest life of every peer that ever was."""

    def __init__(self, ways: Ways, rng: random.Random, peers: Mapping[PeerId, Owner]) -> None:
        self.ways = ways
        self._rng = rng
        self._peers = peers
        self.off: set[PeerId] = set()
        """Machines without power."""
        self._connections: dict[PeerId, list[Connection]] = {}  # by each of both peers, in the order of their making
        self._control: dict[PeerId, list[Pipe]] = {}  # by client

    # -- faults --------------------------------------------------------------------------------------------------

    def cut(self, source: PeerId, target: PeerId) -> None:
        """Nothing gets from one to the other any more, though perhaps back."""
        self.ways.cuts[source, target] += 1

    def heal(self, source: PeerId, target: PeerId) -> None:
        """One cut less; what waits is tried again, in both directions: acknowledgements were lost too."""
        self.ways.cuts[source, target] -= 1
        if self.ways.cuts[source, target] <= 0:
            del self.ways.cuts[source, target]
            for pipe in self._pipes(source if target == BROKER else target):
                if {pipe.source, pipe.target} == {source, target}:
                    pipe.try_again()

    def resumed(self, peer: PeerId) -> None:
        """A process reads again, or a machine runs again."""
        for pipe in self._pipes(peer):
            if pipe.target == peer:
                pipe.flush()

    def reset(self, one: PeerId, other: PeerId) -> None:
        """Something between them breaks their connections, at both ends."""
        for connection in self._of(one):
            if other in (end.owner.id for end in connection.ends):
                for end in connection.ends:
                    end.pipe.destroy()
                for end in connection.ends:
                    end.owner.soon(lambda end=end: end.end("reset by peer"))  # type: ignore[misc]  # its default binds it

    def died(self, peer: Owner, *, silently: bool) -> None:
        """A process is gone: its kernel says so to all whom it was connected to. `silently`: that is gone too."""
        for connection in self._of(peer.id):
            end = connection.end_of(peer.id)
            if end.owner is not peer:
                continue
            if silently:
                end.open, end.gone = False, True
                end.pipe.destroy()
            elif self._rng.random() < 0.5:
                end.close("closed by the other end")  # nothing unread: the kernel delivers what was sent
            else:
                end.abort()

    # -- connections -------------------------------------------------------------------------------------------

    def dial(self, source: Owner, target: PeerId) -> None:
        """Try to connect: both ends introduce themselves, or the source hears that the dial failed."""
        self._try(source, target, self.ways.clock.now, 0)

    def _try(self, source: Owner, target: PeerId, began: float, attempt: int) -> None:
        def lost() -> None:
            if attempt + 1 < len(SYN_AT_S):
                at = began + SYN_AT_S[attempt + 1]
                self.ways.clock.at(at, lambda: self._try(source, target, began, attempt + 1))
            else:
                fail(began + DIAL_TIMEOUT_S, "no answer")

        def fail(at: float, reason: str, refused: bool = False) -> None:
            self.ways.clock.at(at, lambda: source.soon(lambda: source.lines.dial_failed(target, reason, refused)))

        def arrive() -> None:
            peer = self._peers.get(target)
            cut = self.ways.is_cut(source.id, target) or self.ways.is_cut(target, source.id)
            if cut or target in self.ways.model.hidden or (peer and not peer.powered):
                lost()
            elif peer is None or not peer.alive:
                fail(self.ways.clock.now + self.ways.delay(target, source.id), "connection refused", True)
            elif peer.frozen and self._unaccepted(peer) >= BACKLOG:
                lost()
            else:
                self.ways.clock.after(self.ways.delay(target, source.id), lambda: connected(peer))

        def connected(peer: Owner) -> None:
            if not source.alive:
                return
            connection = Connection(self.ways, source, peer)
            for end in connection.ends:
                self._connections[end.owner.id] = [*self._of(end.owner.id), connection]
            if not peer.alive:
                connection.end_of(peer.id).abort()
            connection.greet()

        if source.alive:
            self.ways.clock.after(self.ways.delay(source.id, target), arrive)

    def _unaccepted(self, peer: Owner) -> int:
        ends = (connection.end_of(peer.id) for connection in self._of(peer.id))
        return sum(end.owner is peer and end.open and end.met_at is None for end in ends)

    def attach(self, client: PeerId, *pipes: Pipe) -> None:
        """Pipes of a client's connection to the broker: cuts and heals concern them too."""
        self._control[client] = [pipe for pipe in self._control.get(client, ()) if not pipe.broken] + list(pipes)

    def _of(self, peer: PeerId) -> list[Connection]:
        return [each for each in self._connections.get(peer, ()) if not each.over]

    def _pipes(self, peer: PeerId) -> list[Pipe]:
        """All that lead to or from this peer."""
        return [end.pipe for each in self._of(peer) for end in each.ends] + self._control.get(peer, [])

    def connections(self) -> list[tuple[PeerId, PeerId]]:
        """The pairs that are connected, in order."""
        found = set()
        for connection in (each for some in self._connections.values() for each in some):
            if all(end.open and end.met_at is not None for end in connection.ends):
                one, other = (end.owner.id for end in connection.ends)
                found.add((min(one, other), max(one, other)))
        return sorted(found)
