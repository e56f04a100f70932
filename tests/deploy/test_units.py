"""The units: accepted by systemd, and exposed to little."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
UNITS: Final = sorted(path.name for path in DEPLOY.glob("*.service"))
SERVICES: Final = [unit for unit in UNITS if unit != "edgepeer-rollback.service"]
MOST: Final = 1.2
"""Of 10, as `systemd-analyze security` counts."""

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_unit(unit: str, tmp_path: Path) -> None:
    # Only the program's path is changed, to one that is there.
    text, count = re.subn(
        r"(?m)^ExecStart=/opt/edgepeer/\S+", f"ExecStart={sys.executable}", (DEPLOY / unit).read_text()
    )
    assert count == 1
    (tmp_path / unit).write_text(text)
    checked = analyze("verify", tmp_path / unit)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("unit", SERVICES)
def test_the_service_can_do_little_that_it_need_not(unit: str) -> None:
    done = analyze("security", "--offline=true", "--no-pager", f"--threshold={MOST * 10:.0f}", DEPLOY / unit)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) <= MOST, done.stdout
    assert done.returncode == 0


def test_a_brokers_certificate_can_be_renewed_before_it_starts() -> None:
    """Where the hub was off until it had expired, `edgepeer fleet serve` gives it another."""
    (after,) = re.findall(r"(?m)^After=(.*)$", (DEPLOY / "edgepeer-broker.service").read_text())
    assert "edgepeer-fleet.service" in after.split()


@pytest.mark.parametrize("unit", SERVICES)
def test_the_service_is_watched(unit: str) -> None:
    lines = (DEPLOY / unit).read_text().splitlines()
    assert {"Type=notify", "WatchdogSec=60", "TimeoutStartSec=60", "Restart=on-failure"} <= {*lines}
