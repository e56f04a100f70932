"""Which code a job asks for, checked: for who announces the job, and again for every device that is told of it."""

from __future__ import annotations

from typing import Final

from edgepeer.coding.scheme import CodingScheme, parse_scheme
from edgepeer.errors import ConfigError
from edgepeer.training.naming import parse_dataset
from edgepeer.wire.protocols import ProtocolName

__all__ = ["MAX_COPIES", "choose_scheme"]

MAX_COPIES: Final = 32
"""How many peers may compute the same at most, and by how many times vectors may be shorter."""


def choose_scheme(code: str, wait: str, *, dataset: str, protocol: ProtocolName = "ft-tree") -> CodingScheme | None:
    """How the rounds of a job are coded; None: they are not.

    Args:
        dataset: what the job trains on; protocol: what rounds run by.

    Raises:
        ConfigError: code or policy are none, or can't be had with these.
    """
    scheme = parse_scheme(code, wait)
    if scheme is None:
        return None
    if most := next((f"{key}={value}" for key, value in scheme.spec.numbers if value > MAX_COPIES), ""):
        raise ConfigError(f"code = {code}: {most} is more than {MAX_COPIES}, the most that jobs may ask for")
    if protocol != "ft-tree":
        raise ConfigError(f"code = {code}: rounds of protocol {protocol} can't be coded; use protocol ft-tree")
    if (named := parse_dataset(dataset)) is not None and named.kind == "local":
        raise ConfigError(
            f"code = {code}: several peers must have the same data, and dataset {dataset} is each device's own; use "
            "npz:PATH, a file that all devices have"
        )
    return scheme
