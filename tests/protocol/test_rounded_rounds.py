"""Rounds in bf16 and int8, cell by cell: what goes up and down, what ends them, and what is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from transcript import Machine, vector, view

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.encoded import Encoded
from edgepeer.protocol.lane import spans
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.shaping import Shaping
from edgepeer.protocol.streams import bytes_of, digest_of
from edgepeer.wire import codec
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack
from edgepeer.wire.precision import BLOCK, Precision, block_of, encoded_bytes

ABC = view(1, "abc")
LOSSY: list[Precision] = ["bf16", "int8"]


def rounded(values: ev.FloatVector, precision: Precision) -> ev.FloatVector:
    """What is decoded of what a vector is encoded to."""
    out, encoded = np.empty_like(values), Encoded(precision, values.size)
    assert encoded.encode(values, 0, values.size)
    assert encoded.decode(0, values.size, out) == ""
    return out


def some(size: int, seed: int = 1) -> ev.FloatVector:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def machine(name: str, *, up: str, limits: Limits | None = None) -> Machine:
    return Machine(name, limits=limits).join(ABC, up=up)


def sends(m: Machine, kind: type[fr.Frame]) -> list[tuple[str, fr.Frame, bytes]]:
    found = [effect for effect in m.effects if isinstance(effect, fx.Send) and isinstance(effect.frame, kind)]
    return [(send.peer, send.frame, bytes(send.payload or b"")) for send in found]


def reduce(m: Machine, child: str, data: bytes, total: int, precision: Precision, *, offset: int = 0) -> list[str]:
    """A child's segment, in bytes as they travel."""
    frame = fr.Reduce(
        epoch=1, round=1, offset=offset, total=total, dtype="<f4",
        contributors=fr.pack_set(1 << ABC.position(PeerId(child))), weight=1.0, precision=precision,
    )  # fmt: skip
    return m.frame(child, frame, data)


def result(
    m: Machine, data: bytes, total: int, precision: Precision, *, digest: bytes = b"", committed: str = ""
) -> list[str]:
    """The whole result from the parent. `committed`: the precision that its commit says, if another."""
    commit = fr.Commit(
        decided_in=1, held_in=1, contributors=b"\7", weight=3.0, exact=True, final=True,
        digest=digest or bytes(16), precision=committed or precision,  # type: ignore[arg-type]
    )  # fmt: skip
    frame = fr.Result(
        epoch=1, round=1, offset=0, total=total, dtype="<f4", commit=commit, precision=precision
    )  # fmt: skip
    return m.frame("a", frame, data)


# -- up and down -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", LOSSY)
@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 1000])
def test_a_leaf_sends_its_vector_rounded(precision: Precision, size: int) -> None:
    c, own = machine("c", up="a"), some(size)
    c.hear(ev.Contribute(own, 1.0, precision))
    ((peer, frame, data),) = sends(c, fr.Reduce)
    assert (peer, frame.precision, frame.dtype, frame.total) == ("a", precision, "<f4", size)  # type: ignore[attr-defined]
    assert data == bytes_of(rounded(own, precision), precision)
    assert len(data) == encoded_bytes(precision, size)


@pytest.mark.parametrize("precision", LOSSY)
def test_the_root_rounds_once_and_applies_what_it_sends(precision: Precision) -> None:
    a, own, b, c = machine("a", up="bc"), some(1000), some(1000, 2), some(1000, 3)
    reduce(a, "c", bytes_of(rounded(c, precision), precision), 1000, precision)
    reduce(a, "b", bytes_of(rounded(b, precision), precision), 1000, precision)
    a.hear(ev.Contribute(own, 2.0, precision))
    expected = rounded(own * np.float32(2) + rounded(b, precision) + rounded(c, precision), precision)
    for _, frame, data in sends(a, fr.Result):
        assert isinstance(frame, fr.Result)
        assert data == bytes_of(expected, precision)
        assert frame.commit is not None
        assert (frame.commit.precision, frame.commit.digest) == (precision, digest_of(expected, precision))
    assert len(sends(a, fr.Result)) == 2
    a.have("b")
    (committed,) = [effect for effect in a.effects if isinstance(effect, fx.RoundCommitted)]
    assert committed.sum.tobytes() == expected.tobytes()
    assert (committed.precision, committed.exact) == (precision, True)
    assert committed.digest == digest_of(expected, precision)


