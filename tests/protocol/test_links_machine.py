"""Links: heartbeats, silence, redialling, and who counts as gone. See the table in links.py."""

from __future__ import annotations

import itertools

import pytest
from transcript import QUIET, Machine, member, vector, view, when

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.wire import frames as fr

B, C = PeerId("b"), PeerId("c")
LOOK = 0.26
"""How late what falls due may be noticed while nothing else happens."""


def root_of(names: str, *, hidden: tuple[type[fr.Frame], ...] = QUIET, **limits: float) -> Machine:
    """Machine a, the root of a view, that has settled."""
    a = Machine("a", limits=Limits(**limits), hidden=hidden)  # type: ignore[arg-type]
    a.join(view(1, names)).tick(0.0)
    return a


def alive(machine: Machine, peer: str, **fields: float) -> list[str]:
    """A Ping comes."""
    return machine.frame(peer, fr.Ping(waiting=False, **fields))  # type: ignore[arg-type]


def test_a_child_dials_its_parent_at_once_and_a_parent_its_child_only_later() -> None:
    assert Machine("b").join(view(1, "ab")).until(0.0) == ["0: dial a"]
    assert root_of("ab").until(2.0) == ["0.5: dial b"]


def test_of_two_backups_the_smaller_id_dials_at_once_and_the_other_only_later() -> None:
    assert "0: dial c" in Machine("b").join(view(1, "abc")).until(0.0)
    assert Machine("c").join(view(1, "abc")).until(1.0) == ["0: dial a", "0.5: dial b"]
    assert Machine("b").join(view(1, "acb")).until(1.0) == ["0: dial a", "0: dial c"]  # ids count, not positions


