"""What all peers of a split run have in common, beside the weights: for those who join, or have fallen behind."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from edgepeer.errors import WireError
from edgepeer.readable import readable
from edgepeer.training.split.counts import Counts
from edgepeer.training.split.phases import Mend, Phase
from edgepeer.training.split.tail import ABSENT, Digest

__all__ = ["Common"]

Array = NDArray[Any]

_PREFIX: Final = struct.Struct("<4sI")
_MAGIC: Final = b"EPS1"
_DIGEST_BYTES: Final = 16
_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Node = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]


class _Array(msgspec.Struct, array_like=True, frozen=True):
    dtype: Annotated[str, msgspec.Meta(pattern="^float(32|64)$")]
    shape: tuple[_Natural, _Natural]
    data: bytes


@readable
class Common(msgspec.Struct, kw_only=True):
    """Follows from the sums so far."""

    iteration: _Natural = 0
    """How many updates the weights have had."""
    ended: _Natural = 0
    """How many iterations were reported to be over."""
    saved_at: _Natural = 0
    """Of the last checkpoint."""
    checked_at: _Natural = 0
    """Of the last one that was looked at: an earlier one, if so many nodes were missing since that nobody could."""
    below: _Natural = 0
    """Of which checkpoints the next muster asks: of fewer iterations than this; 0: of any."""
    tries: _Natural = 0
    """Restores since the last one that was looked at."""
    scrubs: _Natural = 0
    holders: list[str]
    """Who holds each node; empty: nobody."""
    contributors: tuple[str, ...] = ()
    """Of the last round."""
    missing: tuple[_Node, ...] = ()
    """Nodes without a digest in it."""
    verdict: tuple[_Node, ...] = ()
    """Nodes that were wrong in the last step: not agreed upon yet."""
    step: Digest = ABSENT
    """Of what the last step has left."""
    loss: float = float("nan")
    batch_loss: float = float("nan")
    score: tuple[float, float, float] = (0.0, 0.0, 0.0)
    scored: _Natural = 0
    counts: Counts = msgspec.field(default_factory=Counts)
    waiting: str = ""
    failed: tuple[int, str] = (-1, "")
    """Iteration and phase after which all have gone back last, because most numbers were not finite."""
    diverged: bool = False
    """Whether that has happened twice in the same place: then it is not errors, but the training itself."""
    agenda: list[Phase] = []
    """As it was when the state was made."""
    digest: Digest = ABSENT
    arrays: dict[str, _Array] = {}
    data: Annotated[str, msgspec.Meta(max_length=256)] | msgspec.UnsetType = msgspec.UNSET
    """What it is trained on, as `Dataset.summary` says it, if that is known."""

    def pack(self, arrays: Mapping[str, Array]) -> bytes:
        """As bytes, with these arrays of two dimensions."""
        self.arrays = {
            name: _Array(array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes())
            for name, array in arrays.items()
        }
        body = msgspec.msgpack.encode(self)
        self.arrays = {}
        return _PREFIX.pack(_MAGIC, len(body)) + body + xxhash.xxh3_128_digest(body)

    @classmethod
    def unpack(cls, state: bytes | bytearray | memoryview, nodes: int, stores: int) -> tuple[Common, dict[str, Array]]:
        """What `pack` has made, for a split of so many nodes.

        Raises:
            WireError: it is not that, or damaged, or of another split.
        """
        content = memoryview(state).cast("B")
        if len(content) < _PREFIX.size + _DIGEST_BYTES:
            raise WireError(f"state of {len(content)} bytes is too short to be one of a split run")
        magic, length = _PREFIX.unpack_from(content)
        if magic != _MAGIC or len(content) != _PREFIX.size + length + _DIGEST_BYTES:
            raise WireError("these bytes are not the state of a split run")
        body = content[_PREFIX.size : _PREFIX.size + length]
        if xxhash.xxh3_128_digest(body) != content[_PREFIX.size + length :]:
            raise WireError(f"state of {len(content)} bytes is damaged: its digest differs")
        try:
            common = msgspec.msgpack.decode(body, type=cls)
            arrays = {
                name: np.frombuffer(each.data, each.dtype).reshape(each.shape) for name, each in common.arrays.items()
            }
        except (msgspec.DecodeError, ValueError) as error:
            raise WireError(f"state of a split run that can't be read: {error}") from error
        named = {*common.missing, *common.verdict}
        for phase in common.agenda:
            if isinstance(phase, Mend):
                named |= {*phase.nodes, *phase.without, *([nodes] if phase.store >= stores else [])}
        if len(common.holders) != nodes or any(node >= nodes for node in named) or not common.agenda:
            raise WireError(f"state of a split run with {len(common.holders)} nodes; here there are {nodes}")
        common.arrays = {}
        return common, arrays
