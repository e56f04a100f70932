"""Frames: there and back again, and nothing but WireError for anything else."""

from __future__ import annotations

import contextlib
import struct
from typing import get_args

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import VersionError, WireError
from edgepeer.ids import Generation
from edgepeer.wire import codec
from edgepeer.wire import frames as fr
from edgepeer.wire.precision import BLOCK, PRECISIONS, Precision, encoded_bytes

count = st.integers(0, 2**53)
stamp = st.integers(0, 2**63 - 1)
small = st.integers(0, 1000)
text = st.text(max_size=60)
peer = st.text(min_size=1, max_size=15)
rate = st.floats(0, 1e12)
bits = st.binary(max_size=512)
dtype = st.sampled_from(["<f4", "<f8"])
precision = st.sampled_from(PRECISIONS)
generation = st.builds(Generation, st.integers(1, 2**31 - 1), st.integers(1, 4096), st.integers(0, 2**32 - 1))
maybe_generation = st.none() | generation
commits = st.builds(
    fr.Commit, decided_in=stamp, contributors=bits, weight=rate, exact=st.booleans(),
    digest=st.binary(min_size=16, max_size=16), final=st.booleans(), held_in=stamp, generation=generation,
    precision=precision,
)  # fmt: skip
seconds = st.floats(0, 2**53)

