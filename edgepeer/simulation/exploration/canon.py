"""A machine's state as a value: two machines in the same state have equal ones, and a machine can be put back into one.

The object graph of a machine is walked, whatever its classes are: attributes and slots, dicts, sets, deques, arrays,
structs. So a new field of the protocol is part of the state without a word here. What is left out is listed below.

    what is found               | its value
    ----------------------------+--------------------------------------------------------------------------------
    a time                      | how far from now it is, on a grid, and no further back than HORIZON_S
    what a rule stands for      | what the rule says (_RULES)
    a dict or a set with keys   | in the order of the keys
    that can be ordered         |
    what is met a second time   | a reference to the first
    codes, and schemes of these | themselves: there is one of each, and it does not change
    callables                   | nothing: they belong to the machine and stay

Times are told from other numbers by their size: each machine has a clock of its own, which stands at NOW whenever an
event comes. A machine that is put back is really in that state: what is rounded is rounded for it, too.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from math import ceil, inf
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import numpy as np

from edgepeer.coding.code import GradientCode
from edgepeer.coding.scheme import CodingScheme
from edgepeer.errors import ProtocolBug
from edgepeer.protocol.catchup import Catchup
from edgepeer.protocol.closing import Closing
from edgepeer.protocol.lane import Lane
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import Link
from edgepeer.protocol.membership import LOST_S, Membership
from edgepeer.protocol.neighbours import Neighbours
from edgepeer.protocol.node import Node
from edgepeer.protocol.outside import Outside
from edgepeer.protocol.paths import CROSSING_S, Attempt
from edgepeer.protocol.rollcall import FRESH_S, Entry, RollCall, Word
from edgepeer.protocol.round import Contribution, Round
from edgepeer.protocol.segments import RateEstimate
from edgepeer.protocol.streams import Prefix
from edgepeer.protocol.succession import Succession
from edgepeer.protocol.timing import Pace, RoundTrip
from edgepeer.protocol.tunnel import Tunnel
from edgepeer.protocol.views import ASKED_BEFORE_ANEW, Views
from edgepeer.protocol.vitals import Vitals
from edgepeer.protocol.wiring import Wiring

__all__ = ["BEAT_S", "HORIZON_S", "NOW", "Canon", "Value"]

Value: TypeAlias = Any
"""Nested tuples of immutable values: hashable, and equal if the states are."""

NOW: Final = float(1 << 20)
"""What every machine's clock shows when something happens to it."""
HORIZON_S: Final = 5.25
"""What is longer ago than this is so long ago. No limit of a machine that is explored is longer."""
BEAT_S: Final = 0.25
"""Times are multiples of this, and what is due in between is due then."""
_TIMES_FROM: Final = NOW / 2
_FRESH_S: Final = FRESH_S + BEAT_S
_LINK_S: Final = 2.0
_CALLS: Final = 8
_FAILURES: Final = 2
_CALL_PAUSE_S: Final = 0.8

_THEMSELVES: Final = (Enum, CodingScheme, GradientCode)
_MEASURED: Final = (RoundTrip, RateEstimate)
"""With heartbeats of one fixed length, and silence shorter than any measured patience, nothing depends on these."""

_Rule: TypeAlias = Callable[[Any, Any, float, bool], Any]
"""What stands for an attribute: by its owner, its value, the time, and whether the machine is in a view."""


def _always(it: Any) -> _Rule:
    return lambda of, value, now, inside: it


def _due(of: Any, value: float, now: float, inside: bool) -> float:
    """What is due is due, however long already."""
    return value if value > now else now


def _ago(most_s: float) -> _Rule:
    return lambda of, value, now, inside: max(value, now - most_s) if value is not None else None


def _if_outside(rule: _Rule, else_: Any = 0.0) -> _Rule:
    return lambda of, value, now, inside: else_ if inside else rule(of, value, now, inside)


def _unless(idle: Callable[[Any], bool], rule: _Rule, else_: Any = 0.0) -> _Rule:
    return lambda of, value, now, inside: else_ if idle(of) else rule(of, value, now, inside)


def _to_come(of: Any, value: dict[Any, float], now: float, inside: bool) -> dict[Any, float]:
    return {key: at for key, at in value.items() if at > now} if value else value


def _as_it_is(of: Any, value: Any, now: float, inside: bool) -> Any:
    return value


