"""A training job: the one small document that tells every peer of a fabric what to train.

It names things that are already on the devices, or describes them as data; it never carries code. All fields are
bounded, so whoever decodes a job from the network holds one that is sane in itself; whether it can run on this device
is for `build.make_trainer` and `datasets.load_dataset` to say.

Bounds and defaults are declared here alone: the settings of `edgepeer train` are made of them.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from edgepeer.errors import ConfigError
from edgepeer.readable import readable
from edgepeer.training.form import LossChoice
from edgepeer.wire.precision import Precision

__all__ = [
    "DESCENT",
    "L2",
    "MODEL_CONFIG_LIMIT_BYTES",
    "SPLIT_DESCENT",
    "BatchSize",
    "DatasetName",
    "Descent",
    "Guarantee",
    "Job",
    "JobId",
    "LearningRate",
    "ModelName",
    "Named",
    "NamedIfAny",
    "Peers",
    "Rounds",
    "RoundsIfAny",
    "Seed",
    "TrainerName",
    "WaitName",
    "is_job_id",
    "new_job",
]

MODEL_CONFIG_LIMIT_BYTES: Final = 2 << 20
_LATEST: Final = 1e10
"""In the year 2286: no clock says more, and of what would be later than all others nobody could be rid."""

_ID_BYTES: Final = 8
_JOB_ID: Final = re.compile(rf"[0-9a-f]{{{2 * _ID_BYTES}}}")
_NAME = r"[A-Za-z_][A-Za-z0-9_.]*"

JobId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z")]
ModelName: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=255,
        pattern=rf"^[A-Za-z_][A-Za-z0-9_.-]*(:{_NAME})?\Z",
        extra={"allowed": "mlp, mlp-plain, linear, cnn, or package:function"},
    ),
]
DatasetName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
Named: TypeAlias = Annotated[str, Meta(min_length=1, max_length=255)]
"""Something by name, with numbers: name:key=value,..."""
NamedIfAny: TypeAlias = Annotated[str, Meta(max_length=255)]
"""The same, or empty."""
WaitName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=63)]
TrainerName: TypeAlias = Literal["keras", "numpy"]
Guarantee: TypeAlias = Literal["adversarial", "generic"]
BatchSize: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]
LearningRate: TypeAlias = Annotated[float, Meta(ge=1e-30, le=100)]  # less is next to 0 in float32, or 0
Rounds: TypeAlias = Annotated[int, Meta(ge=1, le=10_000_000)]
RoundsIfAny: TypeAlias = Annotated[int, Meta(ge=0, le=10_000_000)]
Peers: TypeAlias = Annotated[int, Meta(ge=1, le=4096)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
L2: TypeAlias = Annotated[float, Meta(ge=0, le=1000)]


class Descent(NamedTuple):
    """How a model's parameters move."""

    optimizer: str
    learning_rate: float


DESCENT: Final = Descent("adam", 0.005)
"""Of a job for which nobody says it ..."""
SPLIT_DESCENT: Final = Descent("sgd", 0.1)
"""... and of a split one. Every trainer can do these."""


@readable
class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to train, on what, for how long."""

    id: JobId
    """Names the run; a job with a new id starts afresh."""
    model: ModelName = "mlp"
    """A built-in (mlp, mlp-plain, linear, cnn), or package:function installed on the devices."""
    model_config: Annotated[str, Meta(max_length=MODEL_CONFIG_LIMIT_BYTES)] = ""
    """A Keras model as JSON (`model.to_json()`); wins over `model` unless empty."""
    trainer: TrainerName = "keras"
    dataset: DatasetName = "digits"
    """digits, mnist, npz:PATH (the same file on every device), or local:PATH (each device's own)."""
    batch_size: BatchSize = 50
    """Samples per peer and round. With a code, those of all peers together are spread evenly over its chunks. Of a
    split job those of a round, the same at all peers."""
    learning_rate: LearningRate = SPLIT_DESCENT.learning_rate
    optimizer: Named = SPLIT_DESCENT.optimizer
    """By name, with numbers: see optimizers."""
    schedule: Named = "constant"
    """Of the learning rate: see schedules."""
    loss: LossChoice = "auto"
    """What is to become small; auto: as the data are, see losses."""
    stop_on_nan: bool = False
    """Whether the run ends with the first round whose loss is not finite."""
    rounds: Rounds = 200
    wait_for: Peers = 1
    """How many peers must be there before the first round."""
    seed: Seed = 0
    """Decides initial parameters, who holds which samples, their order, and dropout."""
    eval_every: Rounds = 10
    """Rounds from one evaluation on the test data to the next."""

    code: Named = "none"
    """How gradients are coded, so that the sum can be had without some peers: see edgepeer.coding."""
    wait: WaitName = "exact"
    """When the root may close a coded round: exact, error<E or deadline:SECONDS."""

    split: NamedIfAny = ""
    """How the model's layers are divided over the peers, as "codenet:m=5,n=4,t=1": see split.named. Empty: they aren't,
    and each peer has the whole model. What follows, up to `sparsity`, is for split jobs only."""
    guarantee: Guarantee = "adversarial"
    """Whether wrong numbers may be any, or are unrelated to each other, so that more of them can be told."""
    scrub_every: RoundsIfAny = 10
    """Rounds from one search for wrong weights to the next; 0: only before checkpoints, and at the end."""
    l2: L2 = 0.0
    """lambda of the term lambda/2 |W|^2 in the loss, biases included."""
    sparsity: NamedIfAny = ""
    """Of a hidden layer, as "rho=0.05,beta=3": see split.sparsity. Empty: none."""

    precision: Precision = "float32"
    """What gradients are rounded to where they travel: see precision_choice."""

    created: Annotated[float, Meta(ge=0, le=_LATEST)] = 0.0
    """Unix time, by the clock of who announces it: of two jobs that brokers keep the later counts; 0: unknown."""

    @property
    def model_name(self) -> str:
        """What its model is, for people."""
        return "Keras model" if self.model_config else self.model

    def __post_init__(self) -> None:
        if len(self.model_config.encode(errors="surrogatepass")) > MODEL_CONFIG_LIMIT_BYTES:
            raise ValueError(f"Expected at most {MODEL_CONFIG_LIMIT_BYTES} bytes - at `$.model_config`")


def is_job_id(run: str) -> bool:
    """Whether a run of that name is a job, and not a program's own, which calls it as it likes."""
    return _JOB_ID.fullmatch(run) is not None


def new_job(**fields: object) -> Job:
    """A checked job, with a random id, and the time, where none is given.

    Raises:
        ConfigError: a field is unknown or out of its bounds.
    """
    for name in fields:
        if name not in Job.__struct_fields__:
            raise ConfigError(f"job: no field {name!r}; there are {', '.join(Job.__struct_fields__)}")
    try:
        return msgspec.convert({"id": secrets.token_hex(_ID_BYTES), "created": time.time(), **fields}, Job)
    except ValueError as error:  # msgspec.ValidationError is one
        reason, name = _reason_and_field(str(error))
        value = repr(fields.get(name))
        shown = value if len(value) <= 80 else f"{value[:80]}…"
        raise ConfigError(f"job: {name} = {shown}: {reason}") from error


def _reason_and_field(text: str) -> tuple[str, str]:
    # msgspec says "Expected `int` >= 1 - at `$.rounds`".
    found = re.fullmatch(r"(.*) - at `\$\.(\w+)[^`]*`", text, re.DOTALL)
    return (found[1].replace("`", ""), found[2]) if found else (text, "?")
