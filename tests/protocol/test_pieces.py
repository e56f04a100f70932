"""How what goes through tunnels is cut, and put together again. The tree: a over bc, b over de, c over fg."""

from __future__ import annotations

import msgspec
import numpy as np
from detours import around, knock, lose
from hypothesis import given
from hypothesis import strategies as st
from transcript import Machine, view

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.limits import Limits
from edgepeer.wire import codec
from edgepeer.wire import frames as fr
from edgepeer.wire.encoding import codec_of
from edgepeer.wire.precision import BLOCK, Precision, elements_in, encoded_bytes

B, D = PeerId("b"), PeerId("d")


def test_pieces_through_a_neighbour_may_be_larger_than_through_the_broker() -> None:
    b = around(limits=Limits(tunnel_bytes=64, relay_bytes=16, first_segment_bytes=1 << 20))
    sizes: list[int] = []
    for hop in ("c", ""):
        lose(b, "d")
        b.until(b.now + 0.6)
        knock(b, hop, "d", 50 + len(sizes))
        b.node.parts.emit(fx.Send(D, fr.State(run="r", round=1, offset=0, total=200), bytes(200)))
        sent = [effect for effect in b.node.parts.wiring.drain() if isinstance(effect, fx.Send | fx.Relay)]
        sizes.append(max(len(effect.payload or b"") for effect in sent))
        b.level("d")
    assert sizes == [64, 16]


def split(frame: fr.Frame, payload: bytes, limit: int) -> list[tuple[fr.Frame, bytes]]:
    """What goes through the broker for a frame."""
    d = Machine("d", limits=Limits(relay_bytes=limit), hidden=(fr.Ping,)).join(view(1, "abcde"))
    d.level("b")
    lose(d, "b")
    d.until(0.6)
    knock(d, "", "b", 9)
    d.node.parts.emit(fx.Send(B, frame, payload))
    relays = [effect for effect in d.node.parts.wiring.drain() if isinstance(effect, fx.Relay)]
    serials = [relay.frame.serial for relay in relays]
    assert serials == list(range(serials[0], serials[0] + len(relays)))
    return [(codec.unwrap(relay.frame, len(relay.payload or b"")), bytes(relay.payload or b"")) for relay in relays]


@given(
    items=st.integers(0, 100), before=st.integers(0, 20), after=st.integers(0, 20), limit=st.integers(1, 30),
    dtype=st.sampled_from(["<f4", "<f8"]), kind=st.sampled_from(["reduce", "result"]),
)  # fmt: skip
def test_pieces_of_a_segment_are_the_same_put_together(
    items: int, before: int, after: int, limit: int, dtype: fr.Dtype, kind: str
) -> None:
    values = np.arange(items, dtype=dtype)
    total = before + items + after
    commit = fr.Commit(decided_in=1, contributors=b"\x1f", weight=5.0, exact=True, digest=bytes(16))
    frame: fr.Frame
    if kind == "reduce":
        frame = fr.Reduce(epoch=1, round=1, offset=before, total=total, dtype=dtype, contributors=b"\x08", weight=1.0)
    else:
        last = None if after else commit
        frame = fr.Result(epoch=1, round=1, offset=before, total=total, dtype=dtype, commit=last)
    pieces = split(frame, values.tobytes(), limit * 8)
    assert b"".join(data for _, data in pieces) == values.tobytes()
    at = before
    for piece, data in pieces:
        assert len(data) <= limit * 8
        assert isinstance(piece, fr.Reduce | fr.Result)
        assert piece.offset == at
        at += len(data) // values.itemsize
        rest: dict[str, object] = {"offset": before}
        if isinstance(piece, fr.Result):
            assert (piece.commit is not None) == (not after and piece is pieces[-1][0])
            rest["commit"] = None if after else commit
        assert msgspec.structs.replace(piece, **rest) == frame
    assert at == before + items


@given(
    blocks=st.integers(0, 6), before=st.integers(0, 3), after=st.integers(0, 700), limit=st.integers(8, 1500),
    precision=st.sampled_from(["bf16", "int8"]),
)  # fmt: skip
def test_pieces_of_a_rounded_segment_are_cut_between_blocks(
    blocks: int, before: int, after: int, limit: int, precision: Precision
) -> None:
    """Each can be decoded by itself, to what lies there in the whole."""
    offset, total = before * BLOCK, (before + blocks) * BLOCK + after
    items = total - offset if after < BLOCK else blocks * BLOCK  # the vector's last block may be a short one
    values = np.random.default_rng(after).normal(size=items).astype(np.float32)
    made = codec_of(precision)
    assert made is not None
    encoded = bytearray(encoded_bytes(precision, items))
    assert made.encode(values, encoded)
    frame = fr.Reduce(
        epoch=1, round=1, offset=offset, total=total, dtype="<f4", contributors=b"\x08", weight=1.0, precision=precision
    )  # fmt: skip
    decoded = np.zeros_like(values)
    at = offset
    for piece, data in split(frame, bytes(encoded), limit * 8):
        assert isinstance(piece, fr.Reduce)
        assert msgspec.structs.replace(piece, offset=offset) == frame
        assert piece.offset == at
        assert len(data) <= limit * 8 or len(data) <= encoded_bytes(precision, BLOCK)
        count = elements_in(precision, len(data))
        assert count >= 0
        part = slice(at - offset, at - offset + count)
        assert not made.decode(data, decoded[part])
        at += count
    assert at == offset + items
    whole = np.zeros_like(values)
    assert not made.decode(encoded, whole)
    assert decoded.tobytes() == whole.tobytes()


@given(size=st.integers(1, 200), before=st.integers(0, 20), limit=st.integers(1, 50))
def test_pieces_of_a_state_are_the_same_put_together(size: int, before: int, limit: int) -> None:
    data = bytes(range(size))
    frame = fr.State(run="r", round=3, offset=before, total=before + size + 1)
    pieces = split(frame, data, limit)
    assert b"".join(part for _, part in pieces) == data
    at = before
    for piece, part in pieces:
        assert len(part) <= limit
        assert piece == fr.State(run="r", round=3, offset=at, total=before + size + 1)
        at += len(part)


def test_a_document_is_not_cut() -> None:
    assert split(fr.ViewFrame(epoch=3), bytes(100), 8) == [(fr.ViewFrame(epoch=3), bytes(100))]
