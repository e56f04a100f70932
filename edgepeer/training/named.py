"""Things by name with numbers, as in "sgd:momentum=0.9,nesterov=true": read, checked, and written in one way."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from edgepeer.errors import ConfigError

__all__ = ["Named", "Range", "parse_named", "parse_values"]

Value: TypeAlias = float | int | bool

_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\Z")


class Range(NamedTuple):
    """What a number may be."""

    least: float
    most: float
    above: bool = False
    """Whether it must be more than `least`."""
    below: bool = False
    """Whether it must be less than `most`."""
    whole: bool = False

    def holds(self, value: float) -> bool:
        low = value > self.least if self.above else value >= self.least
        high = value < self.most if self.below else value <= self.most
        return low and high and not (self.whole and value != int(value))

    def __str__(self) -> str:
        low = f"above {self.least:g}" if self.above else f"from {self.least:g}"
        return f"a {'whole ' * self.whole}number {low} {'to below' if self.below else 'to'} {self.most:g}"


@dataclass(frozen=True, slots=True)
class Named:
    """A name, and those values that were given."""

    kind: str
    values: Mapping[str, Value]

    def __str__(self) -> str:
        text = ",".join(f"{key}={str(value).lower()}" for key, value in self.values.items())
        return f"{self.kind}:{text}" if text else self.kind


def parse_named(what: str, text: str, known: Mapping[str, Mapping[str, Range | None]]) -> Named:
    """Read a text.

    Args:
        what: how the setting is called.
        known: by name what can be given, and what it may be; None: true or false.

    Raises:
        ConfigError: it names nothing that is known, or gives it something that it does not take.
    """
    kind, colon, rest = text.partition(":")
    if kind not in known:
        raise ConfigError(f"{what} = {text}: there is no {what} {kind!r}, only {', '.join(known)}")
    return Named(kind, parse_values(f"{what} = {text}", rest, known[kind], kind) if colon else {})


def parse_values(where: str, text: str, takes: Mapping[str, Range | None], who: str) -> dict[str, Value]:
    """What stands behind the name: "momentum=0.9,nesterov=true", in the order of `takes`.

    Args:
        where: how messages begin; who: what takes the values.

    Raises:
        ConfigError: something is unknown, given twice, or not what it may be.
    """
    values: dict[str, Value] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        if key not in takes or key in values:
            problem = "is given twice" if key in values else f"is unknown; {who} takes {', '.join(takes) or 'nothing'}"
            raise ConfigError(f"{where}: {key!r} {problem}")
        values[key] = _value(f"{where}: {key}", value, takes[key])
    return {key: values[key] for key in takes if key in values}


def _value(where: str, text: str, allowed: Range | None) -> Value:
    if allowed is None:
        if text not in ("true", "false"):
            raise ConfigError(f"{where} must be true or false, not {text!r}")
        return text == "true"
    number = float(text) if _NUMBER.match(text) else math.nan
    if not allowed.holds(number):
        raise ConfigError(f"{where} must be {allowed}, not {text!r}")
    return int(number) if allowed.whole else number
