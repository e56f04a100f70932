"""What the head makes of reports: whose line is slow, who is near whom, and whom nobody can dial."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgepeer.ids import PeerId
from edgepeer.protocol.estimate import FORGOTTEN_S, Findings, sites_of
from edgepeer.topology.view import Form, Member, View
from edgepeer.wire.frames import Measured, OfLink

VIEW = View(epoch=1, members=tuple(Member(id=f"p{at:02d}", incarnation=1) for at in range(15)))
USUAL = 1e7


def told(
    view: View, rate: Callable[[int, int], float], trip: Callable[[int, int], float] = lambda a, b: 0.01
) -> Findings:
    """All report; `rate`: of what one number receives from another over the links of this view, by the peers' names."""
    found = Findings()
    for peer in view.ids:
        links = tuple(
            OfLink(
                position=view.position(other),
                rate_bytes_per_s=rate(int(peer[1:]), int(other[1:])) if other in view.neighbours(peer) else 0.0,
                trip_s=trip(int(peer[1:]), int(other[1:])),
            )
            for other in (*view.neighbours(peer), *view.backups(peer))
        )
        together = max(min(sum(link.rate_bytes_per_s for link in links), USUAL), 1.0)
        found.hear(view, Measured(epoch=view.stamp, peer=peer, rate_bytes_per_s=together, links=links), 0.0)
    return found


def test_nothing_is_concluded_from_a_few() -> None:
    found = told(VIEW, lambda to, of: USUAL / 3)
    assert found.network(VIEW, 0.0) is not None
    for peer in VIEW.ids[:8]:
        del found.reports[peer]
    assert found.network(VIEW, 0.0) is None


def test_who_shares_a_parent_is_not_slow() -> None:
    """All lines are alike, and inner peers receive from three at once, leaves what their parents have left for them."""
    of = told(VIEW, lambda to, of: USUAL / 3).network(VIEW, 0.0)
    assert of is not None
    assert {machine.receive for machine in of.machines} == {machine.send for machine in of.machines} == {USUAL}
    assert not of.lines


@pytest.mark.parametrize("slow", [{14}, {7, 9}, {1}, {0}, {1, 2, 5}])
def test_whose_line_is_slow(slow: set[int]) -> None:
    of = told(VIEW, lambda to, of: USUAL / 30 if {to, of} & slow else USUAL / 3).network(VIEW, 0.0)
    assert of is not None
    usual = max(machine.receive for machine in of.machines)
    assert {at for at, machine in enumerate(of.machines) if machine.receive < usual / 2} >= slow
    assert {at for at, machine in enumerate(of.machines) if machine.send < usual / 2} >= slow
    inner = {at for at in range(7) if at not in slow and not {2 * at + 1, 2 * at + 2} <= slow}
    assert all(of.machines[at].receive == usual for at in inner)


def test_a_line_that_is_slow_in_one_direction() -> None:
    of = told(VIEW, lambda to, of: USUAL / 30 if of == 14 else USUAL / 3).network(VIEW, 0.0)
    assert of is not None
    assert (of.machines[14].send, of.machines[14].receive) == (USUAL / 30, USUAL)


def test_the_slow_stay_so_in_another_view_until_something_else_is_seen() -> None:
    found = told(VIEW, lambda to, of: USUAL / 30 if 1 in (to, of) else USUAL / 3)
    assert found.network(VIEW, 0.0) is not None
    order = tuple(peer for peer in VIEW.ids if peer != "p01")
    following = VIEW.successor(first_round=1, form=Form(order=(*order, PeerId("p01")), fanout=2, lanes=1, leaves=1))
    found.enter(following)
    assert found.network(following, 0.0) is None
    for peer in following.ids[:12]:
        links = tuple(
            OfLink(position=following.position(n), rate_bytes_per_s=USUAL / 3) for n in following.neighbours(peer)
        )
        found.hear(following, Measured(epoch=following.stamp, peer=peer, rate_bytes_per_s=USUAL, links=links), 0.0)
    found.reports.pop(following.parent(PeerId("p01")) or PeerId(""), None)
    of = found.network(following, 0.0)
    assert of is not None
    assert of.machines[14].receive == USUAL / 30
    again = told(following, lambda to, of: USUAL / 2)
    again.slow = found.slow
    of = again.network(following, 0.0)
    assert of is not None
    assert of.machines[14].receive == USUAL


