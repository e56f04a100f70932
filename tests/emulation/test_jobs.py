"""Jobs that nobody could do are refused in one line, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepeer.emulation.jobs import make_job
from edgepeer.errors import ConfigError
from edgepeer.settings import EmulateSettings, JobSettings, TrainSettings


def refusal(settings: JobSettings) -> str:
    with pytest.raises(ConfigError) as caught:
        make_job(settings, wait_for=1)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["nosuch", "npz:", "local:", "http://x/y", "Digits"])
def test_a_data_set_that_nobody_knows(name: str) -> None:
    for kind in (TrainSettings, EmulateSettings):
        said = refusal(kind(dataset=name))
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


def test_data_that_an_emulation_can_not_read(tmp_path: Path) -> None:
    nowhere, file = tmp_path / "nowhere", tmp_path / "own.npz"
    file.touch()
    reason = "must be a directory that can be read"
    assert refusal(EmulateSettings(data_dir=nowhere)) == f"data_dir = {nowhere}: {reason}: No such file or directory"
    assert refusal(EmulateSettings(data_dir=file)) == f"data_dir = {file}: {reason}: Not a directory"
    for kind in ("npz:", "local:", ""):
        said = refusal(EmulateSettings(dataset=f"{kind}other.npz", data_dir=tmp_path))
        assert said == f"dataset = {kind}other.npz: must name a file that can be read: No such file or directory"
        make_job(EmulateSettings(dataset=f"{kind}own.npz", data_dir=tmp_path), wait_for=1)
        make_job(EmulateSettings(dataset=f"{kind}{file}"), wait_for=1)
        make_job(TrainSettings(dataset=f"{kind}other.npz"), wait_for=1)  # the devices' files are not ours
