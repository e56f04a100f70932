"""Ways around broken connections, cell by cell of the tables in paths.py. The tree: a over bc, b over de, c over fg."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from detours import SEVEN, around, carried, knock, lose, number, path, says, tunnelled, via
from transcript import Machine, vector, view, when

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.streams import digest_of
from edgepeer.wire import codec
from edgepeer.wire import frames as fr

A, B, C, D, E = map(PeerId, "abcde")


# -- looking for a way around ------------------------------------------------------------------------------


def test_it_knocks_through_every_peer_that_reaches_the_other_end() -> None:
    """First through one whose connection with an end is in use: e is b's child, and c a backup of both."""
    b = around()
    assert lose(b, "d") == ["e <- b>d 1.0: knock", "c <- b>d 1.0: knock"]
    assert path(b, "d") == ""


def test_who_does_not_say_that_it_reaches_it_is_not_asked() -> None:
    b = around()
    says(b, "e", "bc")
    assert lose(b, "d") == ["c <- b>d 1.0: knock"]


def test_what_is_said_of_another_view_names_nobody_here() -> None:
    b = around()
    says(b, "e", "bc")
    says(b, "e", "bcd", epoch=7)
    assert lose(b, "d") == ["c <- b>d 1.0: knock"]


@pytest.mark.parametrize("epoch", [1, 9])
def test_nor_does_it_take_back_whom_its_sender_reaches(epoch: int) -> None:
    """A Ping may have been sent before its sender had heard of the view, and the next may come a second later."""
    b = around()
    b.learn(view(2, "abcedfg"))  # d and e have changed places
    says(b, "c", "", epoch=epoch)
    says(b, "e", "", epoch=epoch)
    assert lose(b, "d") == ["e <- b>d 1.0: knock", "c <- b>d 1.0: knock"]


def test_whom_others_reach_they_reach_in_another_order_of_the_same_members_as_well() -> None:
    """Pings name members by their positions: those are of the view that they were sent in."""
    b = around()
    says(b, "c", "abfg")
    b.learn(view(2, "abcedfg"))  # d and e have changed places; nobody has said anything in it yet
    assert lose(b, "d") == ["e <- b>d 1.0: knock"]


def test_who_is_not_connected_itself_is_not_asked() -> None:
    b = around()
    lose(b, "e")
    assert lose(b, "d") == ["c <- b>d 2.0: knock"]


def test_of_two_links_that_fall_silent_at_once_neither_is_to_carry_for_the_other() -> None:
    b = around()
    says(b, "c", "abefg")
    said: list[str] = []
    for at in range(1, 61):
        for peer in "acfg":
            says(b, peer, "abefg" if peer == "c" else "ab")
        said = b.tick(at / 20)
        if any(line.startswith("close") for line in said):
            break
    assert [line[:7] for line in said if line.startswith("close")] == ["close d", "close e"]
    assert [line for line in said if line.endswith("knock")] == ["relay d <- b>d 1.0: knock", "c <- b>e 2.0: knock"]


def test_no_more_than_four_are_asked_at_once() -> None:
    wide = view(1, "abcdefgh", fanout=6)  # b to g below a, h below b
    a = Machine("a", hidden=(fr.Ping,)).join(wide, up="bcdefg")
    for peer in "cdefg":
        says(a, peer, "b")
    assert [line[0] for line in lose(a, "b")] == ["c", "d", "e", "f"]


def test_a_backup_that_is_lost_is_not_worth_a_tunnel() -> None:
    assert lose(around(), "c") == []


def test_without_anybody_to_ask_it_is_the_broker_at_once() -> None:
    b = around()
    for peer in "ce":
        says(b, peer, "b")
    assert lose(b, "d") == ["relay d <- b>d 1.0: knock"]


def test_the_broker_is_asked_too_when_nobody_has_found_a_way_for_a_while() -> None:
    b = around()
    lose(b, "d")
    said = b.until(0.9)
    by_broker = [float(line.split(":")[0]) for line in said if "relay d <- b>d" in line]
    assert by_broker == [0.15, 0.55]
    through_c = [float(line.split(":")[0]) for line in said if "c <- b>d" in line]
    assert through_c == [0.1, 0.15, 0.55]  # the pauses double


def test_pauses_between_knocks_do_not_grow_for_ever() -> None:
    b = around(limits=Limits(silence_s=600.0))
    lose(b, "d")
    knocks = [float(line.split(":")[0]) for line in b.until(30.0) if "relay d <- b>d" in line]
    pauses = [round(after - before, 3) for before, after in itertools.pairwise(knocks)]
    assert pauses[-3:] == [2.0, 2.0, 2.0]


