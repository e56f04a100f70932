"""The last that a device has heard of its fleet's job, kept over restarts: what was announced before counts no more.

Kept as it was signed, so that a fleet whose broker has lost its memory can say it again: none of its peers can sign
a job.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Annotated, Final

import msgspec

from edgepeer.errors import WireError
from edgepeer.processes import os_reason
from edgepeer.trust.files import write_whole

__all__ = ["Announced"]

_LOG = logging.getLogger(__name__)
_STEP_S: Final = 1e-3


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    version: Annotated[int, msgspec.Meta(ge=1, le=1)]
    at: Annotated[float, msgspec.Meta(ge=0)]
    signed: bytes


class Announced:
    """`path`: the file that keeps it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = _Kept(1, 0.0, b"")
        try:
            self._last = msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError) as error:
            why = os_reason(error) if isinstance(error, OSError) else "it is damaged"
            _LOG.warning("%s can't be read (%s): an old job that is announced again would count", path, why)

    @property
    def signed(self) -> bytes:
        """The last announcement; empty: there was none."""
        return self._last.signed

    def next_time(self) -> float:
        """When the next one is made: now, but after the last, whatever the clock says."""
        return max(time.time(), self._last.at + _STEP_S)

    def take(self, at: float, signed: bytes) -> None:
        """There is such an announcement.

        Raises:
            WireError: it is older than the last, or there is another one of the same time.
        """
        if at < self._last.at or (at == self._last.at and signed != self._last.signed):
            raise WireError(f"announced {self._last.at - at:.3f} s before the last job that this device has heard of")
        if at > self._last.at:
            self._last = _Kept(1, at, signed)
            try:
                write_whole(self._path, msgspec.msgpack.encode(self._last), private=True)
            except OSError as error:
                _LOG.warning("%s can't be written: %s", self._path, os_reason(error))
