"""Which code a job asks for, checked: for who announces the job, and again for every device that is told of it."""

from __future__ import annotations

from typing import Final

from edgepeer.coding.spec import CodeSpec, parse_code
from edgepeer.coding.wait import parse_wait
from edgepeer.errors import ConfigError
from edgepeer.training.naming import parse_dataset
from edgepeer.wire.protocols import ProtocolName

__all__ = ["MAX_COPIES", "choose_code"]

MAX_COPIES: Final = 32
"""How many peers may compute the same at most, and by how many times vectors may be shorter."""


def choose_code(code: str, wait: str, *, dataset: str, protocol: ProtocolName = "ft-tree") -> CodeSpec | None:
    """The code of a job; None where rounds are not coded.

    Args:
        dataset: what the job trains on; protocol: what rounds run by.

    Raises:
        ConfigError: code or policy are none, or can't be had with these.
    """
    spec, policy = parse_code(code), parse_wait(wait)
    if spec.kind == "none":
        if str(policy) != "exact":
            raise ConfigError(f"wait = {wait}: only coded rounds can end early; add a code, such as first:s=1")
        return None
    if most := next((f"{key}={value}" for key, value in spec.numbers if value > MAX_COPIES), ""):
        raise ConfigError(f"code = {code}: {most} is more than {MAX_COPIES}, the most that jobs may ask for")
    if protocol != "ft-tree":
        raise ConfigError(f"code = {code}: rounds of protocol {protocol} can't be coded; use protocol ft-tree")
    if (named := parse_dataset(dataset)) is not None and named.kind == "local":
        raise ConfigError(
            f"code = {code}: several peers must have the same data, and dataset {dataset} is each device's own; use "
            "npz:PATH, a file that all devices have"
        )
    return spec
