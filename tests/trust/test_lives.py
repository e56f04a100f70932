"""The number of a member's last life: it grows, wherever the clock stands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgepeer import ids
from edgepeer.trust.lives import begin_life


def test_lives_are_numbered_upwards_though_the_clock_comes_back_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = []
    for now in (1_800_000_000, 1_799_996_400, 0, 4_100_000_000, 1_800_000_060):
        monkeypatch.setattr(ids.time, "time", lambda now=now: now)
        numbers.append(begin_life(tmp_path))
    assert numbers == sorted(set(numbers))
    assert [path.name for path in tmp_path.iterdir()] == ["life"]


@pytest.mark.parametrize("content", [b"", b"\xff\0", b"many"])
def test_a_number_that_is_damaged_is_said_and_written_anew(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "life").write_bytes(content)
    assert begin_life(tmp_path) < begin_life(tmp_path)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/life can't be read (it is damaged): this start is numbered by the clock alone; "
        "where that is behind, a fleet does not hear it"
    ]


def test_where_it_can_not_be_kept_the_log_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "life")  # which is not waited for
    assert begin_life(tmp_path)
    assert begin_life(tmp_path / "gone") > 0
    first, second = [record.getMessage() for record in caplog.records]
    assert "life is no regular file" in first
    assert second.startswith(f"{tmp_path}/gone/life can't be written (no such file or directory): should this device")
