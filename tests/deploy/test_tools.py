"""`uv tool install` and `pipx install` of the wheel: what they make runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgepeer.version import VERSION

SEARCHED = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EDGEPEER_", "PYTHONPATH"))}
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=280, check=False, env={**kept, **environment}
    )


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["uv", "pipx"])
def test_what_it_installs_runs(tool: str, wheel: Path, tmp_path: Path) -> None:
    program = shutil.which(tool, path=SEARCHED)
    if program is None:
        pytest.skip(f"{tool} is not installed")
    places = {
        "HOME": str(tmp_path),
        "UV_TOOL_DIR": str(tmp_path / "tools"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "bin"),
        "UV_PYTHON": sys.executable,
        "UV_PYTHON_DOWNLOADS": "never",
        "PIPX_HOME": str(tmp_path / "tools"),
        "PIPX_BIN_DIR": str(tmp_path / "bin"),
        "PIPX_DEFAULT_PYTHON": sys.executable,
    }
    arguments = ("tool", "install") if tool == "uv" else ("install",)
    made = run(program, *arguments, f"{wheel}[secure]", **places)
    if made.returncode and any(word in made.stderr.lower() for word in ("connect", "dns", "network", "retries")):
        pytest.skip(f"no package index can be reached: {made.stderr.strip().splitlines()[-1]}")
    assert made.returncode == 0, made.stderr
    shown = run(tmp_path / "bin/edgepeer", "version", **places)
    assert shown.stdout.startswith(f"edgepeer {VERSION} "), shown.stderr
    founded = run(
        tmp_path / "bin/edgepeer", "fleet", "init", "lab", "--broker", "localhost", "--home", tmp_path / "fleet"
    )
    assert founded.returncode == 0, founded.stderr
