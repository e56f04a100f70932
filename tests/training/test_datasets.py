from __future__ import annotations

import gzip
import importlib.util
import io
import os
import struct
import subprocess
import sys
import zipfile
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_idx import idx

from edgepeer.errors import DataError
from edgepeer.training.datasets import Dataset, load_dataset
from edgepeer.training.npz import read_npz

MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"
X = np.arange(40, dtype=np.float32).reshape(10, 2, 2)
Y = np.arange(10) % 3
IDX_FILES = {
    "train-images-idx3-ubyte": np.full((5, 28, 28), 255, np.uint8),
    "train-labels-idx1-ubyte": np.arange(5, dtype=np.uint8),
    "t10k-images-idx3-ubyte": np.zeros((2, 28, 28), np.uint8),
    "t10k-labels-idx1-ubyte": np.array([9, 0], np.uint8),
}


def write_mnist(directory: Path, *, packed: bool = False) -> None:
    for name, array in IDX_FILES.items():
        content = idx(array)
        path = directory / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def one_line(raised: pytest.ExceptionInfo[DataError]) -> str:
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_digits_are_scaled_and_split_the_same_way_every_time(digits: Dataset) -> None:
    assert (digits.name, digits.classes, digits.input_shape, digits.local) == ("digits", 10, (8, 8), False)
    assert (len(digits.x_train), len(digits.x_test)) == (1438, 359)
    assert digits.x_train.dtype == np.float32
    assert digits.x_train.flags.c_contiguous
    assert (digits.x_train.min(), digits.x_train.max()) == (0.0, 1.0)
    assert set(digits.y_test) == set(digits.y_train) == set(range(10))
    again = load_dataset("digits")
    assert np.array_equal(again.x_train, digits.x_train)
    assert np.array_equal(again.y_test, digits.y_test)


