"""Machines that hold the result of a round, and neighbours that do. The tree: a over bc, b over de."""

from __future__ import annotations

from transcript import Machine, vector, view

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.streams import digest_of
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr

__all__ = [
    "FIVE",
    "GENERATION",
    "aborts",
    "brings",
    "ended",
    "full",
    "holder",
    "meets",
    "refuses",
    "summed_up",
]

FIVE = view(1, "abcde")
GENERATION = Generation()


def full(name: str, world: View = FIVE, committed: int = 0) -> Machine:
    """A machine with level links to its neighbours."""
    machine = Machine(name).join(world)
    for peer in world.neighbours(PeerId(name)):
        machine.level(peer, committed)
    return machine


def summed_up() -> Machine:
    """The root, which has all contributions and has sent the sum down."""
    a = full("a")
    a.contribute(1)
    a.reduce("c", vector(1), "c")
    assert a.reduce("b", vector(3), "bde") == ["b <- result 1 [0:] 5 complete", "c <- result 1 [0:] 5 complete"]
    return a


def ended(said: list[str]) -> list[str]:
    return [line for line in said if line.startswith("round")]


def holder(name: str = "b") -> Machine:
    """A member that holds the result of view 1 when view 1 ends."""
    machine = full(name)
    machine.contribute(1)
    machine.result("a", vector(5), "abcde", final=False)
    return machine


def meets(machine: Machine, world: View, levels: str) -> list[str]:
    """A new view, with level links to these neighbours. What it says once they are there."""
    said = machine.learn(world)
    for peer in levels:
        machine.hear(ev.LinkUp(PeerId(peer), 1))
        said += machine.sync(peer, 0)
    return [line for line in said if "sync" not in line and "dial" not in line]


def brings(
    machine: Machine,
    child: str,
    total: float,
    *,
    held_in: View = FIVE,
    made: View = FIVE,
    digest: float = 0.0,
    generation: Generation = GENERATION,
) -> list[str]:
    """A child sends up what it holds, whose sum was made in one view, and which was put forward last in another."""
    machine.view_frame(child, made)
    commit = fr.Commit(
        decided_in=made.stamp,
        held_in=held_in.stamp,
        generation=generation,
        contributors=fr.pack_set(made.everyone),
        weight=float(made.size),
        exact=True,
        digest=digest_of(vector(digest or total)),
        final=False,
    )
    assert machine.node.view is not None
    epoch = machine.node.view.stamp
    frame = fr.Result(epoch=epoch, round=1, offset=0, total=1, dtype="<f4", commit=commit, up=True)
    return machine.frame(child, frame, vector(total))


def refuses(machine: Machine, child: str) -> list[str]:
    """A child can't bring what the others do, and holds nothing."""
    assert machine.node.view is not None
    epoch = machine.node.view.stamp
    return machine.frame(child, fr.Abort(epoch=epoch, round=1, cause="mismatch", reason="so", over=False, clear=True))


def aborts(machine: Machine) -> list[fr.Abort]:
    """What it has just said of a round that can't be completed."""
    return [each.frame for each in machine.effects if isinstance(each, fx.Send) and isinstance(each.frame, fr.Abort)]
