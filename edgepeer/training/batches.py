"""Gradients of one job's batches: the batch of any part of the data in any round, as `sharding` says."""

from __future__ import annotations

from edgepeer.training.datasets import Dataset
from edgepeer.training.job import Job
from edgepeer.training.sharding import Shard, shard_of
from edgepeer.training.trainer import Float32Vector, Trainer

__all__ = ["Batches"]


class Batches:
    """The data are in parts, one to each peer, or to each chunk of a code."""

    def __init__(self, job: Job, data: Dataset, trainer: Trainer) -> None:
        self._job = job
        self._data = data
        self._trainer = trainer
        self._shards: dict[int, Shard] = {}
        self._parts = 0

    def gradient(self, part: int, parts: int, number: int, out: Float32Vector) -> int:
        """Write the gradient of a part's batch in a round to `out`, shape (parameters + 1,), its mean loss last.

        Returns:
            How many samples the batch holds; 0 where the part is empty, `out` is zeros then.
        """
        job, data = self._job, self._data
        if parts != self._parts:
            self._shards, self._parts = {}, parts
        shard = self._shards.get(part)
        if shard is None:
            shard = shard_of(data, position=part, peers=parts, batch_size=job.batch_size, seed=job.seed)
            self._shards[part] = shard
        batch = shard.batch(number)
        if not len(batch):
            out.fill(0)
            return 0
        seed = (job.seed * 1_000_003 + number * 4099 + shard.position) & 0xFFFFFFFF
        result = self._trainer.gradient(data.x_train[batch], data.y_train[batch], out[:-1], seed=seed)
        out[-1] = result.loss
        return result.samples
