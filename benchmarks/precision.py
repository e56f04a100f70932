"""What rounding costs a training: MNIST by 7 peers whose vectors travel as float32, bf16 or int8, rounded anew at every
hop of the tree, with and without error feedback; in one process, on the very batches of a job, and with its model.

Error feedback: each peer keeps what its own rounding has taken from the sum, at the root from the result, and adds it
to what it brings to the next round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import timeit
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import positive, show, warn_if_busy, write_json
from numpy.typing import NDArray

from edgepeer.errors import EdgepeerError
from edgepeer.topology import tree
from edgepeer.training.batches import Batches
from edgepeer.training.build import make_trainer
from edgepeer.training.datasets import Dataset, load_dataset
from edgepeer.training.job import DESCENT, Job, new_job
from edgepeer.wire.encoding import codec_of
from edgepeer.wire.precision import PRECISIONS, Precision, encoded_bytes

Vector = NDArray[np.float32]

_FANOUT = 2
_COLUMNS = {
    "mode": "precision",
    "bytes": "bytes",
    "encode": "encode ms",
    "decode": "decode ms",
    "accuracy": "accuracy",
    "worst": "worst seed",
    "behind": "behind float32",
    "lost": "rounding / sum",
}


class Mode(NamedTuple):
    """A column of the comparison."""

    precision: Precision
    feedback: bool = False

    def __str__(self) -> str:
        return self.precision + (" with feedback" if self.feedback else "")


MODES = (Mode("float32"), *(Mode(p, feedback) for p in PRECISIONS if p != "float32" for feedback in (False, True)))


class Tree:
    """The sum of the peers' vectors, as a tree of them makes it."""

    def __init__(self, mode: Mode, peers: int, elements: int) -> None:
        self._codec = codec_of(mode.precision)
        self._feedback = mode.feedback
        self._data = bytearray(encoded_bytes(mode.precision, elements))
        self._travelled = np.empty(elements, np.float32)
        self._kept = np.zeros((peers, elements) if mode.feedback else (0, 0), np.float32)
        self.lost: list[float] = []
        """By round, how far the result is off, as a share of the sum, both as lengths."""

    def sum(self, vectors: list[Vector]) -> Vector:
        """Of one round. Changes the vectors."""
        exact: Vector = np.sum(vectors, axis=0)
        for position in range(len(vectors) - 1, -1, -1):
            if self._feedback:
                vectors[position] += self._kept[position]
            for child in tree.children(position, _FANOUT, len(vectors)):
                vectors[position] += vectors[child]
            self._travel(position, vectors[position])
        self.lost.append(float(np.linalg.norm(vectors[0] - exact) / np.linalg.norm(exact)))
        return vectors[0]

    def _travel(self, position: int, vector: Vector) -> None:
        """To the parent, or, of the root, as the result to all."""
        if self._codec is None:
            return
        if not self._codec.encode(vector, self._data):
            raise SystemExit("the training diverges: take a smaller --learning-rate")
        if wrong := self._codec.decode(self._data, self._travelled):
            raise SystemExit(f"what was encoded {wrong}")
        if self._feedback:
            np.subtract(vector, self._travelled, out=self._kept[position])
        vector[:] = self._travelled


def main() -> int:
    arguments = _arguments()
    warn_if_busy()
    try:
        data = load_dataset(arguments.dataset, data_dir=arguments.data_dir)
    except EdgepeerError as error:
        print(error, file=sys.stderr)
        return 1
    rows = measure(arguments, data)
    title = f"{arguments.dataset}, {arguments.peers} peers, {arguments.rounds} rounds, {arguments.seeds} seeds"
    show(title, _COLUMNS, [_line(row) for row in rows])
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


def measure(arguments: argparse.Namespace, data: Dataset) -> list[dict[str, Any]]:
    """A row for each mode."""
    runs: dict[Mode, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    for seed in range(arguments.seeds):
        job = new_job(
            trainer="numpy",
            dataset=arguments.dataset,
            optimizer=arguments.optimizer,
            learning_rate=arguments.learning_rate,
            schedule=arguments.schedule,
            rounds=arguments.rounds,
            seed=seed,
        )
        for mode in MODES:
            runs[mode].append(train(job, data, mode, arguments.peers))
            print(f"seed {seed}, {mode}: {runs[mode][-1][0]:.2%}", file=sys.stderr)
    size = make_trainer(job, data).size
    baseline = statistics.mean(accuracy for accuracy, _ in runs[MODES[0]])
    return [
        {
            "mode": str(mode),
            "precision": mode.precision,
            "feedback": mode.feedback,
            "bytes": encoded_bytes(mode.precision, size),
            **_speed(mode.precision, size),
            "accuracies": [accuracy for accuracy, _ in found],
            "accuracy": (mean := statistics.mean(accuracy for accuracy, _ in found)),
            "behind": baseline - mean,
            "lost": statistics.mean(lost for _, lost in found),
        }
        for mode, found in runs.items()
    ]


def train(job: Job, data: Dataset, mode: Mode, peers: int) -> tuple[float, float]:
    """The accuracy on the test data at the end, and how far sums were off on average."""
    trainer = make_trainer(job, data)
    batches = Batches(job, data, trainer, lambda: data)
    vectors = [np.empty(trainer.size + 1, np.float32) for _ in range(peers)]
    added = Tree(mode, peers, trainer.size)
    for number in range(1, job.rounds + 1):
        samples = [batches.gradient(position, peers, number, vector) for position, vector in enumerate(vectors)]
        for vector, count in zip(vectors, samples, strict=True):
            vector *= np.float32(count)
        # The loss has a block of its own in a job, so gradients are not rounded as coarsely as it is.
        total = added.sum([vector[:-1] for vector in vectors])
        trainer.apply(total / np.float32(sum(samples)))
    accuracy = trainer.evaluate(data.x_test, data.y_test).accuracy
    assert accuracy is not None
    return accuracy, statistics.mean(added.lost)


def _speed(precision: Precision, elements: int) -> dict[str, float | None]:
    """Seconds that encoding and decoding a vector take, the best of many."""
    codec = codec_of(precision)
    if codec is None:
        return {"encode_s": None, "decode_s": None}
    values = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
    out, data = np.empty_like(values), bytearray(encoded_bytes(precision, elements))
    return {
        "encode_s": min(timeit.repeat(lambda: codec.encode(values, data), number=1, repeat=50)),
        "decode_s": min(timeit.repeat(lambda: codec.decode(data, out), number=1, repeat=50)),
    }


def _line(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the JSON file as a person wants to read it."""
    return row | {
        "accuracy": f"{row['accuracy']:.2%}",
        "worst": f"{min(row['accuracies']):.2%}",
        "behind": f"{100 * row['behind']:+.2f} points",
        "lost": f"{row['lost']:.1e}",
        **{name: f"{1e3 * row[f'{name}_s']:.2f}" if row[f"{name}_s"] else None for name in ("encode", "decode")},
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="mnist", help="default: mnist")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where the data set's files are")
    parser.add_argument("--peers", type=positive, default=7, help="default: 7")
    parser.add_argument("--rounds", type=positive, default=500, help="default: 500")
    parser.add_argument("--seeds", type=positive, default=5, help="default: 5")
    parser.add_argument("--optimizer", default=DESCENT.optimizer, help=f"default: {DESCENT.optimizer}")
    parser.add_argument("--learning-rate", type=float, default=DESCENT.learning_rate, help="default: a job's")
    parser.add_argument("--schedule", default="constant", help="of the learning rate; default: constant")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