def test_knocking_ends_when_the_link_is_back_or_not_wanted_any_more() -> None:
    b = around()
    lose(b, "d")
    b.level("d")
    assert not any("knock" in line for line in b.until(0.9))
    lose(b, "d")
    b.learn(view(2, "abce"))
    assert not any("knock" in line for line in b.until(2.0))


def test_numbers_of_tunnels_are_never_used_again_not_even_in_another_life() -> None:
    numbers = []
    for life in (1, 2):
        machine = Machine("b", life=life, hidden=(fr.Ping,)).join(view(1, "abcde", b=life), up="ade")
        for _ in range(3):
            lose(machine, "d")
            numbers.append(number(machine))
            machine.level("d")
    assert numbers == sorted(set(numbers))


# -- opening -----------------------------------------------------------------------------------------------


def test_the_answer_opens_the_tunnel_and_both_ends_say_where_they_stand() -> None:
    b = around()
    lose(b, "d")
    assert knock(b, "c", "d", number(b), answer=True) == ["c <- b>d 1.2: sync 1 after 0"]
    assert path(b, "d") == "via c"
    assert not any("knock" in line for line in b.until(2.0))


def test_the_first_answer_counts() -> None:
    b = around()
    lose(b, "d")
    tunnel = number(b)
    knock(b, "e", "d", tunnel, answer=True)
    assert knock(b, "c", "d", tunnel, answer=True) == []
    assert path(b, "d") == "via e"


def stands(committed: int = 0) -> fr.Sync:
    """What a neighbour says in the view of these tests."""
    return fr.Sync(epoch=SEVEN.stamp, run="", committed=committed, generation=SEVEN.generation)


def said(machine: Machine) -> list[fr.Sync]:
    """Where the machine has said that it stands when it has just knocked, or answered."""
    sent = [effect.frame for effect in machine.effects if isinstance(effect, fx.Send | fx.Relay)]
    knocks = [codec.unwrap(frame, 0) for frame in sent if isinstance(frame, fr.Via) and frame.serial == 0]
    return [knock.sync for knock in knocks if isinstance(knock, fr.Knock) and knock.sync is not None]


def summed(name: str = "b") -> Machine:
    """A machine whose round waits for the result only."""
    machine = around(name)
    for child in ("d", "e"):
        machine.reduce(child, vector(4), child)
    machine.contribute(2)
    return machine


def test_what_the_sender_of_a_knock_lacks_goes_with_the_answer() -> None:
    """Nobody waits for another way there and back."""
    d = around("d")
    d.contribute(4)
    d.until(0.6)
    frame = fr.Knock(incarnation=1, answer=False, sync=stands())
    assert carried(d, "e", "b", frame, tunnel=77, serial=0) == [
        "close b: the other end has opened another path",
        "e <- d>b 77.0: come in",
        "e <- d>b 77.2: reduce 1 [0:] 4 of 1000",
    ]
    assert [sync.committed for sync in said(d)] == [0]  # with the answer; no other need follow


def test_and_what_who_answers_lacks_goes_behind_that() -> None:
    d = around("d")
    d.contribute(4)
    lose(d, "b")
    assert [(sync.epoch, sync.committed) for sync in said(d)] == [(SEVEN.stamp, 0)] * 2
    answer = fr.Knock(incarnation=1, answer=True, sync=stands())
    tunnel = number(d)
    assert carried(d, "c", "b", answer, tunnel=tunnel, serial=0) == ["c <- d>b 1.2: reduce 1 [0:] 4 of 1000"]


def test_who_has_got_on_since_it_has_knocked_says_so_when_the_tunnel_is_up() -> None:
    b = summed()
    lose(b, "d")
    tunnel = number(b)
    b.result("a", vector(15), "abcdefg")
    answer = fr.Knock(incarnation=1, answer=True, sync=stands())
    assert carried(b, "c", "d", answer, tunnel=tunnel, serial=0)[0] == "c <- b>d 1.2: sync 1 after 1"


def test_who_has_knocked_again_since_then_does_not_know_which_was_heard() -> None:
    b = summed()
    lose(b, "d")
    b.result("a", vector(15), "abcdefg")
    b.until(0.12)
    tunnel = number(b)
    assert [sync.committed for sync in said(b)] == [1, 1]
    answer = fr.Knock(incarnation=1, answer=True, sync=stands())
    assert carried(b, "c", "d", answer, tunnel=tunnel, serial=0)[0] == "c <- b>d 1.2: sync 1 after 1"