@pytest.mark.parametrize("precision", LOSSY)
def test_a_child_applies_what_it_decodes(precision: Precision) -> None:
    c, total = machine("c", up="a"), rounded(some(700), precision)
    c.hear(ev.Contribute(some(700), 1.0, precision))
    result(c, bytes_of(total, precision), 700, precision, digest=digest_of(total, precision))
    (committed,) = [effect for effect in c.effects if isinstance(effect, fx.RoundCommitted)]
    assert committed.sum.tobytes() == total.tobytes()
    assert committed.precision == precision


@pytest.mark.parametrize("precision", LOSSY)
def test_segments_end_with_blocks(precision: Precision) -> None:
    c = machine("c", up="a", limits=Limits(smallest_segment_bytes=300, first_segment_bytes=300))
    c.hear(ev.Contribute(some(1000), 1.0, precision))
    whole = bytes_of(rounded(some(1000), precision), precision)
    found, at = sends(c, fr.Reduce), 0
    assert len(found) > 3
    for _, frame, data in found:
        assert isinstance(frame, fr.Reduce)
        assert frame.offset % block_of(precision) == 0
        assert data == whole[at : at + len(data)]
        at += len(data)
    assert at == len(whole)


@pytest.mark.parametrize("precision", LOSSY)
def test_one_alone_has_what_others_would_have(precision: Precision) -> None:
    alone, own = Machine("a").join(view(1, "a")), some(300)
    alone.hear(ev.Contribute(own, 1.0, precision))
    (committed,) = [effect for effect in alone.effects if isinstance(effect, fx.RoundCommitted)]
    assert committed.sum.tobytes() == rounded(own, precision).tobytes()


def test_after_a_reconnect_the_rest_is_sent_from_a_block_on() -> None:
    """What somebody says that it has may be anything."""
    c, own = machine("c", up="a"), some(1000)
    c.hear(ev.Contribute(own, 1.0, "int8"))
    whole = bytes_of(rounded(own, "int8"), "int8")
    for have, first in ((512, 512), (700, 512), (3, 0)):
        c.hear(ev.LinkDown(PeerId("a"), "reset"))
        c.hear(ev.LinkUp(PeerId("a"), 1))
        c.frame("a", fr.Sync(epoch=1, run="", committed=0, have=(have,)))
        ((_, frame, data),) = sends(c, fr.Reduce)
        assert isinstance(frame, fr.Reduce)
        assert (frame.offset, data) == (first, whole[encoded_bytes("int8", first) :])


def test_memory_that_is_taken_back_is_not_on_its_way() -> None:
    """What was sent is not the owner's vector, so the link to the parent stays."""
    c, own = machine("c", up="a"), some(1000)
    c.hear(ev.Contribute(own, 1.0, "int8"))
    before = [data for _, _, data in sends(c, fr.Reduce)]
    assert c.hear(ev.Abandoned()) == []
    own.fill(7)
    c.hear(ev.LinkDown(PeerId("a"), "reset"))
    c.hear(ev.LinkUp(PeerId("a"), 1))
    c.frame("a", fr.Sync(epoch=1, run="", committed=0))
    assert [data for _, _, data in sends(c, fr.Reduce)] == before


# -- what ends a round ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "childs", "said"),
    [
        ("float32", "int8", "b brings 4 x float32 in int8 against 4 x float32 at a"),
        ("int8", "float32", "b brings 4 x float32 against 4 x float32 in int8 at a"),
        ("bf16", "int8", "b brings 4 x float32 in int8 against 4 x float32 in bf16 at a"),
    ],
)
def test_precisions_that_peers_do_not_share(own: Precision, childs: Precision, said: str) -> None:
    a = machine("a", up="bc")
    a.hear(ev.Contribute(vector(1, 2, 3, 4), 1.0, own))
    data = (
        bytes_of(rounded(vector(1, 2, 3, 4), childs), childs) if childs != "float32" else vector(1, 2, 3, 4).tobytes()
    )
    assert reduce(a, "b", data, 4, childs) == ["b <- drop 1: mismatch complete", "c <- drop 1: mismatch complete"]
    assert a.have("b")[-1] == "round 1 aborted: mismatch"
    (aborted,) = [effect for effect in a.effects if isinstance(effect, fx.RoundAborted)]
    assert aborted.reason == said


