"""Data sets by name: digits, mnist, a shared .npz file, or each device's own.

Whatever the source, what comes out is checked once: float32 samples that are all finite; labels, which are whole
numbers from 0 on, or finite numbers to be put out; as many of one as of the other; and at least one sample to train
and one to test on.
The same name and files give the same samples in the same order on every device. That the files are the same is not
believed: see `check_alike`.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import math
import socket
import sys
import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from edgepeer.errors import DataError, ModelError
from edgepeer.training.idx import read_idx
from edgepeer.training.naming import parse_dataset
from edgepeer.training.npz import read_npz
from edgepeer.training.seeded import permutation

__all__ = ["MAX_CLASSES", "Dataset", "check_alike", "load_dataset"]

MAX_CLASSES: Final = 65_536
_MOST_DIMENSIONS: Final = 32
"""With that of the samples: a Form says no more."""
_DOWNLOAD_TIMEOUT: Final = 5.0  # seconds without a byte
_MNIST_FILES: Final = {
    "x_train": ("train-images", 3),
    "y_train": ("train-labels", 1),
    "x_test": ("t10k-images", 3),
    "y_test": ("t10k-labels", 1),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Samples to train and to test on."""

    x_train: NDArray[np.float32]
    """Shape (samples, *input_shape)."""
    y_train: NDArray[Any]
    """Labels, int64, shape (samples,), from 0 to classes-1; or numbers, float32, shape (samples, numbers)."""
    x_test: NDArray[np.float32]
    y_test: NDArray[Any]
    classes: int
    """0: `y` are numbers, not labels."""
    name: str
    local: bool = False
    """The device's own data: trained on whole, not shared out over the peers."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.x_train.shape[1:]

    @cached_property
    def summary(self) -> str:
        """How many samples, of what, and a digest of them all: equal only where all is the same, in the same order."""
        digest = xxhash.xxh3_64()
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            digest.update(f"{little.dtype.str} {little.shape} {self.classes}".encode())
            digest.update(little.reshape(-1).view(np.uint8).data)
        values = math.prod(self.input_shape)
        return f"{len(self.x_train)} + {len(self.x_test)} samples of {values} numbers, digest {digest.hexdigest()}"

    def without_training(self) -> Dataset:
        """The same without any training sample: what it held is free, once nobody else holds it."""
        return replace(self, x_train=self.x_train[:0].copy(), y_train=self.y_train[:0].copy())


def check_alike(name: str, own: str, theirs: str) -> None:
    """Refuse data that are shared out over the peers, and are not what the others have.

    Args:
        own, theirs: what `Dataset.summary` says; nothing is known of an empty one.

    Raises:
        DataError: so it is.
    """
    if own and theirs and own != theirs:
        raise DataError(
            f"dataset {name}: is not the same here ({own}) as where the run's state comes from ({theirs}): copy one "
            "file to all devices; or call it local:PATH, if each device has data of its own"
        )


def load_dataset(name: str, *, data_dir: Path | None = None) -> Dataset:
    """The data set of that name.

    Args:
        name: `digits`; `mnist`; `npz:PATH` or a path ending in .npz, for a file with x and y (and, if it
            likes, x_test and y_test, else a fifth is kept for testing; and `classes`, else the largest
            label counts; a y that is not integers is numbers to be put out); `local:PATH` for such a file of the
            device's own. Values are used as they are:
            scaling is up to who makes the file.
        data_dir: where the MNIST files are, and where relative paths start.

    Raises:
        DataError: the data can't be found, read or used; the text says what to do.
    """
    named = parse_dataset(name)
    if named is None:
        raise DataError(f"dataset {name!r}: unknown; there are digits, mnist, npz:PATH and local:PATH")
    if named.kind == "digits":
        return _digits()
    if named.kind == "mnist":
        return _mnist(data_dir)
    return _npz(name, named.path, data_dir, local=named.kind == "local")


def _digits() -> Dataset:
    table = _digits_file()
    if table is None:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DataError(f"dataset digits: needs scikit-learn: pip install 'edgepeer[digits]' ({error})") from error
        try:
            digits = load_digits()
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise DataError(f"dataset digits: scikit-learn's file is damaged: install it again ({error})") from error
        table = np.column_stack([digits.data, digits.target])
    images = table[:, :64].reshape(-1, 8, 8) / 16.0
    return _checked("digits", "digits", {"x": images, "y": table[:, 64].astype(int), "classes": np.array(10)})


def _digits_file() -> NDArray[np.float64] | None:
    """scikit-learn's own file: 64 pixels and the label in a row. To import scikit-learn takes 90 MB and seconds."""
    spec = importlib.util.find_spec("sklearn")
    for place in (spec.submodule_search_locations if spec is not None else None) or ():
        path = Path(place, "datasets", "data", "digits.csv.gz")
        # By its name, NumPy would look for it from the working directory, which may be gone.
        with contextlib.suppress(OSError, EOFError, ValueError, zlib.error), gzip.open(path, "rt") as file:
            table = np.loadtxt(file, delimiter=",")
            if table.ndim == 2 and table.shape[1] == 65:
                return table
    return None


