"""How long a device takes for the gradients of a chunk: models of slow and unsteady machines, the same at every run.

none                    no longer than it takes
constant:S              S seconds for every chunk
exponential:M           exponentially distributed with mean M, each chunk independent of the others
shifted:C,M             C seconds, and on top an exponentially distributed part with mean M
trace:FILE              what was measured: a line per device, on it a number of seconds per chunk for each round,
                        separated by commas or blanks; after the last round it starts again; # starts a comment
stragglers:S,F,SHARE    S seconds for every chunk, but F times S at a SHARE of the peers: other ones in each round

What is drawn depends on nothing but (seed, peer, round, chunk), and for stragglers on who is there, so that simulator,
emulator and devices say the same, in whatever order they ask. Sources: exponential, Ramamoorthy, Meng, Girimaji 2024,
§IV; shifted exponential, Reisizadeh, Prakash, Pedarsani, Avestimehr 2021 (CodedReduce).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from edgepeer.errors import ConfigError
from edgepeer.given import read_given

__all__ = ["Speed", "parse_speed"]

_NUMBERS: Final = {"none": 0, "constant": 1, "exponential": 1, "shifted": 2, "stragglers": 3}
"""By model, how many numbers it takes."""


@dataclass(frozen=True, slots=True)
class Speed:
    """A model, from `parse_speed`; `str()` gives its name."""

    name: str
    shift_s: float = 0.0
    """Seconds that every chunk takes."""
    mean_s: float = 0.0
    """Mean of the exponentially distributed part."""
    trace: tuple[tuple[float, ...], ...] = ()
    """Seconds per chunk by device and round."""
    factor: float = 1.0
    """How many times slower stragglers are."""
    share: float = 0.0
    """How many of the peers are stragglers."""

    def __str__(self) -> str:
        return self.name

    def seconds(self, peer: str, round_: int, chunk: int, seed: int = 0, *, among: Collection[str] = ()) -> float:
        """How long this peer takes for this chunk in this round, in seconds.

        Args:
            peer: its id. Which line of a trace it is depends on (seed, peer), so two peers may have the same.
            among: all peers that are there. Of these, share * size (rounded) are stragglers in each round; if nobody
                is named, each is one with the probability `share`.
        """
        if self.share and self._straggles(peer, round_, seed, among):
            return self.factor * self.shift_s
        if self.trace:
            times = self.trace[int(_uniform(seed, peer) * len(self.trace))]
            return times[(round_ - 1) % len(times)]
        if not self.mean_s:
            return self.shift_s
        return self.shift_s - self.mean_s * math.log1p(-_uniform(seed, peer, round_, chunk))

    def _straggles(self, peer: str, round_: int, seed: int, among: Collection[str]) -> bool:
        mine = _uniform(seed, peer, round_, "straggler")
        if not among:
            return mine < self.share
        before = sum(_uniform(seed, other, round_, "straggler") < mine for other in among)
        return before < math.floor(self.share * len(among) + 0.5)


def _uniform(*key: object) -> float:
    """A number in [0, 1) that looks random, the same for the same key."""
    digest = blake2b("\0".join(map(str, key)).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def parse_speed(text: str) -> Speed:
    """The model that a text names; the list is above.

    Raises:
        ConfigError: it names none, or its file can't be used.
    """
    kind, colon, rest = text.partition(":")
    if kind == "trace" and rest:
        return Speed(text, trace=_read(text, Path(rest)))
    try:
        values = [float(part) for part in rest.split(",")] if colon else []
    except ValueError:
        values = [math.nan]
    if len(values) != _NUMBERS.get(kind, -1) or not all(0 <= value < math.inf for value in values):
        raise ConfigError(
            f"device speed = {text!r}: must be none, constant:S, exponential:MEAN, shifted:S,MEAN, trace:FILE or "
            "stragglers:S,FACTOR,SHARE, in seconds per chunk"
        )
    if kind == "stragglers":
        shift_s, factor, share = values
        if factor < 1 or share > 1:
            raise ConfigError(
                f"device speed = {text!r}: stragglers are 1 or more times slower, and 0 to 1 of all peers"
            )
        return Speed(text, shift_s, factor=factor, share=share)
    shift_s = values[0] if kind in ("constant", "shifted") else 0.0
    mean_s = values[-1] if kind in ("exponential", "shifted") else 0.0
    return Speed(text, shift_s, mean_s)


def _read(text: str, path: Path) -> tuple[tuple[float, ...], ...]:
    try:
        lines = read_given(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise ConfigError(f"device speed = {text!r}: {path} can't be read: {reason}") from None
    devices: list[tuple[float, ...]] = []
    for number, line in enumerate(lines, 1):
        try:
            times = tuple(float(part) for part in line.partition("#")[0].replace(",", " ").split())
        except ValueError:
            times = (math.nan,)
        if not all(0 <= value < math.inf for value in times):
            raise ConfigError(f"device speed = {text!r}: {path}, line {number}: must be seconds, none below 0")
        if times:
            devices.append(times)
    if not devices:
        raise ConfigError(f"device speed = {text!r}: there are no times in {path}")
    return tuple(devices)
