"""What a round in bf16 or int8 must come to, to the bit: the trees of a view walked by hand.

Each peer adds to its own weighted vector what it decodes of its children's, in the order in which they are added up,
and encodes the sum for its parent; what is decoded of a root's is the result. Each tree has a range of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.lane import spans
from edgepeer.topology.view import View
from edgepeer.wire.encoding import codec_of
from edgepeer.wire.precision import Precision, block_of, encoded_bytes

__all__ = ["rounded_sum"]


def rounded_sum(
    view: View, precision: Precision, brought: Mapping[PeerId, tuple[FloatVector, float]]
) -> FloatVector | None:
    """The result. None: it is none, since something is not finite.

    Args:
        brought: what each member of the view has brought, float32, and its weight.
    """
    codec = codec_of(precision)
    if codec is None:
        raise ProtocolBug(f"{precision} is not rounded")
    size = next(vector.size for vector, _ in brought.values())
    result = np.empty(size, np.float32)
    for lane, over in enumerate(spans(size, view.trees, block_of(precision))):

        def travelled(peer: PeerId, lane: int = lane, over: slice = over) -> FloatVector | None:
            vector, weight = brought[peer]
            total = vector[over] * np.float32(weight) if weight else np.zeros_like(vector[over])
            for child in view.children(peer, lane):
                if (below := travelled(child)) is None:
                    return None
                total = total + below
            data = bytearray(encoded_bytes(precision, total.size))
            if not codec.encode(total, data):
                return None
            if wrong := codec.decode(data, total):
                raise ProtocolBug(f"what was encoded {wrong}")
            return total

        (root,) = (peer for peer in view.ids if view.parent(peer, lane) is None)
        if (part := travelled(root)) is None:
            return None
        result[over] = part
    return result
