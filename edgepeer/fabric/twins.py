"""Two peers of one id: each hears what the other says of itself, on the topic of both.

Anybody may have kept an old presence of ours, and say it again. So nobody goes for having heard of an older life: the
older one, when it hears of the younger, says that it has (`Presence.met`), which nobody could know before; then the
younger one ends.

    on our topic is ...                     | so we
    ----------------------------------------+---------------------------------------------------------------------
    what we have said last                  | do nothing
    an older life, which has met ours       | end, and say why
    a younger one                           | say that we have met it
    anything else that is not our last word | say that again, by a number that counts
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from edgepeer.errors import ConfigError
from edgepeer.fabric.documents import Presence

__all__ = ["TwinWatch"]

_LOG = logging.getLogger(__name__)

_SHOWN_CHARS: Final = 200


class TwinWatch:
    """What a peer says of itself, and whether somebody else lives under its name.

    Args:
        serials: whether what it says is numbered, so that it can't be said again by others.
    """

    def __init__(self, fabric: str, *, serials: bool) -> None:
        self._fabric = fabric
        self._serials = serials
        self._serial = 0
        self.me: Presence | None = None
        """What we say of ourselves."""

    def say(self, presence: Presence | None) -> Presence | None:
        """What to say from now on. Returns it as it is to be said."""
        if presence is not None:
            if self._serials:
                # Over restarts it is the incarnation that grows.
                self._serial = max(self._serial + 1, presence.incarnation)
            met = self.me.met if self.me is not None and self.me.started == presence.started else 0.0
            presence = msgspec.structs.replace(presence, serial=self._serial, met=met)
        self.me = presence
        return presence

    def meet(self, found: Presence) -> ConfigError | Presence | None:
        """That is on our topic: the reason to go, or what must be said there, if anything."""
        me = self.me
        if me is None or found == me:
            return None
        self._serial = max(self._serial, found.serial)
        if found.started == me.started and found.serial < me.serial:
            return me
        if found.met == me.started:
            return ConfigError(self._line(found))
        if _age(found) < _age(me) or found.started in (me.started, me.met):
            return me if found.serial < me.serial or not self._serials else self.say(me)
        _LOG.error("%s", self._line(found))
        self.me = msgspec.structs.replace(me, met=found.started)
        return self.say(self.me)

    def _line(self, other: Presence) -> str:
        where = ascii(", ".join(other.addresses))[1:-1][:_SHOWN_CHARS] or "no address"
        return (
            f"another peer with the id {other.id!r} is in fabric {self._fabric!r} (at {where}): "
            "give each device its own --state-dir or --peer-id; in a fleet, its own place in it: edgepeer join"
        )


def _age(presence: Presence) -> tuple[float, int, tuple[str, ...]]:
    return presence.started, presence.incarnation, presence.addresses