def _mnist(data_dir: Path | None) -> Dataset:
    arrays = _mnist_from_files(data_dir) if data_dir is not None else None
    if arrays is None:
        arrays = _mnist_from_keras(data_dir)
    # The division goes straight to float32: a float64 copy of all images would be half a gigabyte.
    scaled = {
        name: np.divide(array, np.float32(255), dtype=np.float32) if name.startswith("x") else array
        for name, array in arrays.items()
    }
    named = {
        "x": scaled["x_train"],
        "y": scaled["y_train"],
        "x_test": scaled["x_test"],
        "y_test": scaled["y_test"],
    }
    return _checked("mnist", f"mnist in {data_dir}", {**named, "classes": np.array(10)})


def _mnist_from_files(directory: Path) -> dict[str, NDArray[Any]] | None:
    """The four arrays, or None where none of the files is there."""
    try:
        present = {entry.name for entry in directory.iterdir()}
    except OSError as error:
        raise DataError(f"data directory {directory}: can't be read: {error.strerror or error}") from error
    paths: dict[str, Path] = {}
    for part, (stem, dimensions) in _MNIST_FILES.items():
        spellings = [f"{stem}{mark}idx{dimensions}-ubyte{end}" for mark in "-." for end in ("", ".gz")]
        found = next((spelling for spelling in spellings if spelling in present), None)
        if found is not None:
            paths[part] = directory / found
    if not paths:
        return None
    for part, (stem, dimensions) in _MNIST_FILES.items():
        if part not in paths:
            raise DataError(
                f"{directory / stem}-idx{dimensions}-ubyte: missing beside the other MNIST files (.gz or not)"
            )
    return {part: read_idx(path, dimensions=_MNIST_FILES[part][1]) for part, path in paths.items()}


def _mnist_from_keras(data_dir: Path | None) -> dict[str, NDArray[Any]]:
    hint = (
        "put the four IDX files (train-images-idx3-ubyte and so on, .gz or not) in a directory and name it "
        "as data directory, or let Keras download it where there is a network"
    )
    if data_dir is not None:
        hint = f"no IDX files in {data_dir}; {hint}"
    from edgepeer.training.keras_setup import load_keras

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT)  # Keras' download has none of its own, and could hang
    try:
        with contextlib.redirect_stdout(sys.stderr):  # its progress bar is no output of ours
            (x_train, y_train), (x_test, y_test) = load_keras().datasets.mnist.load_data()
    except ModelError as error:
        raise DataError(f"dataset mnist: {hint} ({error})") from error
    except Exception as error:  # Keras raises a bare Exception when the network fails
        raise DataError(f"dataset mnist: {hint} ({' '.join(str(error).split())[:200]})") from error
    finally:
        socket.setdefaulttimeout(before)
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


def _npz(name: str, path: str, data_dir: Path | None, *, local: bool) -> Dataset:
    try:
        given = Path(path).expanduser()  # no shell does it behind a colon
    except RuntimeError as error:
        raise DataError(f"dataset {name}: {error}") from error
    where = given if data_dir is None else data_dir / given
    arrays = read_npz(where, ("x", "y", "x_test", "y_test", "classes"))
    for needed in ("x", "y"):
        if needed not in arrays:
            raise DataError(f"{where}: has no array {needed!r}; it needs x and y")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{where}: has one of x_test and y_test without the other")
    return _checked(name, str(where), arrays, local=local)