@pytest.mark.parametrize("precision", LOSSY)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named_and_ends_the_round(precision: Precision, wrong: float) -> None:
    c = machine("c", up="a")
    c.hear(ev.Contribute(vector(1, wrong, 3), 1.0, precision))
    ((_, frame, _),) = sends(c, fr.Abort)
    assert isinstance(frame, fr.Abort)
    assert (frame.cause, frame.over) == ("nonfinite", False)
    assert frame.reason == f"c brings a vector that is not finite at element 1, which {precision} can't express"
    assert sends(c, fr.Reduce) == []
    a = machine("a", up="bc")
    a.hear(ev.Contribute(vector(1, 2, 3), 1.0, precision))
    assert a.frame("c", frame) == ["b <- drop 1: nonfinite complete", "c <- drop 1: nonfinite complete"]
    assert a.have("b") == ["b <- abort 1: nonfinite", "c <- abort 1: nonfinite", "round 1 aborted: nonfinite"]
    a.hear(ev.Contribute(vector(1, 2, 3), 1.0, precision))  # and the next one goes on


@pytest.mark.parametrize("precision", LOSSY)
def test_a_sum_that_overflows_is_named(precision: Precision) -> None:
    a, large = machine("a", up="bc"), rounded(vector(0, 3e38), precision)
    reduce(a, "b", bytes_of(large, precision), 2, precision)
    reduce(a, "c", bytes_of(large, precision), 2, precision)
    assert a.hear(ev.Contribute(large, 1.0, precision))[-1] == "c <- drop 1: nonfinite complete"
    a.have("b")
    (aborted,) = [effect for effect in a.effects if isinstance(effect, fx.RoundAborted)]
    assert aborted.reason == f"a has a partial sum that is not finite at element 1, which {precision} can't express"


@pytest.mark.parametrize("precision", LOSSY)
def test_what_counts_for_nothing_need_not_be_finite(precision: Precision) -> None:
    c = machine("c", up="a")
    assert c.hear(ev.Contribute(vector(np.nan, np.inf), 0.0, precision)) == [
        f"a <- reduce 1 [0:] ({precision}) 0 0 of 100"
    ]


def test_as_float32_it_travels_as_ever() -> None:
    c = machine("c", up="a")
    assert c.hear(ev.Contribute(vector(np.nan, np.inf), 1.0)) == ["a <- reduce 1 [0:] nan inf of 100"]


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "data", "why"),
    [
        ("bf16", struct.pack("<3H", 0, 0x7F80, 0), "is not finite at element 1"),
        ("bf16", struct.pack("<3H", 0, 0, 0xFFFF), "is not finite at element 2"),
        ("int8", struct.pack("<f3b", np.nan, 127, 0, 0), "has scale nan and numbers up to 127 in block 0"),
        ("int8", struct.pack("<f3b", -1.0, 127, 0, 0), "has scale -1 and numbers up to 127 in block 0"),
        ("int8", struct.pack("<f3b", 1.0, -128, 0, 0), "has scale 1 and numbers up to 128 in block 0"),
    ],
)
def test_forged_numbers_cost_the_link(precision: Precision, data: bytes, why: str) -> None:
    a = machine("a", up="bc")
    a.hear(ev.Contribute(vector(1, 2, 3), 1.0, precision))
    assert reduce(a, "b", data, 3, precision)[0] == f"close b: Reduce at 0 {why}"
    c = machine("c", up="a")
    c.hear(ev.Contribute(vector(1, 2, 3), 1.0, precision))
    assert result(c, data, 3, precision)[0] == f"close a: result of round 1 {why}, in a segment at 0"


@pytest.mark.parametrize("precision", LOSSY)
def test_a_result_is_what_its_commit_says(precision: Precision) -> None:
    total = rounded(some(300), precision)
    data, right = bytes_of(total, precision), digest_of(total, precision)
    for digest, committed, why in (
        (digest_of(total), "", "does not have the root's digest"),  # of what it stands for, not of what travels
        (bytes(16), "", "does not have the root's digest"),
        (right, "float32", "is not in float32, as its commit says"),
    ):
        c = machine("c", up="a")
        c.hear(ev.Contribute(some(300), 1.0, precision))
        said = result(c, data, 300, precision, digest=digest, committed=committed)
        assert said[0] == f"close a: result of round 1 {why}"


