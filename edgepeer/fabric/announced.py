"""The last that a device has heard of its fleet's job, kept over restarts: what was announced before counts no more.

Kept as it was signed, so that a fleet whose broker has lost its memory can say it again: none of its peers can sign
a job.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Final

import msgspec

from edgepeer.errors import WireError
from edgepeer.processes import os_reason
from edgepeer.readable import readable
from edgepeer.trust.files import write_whole
from edgepeer.trust.later import Later
from edgepeer.trust.names import Holder

__all__ = ["Announced"]

_LOG = logging.getLogger(__name__)
_STEP_S: Final = 1e-3


@readable
class _Kept(msgspec.Struct, frozen=True, array_like=True):
    version: Annotated[int, msgspec.Meta(ge=1, le=1)]
    at: Annotated[float, msgspec.Meta(ge=0)]
    signed: bytes
    by: str = ""
    """Which operator has signed it, ..."""
    serial: int = 0
    """... by which certificate."""
    before: float = 0.0
    """When the last was announced that another operator has signed."""


class Announced:
    """`path`: the file that keeps it; `later`: writes it."""

    def __init__(self, path: Path, later: Later) -> None:
        self._path = path
        self._later = later
        self._last = _Kept(1, 0.0, b"")
        try:
            self._last = msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:  # no msgpack of such, or no text
            why = os_reason(error) if isinstance(error, OSError) else "it is damaged"
            _LOG.warning("%s can't be read (%s): an old job that is announced again would count", path, why)

    def forget(self) -> None:
        """It was announced in another fleet, which this device has left."""
        self._last = _Kept(1, 0.0, b"")

    @property
    def signed(self) -> bytes:
        """The last announcement; empty: there was none."""
        return self._last.signed

    def next_time(self, out: Collection[int]) -> float:
        """When the next one is made: now, but after the last, whatever the clock says. `out`: as of `take`."""
        return max(time.time(), self._after(out) + _STEP_S)

    def _after(self, out: Collection[int]) -> float:
        # Else whoever takes an operator's key announces something of the far future, and nobody anything after that.
        return self._last.before if self._last.serial in out else self._last.at

    def take(self, at: float, signed: bytes, holder: Holder, out: Collection[int]) -> None:
        """There is such an announcement.

        Args:
            holder: who has signed it.
            out: certificates that count no more: what was announced by them does not keep others from announcing.

        Raises:
            WireError: it is older than the last, or there is another one of the same time.
        """
        last, after = self._last, self._after(out)
        if not at >= after or (at == after and signed != last.signed):
            raise WireError(f"announced {after - at:.3f} s before the last job that this device has heard of")
        if at > after:
            self._last = _Kept(1, at, signed, holder.id, holder.serial, last.before if last.by == holder.id else after)
            # It counts from now on. A peer that loses power before it is on the disk is as one that was off when it was
            # announced: it may take the one before until it hears of this one. An operator, whose next one must be
            # later whatever its clock says, has nothing written later (`kept` is for peers and brokers).
            self._later.do(self._path.name, functools.partial(self._keep, self._last))

    def _keep(self, last: _Kept) -> None:
        try:
            write_whole(self._path, msgspec.msgpack.encode(last), private=True)
        except OSError as error:
            _LOG.warning("%s can't be written: %s", self._path, os_reason(error))
