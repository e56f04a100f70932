"""Jobs that nobody could do are refused in one line, before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgepeer.errors import ConfigError
from edgepeer.following.jobs import OwnFleet, make_job
from edgepeer.following.progress import JobProgress
from edgepeer.following.texts import headline
from edgepeer.settings import JobSettings, TrainSettings
from edgepeer.wire.precision import PRECISIONS, Precision


def refusal(settings: JobSettings) -> str:
    with pytest.raises(ConfigError) as caught:
        make_job(settings, wait_for=1)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["nosuch", "npz:", "local:", "http://x/y", "Digits"])
def test_a_data_set_that_nobody_knows(name: str) -> None:
    said = refusal(TrainSettings(dataset=name))
    assert said == f"dataset = {name}: unknown, must be digits, mnist, npz:PATH or local:PATH"


def test_a_model_that_nobody_knows() -> None:
    said = refusal(TrainSettings(model="nothere"))
    assert said == "model = nothere: unknown, must be one of mlp, mlp-plain, linear, cnn, or package:function"


@pytest.mark.parametrize("model", ["cnn", "package:function"])
def test_a_model_that_numpy_can_not_do(model: str) -> None:
    said = refusal(TrainSettings(model=model, trainer="numpy"))
    assert said == (
        f"model = {model}: trainer numpy: can't do model '{model}', only mlp, mlp-plain, linear; use trainer keras"
    )
    make_job(TrainSettings(model=model), wait_for=1)


def test_a_config_that_numpy_can_not_do(tmp_path: Path) -> None:
    config = tmp_path / "model.json"
    config.write_text("{}")
    said = refusal(TrainSettings(model_config=config, trainer="numpy"))
    assert said.startswith(f"model_config = {config}: trainer numpy: can't do a Keras JSON config, only mlp, ")
    make_job(TrainSettings(model_config=config), wait_for=1)


def test_what_trainers_can_do_is_nothing_to_split_jobs(tmp_path: Path) -> None:
    """A Keras config was refused where it was asked for with trainer numpy, which does nothing there."""
    config = tmp_path / "model.json"
    flat = {"class_name": "Flatten", "config": {"name": "f"}}
    dense = {"class_name": "Dense", "config": {"name": "d", "units": 10, "activation": "softmax"}}
    config.write_text(json.dumps({"class_name": "Sequential", "config": {"layers": [flat, dense]}}))
    job = make_job(TrainSettings(model_config=config, trainer="numpy", split="none:m=1,n=1"), wait_for=1)
    assert (job.trainer, job.model_config) == ("numpy", config.read_text())
    said = refusal(TrainSettings(model="cnn", trainer="numpy", split="none:m=1,n=1"))
    assert said.startswith("model 'cnn': can't be split; take mlp, mlp-plain, linear, or a Keras model of Dense layers")


@pytest.mark.parametrize("kind", ["npz:", "local:", ""])
def test_the_files_of_devices_are_not_ours(kind: str) -> None:
    make_job(TrainSettings(dataset=f"{kind}nowhere.npz"), wait_for=1)


CODED = [
    ({"code": "nosuch"}, "code = 'nosuch': there is no code 'nosuch', only none, first, cyclic, "),
    ({"code": "cyclic:s=x"}, "code = 'cyclic:s=x': s must be a whole number"),
    ({"code": "cyclic:s=40"}, "code = cyclic:s=40: s=40 is more than 32, the most that jobs may ask for"),
    ({"code": "cyclic:s=1", "wait": "soon"}, "wait = 'soon': must be exact, error<E or deadline:SECONDS"),
    ({"wait": "deadline:1"}, "wait = deadline:1: only coded rounds can end early; add a code, such as first:s=1"),
    ({"code": "cyclic:s=1", "dataset": "local:x.npz"}, "code = cyclic:s=1: several peers must have the same data"),
]


@pytest.mark.parametrize(("fields", "said"), CODED)
def test_codes_that_can_not_be_had(fields: dict[str, str], said: str) -> None:
    assert refusal(TrainSettings(peers=7, **fields)).startswith(said)  # type: ignore[arg-type]


def test_a_code_on_a_real_fleet_says_for_how_many() -> None:
    assert "say how many there will be: --peers" in refusal(TrainSettings(code="cyclic:s=1"))
    job = make_job(TrainSettings(code="cyclic", peers=4, wait="deadline:0.50"), wait_for=4)
    assert (job.code, job.wait) == ("cyclic:s=1", "deadline:0.50")
    assert make_job(TrainSettings(code="none"), wait_for=1).code == "none"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"model": "os.path:a.b"},
            "model = os.path:a.b: must name a function of a module, as in package.module:function",
        ),
        ({"model": "a b:c"}, "model = a b:c: must name a function of a module"),
        ({"model": ":c"}, "model = :c: must name a function of a module"),
        ({"optimizer": "sgd:momentum=2"}, "optimizer = sgd:momentum=2: momentum must be a number from 0 to below 1"),
        ({"optimizer": "lion", "trainer": "numpy"}, "optimizer = lion: trainer numpy has only sgd, adam, adamw, "),
        ({"schedule": "cosine:alpha=7"}, "schedule = cosine:alpha=7: alpha must be a number from 0 to 1, not '7'"),
    ],
)
def test_what_no_trainer_can_do(fields: dict[str, str], said: str) -> None:
    assert refusal(TrainSettings(**fields)).startswith(said)  # type: ignore[arg-type]


def test_a_job_says_what_was_asked_for() -> None:
    settings = TrainSettings(optimizer="adamw:weight_decay=.5", schedule="step", loss="mae", stop_on_nan=True)
    job = make_job(settings, wait_for=1)
    found = (job.optimizer, job.schedule, job.loss, job.stop_on_nan)
    assert found == ("adamw:weight_decay=0.5", "step", "mae", True)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_job_says_what_its_gradients_are_rounded_to(precision: Precision) -> None:
    job = make_job(TrainSettings(precision=precision), wait_for=1)
    assert job.precision == precision
    assert headline(JobProgress(job, broker="embedded")).endswith(f", rounded to {precision}") == (
        precision != "float32"
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"code": "cyclic:s=1"},
            "precision = int8: sums of code cyclic:s=1 are put together of what was not rounded; take float32",
        ),
        (
            {"split": "none:m=1,n=1", "model": "mlp-plain"},
            "precision = int8: split none:m=1,n=1 checks sums to the last bits; take float32",
        ),
    ],
)
def test_rounding_where_it_can_not_be_had(fields: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_job(TrainSettings(precision="int8", **fields), wait_for=5)  # type: ignore[arg-type]
    assert str(caught.value) == said


def test_rounding_by_a_protocol_that_does_not_know_it() -> None:
    fleet = OwnFleet(fanout=2, protocol="ring", data_dir=None)
    with pytest.raises(ConfigError) as caught:
        make_job(TrainSettings(precision="bf16"), wait_for=3, fleet=fleet)
    assert str(caught.value) == (
        "precision = bf16: rounds of protocol ring can't do it; use protocol ft-tree, or float32"
    )
    make_job(TrainSettings(), wait_for=3, fleet=fleet)