FRAMES: dict[str, st.SearchStrategy[tuple[fr.Frame, int]]] = {
    "Hello": st.tuples(st.builds(fr.Hello, fabric=peer, peer=peer, incarnation=count, protocol=peer), st.just(0)),
    "Sync": st.tuples(
        st.builds(
            fr.Sync, epoch=stamp, run=text, committed=st.integers(-2, 2**53), generation=maybe_generation,
        ),
        st.just(0),
    ),
    "ViewFrame": st.tuples(st.builds(fr.ViewFrame, epoch=stamp), st.integers(0, codec.MAX_DOCUMENT_BYTES)),
    "Ping": st.tuples(
        st.builds(
            fr.Ping, waiting=st.booleans(), stamp=seconds, echo=seconds, held=seconds, every=seconds, epoch=stamp,
            reaches=bits, orphan=st.booleans(), level=st.integers(-1, 2**53),
            settled=st.booleans(), ballot=count,
        ),
        st.just(0),
    ),
    "Reduce": st.builds(
        lambda before, items, after, kind, **rest: (
            fr.Reduce(offset=before, total=before + items + after, dtype=kind, **rest),
            items * (4 if kind == "<f4" else 8),
        ),
        small, small, small, dtype, epoch=stamp, round=count, contributors=bits, weight=rate, rate_bytes_per_s=rate,
    ) | st.builds(
        lambda before, items, after, precision, **rest: (
            fr.Reduce(
                offset=BLOCK * before, total=BLOCK * (before + items + after), dtype="<f4", precision=precision, **rest
            ),
            encoded_bytes(precision, BLOCK * items),
        ),
        small, small, small, precision, epoch=stamp, round=count, contributors=bits, weight=rate,
    ),
    "Result": st.builds(
        lambda before, items, after, kind, commit, **rest: (
            fr.Result(
                offset=before, total=before + items + after, dtype=kind, commit=None if after else commit, **rest
            ),
            items * (4 if kind == "<f4" else 8),
        ),
        small, small, small, dtype, commits, epoch=stamp, round=count, rate_bytes_per_s=rate,
    ) | st.builds(
        lambda before, items, precision, commit, **rest: (
            fr.Result(
                offset=BLOCK * before, total=BLOCK * before + items, dtype="<f4", commit=commit, precision=precision,
                **rest,
            ),
            encoded_bytes(precision, items),
        ),
        small, small, precision, commits, epoch=stamp, round=count,
    ),
    "Abort": st.tuples(
        st.builds(
            fr.Abort, epoch=stamp, round=count, cause=st.sampled_from(get_args(fr.Cause)), reason=text,
            over=st.booleans(),
        ),
        st.just(0),
    ),
    "Measured": st.tuples(
        st.builds(
            fr.Measured,
            epoch=stamp,
            peer=peer,
            rate_bytes_per_s=st.floats(0, 1e13),
            links=st.lists(
                st.builds(
                    fr.OfLink,
                    position=st.integers(0, 4095),
                    rate_bytes_per_s=st.floats(0, 1e13),
                    trip_s=st.floats(0, 60),
                    reach=st.integers(-1, 1),
                ),
                max_size=3,
            ).map(tuple),
        ),
        st.just(0),
    ),
    "Suspect": st.tuples(st.builds(fr.Suspect, epoch=stamp, peer=peer, reason=text), st.just(0)),
    "Meta": st.tuples(
        st.builds(fr.Meta, epoch=stamp, round=count, what=st.sampled_from(get_args(fr.MetaWhat)), about=count),
        st.just(0),
    ),
    "Leave": st.tuples(st.builds(fr.Leave, peer=peer, incarnation=count, until=st.integers(-1, 2**53)), st.just(0)),
    "StateRequest": st.tuples(st.builds(fr.StateRequest, run=text), st.just(0)),
    "State": st.builds(
        lambda before, size, after, **rest: (
            fr.State(offset=before, total=before + size + after, **rest), size
        ),
        small, small, small, run=text, round=count,
    ),
    "Bye": st.tuples(st.builds(fr.Bye, reason=text), st.just(0)),
    "Have": st.tuples(st.builds(fr.Have, epoch=stamp, round=count, holding=bits), st.just(0)),
    "Progress": st.tuples(
        st.builds(
            fr.Progress, epoch=stamp, round=count, code=text, began=bits, holding=st.booleans(),
            done=st.binary(max_size=4096),
        ),
        st.just(0),
    ),
    "Release": st.tuples(
        st.builds(fr.Release, epoch=stamp, round=count, done=st.binary(max_size=4096), anew=st.booleans(), code=text),
        st.just(0),
    ),
    "Decide": st.tuples(st.builds(fr.Decide, epoch=stamp, round=count), st.just(0)),
    "Knock": st.tuples(st.builds(fr.Knock, incarnation=count, answer=st.booleans()), st.just(0)),
    "Via": st.tuples(
        st.builds(
            fr.Via, source=peer, target=peer, tunnel=count, serial=count, kind=st.integers(1, 255),
            header=st.binary(max_size=200),
        ),
        st.integers(0, codec.MAX_DOCUMENT_BYTES),
    ),
    "NoWay": st.tuples(st.builds(fr.NoWay, target=peer, tunnel=count), st.just(0)),
    "Poll": st.tuples(st.builds(fr.Poll, epoch=stamp, candidate=peer, number=count, ballot=count), st.just(0)),
    "Propose": st.tuples(
        st.builds(fr.Propose, epoch=stamp, candidate=peer, number=count, ballot=count),
        st.integers(0, codec.MAX_DOCUMENT_BYTES),
    ),
    "Vote": st.tuples(
        st.builds(
            fr.Vote, epoch=stamp, candidate=peer, number=count, voter=peer, promised=count,
            accepted=st.integers(-1, 2**53), committed=st.integers(-1, 2**53), holding=st.booleans(),
        ),
        st.integers(0, codec.MAX_DOCUMENT_BYTES),
    ),
    "Call": st.tuples(
        st.builds(
            fr.Call, incarnation=count, generation=maybe_generation, epoch=stamp, known=maybe_generation,
            view=st.booleans(),
        ),
        st.just(0),
    ),
    "Here": st.tuples(
        st.builds(
            fr.Here, incarnation=count, generation=maybe_generation, epoch=stamp, known=maybe_generation,
            aside=st.booleans(),
        ),
        st.just(0),
    ),
}  # fmt: skip
any_frame = st.one_of(*FRAMES.values())


