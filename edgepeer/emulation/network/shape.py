"""What a peer's line is like, as numbers and as text: rates, delay, jitter, loss, queues."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from edgepeer.errors import ConfigError

__all__ = ["LinkShape", "parse_links", "parse_peers"]

_RATE_UNITS: Final = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TIME_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_QUANTITY: Final = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[a-z]+|%)")
_FOR_SOME: Final = re.compile(r"(?P<peers>p?\d+(,p?\d+)*)=(?P<link>.*)", re.IGNORECASE)
_MOST_DELAY_S: Final = 0.5
"""Of delay, and of jitter beside it. Where an answer takes more than a second, who waits for several gives up: brokers
are given 4 s, silence 3, and with seconds of jitter no host even finds another."""
_EXAMPLE: Final = "such as 100mbit,5ms or 10mbit/50mbit,20ms,jitter=10ms,loss=1%,queue=200ms"


@dataclass(frozen=True, kw_only=True)
class LinkShape:
    """The line between one peer and everybody else, full duplex."""

    up_bits_per_s: float | None = None
    """What the peer can send at most; None: as fast as this machine can."""
    down_bits_per_s: float | None = None
    """What it can receive at most."""
    delay_s: float = 0.0
    """How much later arrives what the peer sends: from peer to peer it is a one-way delay, a round trip takes two."""
    jitter_s: float = 0.0
    """How much later still it may be. Order is kept: the line stops for a time that is drawn evenly from 0 to this,
    what is sent meanwhile arrives together when that is over, and the next packet stops it anew, as on Wi-Fi."""
    loss: float = 0.0
    """Which part of the packets is lost, in each direction, each for itself."""
    queue_s: float = 0.1
    """How long a queue there is in front of each rate; what does not fit is lost. Without a rate there is none."""

    def __post_init__(self) -> None:
        for rate in (self.up_bits_per_s, self.down_bits_per_s):
            if rate is not None and not 8e3 <= rate <= 30e9:
                raise ConfigError(f"rate {rate:g} bit/s: must be 8kbit to 30gbit")
        for what, seconds in (("delay", self.delay_s), ("jitter", self.jitter_s)):
            if not 0.0 <= seconds <= _MOST_DELAY_S:
                raise ConfigError(f"{what} {seconds:g} s: must be 0 to {_MOST_DELAY_S:g} s")
        if not 0.0 <= self.loss <= 0.5:
            raise ConfigError(f"loss {100 * self.loss:g}%: must be 0% to 50%")
        if not 0.001 <= self.queue_s <= 10.0:
            raise ConfigError(f"queue {self.queue_s:g} s: must be 1ms to 10s")

    @classmethod
    def parse(cls, text: str) -> LinkShape:
        """`100mbit,5ms`, `10mbit/50mbit` or `5ms,jitter=20ms,loss=1%,queue=200ms`, in any order: a rate, one for both
        directions or up/down, a one-way delay, and what is named.

        Raises:
            ConfigError: it is none of these, or out of bounds.
        """
        found: dict[str, float] = {}

        def take(name: str, value: float) -> None:
            if name in found:
                raise ConfigError(f"link {text!r}: says its {name} twice: must be {_EXAMPLE}")
            found[name] = value

        for part in text.lower().split(","):
            name, named, quantity = (each.strip() for each in part.rpartition("="))
            up, both, down = (each.strip() for each in quantity.partition("/"))
            if named and name in ("jitter", "queue") and (seconds := _read(quantity, _TIME_UNITS)) is not None:
                take(name, seconds)
            elif named and name == "loss" and (percent := _read(quantity, {"%": 0.01})) is not None:
                take(name, percent)
            elif not named and (rate := _read(up, _RATE_UNITS)) is not None:
                other = _read(down, _RATE_UNITS) if both else rate
                if other is None:
                    raise ConfigError(f"link {text!r}: {down!r} is no rate: must be {_EXAMPLE}")
                take("rate", rate)
                take("rate down", other)
            elif not named and (seconds := _read(quantity, _TIME_UNITS)) is not None:
                take("delay", seconds)
            else:
                raise ConfigError(f"link {text!r}: {part.strip()!r} is unknown: must be {_EXAMPLE}")
        if "queue" in found and "rate" not in found:
            raise ConfigError(
                f"link {text!r}: a queue is one in front of a rate, and there is none: must be {_EXAMPLE}"
            )
        try:
            return cls(
                up_bits_per_s=found.get("rate"),
                down_bits_per_s=found.get("rate down"),
                delay_s=found.get("delay", 0.0),
                jitter_s=found.get("jitter", 0.0),
                loss=found.get("loss", 0.0),
                queue_s=found.get("queue", cls.queue_s),
            )
        except ConfigError as error:  # of several links, it is this one
            raise ConfigError(f"link {text!r}: {error}") from None


def parse_links(texts: Iterable[str], names: Sequence[str]) -> dict[str, LinkShape]:
    """The lines of a fleet's peers: `100mbit,5ms` for all, `3,5=10mbit` for some; the later counts more.

    Args:
        names: of all peers; a number in a text is a place in it.

    Raises:
        ConfigError: a text is none, or names nobody.
    """
    links: dict[str, LinkShape] = {}
    for text in texts:
        if some := _FOR_SOME.fullmatch(text.strip()):
            link = LinkShape.parse(some["link"])
            links |= dict.fromkeys(parse_peers(some["peers"], names, f"link {text!r}"), link)
        else:
            links |= dict.fromkeys(names, LinkShape.parse(text))
    return links


def parse_peers(text: str, names: Sequence[str], where: str) -> list[str]:
    """`3,5` or `p03,p05` as names.

    Args:
        where: to begin a refusal with.

    Raises:
        ConfigError: that is nobody.
    """
    found = []
    for part in text.split(","):
        number = part.strip().lower().removeprefix("p")
        if not (number.isascii() and number.isdecimal() and int(number) < len(names)):
            raise ConfigError(f"{where}: peer {part.strip()!r} is unknown: must be 0 to {len(names) - 1}")
        found.append(names[int(number)])
    return found


def _read(text: str, units: dict[str, float]) -> float | None:
    """A quantity in one of these units; None where it is none."""
    found = _QUANTITY.fullmatch(text)
    if found is None or found["unit"] not in units:
        return None
    return float(found["number"]) * units[found["unit"]]
