"""What runs through several neighbours by turns is taken in the order in which it was sent, or not at all."""

from __future__ import annotations

import msgspec
import pytest
from detours import around, carried, lose, number, path, says, via
from hypothesis import given
from hypothesis import strategies as st
from transcript import Machine, view

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.tunnel import MOST_EARLY_BYTES, Carried, Tunnel
from edgepeer.wire import codec
from edgepeer.wire import frames as fr

B, C, D = (PeerId(name) for name in "bcd")
SEVERAL = view(1, "acdefbg", lanes=7)
"""b and d are parent and child in three of these trees."""


def tunnel(*hops: PeerId | None) -> Tunnel:
    made = Tunnel(77, hops[0], 1.0, most=len(hops))
    for hop in hops[1:]:
        made.go_also(hop)
    return made


def what(number: int, payload_bytes: int = 0) -> Carried:
    """A frame that can be told from others."""
    return fr.Decide(epoch=1, round=number), bytes(payload_bytes), 0.0


def taken(of: Tunnel) -> list[int]:
    return [frame.round for frame, _, _ in iter(of.take, None) if isinstance(frame, fr.Decide)]


@given(
    hops=st.integers(1, 4),
    frames=st.integers(0, 40),
    lost=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 12)), max_size=3),
    data=st.data(),
)
def test_in_whatever_order_hops_carry_on_it_is_taken_in_order_and_what_a_hop_drops_is_noticed(
    hops: int, frames: int, lost: set[tuple[int, int]], data: st.DataObject
) -> None:
    names = [PeerId(f"h{at}") for at in range(hops)]
    there, here = tunnel(*names), tunnel(*names)
    ways: dict[PeerId, list[int]] = {name: [] for name in names}
    sent: list[int] = []
    dropped: list[int] = []
    for _ in range(frames):
        serial, hop = there.next_hop()
        assert hop is not None
        sent.append(serial)
        at = names.index(hop)
        (dropped if (at, len(ways[hop])) in lost else ways[hop]).append(serial)
        if (at, len(ways[hop])) in lost:
            lost.discard((at, len(ways[hop])))
    got: list[int] = []
    broken = False
    while not broken and any(ways.values()):
        hop = data.draw(st.sampled_from([name for name in names if ways[name]]))
        serial = ways[hop].pop(0)
        broken = not here.put(hop, serial, what(serial), 0.0, hops)
        got += taken(here)
    assert got == sent[: len(got)]
    if not dropped:
        assert not broken
        assert got == sent
    else:
        assert len(got) == dropped[0] - 1
        assert broken == all(any(s > dropped[0] for s in sent[at::hops] if s not in dropped) for at in range(hops))


def test_what_comes_again_is_dropped() -> None:
    it = tunnel(B, C)
    assert it.put(B, 2, what(2), 0.0, 2)
    assert it.put(B, 2, what(3), 0.0, 2)
    assert it.put(C, 1, what(1), 0.0)
    assert taken(it) == [1, 2]
    assert it.put(B, 1, what(4), 0.0)
    assert taken(it) == []


