"""A machine's state as a value: two machines in the same state have equal ones, and a machine can be put back into one.

The object graph of a machine is walked, whatever its classes are: attributes and slots, dicts, sets, deques, arrays,
structs. So a new field of the protocol is part of the state without a word here. What is left out is listed below.

    what is found               | its value
    ----------------------------+--------------------------------------------------------------------------------
    a time                      | how far from now it is, on a grid, and no further back than HORIZON_S
    a dict or a set with keys   | in the order of the keys
    that can be ordered         |
    memory that is not written  | nothing: it is allocated anew
    yet                         |
    what is met a second time   | a reference to the first
    callables                   | nothing: they belong to the machine and stay

Times are told from other numbers by their size: each machine has a clock of its own, which stands at NOW whenever an
event comes. A machine that is put back is really in that state: what is rounded is rounded for it, too.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from math import ceil, inf
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from edgepeer.errors import ProtocolBug
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import Link
from edgepeer.protocol.round import Round
from edgepeer.protocol.segments import RateEstimate
from edgepeer.protocol.streams import Prefix
from edgepeer.protocol.timing import Pace, RoundTrip
from edgepeer.protocol.vitals import Vitals

__all__ = ["BEAT_S", "HORIZON_S", "NOW", "Canon", "Value"]

Value: TypeAlias = Any
"""Nested tuples of immutable values: hashable, and equal if the states are."""

NOW: Final = float(1 << 20)
"""What every machine's clock shows when something happens to it."""
HORIZON_S: Final = 5.25
"""What is longer ago than this is so long ago ..."""
_LINK_HORIZON_S: Final = 2.0
"""... and of a link. No limit of a machine that is explored is longer."""
BEAT_S: Final = 0.25
"""Times are multiples of this, and what is due in between is due then."""
_TIMES_FROM: Final = NOW / 2

_MEASURED: Final = (RoundTrip, RateEstimate)
"""With heartbeats of one fixed length, and silence shorter than any measured patience, nothing depends on these."""
_FORGOTTEN: Final[dict[tuple[type, str], tuple[Any, Callable[[Any], bool]]]] = {
    (Pace, "_period_s"): (None, lambda pace: True),
    (Pace, "_ended_at"): (None, lambda pace: True),
    (Link, "closed_at"): (-inf, lambda link: True),
    (Link, "echo_at"): (0.0, lambda link: not link.echo),
    (Vitals, "_say_at"): (inf, lambda vitals: True),
    (Round, "spare"): (None, lambda rd: True),
    (Round, "partial"): (None, lambda rd: rd.reduced < 0 and all(s.added < 0 for s in rd.streams.values())),
    (Prefix, "buffer"): (None, lambda prefix: prefix.received < 0),
}
"""What stands for an attribute, and when: of what is measured as well, of what only people are told, and of memory
whose content means nothing yet."""
_Attribute: TypeAlias = tuple[str, tuple[Any, Callable[[Any], bool]] | None]
_PLAIN: Final = frozenset({type(None), bool, int, str, bytes})
_CALLABLES: Final = (FunctionType, MethodType, BuiltinFunctionType)


class Canon:
    """One machine, whose states are taken and put back.

    Args:
        root: what holds the machine. Whatever has callables, or is bound by one, is taken to be the same object in
            all states.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._names: dict[type, tuple[_Attribute, ...]] = {}
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

    def _names_of(self, value: object) -> tuple[_Attribute, ...]:
        kind = type(value)
        found = self._names.get(kind)
        if found is None:
            found = self._names[kind] = tuple(
                (
                    name,
                    next((rule for (of, at), rule in _FORGOTTEN.items() if at == name and issubclass(kind, of)), None),
                )
                for name in _attributes(value)
                if kind not in self._fixed or not self._is_static(getattr(value, name))
            )
        return found

    def _is_static(self, value: object) -> bool:
        if isinstance(value, dict) and value:
            return all(isinstance(each, _CALLABLES) for each in value.values())
        return isinstance(value, (*_CALLABLES, Limits)) or id(value) in self._bound

    # -- taking ------------------------------------------------------------------------------------------------

    def take(self, now: float) -> Value:
        """The state at `now`."""
        self._seen.clear()
        self._objects.clear()
        self._now, self._horizon = now, -HORIZON_S
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
        number = self._seen.get(id(value))
        if number is not None:
            return "=", number
        self._seen[id(value)] = len(self._seen)
        self._objects.append(value)  # or its id might be another's before this is over
        if kind is np.ndarray:
            return "a", value.dtype.str, value.tobytes(), value.flags.writeable
        if kind is bytearray:
            return "b", bytes(value)
        if not _is_instance(value):
            raise ProtocolBug(f"a machine's state can't hold a {kind.__name__}")
        taken: list[Value] = [kind]
        horizon, self._horizon = self._horizon, -_LINK_HORIZON_S if kind is Link else self._horizon
        for name, rule in self._names.get(kind) or self._names_of(value):
            if rule is not None and rule[1](value):
                taken.append(rule[0])
                continue
            at = getattr(value, name)
            taken.append(at if type(at) in _PLAIN else self._take(at))
        self._horizon = horizon
        whole = tuple(taken)
        return self._pool.setdefault(whole, whole)

    def _time(self, value: float) -> Value:
        beats = ceil((value - self._now) / BEAT_S - 1e-6)
        return "@", max(beats * BEAT_S, self._horizon)

    def _dict(self, value: dict[Any, Any]) -> Value:
        try:
            items: Iterable[tuple[Any, Any]] = sorted(value.items(), key=lambda item: item[0])
        except TypeError:
            items = value.items()
        kind = "d" if type(value) is dict else "o"
        return (kind, *((self._take(key), self._take(each)) for key, each in items))

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
            items = [(self._put(key), self._put(each)) for key, each in value[1:]]
            return dict(items) if kind == "d" else OrderedDict(items)
        make = {"t": tuple, "l": list, "s": set, "f": frozenset}[kind]
        return make(map(self._put, value[1:]))

    def _object(self, kind: type, value: Value) -> object:
        fixed = self._fixed.get(kind)
        made: object = fixed if fixed is not None else object.__new__(kind)
        self._objects.append(made)
        setattr_ = object.__setattr__
        for (name, _), each in zip(self._names[kind], value[1:], strict=True):
            setattr_(made, name, self._put(each) if type(each) is tuple else each)
        return made


def _is_instance(value: object) -> bool:
    """Whether it is an object of a class with attributes of its own that may change."""
    if isinstance(value, msgspec.Struct | np.ndarray | Limits | memoryview | type):
        return False
    return hasattr(value, "__dict__") or hasattr(type(value), "__slots__")


def _attributes(value: object) -> list[str]:
    slots = [name for kind in type(value).__mro__[::-1] for name in getattr(kind, "__slots__", ())]
    return slots + sorted(getattr(value, "__dict__", ()))
