"""What a machine says of a link, and whether that is closed because of what the other end has sent."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from edgepeer.ids import PeerId

__all__ = ["Closed", "closed", "of_a_path"]

_CLOSED: Final = re.compile(r"link to (\S+) closed: (.+)", re.DOTALL)
_PATH: Final = re.compile(r"link to \S+ goes ")
_OF_OUR_OWN: Final = re.compile(r"silent for |.* while it was being sent$", re.DOTALL)
"""Nothing has come, or the memory that goes out is about to change: that is no mistake of the other end."""


class Closed(NamedTuple):
    """A link that a machine has closed, whatever it went over."""

    peer: PeerId
    reason: str

    @property
    def refused(self) -> bool:
        """Whether the other end has sent what it had no business to."""
        return _OF_OUR_OWN.match(self.reason) is None


def closed(note: str) -> Closed | None:
    """The link that a machine's Note is about; None: it is about something else.

    By the text, since nothing else has both. A CloseLink follows only where the link is a connection, not where others
    carry it; and `abrupt` says whose memory is queued, by which the machines of `edgepeer.baselines` tell nothing.
    """
    found = _CLOSED.fullmatch(note)
    return Closed(PeerId(found[1]), found[2]) if found is not None else None


def of_a_path(note: str) -> bool:
    """Whether a machine's Note tells what a link goes over now."""
    return _PATH.match(note) is not None
