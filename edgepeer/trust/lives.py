"""The number of a member's last life, kept beside its certificate where it has no state directory.

Its id outlives it then, and the others know its last life by that: what it says in one of a lower number, as by a clock
that comes back earlier, they take for said before. Two processes of one member may write there: each writes it whole,
and one of them ends (fabric/twins.py).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from edgepeer.given import open_regular
from edgepeer.ids import UNHEARD, next_life
from edgepeer.processes import os_reason
from edgepeer.trust.files import write_whole

__all__ = ["begin_life"]

_log = logging.getLogger(__name__)

_NAME: Final = "life"
_LONGEST: Final = 32


def begin_life(directory: Path) -> int:
    """The number of the life that begins now, which is kept. Where it can't be, the clock may be right all the same."""
    path, last = directory / _NAME, 0
    try:
        with open_regular(path) as file:
            last = int(file.read(_LONGEST))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        why = os_reason(error) if isinstance(error, OSError) else "it is damaged"
        _log.warning("%s can't be read (%s): this start is numbered by the clock alone%s", path, why, UNHEARD)
    life = next_life(last)
    try:
        write_whole(path, f"{life}\n".encode())
    except OSError as error:
        _log.warning(
            "%s can't be written (%s): should this device start again by an earlier clock, the others will not hear "
            "it; let the directory be written to, or give the peer a --state-dir",
            path,
            os_reason(error),
        )
    return life
