"""What one device computes for a job: the gradients of its batches, or of its chunks, as slowly as it is to be.

Blocking work is done by the worker's thread; waiting, on the event loop, ends as soon as the round does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np

from edgepeer.coding.scheme import CodingScheme
from edgepeer.errors import NotReady
from edgepeer.peer.api import Peer
from edgepeer.peer.coded_call import Gradient
from edgepeer.peer.pacing import Pacing
from edgepeer.topology.view import View
from edgepeer.training.batches import Batches
from edgepeer.training.job import Job
from edgepeer.training.precision_choice import vector_size
from edgepeer.training.trainer import Float32Vector

__all__ = ["Computing"]


class Computing:
    """The gradients of one job at one peer. The last element of each is the batch's mean loss.

    Args:
        size: of the model, in parameters.
        scheme: how rounds are coded; None: they are not.
    """

    def __init__(
        self,
        peer: Peer,
        job: Job,
        batches: Batches,
        size: int,
        worker: Executor,
        pacing: Pacing,
        scheme: CodingScheme | None = None,
    ) -> None:
        self._peer = peer
        self._job = job
        self._batches = batches
        self._size = size
        self._worker = worker
        self._pacing = pacing
        self._scheme = scheme
        self._vector = np.zeros(vector_size(size, job.precision), dtype=np.float32)
        self.loss_at = self._vector.size - 1
        """Which element of a round's vector is the loss: those before it are the gradient, and zeros."""
        self.samples = 0
        """How many samples went through the model so far."""
        self.seconds = 0.0
        """How much of the round's time it took until now."""

    async def batch(self, view: View, number: int) -> tuple[Float32Vector, int]:
        """This peer's gradient in a round, in memory that the next one takes again, and of how many samples it is."""
        self.seconds = 0.0
        position = view.position(self._peer.id)
        samples = await self._gradient(view, position, view.size, number, self._vector, lambda: None)
        return self._vector, samples

    def chunks_in(self, view: View) -> int:
        """In how many chunks the data are; 0 where rounds are not coded."""
        if self._scheme is None or not view.slots:
            return 0
        return self._scheme.build(len(view.slots), view.fanout).chunks

    def chunks(self, number: int) -> Gradient:
        """The gradients of a round's chunks."""
        self.seconds = 0.0

        async def gradient(chunk: int, chunks: int) -> tuple[Float32Vector, float]:
            view = self._peer.view
            if view is None or not view.slots or self._scheme is None:
                raise NotReady("this peer is in no view of coded rounds any more")
            code = self._scheme.build(len(view.slots), view.fanout)
            mine = {part for slot in view.owned.get(self._peer.id, ()) for part in code.assignment.orders[slot]}
            # However many chunks there are: as many samples in a round as without a code.
            share = len(view.slots) / chunks
            vector = np.zeros(self._size + 1, dtype=np.float32)
            samples = await self._gradient(
                view, chunk, chunks, number, vector, lambda: self._batches.keep(mine, chunks), share
            )
            return vector, samples

        return gradient

    async def _gradient(
        self,
        view: View,
        part: int,
        parts: int,
        number: int,
        vector: Float32Vector,
        prepare: Callable[[], None],
        share: float = 1.0,
    ) -> int:
        size = max(1, round(share * self._job.batch_size))

        def compute() -> int:
            prepare()
            return self._batches.gradient(part, parts, number, vector, size=size)

        began = time.monotonic()
        samples = await asyncio.get_running_loop().run_in_executor(self._worker, compute)
        self.samples += samples
        if self._peer.committed < number:  # else this is only to see how long gradients are
            await self._pacing.rest(began, round_=number, chunk=part, seed=self._job.seed, among=view.ids, share=share)
        self.seconds += time.monotonic() - began
        return samples
