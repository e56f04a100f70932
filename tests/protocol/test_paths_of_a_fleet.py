"""Ways around broken connections, in fleets of which links are cut. The tree: a over bc, b over de, c over fg."""

from __future__ import annotations

import pytest
from company import DIAL_TIMEOUT_S, Company
from transcript import vector, view

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.wire import codec
from edgepeer.wire import frames as fr

SEVEN = view(1, "abcdefg")
A, B, C, D, E = map(PeerId, "abcde")


def rounds(company: Company, count: int = 1, look_s: float = 0.05) -> float:
    """All contribute, so many times; all must commit the same, with everybody in it. Returns the longest it took.

    Whether they have is looked at every `look_s`: then the next round begins.
    """
    longest = 0.0
    for _ in range(count):
        began, names = company.now, list(company.machines)
        for position, name in enumerate(names):
            company.hear(name, ev.Contribute(vector(1 << position, 0.1), 1.0))
        ends: list[tuple[float, str, fx.Effect]] = []
        while len(ends) < len(names) and company.now < began + 1.0:
            company.until(company.now + look_s)
            ends = company.effects(fx.RoundCommitted, since=began)
        assert sorted(who for _, who, _ in ends) == sorted(names)
        for at, _, end in ends:
            assert isinstance(end, fx.RoundCommitted)
            assert end.sum[0] == (1 << len(names)) - 1
            assert (end.exact, len(end.contributors)) == (True, len(names))
            assert end.sum.tobytes() == ends[0][2].sum.tobytes()  # type: ignore[union-attr]
            longest = max(longest, at - began)
    return longest


CUTS = [
    ("bd",), ("b>d",), ("d>b",), ("ab",), ("a>b",), ("b>a",),
    ("bd", "cf"), ("bd", "be"), ("ab", "bd"), ("ab", "bd", "be"),
    ("b>d", "c>d"), ("d>b", "d>c"), ("b>d", "d>e"), ("d>b", "e>d"), ("bd", "cd"),
    ("bd", "cd", "ed"), ("d>b", "d>c", "d>e"), ("b>d", "c>d", "e>d"),
    ("ab", "ac"), ("ab", "ac", "bc"), ("a>b", "a>c"), ("b>a", "c>a"),
]  # fmt: skip


@pytest.mark.parametrize("cuts", CUTS, ids=" ".join)
def test_whatever_is_cut_the_round_is_exact_and_nobody_is_lost(cuts: tuple[str, ...]) -> None:
    company = Company(SEVEN)
    company.until(1.0)
    clean = rounds(company, 4)
    company.sever(*cuts)
    assert rounds(company) < 0.5
    assert rounds(company, 3) < clean + 0.05  # a link known to be down costs next to nothing
    assert all(machine.node.view == SEVEN for machine in company.machines.values())
    company.mend()
    company.until(company.now + 3.0)
    assert rounds(company) <= clean + 0.001
    for machine in company.machines.values():
        assert {state.path for state in machine.node.link_states()} == {"direct"}


@pytest.mark.parametrize("cuts", [("bd",), ("ab",), ("bd", "cf"), ("ab", "bd")], ids=" ".join)
def test_a_link_cut_in_mid_training_costs_less_than_100_ms(cuts: tuple[str, ...]) -> None:
    """Two at the same height, or one above the other, cost no more than one."""
    company = Company(SEVEN)
    company.until(1.0)
    clean = max(rounds(company, 1) for _ in range(6))
    company.sever(*cuts)
    assert rounds(company) < clean + 0.1


@pytest.mark.parametrize("cuts", ["bd", "b>d", "d>b", "ab", "a>b", "b>a"])
def test_nor_does_one_between_rounds_that_leave_the_link_no_rest(cuts: str) -> None:
    """Before the run the ends promised each other a sign of life a second; rounds of 10 ms carry many, and no Ping is
    ever due for want of them."""
    company = Company(SEVEN)
    company.until(1.0)
    clean = rounds(company, 20, look_s=0.01)
    company.sever(cuts)
    assert rounds(company, look_s=0.01) < clean + 0.1


def test_a_connection_that_does_not_come_up_is_not_waited_for() -> None:
    """As when a fleet begins, and some of it can't reach each other."""
    company = Company(SEVEN)
    company.sever("bd", "cd", "ed", "cf")
    company.until(2.0)
    assert company.path("d", "b") == "relay"
    assert company.path("f", "c") in ("via b", "via g")
    assert rounds(company) < 0.2
    company.until(10.0)
    assert all(machine.node.view == SEVEN for machine in company.machines.values())


