from __future__ import annotations

import hashlib
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import VersionError, WireError
from edgepeer.training.state import ArraySpec, pack_state, parameter_digest, read_data, unpack_state

ARRAYS: dict[str, np.ndarray] = {
    "weights": np.arange(12, dtype=np.float32).reshape(3, 4),
    "flags": np.array([True, False]),
    "empty": np.empty((0, 3), np.float64),
    "step": np.array(7, np.int64),
    "odd": np.array([1, 2, 3], np.uint8),
    "strided": np.arange(10, dtype=np.int32)[::3],
    "big-endian": np.arange(4, dtype=">f4"),
}
SPECS = {name: ArraySpec(array.shape, array.dtype.name) for name, array in ARRAYS.items()}
GOOD = pack_state("test", ARRAYS)


def forged(header: Any, content: bytes = b"", *, magic: bytes = b"EPSTATE\x01", length: int | None = None) -> bytes:
    packed = header if isinstance(header, bytes) else msgspec.msgpack.encode(header)
    body = magic + struct.pack("<I", len(packed) if length is None else length) + packed + content
    return body + xxhash.xxh3_128_digest(body)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_arrays_come_back(kind: Any) -> None:
    found = unpack_state(kind(GOOD), "test", SPECS)
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert np.array_equal(found[name], array)
        assert found[name].shape == array.shape


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"", "too short"),
        (bytes(100), "not a trainer's state"),
        (GOOD[:-1], "digest differs"),
        (GOOD + b"x", "digest differs"),
        (forged({}, length=10**9), "header of 1000000000 bytes"),
        (forged(b"\xc1"), "broken header"),
        (forged([]), "broken header"),
        (forged(b"\x82\xa4kind\xa1\xff\xa6arrays\x80"), "broken header"),
        (forged({"kind": "test", "arrays": {"a": [[-1], "int8"]}}), "broken header"),
        (forged({"kind": "other", "arrays": {}}), "of a 'other' trainer"),
        (forged({"kind": "test", "arrays": {"a": [[2], "float32"]}}, bytes(8)), "without 'b'"),
        (forged({"kind": "test", "arrays": {"a": [[2], "float32"], "c": [[2], "int8"]}}), "without 'b'"),
        (
            forged({"kind": "test", "arrays": {"a": [[2], "float32"], "b": [[], "int8"], "c": [[], "int8"]}}),
            "state with 'c'",
        ),
        (forged({"kind": "test", "arrays": {"a": [[2], "float64"], "b": [[], "int8"]}}), "dtype float64"),
        (forged({"kind": "test", "arrays": {"a": [[9**18], "float32"], "b": [[], "int8"]}}), "of shape"),
        (
            forged({"kind": "test", "arrays": {"a": [[2], "float32"], "b": [[], "int8"]}}, bytes(8)),
            "8 bytes of arrays where 9",
        ),
    ],
)
def test_what_does_not_fit_is_refused(blob: bytes, reason: str) -> None:
    expected = {"a": ArraySpec((2,), "float32"), "b": ArraySpec((), "int8")}
    with pytest.raises(WireError, match=reason):
        unpack_state(blob, "test", expected)


def test_what_it_is_trained_on() -> None:
    assert read_data(pack_state("test", ARRAYS, data="80 + 20 samples")) == "80 + 20 samples"
    assert read_data(GOOD) == ""
    with pytest.raises(WireError, match="damaged"):
        read_data(GOOD[:-1])


def test_another_version_is_named() -> None:
    with pytest.raises(VersionError, match="version 2; this build reads 1"):
        unpack_state(forged({}, magic=b"EPSTATE\x02"), "test", {})


@given(at=st.integers(0, len(GOOD) - 1), flip=st.integers(1, 255))
def test_every_damaged_byte_is_noticed(at: int, flip: int) -> None:
    blob = bytearray(GOOD)
    blob[at] ^= flip
    with pytest.raises(WireError):
        unpack_state(blob, "test", SPECS)


def test_an_array_that_can_not_travel_is_refused_at_home() -> None:
    with pytest.raises(ValueError, match="names of dtype <U1"):
        pack_state("test", {"names": np.array(["a"])})
    with pytest.raises(ValueError, match="can't carry 100000 arrays"):
        pack_state("test", {f"{i:0>20}": np.empty(0, np.int8) for i in range(100_000)})


def test_the_digest_is_of_the_bits() -> None:
    vector = np.array([0.0, 1.0], np.float32)
    assert parameter_digest(vector) == hashlib.blake2b(vector.tobytes(), digest_size=16).hexdigest()
    assert parameter_digest(vector) != parameter_digest(np.array([-0.0, 1.0], np.float32))
    assert parameter_digest(vector) == parameter_digest(np.repeat(vector, 2)[::2])
