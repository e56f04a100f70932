"""After a long stop: what has happened meanwhile is learned before anything more is decided.

A process that was stopped, like one on a laptop that slept, goes on with what it did, while the word of a generation
that has begun without it still waits to be read. So it sends a letter to itself through the broker, which brings first
what came before; and it helps to decide no round (`Place.frozen`), and begins no generation, be it from the view that
it works in. Views it may propose: these take the word of a quorum, which it asks for anew. That nobody was heard in the
meantime is nobody's silence (`Node._pass_time`). So it is until

    the letter is back, and no generation is known    | it is awake
    that comes after the one it works in, nor is a    |
    view of one retained that nobody has confirmed    |
    it is in the view of that generation, or in none  | it is awake, as above
    it has waited for as long as it had been stopped, | it is awake: there is no broker, or what it has heard of that
    but at most `anew_s`                              | generation is of the dead
"""

from __future__ import annotations

from edgepeer.protocol.limits import Limits
from edgepeer.protocol.outside import Outside
from edgepeer.protocol.place import Place
from edgepeer.protocol.rollcall import RollCall

__all__ = ["Waking"]


class Waking:
    """One peer between a stop and its next decision."""

    def __init__(self, place: Place, rolls: RollCall, outside: Outside, limits: Limits) -> None:
        self._place = place
        self._rolls = rolls
        self._outside = outside
        self._limits = limits
        self._since = self._until = 0.0
        self._letter = False

    @property
    def over(self) -> bool:
        """Whether this peer is awake."""
        return not self._place.waking

    def begin(self, stopped_s: float, now: float) -> None:
        """This peer was stopped for so long; it may be once more, before it was awake."""
        self._place.waking, self._letter = True, False
        self._since, self._until = now, max(self._until, now + min(stopped_s, self._limits.anew_s))

    def on_letter(self, sent_at: float) -> None:
        """What this peer has sent to itself is back. What it sent before it was stopped came before what has happened
        since."""
        self._letter |= sent_at >= self._since

    def look(self, now: float) -> bool:
        """Whether this peer has just come to be awake."""
        place, hint = self._place, self._outside.hint
        if not place.waking:
            return False
        heard_of = (self._rolls.newest, hint.generation if hint is not None else None)
        told = place.view is None or all(each is None or each <= place.view.generation for each in heard_of)
        place.waking = now < self._until and not (self._letter and told)
        return not place.waking

    def next_deadline(self) -> float | None:
        """When this peer is awake at the latest."""
        return self._until if self._place.waking else None
