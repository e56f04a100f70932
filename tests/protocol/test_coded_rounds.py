"""Coded rounds at one machine: the table in closing.py. The tree: a over bc, b over de."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from codes import FIVE, PAIRS, WHOLE, coded, encoded, progress
from numpy.typing import NDArray
from transcript import Machine, vector, view

from edgepeer.coding.computed import ComputedChunks
from edgepeer.coding.scheme import CodingScheme, parse_scheme
from edgepeer.errors import ConfigError
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.encoded import Encoded
from edgepeer.wire import codec
from edgepeer.wire import frames as fr
from edgepeer.wire.precision import Precision

THREE = view(1, "bde", slots="bde")
HALVES = parse_scheme("partial:l=2,replication=2")  # vectors of half the length; of both copies of each chunk


def orders(code: CodingScheme, workers: int = 5) -> Sequence[Sequence[int]]:
    return code.build(workers, 2).assignment.orders


# -- progress ------------------------------------------------------------------------------------------------


def test_progress_of_all_below_goes_up_in_one_frame() -> None:
    b = coded("b")
    assert b.did({1: 0}) == ["a <- progress 1 of 10: .0..."]
    assert progress(b, "d", "d", "...1.") == ["a <- progress 1 of 1010: .0.1."]
    assert progress(b, "e", "e", "....2") == ["a <- progress 1 of 11010: .0.12"]
    assert b.did({1: 1}) == ["a <- progress 1 of 11010: .1.12"]


def test_who_has_not_begun_passes_on_what_it_hears() -> None:
    b = coded("b")
    assert progress(b, "d", "d", "...1.") == ["a <- progress 1 of 1000: ...1."]


def test_what_has_been_said_is_not_taken_back() -> None:
    b = coded("b")
    progress(b, "d", "d", "...2.", holding=True)
    assert progress(b, "d", "", "...1.") == ["a <- progress 1 of 1000: ...2. holding"]


def test_progress_is_said_again_on_a_new_link() -> None:
    b = coded("b")
    b.did({1: 1})
    b.hear(ev.LinkDown(PeerId("a"), "reset"))
    assert b.did({1: 2}) == []
    assert "a <- progress 1 of 10: .2..." in b.level("a")


def test_progress_waits_for_a_parent_that_is_behind() -> None:
    b = coded("b", view(1, "abcde", slots="abcde", first_round=3), up="de")
    assert b.did({1: 1}, number=3) == []
    b.level("a", 1)
    assert b.did({1: 2}, number=3) == []
    assert "a <- progress 3 of 10: .2..." in b.sync("a", 2)


def test_who_is_given_its_code_in_mid_round_hears_all_again() -> None:
    b = Machine("b").join(FIVE, up="ade")
    assert progress(b, "d", "d", "...1.") == []
    said = b.hear(ev.CodeWanted(PAIRS))
    assert "d <- sync 1 after 0" in said  # whereupon d says its Progress again, and a its Release
    assert progress(b, "d", "d", "...1.") == ["a <- progress 1 of 1000: ...1."]
    b.hear(ev.CodeWanted(PAIRS))  # once more: nothing has changed
    assert progress(b, "e", "e", "....1") == ["a <- progress 1 of 11000: ...11"]


@pytest.mark.parametrize(
    ("who", "done"),
    [("d", "1"), ("d", "......"), ("a", "...1."), ("b", "...1."), ("d", "...9."), ("d", ""), ("c", "...1.")],
)
def test_progress_that_can_not_be(who: str, done: str) -> None:
    b = coded("b")
    said = progress(b, "d", who, done)
    assert any(line.startswith("close d: Progress for") for line in said)
    assert b.did({1: 1}) == ["a <- progress 1 of 10: .1..."]


def test_progress_of_others_slots_does_not_count() -> None:
    b = coded("b")
    assert progress(b, "d", "d", "22212") == ["a <- progress 1 of 1000: ...1."]


def test_chunks_of_slots_in_an_earlier_view() -> None:
    b = coded("b")
    old = b.node.view
    b.learn(view(2, "abde", slots="abde"))
    for peer in "ade":
        b.level(peer)
    assert old is not None
    assert b.hear(ev.ChunksDone(old.stamp, 1, {1: 2})) == []
    assert b.did({1: 1}) == ["a <- progress 1 of 10: .1.."]


# -- closing -------------------------------------------------------------------------------------------------


def test_the_root_closes_when_the_sum_can_be_had() -> None:
    a = coded("a")
    assert [order[0] for order in orders(PAIRS)] == [0, 1, 2, 3, 4]
    assert a.did({0: 1}) == []
    assert progress(a, "c", "c", "..1..") == []
    assert progress(a, "b", "bde", ".1.01") == []
    assert progress(a, "b", "bde", ".1.11") == [
        "b <- release 1: 11111", "c <- release 1: 11111", "encode 1 of 11111",
    ]  # fmt: skip


def test_who_brings_nothing_is_not_waited_for() -> None:
    a = coded("a", code=WHOLE)
    a.did({0: 2})
    progress(a, "c", "c", "..0..", code=WHOLE)
    assert progress(a, "b", "bde", ".2.22", code=WHOLE)[0] == "b <- release 1: 22022"
    encoded(a, 1)
    assert a.reduce("b", vector(10), "bde") == ["b <- result 1 [0:] 11 complete", "c <- result 1 [0:] 11 complete"]
    assert a.have("c", who="c") == []
    assert a.have("b", who="be") == ["b <- decide 1", "c <- decide 1", "round 1 = 11 of abde"]


def test_who_has_not_begun_when_a_round_closes_without_it_has_not_waited_for_its_end() -> None:
    c = coded("c", code=WHOLE)
    c.now = 1000.0
    c.release("a", "22022")
    assert c.result("a", vector(11), "abde") == ["round 1 = 11 of abde (not mine)"]
    (committed,) = (effect for effect in c.effects if isinstance(effect, fx.RoundCommitted))
    assert committed.phases == fx.Phases(waited_s=0.0, broadcast_s=0.0, decided_s=0.0)


def test_a_root_that_has_not_begun_does_not_hold_up_the_others() -> None:
    a = coded("a", code=WHOLE)
    progress(a, "c", "c", "..2..", code=WHOLE)
    assert progress(a, "b", "bde", ".2.22", code=WHOLE) == []  # it has not promised yet that it holds nothing
    a.did({0: 0})
    assert a.said == ["b <- release 1: 02222", "c <- release 1: 02222"]
    a.reduce("c", vector(1), "c")
    assert a.reduce("b", vector(10), "bde")[0] == "b <- result 1 [0:] 11 complete"
    a.have("c", who="c")
    assert a.have("b", who="b")[-1] == "round 1 = 11 of bcde"


def promised(code: CodingScheme = WHOLE) -> Machine:
    """A root that has heard of all in the first round, which is over."""
    a = coded("a", code=code)
    a.did({0: 2})
    progress(a, "c", "c", "..2..", code=code)
    progress(a, "b", "bde", ".2.22", code=code)
    encoded(a, 1)
    a.reduce("c", vector(1), "c")
    a.reduce("b", vector(1), "bde")
    a.have("c", who="c")
    assert a.have("b", who="bde")[-1].startswith("round 1 = 3 of abcde")
    return a


def test_whoever_has_promised_once_is_not_waited_for_in_later_rounds() -> None:
    """A child whose link is cut before it says anything costs no waiting."""
    a = promised()
    a.hear(ev.LinkDown(PeerId("c"), "reset"))
    a.did({0: 2}, number=2)
    assert progress(a, "b", "bde", ".2.22", code=WHOLE, number=2)[0] == "b <- release 2: 22022"
    encoded(a, 1, number=2)
    assert a.reduce("b", vector(5), "bde", number=2) == ["b <- result 2 [0:] 6 complete"]
    assert a.have("b", number=2, who="bd") == ["b <- decide 2", "round 2 = 6 of abde"]
    assert "c <- result 2 [0:] 6 committed" in a.level("c", 1)


def test_nobody_is_done_without_in_a_view_before_it_has_been_heard() -> None:
    a = promised()
    a.learn(view(2, "abcde", slots="abcde", first_round=2))
    for peer in "bc":
        a.level(peer, 1)
    a.did({0: 2}, number=2)
    assert progress(a, "b", "bde", ".2.22", code=WHOLE, number=2) == []
    assert progress(a, "c", "c", "..0..", code=WHOLE, number=2)[0] == "b <- release 2: 22022"


def test_the_fleet_does_not_run_away_from_the_roots_owner() -> None:
    a = promised()
    for number in range(2, 9):
        said = progress(a, "b", "bde", ".2.22", code=WHOLE, number=number)
        said += progress(a, "c", "c", "..2..", code=WHOLE, number=number)
        if number == 6:
            assert said == []
            return
        assert "b <- release" in said[-2]
        a.reduce("c", vector(1), "c", number=number)
        a.reduce("b", vector(1), "bde", number=number)
        a.have("c", number=number, who="c")
        a.have("b", number=number, who="b")


@pytest.mark.parametrize("wait", ["deadline:0.5", "error<2.5"])
def test_a_policy_closes_earlier(wait: str) -> None:
    code = parse_scheme("partial:l=1,replication=2", wait)
    a = coded("a", code=code)
    a.did({0: 1})
    progress(a, "c", "c", "..1..", code=code)
    said = progress(a, "b", "bde", ".1.00", code=code)
    if code.deadline_s is not None:
        assert said == []
        said = [line for line in a.until(0.6) if "release" in line]
        assert said[0].startswith("0.5: ")
        said = [line.partition(": ")[2] for line in said]
    assert said[:2] == ["b <- release 1: 11100", "c <- release 1: 11100"]
    encoded(a, 1)
    a.reduce("c", vector(1), "c")
    a.reduce("b", vector(1), "b")
    a.have("c", who="c")
    assert a.have("b", who="b")[-1] == "round 1 = 3 of abc inexact"
    outcome = a.effects[-1]
    assert isinstance(outcome, fx.RoundCommitted)
    assert (outcome.chunks, outcome.error) == (0b111, 2.0)


def test_a_deadline_without_anything_to_bring() -> None:
    code = parse_scheme("partial:l=1,replication=2", "deadline:0.5")
    a = coded("a", code=code)
    a.did({0: 0})
    progress(a, "c", "c", "..0..", code=code)
    progress(a, "b", "bde", ".0.00", code=code)
    assert not any("release" in line for line in a.until(1.0))
    assert progress(a, "b", "bde", ".0.01", code=code)[0] == "b <- release 1: 00001"


# -- after the release ----------------------------------------------------------------------------------------


def test_a_release_goes_down_and_the_owner_encodes() -> None:
    b = coded("b")
    b.did({1: 1})
    assert b.release("a", "11111") == ["d <- release 1: 11111", "e <- release 1: 11111", "encode 1 of 11111"]
    assert b.release("a", "11111") == []
    assert encoded(b, 1) == []
    b.reduce("d", vector(2), "d")
    assert b.reduce("e", vector(4), "e") == ["a <- reduce 1 [0:] 7 of 11010"]


def test_an_inner_peer_that_brings_nothing_of_its_own() -> None:
    b = coded("b")
    assert b.release("a", "10101") == ["d <- release 1: 10101", "e <- release 1: 10101"]
    assert b.reduce("e", vector(4), "e") == ["a <- reduce 1 [0:] 4 of 10000"]
    assert b.result("a", vector(6), "ace", final=False) == [
        "d <- result 1 [0:] 6 complete", "e <- result 1 [0:] 6 complete", "a <- have 1 in 10",
    ]  # fmt: skip
    assert b.have("e", who="e") == ["a <- have 1 in 10010"]
    assert b.decide("a")[-1] == "round 1 = 6 of ace (not mine)"


def test_a_child_that_comes_back_hears_the_release_again() -> None:
    b = coded("b", up="ad")
    assert b.release("a", "10111") == ["d <- release 1: 10111"]
    assert "e <- release 1: 10111" in b.level("e")


@pytest.mark.parametrize("done", ["1", "", "111111", "19111", "12111"])
def test_a_release_that_can_not_be(done: str) -> None:
    b = coded("b")
    b.did({1: 1})
    assert any(line.startswith("close a: Release of") for line in b.release("a", done))


@pytest.mark.parametrize("who", ["d", "c", "x"])
def test_a_release_of_somebody_else(who: str) -> None:
    b = coded("b")
    assert b.release(who, "11111") == []


def test_nothing_is_added_up_before_the_round_is_closed() -> None:
    b = coded("b")
    assert any(line.startswith("close d: Reduce") for line in b.reduce("d", vector(2), "d"))


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_vector_of_other_blocks_than_due(blocks: int) -> None:
    b = coded("b", code=HALVES)
    b.did({1: 2})
    b.release("a", "22222")
    encoded(b, 1, 2)
    frame = fr.Reduce(
        epoch=1, round=1, offset=0, total=1, dtype="<f4", contributors=b"\x08", weight=1.0, blocks=blocks
    )  # fmt: skip
    assert any(line.startswith("close d: Reduce for") for line in b.frame("d", frame, vector(1)))


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_sum_of_a_code_takes_nothing_that_was_rounded(precision: Precision) -> None:
    """Whoever brings nothing of its own knows of no shape that it could compare with: it would be added up, and the
    outcome would say that nothing was rounded."""
    b, values = coded("b"), vector(1, 2, 3)
    b.did({1: 1})
    b.release("a", "1.110")
    data = Encoded(precision, values.size)
    assert data.encode(values, 0, values.size)
    frame = fr.Reduce(
        epoch=1, round=1, offset=0, total=3, dtype="<f4", contributors=b"\x08", weight=1.0, precision=precision
    )  # fmt: skip
    said = b.frame("d", frame, bytes(data.part(0, values.size)))
    assert said[0].startswith(f"close d: Reduce in {precision}, but sums of a code")
    assert not any("reduce 1" in line for line in said)


class Owner:
    """What an owner computes, in numbers."""

    def __init__(self, code: CodingScheme, workers: int, slots: tuple[int, ...], chunks: NDArray[np.float64]) -> None:
        self.work = ComputedChunks()
        self.work.enter(code.build(workers, 2), slots)
        self._chunks = chunks

    def compute(self, many: int) -> dict[int, int]:
        for _ in range(many):
            if (chunk := self.work.next_chunk()) is not None:
                self.work.add(chunk, self._chunks[chunk])
        return self.work.done()


@pytest.mark.parametrize(
    "code", ["partial:l=2,replication=2", "partial:l=3,replication=3", "partial:l=1,replication=2"]
)
@pytest.mark.parametrize("cut", [1, 2, 4])
def test_what_leaves_bring_is_expanded_and_added_up_to_the_plain_sum(code: str, cut: int) -> None:
    """The vectors of leaves are shorter than the sum, and come in pieces; the root's own is as long as it."""
    used = parse_scheme(code)
    chunks = np.random.default_rng(7).standard_normal((3, 12))
    b = coded("b", THREE, used)
    owners = {name: Owner(used, 3, THREE.owned[PeerId(name)], chunks) for name in "bde"}
    done = {name: owner.compute(3) for name, owner in owners.items()}
    counts = "".join(str(done[name][slot]) for slot, name in enumerate("bde"))
    b.did(done["b"])
    progress(b, "d", "d", f".{counts[1]}.", code=used)
    said = progress(b, "e", "e", f"..{counts[2]}", code=used)
    assert said[-1] == f"encode 1 of {counts}"
    all_done = tuple(map(int, counts))
    b.hear(ev.Encoded(THREE.stamp, 1, owners["b"].work.encode(all_done, None)))
    blocks = used.blocks
    for slot, name in ((1, "d"), (2, "e")):
        narrow = owners[name].work.encode(all_done, slot if blocks > 1 else None)
        assert narrow.size * blocks == 12
        for start in range(0, narrow.size, cut):
            part = narrow[start : start + cut]
            frame = fr.Reduce(
                epoch=1, round=1, offset=start, total=narrow.size, dtype="<f8", contributors=fr.pack_set(1 << slot),
                weight=1.0, blocks=blocks,
            )  # fmt: skip
            b.frame(name, frame, part)
    b.have("d", who="d")
    outcome = next(effect for effect in b.effects if isinstance(effect, fx.RoundCommitted))
    assert outcome.exact
    np.testing.assert_allclose(outcome.sum, chunks.sum(axis=0), rtol=1e-12)


