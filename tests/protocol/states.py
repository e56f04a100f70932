"""What the tests of the state of a run have in common: it comes, and is put to use."""

from __future__ import annotations

from transcript import Machine, view

from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr

__all__ = ["OVER_S", "RUN", "at_seven", "put_to_use", "state"]

RUN = view(3, "abcde", run="r", first_round=5)
OVER_S = Limits().anew_s + 5.0
"""In which a run is over of which nobody has the state, in a fleet of few."""


def state(machine: Machine, peer: str, data: bytes, *, number: int, offset: int = 0, total: int = 0) -> list[str]:
    frame = fr.State(run="r", round=number, offset=offset, total=total or len(data))
    return machine.frame(peer, frame, data)


def at_seven(name: str, world: View) -> Machine:
    """A peer that has the state after round 7, from a."""
    machine = Machine(name).join(world)
    machine.level("a", committed=7)
    state(machine, "a", b"seven", number=7)
    machine.hear(ev.Adopted("r", 7))
    return machine


def put_to_use(machine: Machine) -> list[str]:
    """The state that has just come."""
    came = next(effect for effect in machine.effects if isinstance(effect, fx.StateReceived))
    return machine.hear(ev.Adopted(came.run, came.round, came.of, came.life))
