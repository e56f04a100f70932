"""What lies between the members of a view, and what their lines carry, from what they have measured.

Rates are lower bounds: a peer may receive slowly because its line is slow, or its parent's, or since its parent serves
others as well. So everybody counts as fast as the fleet is, unless it is shown to be slower:

    what i receives from j | in the fleet's usual rate, divided by how many others i or j shares its line with
    -----------------------+-------------------------------------------------------------------------------------
    most of that, of any   | neither i's receiving nor j's sending is slow
    never, of no neighbour | that direction of i's line, or j's, is as slow as the best that was seen of it
    never, of all links    | the line between the sites is slow, and nothing is known of the machines by these
    between two sites      |

The usual rate is what the upper quarter of the peers receive, all neighbours together, or from one alone: what comes
from a slow one takes so long that it hides how fast the others are. Sites are found by round trips: if these fall into
short and long ones, with none between, peers with short ones between them are at one site. What was found of a peer
counts until something else is seen of it. A connection that has broken is so until it stands again, or until nothing
was heard of it for FORGOTTEN_S.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final

from edgepeer.ids import PeerId
from edgepeer.protocol.shape import Machine, Network
from edgepeer.topology.view import Member, View
from edgepeer.wire.frames import Measured

__all__ = ["Findings", "Pair", "sites_of"]

Pair = tuple[PeerId, PeerId]
_MOST: Final = 0.6
_MOST_AGAIN: Final = 0.8
"""Who was slow must show more than who was not."""
_GAP: Final = 3.0
"""Round trips of other sites are so many times longer than those within one ..."""
_FAR_S: Final = 2e-3
"""... and at least so long."""
_LIKE: Final = 1.3
MOST_SITES: Final = 16
FORGOTTEN_S: Final = 600.0
"""How long a broken connection is believed to be so of which nothing is heard."""
_UNKNOWN_TRIP_S: Final = 1e-3
_UNKNOWN_BYTES_PER_S: Final = 12.5e6
"""Where vectors are so small that nobody can tell, it hardly matters."""


@dataclass(slots=True)
class Findings:
    """What the head of a view knows of its members' network."""

    reports: dict[PeerId, Measured] = field(default_factory=dict)
    """Of each member the newest, of the present view."""
    trips: dict[Pair, float] = field(default_factory=dict)
    """Round trips of pairs, the smaller id first."""
    slow: dict[PeerId, tuple[float, float]] = field(default_factory=dict)
    """Members that were found to be slow: what they send and receive, in bytes/s."""
    reached: dict[PeerId, bool] = field(default_factory=dict)
    """Whom somebody has connected to, or else, in vain, tried to."""
    broken: dict[Pair, float] = field(default_factory=dict)
    """Pairs whose connection has broken, so that what they exchange goes around, and when that was last said."""

    def enter(self, view: View) -> None:
        """The positions of the last view mean nothing any more, nor do those who have gone."""
        self.reports.clear()
        here = set(view.ids)
        self.trips = {pair: trip for pair, trip in self.trips.items() if here.issuperset(pair)}
        self.slow = {peer: rates for peer, rates in self.slow.items() if peer in here}
        self.reached = {peer: reached for peer, reached in self.reached.items() if peer in here}
        self.broken = {pair: at for pair, at in self.broken.items() if here.issuperset(pair)}

    def hear(self, view: View, report: Measured, now: float) -> bool:
        """A member tells what it has measured in this view. Returns whether a connection has broken since."""
        peer, before = PeerId(report.peer), set(self.broken)
        self.reports[peer] = report
        for link in report.links:
            if link.position >= view.size or (other := view.ids[link.position]) == peer:
                continue
            if link.trip_s:
                self.trips[_pair(peer, other)] = link.trip_s
                self.broken.pop(_pair(peer, other), None)
            if link.around:
                self.broken[_pair(peer, other)] = now
            if link.reach > 0:
                self.reached[other] = True
            elif link.reach < 0:
                self.reached.setdefault(other, False)
        return not self.broken.keys() <= before

    def network(self, view: View, now: float) -> Network | None:
        """The network of these members; None while too little is known of it."""
        if 2 * len(self.reports) <= view.size:
            return None
        shown = sorted(rate for report in self.reports.values() if (rate := _fastest(report)))
        usual = shown[(3 * len(shown)) // 4] if shown else _UNKNOWN_BYTES_PER_S
        sites = sites_of(view.ids, self.trips)
        around = {peer: max(len(view.neighbours(peer)), 1) for peer in view.ids}
        lines, seen = _shares(view, self.reports, sites, around, usual)
        rates = {peer: self._rates(peer, seen, usual) for peer in view.ids}
        machines = tuple(
            Machine(
                send=rates[peer][0],
                receive=rates[peer][1],
                host=_host(view.member(peer)),
                dialable=self.reached.get(peer, True),
                site=sites[peer],
            )
            for peer in view.ids
        )
        # Those who are no neighbours any more don't say whether they could connect by now.
        self.broken = {pair: at for pair, at in self.broken.items() if now < at + FORGOTTEN_S}
        broken = frozenset((view.position(one), view.position(other)) for one, other in self.broken)
        return Network(machines, _trips(view.ids, self.trips, sites), lines, broken)

    def _rates(self, peer: PeerId, seen: _Seen, usual: float) -> tuple[float, float]:
        """What a member sends and receives, in bytes/s."""
        before = self.slow.get(peer, (usual, usual))
        report = self.reports.get(peer)
        together = report.rate_bytes_per_s if report is not None else 0.0
        found = []
        for shown, was in ((seen.sent.get(peer), before[0]), (seen.received.get(peer), before[1])):
            most = _MOST_AGAIN if was < usual else _MOST
            if shown is None:
                found.append(min(was, usual))
            elif max(share for share, _ in shown) >= most:
                found.append(usual)
            else:
                found.append(min(max(rate for _, rate in shown), usual))
        if together >= _MOST * usual:
            found[1] = usual
        self.slow.pop(peer, None)
        if min(found) < usual:
            self.slow[peer] = found[0], found[1]
        return found[0], found[1]


@dataclass(slots=True)
class _Seen:
    """Of each member what it has sent and received over links that tell: as a share of what is usual, and bytes/s."""

    sent: dict[PeerId, list[tuple[float, float]]] = field(default_factory=dict)
    received: dict[PeerId, list[tuple[float, float]]] = field(default_factory=dict)


def _shares(
    view: View,
    reports: Mapping[PeerId, Measured],
    sites: Mapping[PeerId, int],
    around: Mapping[PeerId, int],
    usual: float,
) -> tuple[dict[tuple[int, int], float], _Seen]:
    """The lines between sites that are slow; and what the other links tell of their ends."""
    between: dict[tuple[int, int], list[tuple[float, float]]] = {}
    links = list(_links(view, reports))
    for source, target, rate in links:
        share = rate * max(around[source], around[target]) / usual
        if sites[source] != sites[target]:
            between.setdefault((sites[source], sites[target]), []).append((share, rate))
    lines = {
        pair: sum(rate for _, rate in shown)
        for pair, shown in between.items()
        if max(share for share, _ in shown) < _MOST
    }
    seen = _Seen()
    for source, target, rate in links:
        if (sites[source], sites[target]) not in lines:
            share = rate * max(around[source], around[target]) / usual
            seen.sent.setdefault(source, []).append((share, rate))
            seen.received.setdefault(target, []).append((share, rate))
    return lines, seen


def _fastest(report: Measured) -> float:
    """What a member has received at, in bytes/s: its line can do that at least. 0 if nothing has come."""
    return max((report.rate_bytes_per_s, *(link.rate_bytes_per_s for link in report.links)))


def _links(view: View, reports: Mapping[PeerId, Measured]) -> Iterator[tuple[PeerId, PeerId, float]]:
    """Who sends to whom, and how fast."""
    for peer, report in sorted(reports.items()):
        for link in report.links:
            if link.rate_bytes_per_s and link.position < view.size and (other := view.ids[link.position]) != peer:
                yield other, peer, link.rate_bytes_per_s


def _pair(one: PeerId, other: PeerId) -> Pair:
    return (one, other) if one < other else (other, one)


def _host(member: Member) -> str:
    """Members with the same share a processor: peers on a machine's loopback do. An address may be that of several
    machines, each behind its own NAT: where the machine is said, that counts."""
    if member.machine:
        return member.machine
    host = member.addresses[0].rpartition(":")[0] if member.addresses else member.id
    return "loopback" if host.startswith("127.") or host == "[::1]" else host


def sites_of(peers: tuple[PeerId, ...], trips: Mapping[Pair, float]) -> dict[PeerId, int]:
    """A number for each peer, the same for those of one site.

    Who has only links with others far away is taken to be of the largest site from which it would be as far to those,
    if there is any.
    """
    found = {peer: at for at, peer in enumerate(peers)}
    known = sorted(trips.values())
    gaps = [(b / max(a, 1e-6), b) for a, b in pairwise(known) if b >= _FAR_S]
    ratio, far = max(gaps, default=(0.0, 0.0))
    if ratio < _GAP:
        return dict.fromkeys(peers, 0)

    def join(one: int, other: int) -> None:
        for peer, site in found.items():
            if site == max(one, other):
                found[peer] = min(one, other)

    for (one, other), trip in sorted(trips.items()):
        if trip < far and found[one] != found[other]:
            join(found[one], found[other])
    sizes: dict[int, int] = {}
    for site in found.values():
        sizes[site] = sizes.get(site, 0) + 1
    between = _between(trips, found)
    for peer in peers:
        if sizes[found[peer]] > 1:
            continue
        to = {(found[b] if a == peer else found[a]): trip for (a, b), trip in trips.items() if peer in (a, b)}
        for site in sorted((s for s in sizes if sizes[s] > 1 and s not in to), key=lambda s: (-sizes[s], s)):
            ways = [(between.get((min(site, s), max(site, s))), trip) for s, trip in to.items()]
            if ways and all(way is not None and max(way, trip) <= _LIKE * min(way, trip) for way, trip in ways):
                found[peer] = site
                break
    return found


def _between(trips: Mapping[Pair, float], sites: Mapping[PeerId, int]) -> dict[tuple[int, int], float]:
    """Round trips between sites, and within them, the smaller number first: the median of what was measured."""
    found: dict[tuple[int, int], list[float]] = {}
    for (one, other), trip in trips.items():
        a, b = sorted((sites[one], sites[other]))
        found.setdefault((a, b), []).append(trip)
    return {pair: median(each) for pair, each in found.items()}


def _trips(
    peers: tuple[PeerId, ...], trips: Mapping[Pair, float], sites: Mapping[PeerId, int]
) -> tuple[tuple[float, ...], ...]:
    """Round trips of all pairs: as measured, or as between their sites, by the shortest way over others if need be."""
    numbers = sorted(set(sites.values()))
    between = _between(trips, sites)
    usual = median(trips.values()) if trips else _UNKNOWN_TRIP_S
    within = [trip for (a, b), trip in between.items() if a == b]
    near = median(within) if within else usual
    way: dict[tuple[int, int], float] = {}
    for a in numbers:
        for b in numbers:
            known = between.get((min(a, b), max(a, b)))
            way[a, b] = known if known is not None else near if a == b else float("inf")
    if len(numbers) <= MOST_SITES:
        for k in numbers:
            for a in numbers:
                for b in numbers:
                    if a != b:
                        way[a, b] = min(way[a, b], way[a, k] + way[k, b])
    far = max((trip for trip in way.values() if trip < float("inf")), default=usual)

    def trip(one: PeerId, other: PeerId) -> float:
        if one == other:
            return 0.0
        known = trips.get(_pair(one, other))
        return known if known is not None else min(way[sites[one], sites[other]], far)

    return tuple(tuple(trip(one, other) for other in peers) for one in peers)
