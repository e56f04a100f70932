"""From a job to a network and its split: built-in models, Keras configs, and what is refused, each in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from undivided import Array, batches_for, undivided

from edgepeer.errors import ConfigError, ModelError
from edgepeer.training.build import build_trainer
from edgepeer.training.form import Form
from edgepeer.training.job import Job, new_job
from edgepeer.training.schedules import parse_schedule
from edgepeer.training.split.codenet import CodeNet
from edgepeer.training.split.dense import dense_network
from edgepeer.training.split.export import parameters_vector
from edgepeer.training.split.network import Network
from edgepeer.training.split.polydot import PolyDotSplit
from edgepeer.training.split.sparsity import Sparsity
from edgepeer.training.split_choice import check_room, choose_split

FORM = Form(input_shape=(4, 3), outputs=5, loss="crossentropy", name="some")
NUMBERS = Form(input_shape=(4, 3), outputs=5, loss="mse", name="some")
SINGLE = np.dtype(np.float32)


def job(**fields: Any) -> Job:
    return new_job(**{"split": "codenet:m=2,n=2", "wait_for": 12, "model": "mlp-plain", **fields})


def config(*layers: dict[str, Any] | tuple[str, dict[str, Any]], **more: Any) -> str:
    """A Sequential model; layers are Dense unless they say."""
    described = [("Dense", each) if isinstance(each, dict) else each for each in layers]
    found = [{"class_name": name, "config": {"name": f"l{at}", **more}} for at, (name, more) in enumerate(described)]
    return json.dumps({"class_name": "Sequential", "config": {"layers": found}, **more})


FLAT, OUT = ("Flatten", {}), {"units": 5}


def test_built_in_models() -> None:
    mlp = dense_network(job(model="mlp", seed=4, learning_rate=0.2, l2=0.1), FORM)
    assert mlp == Network(
        sizes=(12, 512, 5),
        activation=("relu",),
        objective="crossentropy",
        bias=(True, True),
        dropout=(0.2,),
        learning_rate=0.2,
        l2=0.1,
        seed=4,
    )
    linear = dense_network(job(model="linear"), NUMBERS)
    assert (linear.sizes, linear.output, linear.loss_name) == ((12, 5), "linear", "mse")
    binary = Form(input_shape=(12,), outputs=1, loss="binary_crossentropy")
    assert dense_network(job(model="linear"), binary).output == "sigmoid"


def test_how_it_is_trained() -> None:
    text = config(FLAT, {"units": 8, "activation": "sigmoid"}, OUT)
    network = dense_network(
        job(model_config=text, optimizer="sgd:momentum=0.9,nesterov=true", schedule="step:every=3", sparsity="rho=0.1"),
        NUMBERS,
    )
    assert (network.momentum, network.nesterov, network.sparsity) == (0.9, True, Sparsity(rho=0.1))
    assert network.schedule == parse_schedule("step:every=3", rounds=200)
    assert [network.rate(at) for at in (0, 2, 3, 6)] == [0.1, 0.1, 0.05, 0.025]
    assert dense_network(job(optimizer="sgd:weight_decay=0.03"), FORM).l2 == 0.03
    assert dense_network(job(), FORM).schedule is None


def test_what_a_split_is_of() -> None:
    chosen = choose_split(job(), FORM, peers=12)
    assert chosen is not None
    network, split = chosen
    assert (network.dtype, split.dtype, split.nodes) == (SINGLE, SINGLE, 12)
    assert isinstance(split, CodeNet)
    generic = choose_split(job(split="polydot:m=2,n=2", guarantee="generic", wait_for=30), FORM)
    assert generic is not None
    assert isinstance(generic[1], PolyDotSplit)
    assert generic[1].guarantee == "generic"
    assert choose_split(new_job(), FORM) is None
    assert choose_split(new_job(model="cnn", dataset="local:x", code="first:s=1"), FORM, peers=1) is None


@pytest.mark.parametrize(("momentum", "stored"), [("", 1), (":momentum=0.9", 2)])
def test_devices_without_the_memory_for_a_part(momentum: str, stored: int) -> None:
    asked = job(optimizer=f"sgd{momentum}", batch_size=1)
    chosen = choose_split(asked, FORM)
    assert chosen is not None
    network, split = chosen
    sent = max(
        split.lines(step.direction) * split.numbers(step.direction, network.shape(step.layer), 1)
        for step in network.steps()
    )
    needed = 2 * stored * split.stored_bytes(network) + 8 * 4 * sent
    check_room(asked, network, split, memory=needed)
    with pytest.raises(
        ModelError, match=r"split = codenet:\S+: for its part of the model this device needs about \d+ MiB"
    ):
        check_room(asked, network, split, memory=needed - 1)


def test_peers_that_are_too_few() -> None:
    with pytest.raises(ConfigError, match=r"peers = 11: split codenet:m=2,n=2 takes 12 peers; take 12 or more"):
        choose_split(job(), FORM, peers=11)


@pytest.mark.parametrize("loss", ["crossentropy", "binary_crossentropy", "mse", "mae", "huber"])
@pytest.mark.parametrize("logits", [True, False])
def test_the_last_layer_goes_with_the_loss(loss: Any, logits: bool) -> None:
    ends = {"crossentropy": "softmax", "binary_crossentropy": "sigmoid"}
    last = "linear" if logits else ends.get(loss, "tanh")
    form = Form(input_shape=(12,), outputs=5, loss=loss)
    network = dense_network(job(model_config=config({"units": 5, "activation": last})), form)
    assert network.output == ends.get(loss, last)
    assert network.loss_name == loss


# -- real Keras models -----------------------------------------------------------------------------------------------


def matrices(network: Network, vector: Array) -> list[Array]:
    """The inverse of `parameters_vector`, in words of its own."""
    out = []
    for layer in range(network.layers):
        rows, columns = network.shape(layer)
        kernel, vector = np.split(vector, [rows * network.sizes[layer]])
        whole = kernel.reshape(-1, rows).T
        if network.has_bias(layer):
            bias, vector = np.split(vector, [rows])
            whole = np.column_stack([whole, bias])
        assert whole.shape == (rows, columns)
        out.append(whole)
    assert not len(vector)
    return out


def keras_models(keras: Any) -> dict[str, tuple[Any, Form, str, list[str]]]:
    """A model, what it is for, an optimizer, and the activations to be found."""
    layers, l2 = keras.layers, keras.regularizers.L2(0.02)
    image = keras.Input((4, 3))
    chain = layers.Dense(7, use_bias=False)(layers.Flatten(name="flat")(image))
    chain = layers.Dropout(0.0)(layers.LeakyReLU(negative_slope=0.1)(chain))
    chain = layers.Dense(5, activation="tanh")(chain)
    return {
        "names": (
            [keras.Input((4, 3)), layers.Flatten(), layers.Dense(9, activation="elu")]
            + [layers.Dense(8, activation=name) for name in ("selu", "softplus", "softsign", "leaky_relu")]
            + [layers.Dense(5, activation="softmax")],
            FORM,
            "sgd",
            ["elu", "selu", "softplus", "softsign", "leaky_relu", "softmax"],
        ),
        "layers": (
            [
                *(keras.Input((12,)), layers.Dense(6), layers.ELU(alpha=0.5), layers.Dense(6), layers.ReLU()),
                *(layers.Dense(6, activation=layers.LeakyReLU()), layers.Dense(6), layers.Activation("sigmoid")),
                *(layers.Dense(5), layers.Softmax()),
            ],
            Form(input_shape=(12,), outputs=5, loss="crossentropy"),
            "sgd:momentum=0.9",
            ["elu:alpha=0.5", "relu", "leaky_relu:slope=0.3", "sigmoid", "softmax"],
        ),
        "regularized": (
            [
                keras.Input((12,)),
                layers.Dense(6, activation=keras.activations.tanh, kernel_regularizer=l2, bias_regularizer=l2),
                layers.Dense(5, kernel_regularizer=l2, bias_regularizer=l2),
            ],
            Form(input_shape=(12,), outputs=5, loss="huber"),
            "sgd:momentum=0.8,nesterov=true",
            ["tanh", "linear"],
        ),
        "a graph": (keras.Model(image, chain), NUMBERS, "sgd:weight_decay=0.05", ["leaky_relu:slope=0.1", "tanh"]),
        "binary": (
            [keras.Input((12,)), layers.Dense(6, activation="relu"), layers.Dense(3, activation="sigmoid")],
            Form(input_shape=(12,), outputs=3, loss="binary_crossentropy"),
            "sgd",
            ["relu", "sigmoid"],
        ),
    }


@pytest.mark.parametrize("name", ["names", "layers", "regularized", "a graph", "binary"])
def test_keras_models_are_trained_as_keras_does(keras: Any, name: str) -> None:
    """From the same weights, 12 steps with a schedule: within 2e-5 of the largest parameter, all in float32."""
    model, form, optimizer, activations = keras_models(keras)[name]
    if isinstance(model, list):
        model = keras.Sequential(model)
    asked = job(model_config=model.to_json(), optimizer=optimizer, schedule="cosine", rounds=12, trainer="keras")
    trainer, network = build_trainer(asked, form), dense_network(asked, form)
    found = network.activation
    assert [*(found if isinstance(found, tuple) else ()), network.output] == activations
    assert network.l2 == {"regularized": 0.04, "a graph": 0.05}.get(name, 0)
    batches = batches_for(network, 6)

    def shaped(iteration: int) -> tuple[Array, Array]:
        x, y = batches(iteration)
        return x.reshape(-1, *form.input_shape), y

    before = trainer.parameters()
    weights = matrices(network, before)
    assert (parameters_vector(network, weights) == before).all()
    for iteration in range(12):
        gradient = np.empty(trainer.size, SINGLE)
        trainer.gradient(*shaped(iteration), gradient, seed=0)
        trainer.apply(gradient)
    after = parameters_vector(network, undivided(network, shaped, 12, weights))
    assert np.abs(after - trainer.parameters()).max() < 2e-5 * np.abs(after).max()
    assert np.abs(after - before).max() > 1e-2


def test_dropout_of_a_keras_model(keras: Any) -> None:
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((12,)), layers.Dense(7), layers.ReLU(), layers.Dropout(0.3), layers.Dropout(0), layers.Dense(5)]
    )
    network = dense_network(job(model_config=model.to_json()), Form(input_shape=(12,), outputs=5, loss="crossentropy"))
    assert (network.dropout, network.activation, network.sizes) == ((0.3,), ("relu",), (12, 7, 5))


def test_keras_models_that_cannot_be_split(keras: Any) -> None:
    """As Keras writes them."""
    layers = keras.layers
    image = keras.Input((4, 3))
    flat = layers.Flatten(name="flat")(image)
    two = layers.Add(name="sum")([layers.Dense(5)(flat), layers.Dense(5)(flat)])
    again = layers.Dense(12, name="again")
    other = keras.Input((2,), name="other")
    head = layers.Dense(5, name="head")(flat)
    models = [
        (
            keras.Sequential([keras.Input((4, 3, 1)), layers.Conv2D(4, 2, name="seeing")]),
            "layer seeing (Conv2D): can't",
        ),
        (keras.Sequential([layers.Flatten(), layers.BatchNormalization(name="norm"), layers.Dense(5)]), "layer norm"),
        (keras.Sequential([layers.Flatten(data_format="channels_first", name="f"), layers.Dense(5)]), "layer f"),
        (keras.Sequential([layers.Flatten(), layers.Dense(5), layers.Softmax(axis=0, name="over")]), "layer over"),
        (keras.Model(image, two), "layer sum (Add): can't be split"),
        (keras.Model(image, [head, layers.Dense(5)(flat)]), "has 2 outputs"),
        (keras.Model([image, other], head), "has 2 inputs"),
        (keras.Model(image, layers.Dense(5)(again(again(flat)))), "layer again (Dense): is used 2 times"),
        (keras.Model(image, head), None),
        (
            keras.Model(image, layers.Dense(5)(layers.Dropout(0.1, name="on")(head, training=True))),
            "layer on (Dropout)",
        ),
        (keras.Sequential([keras.Input((4, 3)), layers.Dense(5, name="rows")]), "layer rows (Dense): would work on"),
        (keras.Sequential([keras.Sequential([layers.Dense(5)], name="inner")]), "layer inner (Sequential)"),
        (keras.Sequential([layers.Flatten(), layers.Dense(5, dtype="mixed_float16", name="half")]), "of mixed_float16"),
        (keras.Sequential([keras.Input((3, 4)), layers.Flatten(), layers.Dense(5)]), "takes samples of shape (3, 4)"),
        (
            keras.Sequential([layers.Flatten(), layers.Dense(5, kernel_regularizer="l2", name="decays")]),
            "layer decays (Dense): kernel_regularizer without the same bias_regularizer",
        ),
    ]
    for model, problem in models:
        if problem is None:
            assert dense_network(job(model_config=model.to_json()), FORM).sizes == (12, 5)
            continue
        with pytest.raises(ModelError) as caught:
            dense_network(job(model_config=model.to_json()), FORM)
        assert problem in str(caught.value), model.name
        assert "\n" not in str(caught.value)


# -- refusals ---------------------------------------------------------------------------------------------------------

L2 = {"class_name": "L2", "config": {"l2": 0.1}}
BOTH = {"kernel_regularizer": L2, "bias_regularizer": L2}
CONFIGS: list[tuple[str, str]] = [
    ("{", "not a Keras 3 model"),
    ("[" * 100_000, "not a Keras 3 model"),
    ("{}", "not a Keras 3 model"),
    (config(FLAT).replace("Sequential", "Recurrent"), "not Recurrent"),
    (config(FLAT), "no Dense layer"),
    (config(FLAT, {"units": 0}), "layer l1 (Dense): units"),
    (config(FLAT, {"units": True}), "units"),
    (config(FLAT, {"units": 5, "use_bias": 1}), "use_bias"),
    (config(FLAT, {"units": 4}), "has 4 outputs where some has 5 classes"),
    (config(FLAT, {"units": 4, "activation": "gelu"}, OUT), "layer l1 (Dense): activation = gelu"),
    (config(FLAT, {"units": 4, "activation": "elu:alpha=2"}, OUT), "no activation 'elu:alpha=2'"),
    (config(FLAT, {"units": 4, "activation": ["relu"]}, OUT), "no activation"),
    (config(FLAT, {"units": 4, "activation": {"class_name": "Dense", "config": {}}}, OUT), "is no activation"),
    (config(FLAT, {"units": 4, "activation": {"class_name": 3}}, OUT), "is no Keras layer"),
    (config(FLAT, {"units": 4, "activation": "softmax"}, OUT), "for the output only"),
    (config(FLAT, {"units": 5, "activation": "relu"}), "ends in relu; for loss crossentropy take softmax"),
    (config(FLAT, ("ReLU", {}), OUT), "must follow a Dense layer"),
    (config(FLAT, {"units": 4, "activation": "tanh"}, ("ReLU", {}), OUT), "layer l2 (ReLU): an activation must follow"),
    (config(FLAT, {"units": 4}, ("Dropout", {"rate": 0.5}), ("ReLU", {}), OUT), "must follow"),
    (config(FLAT, {"units": 4}, ("ReLU", {"max_value": 6}), OUT), "max_value"),
    (config(FLAT, {"units": 4}, ("LeakyReLU", {"negative_slope": -1}), OUT), "above 0"),
    (config(FLAT, {"units": 4}, ("ELU", {"alpha": "big"}), OUT), "alpha must be a number"),
    (config(FLAT, ("Dropout", {"rate": 0.5}), OUT), "Dropout of inputs"),
    (config(FLAT, OUT, ("Dropout", {"rate": 0.5})), "Dropout of the outputs"),
    (config(FLAT, {"units": 4}, ("Dropout", {"rate": 1}), OUT), "below 1"),
    (config(FLAT, {"units": 4}, ("Dropout", {"rate": 0.5, "noise_shape": [1]}), OUT), "noise_shape"),
    (config(FLAT, {"units": 4}, *2 * [("Dropout", {"rate": 0.5})], OUT), "two Dropouts"),
    (config(FLAT, {"units": 5, "trainable": False}), "is frozen"),
    (config(FLAT, {"units": 5, "kernel_constraint": {}}), "kernel_constraint"),
    (config(FLAT, {"units": 5, "activity_regularizer": L2}), "there is --sparsity"),
    (config(FLAT, {"units": 5, "kernel_regularizer": {"class_name": "L1", "config": {"l1": 1}}}), "take L2, or none"),
    (config(FLAT, {"units": 5, "kernel_regularizer": "l2"}), "take L2, or none"),
    (config(FLAT, {"units": 5, **BOTH, "kernel_regularizer": {"class_name": "L2", "config": {}}}), "has no number"),
    (config(FLAT, {"units": 4, **BOTH}, OUT), "its L2 is 0, that of l1 0.1"),
    (config(("Reshape", {}), OUT), "layer l0 (Reshape): can't be split; there are InputLayer, Flatten, Dense"),
    (json.dumps({"class_name": "Functional", "config": {"layers": []}}), "has 0 inputs"),
]


@pytest.mark.parametrize(("text", "problem"), CONFIGS)
def test_configs_that_cannot_be_split(text: str, problem: str) -> None:
    with pytest.raises((ModelError, ConfigError)) as caught:
        dense_network(job(model_config=text), FORM)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


WISHES: list[tuple[Callable[[], Job], str]] = [
    (lambda: new_job(l2=0.1), "l2 = 0.1: only jobs with a split have it; add --split"),
    (lambda: new_job(sparsity="rho=0.1"), "sparsity = rho=0.1: only jobs with a split"),
    (lambda: new_job(guarantee="generic"), "guarantee = generic"),
    (lambda: new_job(scrub_every=3), "scrub_every = 3"),
    (lambda: job(split="raid"), "there is no split 'raid'"),
    (lambda: job(split="codenet:m=2,n=20", wait_for=100), "n up to 13"),
    (lambda: job(code="first:s=1"), "take none"),
    (lambda: job(dataset="local:/x.npz"), "use npz:PATH"),
    (lambda: job(wait_for=11), "wait_for = 11: split codenet:m=2,n=2 takes 12 peers; take 12 or more"),
    (lambda: job(model="cnn"), "model 'cnn': can't be split; take mlp, mlp-plain, linear"),
    (lambda: job(model="package:function"), "can't be split"),
    (lambda: job(optimizer="adam"), "adam's are not; take sgd"),
    (lambda: job(optimizer="rmsprop:momentum=0.9"), "take sgd"),
    (lambda: job(optimizer="quick"), "there is no optimizer"),
    (lambda: job(optimizer="sgd:clipvalue=1"), "leave it out"),
    (lambda: job(optimizer="sgd:momentum=0.9,weight_decay=0.1"), "take l2 instead"),
    (lambda: job(optimizer="sgd:weight_decay=0.1", l2=0.1), "by l2 and by the optimizer's weight_decay"),
    (lambda: job(model_config=config(FLAT, {**OUT, **BOTH}), l2=0.1), "by l2 and by the model's regularizers"),
    (lambda: job(l2=20), "below 1 / learning_rate"),
    (lambda: job(sparsity="rho=2"), "to below 1"),
    (lambda: job(sparsity="rho=0.1"), "need sigmoid"),
    (lambda: job(schedule="wavy"), "schedule"),
    (lambda: job(batch_size=1_000_000), "take fewer samples"),
    (lambda: job(model_config=config(FLAT, {"units": 100_000}, {"units": 100_000}, OUT)), "take more blocks"),
    (lambda: job(l2=-1), "l2 = -1"),
    (lambda: job(l2=float("inf")), "Expected float <= 1000"),
    (lambda: job(guarantee="none"), "guarantee"),
    (lambda: job(scrub_every=-1), "scrub_every = -1"),
]


@pytest.mark.parametrize(("wish", "problem"), WISHES)
def test_jobs_that_cannot_be_had(wish: Callable[[], Job], problem: str) -> None:
    with pytest.raises((ModelError, ConfigError)) as caught:
        choose_split(wish(), FORM)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
