"""Training under soft errors in real processes, one a node of the split: what soft_errors.py computes in one process,
here with everything that is sent between them."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import emulate

from edgepeer.training.split.named import parse_split

__all__ = ["in_processes"]

_WARM_UP = 5


def in_processes(
    name: str, hidden: tuple[int, ...], *, dataset: str, data_dir: Path | None, batch: int, rate: float, p: float,
    rounds: int,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A fleet without errors, and one with them: O1, O2 and O3 of every node go wrong with probability p."""
    split = parse_split(name, np.dtype(np.float32))
    with tempfile.TemporaryDirectory(prefix="edgepeer-soft-errors-") as folder:
        home = Path(folder)
        model = home / "model.json"
        model.write_text(_config(hidden))
        job: dict[str, object] = {
            "peers": split.nodes, "split": name, "model-config": model, "dataset": dataset, "batch-size": batch,
            "learning-rate": rate, "rounds": rounds, "eval-every": rounds, "network": "none", "broker": "embedded",
        }  # fmt: skip
        if data_dir is not None:
            job["data-dir"] = data_dir
        for chance in (0.0, p):
            errors = [f"--soft-errors=p={chance:g},steps=O1+O2+O3"] if chance else []
            report = emulate(job, *errors, out=home / f"p{chance:g}", timeout_s=1800)
            told, detail = report["split"], report["rounds_detail"]
            yield {
                "table": "processes",
                "split": name,
                "peers": split.nodes,
                "p": chance,
                "iterations": report["rounds"],
                "errors": told["injected"],
                **{key: told[key] for key in ("found", "reverted", "harmless", "undetected")},
                **{key: told[key] for key in ("corrected", "regenerated", "restores")},
                "accuracy": report["final"]["accuracy"],
                "iteration_s": statistics.median(row["seconds"] for row in detail if row["round"] > _WARM_UP),
                "seconds": sum(row["seconds"] for row in detail),
            }


def _config(hidden: tuple[int, ...]) -> str:
    """A Keras model as JSON: relu layers, and one output a class."""
    layers: list[dict[str, object]] = [{"class_name": "Flatten", "config": {"name": "flat"}}]
    for at, units in enumerate(hidden):
        layers.append({"class_name": "Dense", "config": {"name": f"hidden{at}", "units": units, "activation": "relu"}})
    layers.append({"class_name": "Dense", "config": {"name": "out", "units": 10, "activation": "softmax"}})
    return json.dumps({"class_name": "Sequential", "config": {"layers": layers}})