def test_an_end_that_says_nothing_of_itself_with_it_is_told_behind_it() -> None:
    """As those of older versions do."""
    b = around()
    lose(b, "d")
    assert knock(b, "c", "d", number(b), answer=True) == ["c <- b>d 1.2: sync 1 after 0"]
    d = around("d")
    d.until(0.6)
    assert knock(d, "e", "b")[1:] == ["e <- d>b 77.0: come in", "e <- d>b 77.2: sync 1 after 0"]
    assert said(d) == []


def test_an_answer_to_an_earlier_knock_is_too_late() -> None:
    b = around()
    lose(b, "d")
    earlier = number(b)
    b.level("d")
    lose(b, "d")
    assert knock(b, "c", "d", earlier, answer=True) == []
    assert path(b, "d") == ""


def test_the_first_knock_counts() -> None:
    d = around("d")
    lose(d, "b")
    d.until(0.6)  # its own knocks may not have come through
    assert knock(d, "e", "b") == ["e <- d>b 77.0: come in", "e <- d>b 77.2: sync 1 after 0"]
    assert path(d, "b") == "via e"
    assert knock(d, "c", "b") == []  # the same, by another way
    assert knock(d, "", "b") == []
    assert path(d, "b") == "via e"


def test_a_copy_of_a_knock_that_comes_after_the_connection_is_back_changes_nothing() -> None:
    d = around("d")
    lose(d, "b")
    d.until(0.6)
    knock(d, "e", "b")
    d.level("b")
    assert knock(d, "", "b") == []
    assert path(d, "b") == "direct"


def test_who_hears_a_knock_before_it_has_noticed_resets_its_connection() -> None:
    d = around("d")
    d.until(0.6)
    assert knock(d, "e", "b") == [
        "close b: the other end has opened another path",
        "e <- d>b 77.0: come in",
        "e <- d>b 77.2: sync 1 after 0",
    ]
    (closed,) = (effect for effect in d.effects if isinstance(effect, fx.CloseLink))
    assert closed.abrupt


def test_a_knock_that_crosses_a_new_connection_does_not_close_it() -> None:
    """It was sent before that stood; if not, there will be more."""
    d = around("d")
    d.until(0.4)
    assert knock(d, "e", "b") == []
    assert path(d, "b") == "direct"
    d.until(0.6)
    assert knock(d, "e", "b")[0] == "close b: the other end has opened another path"
    assert path(d, "b") == "via e"


def test_a_knock_by_way_of_the_broker_is_answered_by_way_of_the_broker() -> None:
    d = around("d")
    lose(d, "b")
    d.until(0.6)
    assert knock(d, "", "b") == ["relay b <- d>b 77.0: come in", "relay b <- d>b 77.2: sync 1 after 0"]
    assert path(d, "b") == "relay"


@pytest.mark.parametrize("hop", ["e", ""])
def test_what_opens_a_way_through_the_broker_is_no_answer(hop: str) -> None:
    """The broker may have had it for long, and its sender have died: nobody gives up a view for what it says of one."""
    d = around("d")
    lose(d, "b")
    d.until(0.6)
    later = msgspec.structs.replace(view(57, "bxy"), generation=Generation(9))
    d.hear(ev.ViewSeen(later))
    sync = fr.Sync(epoch=later.stamp, run="", committed=0, generation=later.generation)
    asking = fr.Knock(incarnation=1, answer=False, sync=sync)
    said = carried(d, hop, "b", asking, tunnel=77, serial=0)
    assert any(line.startswith("removed") for line in said) is bool(hop)


def test_of_two_knocks_that_cross_the_smaller_ids_counts() -> None:
    b, d = around("b"), around("d")
    lose(b, "d")
    lose(d, "b")
    of_b, of_d = number(b), number(d)
    assert knock(b, "c", "d", of_d) == []
    assert knock(d, "c", "b", of_b)[0] == "c <- d>b 1.0: come in"
    assert knock(b, "c", "d", of_b, answer=True) == ["c <- b>d 1.2: sync 1 after 0"]
    assert (path(b, "d"), path(d, "b")) == ("via c", "via c")


