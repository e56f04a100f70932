"""What may come without end, such as what came from outside and was refused: counted, and told once a second."""

from __future__ import annotations

import logging
import time
from typing import Final

from edgepeer.printable import one_line

__all__ = ["Complaints"]

_EVERY_S: Final = 1.0


class Complaints:
    """Of one kind, about whoever gives reason to: a stranger must not be able to fill a disk with our lines."""

    def __init__(self, log: logging.Logger, level: int = logging.WARNING) -> None:
        self.count = 0
        self._log, self._level = log, level
        self._told_at = float("-inf")

    def add(self, text: str, *arguments: object) -> None:
        """It has come again; a line with this text, as of `logging`, unless there was one just now."""
        self.count += 1
        now = time.monotonic()
        if now - self._told_at >= _EVERY_S:
            self._told_at = now
            said = one_line(text % arguments if arguments else text)  # whoever is complained about may have written it
            self._log.log(self._level, "%s (%d so far)", said, self.count)