def test_who_does_not_hold_it_says_of_nobody_below_that_they_do() -> None:
    """What it says counts for itself as well."""
    b = coded("b")
    b.did({1: 1})
    b.release("a", "11111")
    assert b.have("d", who="d") == []
    encoded(b, 1)
    assert "a <- have 1 in 1010" in b.result("a", vector(5), "abcde", final=False)


def test_a_child_speaks_for_those_at_and_below_it_only() -> None:
    a = coded("a")
    a.did({0: 1})
    progress(a, "c", "c", "..2..")
    assert progress(a, "b", "bde", ".2.22")[-1] == "encode 1 of 12222"
    encoded(a, 1)
    a.reduce("c", vector(1), "c")
    a.reduce("b", vector(3), "bde")
    assert a.have("c", who="bcde") == []
    assert a.have("b", who="b")[-1] == "round 1 = 5 of abcde"


def test_a_root_that_waits_for_what_is_held_adds_up_nothing_else() -> None:
    """Whoever has said that it holds something brings it, or nothing can come of the round here."""
    b = coded("b", view(2, "becd", slots="beced"))
    for peer in "ec":
        b.level(peer)
    b.did({0: 0})
    progress(b, "c", "c", "..0..", holding=True)
    assert progress(b, "e", "ed", ".0.00")[0] == "e <- release 1: 00000 anew"
    b.reduce("c", vector(), "c")
    assert [line for line in b.reduce("e", vector(), "ed") if "result" in line or "drop" in line] == []


