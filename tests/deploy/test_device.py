"""Devices with a systemd of their own (systemd-nspawn), of either Debian that Raspberry Pi OS is made of, from empty
ones to the first round by the README alone; then an upgrade that fails, a loss of power, and a frozen peer. Minutes,
and root: `make check-deploy` asks for it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from devices import DEPLOY, REPOSITORY, changed_wheel

NEEDS: Final = ("systemd-nspawn", "mmdebstrap", "nsenter", "ip")
MISSING: Final = [name for name in NEEDS if shutil.which(name) is None]
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HUB, PI = "10.213.77.1", "10.213.77.2"
RELEASES: Final = {"bookworm": "3.11", "trixie": "3.13"}  # of Debian, and their Python
BROKEN: Final = "raise RuntimeError('this version is broken')\n"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("CHECK_DEPLOY" not in os.environ, reason="takes minutes: make check-deploy"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.timeout(900),
]


def call(*command: object, timeout: float = 300) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, (command, done.stdout[-4000:], done.stderr[-4000:])
    return done.stdout


class Box:
    """One device: a root file system that boots, in a network namespace."""

    def __init__(self, root: Path, network: str) -> None:
        self.root = root
        self._network = network
        self._process: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        options = ["--register=no", "--keep-unit", f"--network-namespace-path=/run/netns/{self._network}"]
        self._process = subprocess.Popen(
            ["systemd-nspawn", "--quiet", "-b", "-D", self.root, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for state in self._tries(60):
            if state in ("running", "degraded"):
                return
        raise AssertionError("it does not boot")

    def _tries(self, seconds: float) -> Iterator[str]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(AssertionError):
                if self._leader:
                    done = self.run("systemctl is-system-running --wait", check=False)
                    yield done.stdout.strip()

    @property
    def _leader(self) -> str:
        assert self._process is not None
        pid = self._process.pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()

    def run(self, line: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A line of shell on the device, as root in the checkout."""
        inside = ["nsenter", "-t", self._leader, "-m", "-u", "-i", "-n", "-p"]
        environment = ["env", "-i", f"PATH={PATH}", "HOME=/root", "TERM=dumb"]
        done = subprocess.run(
            [*inside, "--", *environment, "sh", "-c", f"cd /root/edgepeer && {line}"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if check:
            assert done.returncode == 0, (line, done.stdout[-3000:], done.stderr[-3000:], self.journal())
        return done

    def journal(self) -> str:
        return self.run("journalctl -n 60 --no-pager -u 'edgepeer*'", check=False).stdout

    def shows(self, unit: str, name: str) -> str:
        return self.run(f"systemctl show {unit} -p {name} --value").stdout.strip()

    def until(self, unit: str, name: str, pattern: str, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        while not re.search(pattern, found := self.shows(unit, name)):
            assert time.monotonic() < deadline, (unit, name, pattern, found, self.journal())
        return found

    def lose_power(self) -> None:
        """All that runs in it is gone."""
        if self._process is not None:
            if leader := self._leader:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(leader), 9)
            self._process.wait(60)
            self._process = None


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory, wheel: Path, release: str) -> Path:
    """All that devices get, since they have no network here."""
    into = tmp_path_factory.mktemp("wheels")
    began = time.monotonic()
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", into, "--only-binary=:all:"]
    call(*pip, "--python-version", RELEASES[release], f"{wheel}[secure,broker]", "setuptools>=77")
    print(f"packages were downloaded in {time.monotonic() - began:.1f} s")
    return into


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory, release: str) -> Path:
    root = tmp_path_factory.mktemp("empty") / "root"
    packages = "systemd,systemd-sysv,dbus,python3,python3-venv,ca-certificates"
    call("mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", release, root, timeout=600)
    return root


