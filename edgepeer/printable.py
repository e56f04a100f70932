"""Text from elsewhere, as it may stand in a line of ours."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["one_line", "plain_json", "printable"]

_LONGEST: Final = 100
_LEFT_BY_JSON: Final = re.compile("[\x7f-\x9f]")


def printable(text: str, longest: int = _LONGEST) -> str:
    """The text on one line of at most so many characters: what can't be printed is escaped, what is too long cut."""
    shown = one_line(text)
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


def one_line(text: str) -> str:
    """All of it on one line, what can't be printed escaped, and nothing else: a terminal obeys control characters."""
    return text if text.isprintable() else "".join(map(_shown, text))


def plain_json(text: str) -> str:
    """The same JSON without control characters: it lets some of them stand as they are, and a terminal obeys these."""
    return _LEFT_BY_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
