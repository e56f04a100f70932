"""Whether a run is over: nobody takes part in it, or nobody has a state of it to go on with.

    known of this peer and all below          | the run is over
    ------------------------------------------+---------------------------------------------------------------
    not of all; a state, or the end of a      | no
    round, is on its way to or from somebody  |
    a state of as late a round as anybody has | no
    seen the end of                           |
    nobody takes part                         | when it has been so for `heard_s`
    somebody does, and there is no state, or  | when it has been so for `heard_s`, and for `anew_s` in all since there
    only one of an earlier round              | was one
    this peer is alone, and has none          | at once

What is known is not of one moment. A peer may give its state to another, and have none itself a moment later: that it
has none goes another way than that the other has one. Whatever changes of that is said at once, and passed on at once
(`Vitals`), however many are above; so after `heard_s`, two heartbeats, both are known. For as long as
`anew_s`, whoever could tell how the last round has ended, or give a later state, would have begun to. Views and links
that come and go make that no longer.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from edgepeer.protocol.limits import Limits
from edgepeer.protocol.place import UNKNOWN

__all__ = ["NOBODY", "Over", "Stands", "is_short"]

NOBODY: Final = -2
"""Takes part in the run (`Ping.stands`)."""
_NEVER: Final = float("inf")

Stands: TypeAlias = tuple[int, int]
"""Of which round there is a state, and of which somebody has seen the end."""


def is_short(stands: Stands | None) -> bool:
    """Whether it stands so that no state is known, or none of as late a round as somebody has seen the end of."""
    return stands is not None and (stands[0] < 0 or stands[0] < stands[1])


class Over:
    """Of one peer, and those below. Plain data: no clock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._beginning = "", 0
        self._wanted, self._lacked_s, self._lacks_since, self._nobody_since = UNKNOWN, 0.0, _NEVER, _NEVER

    def enter(self, beginning: tuple[str, int], now: float) -> None:
        """Another view, of that beginning of a run: those below have yet to say how it stands."""
        self._stop(now)
        if beginning != self._beginning:
            self._beginning, self._wanted, self._lacked_s = beginning, UNKNOWN, 0.0

    def _stop(self, now: float) -> None:
        """It is not known any more whether a state is missing."""
        if self._lacks_since < now:
            self._lacked_s += now - self._lacks_since
        self._lacks_since = self._nobody_since = _NEVER

    def see(self, stands: Stands | None, now: float) -> None:
        """So it stands; None: it is not known. As rounds go on, what is heard from below is always of a little before:
        a state is missing if it is of an earlier round than was wanted a while ago, too."""
        if stands is not None and self.lacks(stands):
            self._lacks_since = min(self._lacks_since, now)
            self._nobody_since = min(self._nobody_since, now) if stands[0] == NOBODY else _NEVER
            return
        self._stop(now)
        if stands is not None:
            self._wanted, self._lacked_s = stands[1], 0.0

    def holds(self, stands: Stands | None, now: float, *, alone: bool) -> bool:
        """Whether the run is over, if it stands so. `alone`: nobody is below."""
        if stands is None:
            return False
        if alone and stands[0] < 0:
            return stands[0] < stands[1]
        heard_at = now - 2 * self._limits.heartbeat_s
        if self._nobody_since <= heard_at and stands[0] == NOBODY:
            return True
        long = self._lacked_s + now - self._lacks_since >= self._limits.anew_s
        return long and self._lacks_since <= heard_at and self.lacks(stands)

    def excuse(self, seconds: float, now: float) -> None:
        """This peer itself was not listening for so long."""
        self._lacks_since = self._excused(self._lacks_since, seconds, now)
        self._nobody_since = self._excused(self._nobody_since, seconds, now)

    @staticmethod
    def _excused(since: float, seconds: float, now: float) -> float:
        return min(since + seconds, now) if since < _NEVER else since

    def lacks(self, stands: Stands | None) -> bool:
        """Whether a state is missing, or nobody takes part."""
        if stands is None:
            return False
        have, seen = stands
        return have == NOBODY or have < min(self._wanted, seen)
