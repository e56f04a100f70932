"""Log lines: short for people, JSON for machines."""

from __future__ import annotations

import json
import logging
import re

import pytest

from edgepeer.cli.logs import setup_logging


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", as_json=False)
    logging.getLogger("edgepeer.fabric").info("joined %s", "greenhouse")
    logging.getLogger("edgepeer.fabric").debug("not shown")
    logging.getLogger("somebody").info("not shown")
    logging.getLogger("somebody").warning("shown")
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d info    edgepeer\.fabric: joined greenhouse", lines[0])
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning somebody: shown", lines[1])
    assert len(lines) == 2


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("debug", as_json=True)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("edgepeer").exception("it\nfailed")
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "edgepeer", "it\nfailed")
    assert entry["exception"].endswith("ValueError: two\nlines")
    assert entry["time"] > 1.7e9
