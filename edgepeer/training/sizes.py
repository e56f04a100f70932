"""Whether a model has a size that can be trained here: asked before anything of that size is made.

A vector that is too long for a round is refused everywhere alike. What memory a model takes is an estimate: of the
parameters, what the optimizer remembers, the gradient, and the vectors of a round, each as long as the parameters.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from edgepeer.errors import ModelError
from edgepeer.training.form import Form
from edgepeer.training.models import first_line
from edgepeer.wire.codec import MAX_PAYLOAD_BYTES

__all__ = ["available_memory", "check_size", "count_parameters", "dense_size", "memory_needed", "parameters_of"]

_VECTORS: Final = 8
"""How many vectors a peer with two children has at once, besides what its optimizer remembers: the parameters, two of
the gradient, its children's, the partial sum, the result, and the one before it."""
_CGROUP: Final = Path("/sys/fs/cgroup")


def dense_size(form: Form, hidden: Sequence[int]) -> int:
    """Parameters of a dense network."""
    return sum((rows + 1) * columns for rows, columns in pairwise((form.features, *hidden, form.outputs)))


def count_parameters(build: Callable[[], Any]) -> int:
    """Parameters of the Keras model that `build` makes, without making any of them.

    Raises:
        ModelError: as `build` does, or the model can't be made.
    """
    from edgepeer.training.keras_setup import load_keras

    keras = load_keras()
    found: list[int | BaseException] = []

    def count() -> None:
        try:
            with keras.StatelessScope(initialize_variables=False):
                model = build()
                found.append(parameters_of(model))
        except BaseException as error:
            found.append(error)

    # Keras notes for each thread which variables it has still to make: with this one, they are forgotten.
    thread = threading.Thread(target=count, name="counting")
    thread.start()
    thread.join()
    (answer,) = found
    if isinstance(answer, ModelError):
        raise answer
    if isinstance(answer, BaseException):
        raise ModelError(f"the model's parameters can't be counted: {first_line(answer)}") from answer
    return answer


def parameters_of(model: Any) -> int:
    """Parameters of a Keras model that can be trained, as far as it is built."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def memory_needed(parameters: int, slots: int) -> int:
    """Bytes that it takes, roughly, to train a model of so many parameters."""
    return 4 * parameters * (_VECTORS + slots)


def check_size(what: str, parameters: int, *, slots: int, memory: int | None = None) -> None:
    """Refuse a model that is too large.

    Args:
        what: how a message calls it.
        slots: how many numbers the optimizer remembers of each parameter.
        memory: how many bytes the model may take; None: what the machine has to give.

    Raises:
        ModelError: it is.
    """
    if 4 * (parameters + 1) > MAX_PAYLOAD_BYTES:
        raise ModelError(
            f"{what}: has {parameters:,} parameters; {MAX_PAYLOAD_BYTES // 4 - 1:,}, which make a vector of "
            f"{MAX_PAYLOAD_BYTES >> 20} MiB, are the most that peers can add up"
        )
    needed, there = memory_needed(parameters, slots), available_memory() if memory is None else memory
    if needed > there:
        raise ModelError(
            f"{what}: has {parameters:,} parameters, for which this device needs about {needed >> 20} MiB of memory, "
            f"and {there >> 20} MiB are {'to be had' if memory is None else 'allowed (memory)'}"
        )


def available_memory() -> int:
    """Bytes that can be had without anything being swapped out or killed, as far as the kernel says."""
    most = 1 << 62
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                most = int(line.split()[1]) << 10
        group = Path("/proc/self/cgroup").read_text().partition("::")[2].strip()
    except (OSError, ValueError, IndexError):
        return most
    at = _CGROUP / group.lstrip("/")
    for directory in (at, *at.parents):
        try:
            limit, used = ((directory / name).read_text().strip() for name in ("memory.max", "memory.current"))
            if limit != "max":
                stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
                files = int(stat.get("inactive_file", 0))  # the kernel lets go of them where memory is short
                most = min(most, max(0, int(limit) - int(used) + files))
        except (OSError, ValueError):
            continue
    return most
