"""Views of which is to be decided what follows, and how ballots are written."""

from __future__ import annotations

from transcript import Machine, view

from edgepeer.topology.view import MAX_MEMBERS
from edgepeer.wire import frames as fr

__all__ = ["OPEN", "SEVEN", "ballot", "poll"]

OPEN = view(2, "abcde", after=view(1, "abcdefg"))
"""What was decided in the view before, with f and g, may be known to none but its holders."""
SEVEN = view(1, "abcdefg")


def ballot(text: str) -> int:
    """The number of a ballot: "2c" is the second that a member at position 2 can lead."""
    return 0 if text == "0" else int(text[0]) * MAX_MEMBERS + "abcdefghij".index(text[1])


def poll(machine: Machine, peer: str, candidate: str, led: str = "0", *, number: int = 1, epoch: int = 1) -> list[str]:
    return machine.frame(peer, fr.Poll(epoch=epoch, candidate=candidate, number=number, ballot=ballot(led)))
