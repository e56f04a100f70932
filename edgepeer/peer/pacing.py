"""Makes a device compute as slowly as a model says, or some times more slowly than that.

Real gradients are computed meanwhile; what is left of the time is waited for, on the event loop. Who emulates the
device can slow it down further at any time, by a small file in its state directory, which is looked at for every batch;
what came of it stands in another.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from edgepeer.coding.speed import Speed
from edgepeer.readable import readable

__all__ = ["MAX_FACTOR", "Pacing", "Slowed", "read_slowed", "slow_down"]

_log = logging.getLogger(__name__)

MAX_FACTOR: Final = 1000.0
_ASKED: Final = "slow-down"
_SLOWED: Final = "slowed-down"


@readable
class Slowed(msgspec.Struct, frozen=True, kw_only=True):
    """What a device did while it was slowed down."""

    factor: float = 1.0
    batches: int = 0
    """Begun since then; one that is cancelled, because the round is over without it, counts too."""
    seconds: float = 0.0
    """What those took that came to their end ..."""
    unslowed_seconds: float = 0.0
    """... and take by the model alone."""


def slow_down(state_dir: Path, factor: float) -> None:
    """Let the device of that state directory compute so many times slower than its model from its next batch on; 1: no
    more."""
    if factor == 1:
        (state_dir / _ASKED).unlink(missing_ok=True)
    else:
        (state_dir / _SLOWED).unlink(missing_ok=True)
        _replace(state_dir / _ASKED, repr(factor).encode())


def read_slowed(state_dir: Path) -> Slowed:
    """What the device has made of that: by how much it was slowed down, as it tells in its state directory."""
    try:
        return msgspec.json.decode((state_dir / _SLOWED).read_bytes(), type=Slowed)
    except FileNotFoundError:
        return Slowed()


class Pacing:
    """How long this device takes for a batch.

    Args:
        state_dir: where to look for how much slower to be; None: nobody asks.
    """

    def __init__(self, speed: Speed, peer: str, state_dir: Path | None = None) -> None:
        self._speed = speed
        self._peer = peer
        self._dir = state_dir if str(speed) != "none" else None
        self._slowed = Slowed()
        self._ignored = ""
        """Why what is asked for was ignored last."""
        self._untold = ""
        """Why what came of it could not be written last."""

    async def rest(
        self, began: float, *, round_: int, chunk: int, seed: int, among: Collection[str], share: float = 1.0
    ) -> None:
        """Wait until as much time has gone since `began` (of time.monotonic) as the batch should take.

        Args:
            chunk: which part of the data it is from; among: the peers that are there.
            share: the batch's size, in batches of usual size.
        """
        model_s = share * self._speed.seconds(self._peer, round_, chunk, seed, among=among)
        factor = self._factor()
        if factor == 1:
            await asyncio.sleep(began + model_s - time.monotonic())
            return
        before = self._slowed if self._slowed.factor == factor and self._told() else Slowed(factor=factor)
        self._tell(msgspec.structs.replace(before, batches=before.batches + 1))
        await asyncio.sleep(began + factor * model_s - time.monotonic())
        now = self._slowed
        self._tell(
            msgspec.structs.replace(
                now,
                seconds=now.seconds + time.monotonic() - began,
                unslowed_seconds=now.unslowed_seconds + model_s,
            )
        )

    def _factor(self) -> float:
        if self._dir is None:
            return 1.0
        try:
            factor = float((self._dir / _ASKED).read_text())
        except FileNotFoundError:
            self._ignored = ""
            return 1.0
        except (OSError, ValueError) as error:
            if str(error) != self._ignored:  # told once, not with every batch
                self._ignored = str(error)
                _log.warning("%s: ignored: %s", self._dir / _ASKED, error)
            return 1.0
        self._ignored = ""
        return factor if math.isfinite(factor) and 1 < factor <= MAX_FACTOR else 1.0

    def _told(self) -> bool:
        assert self._dir is not None
        return (self._dir / _SLOWED).exists()

    def _tell(self, slowed: Slowed) -> None:
        self._slowed = slowed
        assert self._dir is not None
        path = self._dir / _SLOWED
        try:
            _replace(path, msgspec.json.encode(slowed))
        except OSError as error:  # a full disk: what this tells is for people, and training is not
            if str(error) != self._untold:
                self._untold = str(error)
                _log.warning("%s: can't be written, so nobody hears how slow this device was: %s", path, error)
        else:
            self._untold = ""


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new-{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(path)