def test_but_not_if_it_gets_nowhere() -> None:
    """What b sends to d may be lost while what d sends arrives: then d's Knock is the one that can be answered."""
    b = around()
    lose(b, "d")
    b.until(0.5)
    assert knock(b, "c", "d")[0] == "c <- b>d 77.0: come in"


def test_an_answer_that_comes_twice_says_nothing_the_second_time() -> None:
    """What b has said since is newer, though it was said over the same tunnel."""
    d = around("d")
    lose(d, "b")
    tunnel = number(d)
    d.until(0.6)
    answer = fr.Knock(incarnation=1, answer=True, sync=msgspec.structs.replace(stands(), committed=-1))
    carried(d, "", "b", answer, tunnel=tunnel, serial=0)
    carried(d, "", "b", stands(), tunnel=tunnel, serial=1)
    carried(d, "", "b", answer, tunnel=tunnel, serial=0)
    assert any("reduce 1" in said for said in d.contribute(4))


def test_two_ends_never_knock_by_the_same_number() -> None:
    one, other = around("b"), around("d")
    lose(one, "d")
    lose(other, "b")
    assert number(one) != number(other)


def test_a_new_knock_replaces_the_tunnel_that_is_there() -> None:
    b = around()
    tunnelled(b, "d", "c")
    b.until(0.6)
    assert knock(b, "e", "d", 99)[0] == "e <- b>d 99.0: come in"
    assert path(b, "d") == "via e"


def test_a_knock_from_before_the_tunnel_stood_changes_nothing() -> None:
    """Both ends have knocked, b's Knock has counted, and d would take no answer to its own any more."""
    b = around()
    lose(b, "d")
    knock(b, "c", "d", number(b), answer=True, stamp=900.01)
    assert knock(b, "e", "d", 99, stamp=900.0, lost=900.0) == []
    assert path(b, "d") == "via c"


def test_a_knock_that_is_later_than_the_last_that_came_over_the_path_counts_at_once() -> None:
    b = around()
    lose(b, "d")
    tunnel = number(b)
    knock(b, "c", "d", tunnel, answer=True, stamp=900.01)
    carried(b, "c", "d", fr.Ping(waiting=False, stamp=900.05), tunnel=tunnel, serial=1)
    assert knock(b, "e", "d", 98, stamp=900.06, lost=900.04) == []
    assert knock(b, "e", "d", 99, stamp=900.06, lost=900.06)[0] == "e <- b>d 99.0: come in"
    b.level("d")
    b.frame("d", fr.Ping(waiting=False, stamp=900.1))
    assert knock(b, "c", "d", 100, stamp=900.3, lost=900.08) == []
    assert knock(b, "c", "d", 101, stamp=900.3, lost=900.2)[0] == "close d: the other end has opened another path"


def test_a_knock_whose_answer_was_lost_is_answered_again() -> None:
    d = around("d")
    d.until(0.6)
    knock(d, "e", "b", 99)
    assert knock(d, "c", "b", 99) == []
    assert knock(d, "e", "b", 99) == ["e <- d>b 99.0: come in"]
    assert path(d, "b") == "via e"


def test_of_two_knocks_that_have_crossed_late_the_answer_counts_whatever_else_comes_late() -> None:
    b = around()
    lose(b, "d")
    tunnel = number(b)
    b.until(0.6)
    knock(b, "c", "d", 77, stamp=900.0)
    knock(b, "e", "d", tunnel - 1, answer=True, stamp=900.0)
    known = [at for at in (77, tunnel) if carried(b, "c", "d", fr.Ping(waiting=False), tunnel=at, serial=1) == []]
    assert known == [77]
    knock(b, "c", "d", tunnel, answer=True, stamp=900.1)
    assert carried(b, "c", "d", fr.Ping(waiting=False), tunnel=tunnel, serial=1) == []


def test_the_first_ping_through_a_tunnel_answers_the_knock() -> None:
    """So both ends know the round trip as soon as the tunnel stands."""
    b = around()
    lose(b, "d")
    knock(b, "c", "d", number(b), answer=True, stamp=900.01)
    sent = [e.frame for e in b.effects if isinstance(e, fx.Send) and isinstance(e.frame, fr.Via)]
    first = codec.unwrap(sent[0], 0)
    assert isinstance(first, fr.Ping)
    assert (first.echo, first.held) == (900.01, 0.0)


