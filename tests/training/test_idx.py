from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepeer.errors import DataError
from edgepeer.training.idx import read_idx


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes((0, 0, kind, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
GOOD = idx(IMAGES)


@pytest.mark.parametrize("packed", [False, True])
def test_reads_what_was_written(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(GOOD, mtime=0) if packed else GOOD)
    assert np.array_equal(read_idx(path, dimensions=3), IMAGES)


def test_reads_an_empty_array(tmp_path: Path) -> None:
    path = tmp_path / "none"
    path.write_bytes(idx(np.empty(0, np.uint8)))
    assert read_idx(path, dimensions=1).shape == (0,)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an IDX file"),
        (b"PK\x03\x04 something else", "not an IDX file"),
        (GOOD[:3], "not an IDX file"),
        (idx(IMAGES, kind=0x0D), "type 0x0d"),
        (idx(IMAGES[0]), "2 dimensions where 3"),
        (GOOD[:9], "within its header"),
        (GOOD[:-1], "cut short: 23 of 24"),
        (GOOD + b"x", "goes on after"),
        (gzip.compress(GOOD, mtime=0)[:-9], "broken gzip"),
        (gzip.compress(GOOD, mtime=0)[:20] + b"garbage" * 9, "broken gzip"),
        (b"\x1f\x8b", "broken gzip"),
        (bytes((0, 0, 8, 3)) + b"\xff" * 12, "over the limit"),
        (bytes((0, 0, 8, 3)) + b"\0" * 4 + b"\xff" * 8, "over the limit"),
        (bytes((0, 0, 8, 3)) + struct.pack(">3I", 1000, 1000, 1000) + b"x", "cut short: 1 of 1000000000"),
    ],
)
def test_refuses_what_is_no_idx_file_and_names_it(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "some-file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason) as raised:
        read_idx(path, dimensions=3)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_unpacks_no_more_of_a_gzip_bomb_than_its_header_promises(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(GOOD + bytes(50_000_000), mtime=0))
    with pytest.raises(DataError, match="goes on after the 24 bytes"):
        read_idx(path, dimensions=3)


def test_names_what_is_missing_or_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent: can't be read: No such file"):
        read_idx(tmp_path / "absent", dimensions=1)
    with pytest.raises(DataError, match="directory"):
        read_idx(tmp_path, dimensions=1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(content=st.binary(max_size=64) | st.binary(max_size=20).map(lambda tail: GOOD[:4] + tail))
def test_garbage_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "garbage"
    path.write_bytes(content)
    try:
        array = read_idx(path, dimensions=3, limit=1000)
    except DataError:
        return
    assert idx(array) == content