def test_what_was_encoded_for_an_earlier_view_does_not_enter_another() -> None:
    d = coded("d")
    d.did({3: 1})
    assert d.release("b", "11111") == ["encode 1 of 11111"]
    d.learn(view(2, "abcde", slots="abcde"))
    d.level("b")
    d.did({3: 1})
    d.release("b", "22112")
    assert d.hear(ev.Encoded(FIVE.stamp, 1, vector(9))) == []
    assert encoded(d, 1) == ["b <- reduce 1 [0:] 1 of 1000"]


def test_what_is_said_of_another_round_counts_for_nothing() -> None:
    a = coded("a")
    a.did({0: 2})
    assert progress(a, "c", "c", "..2..", number=2) == []
    assert progress(a, "b", "bde", ".2.22") == []  # c has not spoken in this one


def test_a_leaf_brings_its_slot_as_it_is_and_all_of_two() -> None:
    d = coded("d", code=HALVES)
    d.did({3: 2})
    assert d.release("b", "22222") == ["encode 1 of 22222, slot 3 as it is"]
    assert encoded(d, 1, 2) == ["b <- reduce 1 [0:] 1 2 of 1000"]
    d = coded("d", view(1, "abcd", slots="abddc"), code=HALVES)
    d.did({2: 2, 3: 2})
    assert d.release("b", "22222") == ["encode 1 of 22222"]


