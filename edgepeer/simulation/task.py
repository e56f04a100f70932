"""What the applications of a simulated fleet have to do: rounds, what each brings to them, how long it takes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from edgepeer.coding.encode import padded
from edgepeer.coding.scheme import CodingScheme, parse_scheme
from edgepeer.coding.weighing import weight_rows
from edgepeer.errors import ConfigError
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.events import FloatVector
from edgepeer.simulation.split_app import SplitWork
from edgepeer.topology.view import View
from edgepeer.wire.precision import Precision

__all__ = ["OTHER_CALLS", "Task", "Workload", "another_scheme", "chunk_vector", "vector_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What the simulated application does."""

    rounds: int = 10
    size: int = 16
    """Elements of each vector."""
    dtype: str = "<f4"
    precision: Precision = "float32"
    """What vectors travel as."""
    compute_s: float = 0.01
    """Mean compute time of a round, exponentially distributed."""
    run: str | None = "run"
    """With a run, joiners receive state; None: plain allreduce calls."""
    wait_for: int = 1
    """How many peers must be in before the run starts."""
    checkpoint: int = 0
    """After how many rounds of a run each device has another checkpoint; 0: they keep nothing over restarts."""
    weights: tuple[float, ...] = (0.5, 1.0, 2.0, 0.0)
    """Of the contributions, in turn. What has the weight 0 is full of NaN."""
    odd: float = 0.0
    """The part of the contributions that no sum can be of: longer than the others, or, if sums are rounded, not finite;
    of coded rounds, of another call (`OTHER_CALLS`). Each life of a peer brings its own."""


OTHER_CALLS: Final = ("plain", "without a code", "another code")
"""What applications do in rounds that are coded at the others: bring a vector as it is, and want no code, or do not say
so; compute for another code."""


class Task:
    """The same for all peers of a fleet."""

    def __init__(
        self,
        workload: Workload,
        rng: random.Random,
        *,
        code: str = "none",
        wait: str = "exact",
        split: SplitWork | None,
    ) -> None:
        self.workload = workload
        self._rng = rng
        self.rounds = workload.rounds
        self.run_id = workload.run or ""
        self.run = (workload.run, workload.wait_for) if workload.run else None
        self._runs = 1
        self._odd = f"{rng.random()}" if workload.odd else ""
        self.brought: dict[tuple[PeerId, int], tuple[FloatVector, float]] = {}
        """What a peer contributes to a round instead of what it would."""
        self.scheme = parse_scheme(code, wait)
        """How rounds are coded, if they are: then Workload.compute_s is for a chunk ..."""
        self.other_scheme = another_scheme(code)
        """... and how they are at a peer whose program was given another code."""
        self.split = split
        """What is trained, if it is a network that is divided: then Workload.size says nothing, and its rounds are what
        that asks for."""

    def ask_for_another_run(self, peers: int) -> None:
        """From now on another run is wanted, of at least so many peers."""
        self._runs += 1
        self.run_id = f"{self.workload.run}{self._runs}"
        self.run = self.run_id, peers

    def compute_s(self) -> float:
        """How long an application is busy with something."""
        return self._rng.expovariate(1 / self.workload.compute_s) if self.workload.compute_s > 0 else 0.0

    def weight(self, peer: PeerId, number: int) -> float:
        return self.workload.weights[(sum(peer.encode()) + number) % len(self.workload.weights)]

    def contribution(self, peer: PeerId, number: int, run: str) -> tuple[FloatVector, float]:
        if (brought := self.brought.get((peer, number))) is not None:
            return brought
        name = peer if run in ("", self.workload.run) else f"{peer} in {run}"
        return vector_of(name, number, self.workload.size, self.workload.dtype), self.weight(peer, number)

    def summed(self, peer: PeerId, number: int, run: str, size: int) -> tuple[FloatVector, float]:
        """What it was, if it is in a sum of that size: all may have brought longer vectors, as one peer alone does."""
        vector, weight = self.contribution(peer, number, run)
        return (_longer(vector) if self._odd and size == vector.size + 1 else vector), weight

    def brought_by(self, peer: PeerId, number: int, run: str, life: int) -> tuple[FloatVector, float]:
        """What the application of that life of a peer hands to the machine."""
        vector, weight = self.contribution(peer, number, run)
        if (pick := self._is_odd(peer, life, number)) is not None:
            if self.workload.precision == "float32" or pick.random() < 0.5:
                vector = _longer(vector)
            else:
                vector = np.full_like(vector, np.inf)
        return (np.full_like(vector, np.nan) if weight == 0 else vector), weight

    def other_call(self, peer: PeerId, life: int, number: int) -> str:
        """Of a coded round: which of OTHER_CALLS that life of a peer takes part with; empty: with its chunks."""
        pick = self._is_odd(peer, life, number)
        return pick.choice(OTHER_CALLS) if pick is not None else ""

    def _is_odd(self, peer: PeerId, life: int, number: int) -> random.Random | None:
        """Whether it does not fit, what that life of a peer brings to a round. If so: what its kind is picked by."""
        pick = random.Random(f"{self._odd} {peer} {life} {number}") if self._odd else None
        return pick if pick is not None and pick.random() < self.workload.odd else None

    def all_chunks(self, outcome: fx.RoundCommitted, views: Iterable[View]) -> list[FloatVector]:
        """Of a coded round: the plain sum over all chunks, for each number of slots that its view may have had.

        An outcome names the generation in which it was decided; what is held from an earlier one is put forward again
        as it is, so its view is any of that number whose members all contributors are.
        """
        assert self.scheme is not None
        possible = [view for view in views if view.epoch == outcome.epoch and view.slots]
        load, sums = self.workload, []
        for slots, fanout in sorted(
            {(len(v.slots), v.fanout) for v in possible if set(outcome.contributors) <= set(v.ids)}
        ):
            try:
                code = self.scheme.build(slots, fanout)
            except ConfigError:  # too small a view for this code: nothing can have been added up in it
                continue
            vectors = [chunk_vector(c, outcome.round, load.size, "<f8", code.blocks) for c in range(code.chunks)]
            sums.append(np.asarray(np.sum(vectors, axis=0)))
        return sums


def another_scheme(code: str) -> CodingScheme:
    """How rounds are coded at a peer whose program was given another code than that one."""
    scheme = parse_scheme("first" if not code.startswith("first") else "cyclic:s=1")
    assert scheme is not None
    return scheme


def _longer(vector: FloatVector) -> FloatVector:
    return np.append(vector, vector.dtype.type(1))


def vector_of(peer: str, number: int, size: int, dtype: str = "<f4") -> FloatVector:
    """A vector that depends on all its arguments and on nothing else."""
    seed = np.frombuffer(f"{peer}/{number}".encode(), dtype=np.uint8).astype(np.uint32)
    return np.random.Generator(np.random.PCG64(seed.tolist())).standard_normal(size).astype(dtype)


def chunk_vector(chunk: int, number: int, size: int, dtype: str, blocks: int) -> FloatVector:
    """A chunk's gradient in a round, zeros up to a multiple of `blocks`, then what it counts for."""
    vector = np.zeros(padded(size, blocks) + blocks * blocks, dtype)
    seed = np.random.Generator(np.random.PCG64([chunk, number]))
    vector[:size] = seed.standard_normal(size)
    vector[-blocks * blocks :] = weight_rows(1 + chunk % 3, blocks)
    return vector
