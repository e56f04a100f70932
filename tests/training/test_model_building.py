from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepeer.errors import ModelError
from edgepeer.protocol.limits import Limits
from edgepeer.training.build import make_trainer
from edgepeer.training.datasets import Dataset
from edgepeer.training.form import Form
from edgepeer.training.job import Job, new_job
from edgepeer.training.models import DENSE_NETWORKS, first_line, keras_model
from edgepeer.training.numpy_trainer import NumpyTrainer
from edgepeer.training.sizes import (
    ModelSize,
    available_memory,
    check_size,
    count_model,
    dense_size,
    evaluation_batch,
    memory_needed,
)
from edgepeer.training.state import STATE_LIMIT_BYTES

ALLOWED = ("my_models", "absent_models", "broken_models", "raising_models", "leaving_models")


def data(shape: tuple[int, ...] = (8, 8), classes: int = 10, *, local: bool = False) -> Dataset:
    x, y = np.zeros((classes, *shape), np.float32), np.arange(classes)
    return Dataset(x_train=x, y_train=y, x_test=x, y_test=y, classes=classes, name="some", local=local)


def refusal(dataset: Dataset | None = None, *, memory: int | None = None, **job: Any) -> str:
    """The one line with which a job is refused."""
    with pytest.raises(ModelError) as raised:
        make_trainer(new_job(**job), dataset or data(), models=ALLOWED, memory=memory)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400
    return str(raised.value)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_models.py").write_text(
        """
import functools
import keras
from os import abort
from sys import exit

def small(input_shape, classes):
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(classes)])

def huge(input_shape, classes):
    wide = keras.layers.Dense(400_000_000)
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), wide, keras.layers.Dense(classes)])

def weighted(input_shape, classes):
    model = small(input_shape, classes)
    model.set_weights([weights + 1 for weights in model.get_weights()])
    float(model.predict(keras.ops.zeros((1, *input_shape)), verbose=0)[0, 0])
    return model

@functools.cache
def kept():
    return small((8, 8), 10)

def anything(**options):
    return small(**options)

several = functools.partial(small, classes=10)

def fixed():
    return small((8, 8), 10)

def unbuilt(units=10):
    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(units)])

def unbuilt_and_huge():
    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(30_000_000_000)])

class Own(keras.Model):
    def __init__(self, units=10):
        super().__init__()
        self.flat, self.dense = keras.layers.Flatten(), keras.layers.Dense(units)

    def call(self, x):
        return self.dense(self.flat(x))

def own():
    return Own()

def own_and_huge():
    return Own(30_000_000_000)

def half():
    keras.config.set_dtype_policy("mixed_float16")
    keras.config.set_floatx("float16")
    keras.config.set_epsilon(1e-3)
    keras.config.set_image_data_format("channels_first")
    return small((8, 8), 10)

def ends_in(*, classes=10):
    return small((8, 8), classes + 1)

def frozen(input_shape, classes):
    table = keras.layers.Embedding(100_000_000, 1, trainable=False)
    return keras.Sequential(
        [keras.Input(input_shape), keras.layers.Flatten(), table, keras.layers.Flatten(), keras.layers.Dense(classes)]
    )

class Wide(keras.Model):
    def __init__(self):
        super().__init__()
        self.flat, self.repeat = keras.layers.Flatten(), keras.layers.RepeatVector(400_000)
        self.dense = keras.layers.Dense(10)

    def call(self, x):
        return self.dense(keras.ops.mean(self.repeat(self.flat(x)), axis=1))

def own_and_wide():
    return Wide()

def raises():
    raise RuntimeError("no such luck\\nat all")

def number():
    return 3

def leaves():
    raise SystemExit(0)

def stops():
    raise KeyboardInterrupt

class Shelf:
    small = staticmethod(small)

constant = 5
"""
    )
    (tmp_path / "broken_models.py").write_text("import absent_package_of_models")
    (tmp_path / "raising_models.py").write_text("1 / 0")
    (tmp_path / "leaving_models.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_models", "broken_models", "raising_models", "leaving_models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "my_models"


@pytest.mark.parametrize(("model", "size"), [("mlp", 407_050), ("mlp-plain", 407_050), ("linear", 7_850)])
def test_both_trainers_build_the_same_networks(keras: Any, model: str, size: int) -> None:
    for trainer in ("keras", "numpy"):
        for optimizer in ("sgd", "adam"):
            job = new_job(model=model, trainer=trainer, optimizer=optimizer)
            assert make_trainer(job, data((28, 28))).size == size


@pytest.mark.parametrize("shape", [(8, 8), (9, 7, 3), (1, 1)])
def test_cnn_takes_images(keras: Any, shape: tuple[int, ...]) -> None:
    assert make_trainer(new_job(model="cnn"), data(shape)).size > 0


def test_initial_parameters_follow_the_seed_alone(keras: Any) -> None:
    def parameters(seed: int, **job: Any) -> list[float]:
        return make_trainer(new_job(seed=seed, **job), data()).parameters().tolist()

    config = keras.Sequential([keras.Input((8, 8)), keras.layers.Flatten(), keras.layers.Dense(10)]).to_json()
    for job in ({"model": "mlp"}, {"model": "cnn"}, {"model_config": config}, {"trainer": "numpy"}):
        assert parameters(1, **job) == parameters(1, **job)
        assert parameters(1, **job) != parameters(2, **job)


def test_building_leaves_the_global_generators_where_they_were(keras: Any) -> None:
    before, numpy_before = random.getstate(), np.random.get_state()
    make_trainer(new_job(), data())
    assert random.getstate() == before
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy_before, strict=True))


