"""Whether a model has a size that can be trained here: asked before anything of that size is made.

A vector that is too long for a round is refused everywhere alike. What memory a model takes is an estimate: of the
parameters, what the optimizer remembers, the gradient, and the vectors of a round, each as long as the parameters.
"""

from __future__ import annotations

import math
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from edgepeer.errors import ModelError
from edgepeer.training.form import Form
from edgepeer.training.models import first_line
from edgepeer.wire.codec import MAX_PAYLOAD_BYTES

__all__ = [
    "VECTORS",
    "available_memory",
    "check_memory",
    "check_size",
    "count_parameters",
    "dense_size",
    "has_unmade",
    "memory_needed",
    "parameters_of",
]

VECTORS: Final = 8
"""How many vectors a peer with two children has at once, besides what its optimizer remembers: the parameters, two of
the gradient, its children's, the partial sum, the result, and the one before it."""
_CGROUP: Final = Path("/sys/fs/cgroup")
_SECOND_VERSION: Final = ("memory.max", "memory.current", "inactive_file")
"""Of a control group: how much it may have, has, and has of files, which the kernel lets go of where that is short."""
_FIRST_VERSION: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_ANY: Final = 1 << 62


def dense_size(form: Form, hidden: Sequence[int]) -> int:
    """Parameters of a dense network."""
    return sum((rows + 1) * columns for rows, columns in pairwise((form.features, *hidden, form.outputs)))


def count_parameters(build: Callable[[], Any], input_shape: tuple[int, ...]) -> int:
    """Parameters of the Keras model that `build` makes, without making any of them.

    Args:
        input_shape: of one sample, for a model that is built when it is called.

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
                if not model.built:
                    model(keras.KerasTensor((1, *input_shape)))
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


def has_unmade(model: Any) -> bool:
    """Whether some of a Keras model's variables are those of a model that was only counted."""
    return any(getattr(variable, "_value", variable) is None for variable in model.variables)


def memory_needed(parameters: int, slots: int) -> int:
    """Bytes that it takes, roughly, to train a model of so many parameters."""
    return 4 * parameters * (VECTORS + slots)


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
    check_memory(f"{what}: has {parameters:,} parameters, for which", memory_needed(parameters, slots), memory)


def check_memory(what: str, needed: int, memory: int | None) -> None:
    """Refuse that for which so many bytes are needed, where they aren't there; `what` and `memory`: as of `check_size`.

    Raises:
        ModelError: they aren't.
    """
    there = available_memory() if memory is None else memory
    if needed > there:
        raise ModelError(
            f"{what} this device needs about {needed >> 20} MiB of memory, "
            f"and {there >> 20} MiB are {'to be had' if memory is None else 'allowed (memory)'}"
        )


def available_memory() -> int:
    """Bytes that can be had without anything being swapped out, killed or refused, as far as the kernel says."""
    return max(0, min(_of_machine(), _of_process(), *_of_groups()))


def _of_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return _ANY


def _of_process() -> int:
    """What is left of the address space that this process may have (`ulimit -v`)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _ANY
    return _ANY if limit == resource.RLIM_INFINITY else limit - pages * resource.getpagesize()


def _of_groups() -> Iterator[int]:
    """What is left of what the service, or the container, may have: of every group around this process."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _CGROUP / "memory" if controllers else _CGROUP
        at = root / group.lstrip("/")
        for directory in (at, *at.parents):
            yield _of_group(directory, *(_FIRST_VERSION if controllers else _SECOND_VERSION))


def _of_group(directory: Path, most: str, current: str, let_go: str) -> int:
    try:
        limit, used = ((directory / name).read_text().strip() for name in (most, current))
        if limit == "max":
            return _ANY
        stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
        return max(0, int(limit) - int(used) + int(stat.get(let_go, 0)))
    except (OSError, ValueError):
        return _ANY
