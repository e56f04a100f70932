"""Gradients of one job's batches: the batch of any part of the data in any round, as `sharding` says.

The data are in parts, one to each peer, or to each chunk of a code. Where it is known which parts a peer computes, only
their samples stay in memory; those of others are loaded again when they are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from numpy.typing import NDArray

from edgepeer.errors import DataError
from edgepeer.training.datasets import Dataset
from edgepeer.training.job import Job
from edgepeer.training.sharding import Shard
from edgepeer.training.trainer import Float32Vector, Trainer

__all__ = ["Batches"]


class Batches:
    """Of one job on one device. May block for long: not for an event loop.

    Args:
        data: as `reload` has just returned it.
        reload: loads the data set.
    """

    def __init__(self, job: Job, data: Dataset, trainer: Trainer, reload: Callable[[], Dataset]) -> None:
        self._job = job
        self._trainer = trainer
        self._reload = reload
        self._all: Dataset | None = data
        """All samples; None where only those of `_held` are in memory."""
        self._local = data.local
        self._samples = len(data.x_train)
        self._summary = data.summary
        self._parts = 0
        self._size = 0
        self._shards: dict[int, Shard] = {}
        self._held: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}

    def keep(self, wanted: Collection[int], parts: int) -> None:
        """Hold the samples of these parts only, of so many.

        Raises:
            DataError: they had been let go, and can't be loaded any more.
        """
        self._cut(parts, self._size)
        if self._all is None and self._held.keys() == set(wanted):
            return
        self._hold(wanted)
        self._held = {part: self._held[part] for part in wanted}
        self._all = None

    @property
    def held(self) -> int:
        """How many training samples are in memory."""
        return len(self._all.x_train) if self._all is not None else sum(len(y) for _, y in self._held.values())

    def gradient(self, part: int, parts: int, number: int, out: Float32Vector, *, size: int = 0) -> int:
        """Write the gradient of a part's batch in a round to `out`, and its mean loss to the last element of it. What
        lies between stays as it is.

        Args:
            size: the most samples that the batch holds; 0: as many as the job says.

        Returns:
            How many samples the batch holds; 0 where the part is empty, `out` is zeros then.

        Raises:
            DataError: the samples had been let go, and can't be loaded any more.
        """
        job = self._job
        self._cut(parts, size or job.batch_size)
        shard = self._shard(part)
        within = shard.within(number)
        if not len(within):
            out.fill(0)
            return 0
        if self._all is not None:
            rows = shard.indices[within]
            x, y = self._all.x_train[rows], self._all.y_train[rows]
        else:
            self._hold([part])
            x, y = (array[within] for array in self._held[part])
        # By the part, also where all train on shards that are whole: what dropout takes is to be everywhere another.
        seed = (job.seed * 1_000_003 + number * 4099 + part) & 0xFFFFFFFF
        result = self._trainer.gradient(x, y, out[: self._trainer.size], seed=seed)
        out[-1] = result.loss
        return result.samples

    def _cut(self, parts: int, size: int) -> None:
        """The data are in so many parts from now on, their batches of that size."""
        if parts != self._parts:
            self._held = {}
        if (parts, size) != (self._parts, self._size):
            self._shards, self._parts, self._size = {}, parts, size

    def _shard(self, part: int) -> Shard:
        if part not in self._shards:
            position, peers = (0, 1) if self._local else (part, self._parts)
            self._shards[part] = Shard(
                samples=self._samples,
                position=position,
                peers=peers,
                batch_size=self._size or self._job.batch_size,
                seed=self._job.seed,
            )
        return self._shards[part]

    def _hold(self, parts: Collection[int]) -> None:
        missing = [part for part in parts if part not in self._held]
        if not missing:
            return
        data = self._all if self._all is not None else self._reload()
        if data is not self._all and (now := data.summary) != self._summary:
            raise DataError(
                f"dataset {self._job.dataset}: has changed ({now}) since the job began ({self._summary}); leave it "
                "alone while it is in use"
            )
        for part in missing:
            rows = self._shard(part).indices
            self._held[part] = data.x_train[rows], data.y_train[rows]
