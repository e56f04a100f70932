"""A device's checkpoints: which one is used, and what happens where none can be written or read."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edgepeer.errors import ConfigError, JobError
from edgepeer.ids import Generation
from edgepeer.peer.checkpoints import Checkpoints
from edgepeer.settings import PeerSettings
from edgepeer.topology.view import Member, View
from edgepeer.training import checkpoint as files
from edgepeer.training.checkpoint import list_checkpoints, read_checkpoint
from edgepeer.training.job import new_job
from edgepeer.training.numpy_trainer import NumpyTrainer

JOB = new_job(id="j1", rounds=25)
VIEW = View(
    generation=Generation(counter=2), epoch=7, members=tuple(Member(id=name, incarnation=1) for name in ("a", "b", "c"))
)


def trainer(hidden: int = 3, *, steps: int = 0) -> NumpyTrainer:
    made = NumpyTrainer(features=4, outputs=2, hidden=(hidden,), optimizer="adam")
    for step in range(steps):
        made.apply(np.full(made.size, 0.1 * (step + 1), np.float32))
    return made


def save(store: Checkpoints, number: int, job: Any = JOB, hidden: int = 3, view: View = VIEW) -> None:
    store.save(job, number, trainer(hidden, steps=number), view)


@pytest.fixture
def store(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path, every=10, keep=3)


def test_every_so_many_rounds_and_the_last(store: Checkpoints) -> None:
    assert [number for number in range(1, 26) if store.due(number, last=number == JOB.rounds)] == [10, 20, 25]


def test_off_means_nothing_is_written_or_read(tmp_path: Path) -> None:
    for off in (Checkpoints(tmp_path, every=0, keep=3), Checkpoints(None, every=10, keep=3)):
        assert not any(off.due(number, last=number == JOB.rounds) for number in range(1, 26))
        save(off, 10)
        assert not off.any()
        assert off.unfinished() is None
        assert off.restore(JOB, trainer()) is None
        assert (off.written, off.failed) == (0, 0)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("counters", [(2, 2, 3), (3, 3, 2)])
def test_what_was_written_last_comes_before_a_later_round(store: Checkpoints, counters: tuple[int, int, int]) -> None:
    """What was done before is given up: in a generation before it; or after it, of which nobody was left."""
    for number, counter in zip((2, 9, 4), counters, strict=True):
        save(store, number, view=msgspec.structs.replace(VIEW, generation=Generation(counter=counter)))
    restored = store.restore(JOB, fresh := trainer())
    assert restored is not None
    assert (restored.round, restored.generation) == (4, Generation(counter=counters[-1]))
    assert np.array_equal(fresh.parameters(), trainer(steps=4).parameters())


def test_the_newest_is_restored(store: Checkpoints) -> None:
    for number in (2, 4, 6, 8):
        save(store, number)
    assert store.written == 4
    assert len(list_checkpoints(store.directory or Path())) == 3
    assert store.unfinished() == JOB
    mine = trainer()
    restored = store.restore(JOB, mine)
    assert restored is not None
    assert (restored.round, restored.epoch, restored.members) == (8, 7, VIEW.ids)
    assert mine.state() == trainer(steps=8).state()


def test_the_job_that_a_device_was_at_is_that_of_what_it_has_written_last(tmp_path: Path, store: Checkpoints) -> None:
    """A fleet goes on from one job to the next in one generation, and the rounds of each count from 1."""
    other = new_job(id="j2", rounds=25)
    save(store, 20)
    save(store, 25)
    store.mark_over("j1", "done")
    save(store, 10, other)
    assert Checkpoints(tmp_path, every=10, keep=3).unfinished() == other
    store.mark_over("j2", "withdrawn")
    assert Checkpoints(tmp_path, every=10, keep=3).unfinished() is None


def test_those_of_a_job_are_discarded_and_no_others(tmp_path: Path, store: Checkpoints) -> None:
    other = new_job(id="j2", rounds=25)
    for number, job in ((10, other), (20, JOB), (30, JOB)):
        save(store, number, job)
    store.discard(JOB)
    assert [read_checkpoint(path).job for path in list_checkpoints(tmp_path / "checkpoints")] == [other]


def test_damaged_ones_are_passed_over_and_named(store: Checkpoints, caplog: pytest.LogCaptureFixture) -> None:
    assert store.directory is not None
    for number in (2, 4, 6):
        save(store, number)
    torn, unreadable, good = list_checkpoints(store.directory)
    torn.write_bytes(torn.read_bytes()[:50])
    unreadable.unlink()
    unreadable.mkdir()
    mine = trainer()
    restored = store.restore(JOB, mine)
    assert restored is not None
    assert restored.round == 2
    assert mine.state() == trainer(steps=2).state()
    assert read_checkpoint(good).round == 2
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert f"{torn}: damaged" in caplog.text
    assert f"{unreadable} can't be read" in caplog.text


def test_those_of_other_jobs_and_models_are_refused(store: Checkpoints, caplog: pytest.LogCaptureFixture) -> None:
    save(store, 2, hidden=3)
    save(store, 4, hidden=5)  # a model of the same name that has changed on this device
    save(store, 6, new_job(id="j1", rounds=99))
    mine = trainer(3)
    restored = store.restore(JOB, mine)
    assert restored is not None
    assert restored.round == 2
    assert "is of another job with the id j1" in caplog.text
    assert "this model has" in caplog.text
    assert store.restore(new_job(id="j2"), mine) is None
    assert mine.state() == trainer(3, steps=2).state()


def test_a_trainer_that_does_not_become_what_it_loads_is_an_error(store: Checkpoints) -> None:
    class Forgetful(NumpyTrainer):
        def load_state(self, state: Any) -> None:
            """Does nothing."""

    save(store, 2)
    with pytest.raises(JobError, match="are not those of the checkpoint: delete the file"):
        store.restore(JOB, Forgetful(features=4, outputs=2, hidden=(3,), optimizer="adam"))


def test_a_full_disk_costs_one_warning(
    store: Checkpoints, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    caplog.set_level(logging.INFO)
    save(store, 2)
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "write", full)
        save(store, 4)
        save(store, 6)
        store.mark_over("j0", "withdrawn")
    assert (store.written, store.failed) == (1, 2)
    save(store, 8)
    assert (store.written, store.failed) == (2, 2)
    warning, recovery = caplog.records
    assert warning.getMessage().startswith(f"checkpoint of round 4 is not written to {store.directory}: No space left")
    assert "free some space there" in warning.getMessage()
    assert "again" in recovery.getMessage()
    assert store.ending("j0") == "withdrawn"


def test_earlier_ones_that_can_not_be_removed(
    store: Checkpoints, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is written all the same."""

    def refuse(*arguments: Any) -> Any:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("edgepeer.peer.checkpoints.prune_checkpoints", refuse)
    save(store, 2)
    save(store, 4)
    assert (store.written, store.failed) == (2, 0)
    (warning,) = caplog.records
    assert warning.getMessage().startswith(f"earlier checkpoints are not removed from {store.directory}: Operation not")


