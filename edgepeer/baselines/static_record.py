"""What a node of the static fault-tolerant tree knows of one round."""

from __future__ import annotations

from typing import Final

from edgepeer.ids import PeerId
from edgepeer.protocol.events import FloatVector
from edgepeer.wire.frames import Commit

__all__ = ["RESULT", "Record", "Sum"]

RESULT: Final = -1
"""Stands for the result where others name whose data are meant."""


class Sum:
    """What some node has added up."""

    __slots__ = ("contributors", "vector", "weight")

    def __init__(self, vector: FloatVector, contributors: int, weight: float) -> None:
        self.vector, self.contributors, self.weight = vector, contributors, weight


class Record:
    """What is known of one round. Nodes are positions."""

    __slots__ = ("arriving", "bcast_received", "commit", "mine", "owed", "reduce_received", "sums", "total", "via")

    def __init__(self) -> None:
        self.sums: dict[int, Sum] = {}
        """Of the children."""
        self.mine: Sum | None = None
        """Own vector and the children's: what goes up."""
        self.total: FloatVector | None = None
        self.commit: Commit | None = None
        self.arriving: dict[tuple[int, PeerId], FloatVector] = {}
        """By whose data they are, or RESULT, and who sends them."""
        self.reduce_received: set[int] = set()
        """Whose data their parent has confirmed."""
        self.bcast_received: set[int] = set()
        """Who has the result."""
        self.owed: set[int] = set()
        """To whom the result is due as soon as it is here."""
        self.via: dict[int, PeerId] = {}
        """Parent or child: who has brought what it should have."""