def test_a_member_that_is_no_neighbour_is_let_in_if_it_has_no_other_way() -> None:
    """It has too few in reach, and needs this one."""
    assert knock(around(), "e", "g") == []  # they are connected
    assert knock(around(), "e", "stranger") == []
    b = around()
    lose(b, "g")
    assert knock(b, "e", "g")
    assert path(b, "g") == "via e"


def test_nobody_is_its_own_hop() -> None:
    b = around()
    assert knock(b, "d", "d") == []
    assert path(b, "d") == "direct"


@pytest.mark.parametrize("hop", ["a", ""])
def test_nobody_opens_a_way_to_itself(hop: str) -> None:
    """It would dial itself, too, as a member that has no other way."""
    b = around()
    assert knock(b, hop, "b") == []
    assert "b" not in {state.peer for state in b.node.link_states()}
    assert not any("dial b" in line for line in b.until(1.0))


def test_a_knock_shows_that_somebody_lives() -> None:
    """Though no answer gets through: the other end is not gone."""
    a = Machine("a", hidden=(fr.Ping, fr.Knock)).join(view(1, "abc"))
    for second in range(8):
        a.now = float(second)
        knock(a, "", "b", 100 + second)
        knock(a, "", "c", 100 + second)
        assert when(a.until(second + 0.9), "view 2 ac") > 10


def test_a_knock_of_a_new_life_says_that_the_old_one_is_over() -> None:
    a = around("a")
    a.others = "cdefg"
    a.until(0.6)
    knock(a, "c", "b", life=2)
    assert when(a.until(1.1), "publish view 2 agcdef") < 0.9


# -- what goes through -------------------------------------------------------------------------------------


def test_a_round_goes_through_as_over_a_connection() -> None:
    d = around("d")
    tunnel = tunnelled(d, "b", "e")
    carried(d, "e", "b", fr.Sync(epoch=1, run="", committed=0), tunnel=tunnel, serial=1)
    assert d.contribute(1) == ["e <- d>b 1.3: reduce 1 [0:] 1 of 1000"]
    commit = fr.Commit(
        decided_in=1, contributors=b"\x7f", weight=7.0, exact=True, digest=digest_of(vector(7)), final=False
    )
    result = fr.Result(epoch=1, round=1, offset=0, total=1, dtype="<f4", commit=commit)
    assert carried(d, "e", "b", result, tunnel=tunnel, serial=2, data=vector(7).tobytes()) == ["e <- d>b 1.4: have 1"]
    assert carried(d, "e", "b", fr.Decide(epoch=1, round=1), tunnel=tunnel, serial=3) == ["round 1 = 7 of abcdefg"]
    committed = next(effect for effect in d.effects if isinstance(effect, fx.RoundCommitted))
    assert committed.paths == ("via e",)


def test_who_leaves_hears_the_end_of_its_last_round_through_a_tunnel_too() -> None:
    """The head alone is a quorum of two: the round ends, and the view that follows is there, in the same moment."""
    a = Machine("a", hidden=(fr.Ping,)).join(view(1, "ab"), up="b")
    lose(a, "b")
    tunnel = number(a)
    knock(a, "", "b", tunnel, answer=True)
    serial = iter(range(1, 9))

    def b_says(frame: fr.Frame, data: bytes = b"") -> list[str]:
        return carried(a, "", "b", frame, tunnel=tunnel, serial=next(serial), data=data)

    world = view(1, "ab")
    b_says(fr.Sync(epoch=1, run="", committed=0, generation=world.generation))
    a.contribute(1.0)
    b_says(fr.Leave(peer="b", incarnation=1, until=1))
    reduce = fr.Reduce(epoch=1, round=1, offset=0, total=1, dtype="<f4", contributors=b"\x02", weight=1.0)
    said = b_says(reduce, vector(2.0).tobytes())
    assert "round 1 = 3 of ab" in said
    assert a.node.view is not None
    assert a.node.view.ids == (A,)
    assert any(line.startswith("relay b <- a>b") and line.endswith("decide 1") for line in said)


def test_a_view_goes_through_a_tunnel() -> None:
    from edgepeer.wire.documents import pack

    d = around("d")
    tunnel = tunnelled(d, "b", "e")
    said = carried(d, "e", "b", fr.ViewFrame(epoch=2), tunnel=tunnel, serial=1, data=pack(view(2, "abcdef")))
    assert "view 2 abcdef" in said


