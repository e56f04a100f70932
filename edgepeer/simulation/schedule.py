"""What happens to a simulated fleet, and when, as text that people read, edit and keep.

    # what this shows
    peers 7
    seed 42

    0.5..3    oneway p3 p1       # what p3 sends does not reach p1
    1.2       kill p0
    2..9.5    freeze p5
    3         flip p4 kind=nan,place=product

First the fleet, a setting a line (those that stand at their defaults may be left out), then the faults: a time
in seconds after the run has begun, or two of them where it lasts, what happens, and to whom. Peers are called
p0, p1 ... (p00, p01 ... if there are more than ten) in the order of the first tree; `broker` is the broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, replace
from typing import Final, Literal, get_type_hints

from edgepeer.coding.scheme import parse_scheme
from edgepeer.errors import ConfigError
from edgepeer.simulation.split_app import split_of
from edgepeer.simulation.ways import BROKER
from edgepeer.topology.view import MAX_LANES
from edgepeer.training.split.faults import parse_flip, parse_soft_errors
from edgepeer.wire.precision import PRECISIONS, Precision

__all__ = ["KINDS", "Fault", "Kind", "Schedule", "names"]

MAX_PEERS: Final = 1000
SHAPES: Final = ("given", "auto")
NO_CODE: Final = ("refused", "dropped")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of fault."""

    about: str
    least: int = 1
    """How many names it takes ..."""
    most: int = 1
    """... and at most how many."""
    lasts: Literal["yes", "no", "maybe"] = "yes"
    extra: str = ""
    """A pattern that one more word may match."""
    broker: bool = False
    """Whether the broker may be among those it happens to."""
    silences: bool = True
    """Whether somebody may not be heard, or not heard of, because of it."""


