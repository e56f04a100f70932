"""What must hold of every round of a simulated fleet, checked whenever one ends anywhere.

- A committed sum is the sum over exactly the contributors that it states, with their weights, each once. Where it is
  rounded, it is what `rounded_sum` finds for the trees of its view, to the bit.
- Of one generation, a round ends in one way only, whoever has seen it, and whether they live or not: neither other
  bits nor other contributors, nor a sum against an abort.
- Whoever has seen how a round of a run ended has seen the same ends of all rounds before it. So there are never two
  models.

Of a baseline, less: nobody agrees with anybody on a round that is given up, and ps-async's peers commit sums of
different portions, of which a round number says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Final, TypeAlias

import numpy as np
import xxhash

from edgepeer.errors import ProtocolBug
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.machine import ProtocolName
from edgepeer.simulation.rounded import rounded_sum
from edgepeer.topology.view import View

__all__ = ["END_BYTES", "NO_SUM", "Ledger", "end_of"]

END_BYTES: Final = 24
NO_SUM: Final = bytes(END_BYTES)
"""What a peer keeps of a round that ended without a sum."""
_End: TypeAlias = tuple[bytes, tuple[PeerId, ...]]
"""How a round has ended: the sum's bytes, and whose contributions are in it."""
_Which: TypeAlias = tuple[Generation, tuple[str, int], int]
"""A round: its generation, run, which beginning of that, and number."""
_DROPPED: Final[_End] = b"", ()
_Brought: TypeAlias = tuple[FloatVector, float]
"""A vector and its weight."""


def end_of(generation: Generation, digest: bytes) -> bytes:
    """What a peer keeps of a round: in which generation it ended, and how."""
    return xxhash.xxh3_64_digest(str(generation).encode()) + digest


