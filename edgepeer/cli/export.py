"""`edgepeer export`: the model in a checkpoint as a file for Keras or NumPy."""

from __future__ import annotations

from pathlib import Path

import click

from edgepeer.cli.verb import Verb
from edgepeer.errors import ConfigError
from edgepeer.settings import ExportSettings

__all__ = ["command"]


def run(settings: ExportSettings) -> int:
    if settings.checkpoint is None or settings.out is None:
        raise ConfigError("name a checkpoint and a file, as in: edgepeer export 00000200.checkpoint model.keras")
    from edgepeer.training.checkpoint import list_checkpoints, read_checkpoint
    from edgepeer.training.saved import check_target, save_model

    given: Path = settings.checkpoint
    try:
        newest = list_checkpoints(given)[:1] if given.is_dir() else [given]
        if not newest:
            raise ConfigError(f"checkpoint = {given}: there is no checkpoint in this directory")
        checkpoint = read_checkpoint(newest[0])
    except OSError as error:
        raise ConfigError(f"checkpoint = {given}: can't be read: {error.strerror or error}") from None
    job = checkpoint.job
    check_target("out", settings.out, model=job.model, described=bool(job.model_config))
    save_model(settings.out, job, checkpoint.state, digest=checkpoint.digest, models=settings.models)
    print(f"wrote {settings.out}: {job.model} of job {job.id} after round {checkpoint.round} of {job.rounds}")
    return 0


_VERB = Verb(
    kind=ExportSettings,
    about="Make a model file of a checkpoint.\n\n"
    "CHECKPOINT is a file that a peer has kept (--checkpoint-every), or a directory: then its newest. OUT ends in "
    ".keras, or in .npz for a dense model for NumPy alone. docs/data-and-models.md says how to use them.",
    examples=[
        ("the newest of this device", "edgepeer export ~/.edgepeer/checkpoints model.keras"),
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