def decode(data: bytes) -> tuple[fr.Frame, int]:
    """What a transport does with the bytes of a prelude and a header."""
    if len(data) < codec.PRELUDE.size:
        raise WireError("too short for a prelude")
    kind, header_bytes, payload_bytes = codec.decode_prelude(data)
    header = data[codec.PRELUDE.size : codec.PRELUDE.size + header_bytes]
    return codec.decode_header(kind, header, payload_bytes), payload_bytes


def test_every_kind_of_frame_is_tested() -> None:
    assert set(FRAMES) == {kind.__name__ for kind in codec._KINDS}


@pytest.mark.parametrize("kind", sorted(FRAMES))
@given(data=st.data())
def test_there_and_back_again(kind: str, data: st.DataObject) -> None:
    frame, payload_bytes = data.draw(FRAMES[kind])
    assert decode(codec.encode(frame, payload_bytes)) == (frame, payload_bytes)


@given(any_frame, st.lists(st.one_of(st.integers(), st.text(max_size=5), st.none()), min_size=1, max_size=3))
def test_fields_of_a_newer_peer_are_ignored(drawn: tuple[fr.Frame, int], more: list[object]) -> None:
    frame, payload_bytes = drawn
    kind, header_bytes, _ = codec.decode_prelude(codec.encode(frame, payload_bytes))
    header = codec.encode(frame, payload_bytes)[-header_bytes:]
    longer = msgpack.packb(msgpack.unpackb(header) + [n if not isinstance(n, int) else n % 2**60 for n in more])
    assert codec.decode_header(kind, longer, payload_bytes) == frame


# -- hostile bytes -----------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data)