KINDS: Final[dict[str, Kind]] = {
    "oneway": Kind(about="what the first sends does not reach the second", least=2, most=2, broker=True),
    "cut": Kind(about="two can't reach each other", least=2, most=2, broker=True),
    "isolate": Kind(about="a peer can reach nobody, the broker included"),
    "partition": Kind(about="those named can reach each other, but nobody else", most=MAX_PEERS, broker=True),
    "reset": Kind(about="the connections between two break", least=2, most=2, lasts="no"),
    "kill": Kind(about="a process dies; if this lasts, it starts anew at its end", lasts="maybe"),
    "power": Kind(about="a machine loses power; if this lasts, it starts anew at its end", lasts="maybe"),
    "freeze": Kind(about="a process is stopped, and goes on at the end"),
    "sleep": Kind(about="a machine sleeps: its process is stopped, and its kernel hears and says nothing either"),
    "slow": Kind(about="a process takes x times as long for everything", extra=r"x[1-9]\d*"),
    "broker": Kind(about="the broker is away; `forget`: and loses what it retained", least=0, most=0, extra="forget"),
    "leave": Kind(about="a peer leaves", lasts="no", silences=False),
    "join": Kind(about="a new peer comes", lasts="no", silences=False),
    "timeout": Kind(about="a peer gives up on its round", lasts="no", silences=False),
    "cancel": Kind(
        about="an application does not wait for its round any more, and takes its vector back",
        lasts="no",
        silences=False,
    ),
    "run": Kind(
        about="all give the run up within a second, and want another", least=0, most=0, lasts="no", silences=False
    ),
    "aside": Kind(about="owners want to leave, and at the end to be in again", most=MAX_PEERS, silences=False),
    "quit": Kind(
        about="owners take no part in the run, and at the end in the same one again", most=MAX_PEERS, silences=False
    ),
    "lose": Kind(about="an owner has no state any more, once its round is over", lasts="no", silences=False),
    "busy": Kind(about="an owner computes, packs and loads nothing; its process goes on", silences=False),
    "flip": Kind(
        about="a node of a split run computes or stores a wrong number",
        lasts="no",
        extra=r"(kind|place)=\S+",
        silences=False,
    ),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens `at` seconds after the run has begun, and lasts until `until`."""

    at: float
    kind: str
    who: tuple[str, ...] = ()
    until: float | None = None
    extra: str = ""

    @property
    def end(self) -> float:
        return self.at if self.until is None else self.until

    def __str__(self) -> str:
        time = f"{self.at:g}" + (f"..{self.until:g}" if self.until is not None else "")
        return f"{time:<11} {self.deed}"

    @property
    def deed(self) -> str:
        """What happens, and to whom."""
        return " ".join([self.kind, *self.who, *([self.extra] if self.extra else [])])


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A fleet, and what happens to it."""

    peers: int
    seed: int = 0
    fanout: int = 2
    lanes: int = 1
    shape: str = "given"
    """`auto`: fan-out, lanes and the order of the peers follow what they measure, from a view as given on."""
    quorum: int = 0
    """How many it takes to go on without the others, if more than a majority."""
    rounds: int = 12
    size: int = 16
    """Elements of each vector."""
    dtype: str = "<f4"
    precision: Precision = "float32"
    """What vectors travel as."""
    infinite: float = 0.0
    """The part of the rounds in which somebody brings a vector that is not finite: rounded ones are dropped."""
    odd: float = 0.0
    """The part of the contributions that no sum can be of: longer than the others, or, where sums are rounded, not
    finite; of coded rounds, plain vectors, or chunks of another code. Each life of a peer brings its own."""
    compute_s: float = 0.2
    """Mean compute time of a round."""
    latency_s: float = 1e-3
    jitter_s: float = 0.0
    rate_bytes_per_s: float = 1e6
    uneven: float = 1.0
    """How many times slower than that the line of a device is, at most: if more than 1, each has one of its own, which
    all of its connections share."""
    loss: float = 0.0
    """Probability that a message must be sent again."""
    hidden: int = 0
    """How many can dial others, but not be dialled, as behind NAT: the last of the order."""
    clocks_s: float = 0.0
    """By how much the clocks of devices differ, at most: each life goes by another."""
    twice: float = 0.0
    """The part of what the broker brings to single peers that comes again, later."""
    window: int = 0
    """How many bytes of a state are on their way at once, in pieces of a quarter; 0: as many as elsewhere, which is all
    of one that is so short."""
    run: str = "run"
    """With a run, joiners receive state; `none`: plain allreduce calls."""
    after: int = 0
    """How many come after the run, when nobody takes part in it any more. Then the coordinator's machine fails."""
    checkpoint: int = 0
    """After how many rounds of the run devices have another checkpoint, from which they go on when they start again, if
    no fleet is at work; 0: they keep nothing over restarts."""
    code: str = "none"
    """How gradients are coded; then compute_s is for a chunk ..."""
    wait: str = "exact"
    """... and when the root may close a round."""
    no_code: str = "refused"
    """What becomes of it if so many peers can't have that code: no such schedule, or all rounds are `dropped`."""
    split: str = "none"
    """How a small network is divided over the peers: then `rounds` are iterations, and size and dtype say nothing."""
    soft_errors: str = "none"
    """How often nodes err by chance, as `parse_soft_errors` has it."""
    faults: tuple[Fault, ...] = ()
    comment: str = ""

    @property
    def end(self) -> float:
        """When the last fault is over."""
        return max((fault.end for fault in self.faults), default=0.0)

    def __str__(self) -> str:
        lines = [f"# {line}".rstrip() for line in self.comment.splitlines()]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("faults", "comment") and (field.default is MISSING or value != field.default):
                lines.append(f"{field.name} {value:g}" if isinstance(value, float) else f"{field.name} {value}")
        return "\n".join([*lines, "", *(str(fault) for fault in sorted(self.faults, key=lambda f: f.at))]) + "\n"

    @classmethod
    def parse(cls, text: str, source: str = "schedule") -> Schedule:
        """Read what `str` has written, or somebody by hand.

        Raises:
            ConfigError: names `source`, the line, and what is wrong with it.
        """
        settings: dict[str, object] = {}
        faults: list[Fault] = []
        comment: list[str] = []
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.partition("#")[0].split()
            if not words:
                if line.startswith("#") and not settings and not faults:
                    comment.append(line[1:].removeprefix(" "))
                continue
            try:
                if words[0][0].isdigit():
                    faults.append(_fault(words))
                else:
                    if words[0] in settings:
                        raise ValueError(f"{words[0]} is said twice")
                    settings |= _setting(words)
            except ValueError as error:
                raise ConfigError(f"{source}, line {number}: {error}") from None
        if "peers" not in settings:
            raise ConfigError(f"{source}: must say how many peers there are, as in: peers 7")
        schedule = replace(cls(peers=1), **settings, faults=tuple(faults), comment="\n".join(comment))  # type: ignore[arg-type]
        try:
            schedule.check()
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{source}: {error}") from None
        return schedule

    def check(self) -> None:
        """Raise ValueError or ConfigError for what can't be simulated."""
        bounds = {
            "peers": (1, MAX_PEERS), "fanout": (1, 64), "lanes": (1, MAX_LANES), "quorum": (0, MAX_PEERS),
            "rounds": (0, 1_000_000), "size": (0, 10_000_000),
            "compute_s": (0, 3600), "latency_s": (0, 60), "jitter_s": (0, 60), "rate_bytes_per_s": (1, 1e12),
            "uneven": (1, 1e6),
            "loss": (0, 0.9), "clocks_s": (0, 1e9), "hidden": (0, MAX_PEERS), "twice": (0, 1),
            "infinite": (0, 1), "odd": (0, 1), "seed": (0, 1 << 63), "after": (0, MAX_PEERS),
            "checkpoint": (0, 1_000_000), "window": (0, 1 << 30),
        }  # fmt: skip
        for name, (least, most) in bounds.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} {getattr(self, name):g}: must be from {least:g} to {most:g}")
        if self.shape not in SHAPES:
            raise ValueError(f"shape {self.shape}: must be {' or '.join(SHAPES)}")
        if self.dtype not in ("<f4", "<f8"):
            raise ValueError(f"dtype {self.dtype}: must be <f4 or <f8")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision}: must be one of {', '.join(PRECISIONS)}")
        if self.precision != "float32" and (self.dtype, self.code, self.split) != ("<f4", "none", "none"):
            raise ValueError(f"precision {self.precision}: is for dtype <f4, without code and split")
        if self.infinite and self.precision == "float32":
            raise ValueError(f"infinite {self.infinite:g}: is for a precision that is rounded, bf16 or int8")
        if self.odd and self.split != "none":
            raise ValueError(f"odd {self.odd:g}: is for rounds without split")
        if self.after and self.run == "none":
            raise ValueError(f"after {self.after}: is for a run, and there is none")
        if self.checkpoint and (self.run == "none" or self.split != "none"):
            raise ValueError(f"checkpoint {self.checkpoint}: is for a run that is not split")
        if self.no_code not in NO_CODE:
            raise ValueError(f"no_code {self.no_code}: must be {' or '.join(NO_CODE)}")
        scheme = parse_scheme(self.code, self.wait)
        if scheme is not None and self.no_code == "refused":
            try:
                scheme.build(self.peers, self.fanout)  # of those who are left later it need not be to be had
            except ConfigError as error:
                raise ConfigError(f"{error}; if rounds are to be dropped: no_code dropped") from None
        self._check_split()
        joined = {name for fault in self.faults if fault.kind == "join" for name in fault.who}
        known = {*names(self.peers), *joined}
        for fault in self.faults:
            for who in fault.who:
                if who not in known and not (who == BROKER and KINDS[fault.kind].broker):
                    raise ValueError(
                        f"{str(fault).strip()}: there is no peer {who}; there are {_spoken(sorted(known))}"
                    )

    def _check_split(self) -> None:
        errs = self.soft_errors != "none" or any(fault.kind == "flip" for fault in self.faults)
        if self.split == "none":
            if errs:
                raise ValueError(
                    "soft errors are made in split runs: say how it is divided, as in: split codenet:m=2,n=2"
                )
            return
        split = split_of(self.split)
        if self.peers < split.nodes:
            raise ValueError(f"split {self.split} has {split.nodes} nodes; let there be as many peers, or more")
        if self.run == "none" or self.code != "none":
            raise ValueError("a split run is a run, and not coded in another way: leave out run and code")
        if errs and split.name == "none":
            raise ValueError("split none corrects nothing: leave out soft errors, or take another")
        if self.soft_errors != "none":
            parse_soft_errors(self.soft_errors)
        for fault in self.faults:
            if fault.kind == "flip":
                parse_flip(f"0@0:{fault.extra}")


