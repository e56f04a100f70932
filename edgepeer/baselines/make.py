"""Machines by the name of their protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edgepeer.baselines.async_server import AsyncServer
from edgepeer.baselines.collective import Collective
from edgepeer.baselines.ring import Ring
from edgepeer.baselines.shell import Shell
from edgepeer.baselines.static_tree import StaticTree
from edgepeer.baselines.tree import Star, Tree
from edgepeer.errors import ConfigError
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.machine import Machine
from edgepeer.protocol.node import Node
from edgepeer.protocol.shape import Choice
from edgepeer.topology.view import Member
from edgepeer.wire.protocols import PROTOCOLS, STATIC_TIMEOUT_S, ProtocolName

__all__ = ["MachineMaker"]

_PLAIN: Final[dict[str, type[Collective]]] = {"tree": Tree, "ring": Ring, "ps-sync": Star, "ps-async": AsyncServer}


@dataclass(frozen=True, slots=True)
class MachineMaker:
    """Makes machines of one protocol, ours or a baseline: a peer runs by it with Peer(machine=MachineMaker("ring")).

    Raises:
        ConfigError: there is no such protocol, or the timeout is not positive.
    """

    protocol: ProtocolName
    static_timeout_s: float = STATIC_TIMEOUT_S
    """How long ft-tree-static waits before it takes a message for lost."""

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ConfigError(f"protocol = {self.protocol!r}: must be one of {', '.join(PROTOCOLS)}")
        if not 0 < self.static_timeout_s <= 3600:
            raise ConfigError(f"static_timeout = {self.static_timeout_s}: must be more than 0 and at most 3600 seconds")

    def __call__(
        self,
        me: Member,
        *,
        fanout: int = 2,
        lanes: int = 1,
        choice: Choice | None = None,
        quorum: int = 0,
        limits: Limits | None = None,
        known: Generation | None = None,
        now: float,
    ) -> Machine:
        """The machine of a peer that has just started.

        Args:
            me: this peer as it introduces itself.
            fanout: the tree's fan-out, if this peer makes the first view.
            lanes: of ft-tree, if this peer makes the first view, see `View.lanes`.
            choice: of ft-tree, what is to follow what is measured, see `Node`.
            quorum: of ft-tree, if this peer makes the first view, see `View.quorum`.
            limits: when to give up on what.
            known: of ft-tree, the newest generation that this peer was ever in.
            now: the current time; all later `now` come from the same clock and never go back.
        """
        if self.protocol == "ft-tree":
            return Node(
                me, fanout=fanout, lanes=lanes, choice=choice, quorum=quorum, limits=limits, known=known, now=now
            )
        limits = limits or Limits()
        if self.protocol == "ft-tree-static":
            rounds: Collective = StaticTree(PeerId(me.id), limits, self.static_timeout_s)
        else:
            rounds = _PLAIN[self.protocol](PeerId(me.id), limits)
        return Shell(me, rounds, fanout=fanout, limits=limits, now=now)
