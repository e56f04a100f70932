"""How long to wait for a peer: measured, never configured.

`RoundTrip` follows RFC 6298: smoothed round-trip time, its variance, a deadline of SRTT + 4 RTTVAR, and
exponential back-off. Karn's rule needs no exception, since every sample carries the stamp that it answers. A
heartbeat is late not only because of the network but because the other machine is busy; how late they have
come lately counts as well.

Whether a path still carries what is sent is told sooner, by the acknowledgements of the peer's kernel, which waits for
nothing (`unacknowledged_after`). `Pace` sets how often heartbeats go out: more often while there are rounds.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Pace", "RoundTrip"]

_ALPHA: Final = 1 / 8
_BETA: Final = 1 / 4
_K: Final = 4
_GRANULARITY_S: Final = 0.02
"""No deadline is finer than this: what a scheduler on a busy device may take."""
_FIRST_S: Final = 1.0
"""RFC 6298's timeout before the first sample."""
_LATE_DECAY: Final = 0.95
"""What is left of a lateness after each beat, whatever was sent in it."""
_BACKOFF_LIMIT: Final = 16.0
_FORGIVEN_S: Final = 10.0
"""A false alarm's doubling is taken back after this long without another."""
_TIMES: Final = 4
_SAMPLE_LIMIT_S: Final = 60.0
_SPAN: Final = 64


class RoundTrip:
    """What is known of one path's timing."""

    __slots__ = ("_backoff", "_backoff_at", "_leasts", "_samples", "_stale", "late", "srtt", "var")

    def __init__(self) -> None:
        self.srtt: float | None = None
        """Smoothed round-trip time; None before the first sample."""
        self.var = 0.0
        self.late = 0.0
        """By how much signs of life have come later than promised: the worst of the last ones, slowly forgotten."""
        self._stale = True
        """What is known is of other times: the next sample begins anew."""
        self._backoff = 1.0
        self._backoff_at = 0.0
        self._leasts = float("inf"), float("inf")
        """Of the last full _SPAN of samples, and of those after it."""
        self._samples = 0

    @property
    def least(self) -> float | None:
        """The shortest of the last round trips: what the path takes when nothing is in the way."""
        least = min(self._leasts)
        return least if self._samples else None

    def sample(self, seconds: float) -> None:
        """A round trip took so long. What can't be true is ignored."""
        if not 0 <= seconds <= _SAMPLE_LIMIT_S:
            return
        before, least = self._leasts
        self._leasts = (least, seconds) if self._samples % _SPAN == 0 else (before, min(least, seconds))
        self._samples += 1
        if self.srtt is None or self._stale:
            self.srtt, self.var, self._stale = seconds, seconds / 2, False
        else:
            self.var += _BETA * (abs(self.srtt - seconds) - self.var)
            self.srtt += _ALPHA * (seconds - self.srtt)

    def gap(self, seconds: float, promised_s: float) -> None:
        """So long after the last one a sign of life has come."""
        left = self.late * _LATE_DECAY ** (seconds / promised_s)
        self.late = max(min(seconds - promised_s, _SAMPLE_LIMIT_S), left)

    def hurry(self) -> None:
        """Rounds have begun: what was measured while everybody was at rest, loading data or making a model, says
        nothing about them. What a false alarm has taught stays."""
        self.late, self._stale = 0.0, True

    def answer_within(self) -> float | None:
        """RFC 6298's retransmission timeout; None before the first sample."""
        if self.srtt is None:
            return None
        return self.srtt + max(_K * self.var, _GRANULARITY_S)

    def silent_after(self, promised_s: float, limit_s: float) -> float:
        """How long a peer may be silent that has promised a heartbeat every `promised_s`, 0 if none."""
        if promised_s <= 0:
            return limit_s
        answer = self.answer_within() or _FIRST_S
        return min((promised_s + answer + self.late) * self._backoff, limit_s)

    def unacknowledged_after(self, within_s: float, limit_s: float) -> float:
        """How long a machine may leave unacknowledged what was sent to it, if that takes at most `within_s` on a path
        that is whole."""
        return min((within_s + _GRANULARITY_S) * self._backoff, limit_s)

    def in_doubt_after(self, within_s: float) -> float:
        """After how long something more should be sent, for its acknowledgement to come in time."""
        return within_s / 2 + _GRANULARITY_S

    def false_alarm(self, now: float) -> None:
        """The peer was there all the time."""
        self._backoff = min(2 * self._backoff, _BACKOFF_LIMIT)
        self._backoff_at = now

    def forgive(self, now: float) -> None:
        """A heartbeat has come at `now`."""
        if self._backoff > 1 and now - self._backoff_at > _FORGIVEN_S:
            self._backoff, self._backoff_at = self._backoff / 2, now


class Pace:
    """How often to send heartbeats: four times a round, within limits. What goes over a path tells sooner that it is
    broken (`RoundTrip.unacknowledged_after`)."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s = least_s
        self._most_s = most_s
        self._period_s: float | None = None
        self._ended_at: float | None = None

    def round_ended(self, now: float) -> None:
        if self._ended_at is not None:
            last = now - self._ended_at
            self._period_s = last if self._period_s is None else self._period_s + (last - self._period_s) / 4
        self._ended_at = now

    def every_s(self, now: float, *, contributed: bool) -> float:
        """The time between two heartbeats. `contributed`: whether this peer waits for a round."""
        if contributed and self._period_s is None:
            return self._least_s
        if self._ended_at is None or self._period_s is None:
            return self._most_s
        if not contributed and now - self._ended_at > max(20 * self._period_s, 2.0):
            return self._most_s  # the rounds have ended
        return min(max(self._period_s / _TIMES, self._least_s), self._most_s)
