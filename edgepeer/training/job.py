"""A training job: the one small document that tells every peer of a fabric what to train.

It names things that are already on the devices, or describes them as data; it never carries code. All
fields are bounded, so whoever decodes a job from the network holds one that is sane in itself; whether it
can run on this device is for `build.make_trainer` and `datasets.load_dataset` to say.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from typing import Annotated, Final, Literal

import msgspec

from edgepeer.errors import ConfigError
from edgepeer.training.form import LossChoice

__all__ = ["MODEL_CONFIG_LIMIT_BYTES", "Job", "new_job"]

MODEL_CONFIG_LIMIT_BYTES: Final = 2 << 20

_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z")]
_Model = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=255, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*(:[A-Za-z_][A-Za-z0-9_.]*)?\Z"),
]
_Dataset = Annotated[str, msgspec.Meta(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
_Code = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Rounds = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to train, on what, for how long."""

    id: _Id
    """Names the run; a job with a new id starts afresh."""
    model: _Model = "mlp"
    """A built-in (mlp, mlp-plain, linear, cnn), or package:function installed on the devices."""
    model_config: Annotated[str, msgspec.Meta(max_length=MODEL_CONFIG_LIMIT_BYTES)] = ""
    """A Keras model as JSON (`model.to_json()`); wins over `model` unless empty."""
    trainer: Literal["keras", "numpy"] = "keras"
    dataset: _Dataset = "digits"
    """digits, mnist, npz:PATH (the same file on every device), or local:PATH (each device's own)."""
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 100
    """Samples per peer and round. With a code, those of all peers together are spread evenly over its chunks. Of a
    split job those of a round, the same at all peers."""
    learning_rate: Annotated[float, msgspec.Meta(gt=0)] = 0.1
    optimizer: _Code = "sgd"
    """By name, with numbers: see optimizers."""
    schedule: _Code = "constant"
    """Of the learning rate: see schedules."""
    loss: LossChoice = "auto"
    """What is to become small; auto: as the data are, see losses."""
    stop_on_nan: bool = False
    """Whether the run ends with the first round whose loss is not finite."""
    rounds: _Rounds = 200
    wait_for: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1
    """How many peers must be there before the first round."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0
    """Decides initial parameters, who holds which samples, their order, and dropout."""
    eval_every: _Rounds = 10
    """Rounds from one evaluation on the test data to the next."""

    code: _Code = "none"
    """How gradients are coded, so that the sum can be had without some peers: see edgepeer.coding."""
    wait: Annotated[str, msgspec.Meta(max_length=63)] = "exact"
    """When the root may close a coded round: exact, error<E or deadline:SECONDS."""

    split: Annotated[str, msgspec.Meta(max_length=255)] = ""
    """How the model's layers are divided over the peers, as "codenet:m=5,n=4,t=1": see split.named. Empty: they aren't,
    and each peer has the whole model. What follows, up to `sparsity`, is for split jobs only."""
    guarantee: Literal["adversarial", "generic"] = "adversarial"
    """Whether wrong numbers may be any, or are unrelated to each other, so that more of them can be told."""
    scrub_every: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 10
    """Rounds from one search for wrong weights to the next; 0: only before checkpoints, and at the end."""
    l2: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """lambda of the term lambda/2 |W|^2 in the loss, biases included."""
    sparsity: Annotated[str, msgspec.Meta(max_length=255)] = ""
    """Of a hidden layer, as "rho=0.05,beta=3": see split.sparsity. Empty: none."""

    created: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Unix time, by the clock of who announces it: of two jobs that brokers keep the later counts; 0: unknown."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.learning_rate):
            raise ValueError(f"Expected a finite `float`, got {self.learning_rate} - at `$.learning_rate`")
        if not math.isfinite(self.l2):
            raise ValueError(f"Expected a finite `float`, got {self.l2} - at `$.l2`")
        if len(self.model_config.encode(errors="surrogatepass")) > MODEL_CONFIG_LIMIT_BYTES:
            raise ValueError(f"Expected at most {MODEL_CONFIG_LIMIT_BYTES} bytes - at `$.model_config`")


def new_job(**fields: object) -> Job:
    """A checked job, with a random id, and the time, where none is given.

    Raises:
        ConfigError: a field is unknown or out of its bounds.
    """
    for name in fields:
        if name not in Job.__struct_fields__:
            raise ConfigError(f"job: no field {name!r}; there are {', '.join(Job.__struct_fields__)}")
    try:
        return msgspec.convert({"id": secrets.token_hex(8), "created": time.time(), **fields}, Job)
    except ValueError as error:  # msgspec.ValidationError is one
        reason, name = _reason_and_field(str(error))
        value = repr(fields.get(name))
        shown = value if len(value) <= 80 else f"{value[:80]}…"
        raise ConfigError(f"job: {name} = {shown}: {reason}") from error


def _reason_and_field(text: str) -> tuple[str, str]:
    # msgspec says "Expected `int` >= 1 - at `$.rounds`".
    found = re.fullmatch(r"(.*) - at `\$\.(\w+)[^`]*`", text, re.DOTALL)
    return (found[1].replace("`", ""), found[2]) if found else (text, "?")
