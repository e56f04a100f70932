"""Settings of the verbs of `edgepeer simulate`, as in `model`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, get_args

from msgspec import Meta

from edgepeer.errors import ConfigError
from edgepeer.settings.model import VerbSettings
from edgepeer.training import job

__all__ = ["ExploreSettings", "IsolationSettings", "RunSettings", "SoakSettings"]

_OtherCall: TypeAlias = Literal["plain", "uncoded", "recode"]
_FaultKind: TypeAlias = (
    Literal[
        "kill", "power", "isolate", "cut", "oneway", "freeze", "reset", "damage", "leave", "timeout", "cancel", "lose"
    ]
    | _OtherCall
)
_KINDS: Final = tuple(kind for each in get_args(_FaultKind) for kind in get_args(each))


def _says(description: str, **extra: Any) -> Meta:
    return Meta(description=description, extra=extra)


class SoakSettings(VerbSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer simulate soak`."""

    verb: ClassVar[str] = "simulate-soak"

    hours: Annotated[
        Annotated[float, Meta(gt=0, le=10_000)] | None,
        _says("How long; an hour if neither this nor seconds nor schedules are given."),
    ] = None
    seconds: Annotated[Annotated[float, Meta(gt=0, le=100_000_000)] | None, _says("The same in seconds.")] = None
    schedules: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000_000)] | None,
        _says("How many schedules, at most; time may be up before."),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**53)] | None,
        _says("Seed of the first schedule; taken from the clock if not given."),
    ] = None
    peers: Annotated[Annotated[int, Meta(ge=1, le=100)], _says("Peers of a fleet, at most.")] = 21
    mix: Annotated[
        Literal["all", "owners", "shapes"],
        _says(
            "What is drawn: all that is usual; bursts of faults while owners of a run leave, quit and come back; "
            "or fleets that choose their trees by what they measure."
        ),
    ] = "all"
    jobs: Annotated[Annotated[int, Meta(ge=1, le=256)], _says("Processes that go through schedules at once.")] = 1

    def __post_init__(self) -> None:
        if self.hours is not None and self.seconds is not None:
            raise ConfigError(f"seconds = {self.seconds:g}: hours say how long already; give one of them")


class RunSettings(VerbSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer simulate run`."""

    verb: ClassVar[str] = "simulate-run"

    files: Annotated[
        Annotated[tuple[Path, ...], Meta(max_length=100_000)],
        _says("The schedules.", allowed="paths", metavar="FILE..."),
    ] = ()
    tell: Annotated[bool, _says("Tell what happens in each, briefly.")] = False


class ExploreSettings(VerbSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer simulate explore`."""

    verb: ClassVar[str] = "simulate-explore"

    peers: Annotated[Annotated[int, Meta(ge=2, le=5)], _says("Peers of the fleet.")] = 3
    faults: Annotated[Annotated[int, Meta(ge=0, le=8)], _says("How many faults there are, at most.")] = 2
    kinds: Annotated[
        Annotated[tuple[_FaultKind, ...], Meta(min_length=1, max_length=len(_KINDS))],
        _says("Which ones.", allowed=f"of {', '.join(_KINDS)}, with commas between", metavar="KIND,KIND"),
    ] = ("kill", "isolate", "cut", "freeze")
    depth: Annotated[
        Annotated[int, Meta(ge=0, le=1000)],
        _says("How many things are not as usual: faults, their ends, what is late. With any-order, how many steps."),
    ] = 3
    any_order: Annotated[
        bool, _says("Go through all orders, and not those first that are nearest to the usual one.")
    ] = False
    rounds: Annotated[Annotated[int, Meta(ge=1, le=10)], _says("How many rounds there are.")] = 3
    lanes: Annotated[
        Annotated[int, Meta(ge=1, le=4)],
        _says("Into how many ranges vectors are divided, each with a tree of its own."),
    ] = 1
    fanout: Annotated[Annotated[int, Meta(ge=1, le=4)], _says("Children of a peer in the tree, at most.")] = 2
    plain: Annotated[bool, _says("Explore allreduce calls without a run.")] = False
    code: Annotated[
        job.Named,
        _says(
            "How rounds are coded, as for train. Faults may then be calls that do not fit, too: plain, uncoded, recode."
        ),
    ] = "none"
    wait: Annotated[job.WaitName, _says("When a coded round may be closed, as for train.")] = "exact"
    probe_every: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000_000)],
        _says(
            "From one state in so many, and at the end of each way, it is seen whether the fleet finds together when "
            "all is well; 0: from none."
        ),
    ] = 500
    seconds: Annotated[Annotated[float, Meta(gt=0, le=100_000_000)] | None, _says("How long, at most.")] = None
    states: Annotated[Annotated[int, Meta(ge=1, le=1_000_000_000)], _says("How many states, at most.")] = 10_000_000
    jobs: Annotated[Annotated[int, Meta(ge=1, le=64)], _says("How many processes.")] = 1

    def __post_init__(self) -> None:
        if self.code == "none" and (calls := [kind for kind in self.kinds if kind in get_args(_OtherCall)]):
            raise ConfigError(f"kinds = {','.join(calls)}: only in coded rounds; add a code, such as fractional:s=1")
        if self.code != "none" and (own := [kind for kind in self.kinds if kind in ("cancel", "lose")]):
            raise ConfigError(f"kinds = {','.join(own)}: not in coded rounds; leave the code out")
        if self.plain and "lose" in self.kinds:
            raise ConfigError("kinds = lose: plain calls have no state of a run that could be lost; leave --plain out")


class IsolationSettings(VerbSettings, frozen=True, kw_only=True):
    """Settings of `edgepeer simulate isolation`."""

    verb: ClassVar[str] = "simulate-isolation"

    peers: Annotated[
        Annotated[tuple[Annotated[int, Meta(ge=2, le=255)], ...], Meta(min_length=1, max_length=16)],
        _says("Sizes of the trees.", allowed="integers from 2 to 255, with commas between", metavar="N,N"),
    ] = (7, 15, 31, 63)
    trials: Annotated[Annotated[int, Meta(ge=1, le=1_000_000)], _says("Random orders of failures of each tree.")] = 2000
    seed: Annotated[Annotated[int, Meta(ge=0, le=2**53)], _says("Seed of the random orders.")] = 0
    json: Annotated[Path | None, _says("Write the numbers to this file.", metavar="FILE")] = None
    plot: Annotated[Path | None, _says("Write a picture to this PNG file.", metavar="FILE")] = None