_RULES: Final[dict[tuple[type, str], _Rule]] = {
    # what is measured, and what only people are told
    (Pace, "_period_s"): _always(None),
    (Pace, "_ended_at"): _always(None),
    (Link, "closed_at"): _always(-inf),
    (Vitals, "_say_at"): _always(inf),
    (Catchup, "_took_s"): _always(0.0),
    (Round, "reduced_at"): _always(0.0),
    (Round, "held_at"): _always(0.0),
    # when something began that goes on for less than anybody has patience
    (Contribution, "since"): lambda of, value, now, inside: now,
    (Closing, "closed_at"): lambda of, value, now, inside: now,
    (Closing, "_heard"): lambda of, value, now, inside: {
        peer: replace(heard, since=now) for peer, heard in value.items()
    },
    (Closing, "_since"): lambda of, value, now, inside: (
        now if value is not None and of.next_deadline() is None else _ago(HORIZON_S)(of, value, now, inside)
    ),
    # memory whose content means nothing yet
    (Lane, "spare"): _always(None),
    (Lane, "into"): _always(None),
    (Round, "total"): _always(None),
    (Round, "_memory"): _always({}),
    (Wiring, "_hops"): _always({}),
    (Lane, "partial"): _unless(
        lambda lane: lane.reduced < 0 and all(s.added < 0 for s in lane.streams.values()), _as_it_is, None
    ),
    (Prefix, "buffer"): _unless(lambda prefix: prefix.received < 0, _as_it_is, None),
    # times that nobody asks for, and deadlines that have passed
    (Link, "heard"): _unless(lambda link: not link.up, _ago(_LINK_S)),
    (Link, "alive_at"): _ago(_LINK_S),
    (Link, "echo_at"): _unless(lambda link: not link.echo, _as_it_is),
    (Link, "since"): _unless(lambda link: not link.up, _ago(CROSSING_S)),
    (Link, "down_since"): _unless(lambda link: link.up, _ago(_LINK_S)),
    (Link, "life_at"): _unless(lambda link: link.member is None or link.life <= link.member.incarnation, _ago(_LINK_S)),
    (Link, "redial_at"): _unless(lambda link: link.direct or link.dialing or link.member is None, _due),
    (Attempt, "began"): _ago(CROSSING_S),
    (Tunnel, "opened"): _always(0.0),  # as the stamps of all Knocks are
    (Attempt, "again_at"): _due,
    (Node, "_tick_at"): _due,
    (RollCall, "next_at"): _due,
    (Views, "_suspect_again"): _to_come,
    (Views, "_correct_again"): _to_come,
    (Membership, "_lost"): _to_come,
    (Membership, "_answering"): lambda of, value, now, inside: {
        peer: max(since, now - LOST_S) for peer, since in value.items()
    },
    (Membership, "_entered_at"): _ago(_LINK_S),
    (Membership, "_changed_at"): _ago(BEAT_S),
    (Outside, "_quiet_since"): _if_outside(_ago(HORIZON_S)),
    (Outside, "_held_at"): _if_outside(_ago(_LINK_S)),
    (Neighbours, "_packs_since"): _unless(lambda neighbours: not neighbours._providing, _as_it_is),
    (Outside, "_synced_at"): _ago(_FRESH_S),
    (Outside, "_since"): _if_outside(_ago(_FRESH_S)),
    (Outside, "hint_at"): lambda of, value, now, inside: max(value, now - _FRESH_S) if of.hint and inside else 0.0,
    (Outside, "hint_since"): lambda of, value, now, inside: max(value, now - _FRESH_S) if of.hint and inside else 0.0,
    (Outside, "_refused"): lambda of, value, now, inside: set() if inside else value,
    (RollCall, "appeared_at"): _if_outside(_ago(_FRESH_S)),
    (RollCall, "_answered_at"): _ago(_FRESH_S),
    (Word, "at"): _ago(_FRESH_S),
    (Entry, "call_at"): lambda of, value, now, inside: min(max(value, now), now + 1.0),
    # counts, up to the last of which something depends
    (Link, "failures"): lambda of, value, now, inside: min(value, _FAILURES),
    (Link, "unanswered"): lambda of, value, now, inside: min(value, 1),
    (Entry, "calls"): lambda of, value, now, inside: min(value, _CALLS),
    (Entry, "pause_s"): lambda of, value, now, inside: min(value, _CALL_PAUSE_S),
    (Succession, "asked"): lambda of, value, now, inside: min(value, ASKED_BEFORE_ANEW),
    (Succession, "_again_at"): lambda of, value, now, inside: (
        max(value, now - HORIZON_S) if of.came or of.asked else _due(of, value, now, inside)
    ),
    (Succession, "answers"): lambda of, value, now, inside: {
        peer: number for peer, number in value.items() if number > of.number - of._current
    },
    (Succession, "came"): lambda of, value, now, inside: {
        peer: number for peer, number in value.items() if number > of.number - of._current
    },
}
"""How states are made equal that differ in nothing that matters. Numbers that go from peer to peer, of Polls and of
what runs through tunnels, are set back by the fleet as a whole (draft.py)."""
_Plan: TypeAlias = tuple[Callable[[Any, float, bool], Value], Callable[[Any, Value], None]]
_PLAIN: Final = frozenset({type(None), bool, int, str, bytes})
_TIMES: Final = {beats: ("@", max(beats * BEAT_S, -HORIZON_S)) for beats in range(-40, 41)}
_key: Final = itemgetter(0)
_CALLABLES: Final = (FunctionType, MethodType, BuiltinFunctionType)


