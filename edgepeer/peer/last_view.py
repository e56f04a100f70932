"""The view that a device was in last, kept over restarts: whom to look for where the broker has forgotten it.

To the machine it is a view that MQTT retains: a hint, which may be of the dead. Without it, a device that starts again
beside a new broker, before the others are there, would take itself for the first of all, begin a generation after the
one that they go on in, and have them give up what they do.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from edgepeer.errors import WireError
from edgepeer.given import open_regular
from edgepeer.readable import readable
from edgepeer.topology.view import View
from edgepeer.wire.documents import DOCUMENT_LIMIT_BYTES, pack, unpack

__all__ = ["LastView"]

_NAME: Final = "view"


@readable
class _Kept(msgspec.Struct, frozen=True):
    fabric: str
    view: View


class LastView:
    """What is kept of it in a state directory; nothing if there is none.

    Args:
        fabric: of another one's view nothing is known.
    """

    def __init__(self, state_dir: Path | None, fabric: str) -> None:
        self._path = state_dir / _NAME if state_dir is not None else None
        self._fabric = fabric
        self._kept: object = None

    def load(self) -> View | None:
        """As it was kept. What can't be read is no hint."""
        if self._path is None:
            return None
        try:
            with open_regular(self._path) as file:
                kept = unpack(file.read(DOCUMENT_LIMIT_BYTES + 1), _Kept)
        except (OSError, WireError):
            return None
        return kept.view if kept.fabric == self._fabric else None

    def keep(self, view: View) -> None:
        """Remember this one, unless only its trees are new.

        Raises:
            OSError: it can't be written.
        """
        lives = {(member.id, member.incarnation) for member in view.members}
        told = view.generation, lives, view.run  # who wants that run waits for them longer than whoever wants none
        if self._path is None or told == self._kept:
            return
        # Not brought to the disk: rounds wait meanwhile. Where a loss of power leaves half of it, there is no hint.
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(pack(_Kept(self._fabric, view)))
            fresh.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        self._kept = told
