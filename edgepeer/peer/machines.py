"""What a peer's rounds run by: made when the peer starts, and has its identity."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from edgepeer.ids import Generation
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.machine import Machine, ProtocolName
from edgepeer.protocol.node import Node
from edgepeer.protocol.shape import Choice
from edgepeer.topology.view import Member

__all__ = ["FtTree", "MachineFactory"]


@runtime_checkable
class MachineFactory(Protocol):
    """Makes the machine of a peer. `edgepeer.baselines` has one for each protocol that ours is compared with."""

    @property
    def protocol(self) -> ProtocolName:
        """By which all peers of a fabric must run: they say so in their Hello."""

    def __call__(
        self,
        me: Member,
        *,
        fanout: int,
        lanes: int,
        choice: Choice | None,
        quorum: int,
        limits: Limits,
        known: Generation | None,
        now: float,
    ) -> Machine:
        """The machine of a peer that has just started.

        Args:
            me: this peer as it introduces itself.
            fanout, lanes, quorum: of the fleet's first view, if this peer makes it.
            choice: what of that is to follow what is measured.
            limits: when to give up on what.
            known: the newest generation that this peer was ever in.
            now: in seconds; all later `now` come from the same clock and never go back.
        """


class FtTree:
    """The fault-tolerant tree."""

    @property
    def protocol(self) -> ProtocolName:
        return "ft-tree"

    def __call__(
        self,
        me: Member,
        *,
        fanout: int,
        lanes: int,
        choice: Choice | None,
        quorum: int,
        limits: Limits,
        known: Generation | None,
        now: float,
    ) -> Machine:
        return Node(me, fanout=fanout, lanes=lanes, choice=choice, quorum=quorum, limits=limits, known=known, now=now)
