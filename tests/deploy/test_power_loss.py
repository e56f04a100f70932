"""The power goes in the middle of an upgrade, before each of its steps: the device starts with a peer that works."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from devices import DEPLOY, Device

READY: Final = (
    "import os, signal, socket;"
    "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'READY=1', os.environ['NOTIFY_SOCKET']);"
    "signal.pause()"
)
STEPS_AT_MOST: Final = 60


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    """Version 1 is in use, and has other units than those that come now."""
    device = Device(tmp_path)
    (tmp_path / "etc/edgepeer/edgepeer.toml").touch()
    old = "# of version 1\n" + (DEPLOY / "edgepeer-peer.service").read_text()
    add_version(device, "1", old, works=True)
    (device.units / "edgepeer-peer.service").write_text(old)
    (device.home / "current").symlink_to("versions/1")
    yield device
    device.lose_power()


def add_version(device: Device, name: str, unit: str, *, works: bool) -> None:
    """Not edgepeer, but something that is started as quickly, and does or does not say that it is ready."""
    place = device.home / "versions" / name
    (place / "bin").mkdir(parents=True)
    (place / "units").mkdir()
    (place / "units/edgepeer-peer.service").write_text(unit)
    program = place / "bin/edgepeer"
    program.write_text(
        f'#!/bin/sh\nexport VERSION={name}\nexec "{sys.executable}" -IS -c "{READY if works else "exit(1)"}"\n'
    )
    program.chmod(0o755)


def runs(device: Device) -> tuple[str, bool]:
    """The version that runs, and whether its unit is that of version 1."""
    pid = device.pid
    assert pid, device.log
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    (version,) = (entry.partition(b"=")[2].decode() for entry in environment if entry.startswith(b"VERSION="))
    return version, (device.units / "edgepeer-peer.service").read_text().startswith("# of version 1")


def cut_everywhere(device: Device, begin: Callable[[], None], *arguments: str) -> Iterator[int]:
    """Run versions.sh from the same beginning, with the power gone before its first step, its second, ..."""
    for step in range(1, STEPS_AT_MOST):
        begin()
        device.versions(*arguments, **device.cut_at(step))
        if device.steps() < step:
            assert step > 5
            return
        device.lose_power()
        yield step
    raise AssertionError("it does not end")


@pytest.mark.slow
@pytest.mark.parametrize("works", [True, False], ids=["good", "bad"])
def test_power_goes_at_each_step_of_a_trial(works: bool, device: Device) -> None:
    add_version(device, "2", (DEPLOY / "edgepeer-peer.service").read_text(), works=works)
    unit, seen = device.units / "edgepeer-peer.service", set()
    old = unit.read_text()

    def begin() -> None:
        """Version 1 is in use. What runs is what the last start has left, which does not matter here."""
        unit.write_text(old)
        os.replace(link_to(device, "1"), device.home / "current")
        if not device.pid:
            device.start()

    for step in cut_everywhere(device, begin, "try", "2"):
        device.boot()
        version, old_unit = runs(device)
        assert version == "1" or works, step
        assert old_unit or version == "2", step
        assert not device.on_trial
        seen.add(version)
    assert seen == ({"1", "2"} if works else {"1"})
    # And what happens without a loss of power.
    assert runs(device) == (("2", False) if works else ("1", True))


def test_power_goes_again_while_a_trial_is_undone(device: Device) -> None:
    add_version(device, "2", (DEPLOY / "edgepeer-peer.service").read_text(), works=False)

    def begin() -> None:
        """As a loss of power leaves it right before the new version is started."""
        (device.home / "trial").write_text("1\n")
        (device.home / "current").unlink(missing_ok=True)
        (device.home / "current").symlink_to("versions/2")
        os.replace(write(device.root / "new", (DEPLOY / "edgepeer-peer.service").read_text()), unit)

    unit = device.units / "edgepeer-peer.service"
    for step in cut_everywhere(device, begin, "restore"):
        device.boot()
        assert runs(device) == ("1", True), step
        device.lose_power()


def link_to(device: Device, version: str) -> Path:
    new = device.home / "current.test"
    new.symlink_to(f"versions/{version}")
    return new


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_trial_that_was_cut_short_ends_where_the_next_begins(device: Device) -> None:
    for name in ("2", "3"):
        add_version(device, name, (DEPLOY / "edgepeer-peer.service").read_text(), works=name == "3")
    (device.home / "trial").write_text("1\n")
    (device.home / "current").unlink()
    (device.home / "current").symlink_to("versions/2")
    tried = device.versions("try", "3")
    assert tried.returncode == 0, tried.stderr
    assert "version 1 is in use again" in tried.stdout
    assert device.current == "3"


def test_a_version_that_is_not_there_is_refused(device: Device) -> None:
    device.start()
    tried = device.versions("try", "7")
    assert tried.returncode == 1
    assert "there is no version 7" in tried.stderr
    assert runs(device) == ("1", True)
    assert device.versions("undo").returncode == 2
