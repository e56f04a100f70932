"""`edgepeer export`: the model in a checkpoint as a file for Keras or NumPy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgepeer.cli.verb import Verb
from edgepeer.errors import ConfigError, JobError, WireError
from edgepeer.processes import os_reason
from edgepeer.settings import ExportSettings

if TYPE_CHECKING:
    from edgepeer.training.checkpoint import Checkpoint
    from edgepeer.training.job import Job

__all__ = ["command"]


def run(settings: ExportSettings) -> int:
    """Write the model in the checkpoint that the settings name."""
    if settings.checkpoint is None or settings.out is None:
        raise ConfigError("name a checkpoint and a file, as in: edgepeer export 00000200.checkpoint model.keras")
    from edgepeer.training.checkpoint import list_checkpoints
    from edgepeer.training.saved import check_target, save_model

    given: Path = settings.checkpoint
    try:
        directories = _directories(given) if given.is_dir() else []
        if given.is_dir() and not directories:
            raise ConfigError(f"checkpoint = {given}: there is no checkpoint in this directory")
        # Of one device's the newest that is whole; of several devices', one of any says whose job they are of.
        kept_here = [list_checkpoints(directory) for directory in directories] or [[given]]
        checkpoint = _first_good(kept_here[0] if len(kept_here) == 1 else [paths[0] for paths in kept_here])
        if checkpoint.job.split and not directories:
            raise ConfigError(
                f"checkpoint = {given}: has one device's part of a split job; name a directory with those of several"
            )
        if len(kept_here) > 1 and not checkpoint.job.split:
            raise ConfigError(
                f"checkpoint = {given}: has those of {len(kept_here)} devices; name one directory of them"
            )
        kept = _kept(checkpoint.job, directories) if checkpoint.job.split else {}
    except OSError as error:
        raise ConfigError(f"checkpoint = {given}: can't be read: {error.strerror or error}") from None
    job, state, digest = checkpoint.job, checkpoint.state, checkpoint.digest
    check_target("out", settings.out, model=job.model, described=bool(job.model_config))
    if job.split:
        checkpoint, state, digest = _newest_whole(job, kept)
    finite = save_model(settings.out, job, state, digest=digest, models=settings.models, broken=True)
    print(f"wrote {settings.out}: {job.model_name} of job {job.id} after round {checkpoint.round} of {job.rounds}")
    if checkpoint.diverged:  # written all the same: it may be all that there is
        print(
            f"edgepeer: job {job.id}: diverged: the loss was not finite in round {checkpoint.diverged}: look at what "
            "the model says before it is used, or export a checkpoint from before that",
            file=sys.stderr,
        )
    if not finite:
        print(
            f"edgepeer: {settings.out}: not all of its parameters are finite: it is of no use; export an older "
            "checkpoint",
            file=sys.stderr,
        )
    return 0


def _directories(given: Path) -> list[Path]:
    """The directory itself, or those below it that have checkpoints: the state directories of several devices."""
    from edgepeer.training.checkpoint import list_checkpoints

    return [given] if list_checkpoints(given) else sorted({path.parent for path in given.rglob("*.checkpoint")})


def _first_good(paths: list[Path]) -> Checkpoint:
    """The first that can be read; what is wrong with the last one is raised."""
    from edgepeer.training.checkpoint import read_checkpoint

    return next(_good(paths[:-1]), None) or read_checkpoint(paths[-1])


def _good(paths: list[Path]) -> Iterator[Checkpoint]:
    """Those that can be read; the others are named."""
    from edgepeer.training.checkpoint import read_checkpoint

    for path in paths:
        try:
            yield read_checkpoint(path)
        except WireError as error:
            print(f"edgepeer: {error}: left out", file=sys.stderr)
        except OSError as error:  # a disk that begins to fail, or a peer that has written a newer one
            print(f"edgepeer: {path}: can't be read: {os_reason(error)}: left out", file=sys.stderr)


def _kept(job: Job, directories: list[Path]) -> dict[int, list[Checkpoint]]:
    """Of a split job: what the devices have, by the iteration that it is of."""
    from edgepeer.training.checkpoint import list_checkpoints

    found: dict[int, list[Checkpoint]] = {}
    for directory in directories:
        for checkpoint in _good(list_checkpoints(directory)):
            if checkpoint.job.id == job.id:
                found.setdefault(checkpoint.round, []).append(checkpoint)
    return found


def _newest_whole(job: Job, kept: dict[int, list[Checkpoint]]) -> tuple[Checkpoint, bytes, str]:
    """The model after the newest iteration of which the devices have enough, its digest, and a checkpoint of that.

    Raises:
        JobError: they have enough of none; of which they have the most, and what is missing.
    """
    from edgepeer.training.split.part import unpack_part
    from edgepeer.training.split.whole import whole_model

    for number in sorted(kept, reverse=True):
        with contextlib.suppress(JobError):
            return kept[number][0], *whole_model(job, [unpack_part(each.state) for each in kept[number]])
    most = max(kept.values(), key=len)
    return most[0], *whole_model(job, [unpack_part(each.state) for each in most])


_VERB = Verb(
    kind=ExportSettings,
    about="Make a model file of a checkpoint.\n\n"
    "CHECKPOINT is a file that a peer has kept (--checkpoint-every), or a directory: then its newest. Of a split job, "
    "it is a directory with the state directories of several devices, each of which keeps only its part. OUT ends in "
    ".keras, or in .npz for a dense model for NumPy alone. docs/data-and-models.md says how to use them.",
    examples=[
        ("the newest of this device", "edgepeer export ~/.edgepeer/checkpoints model.keras"),
        ("of a split job, from what several devices have kept", "edgepeer export all-the-devices/ model.npz"),
        ("of a job that names a function of yours", "edgepeer export 00000012.checkpoint m.keras --models mymodels"),
    ],
    run=run,
)


def command() -> click.Command:
    """The verb as click knows it; the files are arguments."""
    found = _VERB.command()
    found.params = [
        click.Argument([parameter.name], metavar=parameter.name.upper(), required=False)
        if parameter.name in ("checkpoint", "out")
        else parameter
        for parameter in found.params
    ]
    return found
