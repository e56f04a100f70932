"""Brings Keras in, on TensorFlow, the first time somebody needs it.

Nothing happens when this module is imported. The first `load_keras` takes seconds and half a gigabyte; it
leaves one processor to the event loop and keeps TensorFlow's notes about its own build off the terminal.
Whoever has TensorFlow imported already, or says otherwise in TF_NUM_INTRAOP_THREADS,
TF_NUM_INTEROP_THREADS or TF_CPP_MIN_LOG_LEVEL, keeps their settings.

Keras imports scikit-learn and Matplotlib where they are installed, to wrap them: a third of the time, and 85 MB. No
training needs that, so it doesn't find them here. Whoever wants keras.wrappers or pictures imports Keras before.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from edgepeer.errors import ModelError

__all__ = ["keras_by_itself", "load_keras"]

_LOG_LEVEL: Final = "TF_CPP_MIN_LOG_LEVEL"
_WRAPPED: Final = ("sklearn", "matplotlib")
_NOISE: Final = (b"All log messages before absl::InitializeLog()", b"oneDNN custom operations are on")


def load_keras() -> Any:
    """The module `keras`, on the TensorFlow backend.

    Raises:
        ModelError: it isn't installed, or Keras was told to use another backend.
    """
    fresh = "tensorflow" not in sys.modules
    told = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if told not in ("", "tensorflow"):  # before it is imported: that may not even be installed
        raise _other_backend(told)
    try:
        with _without_build_notes(active=fresh and _LOG_LEVEL not in os.environ), _unwrapped():
            import keras
            import tensorflow

            if fresh:
                _set_threads(tensorflow)
    except ImportError as error:
        raise ModelError(
            f"trainer keras: needs Keras and TensorFlow: pip install 'edgepeer[tensorflow]' ({error})"
        ) from error
    if keras.backend.backend() != "tensorflow":  # a program has imported it before
        raise _other_backend(keras.backend.backend())
    return keras


def _other_backend(name: str) -> ModelError:
    return ModelError(f"trainer keras: Keras runs on {name} here; set KERAS_BACKEND=tensorflow")


@contextmanager
def keras_by_itself() -> Iterator[None]:
    """Keras has the settings meanwhile that it has where nobody has changed them; afterwards those that it had.

    What a device's keras.json says, or a program has set, is not on the others: of the same layers they would make a
    model that has as many parameters, and computes something else.
    """
    config = load_keras().config
    policy, floats, epsilon = config.dtype_policy(), config.floatx(), config.epsilon()
    images = config.image_data_format()
    config.set_floatx("float32")
    config.set_dtype_policy("float32")
    config.set_epsilon(1e-7)
    config.set_image_data_format("channels_last")
    try:
        yield
    finally:
        config.set_floatx(floats)
        config.set_dtype_policy(policy)
        config.set_epsilon(epsilon)
        config.set_image_data_format(images)


def _set_threads(tensorflow: Any) -> None:
    processors = len(os.sched_getaffinity(0))
    intra = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    inter = os.environ.get("TF_NUM_INTEROP_THREADS", "")
    threading = tensorflow.config.threading
    threading.set_intra_op_parallelism_threads(int(intra) if intra.isdecimal() else max(1, processors - 1))
    threading.set_inter_op_parallelism_threads(int(inter) if inter.isdecimal() else 1)
    # The context is made here, because it too has a note to write.
    tensorflow.config.list_logical_devices()


class _NotForKeras:
    """Finds nothing, and lets nobody else find what is only wrapped; in the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in _WRAPPED and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is not imported for Keras", name=name)


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Import nothing meanwhile that Keras would only wrap; what was imported before stays."""
    finder = _NotForKeras()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def _without_build_notes(*, active: bool) -> Iterator[None]:
    """Hold back what libraries write to file descriptor 2 meanwhile, and pass on all but the known notes.

    No log level reaches these few: they are written before TensorFlow has set up its logging.
    """
    try:
        terminal = os.dup(2) if active else None
    except OSError:  # a daemon may have closed it: then there is nothing to keep clean
        terminal = None
    if terminal is None:
        yield
        return
    os.environ[_LOG_LEVEL] = "2"
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            for line in held:
                if not any(note in line for note in _NOISE):
                    os.write(2, line)
