"""From a job to the network that is divided, or to one line that says why it can't be.

A built-in dense model, or a Keras config (`keras_config`). What a model says of its last layer goes with the loss:
probabilities and their logits are the same network here, trained on the logits.
"""

from __future__ import annotations

from typing import NamedTuple

from edgepeer.errors import ConfigError, ModelError
from edgepeer.training.form import Form
from edgepeer.training.job import Job
from edgepeer.training.models import DENSE_NETWORKS
from edgepeer.training.optimizers import parse_optimizer
from edgepeer.training.schedules import parse_schedule
from edgepeer.training.split.keras_config import DenseLayer, dense_layers
from edgepeer.training.split.network import Network
from edgepeer.training.split.sparsity import parse_sparsity

__all__ = ["check_training", "dense_network", "stored_bytes"]

_OF_LOSS = {"crossentropy": "softmax", "binary_crossentropy": "sigmoid"}


class _SgdNumbers(NamedTuple):
    momentum: float
    nesterov: bool
    l2: float


def dense_network(job: Job, form: Form) -> Network:
    """The job's network for data of that form, float32.

    Raises:
        ConfigError: optimizer, schedule or sparsity are none, or none that coded weights can be trained with.
        ModelError: the model can't be split, or does not fit the data.
    """
    layers = dense_layers(job.model_config, form.input_shape) if job.model_config else _built_in(job.model, form)
    name = "model_config" if job.model_config else job.model
    if layers[-1].units != form.outputs:
        what = "classes" if form.loss == "crossentropy" else "numbers to learn"
        raise ModelError(f"model {name}: has {layers[-1].units} outputs where {form.name} has {form.outputs} {what}")
    sgd, schedule = _sgd(job.optimizer), parse_schedule(job.schedule, rounds=job.rounds)
    hidden = layers[:-1]
    return Network(
        sizes=(form.features, *(layer.units for layer in layers)),
        activation=tuple(layer.activation for layer in hidden),
        output=_output(layers[-1], form),
        objective=form.loss,
        bias=tuple(layer.bias for layer in layers),
        dropout=tuple(layer.dropout for layer in hidden),
        sparsity=parse_sparsity(job.sparsity) if job.sparsity else None,
        learning_rate=job.learning_rate,
        schedule=None if str(schedule.named) == "constant" else schedule,
        momentum=sgd.momentum,
        nesterov=sgd.nesterov,
        l2=_l2(job, sgd, layers),
        seed=job.seed,
    )


def check_training(job: Job) -> None:
    """Refuse what can be done with no data.

    Raises:
        ConfigError, ModelError: as `dense_network`.
    """
    _sgd(job.optimizer)
    parse_schedule(job.schedule, rounds=job.rounds)
    if job.sparsity:
        parse_sparsity(job.sparsity)
    if not job.model_config:
        _require_built_in(job.model)


def _require_built_in(model: str) -> None:
    if model not in DENSE_NETWORKS:
        raise ModelError(
            f"model {model!r}: can't be split; take {', '.join(DENSE_NETWORKS)}, or a Keras model of Dense layers as "
            "JSON (--model-config)"
        )


def _built_in(model: str, form: Form) -> list[DenseLayer]:
    _require_built_in(model)
    network = DENSE_NETWORKS[model]
    hidden = [DenseLayer(model, width, "relu", True, 0.0, network.dropout) for width in network.hidden]
    return [*hidden, DenseLayer(model, form.outputs, "linear", True, 0.0)]


def _output(last: DenseLayer, form: Form) -> str:
    """The activation of the outputs, with the loss in mind."""
    wanted = _OF_LOSS.get(form.loss)
    if wanted is None:
        if last.activation == "softmax":
            raise ModelError(f"model_config: layer {last.name}: softmax is for loss crossentropy, not {form.loss}")
        return last.activation
    if last.activation not in ("linear", wanted):
        raise ModelError(
            f"model_config: layer {last.name}: ends in {last.activation}; for loss {form.loss} take {wanted}, or none"
        )
    return wanted


def stored_bytes(job: Job, weights: int) -> int:
    """What so many float32 weights take undivided, with what the optimizer keeps of each."""
    return (2 if _sgd(job.optimizer).momentum else 1) * 4 * weights


def _sgd(text: str) -> _SgdNumbers:
    named = parse_optimizer(text, trainer="keras")
    given = named.values
    if named.kind != "sgd":
        raise ConfigError(
            f"optimizer = {text}: split weights are coded, and stay so under updates that are linear in the gradient; "
            f"{named.kind}'s are not; take sgd, sgd:momentum=0.9 or sgd:momentum=0.9,nesterov=true"
        )
    if "clipvalue" in given:
        raise ConfigError(f"optimizer = {text}: clipping is not linear, so coded weights don't follow; leave it out")
    momentum, decay = float(given.get("momentum", 0.0)), float(given.get("weight_decay", 0.0))
    if momentum and decay:
        raise ConfigError(f"optimizer = {text}: with momentum, split training has no weight_decay; take l2 instead")
    return _SgdNumbers(momentum, bool(given.get("nesterov", False)), decay)


def _l2(job: Job, sgd: _SgdNumbers, layers: list[DenseLayer]) -> float:
    """lambda, from where it is given. Without momentum a decay of weights is the same."""
    different = next((layer for layer in layers if layer.l2 != layers[0].l2), None)
    if different is not None:
        raise ModelError(
            f"model_config: layer {different.name}: its L2 is {different.l2 / 2:g}, that of {layers[0].name} "
            f"{layers[0].l2 / 2:g}; split training has one for all layers"
        )
    found = {"l2": job.l2, "the optimizer's weight_decay": sgd.l2, "the model's regularizers": layers[0].l2}
    given = [name for name, value in found.items() if value]
    if len(given) > 1:
        raise ConfigError(f"l2: is given by {' and by '.join(given)}; take one of them")
    return found[given[0]] if given else 0.0
