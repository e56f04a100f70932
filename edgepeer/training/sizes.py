"""Whether a model has a size that can be trained here: asked before anything of that size is made.

A vector that is too long for a round is refused everywhere alike, and so is a state that is too long to be handed on.
What memory a model takes is an estimate: of the parameters, what the optimizer remembers, the gradient, and the vectors
of a round, each as long as the parameters; of the variables that aren't trained, which have none of these; and of what
a step computes on its way from the samples to the loss and back.
"""

from __future__ import annotations

import math
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from edgepeer.errors import ModelError
from edgepeer.training.form import Form
from edgepeer.training.models import first_line
from edgepeer.training.state import STATE_LIMIT_BYTES
from edgepeer.wire.codec import MAX_PAYLOAD_BYTES

__all__ = [
    "VECTORS",
    "ModelSize",
    "available_memory",
    "check_memory",
    "check_size",
    "count_model",
    "dense_size",
    "evaluation_batch",
    "has_unmade",
    "memory_needed",
    "size_of",
]

VECTORS: Final = 8
"""How many vectors a peer with two children has at once, besides what its optimizer remembers: the parameters, two of
the gradient, its children's, the partial sum, the result, and the one before it."""
_FIXED: Final = 5
"""How often there is at once what isn't trained, at most: while it is drawn, several steps of that, and what has been
made of it; later itself, and two or three copies while a state is packed."""
_EVALUATION_BATCH: Final = 512
_EVALUATION_BYTES: Final = 16 << 20
_NO_MEMORY: Final = frozenset(
    ("Const", "ExpandDims", "Identity", "Placeholder", "ReadVariableOp", "Reshape", "Shape", "Squeeze", "StopGradient")
)
"""TensorFlow's operations that put out what is there already, or next to nothing."""
_CGROUP: Final = Path("/sys/fs/cgroup")
_SECOND_VERSION: Final = ("memory.max", "memory.current", "inactive_file")
"""Of a control group: how much it may have, has, and has of files, which the kernel lets go of where that is short."""
_FIRST_VERSION: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_ANY: Final = 1 << 62


class ModelSize(NamedTuple):
    """How large a model is."""

    parameters: int
    """Numbers that are trained."""
    fixed: int = 0
    """Other numbers that it holds: of layers that are frozen, moving statistics, random states."""
    fixed_bytes: int = 0
    """What they take."""
    step_bytes: int = 0
    """What a step computes; 0 where that can't be told."""


def dense_size(form: Form, hidden: Sequence[int], batch: int) -> ModelSize:
    """Of a dense network, and of its steps with so many samples. Its layers' outputs are there four times, as Keras has
    them: as relu and dropout leave them, the random numbers of the dropout, the gradient; the samples once."""
    widths = (form.features, *hidden, form.outputs)
    parameters = sum((rows + 1) * columns for rows, columns in pairwise(widths))
    return ModelSize(parameters, step_bytes=4 * batch * (form.features + 4 * sum(widths[1:])))


def count_model(build: Callable[[], Any], input_shape: tuple[int, ...], batch: int) -> ModelSize:
    """The size of the Keras model that `build` makes, without making any of its variables.

    Args:
        input_shape: of one sample.
        batch: how many samples a step has.

    Raises:
        ModelError: as `build` does, or the model can't be made.
    """
    from edgepeer.training.keras_setup import load_keras

    keras = load_keras()
    found: list[ModelSize | BaseException] = []

    def count() -> None:
        try:
            with keras.StatelessScope(initialize_variables=False):
                model = build()
                if not model.built:
                    model(keras.KerasTensor((1, *input_shape)))
                found.append(size_of(model, (batch, *input_shape)))
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


def size_of(model: Any, batch_shape: tuple[int, ...] | None = None) -> ModelSize:
    """The size of a Keras model, as far as it is built.

    Args:
        batch_shape: of the samples of a step; None: what that computes is not asked for.
    """
    import tensorflow

    fixed = [
        (math.prod(variable.shape), tensorflow.as_dtype(str(variable.dtype)).size)
        for variable in model.non_trainable_variables
    ]
    return ModelSize(
        parameters=sum(math.prod(variable.shape) for variable in model.trainable_variables),
        fixed=sum(count for count, _ in fixed),
        fixed_bytes=sum(count * itemsize for count, itemsize in fixed),
        step_bytes=_step_bytes(model, batch_shape) if batch_shape is not None and model.built else 0,
    )


def _step_bytes(model: Any, batch_shape: tuple[int, ...]) -> int:
    """What a step of a Keras model computes: all that TensorFlow's operations put out on the way from the samples to
    the outputs, as far as it depends on what is trained, since most of that is kept for the way back; of the rest the
    largest; and the largest of all once more, for its gradient, or for what it is made of.

    Nothing is computed for it. The graph shows more than the layers' output shapes would: also what a layer has within,
    such as the weights of an attention, and models of classes, whose layers don't know what they are given.
    """
    import tensorflow

    from edgepeer.training.keras_setup import load_keras

    scope = load_keras().StatelessScope
    trained: set[str] = set()

    def run(x: Any) -> Any:
        # Variables that aren't made yet would be drawn in the graph, as if that were part of every step.
        values = [(v, tensorflow.raw_ops.Placeholder(dtype=str(v.dtype), shape=v.shape)) for v in model.variables]
        trainable = {id(v) for v in model.trainable_variables}
        trained.update(value.op.name for v, value in values if id(v) in trainable)
        with scope(state_mapping=values, initialize_variables=False):  # what is moved on here is not seen elsewhere
            return model(x, training=True)

    try:
        traced = tensorflow.function(run, jit_compile=False)
        graph = traced.get_concrete_function(tensorflow.TensorSpec(batch_shape, "float32")).graph
        each = list(_output_bytes(graph, trained))
    except Exception:  # a model that can't take such samples is refused as soon as it is to take some
        return 0
    kept = sum(count for count, is_kept in each if is_kept)
    passing = max((count for count, is_kept in each if not is_kept), default=0)
    return 4 * math.prod(batch_shape) + kept + passing + max((count for count, _ in each), default=0)


