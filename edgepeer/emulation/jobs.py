"""From the settings of an emulation to its fleet and its job; what can't be had is refused before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from edgepeer.errors import ConfigError
from edgepeer.following.jobs import OwnFleet, make_job, nodes_of
from edgepeer.settings import EmulateSettings
from edgepeer.settings.model import MAX_PEERS

if TYPE_CHECKING:
    from edgepeer.training.job import Job

__all__ = ["emulated_job", "fanout_of", "peers_of"]

_PEERS: Final = 7
"""If nothing is said."""
_TREES: Final = ("ft-tree", "ft-tree-static", "tree")
"""Protocols whose rounds go along a tree of any fan-out."""


def emulated_job(settings: EmulateSettings) -> Job:
    """A checked job with a new id, for the fleet that is asked for.

    Raises:
        ConfigError: there can't be such a fleet; or see `make_job`.
    """
    _check_code(settings)
    _check_lanes(settings)
    _check_speed(settings)
    _check_soft_errors(settings)
    fanout = fanout_of(settings)
    fleet = OwnFleet(fanout=2 if fanout == "auto" else fanout, protocol=settings.protocol, data_dir=settings.data_dir)
    return make_job(settings, wait_for=peers_of(settings), fleet=fleet)


def fanout_of(settings: EmulateSettings) -> int | Literal["auto"]:
    """Children of each peer in the topology that is asked for.

    Raises:
        ConfigError: it can't be had.
    """
    if settings.topology == "tree":
        return settings.fanout
    if settings.protocol not in _TREES:
        raise ConfigError(
            f"topology = star: protocol {settings.protocol} has a shape of its own; use {', '.join(_TREES)}"
        )
    if settings.fanout != EmulateSettings().fanout:
        raise ConfigError(f"fanout = {settings.fanout}: topology star has one of its own; leave it out, or use a tree")
    return max(1, peers_of(settings) - 1)


def peers_of(settings: EmulateSettings) -> int:
    """How many peers there will be: as many as are asked for, else as the split has nodes, else 7.

    Raises:
        ConfigError: there is no such split, or it has more nodes than an emulation has peers.
    """
    if settings.peers is not None:
        return settings.peers
    nodes = nodes_of(settings)
    if nodes > MAX_PEERS:
        raise ConfigError(
            f"split = {settings.split}: takes {nodes} peers, and an emulation has at most {MAX_PEERS}; take fewer "
            "blocks, or less protection"
        )
    return nodes or _PEERS


def _check_lanes(settings: EmulateSettings) -> None:
    if settings.lanes in ("auto", 1):
        return
    if settings.protocol != "ft-tree":
        raise ConfigError(f"lanes = {settings.lanes}: rounds of protocol {settings.protocol} have none; use ft-tree")
    if settings.code != "none":
        raise ConfigError(
            f"lanes = {settings.lanes}: a coded round moves over the one tree of its code; leave out lanes or code"
        )


def _check_code(settings: EmulateSettings) -> None:
    from edgepeer.coding.spec import parse_code

    spec = parse_code(settings.code)
    if spec.kind == "coded-reduce" and settings.topology == "star":
        s = dict(spec.numbers)["s"]
        raise ConfigError(
            f"code = {settings.code}: on a star its root would just compute nothing; use cyclic:s={s} or "
            f"fractional:s={s}"
        )


def _check_speed(settings: EmulateSettings) -> None:
    from edgepeer.coding.speed import parse_speed

    parse_speed(settings.device_speed)


def _compares(settings: EmulateSettings) -> bool:
    """Whether the split that is asked for looks for what is wrong."""
    import numpy as np

    from edgepeer.training.split.named import parse_split

    return parse_split(settings.split, np.dtype(np.float32), settings.guarantee).compares


def _check_soft_errors(settings: EmulateSettings) -> None:
    if not settings.soft_errors:
        return
    from edgepeer.training.split.faults import parse_soft_errors

    errors = parse_soft_errors(settings.soft_errors)
    if not settings.split:
        raise ConfigError(
            f"soft_errors = {settings.soft_errors}: only split jobs have them: add --split, such as codenet:m=2,n=2,t=1"
        )
    if errors.steps == {"verdict"} and not _compares(settings):
        raise ConfigError(
            f"soft_errors = {settings.soft_errors}: split {settings.split} has no verdicts that could be wrong, as it "
            "checks nothing; name another step, such as O1, or a split that checks, such as codenet:m=2,n=2,t=1"
        )