def test_of_what_overtakes_so_much_waits_and_no_more() -> None:
    it = tunnel(B, C)
    assert it.put(B, 2, what(2, MOST_EARLY_BYTES // 2), 0.0, 2)
    assert not it.put(B, 4, what(4, MOST_EARLY_BYTES // 2), 0.0, 2)
    assert it.overtaken


def test_it_waits_so_long_for_one_frame_and_no_longer() -> None:
    it = Tunnel(77, B, 1.0, patience_s=5.0)
    assert it.put(B, 2, what(2), 10.0, 2)
    assert it.put(B, 4, what(4), 14.0, 2)
    assert it.put(C, 1, what(1), 14.0, 2)
    assert taken(it) == [1, 2]
    assert it.put(B, 6, what(6), 19.0, 2)
    assert it.put(B, 8, what(8), 24.0, 2)
    assert not it.overtaken
    assert not it.put(B, 10, what(10), 24.1, 2)
    assert it.overtaken


def test_through_the_broker_or_as_many_as_agreed_it_goes_no_other_way() -> None:
    relayed, direct = tunnel(None), tunnel(B, C)
    for it in (relayed, direct):
        it.go_also(D)
        it.go_also(B)
    assert (relayed.path, direct.path) == ("relay", "via b+c")


def test_it_counts_anew_when_nothing_is_under_way() -> None:
    it = tunnel(B, C)
    for serial, hop in ((1, B), (2, C), (3, B)):
        assert it.next_hop() == (serial, [B, C][serial % 2])
        assert it.put(hop, serial, what(serial), 0.0, 2)
    assert taken(it) == [1, 2, 3]
    it.renew()
    assert it.put(C, 2, what(2), 0.0, 2)
    assert it.put(B, 1, what(1), 0.0, 2)
    assert taken(it) == [1, 2]


def test_what_has_not_come_may_be_on_its_way_by_a_hop_that_only_the_other_end_knows() -> None:
    it = tunnel(B)
    assert it.put(B, 2, what(2), 0.0, 2)
    assert it.put(B, 4, what(4), 0.0, 2)
    assert it.put(C, 1, what(1), 0.0, 2)
    assert taken(it) == [1, 2]
    assert not it.put(C, 5, what(5), 0.0, 2)  # 3 is lost


def test_what_has_not_come_is_not_on_its_way_by_a_hop_that_the_other_end_does_not_know() -> None:
    it = tunnel(B, C)
    assert it.put(B, 1, what(1), 0.0)
    assert taken(it) == [1]
    assert not it.put(B, 3, what(3), 0.0)


# -- how it comes to go through several -----------------------------------------------------------------------


def cut_off(name: str, other: str) -> Machine:
    """A machine in a view with several trees that has lost the connection to a neighbour, and knocks."""
    machine = around(name, world=SEVERAL)
    lose(machine, other)
    return machine


def knocked(machine: Machine, hop: str, *, hops: int = 4) -> list[str]:
    """b knocks at d through a hop, with the same Knock by all."""
    frame = fr.Knock(incarnation=1, answer=False, stamp=900.0, hops=hops)
    return carried(machine, hop, "b", frame, tunnel=77, serial=0)


def knocked_at(*hops: str) -> Machine:
    d = cut_off("d", "b")
    d.until(0.6)
    for hop in hops:
        knocked(d, hop)
    return d


def answered(machine: Machine, tunnel: int, hop: str, stamp: float = 900.0) -> list[str]:
    """d answers b through a hop."""
    frame = fr.Knock(incarnation=1, answer=True, stamp=stamp)
    return carried(machine, hop, "d", frame, tunnel=tunnel, serial=0)


def answered_by(*hops: str) -> tuple[Machine, int]:
    b = cut_off("b", "d")
    tunnel = number(b)
    for hop in hops:
        answered(b, tunnel, hop)
    return b, tunnel


def carriers(machine: Machine) -> list[tuple[str, fr.Via]]:
    """What the last event has made the machine send through others."""
    sends = [effect for effect in machine.effects if isinstance(effect, fx.Send)]
    return [(str(send.peer), send.frame) for send in sends if isinstance(send.frame, fr.Via)]


def test_who_is_knocked_at_answers_through_each_and_uses_them_by_turns() -> None:
    d = cut_off("d", "b")
    d.until(0.6)
    assert knocked(d, "c")[0] == "c <- d>b 77.0: come in"
    answers = {via for _, via in carriers(d) if via.serial == 0}
    for hop in "eae":
        assert knocked(d, hop) == [f"{hop} <- d>b 77.0: come in"]
        answers |= {via for _, via in carriers(d)}
    assert len(answers) == 1  # to the last bit, so that they are known to be of one tunnel
    assert path(d, "b") == "via c+e+a"
    assert carried(d, "c", "b", stands(), tunnel=77, serial=1) == []
    d.contribute(*range(7))
    sent = [(hop, via.serial) for hop, via in carriers(d)]
    assert sent
    assert [hop for hop, _ in sent] == ["cea"[serial % 3] for _, serial in sent]


def test_who_has_knocked_goes_through_whomever_an_answer_comes_by_but_for_those_of_an_earlier_tunnel() -> None:
    b, tunnel = answered_by("c")
    assert answered(b, tunnel, "e") == []
    assert answered(b, tunnel, "a", stamp=899.0) == []
    assert path(b, "d") == "via c+e"


def test_it_is_given_up_when_the_other_end_has_opened_it_once_more() -> None:
    """That has lost it, and taken a Knock that was still under way: it counts from 1 again, and what has come of what
    it had sent before would be taken for what it sends now."""
    b, tunnel = answered_by("c", "e")
    carried(b, "e", "d", stands(), tunnel=tunnel, serial=2, hops=2)
    assert any(line.endswith("knock") for line in answered(b, tunnel, "e", stamp=901.0))
    assert number(b) != tunnel
    assert path(b, "d") == ""
    assert carried(b, "e", "d", stands(-1), tunnel=tunnel, serial=1) == ["e <- b>d 1.0: no way to b"]
    assert path(b, "d") == ""


@pytest.mark.parametrize("hops", [1, 2])
def test_it_goes_through_no_more_than_the_other_end_would_have(hops: int) -> None:
    d = knocked_at()
    said = [knocked(d, hop, hops=hops) for hop in "cea"]
    assert [bool(each) for each in said] == [at < hops for at in range(3)]
    assert path(d, "b") == ("via c" if hops == 1 else "via c+e")


def test_with_one_tree_in_common_it_goes_through_one() -> None:
    d = around("d")
    lose(d, "b")
    d.until(0.6)
    knocked(d, "c")
    assert knocked(d, "e") == []
    assert path(d, "b") == "via c"


def test_it_does_not_go_through_who_is_a_leaf_for_its_slow_line_besides() -> None:
    slow = msgspec.structs.replace(view(1, "acdfgbe", lanes=4), leaves=1)  # e is
    d = around("d", world=slow)
    lose(d, "b")
    d.until(0.6)
    for hop in "cea":
        knocked(d, hop)
    assert path(d, "b") == "via c+a"


@pytest.mark.parametrize("hop", ["c", "e", "a"])
def test_with_one_hop_all_of_it_is_lost(hop: str) -> None:
    d = knocked_at(*"cea")
    assert any(line.endswith("knock") for line in lose(d, hop))
    assert path(d, "b") == ""


def test_when_all_its_hops_are_closed_none_of_them_is_knocked_through_first() -> None:
    d = knocked_at(*"cea")
    d.node.parts.wiring.cut_off(B, "its contribution is taken back")
    effects = d.node.parts.wiring.drain()
    closed = {str(each.peer) for each in effects if isinstance(each, fx.CloseLink)}
    assert closed == set("abce")  # b: over the connection that was there before
    asked_to_carry = {str(e.peer) for e in effects if isinstance(e, fx.Send) and isinstance(e.frame, fr.Via)}
    assert asked_to_carry
    assert not asked_to_carry & set("cea")


def test_what_comes_by_the_faster_hop_waits_for_what_was_sent_before_it() -> None:
    d = knocked_at(*"ce")
    carried(d, "c", "b", stands(), tunnel=77, serial=2, hops=2)
    carried(d, "e", "b", stands(-1), tunnel=77, serial=1, hops=2)
    assert any("d>b" in line and "reduce 1" in line for line in d.contribute(*range(7)))


def test_it_stays_when_the_answer_by_the_slower_hop_comes_after_what_was_sent_later_by_the_faster() -> None:
    b, tunnel = answered_by("c")
    carried(b, "c", "d", stands(), tunnel=tunnel, serial=2, hops=2)
    assert path(b, "d") == "via c"
    answered(b, tunnel, "e")
    carried(b, "e", "d", stands(-1), tunnel=tunnel, serial=1, hops=2)
    assert path(b, "d") == "via c+e"
    assert b.node.parts.links[PeerId("d")].sync == stands()


def test_what_has_waited_took_as_long_to_come_as_it_did_and_not_as_what_it_waited_for() -> None:
    """A Ping comes in no time: a vector that waited for it would be taken to have come as fast."""
    b, tunnel = answered_by("c", "e")
    paths, ping = b.node.parts.paths, fr.Ping(waiting=False)
    first, second = (via("d", "b", ping, tunnel=tunnel, serial=serial, hops=2) for serial in (1, 2))
    assert paths.on_via(C, second, b"", 3.0, b.now) is None
    assert paths.on_via(PeerId("e"), first, b"", 0.0, b.now) == (ping, b"", 0.0)
    assert paths.following(D) == (ping, b"", 3.0)


def test_who_was_overtaken_by_too_much_knocks_for_one_hop_until_there_is_a_connection() -> None:
    b, tunnel = answered_by("c", "e")
    carried(b, "c", "d", fr.ViewFrame(epoch=2), tunnel=tunnel, serial=2, data=bytes(MOST_EARLY_BYTES))
    assert path(b, "d") == ""
    assert {asked(via).hops for _, via in carriers(b)} == {1}
    b.level("d")
    lose(b, "d")
    assert {asked(via).hops for _, via in carriers(b)} == {3}


def test_who_waits_for_a_hop_that_keeps_all_to_itself_knocks_for_one_hop() -> None:
    """What comes by the other are signs of life, so nobody would find the link silent."""
    b, tunnel = answered_by("c", "e")
    for at in range(20):
        b.until(0.5 * at)
        for hop in "ce":
            says(b, hop, "abcdefg")
        knocks = carried(b, "c", "d", fr.Ping(waiting=False), tunnel=tunnel, serial=2 * at + 2, hops=2)
        if path(b, "d") == "":
            break
    assert any(line.endswith("knock") for line in knocks)
    assert 6.0 < 0.5 * at < 7.0
    assert {asked(via).hops for _, via in carriers(b)} == {1}


def asked(via: fr.Via) -> fr.Knock:
    knock = codec.unwrap(via, 0)
    assert isinstance(knock, fr.Knock)
    return knock


def stands(committed: int = 0) -> fr.Sync:
    return fr.Sync(epoch=SEVERAL.stamp, run="", committed=committed, generation=SEVERAL.generation)