@pytest.mark.parametrize("precision", LOSSY)
def test_a_result_in_another_precision_costs_the_link(precision: Precision) -> None:
    c, total = machine("c", up="a"), some(300)
    c.hear(ev.Contribute(total, 1.0, precision))
    said = result(c, total.tobytes(), 300, "float32", digest=digest_of(total))
    assert said[0] == f"close a: result of round 1 is 300 x float32 against 300 x float32 in {precision}"
    assert not [effect for effect in c.effects if isinstance(effect, fx.RoundCommitted)]


@pytest.mark.parametrize("brought", [some(300), some(400), some(300).astype(np.float64)])
@pytest.mark.parametrize("precision", LOSSY)
def test_what_was_decided_without_this_peer_need_not_be_like_its_vector(
    precision: Precision, brought: ev.FloatVector
) -> None:
    """It can't bring anything to that round any more; without the result it would wait for it, and all for it."""
    c, total, without = machine("c", up="a"), rounded(some(300), precision), view(2, "ab")
    c.hear(ev.Contribute(brought, 1.0))
    c.learn(view(3, "abc", first_round=2))
    c.level("a")
    c.document("a", fr.ViewFrame(epoch=without.stamp), pack(without))
    commit = fr.Commit(
        decided_in=2, held_in=2, contributors=b"\3", weight=2.0, exact=False, final=True,
        digest=digest_of(total, precision), precision=precision,
    )  # fmt: skip
    frame = fr.Result(
        epoch=3, round=1, offset=0, total=total.size, dtype="<f4", commit=commit, precision=precision
    )  # fmt: skip
    c.frame("a", frame, bytes(bytes_of(total, precision)))
    (committed,) = [effect for effect in c.effects if isinstance(effect, fx.RoundCommitted)]
    assert (committed.sum.tobytes(), committed.precision) == (total.tobytes(), precision)
    assert (committed.contributors, committed.exact) == (("a", "b"), False)


@pytest.mark.parametrize("final", [True, False])
def test_it_is_passed_on_whole_since_the_first_of_several_segments_has_no_commit(final: bool) -> None:
    """Who gets that takes it for one of the present view, which must be like its vector: it would cost the link."""
    chains, without, total = [view(at, "abc", fanout=1) for at in (1, 3)], view(2, "ad"), some(100)
    b, c = (Machine(name, limits=Limits(first_segment_bytes=64)).join(chains[0]) for name in "bc")
    for each, level in ((b, "ac"), (c, "b")):
        each.hear(ev.Contribute(some(40), 1.0))
        each.learn(chains[1])
        for name in level:
            each.level(name)
    b.document("a", fr.ViewFrame(epoch=without.stamp), pack(without))
    commit = fr.Commit(
        decided_in=2, held_in=3, contributors=b"\3", weight=2.0, exact=False, final=final, digest=digest_of(total)
    )  # fmt: skip
    b.frame("a", fr.Result(epoch=3, round=1, offset=0, total=total.size, dtype="<f4", commit=commit), total)
    ((_, told, document), *_), passed_on = sends(b, fr.ViewFrame), sends(b, fr.Result)
    assert [(to, len(data)) for to, _, data in passed_on] == [("c", total.nbytes)]
    c.document("b", told, document)
    assert not [line for _, frame, data in passed_on for line in c.frame("b", frame, data) if "close" in line]
    assert c.node.parts.course.holding or c.node.parts.course.committed == 1


# -- ranges --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [0, 1, 255, 256, 300, 1000, 407_050])
@pytest.mark.parametrize("precision", LOSSY)
def test_ranges_of_a_vector_are_encoded_to_what_the_whole_is(lanes: int, size: int, precision: Precision) -> None:
    found = spans(size, lanes, block_of(precision))
    assert [found[0].start, *(over.stop for over in found)] == [*(over.start for over in found), size]
    assert all(over.start % block_of(precision) == 0 for over in found)
    values = rounded(some(size), precision)
    assert b"".join(bytes_of(values[over], precision) for over in found) == bytes(bytes_of(values, precision))


