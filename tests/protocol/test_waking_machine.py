"""Who was stopped, by transcript: what it says and believes before it is awake again. See waking.py."""

from __future__ import annotations

import msgspec
import pytest
from outsiders import restarted, views
from transcript import Machine, letter_to, view

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.topology.view import MAX_MEMBERS
from edgepeer.wire import frames as fr


def test_who_was_stopped_is_not_awake_while_a_retained_view_of_a_later_generation_is_in_doubt() -> None:
    """Of those who have begun it none may have called meanwhile: the view may be all that tells of it."""
    a = Machine("a").join(view(1, "a"))
    a.hear(ev.ControlSynced())
    a.tick(20.0)  # a long stop
    assert a.node.parts.place.waking
    later = msgspec.structs.replace(view(1, "b"), generation=Generation(counter=2))
    a.hear(ev.ViewSeen(later))
    own = fr.Call(incarnation=1, generation=None, epoch=0, known=None, view=True, stamp=20.0)
    a.hear(letter_to("a", "a", own))
    assert a.node.parts.place.waking
    a.until(20.0 + Limits().anew_s)
    assert not a.node.parts.place.waking  # nobody of it has answered


def test_who_was_stopped_has_its_way_to_the_head_until_it_is_silent() -> None:
    """What has come is handled before the first tick: a Poll of one who has lost its own way, here."""
    d = Machine("d").join(view(1, "abcdefg"), up="bce")
    d.until(1.0)
    d.now = 6.0
    d.frame("c", fr.Poll(epoch=1, candidate="c", number=1, ballot=MAX_MEMBERS + 2))
    assert d.node.parts.place.waking
    assert d.node.parts.succession.promised == 0


def test_so_has_who_was_stopped_for_less_than_that_and_had_not_heard_of_it_just_before() -> None:
    d = Machine("d").join(view(1, "abcdefg"), up="bce")
    d.until(1.0)
    d.tick(1.0)
    d.now = 3.5
    d.frame("c", fr.Poll(epoch=1, candidate="c", number=1, ballot=MAX_MEMBERS + 2))
    assert not d.node.parts.place.waking
    assert d.node.parts.succession.promised == 0


def test_a_head_that_was_stopped_does_without_nobody_whom_it_could_not_hear_meanwhile() -> None:
    """It has looked for d and e just before. Both answer, as soon as it asks who is there."""
    before = view(1, "abcdefgh")
    a = Machine("a").join(before, up="bc").join(view(2, "abcdefg", after=before), up="bc")
    a.others = "bcfg"
    while a.now < 4.0:
        a.until(a.now + 0.1)
        for name in "bc":
            a.frame(name, fr.Ping(waiting=False, stamp=a.now, every=0.5, epoch=2))
    a.now, a.others = 9.0, "bcdef"
    a.frame("c", fr.Suspect(epoch=2, peer="g", reason="gone"))
    a.until(9.6)
    assert a.node.view is not None
    assert set(a.node.view.ids) == set("abcdef")


def test_that_nobody_listened_somewhere_before_a_stop_says_nothing_of_the_time_since() -> None:
    """They start again, as a laptop goes to sleep; as it wakes up, they can't be dialled yet."""
    a = Machine("a").join(view(1, "abc"), up="bc")
    a.broker = True
    for name in "bc":
        a.hear(ev.LinkDown(PeerId(name), "reset"), 0.5)
    while a.now < 2.0:
        a.until(a.now + 0.1)
        for name in "bc":
            a.hear(ev.DialFailed(PeerId(name), "refused", True))
    assert not views(a.tick(20.0) + a.until(25.0))
    assert not a.node.parts.place.waking
    assert a.node.parts.membership.waits


def test_who_was_stopped_begins_no_generation_before_it_is_awake() -> None:
    """Those who have started anew may have begun one meanwhile."""
    a = Machine("a").join(view(1, "abc"), up="bc")
    restarted(a, "bc", 1.0)
    a.until(1.3)
    assert not views(a.tick(6.0) + a.until(10.7))
    assert a.node.parts.place.waking
    assert views(a.until(12.0))


@pytest.mark.parametrize("letter", ["none", "before", "since"])
def test_who_was_stopped_again_before_it_was_awake_is_no_more_awake_than_after_the_first_time(letter: str) -> None:
    """A laptop that wakes up for a moment only. What it wrote to itself then comes before what has happened since."""
    a = Machine("a").join(view(1, "abc"), up="bc")
    a.hear(ev.ControlSynced())
    a.tick(20.0)
    a.until(20.5)
    a.tick(80.0)
    if letter != "none":
        sent_at = 20.0 if letter == "before" else 80.0
        a.hear(letter_to("a", "a", fr.Call(incarnation=1, view=True, stamp=sent_at)))
    a.until(80.5)
    assert a.node.parts.place.waking == (letter != "since")
    a.until(91.0)
    assert not a.node.parts.place.waking
