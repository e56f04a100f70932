"""One coded round at one peer: chunk after chunk is computed, and encoded when the root closes the round.

What has been computed is kept for the round, by chunk: a new view, in which this peer may own other slots, costs
nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import numpy as np

from edgepeer.coding.code import GradientCode
from edgepeer.coding.computed import ComputedChunks
from edgepeer.coding.encode import padded
from edgepeer.coding.scheme import CodingScheme
from edgepeer.coding.weighing import weight_in, weight_rows
from edgepeer.errors import ConfigError, ContributionMismatch
from edgepeer.ids import PeerId
from edgepeer.peer.outcome import Arrays, Outcome, Shapes, check_weight, flatten, of_another_kind
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.events import FloatVector
from edgepeer.topology.view import View

__all__ = ["CodedCall", "Gradient", "Pace"]

Gradient: TypeAlias = Callable[[int, int], Awaitable[tuple[Arrays, float]]]
"""(chunk, how many there are) -> (its gradient, what that counts for). The same at every peer that is asked."""
Pace: TypeAlias = Callable[[int], float]
"""(chunk) -> how many seconds it takes at least, on a device that is emulated."""


class CodedCall:
    """One call of `allreduce_chunks`: what this peer computes for its round, and brings of it.

    The vector of a chunk is its gradient times its weight, zeros up to a multiple of the code's blocks, then the weight
    (`weighing`). So the weight of a sum is what the sum itself holds.

    Args:
        round_: the number of the round; 0: of the first one of a run that has not begun.
        scheme: how it is coded.
        dispatch: hands an event to the machine.
        like: the round before, whose gradients probably had the same shape.
    """

    def __init__(
        self,
        round_: int,
        scheme: CodingScheme,
        gradient: Gradient,
        dispatch: Callable[[ev.Event], None],
        pace: Pace | None = None,
        *,
        like: CodedCall | None = None,
    ) -> None:
        self._round = round_
        self._scheme = scheme
        self._gradient = gradient
        self._dispatch = dispatch
        self._pace = pace
        self._view: View | None = None
        self._code: GradientCode | None = None
        self._encoded = False
        """Whether the root has closed the round in this view: what is computed later does not count."""
        self._chunks = ComputedChunks()
        self._shapes: Shapes | None = None
        self._size = 0
        self._dtype: np.dtype[Any] | None = None
        """Of the gradients, once one is computed: what is encoded is of one."""
        self._guess = like.shape_guess if like is not None else None

    def enter(self, view: View, me: PeerId, round_: int) -> None:
        """The round goes on in this view. `round_`: the one in progress there, which is this one, or comes later."""
        if view is self._view and (self._round or not round_):
            return
        self._round = self._round or round_
        self._view, self._encoded = view, False
        self._code = None
        if view.slots:
            with contextlib.suppress(ConfigError):  # the machine finds the same, and gives the round up
                self._code = self._scheme.build(len(view.slots), view.fanout)
        self._chunks.enter(self._code, view.owned.get(me, ()))
        self._say()

    def _say(self) -> None:
        if self._view is not None:
            done = self._chunks.done()
            self._dispatch(ev.ChunksDone(self._view.stamp, self._round, done, self._scheme.name))

    async def compute_next(self) -> bool:
        """Compute a chunk. False if there is nothing left to compute in this view, or no more use in it."""
        code, chunk = self._code, self._chunks.next_chunk()
        if code is None or chunk is None or self._encoded:
            return False
        began = time.monotonic()
        value, weight = await self._gradient(chunk, code.assignment.chunks)
        vector = self._pack(value, weight, code.blocks)
        if self._pace is not None:
            await asyncio.sleep(max(0.0, began + self._pace(chunk) - time.monotonic()))
        if self._code is not None and self._code.chunks == code.chunks:  # else the data are cut otherwise meanwhile
            self._chunks.add(chunk, vector)
            self._say()
        return True

    @np.errstate(all="ignore")  # as in a plain round
    def _pack(self, value: Arrays, weight: float, blocks: int) -> FloatVector:
        flat, shapes = flatten(value)
        weight = check_weight(weight, flat.dtype)
        if self._shapes is not None and (self._shapes, self._dtype) != (shapes, flat.dtype):
            raise ContributionMismatch("the gradients of two chunks differ in shape or type")
        self._shapes, self._size, self._dtype = shapes, flat.size, flat.dtype
        vector = np.zeros(padded(flat.size, blocks) + blocks * blocks, flat.dtype)
        if weight:
            np.multiply(flat, weight, out=vector[: flat.size])
        vector[-blocks * blocks :] = weight_rows(weight, blocks)
        return vector

    def encode(self, asked: fx.EncodeWanted) -> None:
        """The root has closed the round: bring what counts."""
        if self._view is None or (self._view.stamp, self._round) != (asked.epoch, asked.round):
            return  # it is asked again in the new view
        self._encoded = True
        self._dispatch(ev.Encoded(asked.epoch, asked.round, self._chunks.encode(asked.done, asked.narrow)))

    @property
    def shape_guess(self) -> tuple[Shapes, int, np.dtype[Any]] | None:
        """What the gradients of the next round may look like."""
        if self._shapes is None or self._dtype is None:
            return self._guess
        return self._shapes, self._size, self._dtype

    async def learn(self, effect: fx.RoundCommitted) -> None:
        """Know what the gradients look like. Where the first round did without this peer, or this one has another size
        than the last, that takes computing one.

        Raises:
            ContributionMismatch: those in the sum are of another size: with this peer's, there would be no sum.
        """
        blocks, guess = self._scheme.blocks, self._guess
        gradient = effect.sum.size - blocks * blocks
        if self._shapes is None and guess is not None and padded(guess[1], blocks) == gradient:
            self._shapes, self._size, self._dtype = guess
        if self._shapes is None:
            value, _ = await self._gradient(0, self._code.chunks if self._code is not None else 1)
            flat, self._shapes = flatten(value)
            self._size, self._dtype = flat.size, flat.dtype
        if padded(self._size, blocks) != gradient:
            raise of_another_kind(effect, str(gradient), str(self._size))
        if effect.sum.dtype != self._dtype:
            raise of_another_kind(effect, f"{self._size} {effect.sum.dtype}", f"{self._size} {self._dtype}")

    def outcome(self, effect: fx.RoundCommitted, seconds: float) -> Outcome:
        """The round's result in the caller's shapes."""
        assert self._shapes is not None
        blocks = self._scheme.blocks
        return Outcome(
            round=effect.round,
            generation=str(effect.generation),
            epoch=effect.epoch,
            contributors=effect.contributors,
            exact=effect.exact,
            weight=weight_in(effect.sum[-blocks * blocks :], blocks),
            seconds=seconds,
            digest=effect.digest.hex(),
            paths=effect.paths,
            phases=effect.phases,
            vector=effect.sum[: self._size],
            shapes=self._shapes,
            chunks=tuple(chunk for chunk in range(effect.chunks.bit_length()) if effect.chunks >> chunk & 1),
            error=effect.error,
            precision=effect.precision,
        )
