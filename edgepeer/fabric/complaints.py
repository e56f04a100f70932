"""What came over MQTT and was refused: counted, and told at most once a second."""

from __future__ import annotations

import logging
import time
from typing import Final

__all__ = ["Complaints"]

_LOG = logging.getLogger(__name__)
_EVERY_S: Final = 1.0
_SHOWN_CHARS: Final = 200


class Complaints:
    """Of one client."""

    def __init__(self) -> None:
        self.count = 0
        self._told_at = float("-inf")

    def reject(self, topic: str, reason: str) -> None:
        """A document on that topic was not what it must be."""
        self.count += 1
        now = time.monotonic()
        if now - self._told_at >= _EVERY_S:
            self._told_at = now
            # ascii(): neither comes from us, and a terminal obeys control characters.
            shown, why = ascii(topic)[:_SHOWN_CHARS], ascii(reason)[:_SHOWN_CHARS]
            _LOG.warning("rejected a document on %s: %s (%d so far)", shown, why, self.count)
