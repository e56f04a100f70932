"""Text from elsewhere, as it may stand in a line of ours."""

from __future__ import annotations

from typing import Final

__all__ = ["one_line", "printable"]

_LONGEST: Final = 100


def printable(text: str, longest: int = _LONGEST) -> str:
    """The text on one line of at most so many characters: what can't be printed is escaped, what is too long cut."""
    shown = one_line(text)
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


def one_line(text: str) -> str:
    """All of it on one line, what can't be printed escaped: a terminal obeys control characters."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
