from __future__ import annotations

from pathlib import Path

import pytest

from edgepeer.cli.export import run
from edgepeer.settings import ExportSettings
from edgepeer.training.build import build_trainer
from edgepeer.training.checkpoint import Checkpoint, write_checkpoint
from edgepeer.training.form import Form
from edgepeer.training.job import new_job
from edgepeer.training.state import parameter_digest


@pytest.mark.parametrize("diverged", [0, 4])
def test_a_model_that_has_diverged_is_exported_with_a_word(
    diverged: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = new_job(id="j1", model="linear", trainer="numpy", rounds=9)
    trainer = build_trainer(job, Form(input_shape=(3,), outputs=2, loss="crossentropy"))
    checkpoint = Checkpoint(
        job=job,
        round=9,
        generation=None,
        epoch=1,
        members=("a",),
        digest=parameter_digest(trainer.parameters()),
        state=trainer.state(),
        diverged=diverged,
    )
    out = tmp_path / "model.npz"
    assert run(ExportSettings(checkpoint=write_checkpoint(tmp_path / "checkpoints", checkpoint), out=out)) == 0
    assert out.exists()
    said = capsys.readouterr()
    assert said.out == f"wrote {out}: linear of job j1 after round 9 of 9\n"
    assert ("the loss was not finite in round 4" in said.err) == bool(diverged)
    assert said.err.count("\n") == bool(diverged)
