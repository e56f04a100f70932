"""What time it is, where the clock can be believed.

A Raspberry Pi has no clock that goes on without power: until the network has told it the time, it is 1970, or when the
card was written. A certificate must not be refused for that. So one is valid from 1970 on, and that it has expired
counts only by a clock that is neither before this build nor decades after it.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

from edgepeer.errors import TrustError

__all__ = ["BUILT", "aging", "believable", "certain_time", "date", "minute"]

BUILT: Final = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
"""Nobody runs this earlier."""
_AGE_S: Final = 30 * 365.25 * 86400


def believable(now: float | None = None) -> float | None:
    """The time, as seconds since 1970; None where the clock can't be right."""
    told = time.time() if now is None else now
    return told if BUILT <= told < BUILT + _AGE_S else None


def certain_time() -> float:
    """The time, for who makes promises about it.

    Raises:
        TrustError: the clock can't be right.
    """
    now = believable()
    if now is None:
        raise TrustError(f"this machine's clock says {date(time.time())}, which can't be: set it, then try again")
    return now


def date(when: float) -> str:
    """A day, for people."""
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d")


def minute(when: float) -> str:
    """A time of a day, for people."""
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M UTC")


def aging(issued: float, ends: float) -> bool:
    """Whether what counts from then to then is in the last third of its time, by a clock that can be believed."""
    now = believable()
    return now is not None and now > ends - (ends - issued) / 3
