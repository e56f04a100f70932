"""A trained model in a file, loaded again, says the same."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepeer.errors import ConfigError, DataError, JobError, ModelError, WireError
from edgepeer.training.build import make_trainer
from edgepeer.training.datasets import Dataset
from edgepeer.training.job import Job, new_job
from edgepeer.training.saved import check_target, load_npz, save_model
from edgepeer.training.state import pack_state, parameter_digest
from edgepeer.training.trainer import Trainer

# Keras' own reading and writing of files does that with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(40, 4, 3)).astype(np.float32)
KINDS = {
    "crossentropy": (np.argmax(X[:, 0], axis=1), 3),
    "binary_crossentropy": ((X[:, :2, 0] > 0).astype(np.float32), 0),
    "mse": ((X.reshape(40, -1) @ RANDOM.normal(size=(12, 2))).astype(np.float32), 0),
}


def data(loss: str) -> Dataset:
    y, classes = KINDS[loss]
    return Dataset(x_train=X, y_train=y, x_test=X, y_test=y, classes=classes, name="some")


def trained(job: Job, dataset: Dataset) -> Trainer:
    trainer, gradient = make_trainer(job, dataset), None
    for number in range(15):
        gradient = np.empty(trainer.size, np.float32)
        trainer.gradient(dataset.x_train, dataset.y_train, gradient, seed=number)
        trainer.apply(gradient)
    return trainer


def save(path: Path, job: Job, trainer: Trainer) -> Path:
    save_model(path, job, trainer.state(), digest=parameter_digest(trainer.parameters()))
    return path


def test_what_saving_takes_is_tried_before(tmp_path: Path) -> None:
    """Whatever the check lets through can be written; nothing of it stays."""
    for length in range(236, 258):
        path = tmp_path / f"{'y' * (length - 4)}.npz"
        if length > 243:  # 255 is the most
            with pytest.raises(ConfigError, match="file name too long"):
                check_target("save", path, model="mlp", described=False)
        else:
            check_target("save", path, model="mlp", described=False)
            job = new_job(model="mlp", trainer="numpy")
            save(path, job, make_trainer(job, data("crossentropy")))
            path.unlink()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=r"save = /proc/model\.npz: can't write there: "):
        check_target("save", Path("/proc/model.npz"), model="mlp", described=False)


@pytest.mark.parametrize("loss", KINDS)
@pytest.mark.parametrize("kind", ["numpy", "keras"])
def test_both_formats_predict_what_the_trainer_does(keras: Any, loss: str, kind: str, tmp_path: Path) -> None:
    dataset = data(loss)
    job = new_job(model="mlp", trainer=kind, loss=loss, optimizer="rmsprop", learning_rate=0.01)
    trainer = trained(job, dataset)
    measured = trainer.evaluate(dataset.x_test, dataset.y_test)
    model = load_npz(save(tmp_path / "model.npz", job, trainer))
    assert (model.input_shape, model.loss, len(model.layers)) == ((4, 3), loss, 2)
    found = model.predict(X)
    other = keras.saving.load_model(save(tmp_path / "model.keras", job, trainer))
    outputs = np.asarray(other(X, training=False))
    if loss == "crossentropy":
        assert float(np.mean(found.argmax(axis=1) == dataset.y_test)) == measured.accuracy
        np.testing.assert_allclose(found, np.asarray(keras.ops.softmax(outputs)), atol=1e-5)
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    elif loss == "binary_crossentropy":
        assert float(np.mean((found > 0.5) == (dataset.y_test > 0.5))) == measured.accuracy
        np.testing.assert_allclose(found, np.asarray(keras.ops.sigmoid(outputs)), atol=1e-5)
    else:
        assert float(np.abs(found - dataset.y_test).mean()) == pytest.approx(measured.mae, rel=1e-4)
        np.testing.assert_allclose(found, outputs, rtol=1e-4, atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.keras", "model.npz"]


def test_any_keras_model(keras: Any, tmp_path: Path) -> None:
    layers = keras.layers
    described = keras.Sequential([keras.Input((4, 3)), layers.LSTM(5), layers.BatchNormalization(), layers.Dense(3)])
    dataset = data("crossentropy")
    for job in (new_job(model="cnn"), new_job(model_config=described.to_json(), optimizer="adamw")):
        trainer = trained(job, dataset)
        loaded = keras.saving.load_model(save(tmp_path / "model.keras", job, trainer))
        outputs = np.asarray(loaded(X, training=False))
        expected = trainer.evaluate(dataset.x_test, dataset.y_test).accuracy
        assert float(np.mean(outputs.argmax(axis=1) == dataset.y_test)) == expected
        with pytest.raises(ModelError, match=r"only mlp, mlp-plain, linear fit into \.npz"):
            save(tmp_path / "model.npz", job, trainer)


OWN_CLASS = """
import keras

class Net(keras.Model):  # of a layer that it is given: Keras can't tell how it was made
    def __init__(self, last):
        super().__init__()
        self.flat, self.last = keras.layers.Flatten(), last

    def call(self, x):
        return self.last(self.flat(x))

def make(input_shape, classes):
    return Net(keras.layers.Dense(classes))
