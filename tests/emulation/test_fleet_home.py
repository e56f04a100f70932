"""A fleet's directory goes with it, or, after a crash, with the next fleet."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edgepeer.emulation.home import fleet_home
from edgepeer.errors import ConfigError
from edgepeer.fabric.mosquitto import find_mosquitto

CRASH = """
import os, signal
from edgepeer.emulation.home import fleet_home
with fleet_home() as home:
    (home / "p00").mkdir()
    print(home, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
CRASH_WITH_MOSQUITTO = """
import asyncio, os, signal
from edgepeer.emulation.launcher import open_broker
async def main():
    async with open_broker("mosquitto"):
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_it_is_gone_afterwards(tmp_path: Path) -> None:
    with fleet_home() as home:
        (home / "p00").mkdir()
        assert home.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_what_a_crash_leaves_goes_with_the_next_one_and_what_is_in_use_stays(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, timeout=60, check=False)
    left = Path(ended.stdout.strip())
    assert (left / "p00").is_dir()
    other = tmp_path / "edgepeer-emulation-without-a-lock"  # it may be about to be locked
    other.mkdir()
    with fleet_home() as first, fleet_home() as second:
        assert sorted(tmp_path.iterdir()) == sorted([first, second, other])
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.skipif(find_mosquitto() is None, reason="needs mosquitto")
def test_what_a_broker_leaves_goes_as_well(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", CRASH_WITH_MOSQUITTO], timeout=60, check=False)
    (left,) = tmp_path.iterdir()
    assert (left / "mosquitto.conf").is_file()
    with fleet_home() as home:
        assert list(tmp_path.iterdir()) == [home]


def test_what_is_to_be_kept_stays(tmp_path: Path) -> None:
    with fleet_home(tmp_path / "a" / "b") as home:
        (home / "log").write_text("x")
    assert (tmp_path / "a" / "b" / "log").read_text() == "x"


def test_what_is_there_already_is_not_gone_on_from(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x")
    with pytest.raises(ConfigError, match="is not empty"), fleet_home(tmp_path):
        pass
    with pytest.raises(ConfigError, match="can't be used: "), fleet_home(tmp_path / "log"):
        pass