@pytest.fixture
def boxes(empty: Path, wheels: Path, tmp_path: Path) -> Iterator[tuple[Box, Box]]:
    """Two empty devices, with a checkout, side by side on a network of their own."""
    names = [f"edgepeer-{name}-{os.getpid()}" for name in ("hub", "pi")]
    found = []
    try:
        for name in names:
            call("ip", "netns", "add", name)
            call("ip", "-n", name, "link", "set", "lo", "up")
        call("ip", "-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, address in zip(names, (HUB, PI), strict=True):
            call("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            call("ip", "-n", name, "link", "set", "eth0", "up")
            root = tmp_path / name
            call("cp", "-a", empty, root)
            checkout = root / "root/edgepeer"
            checkout.mkdir()
            for each in ("edgepeer", "deploy"):
                shutil.copytree(REPOSITORY / each, checkout / each, ignore=shutil.ignore_patterns("__pycache__"))
            for each in ("pyproject.toml", "README.md", "LICENSE"):
                shutil.copy(REPOSITORY / each, checkout)
            shutil.copytree(wheels, root / "root/wheels")
            (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{HUB} raspberrypi.local\n")
            (root / "etc/hostname").write_text(f"{name.split('-')[1]}\n")
            found.append(Box(root, name))
            found[-1].boot()
        yield found[0], found[1]
    finally:
        for box in found:
            box.lose_power()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def commands() -> list[tuple[str, str]]:
    """The README's first section: on which device, and what."""
    text = (DEPLOY / "README.md").read_text()
    section = text[text.index("## From an empty device") : text.index("## Services")]
    return re.findall(r"(?m)^(hub|pi)# (.+)$", section)


MAKE_DATA: Final = """
import numpy
draw = numpy.random.default_rng(1)
x = draw.normal(size=(600, 8)).astype("float32")
numpy.savez("/srv/readings.npz", x=x, y=(x[:, 0] > 0).astype("int64") + 2 * (x[:, 1] > 0), classes=4)
"""


def test_the_readme_upgrades_and_faults(boxes: tuple[Box, Box], wheel: Path, tmp_path: Path) -> None:
    hub, pi = boxes
    by_name = {"hub": hub, "pi": pi}
    steps = commands()
    assert len(steps) == 9
    began, said, pasted, spent = time.monotonic(), "", "", []
    for name, line in steps:
        at = time.monotonic()
        if "epj1-..." in line:
            line = pasted
            assert line.startswith("edgepeer join raspberrypi.local epj1-")
        if line.startswith("edgepeer train"):
            for box in boxes:
                box.run(f"/opt/edgepeer/current/bin/python -c {shlex.quote(MAKE_DATA)}")
            hub.run("$(edgepeer fleet token) && systemctl enable --now edgepeer-peer")  # the hub is a peer, too
        line = line.replace("deploy/install.sh", "deploy/install.sh --wheels /root/wheels")
        said = by_name[name].run(line).stdout
        if line.endswith("fleet token"):
            pasted = said.strip()
        spent.append(f"{time.monotonic() - at:6.1f} s  {name}# {line[:70]}")
    seconds = time.monotonic() - began
    print("\n".join([*spent, f"{seconds:.1f} s from empty devices to the end of 20 rounds"]))
    assert re.search(r"bit-identical on all 2 peers +yes", said)
    assert seconds <= 180
    for box in boxes:
        box.until("edgepeer-peer", "StatusText", r"view \d+, 2 peers", 30)
    for unit in ("edgepeer-broker", "edgepeer-fleet"):
        assert hub.shows(unit, "ActiveState") == "active"

    # An upgrade that is never ready is taken back; nothing of the fleet is lost.
    bad = changed_wheel(wheel, tmp_path / "bad", {"peer/agent.py": BROKEN})
    shutil.copy(bad, pi.root / "root" / bad.name)
    failed = pi.run(f"deploy/install.sh --wheels /root/wheels --from /root/{bad.name}", check=False)
    assert failed.returncode == 1
    assert "version 2 was not ready in time, 1 runs again" in failed.stderr, (failed.stdout, failed.stderr)
    pi.until("edgepeer-peer", "StatusText", r"view \d+, 2 peers", 60)

    # What is frozen is started again, within a minute and a bit.
    process = pi.shows("edgepeer-peer", "MainPID")
    began = time.monotonic()
    pi.run("systemctl kill --kill-who=main -s STOP edgepeer-peer")
    pi.until("edgepeer-peer", "MainPID", rf"^(?!{process}$)[1-9]\d*$", 90)
    pi.until("edgepeer-peer", "ActiveState", "^active$", 30)
    frozen = time.monotonic() - began
    print(f"{frozen:.1f} s until a frozen peer was back")
    assert frozen <= 70

    # The power goes while a version is on trial that never gets ready.
    (pi.root / "opt/edgepeer/trial").write_text("1\n")
    shutil.copytree(pi.root / "opt/edgepeer/versions/1", pi.root / "opt/edgepeer/versions/5", symlinks=True)
    (pi.root / "opt/edgepeer/versions/5/bin/edgepeer").write_text("#!/bin/sh\nexit 1\n")
    pi.run("ln -sfn versions/5 /opt/edgepeer/current && sync")
    pi.lose_power()
    pi.boot()
    pi.until("edgepeer-peer", "StatusText", r"view \d+, 2 peers", 60)
    assert os.readlink(pi.root / "opt/edgepeer/current") == "versions/1"
    assert not (pi.root / "opt/edgepeer/trial").exists()

    # And a device that is lost is out, whatever it does.
    hub.run("edgepeer fleet evict pi")
    hub.until("edgepeer-peer", "StatusText", r"view \d+, 1 peers", 30)