def test_a_models_function_changes_keras_for_its_own_model_alone(keras: Any, package: str) -> None:
    def settings() -> tuple[object, ...]:
        config = keras.config
        return config.floatx(), config.epsilon(), config.image_data_format(), config.dtype_policy().name

    before, unlike = settings(), make_trainer(new_job(model=f"{package}:half"), data(), models=[package])
    assert settings() == before
    images, labels = np.ones((2, 8, 8), np.float32), np.zeros(2, np.int64)
    grads = [np.empty(650, np.float32) for _ in range(2)]
    unlike.gradient(images, labels, grads[0], seed=1)
    make_trainer(new_job(model=f"{package}:small"), data(), models=[package]).gradient(images, labels, grads[1], seed=1)
    half, single = ((grad == grad.astype(np.float16)).mean() for grad in grads)
    assert half > 0.9 > single  # the one is computed in float16, as it wants, and the other isn't


def test_what_a_devices_keras_is_set_to_changes_no_model(keras: Any) -> None:
    """As keras.json may say it, on one device and not on the others: a model with as many parameters would come of it,
    that computes something else."""
    images, labels = np.random.default_rng(0).random((4, 8, 8), np.float32), np.arange(4)

    def found() -> tuple[float, list[float], bytes]:
        trainer = make_trainer(new_job(model="mlp-plain"), data())
        out = np.empty(trainer.size, np.float32)
        return trainer.gradient(images, labels, out, seed=1).loss, out.tolist(), trainer.state()

    config, before = keras.config, found()
    settings = config.floatx(), config.dtype_policy(), config.epsilon(), config.image_data_format()
    try:
        config.set_floatx("float64")
        config.set_dtype_policy("mixed_bfloat16")
        config.set_epsilon(1e-2)
        config.set_image_data_format("channels_first")
        after = found()
        assert config.image_data_format() == "channels_first"
    finally:
        config.set_floatx(settings[0])
        config.set_dtype_policy(settings[1])
        config.set_epsilon(settings[2])
        config.set_image_data_format(settings[3])
    assert after == before


