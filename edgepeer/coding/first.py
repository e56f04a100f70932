"""Take the first workers that are ready, and do without the others' chunks: the usual way around stragglers."""

from __future__ import annotations

from collections.abc import Sequence

from edgepeer.coding.code import Recovery
from edgepeer.coding.uncoded import UncodedCode
from edgepeer.errors import ConfigError

__all__ = ["FirstCode"]


class FirstCode(UncodedCode):
    """Uncoded, but all but `spared` workers are enough. Exact only if all of them are there.

    Source: "SGD" in the comparisons of Reisizadeh, Prakash, Pedarsani, Avestimehr 2021 (CodedReduce).
    """

    def __init__(self, name: str, workers: int, spared: int) -> None:
        if not 0 <= spared < workers:
            raise ConfigError(f"s, the workers to do without, must be 0 to {workers - 1}, not {spared}")
        super().__init__(name, workers)
        self.spared = spared

    def recovery(self, done: Sequence[int]) -> Recovery:
        found = self._decoding_of(done)
        missing = self.workers - int(found.coverage.sum())
        return Recovery(found.exact, found.coverage, found.residual, enough=missing <= self.spared)