def site(at: int) -> int:
    return at % 2


def apart(one: int, other: int) -> float:
    return 0.001 if site(one) == site(other) else 0.02


def test_sites_and_the_line_between_them() -> None:
    of = told(VIEW, lambda to, of: USUAL / 3 if site(to) == site(of) else USUAL / 50, apart).network(VIEW, 0.0)
    assert of is not None
    assert [machine.site == of.machines[0].site for machine in of.machines] == [site(at) == 0 for at in range(15)]
    assert set(of.lines) == {(a, b) for a in (0, 1) for b in (0, 1) if a != b}
    assert len({machine.receive for machine in of.machines}) == 1
    assert all(of.trips[i][j] == (0 if i == j else apart(i, j)) for i in range(15) for j in range(15))


def test_one_site_where_round_trips_are_alike_or_short() -> None:
    names = VIEW.ids
    pairs = [(a, b) for at, a in enumerate(names) for b in names[at + 1 :]]
    assert set(sites_of(names, {pair: 0.01 + 0.002 * (n % 5) for n, pair in enumerate(pairs)}).values()) == {0}
    assert set(sites_of(names, {pair: 1e-4 * (1 + n % 9) for n, pair in enumerate(pairs)}).values()) == {0}
    assert set(sites_of(names, {}).values()) == {0}


def test_whom_nobody_can_dial() -> None:
    found = told(VIEW, lambda to, of: USUAL / 3)
    for who, whom, reach in ((1, 4, -1), (2, 5, -1), (6, 5, 1), (3, 5, -1), (4, 7, 1)):
        links = (OfLink(position=whom, reach=reach),)
        found.hear(VIEW, Measured(epoch=VIEW.stamp, peer=VIEW.ids[who], rate_bytes_per_s=USUAL, links=links), 0.0)
    of = found.network(VIEW, 0.0)
    assert of is not None
    assert [at for at, machine in enumerate(of.machines) if not machine.dialable] == [4]


def test_who_can_not_connect_any_more_until_the_connection_stands_or_nothing_was_heard_of_it() -> None:
    found = told(VIEW, lambda to, of: USUAL / 3)

    def says(who: int, whom: int, now: float, *, around: bool) -> bool:
        links = (OfLink(position=whom, trip_s=0.0 if around else 0.01, around=around),)
        report = Measured(epoch=VIEW.stamp, peer=VIEW.ids[who], rate_bytes_per_s=USUAL, links=links)
        return found.hear(VIEW, report, now)

    def broken(now: float) -> set[tuple[int, ...]]:
        of = found.network(VIEW, now)
        assert of is not None
        return {tuple(sorted(pair)) for pair in of.broken}

    assert broken(0.0) == set()
    assert says(4, 1, 10.0, around=True)
    assert not says(1, 4, 11.0, around=True)  # the other end of the same
    assert says(2, 5, 12.0, around=True)
    assert broken(13.0) == {(1, 4), (2, 5)}
    assert not says(1, 4, 14.0, around=False)
    assert broken(15.0) == {(2, 5)}
    found.enter(VIEW.successor(first_round=3))
    assert set(found.broken) == {("p02", "p05")}
    for peer in VIEW.ids:
        found.hear(VIEW, Measured(epoch=VIEW.stamp, peer=peer, rate_bytes_per_s=USUAL), 20.0)
    assert broken(12.0 + FORGOTTEN_S - 1) == {(2, 5)}
    assert broken(12.0 + FORGOTTEN_S + 1) == set()


def test_positions_out_of_range_and_words_of_oneself_mean_nothing() -> None:
    found = told(VIEW, lambda to, of: USUAL / 3)
    links = (
        OfLink(position=4000, rate_bytes_per_s=1e13, trip_s=60),
        OfLink(position=3, rate_bytes_per_s=1e13, reach=-1),
    )
    found.hear(VIEW, Measured(epoch=VIEW.stamp, peer="p03", rate_bytes_per_s=1e13, links=links), 0.0)
    assert found.network(VIEW, 0.0) is not None
    assert not found.reached