@pytest.mark.parametrize("function", ["small", "anything", "fixed", "several", "unbuilt", "own"])
def test_functions_of_a_package(keras: Any, package: str, function: str) -> None:
    assert make_trainer(new_job(model=f"{package}:{function}"), data(), models=[package]).size == 650


def test_a_function_that_does_more_than_put_layers_together(keras: Any, package: str) -> None:
    trainer = make_trainer(new_job(model=f"{package}:weighted"), data(), models=[package])
    assert trainer.parameters()[-10:].tolist() == [1.0] * 10  # the biases are as it has set them


def test_functions_that_do_not_work_out(keras: Any, package: str) -> None:
    for model, reason in {
        "my_models:raises": "raised RuntimeError: no such luck",
        "my_models:number": "must return a keras.Model, not int",
        "my_models:absent": "my_models has no function 'absent'",
        "my_models:constant": "my_models has no function 'constant'",
        "my_models:abort": "abort is not of my_models, but of posix; make a function there",
        "my_models:exit": "exit is not of my_models, but of sys",
        "my_models:Shelf.small": "must name a function of the module itself, as in package.module:function",
        "my_models:kept": "the function must make a new model, all of it, whenever it is called",
        "my_models:unbuilt_and_huge": "has 1,950,000,000,000 parameters; 268,435,455, which make a vector of 1024 MiB",
        "my_models:own_and_huge": "has 1,950,000,000,000 parameters; 268,435,455, which make a vector of 1024 MiB",
        "my_models:huge": "has 30,000,000,010 parameters; 268,435,455, which make a vector of 1024 MiB, are the most",
        "my_models:leaves": "the function raised SystemExit: 0",
        "my_models:stops": "the function raised KeyboardInterrupt",
        "leaving_models:small": "importing leaving_models raised SystemExit",
        "absent_models:small": "no package 'absent_models' is installed on this device",
        "my_models.inner:small": "no package 'my_models.inner'",
        "broken_models:small": "no package 'absent_package_of_models'",
        "raising_models:small": "importing raising_models raised ZeroDivisionError",
        "os:abort": "to allow os, start its peer, or the export, with --models os",
        "keras.src.utils.file_utils:os.abort": "must name a function of the module itself",
        "keras.src.utils.file_utils:sys.exit": "must name a function of the module itself",
        "keras.models:clone_model": "this device lets jobs name functions of absent_models, broken_models, ",
        "my_models:ends_in": "has 11 outputs where some has 10 classes",
    }.items():
        message = refusal(model=model)
        assert message.startswith(f"model {model}: ")
        assert reason in message


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("", "ValueError"),
        ("one\ntwo\n\nthree", "ValueError: one two"),
        ("\n\n \x1b[1mloud\x1b[0m  words\n", "ValueError: loud words"),
        (
            "Exception encountered when calling Sequential.call().\n\n\x1b[1mExpected shape (None, 3), but input has "
            "incompatible shape (2, 8, 8)\x1b[0m\n\nArguments received by Sequential.call():\n  * inputs=[...]",
            "ValueError: Expected shape (None, 3), but input has incompatible shape (2, 8, 8)",
        ),
        (
            'Graph execution error:\n\nDetected at node a/GatherV2 defined at (most recent call last):\n  File "m.py", '
            'line 1, in <module>\n\n  File "n.py", line 9, in make\n\nindices[0,0] = 12 is not in [0, 5)\n\t [[{{node '
            "a/GatherV2}}]] [Op:__inference__gradient_graph_200]",
            "ValueError: indices[0,0] = 12 is not in [0, 5)",
        ),
        (
            'in user code:\n\n    File "m.py", line 8, in call\n        return len(x)\n\n    ValueError: Exception '
            "encountered when calling L.call().\n    \n    \x1b[1mno length\x1b[0m\n    \n    Arguments received by "
            "L.call():\n      * x=...\n",
            "ValueError: no length",
        ),
        (
            'in user code:\n\n    File "m.py", line 8, in call\n        return len(x)\n\n    ValueError: no length\n',
            "ValueError: no length",
        ),
        ("Exception encountered when calling a thing", "ValueError: Exception encountered when calling a thing"),
        ("x" * 900, f"ValueError: {'x' * 200}"),
    ],
)
def test_what_an_exception_says_in_a_line(said: str, line: str) -> None:
    assert first_line(ValueError(said)) == line