"""


def test_a_class_that_keras_can_not_describe_leaves_its_weights(
    keras: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_class.py").write_text(OWN_CLASS)
    monkeypatch.syspath_prepend(tmp_path)
    job, dataset = new_job(id="j1", model="own_class:make", trainer="keras"), data("crossentropy")
    trainer = make_trainer(job, dataset, models=["own_class"])
    state, digest = trainer.state(), parameter_digest(trainer.parameters())
    with pytest.raises(
        ModelError, match=r"own_class:make: Keras can't save it: .*`get_config\(\)`\. Its weights"
    ) as raised:
        save_model(tmp_path / "model.keras", job, state, digest=digest, models=["own_class"])
    weights = tmp_path / "model-j1.weights.h5"
    told = f"Its weights are in {weights}: make the model with own_class:make, as the devices do, call it once, as in"
    assert told in str(raised.value)
    assert f"model(numpy.zeros((1, 4, 3))), then model.load_weights('{weights}')" in str(raised.value)
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"own_class.py", weights.name}

    model = importlib.import_module("own_class").make((4, 3), 3)
    model(np.zeros((1, 4, 3)))
    model.load_weights(str(weights))
    found = np.concatenate([np.asarray(variable).reshape(-1) for variable in model.trainable_variables])
    np.testing.assert_array_equal(found, trainer.parameters())

    weights.unlink()
    monkeypatch.setattr(keras.Model, "save_weights", no_space)  # then there is no word of weights
    with pytest.raises(ModelError, match=r"get_config\(\)`\.$"):
        save_model(tmp_path / "model.keras", job, state, digest=digest, models=["own_class"])
    assert not list(tmp_path.glob("*.h5")) + list(tmp_path.glob(".*"))


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_saved_model_does_not_take_over_what_the_keras_here_is_set_to(keras: Any, tmp_path: Path) -> None:
    job = new_job(model="mlp", trainer="numpy")
    trainer = trained(job, data("crossentropy"))
    images, floats = keras.config.image_data_format(), keras.config.floatx()
    try:
        keras.config.set_image_data_format("channels_first")
        keras.config.set_floatx("float64")
        save(tmp_path / "model.keras", job, trainer)
    finally:
        keras.config.set_image_data_format(images)
        keras.config.set_floatx(floats)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    outputs = np.asarray(keras.ops.softmax(loaded(X, training=False)))
    np.testing.assert_allclose(outputs, load_npz(save(tmp_path / "model.npz", job, trainer)).predict(X), atol=1e-5)
    assert {str(variable.dtype) for variable in loaded.trainable_variables} == {"float32"}


def test_states_that_are_not_the_jobs(tmp_path: Path) -> None:
    job = new_job(model="linear", trainer="numpy")
    trainer = trained(job, data("mse"))
    path = tmp_path / "model.npz"
    with pytest.raises(JobError, match="are not those that the peers have trained"):
        save_model(path, job, trainer.state(), digest="ab" * 16)
    with pytest.raises(WireError, match="of an older build"):
        save_model(path, job, pack_state("numpy sgd", {}), digest="")
    with pytest.raises(WireError, match="damaged"):
        save_model(path, job, trainer.state()[:-1] + b"?", digest="")
    assert not path.exists()


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_who_may_read_a_model_is_for_the_umask_to_say(umask: int, tmp_path: Path) -> None:
    job, dataset = new_job(model="linear", trainer="numpy"), data("mse")
    trainer = trained(job, dataset)
    before = os.umask(umask)
    try:
        path = save(tmp_path / "model.npz", job, trainer)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_targets_that_could_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken.npz").mkdir()
    for name, model, reason in (
        ("model.h5", "mlp", "must end in .keras, or in .npz for a model for NumPy"),
        ("model", "mlp", "must end in .keras"),
        ("model.npz", "cnn", "only mlp, mlp-plain, linear fit into .npz; use .keras"),
        ("taken.npz", "mlp", "is a directory; must be a file"),
        ("model.keras", "nowhere.models:make", "needs model nowhere.models:make here, too: no package 'nowhere' is"),
        ("model.keras", "__main__:make", "no package '__main__' is installed"),
        ("absent/model.npz", "mlp", f"there is no directory {tmp_path}/absent"),
    ):
        with pytest.raises(ConfigError, match=r"^save = ") as raised:
            check_target("save", tmp_path / name, model=model, described=False)
        assert reason in str(raised.value)
    with pytest.raises(ConfigError, match=r"use \.keras"):
        check_target("save", tmp_path / "model.npz", model="mlp", described=True)
    with pytest.raises(ConfigError, match="can't write there: file name too long"):
        check_target("save", tmp_path / f"{'x' * 300}.npz", model="mlp", described=False)
    check_target("save", tmp_path / "model.npz", model="mlp", described=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_not_ours(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="can't write there"):
        check_target("save", tmp_path / "model.npz", model="mlp", described=False)


def test_files_that_hold_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    kernel, bias = np.ones((12, 2), np.float32), np.ones(2, np.float32)
    whole = {"input_shape": np.array([4, 3]), "loss": np.array("mse"), "kernel_0": kernel, "bias_0": bias}
    np.savez(path, **whole)
    assert load_npz(path).predict(np.zeros((1, 4, 3))).tolist() == [[1, 1]]
    with pytest.raises(ModelError, match=r"samples of shape \(12,\) for a model that takes \(4, 3\)"):
        load_npz(path).predict(np.zeros((1, 12)))
    for changed in (
        {name: array for name, array in whole.items() if name != "loss"},
        {name: array for name, array in whole.items() if name != "bias_0"},
        {**whole, "kernel_2": kernel},
        {**whole, "input_shape": np.array([3])},
        {**whole, "kernel_1": kernel, "bias_1": bias},
        {**whole, "bias_0": np.float32(1)},
        {**whole, "bias_0": np.ones((2, 3), np.float32)},
        {**whole, "kernel_0": np.full((12, 2), "1")},
        {**whole, "input_shape": np.array([np.nan, 3])},
        {**whole, "input_shape": np.array(["4", "3"])},
        {**whole, "input_shape": np.array([-4, -3])},
    ):
        np.savez(path, **changed)
        with pytest.raises(DataError, match="is not a saved model"):
            load_npz(path)