def test_a_gap_ends_the_tunnel_and_it_knocks_again() -> None:
    d = around("d")
    tunnel = tunnelled(d, "b", "e")
    said = carried(d, "e", "b", fr.Sync(epoch=1, run="", committed=0), tunnel=tunnel, serial=2)
    assert said == ["e <- d>b 2.0: knock", "c <- d>b 2.0: knock"]
    assert path(d, "b") == ""


def test_what_is_repeated_is_dropped() -> None:
    d = around("d")
    tunnel = tunnelled(d, "b", "e")
    carried(d, "e", "b", fr.Sync(epoch=1, run="", committed=0), tunnel=tunnel, serial=1)
    abort = fr.Abort(epoch=1, round=1, cause="timeout", reason="x", over=True)
    assert carried(d, "e", "b", abort, tunnel=tunnel, serial=1) == []
    assert carried(d, "e", "b", abort, tunnel=tunnel, serial=0) == []
    assert carried(d, "e", "b", abort, tunnel=tunnel, serial=2) == ["round 1 aborted: timeout (not mine)"]


@pytest.mark.parametrize(("hop", "tunnel"), [("c", 0), ("", 0), ("e", 1), ("e", -1)])
def test_what_comes_by_another_way_or_through_another_tunnel_is_sent_back(hop: str, tunnel: int) -> None:
    d = around("d")
    right = tunnelled(d, "b", "e")
    abort = fr.Abort(epoch=1, round=1, cause="timeout", reason="x", over=True)
    back = f"{hop} <-" if hop else "relay b <-"
    assert carried(d, hop, "b", abort, tunnel=right + tunnel, serial=1) == [f"{back} d>b {1 + tunnel}.0: no way to d"]
    assert path(d, "b") == "via e"


def test_a_silent_tunnel_is_given_up() -> None:
    d = around("d")
    tunnel = tunnelled(d, "b", "e")
    d.node.parts.links[B].alive_at = 60.0  # it is another matter when a peer counts as gone
    carried(d, "e", "b", fr.Ping(waiting=False, stamp=1.0, every=0.1, epoch=1), tunnel=tunnel, serial=1)
    for tick in range(1, 8):
        says(d, "c", "abdefg")
        says(d, "e", "bcd")
        d.until(tick * 0.2)
    said = d.until(1.5)
    assert any("knock" in line for line in said) or path(d, "b") == ""


@pytest.mark.parametrize("sign", ["a part of what the hop sends", "what went through an earlier way"])
def test_a_way_around_is_not_silent_while_anything_comes_by_the_hop(sign: str) -> None:
    """Over a slow line what it carries takes longer than a way may be silent."""
    d = around("d")
    tunnel = tunnelled(d, "b", "e")
    d.node.parts.links[B].alive_at = 60.0
    carried(d, "e", "b", fr.Ping(waiting=False, stamp=1.0, every=0.1, epoch=1), tunnel=tunnel, serial=1)
    ping, said = fr.Ping(waiting=False, stamp=1.0, every=0.1, epoch=1), []
    for tick in range(1, 40):
        says(d, "c", "abdefg")
        says(d, "e", "bcd")
        if sign.startswith("a part"):
            d.hear(ev.Heard(PeerId("e"), d.now))
        else:
            carried(d, "e", "b", ping, tunnel=tunnel - 1, serial=tick)
        said += d.until(tick * 0.1)
    assert path(d, "b") == "via e"
    assert not any("knock" in line for line in said)


def test_what_the_broker_may_have_had_for_long_is_no_sign_of_life() -> None:
    d = around("d")
    tunnel = tunnelled(d, "b", "")
    link = d.node.parts.links[B]
    d.until(0.2)
    heard = link.heard
    ping = fr.Ping(waiting=False, stamp=1.0, every=0.1, epoch=1)
    carried(d, "", "b", ping, tunnel=tunnel - 1, serial=5)
    assert link.heard == heard
    carried(d, "", "b", ping, tunnel=tunnel, serial=1)
    assert link.heard > heard


def test_no_way_makes_it_knock_again() -> None:
    d = around("d")
    tunnel = tunnelled(d, "b", "e")
    assert d.frame("e", fr.NoWay(target="b", tunnel=tunnel)) == ["e <- d>b 2.0: knock", "c <- d>b 2.0: knock"]


@pytest.mark.parametrize(("hop", "target", "tunnel"), [("c", "b", 0), ("e", "b", 1), ("e", "e", 0), ("e", "x", 0)])
def test_no_way_of_anything_else_means_nothing(hop: str, target: str, tunnel: int) -> None:
    d = around("d")
    right = tunnelled(d, "b", "e")
    assert d.frame(hop, fr.NoWay(target=target, tunnel=right + tunnel)) == []
    assert path(d, "b") == "via e"


