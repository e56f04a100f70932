"""Ways to divide a network, by name: "codenet:m=5,n=4,t=1".

none:m=5,n=4                  blocks, no protection                           m n nodes
codenet:m=5,n=4,t=1           t wrong lines a step are corrected              m n + 2t(m + n)
polydot:m=2,n=2,d=1           1 wrong node a step, or errors=, erasures=      nodes=, by default as few as will do
replicate:m=5,n=4,copies=3    copies are compared; three vote                 copies m n
abft:m=5,n=4                  each node checks itself                         m n
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from edgepeer.coding.matrix.decode import Guarantee
from edgepeer.coding.matrix.polydot import thresholds
from edgepeer.errors import ConfigError
from edgepeer.training.split.abft import Checksums
from edgepeer.training.split.codenet import CodeNet
from edgepeer.training.split.polydot import PolyDotSplit
from edgepeer.training.split.replicate import Replicate
from edgepeer.training.split.strategy import Split
from edgepeer.training.split.uncoded import Uncoded

__all__ = ["parse_split"]

_NUMBERS: Final[dict[str, dict[str, int]]] = {
    "none": {"m": 5, "n": 4},
    "codenet": {"m": 5, "n": 4, "t": 1},
    "polydot": {"m": 2, "n": 2, "d": 1, "errors": 1, "erasures": 0, "nodes": 0},
    "replicate": {"m": 5, "n": 4, "copies": 3},
    "abft": {"m": 5, "n": 4},
}
"""By name, its numbers and what they are unless stated."""
_GUARANTEED: Final = ("codenet", "polydot")
"""Those that can correct more errors which don't conspire."""
_MORE: Final = 8
"""So many numbers of nodes are tried where none is stated."""
_MOST_NODES: Final = 4096
"""Of a split: as many as a view has members."""
_MOST_OF_POLYDOT: Final = 64
"""To see whether the digits do is the work of minutes beyond that, on every device ..."""
_MOST_LINES: Final = 80
"""... and so it is for a codenet's lines of nodes in one direction, with as many blocks and twice t."""


def parse_split(text: str, dtype: np.dtype[Any], guarantee: Guarantee = "adversarial") -> Split:
    """The split that a text names; what it leaves out is as in the list above.

    Raises:
        ConfigError: it names none, or one that can't be had.
    """
    kind, colon, rest = text.partition(":")
    if kind not in _NUMBERS:
        raise ConfigError(f"split = {text!r}: there is no split {kind!r}, only {', '.join(_NUMBERS)}")
    if guarantee not in ("adversarial", "generic"):
        raise ConfigError(f"guarantee = {guarantee!r}: must be adversarial or generic")
    if guarantee == "generic" and kind not in _GUARANTEED:
        raise ConfigError(f"guarantee = generic: is nothing to split {kind}; it is for {' and '.join(_GUARANTEED)}")
    numbers, given = dict(_NUMBERS[kind]), set[str]()
    for part in rest.split(",") if colon else ():
        key, _, value = part.partition("=")
        if key in given:
            raise ConfigError(f"split = {text!r}: {key} is given twice")
        given.add(key)
        if key not in numbers:
            raise ConfigError(f"split = {text!r}: {kind} takes {', '.join(numbers)}, not {key!r}")
        if not value.isdecimal() or int(value) > 1000:
            raise ConfigError(f"split = {text!r}: {key} must be a whole number up to 1000, not {value!r}")
        numbers[key] = int(value)
    m, n = numbers["m"], numbers["n"]
    most = _MOST_OF_POLYDOT if kind == "polydot" else _MOST_NODES
    if (nodes := _nodes(kind, numbers, guarantee)) > most:
        raise ConfigError(
            f"split = {text!r}: takes {nodes} nodes, and {most} are the most; take fewer blocks{_or(kind)}"
        )
    if kind == "codenet" and (lines := max(m, n) + 2 * numbers["t"]) > _MOST_LINES:
        raise ConfigError(
            f"split = {text!r}: has {lines} lines of nodes, and {_MOST_LINES} are the most; "
            f"take fewer blocks{_or(kind)}"
        )
    match kind:
        case "codenet":
            return CodeNet(m, n, numbers["t"], dtype, guarantee)
        case "polydot":
            d, errors, erasures = numbers["d"], numbers["errors"], numbers["erasures"]
            for more in range(0 if numbers["nodes"] else _MORE):
                try:
                    return PolyDotSplit(
                        m, n, nodes + more, dtype, d=d, errors=errors, erasures=erasures, guarantee=guarantee
                    )
                except ConfigError:  # too few digits
                    continue
            return PolyDotSplit(m, n, nodes, dtype, d=d, errors=errors, erasures=erasures, guarantee=guarantee)
        case "replicate":
            return Replicate(m, n, numbers["copies"], dtype)
        case "abft":
            return Checksums(m, n, dtype)
    return Uncoded(m, n, dtype)


def _nodes(kind: str, numbers: dict[str, int], guarantee: Guarantee) -> int:
    """How many there will be; of polydot, if none are stated, at least."""
    m, n = numbers["m"], numbers["n"]
    match kind:
        case "codenet":
            return m * n + 2 * numbers["t"] * (m + n)
        case "polydot":
            d, errors, erasures = numbers["d"], numbers["errors"], numbers["erasures"]
            return numbers["nodes"] or _fewest(m, n, d, errors, erasures, guarantee)
        case "replicate":
            return m * n * numbers["copies"]
    return m * n


def _or(kind: str) -> str:
    """What else makes a split smaller."""
    others = {"codenet": "a smaller t", "polydot": "fewer errors and erasures", "replicate": "fewer copies"}
    return f", or {others[kind]}" if kind in others else ""


def _fewest(m: int, n: int, d: int, errors: int, erasures: int, guarantee: Guarantee) -> int:
    """Nodes at real points, by equations; digits may take more. At pairs, of which fewer would do, as many correct
    more."""
    if min(m, n, d) < 1:
        return 1  # refused there
    more = 2 * errors + erasures if guarantee == "adversarial" else errors + erasures + 1
    return max(thresholds(m, n, d)) + more
