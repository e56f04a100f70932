"""Faults as text, as flags and scenario files have them: `3-1@5..10`, `4@20s`, `6x4`, `3@50:kind=nan`. `read` undoes
`write`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from edgepeer.emulation.faults.kinds import (
    BROKER,
    BrokerDown,
    Cut,
    Flip,
    Isolate,
    Kill,
    Partition,
    Pause,
    PlannedFault,
    Restart,
    Slow,
    Span,
    Unit,
    Who,
)
from edgepeer.errors import ConfigError
from edgepeer.printable import printable
from edgepeer.training.split.faults import Kind, Place

__all__ = ["SHAPES", "read", "show", "write"]

_WHO: Final = "a peer is a number, root, leaf or posN"
_KINDS: Final[tuple[str, ...]] = get_args(Kind)
_PLACES: Final[tuple[str, ...]] = get_args(Place)
_WHEN: Final = "@FROM..TO or @FROM.. in rounds (5..10) or seconds (5s..10s)"
SHAPES: Final[Mapping[str, str]] = {
    "cut": f"A-B (both directions) or A>B, then {_WHEN}; {_WHO}, or broker",
    "isolate": f"PEER{_WHEN}; {_WHO}",
    "partition": f"sides as A,B|C,D or A,B|rest, then {_WHEN}; {_WHO}, and broker may be on a side",
    "kill": f"PEER@ROUND or PEER@SECONDs; {_WHO}",
    "restart": f"PEER@ROUND or PEER@SECONDs; {_WHO}",
    "pause": f"PEER{_WHEN}; {_WHO}",
    "slow": f"PEERxFACTOR, as 6x4 for four times slower, then nothing or {_WHEN}; {_WHO}",
    "broker_down": "FROM..TO or FROM.. in rounds (10..30) or seconds (10s..30s)",
    "flip": "NODE@ROUND, a node of the split from 0, then nothing or "
    f":kind={'|'.join(_KINDS)},place={'|'.join(_PLACES)}",
}
"""What each kind must look like, to stand after "must be"."""

_REST: Final = "rest"
_TIME: Final = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)(s?)")
_SPEED: Final = re.compile(r"(\w+)x([0-9]{1,3}(?:\.[0-9]{1,3})?)")
_FOREVER: Final = Span("round", 1.0)
_MOST: Final = 100.0
"""The largest factor of a slow peer."""


class _Wrong(Exception):
    """What is wrong with a text, to stand after it."""


def read(kind: str, text: str) -> PlannedFault:
    """The fault of that kind that `text` describes.

    Raises:
        ConfigError: none; names kind, text and what is allowed.
    """
    text = "".join(text.split())
    try:
        return _READERS[kind](text)
    except _Wrong as wrong:
        raise ConfigError(f"{kind} = {printable(text)}: {wrong}") from None


def write(fault: PlannedFault) -> str:
    """The text of a fault; `read` gives the same fault back."""
    match fault:
        case Cut(source=source, target=target, both=both):
            return f"{show(source)}{'-' if both else '>'}{show(target)}{_when(fault.span)}"
        case Partition(sides=sides):
            return "|".join(",".join(map(show, side)) or _REST for side in sides) + _when(fault.span)
        case Slow(peer=peer, factor=factor):
            return f"{show(peer)}x{_number(factor)}{_when(fault.span)}"
        case BrokerDown(span=span):
            return _when(span).removeprefix("@")
        case Kill(peer=peer) | Restart(peer=peer):
            return f"{show(peer)}@{_moment(fault.span.start, fault.span.unit)}"
        case Pause(peer=peer) | Isolate(peer=peer):
            return f"{show(peer)}{_when(fault.span)}"
        case Flip(node=node, how=how, place=place):
            told = [f"kind={how}"] * (how != "flip") + [f"place={place}"] * (place != "stored")
            return f"{node}@{_moment(fault.span.start, fault.span.unit)}" + (f":{','.join(told)}" if told else "")


def show(who: Who) -> str:
    """One end of a link, or a peer, as `read` takes it: 3, root, pos2, leaf, broker."""
    if who.by == "number":
        return str(who.index)
    if who.by == "position":
        return f"pos{who.index}" if who.index else "root"
    return "leaf" if who.by == "last" else "broker"


# -- reading -------------------------------------------------------------------------------------------------


def _cut(text: str) -> PlannedFault:
    ends, span = _split("cut", text)
    for mark, both in (("-", True), (">", False)):
        source, found, target = ends.partition(mark)
        if found:
            first, second = _who("cut", source, broker=True), _who("cut", target, broker=True)
            if first == second:
                raise _Wrong("a link has two different ends")
            if BROKER in (first, second) and not both:
                raise _Wrong("a link to the broker is cut in both directions: write it with -")
            return Cut(source=first, target=second, both=both, span=span)
    raise _shape("cut")


def _partition(text: str) -> PlannedFault:
    places, span = _split("partition", text)
    sides = tuple(() if side == _REST else _side(side) for side in places.split("|"))
    named = [who for side in sides for who in side]
    if len(set(named)) < len(named):
        raise _Wrong("nobody can be on two sides")
    if len(sides) < 2:
        raise _shape("partition")
    if sides.count(()) > 1:
        raise _Wrong("only one side can be the rest")
    if any(set(side) == {BROKER} for side in sides):
        raise _Wrong("the broker can't be a side of its own: use cuts")
    return Partition(sides=sides, span=span)


def _side(text: str) -> tuple[Who, ...]:
    return tuple(_who("partition", part, broker=True) for part in text.split(","))


def _isolate(text: str) -> PlannedFault:
    peer, span = _split("isolate", text)
    return Isolate(peer=_who("isolate", peer), span=span)


def _pause(text: str) -> PlannedFault:
    peer, span = _split("pause", text)
    return Pause(peer=_who("pause", peer), span=span)


def _kill(text: str) -> PlannedFault:
    return Kill(peer=_who("kill", text.partition("@")[0]), span=_at("kill", text))


def _restart(text: str) -> PlannedFault:
    return Restart(peer=_who("restart", text.partition("@")[0]), span=_at("restart", text))


def _slow(text: str) -> PlannedFault:
    speed, span = _split("slow", text, optional=True)
    found = _SPEED.fullmatch(speed)
    if found is None:
        raise _shape("slow")
    factor = float(found[2])
    if not 1 < factor <= _MOST:
        raise _Wrong(f"the factor must be above 1, at most {_MOST:g}")
    return Slow(peer=_who("slow", found[1]), factor=factor, span=span)


def _broker_down(text: str) -> PlannedFault:
    return BrokerDown(span=_span("broker_down", text))


def _flip(text: str) -> PlannedFault:
    where, found, how = text.partition(":")
    node, _, _ = where.partition("@")
    span = _at("flip", where)
    if not (node.isascii() and node.isdigit() and len(node) < 5) or found > how:
        raise _shape("flip")
    if span.unit != "round":
        raise _Wrong("a soft error comes in a round: without s")
    told: dict[str, Any] = {}
    for part in how.split(",") if how else ():
        key, _, value = part.partition("=")
        allowed = {"kind": _KINDS, "place": _PLACES}.get(key, ())
        if key in told or value not in allowed:
            raise _shape("flip")
        told[key] = value
    kind, place = told.get("kind", "flip"), told.get("place", "stored")
    return Flip(node=int(node), how=kind, place=place, span=span)


_READERS: Final[Mapping[str, Callable[[str], PlannedFault]]] = {
    "cut": _cut,
    "isolate": _isolate,
    "partition": _partition,
    "kill": _kill,
    "restart": _restart,
    "pause": _pause,
    "slow": _slow,
    "broker_down": _broker_down,
    "flip": _flip,
}


def _shape(kind: str) -> _Wrong:
    return _Wrong(f"must be {SHAPES[kind]}")


def _split(kind: str, text: str, *, optional: bool = False) -> tuple[str, Span]:
    what, found, when = text.partition("@")
    if not found and optional:
        return what, _FOREVER
    return what, _span(kind, when)


def _span(kind: str, text: str) -> Span:
    start, found, end = text.partition("..")
    if not found:
        raise _shape(kind)
    first, unit = _time(kind, start)
    if not end:
        return Span(unit, first)
    last, other = _time(kind, end)
    if other != unit:
        raise _Wrong("must begin and end in one unit: both in rounds, or both in seconds (5s..10s)")
    if last < first or (last == first and unit == "second"):
        raise _Wrong(f"ends before it starts: the end must be {'after' if unit == 'second' else 'at least'} the start")
    return Span(unit, first, last)


def _at(kind: str, text: str) -> Span:
    _, found, when = text.partition("@")
    if not found:
        raise _shape(kind)
    start, unit = _time(kind, when)
    return Span(unit, start)


def _time(kind: str, text: str) -> tuple[float, Unit]:
    found = _TIME.fullmatch(text)
    if found is None:
        raise _shape(kind)
    value = float(found[1])
    if found[2]:
        return value, "second"
    if not value.is_integer() or value < 1:
        raise _Wrong("rounds are whole numbers from 1; seconds end in s, as 2.5s")
    return value, "round"


def _who(kind: str, text: str, *, broker: bool = False) -> Who:
    if text.isascii() and text.isdigit() and len(text) < 5:
        return Who("number", int(text))
    position = text.removeprefix("pos")
    if position != text and position.isascii() and position.isdigit() and len(position) < 5:
        return Who("position", int(position))
    if text == "root":
        return Who("position", 0)
    if text == "leaf":
        return Who("last")
    if text == "broker" and broker:
        return BROKER
    raise _shape(kind)


# -- writing -------------------------------------------------------------------------------------------------


def _when(span: Span) -> str:
    end = "" if span.end is None else _moment(span.end, span.unit)
    return f"@{_moment(span.start, span.unit)}..{end}"


def _moment(value: float, unit: Unit) -> str:
    return f"{_number(value)}s" if unit == "second" else f"{value:.0f}"


def _number(value: float) -> str:
    text = f"{value:.3f}"
    return text.rstrip("0").rstrip(".")
