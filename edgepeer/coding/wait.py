"""When the root may close a coded round whose sum is not exact."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgepeer.errors import ConfigError

__all__ = ["WaitPolicy", "parse_wait"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitPolicy:
    """Close when the sum is exact, or when one of these holds."""

    error: float = 0.0
    """The expected squared error is below this, in units of one chunk's squared gradient norm; 0: never."""
    deadline_s: float | None = None
    """So long after the round has begun at the root; None: never."""

    def enough(self, error: float) -> bool:
        """Whether a sum with that expected squared error will do."""
        return error < self.error

    def __str__(self) -> str:
        if self.deadline_s is not None:
            return f"deadline:{self.deadline_s:g}"
        return f"error<{self.error:g}" if self.error else "exact"


def parse_wait(text: str) -> WaitPolicy:
    """The policy that a text names: exact, error<E or deadline:SECONDS.

    Raises:
        ConfigError: it names none.
    """
    for prefix, field in (("error<", "error"), ("deadline:", "deadline_s")):
        if text.startswith(prefix):
            try:
                value = float(text.removeprefix(prefix))
            except ValueError:
                value = math.nan
            if 0 < value < math.inf:
                return WaitPolicy(**{field: value})
    if text != "exact":
        raise ConfigError(f"wait = {text!r}: must be exact, error<E or deadline:SECONDS, with a number above 0")
    return WaitPolicy()