def names(peers: int) -> list[str]:
    """What the peers are called."""
    width = len(str(peers - 1))
    return [f"p{number:0{width}}" for number in range(peers)]


def _spoken(known: list[str]) -> str:
    return ", ".join(known) if len(known) <= 10 else f"{known[0]} to {known[-1]}"


_TYPES: Final[dict[str, type]] = {
    name: hint if hint in (int, float) else str
    for name, hint in get_type_hints(Schedule).items()
    if name not in ("faults", "comment")
}


def _setting(words: list[str]) -> dict[str, object]:
    name, *values = words
    if name not in _TYPES:
        raise ValueError(f"{name} is neither a time nor a setting; settings are {', '.join(_TYPES)}")
    if len(values) != 1:
        raise ValueError(f"{name} takes one value, not {len(values)}")
    try:
        return {name: _TYPES[name](values[0])}
    except ValueError:
        raise ValueError(f"{name} {values[0]}: must be {_TYPES[name].__name__}") from None


def _fault(words: list[str]) -> Fault:
    time, *rest = words
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:\.\.(\d+(?:\.\d+)?))?", time)
    if found is None:
        raise ValueError(f"{time}: must be a time in seconds, or two as in 0.5..3")
    if not rest or rest[0] not in KINDS:
        raise ValueError(
            f"{' '.join(rest[:1]) or 'nothing'} is unknown; what happens must be one of {', '.join(KINDS)}"
        )
    name, *who = rest
    kind, extra = KINDS[name], ""
    if kind.extra and who and re.fullmatch(kind.extra, who[-1]):
        extra = who.pop()
    at, until = float(found[1]), float(found[2]) if found[2] else None
    if (kind.lasts == "yes" and until is None) or (kind.lasts == "no" and until is not None):
        raise ValueError(f"{name} takes {'two times, as in 0.5..3' if until is None else 'one time'}")
    if until is not None and until <= at:
        raise ValueError(f"{time}: must end after it has begun")
    if name == "slow" and not extra:
        raise ValueError("slow takes a factor, as in: 1..2 slow p3 x10")
    if not kind.least <= len(who) <= kind.most or len(set(who)) != len(who):
        many = "no name" if not kind.most else f"{kind.least} name{'s' * (kind.least > 1)}"
        raise ValueError(f"{name} takes {many}{' or more' if kind.most > kind.least else ''}, not: {_list(who)}")
    return Fault(at, name, tuple(who), until, extra)


def _list(who: Iterable[str]) -> str:
    return " ".join(who) or "none"