def test_a_vector_of_another_size_than_those_below() -> None:
    b = coded("b")
    b.did({1: 1})
    b.release("a", "11111")
    b.reduce("d", vector(2, 3), "d")
    assert encoded(b, 1) == ["a <- abort 1: mismatch"]


# -- what does not fit -----------------------------------------------------------------------------------------


def test_another_code_below_ends_the_round() -> None:
    a = coded("a", code=WHOLE)
    a.did({0: 2})
    progress(a, "c", "c", "..2..", code=PAIRS)
    assert a.said == ["b <- drop 1: mismatch complete", "c <- drop 1: mismatch complete"]
    b = coded("b", code=WHOLE)
    b.did({1: 0})
    assert progress(b, "d", "d", "...1.", code=PAIRS) == ["a <- progress 1 of 1010: .0...", "a <- abort 1: mismatch"]


def test_a_plain_vector_in_a_coded_round() -> None:
    b = coded("b")
    assert b.contribute(1) == ["a <- abort 1: mismatch", "a <- progress 1 of 10: .0..."]
    b = Machine("b").join(view(1, "abcde"), up="ade")
    b.contribute(1)
    b.learn(view(2, "abcde", slots="abcde"))
    said = b.level("a")
    assert "a <- abort 1: mismatch" in said
    assert "a <- progress 1 of 10: .0..." in said  # of no code