def test_digits_are_the_same_whether_scikit_learn_is_imported_or_not(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    imported = load_dataset("digits")
    for name in ("x_train", "y_train", "x_test", "y_test"):
        assert np.array_equal(getattr(imported, name), getattr(digits, name))


def test_digits_need_no_import_of_scikit_learn(digits: Dataset) -> None:
    code = (
        "import sys; from edgepeer.training.datasets import load_dataset as load; load('digits'); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {"sklearn", "scipy"} & set(loaded.stdout.split())
    # The split is the same on every device, so it may never change: these labels are for all time.
    assert digits.y_train[:8].tolist() == [8, 7, 2, 9, 8, 5, 2, 4]


def test_nor_a_working_directory(digits: Dataset, tmp_path: Path) -> None:
    """A program may outlive the one that it was started in."""
    code = (
        "import os, sys; from edgepeer.training.datasets import load_dataset as load; os.rmdir(os.getcwd()); "
        "load('digits'); print(*sys.modules)"
    )
    (tmp_path / "gone").mkdir()
    command = [sys.executable, "-c", code]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    loaded = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path / "gone", env=found
    )
    assert "sklearn" not in loaded.stdout.split()


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_digits_in_a_damaged_file(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = bytearray(gzip.compress(b",".join([b"1"] * 65) * 50))
    place = tmp_path / "datasets" / "data"
    place.mkdir(parents=True)
    (place / "digits.csv.gz").write_bytes(packed[:20] if damage == "cut" else packed[:10] + b"\xff" * 9)
    spec = ModuleSpec("sklearn", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)

    def broken() -> None:
        raise EOFError("Compressed file ended before the end-of-stream marker was reached")

    monkeypatch.setitem(sys.modules, "sklearn.datasets", SimpleNamespace(load_digits=broken))
    with pytest.raises(DataError, match=r"digits: scikit-learn's file is damaged: install it again \(Compressed"):
        load_dataset("digits")


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_from_idx_files(tmp_path: Path, packed: bool) -> None:
    write_mnist(tmp_path, packed=packed)
    mnist = load_dataset("mnist", data_dir=tmp_path)
    assert mnist.x_train.shape == (5, 28, 28)
    assert mnist.x_train.dtype == np.float32
    assert (mnist.x_train == 1).all()
    assert mnist.y_test.tolist() == [9, 0]
    assert (mnist.classes, mnist.name) == (10, "mnist")


@pytest.mark.skipif(not MNIST.is_dir(), reason="no real MNIST beside the project")
def test_the_real_mnist() -> None:
    mnist = load_dataset("mnist", data_dir=MNIST)
    assert mnist.x_train.shape == (20_000, 28, 28)
    assert mnist.x_test.shape == (10_000, 28, 28)
    assert (mnist.x_train.min(), mnist.x_train.max()) == (0, 1)
    assert mnist.y_train[:5].tolist() == [5, 0, 4, 1, 9]


def test_mnist_with_a_file_missing_names_it(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte: missing") as raised:
        load_dataset("mnist", data_dir=tmp_path)
    assert str(tmp_path) in one_line(raised)


def test_mnist_in_a_directory_that_is_not_there_or_no_directory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data directory .*absent: can't be read: No such file"):
        load_dataset("mnist", data_dir=tmp_path / "absent")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(DataError, match="can't be read: Not a directory"):
        load_dataset("mnist", data_dir=file)


def test_mnist_in_an_unreadable_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)  # root may read everything, so chmod would not do
    with pytest.raises(DataError, match="can't be read: Permission denied"):
        load_dataset("mnist", data_dir=tmp_path)


def test_mnist_with_neither_files_nor_network_names_both_ways(
    tmp_path: Path, keras: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network() -> Any:
        raise Exception("URL fetch failure on https://x: None --\n[Errno -3] Temporary failure")

    monkeypatch.setattr(keras.datasets.mnist, "load_data", no_network)
    for data_dir in (None, tmp_path):
        with pytest.raises(DataError, match=r"IDX files .* or let Keras download it .*URL fetch failure") as raised:
            load_dataset("mnist", data_dir=data_dir)
        assert data_dir is None or str(tmp_path) in one_line(raised)


def test_mnist_through_keras(keras: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = np.full((3, 28, 28), 51, np.uint8), np.array([1, 2, 3], np.uint8)
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: ((images, labels), (images[:1], labels[:1])))
    mnist = load_dataset("mnist")
    assert mnist.x_train.dtype == np.float32
    assert np.allclose(mnist.x_train, 0.2)
    assert (len(mnist.y_test), mnist.classes) == (1, 10)


def test_what_a_device_lacks_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install 'edgepeer\[digits\]'"):
        load_dataset("digits")
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(DataError, match=r"IDX files .*pip install 'edgepeer\[tensorflow\]'"):
        load_dataset("mnist")


def test_npz_with_its_own_test_data(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", x=X, y=Y, x_test=X[:3], y_test=Y[:3])
    for name in (f"npz:{path}", str(path)):
        data = load_dataset(name)
        assert np.array_equal(data.x_train, X)
        assert np.array_equal(data.y_test, Y[:3])
        assert (data.classes, data.local) == (3, False)


def test_npz_is_split_without_overlap_or_loss(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", x=X.astype(np.uint8), y=Y.reshape(-1, 1), classes=7)
    data, again = load_dataset(f"npz:{path}"), load_dataset(f"npz:{path}")
    assert (len(data.x_train), len(data.x_test), data.classes) == (8, 2, 7)
    assert sorted([*data.x_train[:, 0, 0], *data.x_test[:, 0, 0]]) == X[:, 0, 0].tolist()
    assert np.array_equal(data.x_train, again.x_train)
    assert np.array_equal(Y[(data.x_train[:, 0, 0] / 4).astype(int)], data.y_train)


def test_relative_paths_start_at_the_data_directory_and_local_data_says_so(tmp_path: Path) -> None:
    write_npz(tmp_path / "mine.npz", x=X, y=Y)
    assert load_dataset("local:mine.npz", data_dir=tmp_path).local
    assert not load_dataset("mine.npz", data_dir=tmp_path).local


def test_a_path_may_start_in_a_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell makes one of what follows a colon."""
    write_npz(tmp_path / "mine.npz", x=X, y=Y)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_dataset("local:~/mine.npz", data_dir=tmp_path / "elsewhere").local
    assert not load_dataset("npz:~/mine.npz").local
    with pytest.raises(DataError, match=r"^dataset npz:~nobody-at-all/x: "):
        load_dataset("npz:~nobody-at-all/x")


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": X}, "has no array 'y'"),
        ({"y": Y}, "has no array 'x'"),
        ({"x": X, "y": Y, "x_test": X}, "without the other"),
        ({"x": X, "y": Y[:9]}, "10 samples in x but 9 in y"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y[:9]}, "10 samples in x but 9 in y"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, r"shape \(2, 2\) in x but \(1, 2\)"),
        ({"x": X[:0], "y": Y[:0]}, r"x has shape \(0, 2, 2\)"),
        ({"x": X[:, :0], "y": Y}, r"x has shape \(10, 0, 2\)"),
        ({"x": X[:1], "y": Y[:1]}, "one sample can't be split"),
        ({"x": Y, "y": Y}, r"x has shape \(10,\)"),
        ({"x": X.reshape(10, 4, *([1] * 31)), "y": Y}, "32 lengths at most"),
        ({"x": X.astype(str), "y": Y}, "samples must be numbers"),
        ({"x": X * 1j, "y": Y}, "samples must be numbers"),
        ({"x": X.astype(object), "y": Y}, "Python objects"),
        ({"x": np.where(X == 7, np.nan, X), "y": Y}, "not finite"),
        ({"x": np.where(X == 7, -np.inf, X), "y": Y}, "not finite"),
        ({"x": np.where(X == 7, 1e300, X.astype(float)), "y": Y}, "not finite in float32"),
        ({"x": X, "y": Y.astype(complex)}, "it must be labels, which are integers"),
        ({"x": X, "y": np.ones((10, 2, 2))}, "it must be labels, which are integers"),
        ({"x": X, "y": np.full(10, np.nan)}, "not finite"),
        ({"x": X, "y": Y.astype(float), "classes": np.array(3)}, "has 'classes', but y is not labels"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y.astype(float)}, "y and y_test are not alike"),
        ({"x": X, "y": Y - 1}, "labels from -1 to 1"),
        ({"x": X, "y": Y + 65_536}, "allowed are 0 to 65535"),
        ({"x": X, "y": Y, "classes": 2}, "'classes' must be one whole number from 3"),
        ({"x": X, "y": Y, "classes": [3, 4]}, "'classes' must be"),
        ({"x": X, "y": Y, "classes": 10**9}, "'classes' must be"),
    ],
)
def test_npz_that_can_not_be_used(tmp_path: Path, arrays: dict[str, Any], reason: str) -> None:
    path = write_npz(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=reason) as raised:
        load_dataset(f"npz:{path}")
    assert str(path) in one_line(raised)


def npz_with_entry(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    return path


def with_header(text: bytes) -> bytes:
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text) + 1) + text + b"\n"


def npy(shape: tuple[int, ...], content: bytes) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue() + content


def test_broken_npz_files(tmp_path: Path) -> None:
    path = tmp_path / "broken.npz"
    whole = write_npz(path, x=X, y=Y).read_bytes()
    for content in (b"", b"garbage", whole[: len(whole) // 2], whole[:100] + b"?" * 40 + whole[140:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"not a usable \.npz") as raised:
            load_dataset(f"npz:{path}")
        assert str(path) in one_line(raised)
    for content in (b"", b"no array", npy((10**12,), b"abcd"), npy((1,), b"ab"), npy((1,), b"abcdefgh")):
        npz_with_entry(path, content)
        with pytest.raises(DataError, match=r"not a usable \.npz"):
            read_npz(path, ("x",))
    with pytest.raises(DataError, match="can't be read: No such file"):
        load_dataset("npz:absent.npz", data_dir=tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        b"{[1]: 2}",
        b"{1: 2, 'a': 3}",
        b"(",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
        b"{'descr': 'V0', 'fortran_order': False, 'shape': (%d,)}" % 2**70,
    ],
)
def test_headers_that_numpy_would_not_write(tmp_path: Path, header: bytes) -> None:
    path = npz_with_entry(tmp_path / "odd.npz", with_header(header) + b"abcd" * (b"True" in header))
    with pytest.raises(DataError, match=r"odd\.npz: not a usable \.npz") as raised:
        read_npz(path, ("x",))
    one_line(raised)


def test_an_npz_file_without_an_end() -> None:
    with pytest.raises(DataError, match="it is no regular file"):
        load_dataset("npz:/dev/zero")


def test_an_npz_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = npz_with_entry(tmp_path / "bomb.npz", npy((1_000_000,), bytes(4_000_000)))
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match="over the limit of 1000000"):
        read_npz(path, ("x",), limit=1_000_000)


@pytest.mark.parametrize("name", ["cifar", "npz:", "local:", "npz", "csv:/a.csv"])
def test_an_unknown_name_is_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(DataError, match="unknown; there are digits, mnist"):
        load_dataset(name)
