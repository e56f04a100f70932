"""What tests of the deployment share: where it is, and the programs of the command line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "e2e"))  # for the command line in processes of its own


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """edgepeer as a wheel, built from a copy of this checkout."""
    copy, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    shutil.copytree(REPOSITORY / "edgepeer", copy / "edgepeer", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    made = subprocess.run(
        [*command, "--wheel-dir", built, copy], capture_output=True, text=True, timeout=200, check=False
    )
    if made.returncode:
        pytest.skip(f"no wheel can be built here: {made.stderr.strip().splitlines()[-1]}")
    (found,) = built.glob("edgepeer-*.whl")
    return found
