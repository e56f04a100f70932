"""What the tests of who is in and who is out have in common: peers that are in no view, and what they say."""

from __future__ import annotations

from transcript import Machine, letter_to, member, view

from edgepeer.ids import Generation
from edgepeer.protocol import events as ev
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr

__all__ = ["answers", "calls", "outside", "restarted", "retained", "views"]


def outside(name: str, *present: str, at: float = 0.0, answer: str | None = None) -> Machine:
    """A peer that has heard all that MQTT retains: these presences. They answer, or only those in `answer`."""
    machine = Machine(name)
    machine.others = set(present if answer is None else answer)
    for other in present:
        machine.hear(ev.PresenceSeen(member(other)), at)
    machine.hear(ev.ControlSynced(), at)
    return machine


def views(said: list[str]) -> list[str]:
    return [line for line in said if "view" in line and "<-" not in line]


def calls(machine: Machine, source: str, *, life: int = 1, world: View | None = None, known: int = 0) -> list[str]:
    """A peer calls, in that life, and in that view or in none; it has heard of a generation of that number."""
    call = fr.Call(
        incarnation=life,
        generation=world.generation if world is not None else None,
        epoch=world.stamp if world is not None else 0,
        known=Generation(known) if known else None,
    )
    return machine.hear(letter_to(machine.node.id, source, call))


def answers(machine: Machine, source: str, *, life: int = 1) -> list[str]:
    """A peer in no view answers what it was asked just now, in that life."""
    return machine.hear(letter_to(machine.node.id, source, fr.Here(incarnation=life, echo=machine.now)))


def retained(*names: str) -> View:
    """A view of that generation, as MQTT may retain it for ever."""
    return view(57, "".join(names))


def restarted(machine: Machine, names: str, at: float) -> list[str]:
    """These members start anew, and say so when they are asked."""
    for name in names:
        machine.hear(ev.PresenceSeen(member(name, 2)), at)
    return [line for name in names for line in answers(machine, name, life=2)]
