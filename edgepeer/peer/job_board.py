"""Which job counts, when brokers come and go: one that was away, or another of the list, may know only an old one.

    told of                                     | answer
    --------------------------------------------+-------------------------------------------------------------------
    the current job                             | SAME
    no job, while connected                     | TAKEN: the current one is over
    that a job is over                          | TAKEN if it is the current one, SAME if there is none, else CORRECT
    a job that is over, as we know              | CORRECT: say so, or what is current (at most CORRECTIONS times)
    an older job                                | CORRECT, likewise
    another of the current one's id             | CORRECT, likewise
    what can't be read                          | CORRECT, likewise; IGNORED if there is no current job
    any other, by a peer, or a device again     | TAKEN; of the one before it is known that it is older, and no more
    any other                                   | TAKEN, and the one before is over

An older job is one that was made before, by the clock of who began it: when we connect, or of a peer, or where a device
says it again (see said_again): two of which each says its own must come to the same. None is older than what is over.

What a peer tells may come before what a broker, who is slow, has yet to tell of the time before. So until it comes to
the job that a peer has told of, an older one is old here, too, and that there is none is said of another. When it has
come to it, all that was before is over, as where the broker has told first: what comes once more of that, this device
may have said itself. So it is with the job that a device announces because nobody tells of any.

What a device was at when it stopped counts as its current job in this, until it hears of any other; and that is over,
then, as the current one would be.

Plain data: no clock, no network.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

from edgepeer.training.job import Job

__all__ = ["JobBoard", "Verdict"]

CORRECTIONS: Final = 3
"""Two who disagree must come to an end."""
_REMEMBERED: Final = 64
_CORRECTED: Final = 256
_UNREADABLE: Final = "?"  # no job's id


class Verdict(enum.Enum):
    """What to do about a job that was announced."""

    SAME = enum.auto()
    TAKEN = enum.auto()
    CORRECT = enum.auto()
    IGNORED = enum.auto()


class JobBoard:
    """What one device knows of its fabric's jobs.

    Args:
        is_over: whether an earlier life of this device knew a job to have been withdrawn.
        in_order: nothing is told of that is older than what was told before, as in a fleet: then no clock is asked.
    """

    def __init__(self, is_over: Callable[[str], bool], *, in_order: bool = False) -> None:
        self.current: Job | None = None
        self.unfinished: Job | None = None
        """What this device was at when it stopped, as long as nothing is known of what its fabric is at."""
        self._word: str | None = None
        """Of which job this connection has told last; empty: that it is over; None: of nothing, or no more."""
        self._is_over = is_over
        self._in_order = in_order
        self._catching_up = False
        self._ahead = False
        """Whether a peer has told of the current job, or this device has, and the broker has yet to come to it."""
        self._passed: dict[str, None] = {}
        """Which were here, or told of by the broker, before it has come to that."""
        self._over: dict[str, None] = {}
        self._older = ""
        """Which was last told of that is older than what counts here."""
        self._corrected: dict[tuple[str, bool], int] = {}
        """How often what was said of a job, by a peer or not: who keeps what the broker has from being corrected is not
        a peer that says it again and again."""

    def connected(self) -> None:
        """What the broker retains comes now, and then what is said later than all that is known."""
        self._word, self._catching_up, self._ahead = None, True, False

    def synced(self) -> None:
        """What comes from now on is said now."""
        self._catching_up = False

    def see(self, job: Job | None, *, over: str = "", by_peer: bool = False, again: bool = False) -> Verdict:
        """The fabric's job, as the broker has it, or a peer that is connected.

        Args:
            over: which job is, as is said; empty: nothing is said of that, or, if there is none, whichever there was.
            again: whether it is said by a device.
        """
        if not by_peer:
            cleared = job is None and not over and not self._in_order
            self._word = None if cleared else "" if job is None else job.id
        current = self.current
        if job is None and over:
            return self._see_over(over, by_peer=by_peer)
        if over and job is not None and over != job.id:
            self._end(over)
        if job is not None and job == current:
            if not (by_peer or again):  # which this device may have said itself
                self._end_passed()
            self._ahead &= by_peer
            return Verdict.SAME
        if job is not None and self._is_old(job, by_peer=by_peer, again=again):
            return self._correct(job.id, by_peer=by_peer)
        if job is None and self._ahead:
            return Verdict.SAME
        if self._in_order or job is None:
            by_peer = again = False
        return self._take(job, by_peer=by_peer, again=again)

    @property
    def behind(self) -> bool:
        """Whether this connection has told all that was said before, and has yet to tell of the current job; or, where
        there is none, that what it has told of last is over, or anything. What can't be read may be a later one than
        this device knows, unless a peer has told of that since."""
        if self._catching_up:
            return False
        if self._word == _UNREADABLE:
            return self._ahead
        if self.current is not None:
            return self._word != self.current.id
        return self._word is None or self.knows_over(self._word)

    def take_up(self, job: Job) -> None:
        """This device announces what it was at when it stopped: nobody tells of any."""
        self.current, self.unfinished, self._ahead = job, None, True

    def _end_passed(self) -> None:
        """The broker has come to the job that a peer has told of, or to a later one."""
        for job in self._passed:
            self._end(job)
        self._passed.clear()

    def _see_over(self, job: str, *, by_peer: bool) -> Verdict:
        current, unfinished = self.current, self.unfinished
        if current is not None and current.id == job:
            return self._take(None)
        self._end(job)
        if current is not None:
            return self._correct(job, by_peer=by_peer)
        if unfinished is not None and unfinished.id == job:
            self.unfinished = None
        return Verdict.SAME

    def _take(self, job: Job | None, *, by_peer: bool = False, again: bool = False) -> Verdict:
        before, was_at = self.current, self.current or self.unfinished
        self.current, self.unfinished = job, None
        self._ahead = by_peer
        if job is None:
            self._passed.clear()  # they may count again
        else:
            self._passed.pop(job.id, None)  # it counts again
            if not (by_peer or again):
                self._end_passed()
        if was_at is not None and (job is None or job.id != was_at.id):
            if by_peer:
                self._pass(was_at.id)
            elif not again:
                self._end(was_at.id)
        return Verdict.SAME if job is before else Verdict.TAKEN

    def _end(self, job: str) -> None:
        _remember(self._over, job)

    def _pass(self, job: str) -> None:
        _remember(self._passed, job)

    def unreadable(self) -> None:
        """The broker has told of a job that can't be read: of another build's, perhaps."""
        self._word, self.unfinished = _UNREADABLE, None

    def spoiled(self) -> Verdict:
        """What the broker has for the fabric's job can't be read."""
        return Verdict.IGNORED if self.current is None else self._correct(f"{self.current.id}?")  # no job's id

    def knows_over(self, job: str) -> bool:
        """Whether a job is over for all, whatever clocks say."""
        return job in self._over or self._is_over(job)

    def came_before(self, job: str) -> bool:
        """Whether a job of that id is older than what this device was at, as an earlier life of it knew, or by its
        clock. That others say that it is over means nothing: the fabric may have gone on to it, and ended it, since."""
        return self._is_over(job) or job == self._older

    def _correct(self, job: str, *, by_peer: bool = False) -> Verdict:
        said = job, by_peer
        times = self._corrected[said] = self._corrected.pop(said, 0) + 1
        if len(self._corrected) > _CORRECTED:
            del self._corrected[next(iter(self._corrected))]
        return Verdict.CORRECT if times <= CORRECTIONS else Verdict.IGNORED

    def _is_old(self, job: Job, *, by_peer: bool, again: bool) -> bool:
        current = self.current or self.unfinished
        if self.knows_over(job.id):
            return True
        if current is None or job.id == current.id:
            return current is self.current is not None  # an id names one job: there is a run of it
        if self._in_order or self.knows_over(current.id):
            return False
        if by_peer or again:  # of two, each of whom tells the other, one takes the other's
            older = (job.created, job.id) < (current.created, current.id)
        else:
            older = (self._catching_up or self._ahead) and 0 < job.created < current.created
            if older and self._ahead:
                self._pass(job.id)
        self._older = job.id if older else self._older
        return older


def _remember(jobs: dict[str, None], job: str) -> None:
    jobs[job] = None
    if len(jobs) > _REMEMBERED:
        del jobs[next(iter(jobs))]
