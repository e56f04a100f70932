"""A device's checkpoints: when to write one, which to go on from, and which jobs are over.

A checkpoint that can't be written costs a warning, never the training; one that can't be read is told of and
passed over for the one before it. The methods wait for the disk: they belong into the worker's thread.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from edgepeer.errors import ConfigError, JobError, WireError
from edgepeer.given import open_regular
from edgepeer.topology.view import View
from edgepeer.training.checkpoint import (
    Checkpoint,
    list_checkpoints,
    peek_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    write_atomically,
    write_checkpoint,
)
from edgepeer.training.job import Job
from edgepeer.training.state import parameter_digest
from edgepeer.training.trainer import Trainer

__all__ = ["Checkpoints", "Ending"]

_log = logging.getLogger(__name__)
_REMEMBERED: Final = 64  # jobs that are over
Ending = Literal["done", "withdrawn"]


class Checkpoints:
    """Those under one state directory.

    Which jobs are over is noted beside them, also where there are none: who has been told that a job is withdrawn must
    not begin it anew when a broker that lost power knows it as it was before.

    Args:
        every: rounds from one to the next; 0: none are written, and none are used.
        keep: how many stay.
    """

    def __init__(self, state_dir: Path | None, *, every: int, keep: int) -> None:
        home = state_dir / "checkpoints" if state_dir is not None else None
        self.directory = home if every else None
        """None where there are none."""
        self._over_file = home / "over.json" if home is not None else None
        self.written = 0
        self.failed = 0
        """Those that could not be written."""
        self._every = every
        self._keep = keep
        self._trouble = ""
        self._over: dict[str, Ending] = {}

    # -- writing ---------------------------------------------------------------------------------------------

    @property
    def every(self) -> int:
        """Rounds from one to the next; 0: none are written."""
        return self._every if self.directory is not None else 0

    def due(self, number: int, *, last: bool) -> bool:
        """Whether the state after this round is to be kept: every so many rounds, and the last."""
        return self.directory is not None and (number % self._every == 0 or last)

    def save(self, job: Job, number: int, trainer: Trainer, view: View, *, diverged: int = 0, data: str = "") -> None:
        """Write the trainer's state after round `number`, which ended in `view`; a failure is told and counted.
        `diverged`: the first round whose loss was not finite; 0: there was none. `data`: what it is trained on."""
        if self.directory is not None:
            digest = parameter_digest(trainer.parameters())
            self._write(job, number, view, trainer.state(data=data), digest=digest, diverged=diverged)

    def save_part(self, job: Job, iteration: int, part: bytes, view: View, *, digest: str, diverged: int = 0) -> None:
        """The same for the blocks of one node of a split job. `digest`: of what all peers had in common then."""
        if self.directory is not None:
            self._write(job, iteration, view, part, digest=digest, diverged=diverged)

    def _write(self, job: Job, number: int, view: View, state: bytes, *, digest: str, diverged: int = 0) -> None:
        assert self.directory is not None
        checkpoint = Checkpoint(
            job=job,
            round=number,
            generation=view.generation,
            epoch=view.epoch,
            begun=view.plain_round,
            members=view.ids,
            slots=view.slots,
            digest=digest,
            diverged=diverged,
            state=state,
        )
        written = False
        try:
            write_checkpoint(self.directory, checkpoint)
            written = True
        except OSError as error:
            self.failed += 1
            self._complain(f"checkpoint of round {number} is not written to", self.directory, error)
        self.written += written
        try:
            prune_checkpoints(self.directory, self._keep)  # also then: it may be there all the same, but not to last
        except OSError as error:
            if written:
                so = "training goes on, until there is no room"
                self._complain("earlier checkpoints are not removed from", self.directory, error, so)
            return
        if not written:
            return
        if self._trouble:
            _log.info("checkpoints are written to %s again", self.directory)
        self._trouble = ""

    def _complain(
        self,
        what: str,
        where: Path,
        error: OSError,
        so: str = "training goes on, but a restart goes back further",
    ) -> None:
        trouble = error.strerror or str(error)
        if trouble != self._trouble:  # told once, not every so many rounds
            self._trouble = trouble
            cure = "free some space there, see that it can be written, or choose another --state-dir"
            text = "%s %s: %s; %s: %s"
            _log.warning(text, what, where, trouble, so, cure)

    # -- reading ---------------------------------------------------------------------------------------------

    def unfinished(self) -> Job | None:
        """The job that this device was at when it stopped, if that is not over. To be asked first of all."""
        self._over = self._read_over()
        last = next(self._good(self._paths()), None)  # rounds of one job say nothing of another's
        return last[1].job if last is not None and last[1].job.id not in self._over else None

    def restore(self, job: Job, trainer: Trainer) -> Checkpoint | None:
        """Let the trainer go on from the newest checkpoint of this job that fits; None: there is none. That is the one
        that was written last, of whatever generation and round: what this device had done before it has given up.

        Raises:
            JobError: the trainer did not become what the checkpoint holds.
        """
        for path, checkpoint in self._of(job):
            try:
                trainer.load_state(checkpoint.state)
            except WireError as error:
                _log.warning("%s is not used: %s", path, error)
                continue
            if parameter_digest(trainer.parameters()) != checkpoint.digest:
                raise JobError(f"{path}: the trainer's parameters are not those of the checkpoint: delete the file")
            return checkpoint
        return None

    def restore_parts(self, job: Job, use: Callable[[bytes | memoryview], None]) -> Checkpoint | None:
        """Let a split job go on from checkpoints of this job. Returns the newest that can be used; None: there is none.

        Args:
            use: takes one after the other, the newest first; raises ConfigError or WireError for one that is none.
        """
        newest = None
        for path, checkpoint in self._of(job):
            try:
                use(checkpoint.state)
            except (ConfigError, WireError) as error:
                _log.warning("%s is not used: %s", path, error)
            else:
                newest = newest or checkpoint
        return newest

    def kept_at(self, job: Job, digest: str) -> Checkpoint | None:
        """Of a split job: the newest checkpoint that was written when `digest` was that of what all had in common."""
        return next((checkpoint for _, checkpoint in self._of(job) if checkpoint.digest == digest), None)

    def _of(self, job: Job) -> Iterator[tuple[Path, Checkpoint]]:
        for path, checkpoint in self._good(self._paths()):
            if checkpoint.job == job:
                yield path, checkpoint
            elif checkpoint.job.id == job.id:
                _log.warning("%s is not used: it is of another job with the id %s", path, job.id)

    def newest(self, job: Job) -> Checkpoint | None:
        """The one of this job that was written last, without its state: to read that may take long. Whether it is good,
        and fits the model, is known when it is restored."""
        for path in self._paths():
            with contextlib.suppress(OSError, WireError):  # told of then
                if (found := peek_checkpoint(path)).job == job:
                    return found
        return None

    def discard(self, job: Job) -> None:
        """Delete this device's checkpoints of a job."""
        for path, _ in list(self._of(job)):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("%s can't be deleted: %s", path, error.strerror or error)

    def any(self) -> bool:
        """Whether there is anything that could be restored."""
        return bool(self._paths())

    def _good(self, paths: Iterable[Path]) -> Iterator[tuple[Path, Checkpoint]]:
        for path in paths:
            try:
                yield path, read_checkpoint(path)
            except WireError as error:
                _log.warning("%s; the checkpoint before it is used", error)
            except OSError as error:
                _log.warning("%s can't be read: %s; the checkpoint before it is used", path, error.strerror or error)

    def _paths(self) -> list[Path]:
        """All files, the one that was written last first."""
        try:
            return list_checkpoints(self.directory) if self.directory is not None else []
        except OSError as error:
            _log.warning("checkpoints in %s can't be read: %s", self.directory, error.strerror or error)
            return []

    # -- jobs that are over ------------------------------------------------------------------------------------

    def ending(self, job: str) -> Ending | None:
        """How a job ended, as far as this device knows."""
        return self._over.get(job)

    def mark_over(self, job: str, how: Ending) -> None:
        """Remember that a job is not to be gone on with; its checkpoints stay. One that is withdrawn stays so; one that
        is done may be withdrawn yet."""
        if self._over.get(job) in (how, "withdrawn"):
            return
        remembered = [*self._over.items(), (job, how)][-_REMEMBERED:]
        self._over = dict(remembered)
        if (path := self._over_file) is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, msgspec.json.encode(self._over))
        except OSError as error:
            so = "after a restart it may be taken up again"
            self._complain(f"that job {job} is {how} is not written to", path.parent, error, so)

    def _read_over(self) -> dict[str, Ending]:
        if (path := self._over_file) is None:
            return {}
        try:
            with open_regular(path) as file:
                return msgspec.json.decode(file.read(), type=dict[str, Ending])
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:  # no JSON, or no text
            _log.warning("%s can't be read (%s): jobs that were over may be taken up again", path, error)
            return {}