def test_samples_and_classes_that_do_not_fit(keras: Any, package: str) -> None:
    assert "can't take samples of shape (4, 4)" in refusal(data((4, 4)), model=f"{package}:fixed")
    assert "10 outputs where some has 3 classes" in refusal(data(classes=3), model=f"{package}:fixed")
    assert "10 outputs where some has 11" in refusal(data(classes=11, local=True), model=f"{package}:fixed")
    assert "needs images" in refusal(data((64,)), model="cnn")
    # One device's own data may lack the classes that others have.
    assert make_trainer(new_job(model=f"{package}:fixed"), data(classes=3, local=True), models=[package]).size == 650


def test_unknown_models_are_answered_with_the_known_ones(keras: Any) -> None:
    assert "unknown; there are mlp, mlp-plain, linear, cnn" in refusal(model="resnet")
    for job in ({"model": "cnn"}, {"model": "resnet"}, {"model": "a:b"}, {"model_config": "{}"}):
        message = refusal(trainer="numpy", **job)
        assert "only mlp, mlp-plain, linear; use trainer keras" in message


def config_of(keras: Any, *layers: Any, **extra: Any) -> dict[str, Any]:
    model = keras.Sequential([keras.Input((8, 8)), keras.layers.Flatten(), *layers, keras.layers.Dense(10)])
    config: dict[str, Any] = json.loads(model.to_json())
    return {**config, **extra}


def test_keras_json_configs(keras: Any) -> None:
    plain = json.dumps(config_of(keras, keras.layers.Dropout(0.5), keras.layers.Dense(4, activation="relu")))
    assert make_trainer(new_job(model_config=plain), data()).size == 64 * 4 + 4 + 4 * 10 + 10
    inputs = keras.Input((8, 8))
    flat = keras.layers.Flatten()(inputs)
    hidden = keras.layers.Dense(64, kernel_regularizer="l2")(flat)
    branched = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Add()([flat, hidden]) * 2.0))
    branched.compile("adam", "sparse_categorical_crossentropy")  # what is compiled in does not travel
    assert make_trainer(new_job(model_config=branched.to_json()), data()).size == 64 * 65 + 650


def test_keras_json_configs_that_are_not_models(keras: Any) -> None:
    for text, reason in {
        "{": "not JSON",
        "[" * 100_000: "can't build it: RecursionError",
        "3": "must describe a keras.Model, not int",
        "[]": "must describe a keras.Model, not list",
        "{}": "must describe a keras.Model, not dict",
        '{"class_name": "Absent", "config": {}, "module": "keras"}': "can't build it",
        '{"class_name": "Sequential", "config": 5, "module": "keras"}': "can't build it",
        '"Dense"': "must describe a keras.Model, not str",
    }.items():
        message = refusal(model_config=text)
        assert message.startswith("model_config: ")
        assert reason in message


