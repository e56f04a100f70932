"""One node's blocks on their way: into a checkpoint of its device, or to whoever puts the trained model together."""

from __future__ import annotations

from typing import Annotated

import msgspec

from edgepeer.errors import WireError
from edgepeer.readable import readable
from edgepeer.training.form import Form
from edgepeer.training.job import Job

__all__ = ["Part", "name_of_part", "pack_part", "unpack_part"]


@readable
class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one node stores of the network, and when it was so."""

    node: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    iteration: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    """How many updates the blocks have had."""
    form: Form
    """What the model takes and puts out."""
    blocks: bytes
    """For `Cell.unpack`, which finds every damage."""


def name_of_part(job: Job) -> str:
    """What to ask a peer of a split job for."""
    return f"{job.id}/blocks"


def pack_part(part: Part) -> bytes:
    """The part as bytes, for `unpack_part`."""
    return msgspec.msgpack.encode(part)


def unpack_part(packed: bytes | memoryview) -> Part:
    """What `pack_part` has packed. Raises WireError: it is none."""
    try:
        return msgspec.msgpack.decode(packed, type=Part)
    except (msgspec.DecodeError, ValueError) as error:
        raise WireError(f"these bytes are no blocks of a split job: {error}") from error