def second_root(coding: CodingScheme | None = PAIRS) -> Machine:
    """b, head of a second view: a, the first one's, has died in a round that it may have closed without b."""
    b = coded("b")
    b.did({1: 0})
    if coding is not PAIRS:
        b.hear(ev.CodeWanted(coding))
    b.learn(view(2, "becd", slots="beced"))
    for peer in "ec":
        b.level(peer)
    return b


DROPPED = ["e <- drop 1: mismatch complete", "c <- drop 1: mismatch complete"]


def test_a_head_drops_a_round_of_plain_vectors_once_all_have_spoken() -> None:
    """No sum can come of it, but a died in it, and may have decided it before."""
    b = second_root()
    b.did({0: 0})
    b.frame("c", fr.Abort(epoch=2, round=1, cause="mismatch", reason="plain", over=False))
    assert progress(b, "c", "c", "..0..") == []
    assert progress(b, "e", "ed", ".0.00") == DROPPED
    b = second_root()
    progress(b, "c", "c", "..0..")
    progress(b, "e", "ed", ".0.00")
    assert b.contribute(1) == DROPPED


def test_one_that_is_alone_does_so_at_once_and_has_not_begun_the_next_round() -> None:
    a = coded("a", view(1, "a", slots="a"))
    assert a.contribute(1) == ["round 1 aborted: mismatch"]
    assert (a.node.allreduce.committed, a.node.allreduce.idle) == (1, True)


