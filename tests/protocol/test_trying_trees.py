"""Which rounds other trees are judged by: not the first over them."""

from __future__ import annotations

import pytest

from edgepeer.protocol.shape import Choice
from edgepeer.protocol.shaping import COLD, LOOKS, TRIED, Shaping
from edgepeer.topology.view import Form, Member, View
from edgepeer.wire.frames import Measured, OfLink

VIEW = View(epoch=1, members=tuple(Member(id=f"p{at}", incarnation=1) for at in range(7)))
RATE = 11.85e6
BYTES = 4 * 407_050


class Head:
    """The head of a fleet on slow lines, whose rounds take as long as the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.shaping = Shaping(VIEW.coordinator, Choice(fanout=True, lanes=True))
        self.enter(VIEW)

    def enter(self, view: View) -> None:
        self.view = view
        self.shaping.enter(view, self.now)
        for peer in view.ids:
            others = (*view.neighbours(peer), *view.backups(peer))
            links = tuple(
                OfLink(position=view.position(each), rate_bytes_per_s=RATE / 3, trip_s=0.01) for each in others
            )
            report = Measured(epoch=view.stamp, peer=peer, rate_bytes_per_s=RATE, links=links)
            self.shaping.hear(report, self.now)

    def round(self, seconds: float) -> None:
        self.shaping.contributed(BYTES, self.now)
        self.now += seconds
        self.shaping.round_ended(self.now)
        self.now += 2.0  # as long as it takes until it is time for a look

    def look(self) -> View | None:
        """The next view, if there is to be one."""
        self.shaping.think(self.now)
        while self.shaping.next_deadline(self.now) is not None:
            self.shaping.think(self.now)
        form = self.shaping.wanted(self.now)
        return self.view.successor(first_round=1, form=form) if form is not None else None

    def until_other_trees(self) -> View:
        for _ in range(COLD + TRIED + LOOKS):
            self.round(0.5)
            if (view := self.look()) is not None:
                return view
        raise AssertionError("none are wanted")


def test_slow_rounds_over_new_trees_are_not_held_against_them() -> None:
    head = Head()
    head.enter(other := head.until_other_trees())
    assert other.lanes > 1
    for seconds in [2.0] * COLD + [0.3] * TRIED:
        head.round(seconds)
        assert head.look() is None
    assert head.shaping._tried is None, "they have not proven themselves"


def test_trees_are_compared_by_what_is_usual_over_them() -> None:
    """Where the machines are busy: at best these are no faster, but usually they are."""
    head = Head()
    head.enter(head.until_other_trees())
    for seconds in [0.5] * COLD + [0.5, 0.4, 0.5, 0.4, 2.0, 0.4, 0.4]:
        head.round(seconds)
        assert head.look() is None
    assert head.shaping._tried is None, "they have not proven themselves"
    for _ in range(3):
        head.round(0.4)
        assert head.look() is None


@pytest.mark.parametrize("rare", [0.1, 0.3])
def test_a_fast_round_now_and_then_is_nothing(rare: float) -> None:
    head = Head()
    head.enter(head.until_other_trees())
    for seconds in [0.5] * COLD + [0.5, rare, 0.5, 0.5, rare, 0.5]:
        head.round(seconds)
        assert head.look() is None
    head.round(0.5)
    back = head.look()
    assert back is not None
    assert back.lanes == VIEW.lanes


@pytest.mark.parametrize("first", [0.1, 2.0], ids=["fast at first", "slow at first"])
def test_what_is_no_faster_afterwards_is_taken_back(first: float) -> None:
    head = Head()
    head.enter(head.until_other_trees())
    for _ in range(COLD):
        head.round(first)
        assert head.look() is None
    for _ in range(TRIED - 1):
        head.round(0.5)
        assert head.look() is None
    head.round(0.5)
    back = head.look()
    assert back is not None
    assert (back.ids, back.fanout, back.lanes) == (VIEW.ids, VIEW.fanout, VIEW.lanes)


@pytest.mark.parametrize("change", ["leaves", "comes"])
@pytest.mark.parametrize("at", [0, COLD, COLD + TRIED - 1])
def test_and_so_it_is_if_somebody_leaves_or_comes_meanwhile(change: str, at: int) -> None:
    """Else it would stay for good: by the network as it is known, it is better than what was before."""
    head = Head()
    head.enter(head.until_other_trees())
    for _ in range(at):
        head.round(1.5)
        assert head.look() is None
    if change == "leaves":
        head.enter(head.view.successor(first_round=9, without=[VIEW.ids[-1]]))
    else:
        head.enter(head.view.successor(first_round=9, joined=[Member(id="late", incarnation=1)]))
    assert head.view.why == ""
    members = head.view.ids
    for _ in range(COLD + TRIED - 1):
        head.round(1.5)
        assert head.look() is None
    head.round(1.5)
    back = head.look()
    assert back is not None
    assert sorted(back.ids) == sorted(members)
    assert (back.fanout, back.lanes, back.leaves) == (VIEW.fanout, VIEW.lanes, VIEW.leaves)
    head.enter(back)
    assert head.shaping._tried is None, "they are the usual ones again"


def test_if_they_differed_by_who_has_left_nothing_is_on_trial_any_more() -> None:
    """What is there would be taken back for what is there, again and again, and nothing better looked for."""
    head = Head()
    for _ in range(COLD + TRIED):
        head.round(0.5)
    form = Form(order=VIEW.ids, fanout=VIEW.fanout, lanes=VIEW.lanes, leaves=1, why="p6 is slow")
    head.shaping._wish = form
    head.enter(VIEW.successor(first_round=9, form=form))
    assert head.shaping._tried is not None
    head.enter(head.view.successor(first_round=10, without=[VIEW.ids[-1]]))
    assert head.shaping._tried is None
    following = head.until_other_trees()
    assert following.lanes > 1
