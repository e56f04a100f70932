"""A segment in bf16 or int8 means nothing to a baseline: it costs the link to its sender, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from post import Post

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.wire.frames import Reduce, Result
from edgepeer.wire.precision import Precision
from edgepeer.wire.protocols import PROTOCOLS, ProtocolName


@pytest.mark.parametrize("protocol", [protocol for protocol in PROTOCOLS if protocol != "ft-tree"])
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_rounded_segment_costs_the_link(protocol: ProtocolName, precision: Precision) -> None:
    post = Post(3, protocol=protocol)
    root, sender = post.machines[0], PeerId("1")
    post.tell(0, ev.Contribute(np.ones(4, np.float32), 1.0))
    common = {"epoch": post.view.stamp, "round": 1, "offset": 0, "total": 4, "dtype": "<f4", "precision": precision}
    for frame in (Reduce(contributors=b"\2", weight=1.0, **common), Result(**common)):  # type: ignore[arg-type]
        assert root.sink(sender, frame, 8) is None
        effects = root.handle(ev.FrameReceived(sender, frame, None, 8, False), post.now)
        said = f"{type(frame).__name__} in {precision}: this protocol has float32 only"
        assert [effect.reason for effect in effects if isinstance(effect, fx.CloseLink)] == [said]
        root.handle(ev.LinkUp(sender, 1), post.now)
