"""What a simulated device keeps over restarts in its state directory: the view that it was in last, and checkpoints."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from edgepeer.ids import Lineage
from edgepeer.topology.view import View

__all__ = ["OUTSIDE", "REGATHER_S", "Checkpoint", "Disk"]

REGATHER_S: Final = 10.0
"""How long a fleet that starts again waits for all of its peers, before a majority is enough ..."""
OUTSIDE: Final = 12
"""... and so many times as long who can reach no view (peer/run.py)."""
_KEPT: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The state of a run after a round."""

    round: int
    ends: dict[int, bytes]
    """How all rounds until then have ended."""
    lineage: Lineage
    run: str
    peers: int
    """How many there were ..."""
    slots: tuple[str, ...]
    """... and whose the slots of their code were."""

    @property
    def majority(self) -> int:
        """How many of these must come, so that no two parts of the fleet go on from there."""
        return self.peers // 2 + 1


@dataclass(slots=True)
class Disk:
    """Of one device. `every`: after how many rounds there is another checkpoint."""

    every: int
    view: View | None = None
    _checkpoints: deque[Checkpoint] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def keep(self, number: int, ends: dict[int, bytes], view: View) -> None:
        """A round of a run has ended in that view."""
        if number % self.every == 0:
            self._checkpoints.append(
                Checkpoint(
                    round=number,
                    ends=dict(ends),
                    lineage=view.lineage,
                    run=view.run,
                    peers=view.size,
                    slots=view.slots,
                )
            )

    def newest(self, run: str) -> Checkpoint | None:
        """What to go on from in that run: what was kept last. What this device had done before it has given up, in
        whatever generation."""
        return next((each for each in reversed(self._checkpoints) if each.run == run), None)