def _checked(name: str, where: str, arrays: dict[str, NDArray[Any]], *, local: bool = False) -> Dataset:
    x, y = _samples(where, "x", arrays["x"]), _targets(where, "y", arrays["y"])
    _match(where, x, y)
    if "x_test" in arrays:
        x_test, y_test = (
            _samples(where, "x_test", arrays["x_test"]),
            _targets(where, "y_test", arrays["y_test"]),
        )
        _match(where, x_test, y_test)
        if x_test.shape[1:] != x.shape[1:]:
            raise DataError(f"{where}: samples of shape {x.shape[1:]} in x but {x_test.shape[1:]} in x_test")
        if (y_test.dtype, y_test.shape[1:]) != (y.dtype, y.shape[1:]):
            raise DataError(f"{where}: y and y_test are not alike: both must be labels, or as many numbers a sample")
    else:
        if len(x) < 2:
            raise DataError(f"{where}: one sample can't be split into training and test data; add x_test and y_test")
        order = permutation(len(x), "train and test")
        tested = max(1, len(x) // 5)
        x, x_test, y, y_test = x[order[tested:]], x[order[:tested]], y[order[tested:]], y[order[:tested]]
    labelled = y.dtype.kind == "i"
    classes = int(max(y.max(), y_test.max())) + 1 if labelled else 0
    if "classes" in arrays and not labelled:
        raise DataError(f"{where}: has 'classes', but y is not labels: these must be integers, one per sample")
    if "classes" in arrays:
        stated = arrays["classes"]
        if stated.size != 1 or stated.dtype.kind not in "iu" or not classes <= stated.item() <= MAX_CLASSES:
            raise DataError(f"{where}: 'classes' must be one whole number from {classes} to {MAX_CLASSES}")
        classes = int(stated.item())
    return Dataset(x_train=x, y_train=y, x_test=x_test, y_test=y_test, classes=classes, name=name, local=local)


def _samples(where: str, field: str, array: NDArray[Any]) -> NDArray[np.float32]:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: {field} has dtype {array.dtype}; samples must be numbers")
    if not 2 <= array.ndim <= _MOST_DIMENSIONS or array.size == 0:
        raise DataError(
            f"{where}: {field} has shape {array.shape}; it must be (samples, values...), {_MOST_DIMENSIONS} lengths at "
            "most, none of them 0"
        )
    return _finite(where, field, array)


def _finite(where: str, field: str, array: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what float32 can't hold becomes infinite, and is refused next
        numbers = np.ascontiguousarray(array, np.float32)
    if not (np.isfinite(numbers.min()) and np.isfinite(numbers.max())):  # NaN goes through both
        raise DataError(f"{where}: {field} holds values that are not finite in float32")
    return numbers


def _targets(where: str, field: str, array: NDArray[Any]) -> NDArray[Any]:
    """Labels where they are integers, one per sample; else numbers."""
    if array.ndim not in (1, 2) or array.dtype.kind not in "iuf" or array.size == 0:
        raise DataError(
            f"{where}: {field} has shape {array.shape} and dtype {array.dtype}; it must be labels, which are integers, "
            "one per sample, or numbers, (samples,) or (samples, numbers)"
        )
    if array.ndim == 2 and array.shape[1] == 1 and array.dtype.kind != "f":
        array = array[:, 0]
    if array.dtype.kind == "f" or array.ndim == 2:
        return _finite(where, field, array.reshape(len(array), -1))
    if array.min() < 0 or array.max() >= MAX_CLASSES:
        raise DataError(
            f"{where}: {field} has labels from {array.min()} to {array.max()}; allowed are 0 to {MAX_CLASSES - 1}"
        )
    return np.ascontiguousarray(array, np.int64)


def _match(where: str, x: NDArray[Any], y: NDArray[Any]) -> None:
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} samples in x but {len(y)} in y")
