"""Numbers in bf16 and int8: against reckoning one by one, for all that bf16 has, and for what somebody made up."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgepeer.wire.encoding import _PIECE, SCALE_MAX, SCALE_MIN, Codec, codec_of, first_not_finite
from edgepeer.wire.precision import BLOCK, PRECISIONS, Precision, block_of, elements_in, encoded_bytes

Vector = NDArray[np.float32]
LARGEST = float(np.finfo(np.float32).max)


def codec(precision: Precision) -> Codec:
    found = codec_of(precision)
    assert found is not None
    return found


def encoded(precision: Precision, values: Vector) -> bytes:
    out = bytearray(encoded_bytes(precision, values.size))
    assert codec(precision).encode(values, out)
    return bytes(out)


def decoded(precision: Precision, data: bytes, elements: int) -> Vector:
    out = np.full(elements, np.nan, np.float32)
    assert codec(precision).decode(data, out) == ""
    return out


def float32(bits: int) -> float:
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    assert isinstance(value, float)
    return value


def bits_of(value: float) -> int:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    assert isinstance(bits, int)
    return bits


def drawn(random: np.random.Generator, size: int, spread: float) -> Vector:
    """Numbers of one size, or of many."""
    return (random.standard_normal(size) * np.exp(spread * random.standard_normal(size))).astype(np.float32)


lossy = st.sampled_from(["bf16", "int8"])
numbers = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-1, 1, width=32),
    st.sampled_from([0.0, -0.0, 1e38, -1e38, 1e-38, -1e-38, 1e-45, LARGEST, -LARGEST, 2.0**-126, 2.0**-127]),
)
vectors = st.lists(numbers, max_size=40).map(lambda values: np.array(values, np.float32))
long_vectors = st.builds(
    lambda seed, size, spread: (
        np.random.default_rng(seed).standard_normal(size)
        * np.exp(spread * np.random.default_rng(seed).normal(size=size))
    ).astype(np.float32),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 5, 255, 256, 257, 511, 512, 1000, _PIECE - 1, _PIECE + 300]),
    st.sampled_from([0.0, 1.0, 10.0]),
)


# -- how many bytes ------------------------------------------------------------------------------------------


@given(st.sampled_from(PRECISIONS), st.integers(0, 10**6), st.sampled_from([4, 8]))
def test_bytes_tell_how_many_elements_they_are(precision: Precision, elements: int, itemsize: int) -> None:
    assert elements_in(precision, encoded_bytes(precision, elements, itemsize), itemsize) == elements


def test_other_numbers_of_bytes_are_no_elements() -> None:
    assert [elements_in("float32", n) for n in range(6)] == [0, -1, -1, -1, 1, -1]
    assert [elements_in("float32", n, 8) for n in (0, 4, 8)] == [0, -1, 1]
    assert [elements_in("bf16", n) for n in range(4)] == [0, -1, 1, -1]
    assert [elements_in("int8", n) for n in (0, 1, 4, 5, 6, 259, 260, 261, 264, 265, 520)] == [
        0, -1, -1, 1, 2, 255, 256, -1, -1, 257, 512,
    ]  # fmt: skip


@given(lossy, st.integers(0, 3000), st.integers(0, 3000))
def test_parts_cut_at_blocks_add_up(precision: Precision, blocks: int, rest: int) -> None:
    first = blocks * block_of(precision)
    assert encoded_bytes(precision, first) + encoded_bytes(precision, rest) == encoded_bytes(precision, first + rest)


# -- bf16 ----------------------------------------------------------------------------------------------------


def bf16_by_hand(value: float) -> int:
    """The nearest of two neighbours, the even one if both are."""
    bits = bits_of(value)
    low, sign = (bits & 0x7FFFFFFF) >> 16, bits >> 31 << 15
    below, above = float32(low << 16), float32(low + 1 << 16) if low < 0x7F7F else math.inf
    size = abs(value)
    up = above - size < size - below or (above - size == size - below and low % 2 == 1)
    return sign | (low + up)


@given(vectors)
@example(np.array([LARGEST, -LARGEST, float32(0x7F7F7FFF), float32(0x7F7F8000), float32(0x007FFFFF)], np.float32))
def test_bf16_is_the_nearest_even(values: Vector) -> None:
    codes = np.frombuffer(encoded("bf16", values), "<u2").tolist()
    assert codes == [bf16_by_hand(value) for value in values.tolist()]


@given(long_vectors)
def test_bf16_of_long_vectors(values: Vector) -> None:
    back = decoded("bf16", encoded("bf16", values), values.size).astype(np.float64)
    assert np.all(np.abs(back - values) <= np.maximum(np.abs(values.astype(np.float64)) * 2.0**-8, 2.0**-134))


def test_all_of_bf16() -> None:
    codes = np.arange(1 << 16, dtype="<u2")
    finite = codes[(codes & 0x7F80) != 0x7F80]
    data = finite.tobytes()
    values = decoded("bf16", data, finite.size)
    assert values.tolist() == [float32(int(code) << 16) for code in finite]
    assert encoded("bf16", values) == data
    for code in codes[(codes & 0x7F80) == 0x7F80]:
        out = np.zeros(3, np.float32)
        assert codec("bf16").decode(np.array([0, code, 0], "<u2").tobytes(), out) == "is not finite at element 1"


# -- int8 ----------------------------------------------------------------------------------------------------


def int8_by_hand(values: list[float]) -> bytes:
    """Block after block, number after number."""
    data = b""
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        quotient = bits_of(max(map(abs, block)) / 127)
        scale = min(max(float32(-(-quotient // 128) * 128), SCALE_MIN), SCALE_MAX)
        codes = [round(struct.unpack("<f", struct.pack("<f", value * (1 / scale)))[0]) for value in block]
        data += struct.pack(f"<f{len(block)}b", scale if any(codes) else 0.0, *codes)
    return data


def close(ours: bytes, by_hand: bytes, elements: int) -> None:
    """The same, but that a number that lies in the middle of two may be either."""
    assert len(ours) == len(by_hand)
    for at in range(0, len(ours), 4 + BLOCK):
        assert ours[at : at + 4] == by_hand[at : at + 4]
        a, b = (np.frombuffer(data[at + 4 : at + 4 + BLOCK], np.int8).astype(int) for data in (ours, by_hand))
        assert np.abs(a - b).max(initial=0) <= 1
        assert np.count_nonzero(a != b) <= 1 + a.size // 100


@given(vectors)
@example(np.array([LARGEST, 1, -LARGEST], np.float32))
@example(np.full(300, SCALE_MAX, np.float32))
@example(np.array([1e-45, 2.0**-127, -(2.0**-127)], np.float32))
@example(np.array([float32(0x00400001)], np.float32))
def test_int8_as_by_hand(values: Vector) -> None:
    close(encoded("int8", values), int8_by_hand(values.tolist()), values.size)


def int8_bounds(values: Vector) -> NDArray[np.float64]:
    """How far each may be off."""
    bounds = np.empty(values.size)
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK].astype(np.float64)
        bounds[start : start + BLOCK] = max(np.abs(block).max() / 253.9, 2.0**-127)
    return bounds


@given(st.one_of(vectors, long_vectors))
def test_int8_is_off_by_half_a_scale_at_most(values: Vector) -> None:
    back = decoded("int8", encoded("int8", values), values.size).astype(np.float64)
    assert np.all(np.abs(back - values) <= int8_bounds(values))


def test_int8_holds_every_scale_that_there_is() -> None:
    """Of every exponent, some hundred mantissas, and those beside which rounding changes: the same bytes again."""
    mantissas = np.unique(
        np.concatenate([np.arange(300), 0x7FFFFF - np.arange(300), np.random.default_rng(1).integers(0, 1 << 23, 700)])
    )
    bits = (np.arange(255, dtype=np.uint32)[:, None] << np.uint32(23)) | mantissas.astype(np.uint32)
    largest = bits.reshape(-1).view(np.float32)
    values = np.zeros((largest.size, BLOCK), np.float32)
    values[:, 7] = largest
    values[:, 9] = -largest / np.float32(3)
    flat = values.reshape(-1)
    data = encoded("int8", flat)
    back = decoded("int8", data, flat.size)
    assert encoded("int8", back) == data
    assert np.all(np.abs(back.reshape(values.shape)[:, 7].astype(np.float64) - largest)
                  <= np.maximum(largest.astype(np.float64) / 253.9, 2.0**-127))  # fmt: skip


def test_int8_of_every_number_and_scale_is_exact() -> None:
    """q s has no rounding, so that no machine can do it differently."""
    bits = np.random.default_rng(2).integers(0x00800000, np.float32(SCALE_MAX).view(np.uint32), 2000, dtype=np.uint32)
    for scale in (bits & np.uint32(0xFFFFFF80)).view(np.float32).astype(np.float64):
        exact = scale * np.arange(-127, 128)
        assert np.array_equal(exact.astype(np.float32).astype(np.float64), exact)


def test_a_block_does_not_feel_its_neighbours() -> None:
    values = np.full(3 * BLOCK, 1e-3, np.float32)
    values[BLOCK : 2 * BLOCK] = 1e38
    back = decoded("int8", encoded("int8", values), values.size)
    assert np.allclose(back[:BLOCK], 1e-3, rtol=1e-4)
    assert np.allclose(back[2 * BLOCK :], 1e-3, rtol=1e-4)


# -- both ----------------------------------------------------------------------------------------------------


@given(lossy, st.one_of(vectors, long_vectors))
def test_what_was_decoded_becomes_the_same_bytes(precision: Precision, values: Vector) -> None:
    data = encoded(precision, values)
    back = decoded(precision, data, values.size)
    again = encoded(precision, back)
    assert again == data
    assert decoded(precision, again, values.size).tobytes() == back.tobytes()


@given(lossy, long_vectors, st.data())
def test_it_does_not_matter_where_a_vector_is_cut(precision: Precision, values: Vector, data: st.DataObject) -> None:
    block = block_of(precision)
    cut = block * data.draw(st.integers(0, values.size // block))
    whole = encoded(precision, values)
    assert encoded(precision, values[:cut]) + encoded(precision, values[cut:]) == whole
    at = encoded_bytes(precision, cut)
    assert np.array_equal(
        decoded(precision, whole[at:], values.size - cut), decoded(precision, whole, values.size)[cut:]
    )


@given(lossy, long_vectors.filter(lambda v: v.size > 0), st.sampled_from([math.nan, -math.nan, math.inf, -math.inf]),
       st.integers(0, 2**32))  # fmt: skip
def test_what_is_not_finite_is_seen(precision: Precision, values: Vector, wrong: float, at: int) -> None:
    assert first_not_finite(values) == -1
    values[at % values.size] = wrong
    assert first_not_finite(values) == at % values.size
    assert not codec(precision).encode(values, bytearray(encoded_bytes(precision, values.size)))


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001])
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_no_kind_of_not_a_number_is_overlooked(precision: Precision, bits: int) -> None:
    values = np.zeros(300, np.float32)
    values.view(np.uint32)[299] = bits
    assert not codec(precision).encode(values, bytearray(encoded_bytes(precision, 300)))


@given(lossy, st.integers(0, 600), st.data())
def test_only_what_encode_makes_is_taken(precision: Precision, elements: int, data: st.DataObject) -> None:
    """Whatever is decoded encodes to the same bytes: nothing that was made up can hide behind a digest."""
    size = encoded_bytes(precision, elements)
    made_up = data.draw(st.binary(min_size=size, max_size=size))
    out = np.empty(elements, np.float32)
    if codec(precision).decode(made_up, out) == "":
        assert np.isfinite(out).all()
        assert encoded(precision, out) == made_up


def record(scale: float | bytes, *codes: int) -> bytes:
    return (scale if isinstance(scale, bytes) else struct.pack("<f", scale)) + struct.pack(f"{len(codes)}b", *codes)


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (record(math.nan, 127), "has scale nan and numbers up to 127 in block 0"),
        (record(math.inf, 127), "has scale inf and numbers up to 127 in block 0"),
        (record(-1.0, 127), "has scale -1 and numbers up to 127 in block 0"),
        (record(-0.0, 0), "has scale -0 and numbers up to 0 in block 0"),
        (record(1.0, -128), "has scale 1 and numbers up to 128 in block 0"),
        (record(1.0, 126), "has scale 1 and numbers up to 126 in block 0"),
        (record(0.0, 1), "has scale 0 and numbers up to 1 in block 0"),
        (record(SCALE_MIN, 0), "has scale 1.17549e-38 and numbers up to 0 in block 0"),
        (record(1e-40, 127), "has scale 9.99995e-41 and numbers up to 127 in block 0"),
        (record(3e36, 127), "has scale 3e+36 and numbers up to 127 in block 0"),
        (record(struct.pack("<I", bits_of(1.0) + 1), 127), "has scale 1 and numbers up to 127 in block 0"),
        (record(1.0, *[127] * BLOCK) + record(1.0, 3, -4), "has scale 1 and numbers up to 4 in block 1"),
    ],
)  # fmt: skip
def test_forged_scales_and_numbers_are_refused(forged: bytes, why: str) -> None:
    out = np.empty(elements_in("int8", len(forged)), np.float32)
    assert codec("int8").decode(forged, out) == why


@given(lossy, st.integers(0, 600), st.integers(0, 2000))
def test_a_wrong_length_is_our_own_mistake(precision: Precision, elements: int, size: int) -> None:
    """Those of others are refused with the frame's header."""
    if size != encoded_bytes(precision, elements):
        with pytest.raises(ValueError, match=f"^{size} bytes for {elements} elements in {precision}, which are "):
            codec(precision).decode(bytes(size), np.empty(elements, np.float32))


def test_float32_needs_no_codec() -> None:
    assert codec_of("float32") is None
