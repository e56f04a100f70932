from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgepeer.cli.export import run
from edgepeer.errors import JobError, ModelError
from edgepeer.settings import ExportSettings
from edgepeer.training.build import build_trainer
from edgepeer.training.checkpoint import Checkpoint, write_checkpoint
from edgepeer.training.form import Form
from edgepeer.training.job import new_job
from edgepeer.training.saved import load_npz, save_model
from edgepeer.training.split.cell import Cell
from edgepeer.training.split.part import Part, pack_part
from edgepeer.training.split_choice import choose_split
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


@pytest.mark.parametrize("unreadable", [False, True])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], unreadable: bool
) -> None:
    job = new_job(id="j1", model="linear", trainer="numpy", rounds=9)
    trainer = build_trainer(job, Form(input_shape=(3,), outputs=2, loss="crossentropy"))
    digest = parameter_digest(trainer.parameters())
    for round_ in (3, 6):
        kept = Checkpoint(
            job=job, round=round_, generation=None, epoch=1, members=("a",), digest=digest, state=trainer.state()
        )
        newest = write_checkpoint(tmp_path, kept)
    if unreadable:  # as a disk that begins to fail has it
        newest.unlink()
        newest.mkdir()
    else:
        newest.write_bytes(newest.read_bytes()[:-1])
    assert run(ExportSettings(checkpoint=tmp_path, out=(tmp_path / "model.npz"))) == 0
    said = capsys.readouterr()
    assert said.out.endswith("linear of job j1 after round 3 of 9\n")
    assert said.err.startswith(f"edgepeer: {newest}: ")
    assert said.err.endswith(": left out\n")


def test_a_model_whose_last_step_was_too_large_is_exported_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss of its last round was that of before the step."""
    job = new_job(id="j1", model="linear", trainer="numpy", rounds=9)
    trainer = build_trainer(job, Form(input_shape=(3,), outputs=2, loss="crossentropy"))
    trainer.apply(np.full(trainer.size, np.inf, np.float32))
    digest = parameter_digest(trainer.parameters())
    out = tmp_path / "model.npz"
    kept = Checkpoint(
        job=job, round=9, generation=None, epoch=1, members=("a",), digest=digest, state=trainer.state(), diverged=0
    )
    assert run(ExportSettings(checkpoint=write_checkpoint(tmp_path / "checkpoints", kept), out=out)) == 0
    assert not np.isfinite(load_npz(out).layers[0][0]).any()
    assert "not all of its parameters are finite: it is of no use" in capsys.readouterr().err
    with pytest.raises(ModelError, match="the model is broken: its parameter 0 is not finite"):
        save_model(out, job, trainer.state(), digest=digest)


def test_of_a_split_job_it_is_the_newest_that_can_be_put_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of eight devices was killed after round 6: the others determine the model after round 9. The last round that
    only one of them has kept does not count."""
    job = new_job(id="j1", model="linear", trainer="numpy", rounds=12, split="codenet:m=2,n=1,t=1", wait_for=8)
    form = Form(input_shape=(3,), outputs=2, loss="crossentropy")
    chosen = choose_split(job, form)
    assert chosen is not None
    network, split = chosen
    kept = {3: range(8), 6: range(8), 9: range(1, 8), 12: [3]}
    for round_, nodes in kept.items():
        for node in nodes:
            cell = Cell(replace(network, seed=round_), split, node, iteration=round_)
            part = Part(node=node, iteration=round_, form=form, blocks=cell.pack())
            checkpoint = Checkpoint(
                job=job, round=round_, generation=None, epoch=1, members=("a",), digest="", state=pack_part(part)
            )
            write_checkpoint(tmp_path / f"d{node}" / "checkpoints", checkpoint)
    out = tmp_path / "model.npz"
    assert run(ExportSettings(checkpoint=tmp_path, out=out)) == 0
    assert capsys.readouterr().out == f"wrote {out}: linear of job j1 after round 9 of 12\n"
    weights = np.stack([replace(network, seed=9).weights(0, row)[:3] for row in range(2)], axis=1)
    assert load_npz(out).layers[0][0] == pytest.approx(weights, abs=1e-6)

    for path in tmp_path.glob("d[!3]"):
        path.rename(tmp_path.parent / f"{tmp_path.name}-{path.name}")
    with pytest.raises(JobError, match="the model can't be put together from 1 parts"):
        run(ExportSettings(checkpoint=tmp_path, out=out))
