"""Codes by name: "partial:l=2,replication=3". The same name makes the same code on every machine.

none                            no code
first:s=1                       no code; all but s workers are enough, and the sum is approximate; s=0: all, or
                                those who are there at a deadline
cyclic:s=1                      cyclic repetition: exact without any s workers
fractional:s=1                  fractional repetition: exact without any s workers
coded-reduce:s=1                a code in each family of the tree: exact without any s children of each parent
graph:degree=4                  a random regular graph: approximate, by least squares, without any workers
partial:l=1,replication=2       what slow workers have done counts, too; vectors are l times shorter
        assignment=cyclic|pairs|graph
                                  of the chunks; in pairs, workers have each other's second; a graph is random, and
                                  regular
        order=optimal|cyclic      of the chunks at each worker
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edgepeer.coding.assignment import Assignment, cyclic_assignment, paired_assignment
from edgepeer.coding.code import GradientCode
from edgepeer.coding.cyclic import CyclicCode
from edgepeer.coding.first import FirstCode
from edgepeer.coding.fractional import FractionalCode
from edgepeer.coding.graphs import adjacency_assignment, expander
from edgepeer.coding.ordering import cyclic_order, optimal_order
from edgepeer.coding.partial import PartialCode
from edgepeer.coding.regular import RegularCode
from edgepeer.coding.uncoded import UncodedCode
from edgepeer.errors import ConfigError

__all__ = ["CodeSpec", "parse_code"]

_NUMBERS: Final[dict[str, dict[str, int]]] = {
    "none": {},
    "first": {"s": 1},
    "cyclic": {"s": 1},
    "fractional": {"s": 1},
    "coded-reduce": {"s": 1},
    "graph": {"degree": 4},
    "partial": {"l": 1, "replication": 2},
}
"""By code, its numbers and what they are unless stated."""
_LEAST: Final = {"first": 0}
"""By code, the least that its numbers may be; 1 for others."""
_WORDS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "partial": {"assignment": ("cyclic", "pairs", "graph"), "order": ("optimal", "cyclic")}
}
"""By code, what can be chosen; the first unless stated."""


@dataclass(frozen=True, slots=True)
class CodeSpec:
    """A code, but for the number of workers. `str()` gives its name, always the same for the same code."""

    kind: str
    numbers: tuple[tuple[str, int], ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    """Choices that are not the usual ones."""

    def __str__(self) -> str:
        values = ",".join(f"{key}={value}" for key, value in (*self.numbers, *self.words))
        return f"{self.kind}:{values}" if values else self.kind

    @property
    def blocks(self) -> int:
        """By how many times a worker's vector is shorter than the sum, however many workers there are."""
        return dict(self.numbers).get("l", 1)

    def build(self, workers: int, fanout: int, seed: int = 0) -> GradientCode:
        """The code for so many workers.

        Args:
            fanout: of the tree, on which coded-reduce lies.
            seed: of what is drawn at random: graphs.

        Raises:
            ConfigError: it can't be had for these, and why.
        """
        try:
            return self._build(workers, fanout, seed)
        except ConfigError as error:
            raise ConfigError(f"code {self} with {workers} workers: {error}") from None

    def _build(self, workers: int, fanout: int, seed: int) -> GradientCode:
        name, numbers = str(self), dict(self.numbers)
        if workers < 1:
            raise ConfigError("there must be one at least")
        match self.kind:
            case "first":
                return FirstCode(name, workers, numbers["s"])
            case "cyclic":
                return CyclicCode(name, workers, numbers["s"])
            case "fractional":
                return FractionalCode(name, workers, numbers["s"])
            case "coded-reduce":
                from edgepeer.coding.coded_reduce import CodedReduceCode

                return CodedReduceCode(name, workers, fanout, numbers["s"])
            case "graph":
                return RegularCode(name, workers, numbers["degree"], seed)
            case "partial":
                return PartialCode(name, self._partial(workers, numbers["replication"], seed), numbers["l"])
        return UncodedCode(name, workers)

    def _partial(self, workers: int, replication: int, seed: int) -> Assignment:
        words = dict(self.words)
        if words.get("assignment") == "pairs":
            if "order" in words:
                raise ConfigError("chunks assigned in pairs have an order of their own; leave order out")
            return paired_assignment(workers, replication)
        if words.get("assignment") == "graph":
            assignment = adjacency_assignment(expander(workers, replication, seed))
        else:
            assignment = cyclic_assignment(workers, replication)
        return cyclic_order(assignment) if words.get("order") == "cyclic" else optimal_order(assignment)


def parse_code(text: str) -> CodeSpec:
    """The code that a text names, such as "cyclic:s=1"; what it leaves out is as in the list above.

    Raises:
        ConfigError: it names none.
    """
    kind, colon, rest = text.partition(":")
    if kind not in _NUMBERS:
        raise ConfigError(f"code = {text!r}: there is no code {kind!r}, only {', '.join(_NUMBERS)}")
    numbers, words = dict(_NUMBERS[kind]), _WORDS.get(kind, {})
    chosen: dict[str, str] = {}
    given = set[str]()
    for part in rest.split(",") if colon else ():
        key, _, value = part.partition("=")
        if key in given:
            raise ConfigError(f"code = {text!r}: {key} is given twice")
        given.add(key)
        least = _LEAST.get(kind, 1)
        if key in numbers and value.isdecimal() and least <= int(value) <= 1_000_000:
            numbers[key] = int(value)
        elif key in numbers:
            raise ConfigError(f"code = {text!r}: {key} must be a whole number from {least} on, not {value!r}")
        elif key in words and value in words[key]:
            chosen[key] = value
        elif key in words:
            raise ConfigError(f"code = {text!r}: {key} must be {' or '.join(words[key])}, not {value!r}")
        else:
            takes = ", ".join([*numbers, *words]) or "nothing"
            raise ConfigError(f"code = {text!r}: {kind} takes {takes}, not {key!r}")
    unusual = tuple((key, chosen[key]) for key in words if chosen.get(key, words[key][0]) != words[key][0])
    return CodeSpec(kind, tuple(numbers.items()), unusual)