def test_so_does_one_without_a_code() -> None:
    b = second_root(None)
    assert b.contribute(1) == []
    progress(b, "c", "c", "..0..")
    assert progress(b, "e", "ed", ".0.00") == DROPPED


def test_and_one_that_has_heard_of_another_code_before_it_computes() -> None:
    b = second_root()
    assert progress(b, "e", "ed", ".0.00", code=WHOLE) == []
    progress(b, "c", "c", "..0..")
    assert b.did({0: 0}) == DROPPED
    b = second_root()
    b.did({0: 0})
    assert progress(b, "e", "ed", ".0.00", code=WHOLE) == []
    assert progress(b, "c", "c", "..0..") == DROPPED


def test_a_peer_without_a_code_speaks_for_those_below_once_it_takes_part() -> None:
    """Before that it may be about to be given one, as they were: then it would be told all again."""
    b = Machine("b").join(FIVE, up="ade")
    assert progress(b, "d", "d", "...1.") == []
    assert b.contribute(1) == ["a <- abort 1: mismatch", "a <- progress 1 of 1010: .0..."]
    assert progress(b, "e", "e", "....1") == ["a <- progress 1 of 11010: .0..."]


def test_nobody_at_or_below_a_peer_without_a_code_is_counted() -> None:
    a = coded("a")
    a.did({0: 1})
    assert progress(a, "b", "bde", ".1.11", code=None) == []
    assert progress(a, "c", "c", "..1..") == []
    assert progress(a, "b", "bde", ".1.11")[:2] == ["b <- release 1: 11111", "c <- release 1: 11111"]


@pytest.mark.parametrize("wanted", [None, WHOLE])
def test_a_round_that_is_closed_for_another_code_goes_on_below(wanted: CodingScheme | None) -> None:
    """It was not waited for: it had promised before, in this view. Who is below may be needed to hold the result."""
    b = coded("b", code=PAIRS)
    b.hear(ev.CodeWanted(wanted))
    said = b.release("a", "10100", code=PAIRS.name)
    assert said[:2] == ["d <- release 1: 10100", "e <- release 1: 10100"]
    said = b.result("a", vector(5), "ac", final=False)
    assert [line for line in said if "result" in line] == [
        "d <- result 1 [0:] 5 complete", "e <- result 1 [0:] 5 complete",
    ]  # fmt: skip
    assert b.have("d", who="d") == ["a <- have 1 in 1010"]


def test_without_a_sum_where_something_from_here_was_to_be_in_it() -> None:
    """It had said so beside a state that was given up. Refused, it would come again and again."""
    b = coded("b", code=WHOLE)
    said = b.release("a", "10010", code=PAIRS.name)
    assert said == ["d <- release 1: 10010", "e <- release 1: 10010", "a <- abort 1: mismatch"]
    assert b.reduce("d", vector(1), "d") == []  # of no use, and no fault of d's


def test_who_computes_for_the_code_that_a_round_is_closed_for_only_comes_too_late() -> None:
    b = coded("b", code=WHOLE)
    b.release("a", "10100", code=PAIRS.name)
    b.hear(ev.CodeWanted(PAIRS))
    assert b.hear(ev.ChunksDone(FIVE.stamp, 1, {1: 0}, PAIRS.name)) == []
    b.result("a", vector(5), "ac", final=True)
    assert b.hear(ev.ChunksDone(FIVE.stamp, 2, {1: 0}, PAIRS.name)) == ["a <- progress 2 of 10: .0..."]


