"""What the tests of ways around have in common. The tree: a over bc, b over de, c over fg."""

from __future__ import annotations

from transcript import Machine, view

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.topology.view import View
from edgepeer.wire import codec
from edgepeer.wire import frames as fr

__all__ = ["SEVEN", "around", "carried", "knock", "lose", "number", "path", "says", "tunnelled", "via"]

SEVEN = view(1, "abcdefg")


def says(machine: Machine, peer: str, reaches: str, *, epoch: int = 1) -> list[str]:
    """A Ping of a peer that says with whom it is connected."""
    positions = fr.pack_set(sum(1 << SEVEN.position(PeerId(name)) for name in reaches))
    return machine.frame(peer, fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=epoch, reaches=positions))


def around(name: str = "b", *, limits: Limits | None = None, world: View = SEVEN) -> Machine:
    """A machine that is connected with everybody it wants to be connected with, and knows who reaches whom."""
    machine = Machine(name, limits=limits, hidden=(fr.Ping,)).join(world)
    assert machine.node.view is not None
    wanted = {*world.neighbours(PeerId(name)), *world.backups(PeerId(name))}
    for peer in sorted(wanted):
        machine.level(peer)
        says(machine, peer, "".join({*world.neighbours(peer), *world.backups(peer)}))
    return machine


def lose(machine: Machine, peer: str) -> list[str]:
    """The connection breaks."""
    return machine.hear(ev.LinkDown(PeerId(peer), "reset"))


def via(source: str, target: str, frame: fr.Frame, *, tunnel: int, serial: int, hops: int = 1) -> fr.Via:
    kind, header = codec.wrap(frame)
    return fr.Via(source=source, target=target, tunnel=tunnel, serial=serial, kind=kind, header=header, hops=hops)


def carried(
    machine: Machine,
    hop: str,
    source: str,
    frame: fr.Frame,
    *,
    tunnel: int,
    serial: int,
    data: bytes = b"",
    hops: int = 1,
) -> list[str]:
    """A frame for this machine comes through a hop, one of so many; an empty name stands for the broker."""
    wrapped = via(source, str(machine.node.id), machine.stamped(frame), tunnel=tunnel, serial=serial, hops=hops)
    if not hop:
        return machine.hear(ev.Relayed(wrapped, data))
    return machine.hear(ev.FrameReceived(PeerId(hop), wrapped, data, len(data)))


def knock(
    machine: Machine,
    hop: str,
    source: str,
    tunnel: int = 77,
    *,
    answer: bool = False,
    life: int = 1,
    stamp: float = 0.0,
    lost: float = 0.0,
) -> list[str]:
    frame = fr.Knock(incarnation=life, answer=answer, stamp=stamp, lost=lost)
    return carried(machine, hop, source, frame, tunnel=tunnel, serial=0)


def number(machine: Machine) -> int:
    """Of the tunnel that the machine knocks for."""
    frames = [effect.frame for effect in machine.effects if isinstance(effect, fx.Send | fx.Relay)]
    code, _ = codec.wrap(fr.Knock(incarnation=1, answer=False))
    return next(frame.tunnel for frame in frames if isinstance(frame, fr.Via) and frame.kind == code)


def tunnelled(machine: Machine, peer: str, hop: str) -> int:
    """Lose the connection with a peer and get a tunnel to it through a hop. Returns its number."""
    lose(machine, peer)
    tunnel = number(machine)
    knock(machine, hop, peer, tunnel, answer=True)
    return tunnel


def path(machine: Machine, peer: str) -> str:
    return next(state.path for state in machine.node.link_states() if state.peer == peer)
