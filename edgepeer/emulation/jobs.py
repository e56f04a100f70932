"""From the settings of `train` and `emulate` to a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgepeer.errors import ConfigError
from edgepeer.settings import JobSettings

if TYPE_CHECKING:
    from edgepeer.training.job import Job

__all__ = ["make_job"]


def make_job(settings: JobSettings, *, wait_for: int) -> Job:
    """A checked job with a new id.

    Raises:
        ConfigError: the model's file can't be read, or a field is not what a job allows.
    """
    from edgepeer.training.job import new_job

    config = ""
    if settings.model_config is not None:
        try:
            config = settings.model_config.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not text"
            raise ConfigError(f"model_config = {settings.model_config}: can't read it: {reason}") from None
    return new_job(
        model=settings.model,
        model_config=config,
        trainer=settings.trainer,
        dataset=settings.dataset,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        optimizer=settings.optimizer,
        rounds=settings.rounds,
        wait_for=wait_for,
        seed=settings.seed,
        eval_every=settings.eval_every,
    )