class _Holder(Protocol):
    @property
    def node(self) -> Node: ...


class Canon:
    """One machine, whose states are taken and put back.

    Args:
        root: what holds the machine. Whatever has callables, or is bound by one, is taken to be the same object in
            all states.
    """

    def __init__(self, root: _Holder) -> None:
        self._root = root
        self._plans: dict[type, _Plan] = {}
        self._fixed: dict[type, object] = {}
        self._bound: set[int] = set()
        self._pool: dict[Value, Value] = {}
        self._seen: dict[int, int] = {}
        self._objects: list[object] = []
        self._discover(root, set())
        self._fixed[type(root)] = root

    # -- what there is -----------------------------------------------------------------------------------------

    def _discover(self, value: object, met: set[int]) -> None:
        if id(value) in met or isinstance(value, type):
            return
        met.add(id(value))
        if isinstance(value, MethodType):
            self._fix(value.__self__)
            self._discover(value.__self__, met)
        elif isinstance(value, BuiltinFunctionType):
            self._bound.add(id(value.__self__))
        elif isinstance(value, FunctionType):
            for cell in value.__closure__ or ():
                if _is_instance(cell.cell_contents):
                    self._fix(cell.cell_contents)
                self._discover(cell.cell_contents, met)
        elif isinstance(value, dict):
            for each in value.values():
                self._discover(each, met)
        elif isinstance(value, list | tuple | set | frozenset | deque):
            for each in value:
                self._discover(each, met)
        elif _is_instance(value):
            attributes = [getattr(value, name) for name in _attributes(value)]
            if any(isinstance(each, (*_CALLABLES, Limits)) for each in attributes):
                self._fix(value)
            for each in attributes:
                self._discover(each, met)

    def _fix(self, value: object) -> None:
        if self._fixed.setdefault(type(value), value) is not value:
            raise ProtocolBug(f"two of {type(value).__name__} in one machine, which both have callables")

    def _plan_of(self, value: object) -> _Plan:
        """How to take, and to put back, what is of its class: written out, since most of the time goes there."""
        kind = type(value)
        names = [
            name for name in _attributes(value) if kind not in self._fixed or not self._is_static(getattr(value, name))
        ]
        known: dict[str, Any] = {"plain": _PLAIN, "kind": kind, "set_": object.__setattr__, "put": self._put,
                                 "take": self._take}  # fmt: skip
        taking, putting = ["def taking(of, now, inside):", " return ("], ["def putting(made, value):", " pass"]
        taking.append("  kind,")
        frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
        for number, name in enumerate(names, start=1):
            rule = next((rule for (of, at), rule in _RULES.items() if at == name and issubclass(kind, of)), None)
            known[f"rule{number}"] = rule
            found = f"of.{name}" if rule is None else f"rule{number}(of, of.{name}, now, inside)"
            taking.append(f"  v if type(v := {found}) in plain else take(v),")
            given = f"v if type(v := value[{number}]) is not tuple else put(v)"
            putting.append(f" set_(made, {name!r}, {given})" if frozen else f" made.{name} = {given}")
        taking.append(" )")
        exec("\n".join((*taking, *putting)), known)  # of names of attributes only
        plan = self._plans[kind] = known["taking"], known["putting"]
        return plan

    def _is_static(self, value: object) -> bool:
        if isinstance(value, dict) and value:
            return all(isinstance(each, _CALLABLES) for each in value.values())
        return isinstance(value, (*_CALLABLES, Limits)) or id(value) in self._bound

    # -- taking ------------------------------------------------------------------------------------------------

    def take(self, now: float) -> Value:
        """The state at `now`."""
        self._seen.clear()
        self._objects.clear()
        self._now, self._inside = now, self._root.node.view is not None
        return self._take(self._root)

    def _take(self, value: Any) -> Value:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is float:
            return self._time(value) if _TIMES_FROM <= value < inf else value
        if kind is tuple:
            return ("t", *map(self._take, value)) if value else ()
        if kind is dict or kind is OrderedDict:
            return self._dict(value)
        if isinstance(value, _THEMSELVES):
            return value
        if isinstance(value, msgspec.Struct):
            return self._pool.setdefault(value, value)
        if kind in (set, frozenset):
            return ("s" if kind is set else "f", *sorted(map(self._take, value)))
        if kind is deque:
            return ("q", value.maxlen, *map(self._take, value))
        if kind is list:
            return ("l", *map(self._take, value))
        if kind in _MEASURED:
            return "m", kind
        if kind is slice:
            return "-", value.start, value.stop
        number = self._seen.get(id(value))
        if number is not None:
            return "=", number
        self._seen[id(value)] = len(self._seen)
        self._objects.append(value)  # or its id might be another's before this is over
        if kind is np.ndarray:
            return "a", value.dtype.str, value.tobytes(), value.flags.writeable
        if kind is bytearray:
            return "b", bytes(value)
        plan = self._plans.get(kind)
        if plan is None:
            if not _is_instance(value):
                raise ProtocolBug(f"a machine's state can't hold a {kind.__name__}")
            plan = self._plan_of(value)
        whole = plan[0](value, self._now, self._inside)
        return self._pool.setdefault(whole, whole)

    def _time(self, value: float) -> Value:
        beats = ceil((value - self._now) / BEAT_S - 1e-6)
        return _TIMES.get(beats) or ("@", max(beats * BEAT_S, -HORIZON_S))

    def _dict(self, value: dict[Any, Any]) -> Value:
        kind = "d" if type(value) is dict else "o"
        if not value:
            return (kind,)
        take = self._take
        if len(value) == 1:
            items: Iterable[tuple[Any, Any]] = value.items()
        else:
            try:
                items = sorted(value.items(), key=_key)
            except TypeError:
                items = value.items()
        return (kind, *[(key if type(key) is str else take(key), take(each)) for key, each in items])

    # -- putting back --------------------------------------------------------------------------------------------

    def put(self, state: Value) -> None:
        """Be in a state that was taken, of this machine or of another one of its kind. The clock shows NOW."""
        self._objects.clear()
        self._put(state)

    def _put(self, value: Value) -> Any:
        if type(value) is not tuple:
            return value
        if not value:
            return ()
        kind = value[0]
        if type(kind) is type:
            return self._object(kind, value)
        if kind == "@":
            return NOW + value[1]
        if kind == "=":
            return self._objects[value[1]]
        if kind == "m":
            return value[1]()
        if kind == "-":
            return slice(value[1], value[2])
        if kind == "a":
            array = np.frombuffer(value[2], dtype=value[1]).copy()
            array.flags.writeable = value[3]
            self._objects.append(array)
            return array
        if kind == "b":
            buffer = bytearray(value[1])
            self._objects.append(buffer)
            return buffer
        if kind == "q":
            return deque(map(self._put, value[2:]), maxlen=value[1])
        if kind in "do":
            put = self._put
            items = [(put(key) if type(key) is tuple else key, put(each) if type(each) is tuple else each)
                     for key, each in value[1:]]  # fmt: skip
            return dict(items) if kind == "d" else OrderedDict(items)
        make = {"t": tuple, "l": list, "s": set, "f": frozenset}[kind]
        return make(map(self._put, value[1:]))

    def _object(self, kind: type, value: Value) -> object:
        fixed = self._fixed.get(kind)
        made: object = fixed if fixed is not None else object.__new__(kind)
        self._objects.append(made)
        self._plans[kind][1](made, value)
        return made


def _is_instance(value: object) -> bool:
    """Whether it is an object of a class with attributes of its own that may change."""
    if isinstance(value, (msgspec.Struct, np.ndarray, Limits, memoryview, type, *_THEMSELVES)):
        return False
    return hasattr(value, "__dict__") or hasattr(type(value), "__slots__")


def _attributes(value: object) -> list[str]:
    slots = [name for kind in type(value).__mro__[::-1] for name in getattr(kind, "__slots__", ())]
    return slots + sorted(getattr(value, "__dict__", ()))
