"""The faults themselves, as data: who, what, when. No I/O; what they look like as text is in `texts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias

from edgepeer.training.split.faults import Kind, Place

__all__ = [
    "BROKER",
    "BrokerDown",
    "Cut",
    "Flip",
    "Isolate",
    "Kill",
    "Partition",
    "Pause",
    "PlannedFault",
    "Restart",
    "Slow",
    "Span",
    "Unit",
    "Who",
]

Unit: TypeAlias = Literal["round", "second"]


@dataclass(frozen=True, slots=True)
class Span:
    """When. A fault that lasts for rounds 5 to 10 comes when round 4 is done and goes when round 10 is done."""

    unit: Unit
    """What the numbers count: rounds from 1, or seconds since the job began."""
    start: float
    end: float | None = None
    """The last round, or the second of the end; None: until the job's end."""

    @property
    def length(self) -> float | None:
        """How many rounds or seconds; None: as many as there are."""
        if self.end is None:
            return None
        return self.end - self.start + (1 if self.unit == "round" else 0)


@dataclass(frozen=True, slots=True, order=True)
class Who:
    """One end of a link."""

    by: Literal["number", "position", "last", "broker"]
    """A process, whoever is at that position of the tree, the last of the tree (a leaf), or the broker."""
    index: int = 0
    """The number or position."""


BROKER: Final = Who("broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    span: Span

    kind: ClassVar[str]
    """As flags and scenario files call it."""
    lasts: ClassVar[bool] = True
    """Whether it is lifted again."""

    @property
    def concerns(self) -> tuple[Who, ...]:
        """Everyone that the fault names."""
        return ()

    @property
    def subject(self) -> Who | None:
        """Whose life it changes: at most one such fault at a time. None for links, which may be cut several times."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(_Planned):
    """Nothing passes from source to target, or between the two."""

    kind = "cut"

    source: Who
    target: Who
    both: bool = True

    @property
    def concerns(self) -> tuple[Who, ...]:
        return self.source, self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolate(_Planned):
    """A peer is cut off from all others and from the broker."""

    kind = "isolate"

    peer: Who

    @property
    def concerns(self) -> tuple[Who, ...]:
        return (self.peer,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(_Planned):
    """Nothing passes between the sides. The broker is on the side that names it, else on the largest."""

    kind = "partition"

    sides: tuple[tuple[Who, ...], ...]
    """An empty one is everybody whom no other names."""

    @property
    def concerns(self) -> tuple[Who, ...]:
        return tuple(who for side in self.sides for who in side)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LifeFault(_Planned):
    peer: Who

    @property
    def concerns(self) -> tuple[Who, ...]:
        return (self.peer,)

    @property
    def subject(self) -> Who | None:
        return self.peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill(_LifeFault):
    """The peer's process ends by SIGKILL, at a moment."""

    kind = "kill"
    lasts = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart(_LifeFault):
    """A killed peer is started again, with the same name and state directory."""

    kind = "restart"
    lasts = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(_LifeFault):
    """SIGSTOP, and SIGCONT at the end."""

    kind = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(_LifeFault):
    """The peer may run for one part in `factor` of the time only."""

    kind = "slow"

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDown(_Planned):
    """The broker is stopped, and started again, empty, on the same port."""

    kind = "broker_down"

    @property
    def subject(self) -> Who | None:
        return BROKER


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip(_Planned):
    """A soft error of a split job: numbers go wrong at whoever is that node then. The peer itself makes it."""

    kind = "flip"
    lasts = False

    node: int
    """Of the split, from 0."""
    how: Kind = "flip"
    place: Place = "stored"


PlannedFault: TypeAlias = Cut | Isolate | Partition | Kill | Restart | Pause | Slow | BrokerDown | Flip