def test_keras_json_configs_carry_no_code(keras: Any) -> None:
    evil = keras.layers.Lambda(lambda x: x)
    assert "Lambda is not allowed" in refusal(model_config=json.dumps(config_of(keras, evil)))
    for item, reason in (
        ({"class_name": "function", "config": "system", "module": "os"}, "os.function is not one of Keras' own"),
        ({"class_name": "function", "config": "get_file", "module": "keras.utils"}, "keras.utils.function is not"),
        ({"class_name": "Popen", "config": {"args": "true"}, "module": "subprocess"}, "subprocess.Popen is not"),
        ({"class_name": "get_file", "config": {}, "module": "keras.utils"}, "keras.utils.get_file is not"),
        ({"class_name": "TFSMLayer", "config": {}, "module": "keras.layers"}, "TFSMLayer is not allowed"),
        ({"class_name": "StringLookup", "config": {}, "module": "keras.layers"}, "StringLookup is not allowed"),
        ({"class_name": "__lambda__", "config": {"value": ""}}, "__lambda__ is not allowed"),
        ({"class_name": ["Lambda"], "config": {}, "module": ["os"]}, "is not one of Keras' own"),
    ):
        config = config_of(keras)
        config["config"]["layers"].insert(1, item)
        assert reason in refusal(model_config=json.dumps(config))
        config = config_of(keras)
        config["config"]["layers"][-1]["config"]["activation"] = item
        assert reason in refusal(model_config=json.dumps(config))


def test_without_keras_the_cure_is_named_and_numpy_still_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    assert "pip install 'edgepeer[tensorflow]'" in refusal()
    assert isinstance(make_trainer(new_job(trainer="numpy"), data()), NumpyTrainer)