def test_redialling_backs_off() -> None:
    b = Machine("b", limits=Limits(heartbeat_s=0.02)).join(view(1, "ab"))  # ticks every 10 ms
    dials = []
    for _ in range(7):
        said: list[str] = []
        while not said:
            said = [line for line in b.tick(b.node.next_deadline()) if line == "dial a"]
        dials.append(round(b.now, 2))
        b.hear(ev.DialFailed(PeerId("a"), "refused"))
    pauses = [round(after - before, 1) for before, after in itertools.pairwise(dials)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_no_second_dial_while_one_is_under_way() -> None:
    b = Machine("b").join(view(1, "ab"))
    assert b.until(9.0) == ["0: dial a"]


def test_a_quiet_link_is_kept_warm() -> None:
    a = root_of("ab", hidden=())
    assert a.hear(ev.LinkUp(B, 1), 0.2) == ["b <- ping", "b <- sync 1 after 0"]
    assert a.until(2.0) == ["1.2: b <- ping"]
    alive(a, "b")
    assert a.until(3.0) == ["2.2: b <- ping"]


def test_whatever_is_sent_stands_for_a_ping() -> None:
    a = root_of("abc", hidden=(fr.Knock,))
    a.hear(ev.LinkUp(B, 1), 0.0)
    a.frame("b", fr.Sync(epoch=0, run="", committed=0), None)
    assert a.until(0.9) == ["0.5: dial c"]
    a.frame("b", fr.Sync(epoch=0, run="", committed=0), None)  # is answered with the view
    assert a.until(1.8) == []
    assert a.until(2.0) == ["1.9: b <- ping"]


def test_a_ping_says_whom_the_round_waits_for() -> None:
    a = root_of("ab", hidden=())
    a.level("b")
    a.contribute(1)
    assert a.until(0.05) == ["0.05: b <- ping waiting"]


def test_where_traffic_never_rests_the_pace_is_said_all_the_same() -> None:
    """A Ping goes out in four beats. Or the other end would go by what was promised before the rounds began."""
    a = root_of("ab", hidden=())
    a.level("b")
    a.until(1.5)
    said: list[tuple[float, float]] = []
    for number in range(1, 201):
        at = 1.5 + number / 100
        a.contribute(1)
        a.until(at)
        a.reduce("b", vector(1), "b", number=number)
        assert a.node.parts.links[B].sent == at
        said += (
            [(a.now, a.node.parts.links[B].promised)] if a.node.parts.links[B].pinged > 1.5 + (number - 1) / 100 else []
        )
    assert [round(at, 2) for at, _ in said][:3] == [1.56, 1.76, 1.96]
    assert {every for _, every in said} == {0.05}


def test_when_rounds_begin_the_pace_is_said_however_short_ago_the_last_ping_is() -> None:
    a = root_of("ab", hidden=())
    a.level("b")
    assert a.until(1.01) == ["1: b <- ping"]
    a.contribute(1)
    a.until(1.05)
    a.frame("b", fr.Sync(epoch=0, run="", committed=0))  # is answered
    assert a.node.parts.links[B].sent == 1.05
    assert a.until(1.07) == ["1.06: b <- ping waiting"]


def test_when_the_rounds_are_over_the_old_pace_is_kept_until_the_new_one_is_said() -> None:
    """Or the other end would take us for gone: it was promised a Ping every 50 ms."""
    a = root_of("ab", hidden=())
    a.level("b")
    a.contribute(1)
    assert len([line for line in a.until(2.01) if "ping" in line]) == 40
    a.reduce("b", vector(1), "b")
    assert a.node.allreduce.committed == 1
    said = [line for line in a.until(5.0) if "ping" in line]
    assert said == ["2.06: b <- ping", "3.06: b <- ping", "4.06: b <- ping"]


def test_a_silent_link_is_reset_and_dialled_again() -> None:
    a = root_of("ab")
    a.hear(ev.LinkUp(B, 1), 1.0)
    alive(a, "b", stamp=1.0, every=0.5)
    said = a.until(4.0)
    # the promised beat and a second, since there was no round trip yet
    assert 2.5 < when(said, "s, expected within 1.500 s") < 2.51
    assert when(said, "dial b") < 2.51 + LOOK


def test_a_reset_sends_nothing_of_what_is_queued() -> None:
    a = root_of("ab")
    a.hear(ev.LinkUp(B, 1), 1.0)
    alive(a, "b", stamp=1.0, every=0.1)
    while a.node.parts.links.is_up(B):
        a.tick(a.node.next_deadline())
    closes = [effect for effect in a.effects if isinstance(effect, fx.CloseLink)]
    assert [close.abrupt for close in closes] == [True]


def test_who_promised_nothing_may_be_silent_for_as_long_as_a_peer_may_be_away() -> None:
    b = Machine("b").join(view(1, "ab"))
    b.hear(ev.LinkUp(PeerId("a"), 1), 1.0)
    alive(b, "a")
    (closed,) = [line for line in b.until(9.0) if "close" in line]
    assert 4.0 < when([closed], "expected within 3.000 s") < 4.01


def test_a_part_of_a_frame_is_a_sign_of_life() -> None:
    a = root_of("ab")
    a.hear(ev.LinkUp(B, 1), 1.0)
    alive(a, "b", stamp=1.0, every=0.1)
    for tenth in range(10, 60):
        a.hear(ev.Heard(B, tenth / 10), tenth / 10)
        assert not any("close" in line for line in a.until(tenth / 10 + 0.05))


def test_and_counts_from_when_it_came() -> None:
    """The machine is told at its next tick only: a cut in the middle of a vector must not seem later than it was."""
    a = root_of("ab")
    a.hear(ev.LinkUp(B, 1), 1.0)
    alive(a, "b", stamp=1.0, every=0.1)
    a.until(1.5)
    a.hear(ev.Heard(B, 1.2))
    a.hear(ev.Heard(B, 1.1))
    assert when(a.until(3.0), "expected within 1.200 s") == pytest.approx(2.4, abs=0.01)


def test_who_was_not_listening_itself_blames_nobody() -> None:
    """A machine that is stopped for two seconds finds its links as it left them: what has come is still to be read."""
    a = root_of("ab")
    a.hear(ev.LinkUp(B, 1), 1.0)
    alive(a, "b", stamp=1.0, every=0.1)
    a.until(1.5)
    assert a.tick(60.0) == []
    assert a.node.parts.links.is_up(B)
    assert any("close b" in line for line in a.until(63.0))


def test_who_has_no_link_for_long_is_gone() -> None:
    assert 3.0 <= when(root_of("ab").until(3.5), "view 2 a") < 3.0 + LOOK


def test_a_connection_is_a_sign_of_life() -> None:
    a = root_of("ab")
    a.until(2.9)
    a.hear(ev.LinkUp(B, 1))
    assert when(a.until(5.8), "view 2 a") > 5.8
    assert when(a.until(6.5), "view 2 a") < 6.5


def test_a_broken_link_and_a_cleared_presence_are_enough() -> None:
    a = root_of("ab")
    a.hear(ev.LinkUp(B, 1), 0.1)
    a.hear(ev.PresenceGone(B), 1.0)
    assert not any("view 2" in line for line in a.until(1.9))  # that alone may be the broker
    a.hear(ev.LinkDown(B, "reset"), 2.0)
    assert 2.2 <= when(a.until(2.5), "view 2 a") < 2.2 + LOOK  # until then there may be a way around


def test_a_broken_link_and_a_machine_that_says_that_nobody_listens_are_too() -> None:
    a = root_of("ab")
    a.hear(ev.LinkUp(B, 1), 0.1)
    a.until(1.0)
    a.hear(ev.LinkDown(B, "reset"))
    a.hear(ev.DialFailed(B, "refused", refused=True), 1.1)
    assert 1.2 <= when(a.until(1.5), "view 2 a") < 1.2 + LOOK


def test_a_broken_link_alone_is_not() -> None:
    """It takes three seconds without any sign of life, by whatever path."""
    a = root_of("ab")
    a.hear(ev.LinkUp(B, 1), 0.1)
    a.until(1.0)
    a.hear(ev.LinkDown(B, "reset"))
    said = a.until(1.5)
    assert when(said, "dial b") < 1.0 + LOOK
    a.hear(ev.DialFailed(B, "no answer"))
    assert 3.1 <= when(a.until(4.0), "view 2 a") < 3.1 + LOOK


def test_a_coordinator_that_has_lost_some_goes_on_with_those_who_answer() -> None:
    a = root_of("abc")
    a.hear(ev.LinkUp(C, 1), 0.5)
    a.until(2.0)
    alive(a, "c")
    said = a.until(3.5)
    assert 3.0 <= when(said, "c <- poll 1 for a in 1") < 3.0 + LOOK
    assert when(said, "view 2 ac") == float("inf")
    assert "view 2 ac" in a.agree("c")


def test_a_backup_that_can_not_be_reached_is_not_gone() -> None:
    """Who else is its parent or child may reach it all the same, and will report it if not."""
    b = Machine("b").join(view(1, "abc"))
    b.hear(ev.LinkUp(PeerId("a"), 1), 0.1)
    b.hear(ev.LinkUp(C, 1), 0.1)
    b.hear(ev.LinkDown(C, "reset"), 0.2)
    b.hear(ev.PresenceGone(C), 0.2)
    for second in range(1, 20):
        alive(b, "a")
        assert not any("suspect" in line or "view" in line for line in b.until(float(second)))


def test_a_presence_that_was_cleared_before_the_view_counts_too() -> None:
    a = root_of("a")
    a.hear(ev.PresenceSeen(member("d")), 0.1)
    a.learn(view(2, "ad"), 0.2)
    a.hear(ev.PresenceGone(PeerId("d")), 0.3)
    assert when(a.until(1.0), "view 3 a") < 1.0


def test_a_new_life_on_the_other_end_means_that_the_old_one_is_over() -> None:
    a = root_of("abc")
    a.hear(ev.LinkUp(C, 1), 0.1)
    a.others = "c"
    a.hear(ev.LinkUp(B, 2), 0.1)
    assert when(a.until(0.5), "view 2 ac") < 0.1 + LOOK


def test_an_older_life_on_the_other_end_means_nothing() -> None:
    """Who was let in anew within one process says hello as it did at its start."""
    a = Machine("a").join(view(1, "ab", b=3))
    a.hear(ev.LinkUp(B, 1), 0.1)
    for second in range(1, 6):
        alive(a, "b")
        assert not any("view" in line for line in a.until(float(second)))


def test_links_that_nobody_wants_are_forgotten() -> None:
    a = root_of("ab", hidden=())
    for number in range(100):
        stranger = PeerId(f"s{number}")
        a.hear(ev.LinkUp(stranger, 1), 0.1)
        a.hear(ev.LinkDown(stranger, "bye"), 0.2)
    assert a.node.parts.links.get(PeerId("s7")) is None
    a.hear(ev.LinkUp(PeerId("s7"), 1), 0.3)
    said = a.until(12.0)
    assert any("close s7: nothing heard for 3.0" in line for line in said)
    assert not any("s7 <- ping" in line for line in said)
    assert a.node.parts.links.get(PeerId("s7")) is None


def test_a_ping_on_a_link_that_only_the_other_end_wants_is_answered() -> None:
    a = root_of("ab")
    a.hear(ev.LinkUp(C, 1), 0.1)
    assert alive(a, "c") == ["c <- sync 1 after 0"]


def test_a_child_that_stalls_is_reported_unless_it_waits_itself() -> None:
    b = Machine("b", limits=Limits(stall_s=5.0)).join(view(1, "abcde"), up="ade")
    b.contribute(1)
    b.frame("d", fr.Ping(waiting=True))
    for now in range(1, 8):
        for name in "ade":
            b.hear(ev.FrameReceived(PeerId(name), fr.Ping(waiting=name == "d")), float(now))
        said = b.tick(now + 0.5)
        assert ("a <- suspect e" in said) == (now + 0.5 > 5.0)
        assert "a <- suspect d" not in said


def test_nobody_is_late_for_a_round_that_is_to_be_dropped() -> None:
    """Its root gave it up before e had brought anything, and e never will; another holder of that is gone for long."""
    b = Machine("b", limits=Limits(stall_s=5.0)).join(view(1, "abcde"), up="ade")
    b.contribute(1)
    b.drop("a", "timeout")
    assert b.node.allreduce.laggards(6.0) == []
    assert not b.node.allreduce.waiting


def test_frames_on_a_link_that_is_down_are_ignored() -> None:
    a = root_of("ab")
    assert a.frame("b", fr.Sync(epoch=1, run="", committed=0)) == []
    assert a.frame("nobody", fr.Suspect(epoch=1, peer="b", reason="spite")) == []


def test_of_a_later_life_nothing_is_missed_that_was_missed_of_the_one_before() -> None:
    """It has been let in just now, in the place of the other, and is about to connect."""
    a = root_of("abc")
    a.hear(ev.LinkUp(B, 1), 0.1)
    a.hear(ev.LinkDown(B, "reset"), 0.2)
    a.hear(ev.DialFailed(B, "refused", refused=True), 0.3)
    a.now = 3.5
    links = a.node.parts.links
    assert "b" in [peer for peer, _, _ in links.lost(3.5, others=False)]
    a.learn(view(2, "abc", b=2, c=2))
    assert a.node.view is not None
    assert a.node.view.ids == ("a", "b", "c")
    assert list(links.lost(3.6, others=False)) == []
    assert [peer for peer, _, _ in links.lost(6.6, others=False)] == ["b", "c"]


def test_a_backup_that_was_never_connected_is_no_lost_neighbour_when_it_becomes_one() -> None:
    """Between two peers behind NAT there is no connection; but neighbours reach each other by another way."""
    b = Machine("b", limits=Limits(silence_s=3)).join(view(1, "abc"), up="a")
    for _ in range(20):
        b.now += 0.25
        alive(b, "a")
        b.until(b.now)
    b.learn(view(2, "abdec"))  # c is below b now
    b.level("a")
    told: list[str] = []
    for _ in range(16):
        alive(b, "a")
        told += b.until(b.now + 0.25)
    assert when([line for line in told if "suspect c" in line][:1], "") == pytest.approx(5 + 3, abs=LOOK), told
