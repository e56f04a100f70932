"""Soft errors on purpose, and a record of them.

Error Model 1 of Dutta et al. ("CodeNet", §II): a node errs in O1 (forward products), O2 (backward products) and O3
(updates), and nowhere else. Error Model 2: in any step, encoding, decoding and activation included. Both come with a
probability per node and step here, or at a stated iteration.

place        what is struck
stored       the node's block, after an update: O3
product      what it is about to add to its line: O1 forward, O2 backward
encoding     what its block is multiplied by, or updated with
decoded      the result that it has read off the sum, for its own use
activation   f(s), or c * g(x), for its own use
sum          its vector on the way, all lines of it: as an inner peer would spoil a partial sum
verdict      its list of nodes that it holds to be wrong

kind         what happens there
sparse       one to three numbers are off by noise of the size of the largest
garbage      all numbers become noise
flip         one bit of one number changes
nan          one number becomes NaN

A verdict has no numbers: one node more, or one less, is on the list.

An error matters if it changes a number by a hundredth of the largest of its array, or what it makes of a stored block
by as much. Checks see far less (1e-4 in a product of float32, 1e-3 in a stored weight after thousands of updates,
`coding.matrix.tolerance`); so of those that matter none may stay unseen. Of smaller ones, such as flips of low bits,
some do, which is what the tolerance of rounding means.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import ConfigError

__all__ = [
    "MATTERS",
    "ErrorInjector",
    "Injected",
    "Kind",
    "Place",
    "PlannedError",
    "SoftErrors",
    "Struck",
    "Where",
    "parse_flip",
    "parse_soft_errors",
]

Place = Literal["stored", "product", "encoding", "decoded", "activation", "verdict", "sum"]
Kind = Literal["sparse", "garbage", "flip", "nan"]
Effected = Literal["product", "stored", "own", "sum"]
"""What an error gets into: one product; weights or velocities; what the node alone goes on from; a sum."""

MATTERS: Final = 0.01
"""Errors of this size matter."""
_PLACES: Final[tuple[str, ...]] = get_args(Place)
_KINDS: Final[tuple[str, ...]] = get_args(Kind)
_STEPS: Final = ("O1", "O2", "O3", "encoding", "decoded", "activation", "verdict", "sum")


@dataclass(frozen=True, slots=True)
class Where:
    """One chance of an error."""

    iteration: int
    node: int
    step: str
    """"forward 0", "backward 1", "update 0"."""
    place: str

    @property
    def name(self) -> str:
        """O1, O2, O3; or the place, if it is none of those."""
        if self.place == "product":
            return "O1" if self.step.startswith("forward") else "O2"
        return "O3" if self.place == "stored" else self.place

    @property
    def layer(self) -> int:
        """Of a step or an update."""
        return int(self.step.rpartition(" ")[2])

    @property
    def effected(self) -> Effected:
        """What shows an error differs by that: a line; a scrub; a digest; a checksum."""
        if self.place == "sum":
            return "sum"
        if self.place in ("decoded", "activation", "verdict"):
            return "own"
        return "stored" if self.step.startswith("update") else "product"


@dataclass(frozen=True, slots=True)
class SoftErrors:
    """Errors by chance.

    Raises:
        ConfigError: p is no probability, or there is no such step or kind.
    """

    p: float
    """By node and step, independently."""
    steps: frozenset[str] = frozenset(("O1", "O2", "O3"))
    """O1, O2, O3: Error Model 1. With encoding, decoded, activation, verdict: Model 2."""
    kind: Kind = "sparse"

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ConfigError(f"soft errors: p = {self.p} is no probability; it must be between 0 and 1")
        if not self.steps or not self.steps <= set(_STEPS):
            raise ConfigError(
                f"soft errors: steps are {'+'.join(_STEPS)}, not {'+'.join(sorted(self.steps)) or 'none'}"
            )
        if self.kind not in _KINDS:
            raise ConfigError(f"soft errors: kind is {', '.join(_KINDS)}, not {self.kind!r}")


@dataclass(frozen=True, slots=True)
class PlannedError:
    """One error, at a stated time. It happens once, even if the iteration is done again."""

    iteration: int
    node: int
    place: Place
    step: str = ""
    """As in `Where`. Empty: the first chance in that iteration."""
    kind: Kind = "sparse"

    def __post_init__(self) -> None:
        if self.place not in _PLACES or self.kind not in _KINDS or self.iteration < 0 or self.node < 0:
            raise ConfigError(
                f"fault {self.place} {self.kind} at node {self.node}, iteration {self.iteration}: a place is "
                f"{', '.join(_PLACES)}, a kind {', '.join(_KINDS)}, and numbers are 0 or more"
            )


@dataclass(slots=True)
class Injected:
    """An error that was made, and what became of it."""

    where: Where
    kind: Kind
    size: float
    """By how much it has changed something, as a part of the largest number there."""
    fate: Literal["unseen", "found", "restored", "unchecked"] = "unseen"
    """found: what it was in was named as wrong, by the check that looks at that. restored: training went back to before
    it, or what it was in has been given up. unchecked: it was used when so much was missing that nobody could see it;
    what finds its node later finds no more what it has done, so only a restore undoes it."""

    @property
    def undetected(self) -> bool:
        """Whether it matters, and nobody has seen what it has done."""
        return self.fate in ("unseen", "unchecked") and self.size >= MATTERS


class Struck(NamedTuple):
    """How many errors there were, and what became of them."""

    injected: int
    found: int
    restored: int
    """Training went back to before them, or what they were in has been given up."""
    harmless: int
    """Not found, and too small to matter."""
    undetected: int
    """Not found, or when they had been used unchecked, though they matter."""


class ErrorInjector:
    """Makes errors where cells ask whether there is one, and remembers."""

    def __init__(self, chance: SoftErrors | None = None, faults: Sequence[PlannedError] = (), seed: int = 0) -> None:
        self._chance, self._planned = chance, list(faults)
        self._soon: list[tuple[Place, Kind]] = []
        self._rng = np.random.default_rng(seed)
        self.record: list[Injected] = []
        self._open: list[Injected] = []
        """Of which nothing is known yet, or which were used unchecked, and may yet be undone."""

    @property
    def idle(self) -> bool:
        """Whether it will not do anything any more."""
        return self._chance is None and not self.left

    @property
    def left(self) -> int:
        """Errors that are planned, and have not had their chance."""
        return len(self._planned) + len(self._soon)

    def soon(self, place: Place, kind: Kind) -> None:
        """Make one error more, at the next chance in such a place."""
        self._soon.append((place, kind))

    @property
    def struck(self) -> Struck:
        fates = Counter(each.fate for each in self.record)
        left, undetected = fates["unseen"] + fates["unchecked"], sum(each.undetected for each in self.record)
        return Struck(len(self.record), fates["found"], fates["restored"], left - undetected, undetected)

    def strike(
        self, where: Where, numbers: NDArray[Any], effect: Callable[[NDArray[Any]], float] | None = None
    ) -> None:
        """Changes the numbers in place, if it is their turn.

        Args:
            effect: how much a change of these numbers changes, as `strategy.Strike` has it.
        """
        for planned in self._planned:
            if (planned.iteration, planned.node, planned.place) == (where.iteration, where.node, where.place) and (
                planned.step in ("", where.step)
            ):
                self._planned.remove(planned)
                self._spoil(where, numbers, planned.kind, effect)
                return
        for place, kind in self._soon:
            if place == where.place:
                self._soon.remove((place, kind))
                self._spoil(where, numbers, kind, effect)
                return
        chance = self._chance
        if chance is not None and where.name in chance.steps and self._rng.random() < chance.p:
            self._spoil(where, numbers, chance.kind, effect)

    def found(self, nodes: Collection[int], effected: Effected, layer: int | None = None) -> None:
        """These nodes were named as wrong, in that; in one layer, or whichever."""
        self._close("found", _are(nodes, effected, layer))

    def unchecked(self, node: int, effected: Effected, layer: int | None = None) -> None:
        """What this node has of that was used, and nobody could look at it."""
        which = _are((node,), effected, layer)
        for each in self._open:
            if each.fate == "unseen" and which(each.where):
                each.fate = "unchecked"

    def found_on_the_way(self, iteration: int, step: str) -> None:
        """In this round lines were wrong, damaged or left out: that is what becomes of spoiled sums."""
        self._close("found", lambda where: where == Where(iteration, where.node, step, "sum"))

    def restored(self, iteration: int) -> None:
        """Training went back to before this iteration."""
        self._close("restored", lambda where: where.iteration >= iteration)

    def given_up(self, node: int, since: int = 0) -> None:
        """What this node had is gone; of its errors, as `record` has them, those from this one on."""
        for each in self.record[since:]:
            if each.fate == "unseen" and each.where.node == node:
                each.fate = "restored"
        self._sort_out()

    def undone(self) -> None:
        """Training goes on from where others are, who have used nothing unchecked: so what was used so here is gone."""
        for each in self._open:
            if each.fate == "unchecked":
                each.fate = "restored"
        self._sort_out()

    def made(self, where: Where, kind: Kind, size: float) -> None:
        """Note an error."""
        self._open.append(Injected(where, kind, size))
        self.record.append(self._open[-1])

    def _close(self, fate: Literal["found", "restored"], which: Callable[[Where], bool]) -> None:
        for each in self._open:
            if which(each.where) and (each.fate == "unseen" or fate == "restored"):
                each.fate = fate
        self._sort_out()

    def _sort_out(self) -> None:
        self._open = [each for each in self._open if each.fate in ("unseen", "unchecked")]

    def _spoil(
        self, where: Where, numbers: NDArray[Any], kind: Kind, effect: Callable[[NDArray[Any]], float] | None
    ) -> None:
        rng = self._rng
        if numbers.dtype == np.bool_:
            numbers[rng.integers(len(numbers))] ^= True
            self.made(where, kind, math.inf)
            return
        before = numbers.copy()
        parts = numbers.view(numbers.real.dtype) if numbers.dtype.kind == "c" else numbers
        flat = parts.reshape(-1)
        if not np.shares_memory(flat, numbers):
            raise ValueError("errors are made in place: these numbers aren't contiguous")
        sizes = np.abs(flat[np.isfinite(flat)])
        scale = float(sizes.max(initial=0.0)) or 1.0
        at = rng.integers(len(flat), size=rng.integers(1, 4))
        with np.errstate(over="ignore", invalid="ignore"):
            match kind:
                case "sparse":
                    flat[at] += (rng.standard_normal(len(at)) * scale).astype(flat.dtype)
                case "garbage":
                    flat[:] = rng.standard_normal(len(flat)) * scale
                case "flip":
                    word = np.dtype(f"u{flat.itemsize}")
                    flat.view(word)[at[0]] ^= word.type(1 << int(rng.integers(8 * flat.itemsize)))
                case "nan":
                    flat[at[0]] = np.nan
            change = numbers - before
            size = float(np.abs(change).max()) / scale
            if effect is not None and math.isfinite(size):
                size = effect(change)
        self.made(where, kind, size if math.isfinite(size) else math.inf)


def _are(nodes: Collection[int], effected: Effected, layer: int | None) -> Callable[[Where], bool]:
    """Errors of these nodes in that."""

    def are(where: Where) -> bool:
        return where.node in nodes and where.effected == effected and layer in (None, where.layer)

    return are


def parse_flip(text: str) -> PlannedError:
    """One error by name: "3@50" is node 3 in iteration 50; "3@50:kind=nan,place=product,step=forward 0". A flip of a
    bit of its stored weights, unless another kind or place is stated.

    Raises:
        ConfigError: the text names none.
    """
    at, _, rest = text.partition(":")
    node, _, iteration = at.partition("@")
    named, given = {"kind": "flip", "place": "stored", "step": ""}, set[str]()
    for part in rest.split(",") if rest else ():
        key, _, value = part.partition("=")
        if key.strip() not in named:
            raise ConfigError(f"flip {text!r}: there are {', '.join(named)}, not {key!r}")
        if key.strip() in given:
            raise ConfigError(f"flip {text!r}: {key.strip()} is given twice")
        given.add(key.strip())
        named[key.strip()] = value.strip()
    if not (node.isdecimal() and iteration.isdecimal()):
        raise ConfigError(f"flip {text!r}: must be NODE@ITERATION, such as 3@50 or 3@50:kind=nan,place=product")
    if named["step"] and not re.fullmatch(r"(forward|backward|update) \d+", named["step"]):
        raise ConfigError(f'flip {text!r}: a step is forward, backward or update with a layer, such as "forward 0"')
    return PlannedError(int(iteration), int(node), **named)  # type: ignore[arg-type] # looked at there


def parse_soft_errors(text: str) -> SoftErrors:
    """Errors by name: "p=3e-4,steps=O1+O2+O3,kind=sparse"; what is left out is as here.

    Raises:
        ConfigError: the text names none.
    """
    p, steps, kind = 3e-4, "O1+O2+O3", "sparse"
    given = set[str]()
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key.strip() in given:
            raise ConfigError(f"soft errors {text!r}: {key.strip()} is given twice")
        given.add(key.strip())
        match key.strip():
            case "p":
                try:
                    p = float(value)
                except ValueError:
                    raise ConfigError(f"soft errors {text!r}: p must be a number from 0 to 1, not {value!r}") from None
            case "steps":
                steps = value
            case "kind":
                kind = value
            case _:
                raise ConfigError(f"soft errors {text!r}: there are p, steps and kind, not {key!r}")
    return SoftErrors(p, frozenset(steps.split("+")), kind)  # type: ignore[arg-type] # looked at there