def test_a_view_that_makes_neighbours_of_two_who_can_not_reach_each_other_is_at_work_soon() -> None:
    """How long a connection may take is known by then: that nobody answers would be known after seconds only."""
    company = Company(SEVEN)
    company.until(1.0)
    rounds(company, 3)
    company.sever("df")
    following = view(2, "afcdebg")
    for name in SEVEN.ids:
        company.learn(name, following)
    assert rounds(company) < 0.8 < DIAL_TIMEOUT_S
    assert company.path("d", "f").startswith("via")


def test_a_connection_that_only_one_end_has_does_not_keep_it_from_the_tunnel_of_the_other() -> None:
    """As when a frozen peer goes on, and accepts a connection whose other end has given it up since."""
    company = Company(SEVEN)
    company.until(1.0)
    rounds(company, 3)
    company.sever("bd")
    while company.path("d", "b") in ("direct", "") or company.path("b", "d") == "direct":
        company.until(company.now + company.latency_s / 4)
    company.hear("b", ev.LinkUp(PeerId("d"), 1))
    assert (company.path("b", "d"), company.path("d", "b")[:3]) == ("direct", "via")
    assert rounds(company) < 0.9
    assert company.path("d", "b") == company.path("b", "d") != "direct"


def test_without_broker_and_brothers_the_peer_is_gone_after_three_seconds() -> None:
    company = Company(SEVEN)
    company.until(1.0)
    company.broker = False
    company.sever("bd", "cd", "ed")
    company.until(6.0)
    (installed,) = {e.view.ids for _, name, e in company.effects(fx.ViewInstalled, since=1.0) if name != "d"}  # type: ignore[union-attr]
    assert installed == tuple("abcgef")


@pytest.mark.parametrize(
    ("cuts", "paths"),
    [
        (("bd",), {"via c", "via e"}),
        (("bd", "cd"), {"via e"}),  # the brother
        (("bd", "de"), {"via c"}),  # the uncle
        (("bd", "be"), {"via c"}),  # the brother is cut off from its parent itself
        (("bd", "bc", "de"), {"relay"}),
        (("bd", "cd", "de"), {"relay"}),
    ],
)
def test_by_way_of_a_brother_or_an_uncle_and_only_then_of_the_broker(cuts: tuple[str, ...], paths: set[str]) -> None:
    company = Company(SEVEN)
    company.until(1.0)
    rounds(company, 3)
    company.sever(*cuts)
    rounds(company, 1)
    assert company.path("d", "b") in paths
    assert company.path("b", "d") == company.path("d", "b")
    asking, _ = codec.wrap(fr.Knock(incarnation=1, answer=False))
    between = [(name, f) for name, f in vias(company) if (f.source, f.target) in (("b", "d"), ("d", "b"))]
    carried = {name for name, frame in between if frame.kind != asking}
    assert carried - {"b", "d"} <= {path.removeprefix("via ") for path in paths}


def test_the_broker_is_left_again_for_a_neighbour_that_reaches_the_other_end_by_now() -> None:
    company = Company(SEVEN)
    company.until(1.0)
    rounds(company, 3)
    company.sever("bd", "cd", "ed")
    rounds(company)
    assert company.path("b", "d") == "relay"
    company.mend()
    company.sever("bd")
    company.until(30.0)
    assert (company.path("e", "b"), company.path("e", "d")) == ("direct", "direct")
    assert company.path("b", "d").startswith("via")


def vias(company: Company) -> list[tuple[str, fr.Via]]:
    """What has gone through tunnels, and who has sent it, or sent it on."""
    sends = [(name, effect) for _, name, effect in company.effects(fx.Send, since=1.0)]
    return [(name, send.frame) for name, send in sends if isinstance(send, fx.Send) and isinstance(send.frame, fr.Via)]


def test_knocks_that_cross_slowly_are_one_tunnel() -> None:
    """Through the broker it takes a second: each end took the other's Knock, found that its tunnel led nowhere, and
    knocked again at the same moment, for ever."""
    company = Company(view(1, "abc", run="job"), latency_s=0.1)
    company.until(20.0)
    company.sever("ab", "ac", "bc")
    company.until(60.0)
    opened = [at for at, _, effect in company.effects(fx.Note, since=20.0) if "goes relay" in effect.text]  # type: ignore[union-attr]
    assert max(opened) < 23.0
    assert {company.path("a", other) for other in "bc"} == {company.path(other, "a") for other in "bc"} == {"relay"}
