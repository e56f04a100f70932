"""The surface of a protocol: what a driver, a peer and the simulator use of the machine that they run.

`Node` has it, and so have the baselines that it is compared with.
"""

from __future__ import annotations

from typing import Any, Protocol

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.links import LinkState
from edgepeer.topology.view import Member, View
from edgepeer.wire.frames import Frame
from edgepeer.wire.protocols import ProtocolName

__all__ = ["Machine", "ProtocolName", "Rounds"]


class Rounds(Protocol):
    """Where a machine stands in its run."""

    @property
    def run(self) -> str:
        """The run that is worked on; empty for plain allreduces."""

    @property
    def committed(self) -> int:
        """The last round that is over here; -1 while the state of the run is still to come."""

    @property
    def has_state(self) -> bool:
        """Whether the owner has the state of the run that stands here."""

    @property
    def contributed(self) -> bool:
        """Whether the owner has brought its vector to the next round."""

    @property
    def owed(self) -> int:
        """How many rounds were dropped before the owner had brought anything to them, which it has still to hear of:
        each of its next vectors is answered by one."""

    def missing(self) -> tuple[PeerId, ...]:
        """Whom the round waits for, as far as this peer can tell."""


class Machine(Protocol):
    """Events in, effects out, one deadline. Never reads a clock, opens a socket or draws random numbers."""

    @property
    def me(self) -> Member:
        """This peer in its present life."""

    @property
    def allreduce(self) -> Rounds: ...

    @property
    def view(self) -> View | None:
        """The view that this peer works in."""

    @property
    def waits(self) -> str:
        """Why nothing comes of the view that this peer wants; empty if something does, or if it wants none."""

    @property
    def shape(self) -> str:
        """Why the trees of the view are as they are; empty if nothing was found, or others choose them."""

    def introduce(self, addresses: tuple[str, ...]) -> None:
        """Where this peer listens: to be said before it takes part in anything."""

    def sink(self, peer: PeerId, frame: Frame, payload_bytes: int) -> memoryview | None:
        """Where the payload of a frame that is about to arrive belongs; None to throw it away."""

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        """What to do about `event`, which happened at `now`."""

    def tick(self, now: float) -> list[fx.Effect]:
        """What to do because `next_deadline()` has come."""

    def next_deadline(self) -> float:
        """When to call `tick`, at the latest."""

    def link_states(self) -> tuple[LinkState, ...]:
        """How all wanted links are, in peer order."""

    def diagnosis(self, now: float) -> dict[str, Any]:
        """All that decides what this peer does next, as JSON has it."""
