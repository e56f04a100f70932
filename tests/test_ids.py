"""What a device keeps of itself: what is damaged is named, and what is no file is not waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgepeer.errors import ConfigError
from edgepeer.given import open_regular
from edgepeer.ids import load_identity


@pytest.mark.parametrize("content", [b"\xff\xfe\0garbage", b"\0" * 40, b"-p1 3 4", b"\n\0"])
def test_an_identity_that_is_damaged_says_where_and_what_to_do(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "identity").write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        load_identity(tmp_path)
    assert f"{tmp_path}/identity is damaged, and does not begin with a peer id: write" in str(refused.value)
    assert (tmp_path / "identity").read_bytes() == content


def test_a_damaged_generation(tmp_path: Path) -> None:
    load_identity(tmp_path)
    (tmp_path / "generation").write_bytes(b"\xff 2 3")
    with pytest.raises(ConfigError, match=r"generation is damaged \(.*\): delete it$"):
        load_identity(tmp_path)


@pytest.mark.parametrize("name", ["identity", "generation"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=f"can't keep the identity there: {name} is no regular file$"):
        load_identity(tmp_path)


def test_what_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("some")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"some"
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "other")
    with pytest.raises(OSError, match="null is no regular file"):
        open_regular(Path("/dev/null"))
