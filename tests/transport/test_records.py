"""The record layer: what opens, what doesn't, and that the same frames come out however it is cut up."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import WireError
from edgepeer.transport import records
from edgepeer.transport.records import HEAD_BYTES, MOST_BYTES, OVERHEAD_BYTES, Kind, Opener, Sealer, measure

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def sealed(sealer: Sealer, data: bytes, kind: int = Kind.FRAMES) -> memoryview:
    room = memoryview(bytearray(len(data) + OVERHEAD_BYTES))
    assert sealer.seal(kind, data, room) == len(room)
    return room


def opened(opener: Opener, record: memoryview) -> bytes:
    plain = bytearray(len(record) - OVERHEAD_BYTES)
    opener.open(record, memoryview(plain))
    return bytes(plain)


def take(opener: Opener, record: memoryview) -> bytes:
    """As a connection does."""
    _, length = measure(record, 0)
    return opened(opener, record[: HEAD_BYTES + length])


@pytest.mark.parametrize("aes", [True, False])
@pytest.mark.parametrize("size", [1, 2, 100, MOST_BYTES])
def test_what_is_sealed_opens(aes: bool, size: int) -> None:
    sealer, opener = Sealer(KEY, aes=aes), Opener(KEY, aes=aes)
    for number in range(3):
        data = bytes([number]) * size
        record = sealed(sealer, data, Kind.EVICTIONS)
        assert measure(record, 0) == (Kind.EVICTIONS, size + OVERHEAD_BYTES - HEAD_BYTES)
        assert data not in bytes(record) or size < 3
        assert opened(opener, record) == data


def test_by_the_other_cipher_nothing_opens() -> None:
    with pytest.raises(WireError, match="does not open"):
        opened(Opener(KEY, aes=False), sealed(Sealer(KEY, aes=True), b"hello"))


def test_a_bit_that_was_changed_anywhere_keeps_a_record_from_opening() -> None:
    for at in range(HEAD_BYTES + 5 + 16):
        record = sealed(Sealer(KEY, aes=True), b"hello")
        record[at] ^= 0x10
        with pytest.raises(WireError, match=r"no sealed record|does not open"):
            take(Opener(KEY, aes=True), record)


@pytest.mark.parametrize(
    "order", [(0, 0), (1, 0), (0, 2), (0, 1, 1)], ids=["repeated", "swapped", "left out", "said again"]
)
def test_what_is_not_the_next_record_does_not_open(order: tuple[int, ...]) -> None:
    sealer, opener = Sealer(KEY, aes=True), Opener(KEY, aes=True)
    said = [sealed(sealer, b"number %d" % number) for number in range(3)]
    for number in order[:-1]:
        with contextlib.suppress(WireError):
            opened(opener, said[number])
    with pytest.raises(WireError, match="is not the next one"):
        opened(opener, said[order[-1]])


def test_what_goes_in_the_other_direction_does_not_open() -> None:
    """Each has its own key."""
    with pytest.raises(WireError, match="does not open"):
        opened(Opener(OTHER, aes=True), sealed(Sealer(KEY, aes=True), b"hello"))


@pytest.mark.parametrize(
    "head",
    [0, 1, 16, MOST_BYTES + 17, 0xFFFFFF, 0xFFFFFFFF, 2 << 24 | 100, 0x45500301],
    ids=["0", "1", "a tag alone", "too long", "16 MiB", "4 GiB", "unknown kind", "plain frame"],
)
def test_a_length_that_no_record_has_is_refused_before_anything_is_awaited(head: int) -> None:
    with pytest.raises(WireError, match="no sealed record"):
        measure(memoryview(head.to_bytes(4, "big")), 0)


@pytest.mark.parametrize("aes", [True, False])
def test_after_so_many_records_both_ends_go_on_with_another_key(monkeypatch: pytest.MonkeyPatch, aes: bool) -> None:
    monkeypatch.setattr(records, "_RENEW_AFTER", 3)
    sealer, opener = Sealer(KEY, aes=aes), Opener(KEY, aes=aes)
    said = [sealed(sealer, b"the same") for _ in range(10)]
    assert len({bytes(record) for record in said}) == 10  # no nonce comes twice with one key
    assert [opened(opener, record) for record in said] == [b"the same"] * 10
    stuck = Opener(KEY, aes=aes)
    for record in said[:3]:
        opened(stuck, record)
    monkeypatch.setattr(records, "_RENEW_AFTER", 1000)
    with pytest.raises(WireError, match="does not open"):
        opened(stuck, said[3])


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_length_is_none(size: int) -> None:
    with pytest.raises(ValueError, match="a key of"):
        Sealer(bytes(size), aes=True)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=20), st.booleans())
def test_lengths_and_kinds_are_where_they_are_said_to_be(texts: list[bytes], aes: bool) -> None:
    sealer, opener = Sealer(KEY, aes=aes), Opener(KEY, aes=aes)
    stream = memoryview(b"".join(bytes(sealed(sealer, text, number % 2)) for number, text in enumerate(texts)))
    at = 0
    for number, text in zip(itertools.count(), texts):
        kind, length = measure(stream, at)
        assert kind == number % 2
        assert opened(opener, stream[at : at + HEAD_BYTES + length]) == text
        at += HEAD_BYTES + length
    assert at == len(stream)