def test_whoever_sends_through_a_tunnel_that_the_other_end_has_not_is_told_and_knocks_again() -> None:
    d = around("d")
    tunnel = tunnelled(d, "b", "e")
    gone = fr.NoWay(target="b", tunnel=tunnel)
    assert carried(d, "c", "b", gone, tunnel=tunnel, serial=0) == []  # by another way: not of this tunnel
    assert carried(d, "e", "b", gone, tunnel=tunnel - 1, serial=0) == []
    assert path(d, "b") == "via e"
    said = carried(d, "e", "b", gone, tunnel=tunnel, serial=0)
    assert said == ["e <- d>b 2.0: knock", "c <- d>b 2.0: knock"]
    assert carried(d, "e", "b", gone, tunnel=tunnel, serial=0) == []


def test_a_lost_hop_makes_it_knock_again() -> None:
    d = around("d")
    tunnelled(d, "b", "e")
    assert lose(d, "e") == ["c <- d>b 2.0: knock"]


def test_what_goes_through_another_hop_or_the_broker_stays() -> None:
    b = around()
    tunnelled(b, "d", "c")
    lose(b, "e")
    assert path(b, "d") == "via c"
    for peer in "ceg":
        says(b, peer, "b") if b.node.parts.links.is_direct(PeerId(peer)) else None
    lose(b, "a")
    knock(b, "", "a", number(b), answer=True)
    assert path(b, "a") == "relay"
    lose(b, "f")
    assert (path(b, "a"), path(b, "d")) == ("relay", "via c")


def test_the_connection_is_used_again_as_soon_as_it_stands() -> None:
    d = around("d")
    tunnel = tunnelled(d, "b", "e")
    assert when(d.until(0.3), "dial b") < 0.3
    assert d.hear(ev.LinkUp(B, 1)) == ["b <- sync 1 after 0"]
    assert path(d, "b") == "direct"
    late = fr.Abort(epoch=1, round=1, cause="timeout", reason="x", over=True)
    assert carried(d, "e", "b", late, tunnel=tunnel, serial=1) == ["e <- d>b 1.0: no way to d"]
    assert path(d, "b") == "direct"


# -- hops --------------------------------------------------------------------------------------------------


def test_a_hop_passes_on_what_its_neighbour_sends() -> None:
    c = around("c")
    frame = via("b", "d", fr.Have(epoch=1, round=1), tunnel=5, serial=1)
    assert c.hear(ev.FrameReceived(B, frame, b"", 0)) == ["d <- b>d 5.1: have 1"]
    reduce = fr.Reduce(epoch=1, round=1, offset=0, total=1, dtype="<f4", contributors=b"\x08", weight=1.0)
    data = vector(3).tobytes()
    assert c.hear(ev.FrameReceived(D, via("d", "b", reduce, tunnel=5, serial=2), data, 4)) == [
        "b <- d>b 5.2: reduce 1 [0:] 3 of 1000"
    ]


def test_a_hop_passes_nothing_on_that_its_neighbour_has_not_sent_itself() -> None:
    c = around("c")
    frame = via("a", "d", fr.Have(epoch=1, round=1), tunnel=5, serial=1)
    assert c.hear(ev.FrameReceived(B, frame, b"", 0)) == []
    assert c.hear(ev.Relayed(via("a", "d", fr.Have(epoch=1, round=1), tunnel=5, serial=1), b"")) == []


def test_a_hop_does_not_pass_on_into_a_tunnel() -> None:
    b = around()
    tunnelled(b, "d", "c")
    frame = via("e", "d", fr.Have(epoch=1, round=1), tunnel=5, serial=1)
    assert b.hear(ev.FrameReceived(E, frame, b"", 0)) == ["e <- no way to d"]


def test_a_hop_says_when_there_is_no_way() -> None:
    c = around("c")
    frame = via("b", "x", fr.Have(epoch=1, round=1), tunnel=5, serial=1)
    assert c.hear(ev.FrameReceived(B, frame, b"", 0)) == ["b <- no way to x"]
    assert c.effects[-1].frame == fr.NoWay(target="x", tunnel=5)  # type: ignore[union-attr]