def test_a_directory_that_is_none_costs_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "checkpoints").write_text("a file stands there")
    store = Checkpoints(tmp_path, every=1, keep=1)
    assert store.unfinished() is None
    save(store, 1)
    assert store.failed == 1
    assert "can't be read: Not a directory" in caplog.text
    assert "is not written" in caplog.text


def test_jobs_that_are_over_stay_so(tmp_path: Path, store: Checkpoints) -> None:
    save(store, 2)
    store.mark_over("j1", "done")
    store.mark_over("j1", "withdrawn")
    store.mark_over("j1", "done")  # later than it is known to be withdrawn
    again = Checkpoints(tmp_path, every=10, keep=3)
    assert again.unfinished() is None
    assert again.ending("j1") == "withdrawn"  # a broker that still keeps it is behind the times
    assert again.restore(JOB, trainer()) is not None
    for number in range(70):
        again.mark_over(f"k{number}", "withdrawn")
    third = Checkpoints(tmp_path, every=10, keep=3)
    assert third.unfinished() == JOB
    assert third.ending("k69") == "withdrawn"


def test_jobs_that_are_over_stay_so_without_checkpoints(tmp_path: Path) -> None:
    Checkpoints(tmp_path, every=0, keep=3).mark_over("j1", "withdrawn")
    for every in (0, 10):
        again = Checkpoints(tmp_path, every=every, keep=3)
        assert again.unfinished() is None
        assert again.ending("j1") == "withdrawn"
    nowhere = Checkpoints(None, every=0, keep=3)
    nowhere.mark_over("j1", "withdrawn")
    assert nowhere.ending("j1") == "withdrawn"  # in this life


@pytest.mark.parametrize("damaged", [b'{"j1": "do', b'{"j\xff": "done"}', b"\0" * 20])
def test_a_damaged_list_of_endings_is_told(
    tmp_path: Path, store: Checkpoints, caplog: pytest.LogCaptureFixture, damaged: bytes
) -> None:
    save(store, 2)
    (tmp_path / "checkpoints" / "over.json").write_bytes(damaged)
    assert store.unfinished() == JOB
    assert "may be taken up again" in caplog.text


def test_a_checkpoint_without_a_state_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="state_dir must say where checkpoints go"):
        PeerSettings(checkpoint_every=10)


def without_directories(monkeypatch: pytest.MonkeyPatch, fails_with: int) -> None:
    """A file system that brings files to the disk, but not directories."""
    sync = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(fails_with, os.strerror(fails_with))
        sync(handle)

    monkeypatch.setattr(files.os, "fsync", fsync)


def test_where_directories_are_never_brought_to_the_disk_a_checkpoint_is_one(
    store: Checkpoints, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_directories(monkeypatch, errno.EINVAL)
    for number in range(1, 8):
        save(store, number)
    assert (store.written, store.failed) == (7, 0)
    assert len(list_checkpoints(store.directory)) == 3
    assert caplog.text == ""


def test_checkpoints_that_may_not_last_do_not_pile_up(store: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    without_directories(monkeypatch, errno.EIO)
    for number in range(1, 8):
        save(store, number)
    assert (store.written, store.failed) == (0, 7)
    assert len(list_checkpoints(store.directory)) == 3
