"""Soft errors: made by the peer that holds the node, as it was told at its start. Confirmed by its record of rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgepeer.emulation.faults.kinds import Flip
from edgepeer.emulation.faults.scene import Unconfirmed
from edgepeer.fabric.documents import SoftError

__all__ = ["FlipFault"]


class FlipFault:
    """One error at a stated node and round.

    Args:
        made: by peer, all that they have written down until now; grows.
    """

    def __init__(self, fault: Flip, made: Mapping[str, Sequence[SoftError]]) -> None:
        self._fault = fault
        self._made = made
        self.target = f"node {fault.node}"
        self.confirmed: dict[str, Any] = {}

    async def inject(self) -> None:
        """Nothing to do: whoever is that node knows."""

    async def lift(self) -> None:
        """Nothing to undo."""

    def look(self) -> bool:
        """Whether it has happened."""
        fault = self._fault
        for peer, errors in self._made.items():
            for error in errors:
                if (error.node, error.round, error.kind, error.place) == (
                    fault.node, fault.span.start, fault.how, fault.place
                ):  # fmt: skip
                    self.target = f"node {fault.node} ({peer})"
                    self.confirmed = {"peer": peer, "round": error.round, "step": error.step}
                    return True
        return False

    def settle(self) -> None:
        """The job is over.

        Raises:
            Unconfirmed: nobody has done it.
        """
        if not self.confirmed:
            raise Unconfirmed(
                f"no peer says that it was node {self._fault.node} in round {self._fault.span.start:.0f} and did that"
            )
