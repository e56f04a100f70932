"""Who keeps the state of the run that a peer takes part in, and hands it to those who join."""

from __future__ import annotations

from typing import Protocol

from edgepeer.ids import PeerId

__all__ = ["StateKeeper"]


class StateKeeper(Protocol):
    """What a peer asks of it, each in a turn of the event loop of its own. See `Peer.attach`."""

    def state_wanted(self, peer: PeerId, run: str, number: int) -> None:
        """A neighbour needs the state of that run after round `number`, or a later one: answer with `Peer.give_state`,
        at any time."""

    def state_came(self, run: str, number: int, state: memoryview) -> None:
        """The state after round `number` of that run has come: load it, and call `Peer.adopt`."""

    def part_wanted(self, peer: PeerId, name: str) -> None:
        """Somebody, who need not be in the fleet, asks for something of that name: answer with `Peer.give_part`, with
        nothing if this peer has none."""
