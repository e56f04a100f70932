"""Documents: checked once, against their type, and refused in one line."""

from __future__ import annotations

import contextlib
from typing import Annotated

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import VersionError, WireError
from edgepeer.topology.view import View
from edgepeer.wire.documents import DOCUMENT_LIMIT_BYTES, pack, unpack


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(max_length=8)]
    blob: bytes = b""
    numbers: tuple[int, ...] = ()
    share: float = 0.0


samples = st.builds(
    Sample,
    name=st.text(max_size=8),
    blob=st.binary(max_size=50),
    numbers=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5).map(tuple),
    share=st.floats(allow_nan=False),
)


@given(samples)
def test_there_and_back_again(sample: Sample) -> None:
    for kind in (bytes, bytearray, memoryview):
        assert unpack(kind(pack(sample)), Sample) == sample


@given(st.binary(max_size=300))
def test_arbitrary_bytes(data: bytes) -> None:
    for kind in (Sample, View):
        with pytest.raises(WireError):
            unpack(data, kind)


@given(samples, st.data())
def test_mutated_documents(sample: Sample, data: st.DataObject) -> None:
    raw = bytearray(pack(sample))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        assert isinstance(unpack(raw, Sample), Sample)


def test_fields_of_a_newer_peer_are_ignored() -> None:
    data = msgpack.packb({"v": 1, "name": "x", "colour": "red", "nested": {"a": [1]}})
    assert unpack(data, Sample) == Sample(name="x")


@pytest.mark.parametrize("version", [None, 0, 2, "1", [1]])
def test_another_version_is_named(version: object) -> None:
    with pytest.raises(VersionError, match=r"Sample document of version .*; this build speaks 1"):
        unpack(msgpack.packb({"v": version, "name": "x"}), Sample)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not msgpack"),
        (b"\xc1", "not msgpack"),
        (b"\x91" * 4000, "not msgpack"),
        (msgpack.packb([1]), "a list, not a map"),
        (msgpack.packb({1: 2}), "not msgpack"),
        (msgpack.packb({"v": 1}), "name"),
        (msgpack.packb({"v": 1, "name": 3}), "name"),
        (msgpack.packb({"v": 1, "name": "x" * 9}), "name"),
        (msgpack.packb({"v": 1, "name": "x"}) + b"more", "not msgpack"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        unpack(data, Sample)


def test_a_document_that_is_too_large_is_not_even_read() -> None:
    with pytest.raises(WireError, match="over the limit"):
        unpack(bytes(DOCUMENT_LIMIT_BYTES + 1), Sample)
    with pytest.raises(WireError, match="of 11 bytes is over the limit of 10"):
        unpack(bytes(11), Sample, limit=10)
