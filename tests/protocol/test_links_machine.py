"""Links: heartbeats, silence, redialling, and who counts as gone. See the table in links.py."""

from __future__ import annotations

import itertools

from transcript import Machine, member, view

from edgepeer.ids import PeerId
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.wire import frames as fr

B, C = PeerId("b"), PeerId("c")


def root_of(names: str, **limits: float) -> Machine:
    """Machine a, the root of a view, that has settled."""
    a = Machine("a", limits=Limits(**limits))  # type: ignore[arg-type]
    a.join(view(1, names)).tick(0.0)
    return a


def test_a_child_dials_its_parent_at_once_and_a_parent_its_child_only_later() -> None:
    assert Machine("b").join(view(1, "ab")).until(0.0) == ["0: dial a"]
    assert root_of("ab").until(2.0) == ["1: dial b"]


def test_redialling_backs_off() -> None:
    b = Machine("b", limits=Limits(heartbeat_s=0.02)).join(view(1, "ab"))  # ticks every 10 ms
    dials = []
    for _ in range(7):
        said = []
        while not said:
            said = [line for line in b.tick(b.node.next_deadline()) if line == "dial a"]
        dials.append(round(b.now, 2))
        b.hear(ev.DialFailed(PeerId("a"), "refused"))
    pauses = [round(after - before, 1) for before, after in itertools.pairwise(dials)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]


def test_no_second_dial_while_one_is_under_way() -> None:
    b = Machine("b").join(view(1, "ab"))
    assert b.until(9.0) == ["0: dial a"]


def test_a_quiet_link_is_kept_warm() -> None:
    a = root_of("ab")
    a.hear(ev.LinkUp(B, 1), 0.2)
    assert a.until(2.0) == ["1.5: b <- ping"]
    a.frame("b", fr.Ping(waiting=False))
    assert a.until(3.0) == ["2.5: b <- ping"]


def test_a_ping_says_whom_the_round_waits_for() -> None:
    a = root_of("ab")
    a.level("b")
    a.contribute(1)
    assert a.until(1.0) == ["1: b <- ping waiting"]


def test_a_silent_link_is_closed_and_dialled_again() -> None:
    a = root_of("ab", silence_s=3.0)
    a.hear(ev.LinkUp(B, 1), 1.0)
    a.frame("b", fr.Ping(waiting=False))
    said = a.until(5.0)
    assert "4.5: close b: nothing heard for 3.5 s" in said
    assert "4.5: dial b" in said or "5: dial b" in said


def test_who_has_no_link_for_long_is_gone() -> None:
    a = root_of("abc", silence_s=3.0)
    a.hear(ev.LinkUp(C, 1), 0.5)
    a.frame("c", fr.Ping(waiting=False))
    assert not any("view 2" in line for line in a.until(2.9))
    assert "3: view 2 ac" in a.until(3.4)


def test_a_broken_link_and_a_cleared_presence_are_enough() -> None:
    a = root_of("abc")
    for peer in (B, C):
        a.hear(ev.LinkUp(peer, 1), 0.1)
    a.hear(ev.PresenceGone(B), 1.0)
    assert not any("view 2" in line for line in a.until(1.9))  # that alone may be the broker
    a.hear(ev.LinkDown(B, "reset"), 2.0)
    assert "2.5: view 2 ac" in a.until(2.5)


def test_a_broken_link_alone_is_not() -> None:
    a = root_of("ab")
    a.hear(ev.LinkUp(B, 1), 0.1)
    a.hear(ev.LinkDown(B, "reset"), 1.0)
    said = a.until(5.0)
    assert "1: dial b" in said
    assert not any("view 2" in line for line in said)


def test_a_presence_that_was_cleared_before_the_view_counts_too() -> None:
    a = root_of("abc")
    a.hear(ev.PresenceSeen(member("d")), 0.1)
    a.hear(ev.ViewSeen(view(2, "abcd", fanout=3)), 0.2)
    a.hear(ev.PresenceGone(PeerId("d")), 0.3)
    assert any("view 3" in line and "d" not in line for line in a.until(1.0))


def test_a_new_life_on_the_other_end_means_that_the_old_one_is_over() -> None:
    a = root_of("abc")
    a.hear(ev.LinkUp(B, 2), 0.1)
    assert "0.5: view 2 ac" in a.until(0.5)


def test_an_older_life_on_the_other_end_means_nothing() -> None:
    """Who was let in anew within one process says hello as it did at its start."""
    a = Machine("a").join(view(1, "ab", b=3))
    a.hear(ev.LinkUp(B, 1), 0.1)
    assert not any("view" in line for line in a.until(5.0))


def test_links_that_nobody_wants_are_forgotten() -> None:
    a = root_of("ab")
    for number in range(100):
        stranger = PeerId(f"s{number}")
        a.hear(ev.LinkUp(stranger, 1), 0.1)
        a.hear(ev.LinkDown(stranger, "bye"), 0.2)
    assert a.node.links.get(PeerId("s7")) is None
    a.hear(ev.LinkUp(PeerId("s7"), 1), 0.3)
    said = a.until(12.0)
    assert any(line.endswith("close s7: nothing heard for 10.2 s") for line in said)
    assert not any("s7 <- ping" in line for line in said)
    assert a.node.links.get(PeerId("s7")) is None


def test_a_ping_on_a_link_that_only_the_other_end_wants_is_answered() -> None:
    a = root_of("ab")
    a.hear(ev.LinkUp(C, 1), 0.1)
    assert a.frame("c", fr.Ping(waiting=False)) == ["c <- sync 1 after 0"]


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


def test_frames_on_a_link_that_is_down_are_ignored() -> None:
    a = root_of("ab")
    assert a.frame("b", fr.Sync(epoch=1, run="", committed=0)) == []
    assert a.frame("nobody", fr.Suspect(epoch=1, peer="b", reason="spite")) == []
