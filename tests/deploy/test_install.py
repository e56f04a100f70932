"""install.sh: what it puts where, what it refuses, and upgrades of a device whose peer really runs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
from devices import DEPLOY, Device, changed_wheel
from real_programs import edgepeer

BROKEN: Final = "raise RuntimeError('this version is broken')\n"
SILENT: Final = """
import signal
from edgepeer.cli.verb import Verb
from edgepeer.settings import PeerSettings

__all__ = ["VERB", "machine_of"]


def machine_of(settings):
    return None


VERB = Verb(kind=PeerSettings, about="Never ready.", examples=[("", "")], run=lambda settings: signal.pause())
"""
BEFORE_VERSIONS: Final = """
[Service]
ExecStart=/opt/edgepeer/bin/edgepeer peer --config %d/edgepeer.toml
LoadCredential=edgepeer.toml:/etc/edgepeer/edgepeer.toml
StateDirectory=edgepeer
Environment=EDGEPEER_PEER_STATE_DIR=%S/edgepeer
"""
"""The unit as it was: not notifying, and with the program where it was."""


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    device = Device(tmp_path / "device")
    yield device
    device.lose_power()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[str]:
    async with edgepeer("broker", "--listen", "127.0.0.1:0", home=tmp_path) as program:
        yield (await program.said("broker ready at (.+)"))[1]


def configure(device: Device, broker: str) -> None:
    (device.root / "etc/edgepeer/edgepeer.toml").write_text(f'[common]\nbroker = "{broker}"\n')


def peer_id(device: Device) -> str:
    return (device.root / "var/lib/edgepeer/identity").read_text().split()[0]


def test_a_dry_run_names_the_steps_and_does_none(tmp_path: Path) -> None:
    device = Device(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = device.install("--dry-run", "--with-broker", "--with-digits", "--with-fleet")
    assert done.returncode == 0, done.stderr
    assert "[secure,digits,broker]" in done.stdout
    for unit in DEPLOY.glob("*.service"):
        assert f"{tmp_path}/etc/systemd/system/{unit.name}" in done.stdout
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("before", "asked", "then"),
    [
        ("secure,tensorflow,broker", (), "secure,tensorflow,broker"),
        ("secure,digits", ("--with-broker",), "secure,digits,broker"),
        ("secure,tensorflow", ("--trainer", "numpy"), "secure"),
        ("secure", ("--trainer", "tensorflow"), "secure,tensorflow"),
    ],
)
def test_an_upgrade_keeps_what_was_asked_for_before(
    before: str, asked: tuple[str, ...], then: str, tmp_path: Path
) -> None:
    device = Device(tmp_path)
    (device.home / "versions/1").mkdir(parents=True)
    (device.home / "current").symlink_to("versions/1")
    (device.home / "current/what").write_text(f"0a1b {before}\n")
    done = device.install("--dry-run", *asked)
    assert done.returncode == 0, done.stderr
    assert f"[{then}]" in done.stdout


@pytest.mark.parametrize(("python", "same"), [("{}.{}".format(*sys.version_info), True), ("3.10", False)])
def test_another_python_than_it_was_installed_with_needs_an_environment_of_its_own(
    python: str, same: bool, tmp_path: Path
) -> None:
    device = Device(tmp_path)
    (device.home / "versions/1").mkdir(parents=True)
    (device.home / "current").symlink_to("versions/1")
    (device.home / "current/what").write_text(f"edgepeer==1 python{python} secure\n")
    done = device.install("--dry-run", "--if-changed", "--from", "edgepeer==1")
    assert done.returncode == 0, done.stderr
    assert ("nothing to do" in done.stdout) == same
    assert ("as version 2" in done.stdout) != same


def test_of_settings_that_were_there_it_says_what_a_fleet_needs(tmp_path: Path) -> None:
    device, needs = Device(tmp_path), 'fleet = "/var/lib/edgepeer-fleet/broker"'
    asked = ("--dry-run", "--with-broker", "--with-fleet")
    assert "was there before" not in device.install(*asked).stdout
    settings = device.root / "etc/edgepeer/edgepeer.toml"
    settings.write_text("[peer]\n[broker]\n")
    said = device.install(*asked).stdout
    assert "edgepeer.toml was there before" in said
    assert f"\n         {needs}\n" in said
    settings.write_text(f"[peer]\n[broker]\n{needs}\n")
    assert "was there before" not in device.install(*asked).stdout


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--trainer", "abacus"), "must be numpy or tensorflow"),
        (("--trainer",), "must be numpy or tensorflow"),
        (("--wheels",), "--wheels takes a value"),
        (("--from",), "--from takes a value"),
        (("--from", ""), "--from takes a value"),
        (("--wheels", "--if-changed"), "--wheels takes a value"),
        (("--nonsense",), "usage:"),
        (("--from", "/nonexistent/edgepeer.whl"), "no such file"),
        (("--wheels", "/nonexistent"), "no such directory"),
    ],
)
def test_what_it_does_not_know_is_refused(wrong: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = Device(tmp_path).install("--dry-run", *wrong)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_shell_scripts_are_clean() -> None:
    scripts = sorted(map(str, DEPLOY.rglob("*.sh")))
    checked = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_an_upgrade_that_fails_is_taken_back(device: Device, broker: str, wheel: Path, tmp_path: Path) -> None:
    installed = device.install("--from", wheel, PYTHON=sys.executable)  # with a pip of its own
    assert installed.returncode == 0, installed.stderr
    assert device.current == "1"
    assert os.readlink(device.root / "usr/local/bin/edgepeer") == "/opt/edgepeer/current/bin/edgepeer"
    assert (device.root / "etc/edgepeer/edgepeer.toml").stat().st_mode & 0o777 == 0o600
    configure(device, broker)
    device.start()
    first, name = device.pid, peer_id(device)

    again = device.install("--from", wheel, "--if-changed")
    assert (again.returncode, again.stdout) == (0, "edgepeer is installed already: nothing to do\n")

    upgraded = device.install("--from", wheel)
    assert upgraded.returncode == 0, upgraded.stderr
    assert "version 2 is ready" in upgraded.stdout
    assert (device.current, device.there, device.on_trial) == ("2", {"1", "2"}, False)
    second = device.pid
    assert second not in (0, first)
    assert peer_id(device) == name
    assert f'broker = "{broker}"' in (device.root / "etc/edgepeer/edgepeer.toml").read_text()  # the user's stay

    # One that does not get as far as its settings is not even tried: the peer that runs runs on.
    worse = changed_wheel(wheel, tmp_path / "worse", {"cli/__init__.py": BROKEN})
    for refused in (
        device.install("--from", worse),
        # The disk is full.
        device.run("sh", "-c", f"ulimit -f 100; exec sh {DEPLOY}/install.sh --from {wheel}", PYTHON=sys.executable),
    ):
        assert refused.returncode != 0
        assert (device.current, device.there, device.pid) == ("2", {"1", "2"}, second)

    # One that ends, and one that does not say that it is ready, are taken back.
    for module, text in (("cli/peer.py", SILENT), ("peer/agent.py", BROKEN)):
        broken = changed_wheel(wheel, tmp_path / Path(module).stem, {module: text})
        failed = device.install("--from", broken, START_TIMEOUT="15")
        assert failed.returncode == 1
        assert "version 3 was not ready in time, 2 runs again" in failed.stderr, failed.stderr
        assert (device.current, device.there, device.on_trial) == ("2", {"1", "2"}, False)
        assert device.pid
        assert peer_id(device) == name


@pytest.mark.slow
def test_a_device_from_before_there_were_versions(device: Device, broker: str, wheel: Path, tmp_path: Path) -> None:
    """Its environment is /opt/edgepeer itself, its unit does not notify."""
    (device.home / "bin").mkdir()
    program = device.home / "bin/edgepeer"
    program.write_text(f"#!/bin/sh\nexec env PYTHONPATH= {shutil.which('python3')} -m http.server --bind 127.0.0.1 0\n")
    program.chmod(0o755)
    unit = device.units / "edgepeer-peer.service"
    unit.write_text(BEFORE_VERSIONS)
    configure(device, broker)
    device.start()
    failed = device.install("--from", changed_wheel(wheel, tmp_path / "bad", {"peer/agent.py": BROKEN}))
    assert failed.returncode == 1
    assert "0 runs again" in failed.stderr
    assert device.current == "0"
    assert unit.read_text() == BEFORE_VERSIONS
    assert device.pid
    upgraded = device.install("--from", wheel)
    assert upgraded.returncode == 0, upgraded.stderr
    assert "Type=notify" in unit.read_text()
    assert (device.current, program.exists()) == ("1", True)
    assert device.install("--from", wheel).returncode == 0
    assert (device.there, program.exists()) == ({"1", "2"}, False)
    assert device.pid


def test_what_was_cut_short_is_cleared_away(device: Device, wheel: Path) -> None:
    half = device.home / "versions/1"
    (half / "bin").mkdir(parents=True)
    with subprocess.Popen(
        ["flock", device.home / "lock", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(b"\n")
        other.stdin.flush()
        assert other.stdout.read(1)  # it holds the lock
        refused = device.install("--from", wheel)
        assert "another installation is at work" in refused.stderr
        assert half.exists()
        other.send_signal(signal.SIGTERM)
    installed = device.install("--from", wheel)
    assert installed.returncode == 0, installed.stderr
    assert device.there == {"2"}
    assert re.search("rm -rf .*versions/1", installed.stdout)
