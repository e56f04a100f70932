"""What the command line refuses before it has started anything, in the tests' own process: dozens of Pythons that would
only say no take longer than everything else here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import edgepeer.cli


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line that `edgepeer ARGUMENTS` says, with status 2 and nobody's settings but a test's own."""
    for name in [name for name in os.environ if name.startswith("EDGEPEER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def refuse(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["edgepeer", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            edgepeer.cli.main()
        out, err = capfd.readouterr()
        lines = err.splitlines()
        assert (ended.value.code, out, len(lines)) == (2, "", 1), (arguments, out, err)
        assert lines[0].startswith("edgepeer: ")
        return lines[0].removeprefix("edgepeer: ")

    return refuse