def _output_bytes(graph: Any, trained: set[str] | None, times: int = 1) -> Iterator[tuple[int, bool]]:
    """What the operations of a TensorFlow graph put out, one after the other, those within loops as often as they run;
    and whether it depends on what is trained.

    Args:
        trained: the operations that put that out; None: all do.
        times: how often the graph itself runs.
    """
    reached = set(trained or ())
    for operation in graph.get_operations():  # as they were made: each after those that it takes from
        kept = trained is None or any(tensor.op.name in reached for tensor in operation.inputs)
        if kept:
            reached.add(operation.name)
        for attribute in operation.node_def.attr.values():
            if attribute.func.name:  # a function, a branch, or a loop's body
                inner = _function_graph(graph, attribute.func.name)
                for count, _ in _output_bytes(inner, None, times * _passes(operation)):
                    yield count, kept
        if operation.type not in _NO_MEMORY:
            for tensor in operation.outputs:
                known = tensor.shape.is_fully_defined()
                yield (times * tensor.shape.num_elements() * tensor.dtype.size if known else 0), kept


def _function_graph(graph: Any, name: str) -> Any:
    found = graph._get_function(name)  # TensorFlow has no public way
    return getattr(found, "graph", found)


def _passes(operation: Any) -> int:
    """How often a loop runs, at most, as far as it can be seen; 1 of what is none. Those over a sequence, as of LSTM,
    have lists that are as long as it is."""
    import tensorflow

    if operation.type not in ("While", "StatelessWhile"):
        return 1
    most = tensorflow.get_static_value(operation.inputs[1])
    lengths = [1 if most is None else int(most)]
    for tensor in operation.inputs:
        if tensor.op.type == "TensorListFromTensor":
            lengths.append(tensor.op.inputs[0].shape[0] or 1)
        elif tensor.op.type == "TensorListReserve":
            lengths.append(int(tensorflow.get_static_value(tensor.op.inputs[1]) or 1))
    return max(lengths)


def has_unmade(model: Any) -> bool:
    """Whether some of a Keras model's variables are those of a model that was only counted."""
    return any(getattr(variable, "_value", variable) is None for variable in model.variables)


def evaluation_batch(size: ModelSize, batch: int) -> int:
    """How many samples to evaluate at once: many, but so that it takes no more than a step, of `batch` samples, or
    little; as many as a step has, where it can't be told what that takes."""
    little = _EVALUATION_BYTES * batch // size.step_bytes if size.step_bytes else 0
    return min(_EVALUATION_BATCH, max(batch, little))


def memory_needed(size: ModelSize, slots: int) -> int:
    """Bytes that it takes, roughly, to train a model of that size.

    Args:
        slots: how many numbers the optimizer remembers of each parameter.
    """
    return 4 * size.parameters * (VECTORS + slots) + _FIXED * size.fixed_bytes + size.step_bytes


def check_size(what: str, size: ModelSize, *, slots: int, batch: int, memory: int | None = None) -> None:
    """Refuse a model that is too large.

    Args:
        what: how a message calls it.
        slots: how many numbers the optimizer remembers of each parameter.
        batch: how many samples a step has.
        memory: how many bytes the model may take; None: what the machine has to give.

    Raises:
        ModelError: it is.
    """
    has = f"{what}: has {size.parameters:,} parameters"
    if 4 * (size.parameters + 1) > MAX_PAYLOAD_BYTES:
        raise ModelError(
            f"{has}; {MAX_PAYLOAD_BYTES // 4 - 1:,}, which make a vector of "
            f"{MAX_PAYLOAD_BYTES >> 20} MiB, are the most that peers can add up"
        )
    if size.fixed:
        has += f" and {size.fixed:,} numbers that aren't trained"
    state = 4 * size.parameters * (1 + slots) + size.fixed_bytes
    if state > STATE_LIMIT_BYTES:
        raise ModelError(
            f"{has}, which make a state of up to {state >> 20:,} MiB; {STATE_LIMIT_BYTES >> 20:,} MiB are the most "
            "that peers can hand on; take a smaller model"
        )
    lying = memory_needed(size._replace(step_bytes=0), slots)
    check_memory(f"{has}, for which", lying, memory, cure="take a smaller model")
    check_memory(
        f"{has}, and a step with {batch:,} samples computes {size.step_bytes >> 20:,} MiB, for all of which",
        memory_needed(size, slots),
        memory,
        cure="take a smaller batch_size or model",
    )


def check_memory(what: str, needed: int, memory: int | None, *, cure: str = "") -> None:
    """Refuse that for which so many bytes are needed, where they aren't there; `what` and `memory`: as of `check_size`.

    Args:
        cure: what can be done about it, besides allowing more.

    Raises:
        ModelError: they aren't.
    """
    there = available_memory() if memory is None else memory
    if needed > there:
        raise ModelError(
            f"{what} this device needs about {needed >> 20} MiB of memory, "
            f"and {there >> 20} MiB are {'to be had' if memory is None else 'allowed (memory)'}"
            + (f"; {cure}{'' if memory is None else ', or allow more'}" if cure else "")
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
