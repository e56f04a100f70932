"""What one peer measures of its network, and tells the head of the view.

    of                | measured
    ------------------+---------------------------------------------------------------------------------------------
    its line          | what arrives from all neighbours together, while something arrives
    each neighbour    | what arrives from it, while something does; the shortest round trip of late; who could dial
                      | whom; whether the connection is broken, could not be made again, and there is a way around

What arrives is a lower bound of what the line and the sender can do: the head compares (estimate.py). It is told what
has changed by a third, at most once in REPORT_S, and again in each view; of a broken connection, without waiting.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from edgepeer.ids import PeerId
from edgepeer.protocol.links import Link, Links
from edgepeer.protocol.segments import MEASURABLE_BYTES
from edgepeer.topology.view import View
from edgepeer.wire.frames import Measured, OfLink

__all__ = ["Arrivals", "Measuring"]

REPORT_S: Final = 1.0
AGAIN_S: Final = 30.0
"""While rounds go on it is said again: it may have been lost on its way."""
MOST_LINKS: Final = 128
_CHANGED: Final = 4 / 3
_FINEST_TRIP_S: Final = 5e-4
"""Round trips that differ by less are the same."""
_GAP_S: Final = 0.01
"""What comes this soon after is of the same burst."""
_SPAN_S: Final = 0.02
"""Bursts shorter than this say little: their bytes may have waited in the kernel."""
_ATTEMPTS: Final = 2
"""To connect again: one may have begun just before the link was whole, and be known to be lost seconds after."""


class Arrivals:
    """How fast things arrive while they do: the best of the last rounds, since whatever is in the way only makes it
    look slower."""

    __slots__ = ("_bursts", "_rates")

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=8)
        self._bursts: list[tuple[float, float, int]] = []  # from, to, bytes; apart by more than _GAP_S

    def add(self, payload_bytes: int, seconds: float, now: float) -> None:
        """So many bytes have come within the last seconds."""
        since, count = now - seconds, payload_bytes
        while self._bursts and self._bursts[-1][1] >= since - _GAP_S:
            first, _, more = self._bursts.pop()
            since, count = min(since, first), count + more
        self._bursts.append((since, now, count))

    def close_round(self) -> None:
        """The round is over."""
        long = [burst for burst in self._bursts if burst[1] - burst[0] >= _SPAN_S] or self._bursts
        count = sum(burst[2] for burst in long)
        if count >= MEASURABLE_BYTES:
            self._rates.append(count / max(sum(end - begin for begin, end, _ in long), 1e-6))
        self._bursts = []

    @property
    def bytes_per_s(self) -> float:
        """0 while unknown."""
        return max(self._rates, default=0.0)


class Measuring:
    """What this peer knows of its line and its links.

    Args:
        links: its links.
        tells: whether it tells anybody.
    """

    def __init__(self, me: PeerId, links: Links, *, tells: bool) -> None:
        self._me = me
        self._links = links
        self.tells = tells
        self._view: View | None = None
        self._together = Arrivals()
        self._each: dict[PeerId, Arrivals] = {}
        self._told: Measured | None = None
        self._told_at = self._entered_at = 0.0
        self._news = False
        """Whether a round was over since it was told."""
        self._told_around: set[PeerId] = set()

    def enter(self, view: View, now: float) -> None:
        """This peer works in another view."""
        around = view.neighbours(self._me)
        self._view, self._told, self._entered_at, self._news = view, None, now, False
        self._told_around = set()
        self._each = {peer: self._each.get(peer) or Arrivals() for peer in around}
        self._together = Arrivals()

    def arrived(self, peer: PeerId, payload_bytes: int, seconds: float, now: float) -> None:
        """A part of a vector has come."""
        if self.tells and (each := self._each.get(peer)) is not None:
            each.add(payload_bytes, seconds, now)
            self._together.add(payload_bytes, seconds, now)

    def round_ended(self) -> None:
        """A round is over here."""
        if self.tells:
            self._news = True
            self._together.close_round()
            for each in self._each.values():
                each.close_round()

    def due(self, now: float) -> Measured | None:
        """What the head is to be told now, if anything."""
        view, told = self._view, self._told
        if not self.tells or view is None:
            return None
        around = self._goes_around()
        broken = not around <= self._told_around
        if not broken and (not self._news or now < max(self._told_at, self._entered_at) + REPORT_S):
            return None
        self._told_around = around
        report = self._report(view)
        if told is not None and not broken and now < self._told_at + AGAIN_S and _alike(told, report):
            return None
        self._told, self._told_at, self._news = report, now, False
        return report

    def _goes_around(self) -> set[PeerId]:
        """Neighbours that there is no connection with, but another way."""
        return {peer for peer, link in self._links.connected() if _is_around(link)}

    def _report(self, view: View) -> Measured:
        found = [
            OfLink(
                position=view.position(peer),
                rate_bytes_per_s=self._each[peer].bytes_per_s if peer in self._each else 0.0,
                trip_s=(link.timing.least or 0.0) if link.direct else 0.0,
                reach=_reach(link),
                around=_is_around(link),
            )
            for peer, link in self._links.all()
            if link.member is not None and peer in view
        ]
        return Measured(
            epoch=view.stamp,
            peer=self._me,
            rate_bytes_per_s=self._together.bytes_per_s,
            links=tuple(found[:MOST_LINKS]),
        )


def _is_around(link: Link) -> bool:
    """Whether the connection is broken, and there is another way. Not before attempts to make it again have come to
    nothing: what is whole again by then was not worth other trees."""
    return link.up and not link.direct and link.failures >= _ATTEMPTS


def _reach(link: Link) -> int:
    """1: this peer has connected to it; -1: it has tried to, in vain, and nobody there refused; else 0."""
    return 1 if link.dialled else -1 if link.unanswered else 0


def _alike(one: Measured, other: Measured) -> bool:
    """Whether nothing differs by a third."""
    if list(map(_facts, one.links)) != list(map(_facts, other.links)):
        return False
    return _near(one.rate_bytes_per_s, other.rate_bytes_per_s) and all(
        _near(a.rate_bytes_per_s, b.rate_bytes_per_s) and _near(a.trip_s, b.trip_s, _FINEST_TRIP_S)
        for a, b in zip(one.links, other.links, strict=True)
    )


def _facts(link: OfLink) -> tuple[int, int, bool]:
    return link.position, link.reach, link.around


def _near(a: float, b: float, least: float = 1.0) -> bool:
    return max(a, b) <= _CHANGED * min(a, b) or abs(a - b) < least
