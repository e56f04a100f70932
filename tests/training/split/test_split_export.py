"""Whole matrices in a file predict what the network does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from undivided import Array, batches_for, start

from edgepeer.errors import JobError, WireError
from edgepeer.training.form import Form
from edgepeer.training.job import new_job
from edgepeer.training.saved import load_npz, save_model
from edgepeer.training.split.dense import dense_network
from edgepeer.training.split.export import WHOLE, pack_whole, parameters_vector, read_whole
from edgepeer.training.split.fleet import LocalFleet
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network
from edgepeer.training.state import pack_state, parameter_digest, read_about

# Keras' own reading and writing of files does that with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

X = np.random.default_rng(5).standard_normal((20, 4, 3)).astype(np.float32)
LOSSES = {"crossentropy": 5, "binary_crossentropy": 2, "mse": 3}


def sums(network: Network, weights: list[Array], x: Array) -> Array:
    """s_L-1 of samples, shape (N_L, n), without dropout."""
    whole = np.zeros(0)
    inputs = network.with_constant(0, x.reshape(len(x), -1).T)
    for layer, each in enumerate(weights):
        whole = each @ inputs
        if layer < network.layers - 1:
            inputs = network.with_constant(layer + 1, network.activate(layer, whole, None))
    return whole


def probabilities(loss: str, outputs: Array) -> Array:
    """Of rows of logits; numbers are left alone."""
    if loss == "crossentropy":
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))
    return 1 / (1 + np.exp(-outputs)) if loss == "binary_crossentropy" else outputs


def test_the_order_of_parameters() -> None:
    """Kernel, inputs by outputs, then bias; where there is one."""
    network = Network(sizes=(2, 3, 1), bias=(True, False))
    first = np.array([[1, 2, 10], [3, 4, 20], [5, 6, 30]])
    vector = parameters_vector(network, iter([first, np.array([[7, 8, 9]])]))
    assert vector.tolist() == [1, 3, 5, 2, 4, 6, 10, 20, 30, 7, 8, 9]
    assert vector.dtype == np.float32
    with pytest.raises(ValueError, match=r"layer 0: weights of shape \(3, 2\), where \(3, 3\)"):
        parameters_vector(network, [first[:, :2], first])
    with pytest.raises(ValueError, match="shorter"):
        parameters_vector(network, [first])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", ["mlp", "linear"])
def test_built_in_models_in_both_formats(keras: Any, loss: Any, model: str, tmp_path: Path) -> None:
    """Trained divided, saved, loaded: the same outputs to 1e-5."""
    form = Form(input_shape=(4, 3), outputs=LOSSES[loss], loss=loss)
    job = new_job(model=model, split="codenet:m=2,n=2", learning_rate=0.05)
    network = dense_network(job, form)
    split = parse_split("codenet:m=2,n=2", network.dtype)
    fleet = LocalFleet(network, split, batches_for(network), iterations=5)
    fleet.train()
    weights = [fleet.weights(layer) for layer in range(network.layers)]
    state, digest = pack_whole(network, weights, form), parameter_digest(parameters_vector(network, weights))
    for name in ("model.npz", "model.keras"):
        save_model(tmp_path / name, job, state, digest=digest)
    outputs = sums(network, weights, X).T
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(np.asarray(loaded(X, training=False)), outputs, rtol=1e-5, atol=1e-5)
    found = load_npz(tmp_path / "model.npz").predict(X)
    np.testing.assert_allclose(found, probabilities(loss, outputs), rtol=1e-5, atol=1e-5)
    with pytest.raises(JobError, match="are not those that the peers have trained"):
        save_model(tmp_path / "model.npz", job, state, digest="ab" * 16)


def test_keras_models(keras: Any, tmp_path: Path) -> None:
    """Sequential and graph, with and without bias, activations in layers of their own, unbuilt."""
    layers = keras.layers
    image = keras.Input((4, 3))
    inner = layers.Dropout(0.5)(layers.ELU()(layers.Dense(7, use_bias=False)(layers.Flatten()(image))))
    models = {
        "softmax": layers.Softmax()(layers.Dense(5)(layers.Dense(6, activation="softsign")(inner))),
        "logits": [layers.Flatten(), layers.Dense(6, activation="tanh"), layers.Dense(5, use_bias=False)],
    }
    form = Form(input_shape=(4, 3), outputs=5, loss="crossentropy")
    for name, outputs in models.items():
        model = keras.Sequential(outputs) if isinstance(outputs, list) else keras.Model(image, outputs)
        job = new_job(model_config=model.to_json(), split="none:m=1,n=1", seed=3)
        network = dense_network(job, form)
        weights = [each + np.float32(0.1) for each in start(network)]
        digest = parameter_digest(parameters_vector(network, weights))
        save_model(tmp_path / "model.keras", job, pack_whole(network, weights, form), digest=digest)
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        right = sums(network, weights, X).T
        right = probabilities("crossentropy", right) if name == "softmax" else right
        np.testing.assert_allclose(np.asarray(loaded(X, training=False)), right, rtol=1e-5, atol=1e-5)


def test_states_of_other_networks() -> None:
    form = Form(input_shape=(4,), outputs=3, loss="mse")
    network = Network(sizes=(4, 3), output="linear")
    state = pack_whole(network, start(network), form)
    assert read_about(state) == (WHOLE, form)
    assert (read_whole(network, state) == parameters_vector(network, start(network))).all()
    with pytest.raises(WireError, match="of shape"):
        read_whole(Network(sizes=(4, 2)), state)
    with pytest.raises(WireError, match="damaged"):
        read_whole(network, state[:-1] + b"?")
    with pytest.raises(WireError, match="of a 'numpy' trainer"):
        read_whole(network, pack_state("numpy", {}, form=form))