def test_who_has_brought_a_plain_vector_has_promised_whatever_code_is_wanted_then() -> None:
    b = second_root(None)
    b.contribute(1)
    b.hear(ev.Abandoned())
    b.hear(ev.CodeWanted(PAIRS))
    progress(b, "c", "c", "..0..")
    assert progress(b, "e", "ed", ".0.00") == DROPPED


def test_a_child_that_has_come_to_the_same_code_is_believed() -> None:
    b = coded("b")
    progress(b, "d", "d", "...1.", code=WHOLE)
    progress(b, "d", "d", "...0.")
    assert b.did({1: 0}) == ["a <- progress 1 of 1010: .0.0."]


def test_where_no_sum_can_come_nobody_is_waited_for_that_has_spoken() -> None:
    b = second_root()
    b.did({0: 0})
    b.frame("e", fr.Abort(epoch=2, round=1, cause="mismatch", reason="plain", over=False))
    progress(b, "e", "ed", ".0.00", code=None)
    assert b.node.allreduce.missing() == ("c",)


def test_a_plain_view_after_a_coded_one_does_not_add_up_what_was_encoded() -> None:
    b = coded("b")
    b.did({1: 1})
    b.release("a", "01000")
    assert encoded(b, 1) == ["a <- reduce 1 [0:] 1 of 10"]
    b.learn(view(2, "abcde"))
    for peer in "ade":
        assert not any("reduce" in line for line in b.level(peer))
    assert b.did({1: 1}) == ["a <- abort 1: mismatch"]


def test_nor_does_a_leaf_send_it() -> None:
    d = coded("d")
    d.did({3: 1})
    d.release("b", "00010")
    assert encoded(d, 1) == ["b <- reduce 1 [0:] 1 of 1000"]
    d.learn(view(2, "abcde"))
    assert not any("reduce" in line for line in d.level("b"))


def test_chunks_where_rounds_are_not_coded() -> None:
    b = coded("b", view(1, "abcde"))
    assert b.did({1: 1}) == ["a <- abort 1: mismatch"]


@dataclass
class Odd:
    """A scheme whose code is none."""

    made: Callable[[int, int], Any]
    name: str = "odd"
    deadline_s: float | None = None

    def build(self, workers: int, fanout: int, /) -> Any:
        return self.made(workers, fanout)

    def enough(self, error: float, /) -> bool:
        return False


def refuses(text: str) -> Odd:
    def build(workers: int, fanout: int) -> Any:
        raise ConfigError(text)

    return Odd(build)


def test_a_code_that_can_not_be_had_ends_the_round() -> None:
    a = Machine("a")
    a.hear(ev.CodeWanted(refuses("too few")))
    a.join(FIVE, up="bc")
    assert a.did({}) == ["b <- drop 1: mismatch complete", "c <- drop 1: mismatch complete"]
    a.have("b")
    a.have("c")
    aborted = next(effect for effect in a.effects if isinstance(effect, fx.RoundAborted))
    assert aborted.reason == "a computes for a code, but too few"


@pytest.mark.parametrize(("chunks", "load"), [(5000, 2), (5, 300)])
def test_a_code_too_large_for_frames_can_not_be_had(chunks: int, load: int) -> None:
    class Large:
        def __init__(self) -> None:
            self.chunks, self.loads, self.workers, self.blocks = chunks, (load,) * 5, 5, 1

    a = Machine("a")
    a.hear(ev.CodeWanted(Odd(lambda workers, fanout: Large())))
    a.join(FIVE, up="bc")
    assert a.did({0: 1})[0] == "b <- drop 1: mismatch complete"


# -- sizes ---------------------------------------------------------------------------------------------------------


def test_the_largest_frames_fit_into_what_neighbours_and_the_broker_carry() -> None:
    frame = fr.Progress(
        epoch=2**53, round=2**53, code="x" * 256, began=b"\xff" * 512, holding=True, done=b"\xff" * 3072
    )
    _, header = codec.wrap(frame)
    assert len(header) <= 4096
