"""What a device keeps of itself: what is damaged is named, and what is no file is not waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgepeer.errors import ConfigError
from edgepeer.given import open_regular
from edgepeer.ids import Generation, keep_generation, load_identity


@pytest.mark.parametrize("content", [b"\xff\xfe\0garbage", b"\0" * 40, b"-p1 3 4", b"\n\0"])
def test_an_identity_that_is_damaged_says_where_and_what_to_do(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "identity").write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        load_identity(tmp_path)
    assert f"{tmp_path}/identity is damaged, and does not begin with a peer id: write" in str(refused.value)
    assert (tmp_path / "identity").read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"a", b"a 1q 3", b"\xff\xfe"])
def test_of_a_damaged_identity_only_the_name_is_missed(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever is told who it is, as members of fleets are, goes on by itself after a card has lost the file."""
    (tmp_path / "identity").write_bytes(content)
    first = load_identity(tmp_path, "a")
    assert caplog.messages == [
        f"{tmp_path}/identity is damaged: this start of a is numbered by the clock alone; where that is behind, a "
        "fleet does not hear it"
    ]
    again = load_identity(tmp_path)
    assert (first.peer_id, again.peer_id) == ("a", "a")
    assert again.incarnation > first.incarnation
    assert len(caplog.messages) == 1


def test_but_nobody_takes_the_place_of_another(tmp_path: Path) -> None:
    (tmp_path / "identity").write_bytes(b"b 1q 3")
    with pytest.raises(ConfigError, match="identity is damaged: write b 0 into it"):
        load_identity(tmp_path, "a")


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_that_a_device_is_a_new_peer_is_said(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "identity").write_bytes(content)
    new = load_identity(tmp_path)
    assert caplog.messages == [f"{tmp_path}/identity is empty: this device is a new peer, {new.peer_id}"]
    assert load_identity(tmp_path).peer_id == new.peer_id


@pytest.mark.parametrize("content", [b"", b"\0" * 15, b"\xff 2 3", b"1 2", b"0 0 0"])
def test_a_damaged_generation_is_none(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The view beside it tells the same. A device that did not start before somebody deleted the file knew no more."""
    load_identity(tmp_path)
    keep_generation(tmp_path, Generation(counter=3))
    assert load_identity(tmp_path).known == Generation(counter=3)
    (tmp_path / "generation").write_bytes(content)
    assert load_identity(tmp_path).known is None
    assert caplog.messages == [
        f"{tmp_path}/generation is damaged, and counts no more: the last view, and the others, tell the generation"
    ]


@pytest.mark.parametrize("name", ["identity", "generation"])
def test_what_is_in_the_way_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=f"can't keep the identity there: {tmp_path}/{name}: is a directory$"):
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
