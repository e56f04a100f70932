"""How a device announces the fabric's job in the place of whoever began it: the job's document, and what is added.

Unlike the first word on a job, it says nothing of the order of jobs: it may be said from checkpoints alone, or cross
with what others say, and the fabric may have gone on to another since. Only of the one that is named as over it does.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from edgepeer.readable import readable
from edgepeer.training.job import Job

__all__ = ["Again", "said_again"]


@readable
class Again(msgspec.Struct, frozen=True, kw_only=True):
    """What is added: `unpack(document, Again)`."""

    again: bool = False
    """Whether it is said by a device."""
    after: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Which job is over, whatever clocks say; empty: nothing is said of that."""


class _JobAgain(Job, frozen=True, kw_only=True):
    again: bool = True
    after: str = ""


def said_again(job: Job, *, after: str = "") -> Job:
    """The job as a device announces it. `after`: the job that is known to be over."""
    return _JobAgain(**{name: getattr(job, name) for name in Job.__struct_fields__}, after=after)
