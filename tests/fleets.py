"""Fleets for tests: `founder.member("p1")` makes a directory, which `Identity.load` reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgepeer.trust.founding import Founder
from edgepeer.trust.identity import Identity
from edgepeer.trust.names import Role

__all__ = ["Fleet", "Founder", "Identity", "Role"]


@dataclass
class Fleet:
    """A temporary fleet: who asks for a member by id gets the same one again."""

    root: Path
    fabric: str = "greenhouse"
    broker: tuple[str, ...] = ("mqtts://127.0.0.1:8883",)
    service: str = "127.0.0.1:7701"

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.founder = Founder(self.root, self.fabric, broker=self.broker, service=self.service)

    def directory(self, peer: str, role: Role = Role.PEER, *, lifetime_s: float = 365 * 86400.0) -> Path:
        """What `edgepeer join` would have made."""
        path = self.root / peer
        return path if path.exists() else self.founder.member(peer, role, lifetime_s=lifetime_s)

    def member(self, peer: str, role: Role = Role.PEER) -> Identity:
        """A member, as it starts."""
        return Identity.load(self.directory(peer, role))

    def operator(self, name: str = "alice") -> Identity:
        return self.member(name, Role.OPERATOR)

    def viewer(self, name: str = "victor") -> Identity:
        return self.member(name, Role.VIEWER)

    def a_broker(self, name: str = "broker") -> Identity:
        return self.member(name, Role.BROKER)

    def evict(self, *peers: str) -> bytes:
        """The new list, which nobody has heard of yet."""
        return self.founder.evict(*peers)

    def drop_authority(self) -> bytes:
        """The list by which the oldest authority counts no more, signed by that which is left."""
        del self.founder.authorities[0], self.founder._signers[0]
        return self.founder.evict()

    def other(self, name: str = "other", *, fabric: str | None = None) -> Fleet:
        """Another fleet beside it, by default one that has chosen the same name."""
        return Fleet(self.root.parent / f"{self.root.name}-{name}", fabric or self.fabric)
