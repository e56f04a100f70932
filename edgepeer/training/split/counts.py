"""What happened in a run, as all peers know it."""

from __future__ import annotations

import msgspec

from edgepeer.readable import readable

__all__ = ["Counts"]


@readable
class Counts(msgspec.Struct, kw_only=True):
    """Of the whole fleet: every peer that was there all the time has the same numbers."""

    computed: int = 0
    """Iterations, those that were done again included."""
    lines: int = 0
    """Wrong lines that were corrected."""
    damaged: int = 0
    """Lines that were damaged on their way, and made up for."""
    erased: int = 0
    """Contributions of nodes that were missing, and made up for."""
    unchecked: int = 0
    """Steps and other rounds in which nobody could check all that they check otherwise, for too much was missing: an
    error there is not found by them."""
    odd: int = 0
    """Nodes that were found to go on from something else, and did their step again."""
    regenerated: int = 0
    """Blocks that were put together again from others'."""
    scrubbed: int = 0
    """Blocks that a scrub found wrong."""
    restored: int = 0
    """Times that all went back to a checkpoint."""
    checkpoints: int = 0