class Ledger:
    """All rounds of a fleet. `brought`: what a peer brought to the round with that outcome; where its lives brought
    different vectors, all of them."""

    def __init__(
        self,
        brought: Callable[[fx.RoundCommitted, PeerId], Sequence[_Brought]],
        protocol: ProtocolName = "ft-tree",
        all_chunks: Callable[[fx.RoundCommitted], list[FloatVector]] | None = None,
        views: Callable[[], Iterable[View]] = tuple,
    ) -> None:
        self._protocol = protocol
        self._all_chunks = all_chunks
        """Of coded rounds: what the plain sum may be."""
        self._views = views
        """Those that sums may have been made in."""
        self.rounded = 0
        """How many sums were compared with what they must be rounded to."""
        self.approximate = 0
        """How many coded rounds were called approximate."""
        self._brought = brought
        self._ends: dict[_Which, tuple[PeerId, _End]] = {}
        """How rounds have ended, and at whom first."""
        self._newest: dict[tuple[str, int], int] = {}
        """Of each beginning of a run, the last round that has ended anywhere, in whatever generation."""
        self._before: dict[_Which, tuple[PeerId, bytes]] = {}
        """How the rounds before a round have ended, for whom that ended first."""
        self._known: set[tuple[int, bytes]] = set()
        """Rounds' numbers, and how they ended, as peers keep it."""
        self.checked = 0
        """How many ends of rounds were compared with a plain sum or with another peer's."""

    def committed(self, peer: PeerId, outcome: fx.RoundCommitted, view: View | None = None) -> None:
        """A peer, which is in that view, has committed a round."""
        self.checked += 1
        if self._protocol == "ps-async":
            return
        self._known.add((outcome.round, end_of(outcome.generation, outcome.digest)))
        which = outcome.generation, _beginning(outcome, view), outcome.round
        if self._is_new(peer, which, (outcome.sum.tobytes(), outcome.contributors)):
            self._check_sum(outcome)

    def follows(
        self, peer: PeerId, outcome: fx.RoundCommitted, ends: Mapping[int, bytes], view: View | None = None
    ) -> None:
        """A peer, which is in that view, commits a round of a run, in which those before it have ended so."""
        if self._protocol != "ft-tree":
            return
        before = xxhash.xxh3_128_digest(b"".join(ends[number] for number in range(1, outcome.round)))
        which_one = outcome.generation, _beginning(outcome, view), outcome.round
        first, other = self._before.setdefault(which_one, (peer, before))
        if other != before:
            which = f"round {outcome.round} of generation {outcome.generation}"
            raise ProtocolBug(f"{peer} commits {which} after other rounds than {first}")

    def aborted(self, peer: PeerId, view: View | None, outcome: fx.RoundAborted) -> None:
        """A round is over without a sum at a peer, which is in that view: for everybody."""
        self.checked += 1
        if self._protocol == "ft-tree" and view is not None:
            self._is_new(peer, (view.generation, _beginning(outcome, view), outcome.round), _DROPPED)

    def adopted(self, peer: PeerId, ends: Mapping[int, bytes]) -> None:
        """A peer has taken over somebody's state, and with it how all rounds have ended."""
        for number, end in ends.items():
            if end != NO_SUM and (number, end) not in self._known:
                raise ProtocolBug(f"{peer} adopts a state with an end of round {number} that nobody has seen")

    def begun_anew(self, peer: PeerId, before: View, view: View, number: int) -> None:
        """A peer goes to a view in which the run is over, or begins anew, that it takes part in, and has had the state
        of after that round: nobody may have known of a later one."""
        if view.generation == before.generation and number >= self._newest.get(before.beginning, 1):
            told = f"the run over, or begun anew, though it has the state after round {number}, the last that has ended"
            raise ProtocolBug(f"{peer} finds {told}")

    def _is_new(self, peer: PeerId, which: _Which, end: _End) -> bool:
        """Whether nobody has seen the end of this round before. Raises ProtocolBug if somebody has seen another."""
        first, before = self._ends.setdefault(which, (peer, end))
        generation, begun, number = which
        self._newest[begun] = max(self._newest.get(begun, 0), number)
        if before is end:
            return True
        if before != end:
            kind = "drops" if end is _DROPPED else "commits other bits or contributors for"
            was = "dropped" if before == _DROPPED else "committed"
            told = f"round {number} of {begun[0] or 'no run'}, generation {generation}"
            raise ProtocolBug(f"{peer} {kind} {told}, which {first} has {was}")
        return False

    def _check_sum(self, outcome: fx.RoundCommitted) -> None:
        """The slow way, in float64."""
        if len(set(outcome.contributors)) != len(outcome.contributors):
            raise ProtocolBug(f"round {outcome.round} counts somebody twice: {outcome.contributors}")
        if self._all_chunks is not None:
            self._check_coded(outcome, self._all_chunks(outcome))
            return
        lives = list(product(*(self._brought(outcome, peer) for peer in outcome.contributors)))
        weights = {sum(share for _, share in each) for each in lives}
        if not any(abs(weight - outcome.weight) <= 1e-9 * max(weight, 1) for weight in weights):
            raise ProtocolBug(f"round {outcome.round}: weight {outcome.weight}, contributors have {weights}")
        if outcome.precision != "float32":
            self._check_rounded(outcome, lives)
        elif not any(_is_sum(outcome.sum, each) for each in lives):
            raise ProtocolBug(f"round {outcome.round} is not the sum over {outcome.contributors}")

    def _check_rounded(self, outcome: fx.RoundCommitted, lives: Sequence[Sequence[_Brought]]) -> None:
        """To the bit, if the view is known that it was made in: of that epoch, with these members."""
        possible = [v for v in self._views() if v.epoch == outcome.epoch and v.ids == outcome.contributors]
        different = {(view.fanout, view.trees, view.leaves): view for view in possible}.values()
        if not different:
            return
        self.rounded += 1
        for view, each in product(different, lives):
            expected = rounded_sum(view, outcome.precision, dict(zip(outcome.contributors, each, strict=True)))
            if expected is not None and expected.tobytes() == outcome.sum.tobytes():
                return
        raise ProtocolBug(f"round {outcome.round} is not the sum over {outcome.contributors}, as {outcome.precision}")

    def _check_coded(self, outcome: fx.RoundCommitted, plain: list[FloatVector]) -> None:
        """A round that is called exact is the sum over all chunks."""
        self.approximate += not outcome.exact
        if (outcome.error == 0) != outcome.exact:
            raise ProtocolBug(f"round {outcome.round}: exact is {outcome.exact}, the error {outcome.error}")
        tolerance = 1e-4 if outcome.sum.dtype == np.float32 else 1e-9
        if outcome.exact and not any(
            each.size == outcome.sum.size and np.allclose(outcome.sum, each, rtol=tolerance, atol=tolerance * each.size)
            for each in plain
        ):
            raise ProtocolBug(f"round {outcome.round} is called exact, and is not the sum over all chunks")


def _beginning(outcome: fx.RoundCommitted | fx.RoundAborted, view: View | None) -> tuple[str, int]:
    """Of which beginning of its run a round is: what all have given up begins anew when they want it again."""
    return view.beginning if view is not None and view.run == outcome.run else (outcome.run, 1)


def _is_sum(total: FloatVector, brought: Sequence[_Brought]) -> bool:
    """Whether it is the sum of these, but for rounding. Wrong numbers may be of any size, infinity and NaN included."""
    if any(vector.size != total.size for vector, _ in brought):
        return False
    tolerance = 1e-5 if total.dtype == np.float32 else 1e-12
    plain, largest = np.zeros((2, total.size))
    with np.errstate(all="ignore"):
        for vector, share in brought:
            part = vector.astype(np.float64) * share
            plain += part
            largest += np.abs(part) + 1
        off = np.abs(total - plain)
    return bool(np.all((off <= tolerance * largest) | ~np.isfinite(largest)))