def test_ranges_are_about_as_long() -> None:
    lengths = [over.stop - over.start for over in spans(407_050, 3, BLOCK)]
    assert max(lengths) - min(lengths) <= 2 * BLOCK


@pytest.mark.parametrize("precision", ["float32", "bf16", "int8"])
def test_trees_are_chosen_for_the_bytes_that_travel(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(Shaping, "contributed", lambda shaping, travels, now: told.append(travels))
    m = machine("b", up="a")
    m.hear(ev.Contribute(some(2000), 1.0, precision))
    assert told == [encoded_bytes(precision, 2000)]


@pytest.mark.parametrize("lanes", [1, 2])
def test_nor_what_goes_up_in_the_place_of_a_sum(lanes: int) -> None:
    a, total, without = Machine("a"), rounded(some(300), "int8"), view(2, "bc")
    a.join(view(1, "abc", lanes=lanes), up="bc")
    a.hear(ev.Contribute(some(400), 1.0))
    a.learn(view(3, "abc", lanes=lanes))
    commit = fr.Commit(
        decided_in=2, held_in=2, contributors=b"\3", weight=2.0, exact=False, final=False,
        digest=digest_of(total, "int8"), precision="int8",
    )  # fmt: skip
    frame = fr.Result(
        epoch=3, round=1, offset=0, total=300, dtype="<f4", commit=commit, precision="int8", up=True
    )  # fmt: skip
    for child in "bc":
        a.level(child)
        a.document(child, fr.ViewFrame(epoch=without.stamp), pack(without))
        a.frame(child, frame, bytes(bytes_of(total, "int8")))
    a.have("b")
    (committed,) = [effect for effect in a.effects if isinstance(effect, fx.RoundCommitted)]
    assert (committed.sum.tobytes(), committed.contributors) == (total.tobytes(), ("b", "c"))


ASTRAY = [(1024, "which has 512 elements"), (100, "which has 512 elements, and ends within a block, at 100")]


def of_three(precision: Precision) -> Machine:
    """The root of the second of three ranges, of 512, 512 and 612 elements, has brought its vector."""
    b = Machine("b").join(view(1, "abc", lanes=3), up="ac")
    b.hear(ev.Contribute(some(1636), 1.0, precision))
    return b


@pytest.mark.parametrize(("size", "why"), ASTRAY)
def test_a_segment_that_is_none_of_its_range_costs_the_link(size: int, why: str) -> None:
    """The codec does not know where a range ends: at 100 elements, that of 1636 might."""
    b = of_three("int8")
    commit = fr.Commit(
        decided_in=1, held_in=1, contributors=b"\7", weight=3.0, exact=True, digest=bytes(16), precision="int8"
    )
    up, down = (
        fr.Reduce(
            epoch=1, round=1, offset=0, total=1636, dtype="<f4", contributors=b"\4", weight=1.0, lane=2,
            precision="int8",
        ),
        fr.Result(epoch=1, round=1, offset=0, total=1636, dtype="<f4", commit=commit, lane=1, precision="int8"),
    )  # fmt: skip
    data = bytes(bytes_of(rounded(some(size), "int8"), "int8"))
    for child, frame in (("c", up), ("a", down)):
        prelude = codec.encode(frame, len(data))
        assert codec.decode_header(type(frame), prelude[codec.PRELUDE.size :], len(data)) == frame
        said = b.frame(child, frame, data)[0]
        assert said.startswith(f"close {child}: ")
        assert said.endswith(f"at 0 of lane {frame.lane}, {why}")


def test_a_segment_beyond_its_range_costs_the_link_in_bf16_too() -> None:
    b = of_three("bf16")
    (over,) = spans(1636, 3)[1:2]
    frame = fr.Reduce(
        epoch=1, round=1, offset=0, total=1636, dtype="<f4", contributors=b"\4", weight=1.0, lane=2, precision="bf16"
    )
    data = bytes(bytes_of(rounded(some(over.stop - over.start + 1), "bf16"), "bf16"))
    assert b.frame("c", frame, data)[0].startswith("close c: Reduce at 0 of lane 2, which has ")
