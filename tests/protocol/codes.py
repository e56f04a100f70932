"""Machines whose owners want coded rounds, and what they say and are told of these. The tree: a over bc, b over de."""

from __future__ import annotations

from typing import Any

from transcript import Machine, vector, view

from edgepeer.coding.scheme import CodingScheme, parse_scheme
from edgepeer.ids import PeerId
from edgepeer.protocol import events as ev
from edgepeer.topology.view import View

__all__ = ["FIVE", "PAIRS", "WHOLE", "coded", "encoded", "progress"]

FIVE = view(1, "abcde", slots="abcde")
PAIRS = parse_scheme("partial:l=1,replication=2")  # slot j computes chunk j first, then another one's
WHOLE = parse_scheme("cyclic:s=1")  # any four of five who have computed both of their chunks


def coded(name: str, world: View = FIVE, code: CodingScheme = PAIRS, *, up: str | None = None, **how: Any) -> Machine:
    """A machine whose owner wants rounds to be coded. `up`: the neighbours that are level."""
    machine = Machine(name, **how)
    machine.hear(ev.CodeWanted(code))
    return machine.join(world, up="".join(world.neighbours(PeerId(name))) if up is None else up)


def progress(
    machine: Machine, child: str, who: str, done: str, *, code: CodingScheme | None = PAIRS, **how: Any
) -> list[str]:
    return machine.progress(child, who, done, code.name if code is not None else "", **how)


def encoded(machine: Machine, *values: float, number: int = 1) -> list[str]:
    """What the owner answers when it is asked to encode."""
    assert machine.node.view is not None
    return machine.hear(ev.Encoded(machine.node.view.stamp, number, vector(*values)))
