"""Which precision a job's gradients travel in, checked: for who announces the job, and again for every device that is
told of it; and how long the vector is then.

A job's vector is the gradient, and its mean loss at the end. Where elements share a scale, the loss is in a block of
its own: beside it, gradients a thousand times smaller would be rounded to nothing.
"""

from __future__ import annotations

from edgepeer.errors import ConfigError
from edgepeer.training.job import Job
from edgepeer.wire.precision import Precision, block_of
from edgepeer.wire.protocols import ProtocolName

__all__ = ["check_precision", "vector_size"]


def check_precision(job: Job, *, protocol: ProtocolName = "ft-tree") -> None:
    """Refuse what can't be had together.

    Raises:
        ConfigError: the job is coded, or split, or rounds run by a protocol that knows float32 alone.
    """
    if job.precision == "float32":
        return
    said = f"precision = {job.precision}:"
    if job.code != "none":
        raise ConfigError(f"{said} sums of code {job.code} are put together of what was not rounded; take float32")
    if job.split:
        raise ConfigError(f"{said} split {job.split} checks sums to the last bits; take float32")
    if protocol != "ft-tree":
        raise ConfigError(f"{said} rounds of protocol {protocol} can't do it; use protocol ft-tree, or float32")


def vector_size(parameters: int, precision: Precision) -> int:
    """How many elements the vector of a round has: gradient, zeros up to the next block, loss."""
    block = block_of(precision)
    return -(-parameters // block) * block + 1
