"""Two peers of one id: the broker lets in only one at a time, so they would end each other's connection for ever.

A presence is left beside the real one, on a topic that no will clears. Who finds another's there when it comes
back knows that somebody else was here under its name, and of the two the younger one ends.
"""

from __future__ import annotations

import logging
from typing import Final

from edgepeer.errors import ConfigError
from edgepeer.fabric.documents import Presence

__all__ = ["TwinWatch"]

_LOG = logging.getLogger(__name__)

_SEEN: Final = 2  # times; once may be a broker that was set back to an older memory
_SHOWN_CHARS: Final = 200


class TwinWatch:
    """Tells whether somebody else lives under our name."""

    def __init__(self, fabric: str) -> None:
        self._fabric = fabric
        self._seen = 0

    def meet(self, me: Presence, last: Presence) -> ConfigError | None:
        """`last` was here before us: the reason to go, if it is a twin of ours, and older."""
        # Our incarnation and addresses may change while we live.
        self._seen = 0 if last.started == me.started else self._seen + 1
        if self._seen < _SEEN:
            return None
        self._seen = 0
        where = ascii(", ".join(last.addresses))[1:-1][:_SHOWN_CHARS] or "no address"
        line = (
            f"another peer with the id {me.id!r} is in fabric {self._fabric!r} (at {where}): "
            "give each device its own --state-dir or --peer-id"
        )
        if _age(last) < _age(me):
            return ConfigError(line)
        _LOG.error("%s", line)
        return None


def _age(presence: Presence) -> tuple[float, int, tuple[str, ...]]:
    return presence.started, presence.incarnation, presence.addresses