def test_another_keras_backend_is_refused(keras: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    assert "Keras runs on jax here; set KERAS_BACKEND=tensorflow" in refusal()


def test_another_backend_need_not_be_installed_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setitem(sys.modules, "keras", None)
    assert "Keras runs on jax here; set KERAS_BACKEND=tensorflow" in refusal()


@pytest.mark.slow
def test_keras_comes_in_silence_and_only_when_asked() -> None:
    program = """
import sys
import edgepeer.training.build, edgepeer.training.sharding, edgepeer.training.keras_trainer
assert not {"tensorflow", "keras", "sklearn", "matplotlib"} & set(sys.modules)
from edgepeer.training.keras_setup import load_keras
keras = load_keras()
assert not {"sklearn", "matplotlib"} & set(sys.modules)
import os, tensorflow
import sklearn, matplotlib
assert keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])(tensorflow.zeros((1, 4))).shape == (1, 2)
assert tensorflow.config.threading.get_inter_op_parallelism_threads() == 1
os.write(2, b"still there")
"""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_"))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=clean, timeout=200)
    assert done.stderr.decode() == "still there"
    assert done.returncode == 0


def test_models_that_are_too_large_are_refused_before_anything_is_made(keras: Any) -> None:
    """Hundreds of gigabytes, if one were."""
    plain = config_of(keras)
    plain["config"]["layers"][-1]["config"]["units"] = 400_000_000
    for job, count in (
        ({"model_config": json.dumps(plain)}, 26_000_000_000),
        ({"model_config": json.dumps(plain), "optimizer": "adam"}, 26_000_000_000),
    ):
        message = refusal(**job)
        assert message.startswith(f"model model_config: has {count:,} parameters; 268,435,455, which make a vector of")
    huge = Dataset(x_train=np.broadcast_to(np.float32(0), (2, 4_000_000)), y_train=np.arange(2), name="huge", classes=2,
                   x_test=np.broadcast_to(np.float32(0), (2, 4_000_000)), y_test=np.arange(2))  # fmt: skip
    for trainer in ("keras", "numpy"):
        assert "model mlp: has 2,048,001,538 parameters" in refusal(huge, model="mlp", trainer=trainer)


def test_models_that_this_device_has_no_memory_for(keras: Any) -> None:
    for job, vectors in (({"trainer": "numpy"}, 8), ({"optimizer": "adam"}, 11), ({"model": "cnn"}, 8)):
        size = make_trainer(new_job(**job), data()).size
        with pytest.raises(
            ModelError, match=rf"has {size:,} parameters( and 2 n.*)?, for which this device needs about"
        ):
            make_trainer(new_job(**job), data(), memory=4 * size * vectors - 1)
        with pytest.raises(ModelError, match=r"a step with 10 samples computes \d+ MiB, for all of which"):
            make_trainer(new_job(**job), data(), memory=4 * size * vectors + 100)
        make_trainer(new_job(**job), data(), memory=4 * size * vectors + (1 << 20))


def counted(model: Any) -> ModelSize:
    """Of a model as Keras' JSON carries it, and of a step with one sample."""
    job = Job(id="some", model_config=model.to_json())
    return count_model(lambda: keras_model(job.model, job.model_config, FORM), FORM.input_shape, 1)


FORM = Form(input_shape=(8, 8), outputs=10, loss="crossentropy")


@pytest.mark.parametrize("shape", [(8, 8), (28, 28)])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("model", ["mlp", "mlp-plain", "linear", "cnn"])
def test_what_is_built_in_takes_little(keras: Any, model: str, optimizer: str, shape: tuple[int, ...]) -> None:
    form = Form(input_shape=shape, outputs=10, loss="crossentropy")
    size = count_model(lambda: keras_model(model, "", form), shape, 50)
    check_size(model, size, slots=3 if optimizer == "adam" else 0, batch=50, memory=34 << 20)
    if model != "cnn":
        told = dense_size(form, DENSE_NETWORKS[model].hidden, 50)
        assert told.parameters == size.parameters
        assert size.step_bytes / 3 < told.step_bytes < 1.3 * size.step_bytes


def test_what_is_not_trained_takes_memory_too(keras: Any, package: str) -> None:
    """Gigabytes, if one were made."""
    frozen = keras.Sequential([keras.Input((8, 8)), keras.layers.Flatten(), keras.layers.Dense(10)])
    config = json.loads(frozen.to_json())
    table = {"class_name": "Embedding", "module": "keras.layers", "registered_name": None,
             "config": {"input_dim": 100_000_000, "output_dim": 1, "trainable": False}}  # fmt: skip
    flat = {"class_name": "Flatten", "module": "keras.layers", "registered_name": None, "config": {}}
    config["config"]["layers"][2:2] = [table, flat]
    config["config"]["layers"][-1].pop("build_config", None)
    for job in ({"model_config": json.dumps(config)}, {"model": f"{package}:frozen"}):
        message = refusal(memory=64 << 20, **job)
        assert "has 650 parameters and 100,000,000 numbers that aren't trained, for which this device needs" in message
        assert message.endswith("about 1907 MiB of memory, and 64 MiB are allowed (memory); "
                                "take a smaller model, or allow more")  # fmt: skip
    table["config"]["input_dim"] = 2_000_000_000
    message = refusal(memory=1 << 50, model_config=json.dumps(config))
    assert "2,000,000,000 numbers that aren't trained, which make a state of up to 7,629 MiB; 4,096 MiB" in message


def test_what_is_not_trained_has_no_gradient(keras: Any) -> None:
    layers = keras.layers
    model = keras.Sequential([keras.Input((8, 8)), layers.Flatten(), layers.BatchNormalization(), layers.Dense(10)])
    size = counted(model)
    assert size[:3] == (64 * 2 + 650, 64 * 2, 64 * 2 * 4)
    assert memory_needed(size, 3) == 4 * (778 * 11 + 128 * 5) + size.step_bytes
    model.layers[-1].trainable = False
    assert counted(model)[:3] == (64 * 2, 64 * 2 + 650, (64 * 2 + 650) * 4)


def test_what_a_step_computes_takes_memory_too(keras: Any, package: str) -> None:
    """Gigabytes, if one were done."""
    layers = keras.layers
    row = [keras.Input((8, 8)), layers.Flatten(), layers.RepeatVector(400_000), layers.GlobalAveragePooling1D()]
    config = keras.Sequential([*row, layers.Dense(10)]).to_json()
    for job in ({"model_config": config}, {"model": f"{package}:own_and_wide"}):
        message = refusal(memory=64 << 20, **job)
        assert "has 650 parameters, and a step with 10 samples computes 1,953 MiB, for all of which this" in message
        assert message.endswith("and 64 MiB are allowed (memory); take a smaller batch_size or model, or allow more")
        assert "a step with 3 samples computes" in refusal(memory=64 << 20, batch_size=3, **job)


def test_what_a_step_computes_is_told_from_what_a_model_is_made_of(keras: Any) -> None:
    layers = keras.layers
    image = keras.Input((8, 8))
    flat = layers.Flatten()(image)

    def step(outputs: Any) -> int:
        return counted(keras.Model(image, layers.Dense(10)(outputs))).step_bytes

    least = step(flat)
    assert least < 1_000
    wide = step(layers.Dense(2_000, activation="relu")(flat))
    assert 4 * 2_000 * 2 < wide < 4 * 2_000 * 6  # the kernel is 64 times as long, and there whatever the batch
    deep = keras.Sequential([keras.Input((64,)), *(layers.Dense(64) for _ in range(50))])
    much = step(deep(flat))
    deep.trainable = False
    assert step(deep(flat)) < much / 10  # no gradient goes through what is frozen, so nothing of it is kept
    inner = keras.Sequential([keras.Input((64,)), layers.Dense(2_000, activation="relu"), layers.Dense(3)])
    assert wide < step(inner(flat)) < 1.1 * wide
    # What a layer's output does not show: 4 heads' 8 x 8 weights, and what a loop keeps of each pass.
    assert step(layers.Flatten()(layers.MultiHeadAttention(4, 1)(image, image))) > 4 * (4 * 8 * 8) + least
    long = layers.Reshape((64, 1))(image)
    assert step(layers.LSTM(50)(long)) > 2 * step(layers.LSTM(50)(image))
    everyone = layers.Dense(1)(flat)
    tiled = keras.ops.tile(keras.ops.mean(everyone, axis=0, keepdims=True), (1, 5_000))
    assert step(everyone + keras.ops.max(tiled)) > 4 * 5_000  # of all samples together


def test_an_evaluation_takes_no_more_than_a_step_or_little() -> None:
    mib = 1 << 20
    assert evaluation_batch(ModelSize(650, step_bytes=50 * 400), 50) == 512
    assert evaluation_batch(ModelSize(650, step_bytes=3 * mib), 3) == 16
    assert evaluation_batch(ModelSize(650, step_bytes=50 * mib), 50) == 50
    assert evaluation_batch(ModelSize(650, step_bytes=5_000 * mib), 5_000) == 512
    assert evaluation_batch(ModelSize(650), 50) == 50


def test_the_memory_that_there_is() -> None:
    assert 1 << 20 < available_memory() < 1 << 50


def test_the_memory_that_a_process_may_have() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), hard))
    try:
        assert available_memory() <= 64 << 20
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize(
    ("where", "most", "current", "files"),
    [
        (".", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_the_memory_that_a_service_may_have(
    where: str, most: str, current: str, files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As both versions of control groups say it: of the group itself, or of one around it."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    if not any((where == "memory") == ("memory" in line.split(":")[1].split(",")) for line in lines):
        pytest.skip("this kernel has not told this process of such a group")
    monkeypatch.setattr("edgepeer.training.sizes._CGROUP", tmp_path)
    (around := tmp_path / where).mkdir(exist_ok=True)
    for name, said in {most: "9000000", current: "8000000", "memory.stat": f"other 1\n{files} 30"}.items():
        (around / name).write_text(f"{said}\n")
    assert available_memory() == 1_000_030
    (around / current).write_text("9500000\n")
    assert available_memory() == 0
    (around / most).write_text("max\n")
    assert available_memory() > 1 << 20


def test_a_state_may_be_as_long_as_a_peer_takes_one() -> None:
    assert Limits().max_state_bytes == STATE_LIMIT_BYTES
