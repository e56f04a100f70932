"""What faults are done to: a fleet of processes, a network, a broker, and the tree as it is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgepeer.emulation.faults.kinds import Who
from edgepeer.emulation.faults.texts import show
from edgepeer.emulation.network.base import BROKER, EmulatedNetwork
from edgepeer.fabric.address import BrokerAddress
from edgepeer.ids import PeerId
from edgepeer.topology.view import View

__all__ = ["BrokerControl", "FleetControl", "Scene", "Unconfirmed"]


class Unconfirmed(Exception):
    """A fault did not take effect. The text says what was seen instead."""


class FleetControl(Protocol):
    """The processes of a fleet, by the names of their peers."""

    @property
    def names(self) -> tuple[str, ...]:
        """All peers, by number: running or not."""

    def process(self, name: str) -> asyncio.subprocess.Process:
        """The latest process of a peer."""

    async def start(self, name: str) -> None:
        """Start a peer that has ended again, with the same id and state directory."""

    def kill(self, name: str) -> None:
        """End a peer by SIGKILL."""

    def pause(self, name: str) -> None:
        """Freeze a peer, by SIGSTOP."""

    def resume(self, name: str) -> None:
        """Let a frozen peer go on, by SIGCONT."""


class BrokerControl(Protocol):
    """A broker that can be stopped, and started again on the same port."""

    @property
    def address(self) -> BrokerAddress:
        """Where this process reaches it, running or not."""

    async def start(self) -> None:
        """Listen again, empty."""

    async def stop(self) -> None:
        """Hang up on all, and listen no longer."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One emulation while it runs."""

    fleet: FleetControl
    network: EmulatedNetwork
    broker: BrokerControl | None
    """None for one that is not ours to stop."""
    view: Callable[[], View | None]
    """The tree as it was last announced."""
    state_dir: Callable[[str], Path] | None = None
    """Where a peer keeps its things, if how fast it computes follows a model; None: it is as fast as it can."""

    def name(self, who: Who) -> str:
        """Who that is now.

        Raises:
            Unconfirmed: there is nobody at that place of the tree.
        """
        if who.by == "broker":
            return BROKER
        if who.by == "number":
            return self.fleet.names[who.index]
        view = self.view()
        place = who.index if who.by == "position" else -1
        if view is None or place >= view.size:
            size = "no tree" if view is None else f"a tree of {view.size} peers"
            raise Unconfirmed(f"nobody is {show(who)} in {size}")
        return view.ids[place]

    def linked(self, one: str, other: str) -> bool:
        """Whether the two are parent and child in the tree, so that something must pass between them."""
        view = self.view()
        if view is None or one not in view or other not in view:
            return False
        return PeerId(other) in view.neighbours(PeerId(one))

    def others(self, names: Iterable[str]) -> tuple[str, ...]:
        """All peers but these."""
        excluded = set(names)
        return tuple(name for name in self.fleet.names if name not in excluded)