@given(st.sampled_from(range(1, len(codec._KINDS) + 1)), st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_arbitrary_headers(code: int, header: bytes, payload_bytes: int) -> None:
    data = codec.PRELUDE.pack(b"EP", codec.FRAME_VERSION, code, len(header), payload_bytes) + header
    try:
        frame, size = decode(data)
    except WireError:
        return
    assert decode(codec.encode(frame, size)) == (frame, size)


@given(any_frame, st.data())
def test_mutated_frames(drawn: tuple[fr.Frame, int], data: st.DataObject) -> None:
    frame, payload_bytes = drawn
    raw = bytearray(codec.encode(frame, payload_bytes))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        change = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if change == "flip":
            raw[at] ^= data.draw(st.integers(1, 255))
        elif change == "cut" and len(raw) > 1:
            del raw[at]
        else:
            raw.insert(at, data.draw(st.integers(0, 255)))
    with contextlib.suppress(WireError):
        found, size = decode(bytes(raw))
        assert type(found) in codec._KINDS
        assert size <= codec.MAX_PAYLOAD_BYTES


packable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(st.sampled_from(codec._KINDS), packable, st.integers(0, 4096))
def test_headers_of_anything_that_msgpack_can_say(kind: type[fr.Frame], header: object, payload_bytes: int) -> None:
    try:
        frame = codec.decode_header(kind, msgpack.packb(header), payload_bytes)
    except WireError:
        return
    assert isinstance(frame, kind)


def test_deeply_nested_headers() -> None:
    with pytest.raises(WireError):
        codec.decode_header(fr.Bye, b"\x91" * 5000, 0)


@pytest.mark.parametrize("kind", codec._KINDS)
def test_lengths_are_limited_before_anything_is_stored(kind: type[fr.Frame]) -> None:
    code = codec._KINDS.index(kind) + 1
    for payload_bytes in (codec.MAX_PAYLOAD_BYTES + 1, 2**32 - 1):
        with pytest.raises(WireError, match=f"{kind.__name__} frame announces {payload_bytes} payload bytes"):
            codec.decode_prelude(codec.PRELUDE.pack(b"EP", codec.FRAME_VERSION, code, 3, payload_bytes))
    limit = (
        codec.MAX_PAYLOAD_BYTES if kind in (fr.Reduce, fr.Result, fr.State)
        else codec.MAX_DOCUMENT_BYTES if kind in (fr.ViewFrame, fr.Propose, fr.Vote, fr.Via) else 0
    )  # fmt: skip
    assert codec.decode_prelude(codec.PRELUDE.pack(b"EP", codec.FRAME_VERSION, code, 3, limit)) == (kind, 3, limit)
    with pytest.raises(WireError):
        codec.decode_prelude(codec.PRELUDE.pack(b"EP", codec.FRAME_VERSION, code, 3, limit + 1))


@pytest.mark.parametrize("version", [0, 1, 4, 255])
def test_another_version_is_named(version: int) -> None:
    with pytest.raises(VersionError, match=f"version {version}; this build speaks 5"):
        codec.decode_prelude(struct.pack("!2sBBHI", b"EP", version, 1, 0, 0))


def test_what_is_no_frame_is_shown() -> None:
    with pytest.raises(WireError, match=r"not an edgepeer frame: starts with b'GE'"):
        codec.decode_prelude(b"GET / HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "wrong",
    [
        fr.Reduce(epoch=1, round=1, offset=0, total=1, dtype="<f4", contributors=b"", weight=float("nan")),
        fr.Reduce(epoch=1, round=1, offset=0, total=1, dtype="<f4", contributors=b"", weight=-1.0),
        fr.Reduce(epoch=1, round=1, offset=0, total=1, dtype="<f4", contributors=bytes(513), weight=1.0),
        fr.Reduce(epoch=1, round=1, offset=1, total=1, dtype="<f4", contributors=b"", weight=1.0),
        fr.Reduce(epoch=1, round=1, offset=0, total=1, dtype=">f4", contributors=b"", weight=1.0),  # type: ignore[arg-type]
        fr.Result(epoch=1, round=1, offset=0, total=1, dtype="<f4", rate_bytes_per_s=float("nan"), commit=None),
        fr.Result(epoch=1, round=1, offset=0, total=1, dtype="<f4", commit=None),
        fr.Hello(fabric="", peer="p", incarnation=1),
        fr.Hello(fabric="f", peer="x" * 64, incarnation=1),
        fr.Hello(fabric="f", peer="p", incarnation=-1),
        fr.Sync(epoch=1, run="", committed=-3),
        fr.Suspect(epoch=1, peer="p", reason="x" * 257),
        fr.Measured(epoch=1, peer="p", rate_bytes_per_s=-1.0),
        fr.Measured(epoch=1, peer="p", rate_bytes_per_s=float("inf")),
        fr.Measured(epoch=1, peer="p", rate_bytes_per_s=float("nan")),
        fr.Measured(epoch=1, peer="p", rate_bytes_per_s=0.0, links=(fr.OfLink(position=4096),)),
        fr.Measured(epoch=1, peer="p", rate_bytes_per_s=0.0, links=(fr.OfLink(position=0, trip_s=61.0),)),
        fr.Measured(epoch=1, peer="p", rate_bytes_per_s=0.0, links=(fr.OfLink(position=0, trip_s=float("nan")),)),
        fr.Measured(epoch=1, peer="p", rate_bytes_per_s=0.0, links=(fr.OfLink(position=0, reach=2),)),
        fr.Measured(epoch=1, peer="p", rate_bytes_per_s=0.0, links=(fr.OfLink(position=0),) * 129),
        fr.State(run="", round=1, offset=0, total=-1),
        fr.Ping(waiting=False, stamp=float("nan")),
        fr.Ping(waiting=False, stamp=float("inf")),
        fr.Ping(waiting=False, echo=-1.0),
        fr.Ping(waiting=False, held=-1e-9),
        fr.Ping(waiting=False, every=float("inf")),
        fr.Ping(waiting=False, reaches=bytes(513)),
        fr.Ping(waiting=False, epoch=-1),
        fr.Ping(waiting=False, epoch=2**63),
        fr.Ping(waiting=False, level=-2),
        fr.Ping(waiting=False, ballot=-1),
        fr.Have(epoch=1, round=-1),
        fr.Decide(epoch=-1, round=1),
        fr.Via(source="", target="b", tunnel=1, serial=0, kind=4, header=b""),
        fr.Via(source="a", target="b" * 64, tunnel=1, serial=0, kind=4, header=b""),
        fr.Via(source="a", target="b", tunnel=-1, serial=0, kind=4, header=b""),
        fr.Via(source="a", target="b", tunnel=1, serial=2**53 + 1, kind=4, header=b""),
        fr.Via(source="a", target="b", tunnel=1, serial=0, kind=0, header=b""),
        fr.Via(source="a", target="b", tunnel=1, serial=0, kind=256, header=b""),
        fr.Via(source="a", target="b", tunnel=1, serial=0, kind=4, header=bytes(4097)),
        fr.Knock(incarnation=-1, answer=False),
        fr.NoWay(target="", tunnel=1),
        fr.Poll(epoch=1, candidate="", number=1),
        fr.Poll(epoch=1, candidate="a", number=-1),
        fr.Poll(epoch=1, candidate="a", number=1, ballot=-1),
        fr.Poll(epoch=1, candidate="a", number=1, ballot=2**53 + 1),
        fr.Propose(epoch=1, candidate="a", number=1, ballot=-1),
        fr.Propose(epoch=1, candidate="", number=1, ballot=0),
        fr.Vote(epoch=1, candidate="a", number=1, voter="x" * 64),
        fr.Vote(epoch=1, candidate="a", number=1, voter="b", promised=-1),
        fr.Vote(epoch=1, candidate="a", number=1, voter="b", accepted=-2),
        fr.Vote(epoch=1, candidate="a", number=1, voter="b", committed=-2),
        fr.Call(incarnation=-1),
        fr.Call(incarnation=1, generation=Generation(0)),
        fr.Call(incarnation=1, known=Generation(1, 4097)),
        fr.Here(incarnation=1, generation=Generation(1, 1, 2**32)),
        fr.Here(incarnation=1, epoch=-1),
        fr.Sync(epoch=1, run="", committed=0, generation=Generation(2**31)),
    ],
)
def test_fields_out_of_bounds(wrong: fr.Frame) -> None:
    payload_bytes = 4 if isinstance(wrong, fr.Reduce | fr.Result) else 0
    with pytest.raises(WireError):
        decode(codec.encode(wrong, payload_bytes))


@pytest.mark.parametrize(("payload_bytes", "offset"), [(3, 0), (4, 1), (8, 0), (5, 0)])
def test_segments_lie_within_their_vector(payload_bytes: int, offset: int) -> None:
    frame = fr.Reduce(epoch=1, round=1, offset=offset, total=1, dtype="<f4", contributors=b"\1", weight=1.0)
    with pytest.raises(WireError, match="Reduce of"):
        decode(codec.encode(frame, payload_bytes))


@pytest.mark.parametrize(
    ("precision", "dtype", "offset", "total", "payload_bytes"),
    [
        ("bf16", "<f4", 0, 4, 7),
        ("bf16", "<f4", 0, 4, 10),
        ("bf16", "<f8", 0, 4, 8),
        ("int8", "<f8", 0, 256, 260),
        ("int8", "<f4", 0, 256, 259),  # a part of a block that is not the last
        ("int8", "<f4", 0, 256, 261),
        ("int8", "<f4", 0, 300, 263),
        ("int8", "<f4", 1, 257, 260),
        ("int8", "<f4", 128, 512, 260),
        ("int8", "<f4", 0, 0, 4),
    ],
)
def test_encoded_segments_are_whole_blocks(
    precision: Precision, dtype: fr.Dtype, offset: int, total: int, payload_bytes: int
) -> None:
    common = {"epoch": 1, "round": 1, "offset": offset, "total": total, "dtype": dtype, "precision": precision}
    for frame in (fr.Reduce(contributors=b"\1", weight=1.0, **common), fr.Result(**common)):  # type: ignore[arg-type]
        with pytest.raises(WireError, match=rf"^{type(frame).__name__}.* in {precision}"):
            decode(codec.encode(frame, payload_bytes))


def test_a_precision_that_there_is_not() -> None:
    frame = fr.Reduce(
        epoch=1, round=1, offset=0, total=1, dtype="<f4", contributors=b"\1", weight=1.0, precision="fp4",  # type: ignore[arg-type]
    )  # fmt: skip
    with pytest.raises(WireError, match="Reduce header"):
        decode(codec.encode(frame, 4))


def test_the_commit_comes_with_the_last_segment_and_only_with_that() -> None:
    commit = fr.Commit(decided_in=1, contributors=b"\1", weight=1.0, exact=True, digest=bytes(16))
    early = fr.Result(epoch=1, round=1, offset=0, total=2, dtype="<f4", commit=commit)
    with pytest.raises(WireError, match="only with that"):
        decode(codec.encode(early, 4))
    assert decode(codec.encode(msgspec.structs.replace(early, total=1), 4))


# -- frames in frames --------------------------------------------------------------------------------------

WITH_PAYLOAD = {"Reduce", "Result", "State", "ViewFrame", "Propose", "Vote", "Via"}
CARRIED = sorted(set(FRAMES) - {"Hello", "Via", "Bye", "NoWay"})


def via(kind: int, header: bytes) -> fr.Via:
    return fr.Via(source="a", target="b", tunnel=7, serial=3, kind=kind, header=header)


@pytest.mark.parametrize("kind", CARRIED)
@given(data=st.data())
def test_into_a_via_and_out_again(kind: str, data: st.DataObject) -> None:
    frame, payload_bytes = data.draw(FRAMES[kind])
    carried, size = decode(codec.encode(via(*codec.wrap(frame)), min(payload_bytes, codec.MAX_DOCUMENT_BYTES)))
    assert isinstance(carried, fr.Via)
    if size == payload_bytes:
        assert codec.unwrap(carried, size) == frame


@pytest.mark.parametrize(
    "frame",
    [
        fr.Hello(fabric="f", peer="a", incarnation=1),
        fr.Bye(reason="so long"),
        via(4, b"\x91\xc2"),
    ],
)
def test_what_is_about_connections_is_never_carried(frame: fr.Frame) -> None:
    code, header = codec.wrap(frame)
    with pytest.raises(WireError, match=f"Via carries a frame of kind {code}"):
        codec.unwrap(via(code, header), 0)


@pytest.mark.parametrize("kind", [len(codec._KINDS) + 1, 255])
def test_a_via_of_a_kind_that_there_is_not(kind: int) -> None:
    with pytest.raises(WireError, match=f"Via carries a frame of kind {kind}"):
        codec.unwrap(via(kind, b"\x90"), 0)


@pytest.mark.parametrize("kind", [kind for kind in CARRIED if kind not in WITH_PAYLOAD])
@given(data=st.data())
def test_a_frame_without_a_payload_has_none_in_a_via_either(kind: str, data: st.DataObject) -> None:
    frame, _ = data.draw(FRAMES[kind])
    with pytest.raises(WireError, match=f"{kind} frame in a Via has 1 payload bytes"):
        codec.unwrap(via(*codec.wrap(frame)), 1)


def test_a_segment_in_a_via_lies_within_its_vector() -> None:
    frame = fr.Reduce(epoch=1, round=1, offset=1, total=2, dtype="<f4", contributors=b"\1", weight=1.0)
    assert codec.unwrap(via(*codec.wrap(frame)), 4) == frame
    for size in (3, 8):
        with pytest.raises(WireError, match="Reduce of"):
            codec.unwrap(via(*codec.wrap(frame)), size)


@given(st.integers(1, 255), st.binary(max_size=200), st.integers(0, codec.MAX_DOCUMENT_BYTES))
def test_garbage_in_a_via(kind: int, header: bytes, payload_bytes: int) -> None:
    with contextlib.suppress(WireError):
        found = codec.unwrap(via(kind, header), payload_bytes)
        assert type(found).__name__ in CARRIED


@given(st.integers(1, 255), packable, st.integers(0, 4096))
def test_anything_that_msgpack_can_say_in_a_via(kind: int, header: object, payload_bytes: int) -> None:
    with contextlib.suppress(WireError):
        found = codec.unwrap(via(kind, msgpack.packb(header)), payload_bytes)
        assert type(found).__name__ in CARRIED


def test_every_header_fits_into_a_via() -> None:
    """The longest there can be: 512 bytes of contributors and of chunks, and the longest texts."""
    most, last, name = 2**63 - 1, Generation(2**31 - 1, 4096, 2**32 - 1), "\U0001f333" * 63
    commit = fr.Commit(
        decided_in=most, contributors=bytes(512), weight=1e300, exact=True, digest=bytes(16), held_in=most,
        dropped="mismatch", reason="\U0001f333" * 256, chunks=bytes(512), error=1e300, generation=last,
    )  # fmt: skip
    frames: list[fr.Frame] = [
        fr.Result(epoch=2**53, round=2**53, offset=2**53, total=2**53, dtype="<f8", commit=commit),
        fr.Ping(
            waiting=True,
            stamp=1e9,
            echo=1e9,
            held=1.0,
            every=1.0,
            epoch=most,
            level=2**53,
            ballot=2**53,
            reaches=bytes(512),
        ),
        fr.Abort(epoch=2**53, round=2**53, cause="mismatch", reason="\U0001f333" * 256, over=True),
        fr.Measured(
            epoch=most,
            peer=name,
            rate_bytes_per_s=1e13,
            links=(fr.OfLink(position=4095, rate_bytes_per_s=1e13, trip_s=59.9, reach=-1),) * 128,
        ),
        fr.Suspect(epoch=most, peer=name, reason="\U0001f333" * 256),
        fr.Vote(epoch=most, candidate=name, number=2**53, voter=name, promised=2**53, accepted=2**53, committed=2**53),
        fr.Call(incarnation=2**53, generation=last, epoch=most, known=last, view=True, stamp=1e9),
    ]
    for frame in frames:
        code, header = codec.wrap(frame)
        assert codec.decode_header(fr.Via, codec.encode(via(code, header))[codec.PRELUDE.size :], 0) == via(
            code, header
        )


@pytest.mark.parametrize("kind", sorted(FRAMES))
@given(data=st.data())
def test_the_transport_holds_documents_and_what_is_carried_on(kind: str, data: st.DataObject) -> None:
    frame, _ = data.draw(FRAMES[kind])
    assert codec.has_document(frame) == (kind in ("ViewFrame", "Propose", "Vote", "Via"))


# -- bit sets ----------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 4095)))
def test_bit_sets(positions: set[int]) -> None:
    packed = fr.pack_set(sum(1 << position for position in positions))
    assert len(packed) <= 512
    unpacked = fr.unpack_set(packed)
    assert {position for position in range(4096) if unpacked >> position & 1} == positions


def test_what_is_refused_is_not_quoted_at_length() -> None:
    """Each line of a log would be as long as a stranger likes."""
    forged = msgpack.packb([1, 1, 1, 1, "x" * 60_000])
    for kind in (fr.Abort, fr.Reduce, fr.Result):
        with pytest.raises(WireError) as caught:
            codec.decode_header(kind, forged, 0)
        assert len(str(caught.value)) < 250
