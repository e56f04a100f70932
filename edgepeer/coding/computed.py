"""What one peer has computed of a coded round, and what it brings of that. Chunks are computed slot by slot in turn.

What is computed is kept by chunk: who is given other slots in mid-round loses nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.code import GradientCode
from edgepeer.coding.encode import encode, expand

__all__ = ["ComputedChunks"]


class ComputedChunks:
    """The chunks of one round at one peer. All vectors have one shape, (size,), a multiple of the code's blocks."""

    def __init__(self) -> None:
        self._vectors: dict[int, NDArray[Any]] = {}
        self._code: GradientCode | None = None
        self._slots: tuple[int, ...] = ()

    def enter(self, code: GradientCode | None, slots: tuple[int, ...]) -> None:
        """This peer computes for these slots (workers) of the code from now on."""
        if code is None or self._code is None or code.chunks != self._code.chunks:
            self._vectors.clear()  # a chunk is another part of the data
        self._code, self._slots = code, slots if code is not None else ()

    def done(self) -> dict[int, int]:
        """How many chunks of each slot are computed, in the code's order."""
        return {slot: self._done(slot) for slot in self._slots}

    def _order(self, slot: int) -> tuple[int, ...]:
        return self._code.assignment.orders[slot] if self._code is not None else ()

    def _done(self, slot: int) -> int:
        order = self._order(slot)
        return next((at for at, chunk in enumerate(order) if chunk not in self._vectors), len(order))

    def next_chunk(self) -> int | None:
        """What to compute now: for the slot that is furthest behind; None: all is computed."""
        behind = [(done, slot) for slot in self._slots if (done := self._done(slot)) < len(self._order(slot))]
        if not behind:
            return None
        done, slot = min(behind)
        return self._order(slot)[done]

    def add(self, chunk: int, vector: NDArray[Any]) -> None:
        """Chunk `chunk` is computed: `vector`, shape (size,), is kept as it is until the round is over."""
        self._vectors[chunk] = vector

    @np.errstate(all="ignore")  # what comes of such numbers is the application's; others wait for them in any case
    def encode(self, done: tuple[int, ...], narrow: int | None) -> NDArray[Any]:
        """What this peer brings, in new memory, when so much counts as computed of every slot.

        Args:
            done: of each slot; of this peer's, no more than is computed, and something of one at least.
            narrow: bring this slot's vector as it is, not expanded, shape (size // blocks,).

        Returns:
            Shape (size,) unless narrow.
        """
        code = self._code
        assert code is not None
        if narrow is not None:
            return self._of(code, narrow, done)
        brings = code.brings(done)
        slots = [slot for slot in self._slots if brings[slot]]
        if code.blocks == 1 and len(slots) == 1:
            return self._of(code, slots[0], done)
        out = np.zeros_like(next(iter(self._vectors.values())))
        for slot in slots:
            expand(self._of(code, slot, done), code.column(slot, done), out)
        return out

    def _of(self, code: GradientCode, slot: int, done: tuple[int, ...]) -> NDArray[Any]:
        chunks = self._order(slot)[: done[slot]]
        return encode([self._vectors[chunk] for chunk in chunks], code.encoding(slot, done)[: done[slot]])
