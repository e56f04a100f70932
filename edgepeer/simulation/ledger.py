"""What must hold of every round of a simulated fleet, checked whenever one ends anywhere.

- A committed sum is the sum over exactly the contributors that it states, with their weights, each once.
- Of all living peers, frozen and isolated ones included, no two hold different ends of a round: neither other
  bits nor other contributors, nor a sum against an abort. So there are never two models.
- What any peer has committed counts for good while a majority of the view that decided it lives: it is on record
  there. What the only holders took with them into death is nobody's any more.

Of a baseline, less: nobody agrees with anybody on a round that is given up, and ps-async's peers commit sums of
different portions, of which a round number says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.machine import ProtocolName

if TYPE_CHECKING:
    from edgepeer.simulation.peer import SimulatedPeer
    from edgepeer.topology.view import View

__all__ = ["ABORTED", "Ledger"]

ABORTED: Final = bytes(16)
"""Stands for the digest of a round that ended without a sum."""


class _Entry:
    """How a round has ended."""

    __slots__ = ("contributors", "digest", "total", "view")

    def __init__(self, digest: bytes, total: bytes, contributors: tuple[PeerId, ...], view: View | None) -> None:
        self.digest = digest
        self.total = total
        self.contributors = contributors
        self.view = view
        """In which it was decided, as far as that is known."""


class Ledger:
    """All rounds of a fleet. `peers`: the newest life of every peer; `contribution`: what one brought to a round."""

    def __init__(
        self,
        peers: dict[PeerId, SimulatedPeer],
        contribution: Callable[[PeerId, int], tuple[FloatVector, float]],
        protocol: ProtocolName = "ft-tree",
        all_chunks: Callable[[fx.RoundCommitted], FloatVector] | None = None,
    ) -> None:
        self._protocol = protocol
        self._all_chunks = all_chunks
        """Of coded rounds: the plain sum."""
        self.approximate = 0
        """How many coded rounds were called approximate."""
        self._peers = peers
        self._contribution = contribution
        self._entries: dict[int, _Entry] = {}
        self.checked = 0
        """How many ends of rounds were compared with a plain sum or with another peer's."""

    def committed(self, peer: SimulatedPeer, outcome: fx.RoundCommitted) -> None:
        """A peer has committed a round."""
        self.checked += 1
        if self._protocol == "ps-async":
            return
        total, entry = outcome.sum.tobytes(), self._entries.get(outcome.round)
        if entry is not None and (entry.total, entry.contributors) == (total, outcome.contributors):
            return
        self._rule_out(peer, outcome.round, "commits other bits or contributors for round {} than {}")
        self._check_sum(outcome)
        view = next((view for view in reversed(peer.views) if view.epoch == outcome.epoch), None)
        self._entries[outcome.round] = _Entry(outcome.digest, total, outcome.contributors, view)

    def aborted(self, peer: SimulatedPeer, outcome: fx.RoundAborted) -> None:
        """A round is over without a sum at a peer: for everybody."""
        self.checked += 1
        if self._protocol != "ft-tree":
            return
        entry = self._entries.get(outcome.round)
        if entry is None or entry.digest != ABORTED:
            if entry is not None:
                self._rule_out(peer, outcome.round, "drops round {}, which {} has committed")
            self._entries[outcome.round] = _Entry(ABORTED, b"", (), None)

    def adopted(self, peer: SimulatedPeer) -> None:
        """A peer has taken over somebody's state, and with it how all rounds have ended."""
        for number, digest in peer.digests.items():
            entry = self._entries.get(number)
            if entry is not None and entry.digest != digest:
                self._rule_out(peer, number, "adopts a state with another end of round {} than {} has")

    def _rule_out(self, peer: SimulatedPeer, number: int, complaint: str) -> None:
        """Nobody may hold the end of a round that is on record: `peer` has come to another."""
        entry = self._entries.get(number)
        if entry is None:
            return
        ours = peer.id in entry.contributors
        for other in self._peers.values():
            holds = number in other.digests and other.digests[number] == entry.digest
            if other is not peer and holds and (other.alive or (other.left and ours)):
                raise ProtocolBug(f"{peer.id} {complaint.format(number, other.id)}")
        if entry.view is not None and self._lives(entry.view):
            raise ProtocolBug(f"{peer.id} {complaint.format(number, f'a majority of view {entry.view.epoch}')}")

    def _lives(self, view: View) -> bool:
        """Whether a majority of a view lives on."""
        lives = [self._peers[PeerId(member.id)] for member in view.members if PeerId(member.id) in self._peers]
        alive = sum(peer.alive and peer.incarnation == view.member(peer.id).incarnation for peer in lives)
        return 2 * alive > view.size

    def _check_sum(self, outcome: fx.RoundCommitted) -> None:
        """The slow way, in float64."""
        if len(set(outcome.contributors)) != len(outcome.contributors):
            raise ProtocolBug(f"round {outcome.round} counts somebody twice: {outcome.contributors}")
        if self._all_chunks is not None:
            self._check_coded(outcome, self._all_chunks(outcome))
            return
        plain = np.zeros(outcome.sum.size, dtype=np.float64)
        weight = 0.0
        for contributor in outcome.contributors:
            vector, share = self._contribution(contributor, outcome.round)
            plain += vector.astype(np.float64) * share
            weight += share
        tolerance = 1e-5 if outcome.sum.dtype == np.float32 else 1e-12
        if abs(weight - outcome.weight) > 1e-9 * max(weight, 1):
            raise ProtocolBug(f"round {outcome.round}: weight {outcome.weight}, contributors have {weight}")
        if not np.allclose(outcome.sum, plain, rtol=tolerance, atol=tolerance * max(len(outcome.contributors), 1)):
            raise ProtocolBug(f"round {outcome.round} is not the sum over {outcome.contributors}")

    def _check_coded(self, outcome: fx.RoundCommitted, plain: FloatVector) -> None:
        """A round that is called exact is the sum over all chunks."""
        self.approximate += not outcome.exact
        if (outcome.error == 0) != outcome.exact:
            raise ProtocolBug(f"round {outcome.round}: exact is {outcome.exact}, the error {outcome.error}")
        tolerance = 1e-4 if outcome.sum.dtype == np.float32 else 1e-9
        if outcome.exact and not np.allclose(outcome.sum, plain, rtol=tolerance, atol=tolerance * plain.size):
            raise ProtocolBug(f"round {outcome.round} is called exact, and is not the sum over all chunks")