def test_a_hop_looks_at_nothing_that_it_passes_on() -> None:
    c = around("c")
    frame = fr.Via(source="b", target="d", tunnel=5, serial=1, kind=200, header=b"\xc1")
    (sent,) = [e for e in [*c.node.handle(ev.FrameReceived(B, frame, b"xyz", 3), 0.0)] if isinstance(e, fx.Send)]
    assert (sent.peer, sent.frame, sent.payload) == ("d", frame, b"xyz")


# -- hostile hops ------------------------------------------------------------------------------------------

GARBAGE = [
    fr.Via(source="d", target="b", tunnel=77, serial=1, kind=codec.wrap(fr.Bye(reason=""))[0], header=b"\x91\xa0"),
    fr.Via(source="d", target="b", tunnel=77, serial=1, kind=16, header=b"\x96\xa1a\xa1b\x01\x02\x03\xc4\x00"),  # a Via
    fr.Via(source="d", target="b", tunnel=77, serial=1, kind=1, header=b"\x93\xa1f\xa1p\x01"),  # Hello
    fr.Via(source="d", target="b", tunnel=77, serial=1, kind=200, header=b""),
    fr.Via(source="d", target="b", tunnel=77, serial=1, kind=2, header=b"\xc1"),
    fr.Via(source="d", target="b", tunnel=77, serial=1, kind=2, header=b""),
    fr.Via(source="d", target="b", tunnel=77, serial=1, kind=2, header=b"\x93\x01\xa0\xfb"),  # Sync after -5
]


@pytest.mark.parametrize("frame", GARBAGE)
def test_garbage_costs_the_hop_its_link_and_nothing_else(frame: fr.Via) -> None:
    b = around()
    tunnelled(b, "d", "e")
    said = b.hear(ev.FrameReceived(C, frame, b"", 0))
    assert said[0].startswith("close c: ")
    assert len(said) == 1
    assert (path(b, "a"), path(b, "d"), path(b, "e")) == ("direct", "via e", "direct")


def test_garbage_of_the_hop_in_use_takes_the_tunnel_with_it() -> None:
    b = around()
    tunnelled(b, "d", "c")
    said = b.hear(ev.FrameReceived(C, GARBAGE[0], b"", 0))
    assert said[0].startswith("close c: Via carries a frame of kind")
    assert said[1:] == ["e <- b>d 2.0: knock"]


@pytest.mark.parametrize("frame", GARBAGE)
def test_garbage_out_of_the_broker_is_dropped(frame: fr.Via) -> None:
    b = around()
    assert b.hear(ev.Relayed(frame, b"")) == []


def test_a_payload_where_none_belongs_costs_the_hop_its_link() -> None:
    b = around()
    frame = via("d", "b", fr.Have(epoch=1, round=1), tunnel=77, serial=1)
    assert b.hear(ev.FrameReceived(C, frame, b"more", 4))[0].startswith("close c: Have frame in a Via has 4 payload")


def test_a_segment_beyond_its_vector_costs_the_hop_its_link() -> None:
    b = around()
    frame = fr.Reduce(epoch=1, round=1, offset=0, total=2, dtype="<f4", contributors=b"\x08", weight=1.0)
    said = b.hear(ev.FrameReceived(C, via("d", "b", frame, tunnel=77, serial=1), bytes(12), 12))
    assert said == ["close c: Reduce of 12 bytes at element 0 of 2"]


def test_a_vector_that_is_too_large_is_not_made_room_for_in_a_tunnel_either() -> None:
    b = around(limits=Limits(max_vector_bytes=100))
    tunnel = tunnelled(b, "d", "e")
    carried(b, "e", "d", fr.Sync(epoch=1, run="", committed=0), tunnel=tunnel, serial=1)
    frame = fr.Reduce(epoch=1, round=1, offset=0, total=2**50, dtype="<f4", contributors=b"\x08", weight=1.0)
    assert carried(b, "e", "d", frame, tunnel=tunnel, serial=2, data=bytes(8)) == ["a <- abort 1: mismatch"]


def test_what_a_source_does_wrong_in_a_tunnel_costs_it_the_tunnel_and_the_hop_nothing() -> None:
    b = around()
    tunnel = tunnelled(b, "d", "e")
    frame = fr.Reduce(epoch=1, round=1, offset=0, total=1, dtype="<f4", contributors=b"\x01", weight=1.0)
    said = carried(b, "e", "d", frame, tunnel=tunnel, serial=1, data=bytes(4))
    assert said == ["e <- b>d 2.0: knock", "c <- b>d 2.0: knock"]
    assert path(b, "e") == "direct"
