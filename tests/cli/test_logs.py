"""Log lines: short for people, JSON for machines."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edgepeer.cli.logs import setup_logging


@pytest.fixture(autouse=True)
def _hooks_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sys, threading):
        monkeypatch.setattr(module, "excepthook", module.excepthook)


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


def test_what_a_line_quotes_does_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does it look like another line of ours."""
    setup_logging("info", as_json=False)
    forged = "x\n09:00:00 error   edgepeer: all is lost\r\x1b[2J\x9b31m"
    logging.getLogger("edgepeer").info("refused: %s", forged)
    try:
        raise ValueError(forged)
    except ValueError:
        logging.getLogger("somebody").exception("failed")
    lines = capsys.readouterr().err.splitlines()
    assert all(line.isprintable() for line in lines)
    assert [line[9:] for line in lines if not line.startswith("    ")] == [
        "info    edgepeer: refused: x",
        "error   somebody: failed",
    ]
    assert lines[1] == r"    09:00:00 error   edgepeer: all is lost\r\x1b[2J\x9b31m"


def test_what_can_be_printed_stays_as_it_is_beside_what_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    """The path of a greenhouse, say, in a line that has a tab as well, or in a traceback."""
    setup_logging("info", as_json=False)
    logging.getLogger("edgepeer").info("/srv/Gewächshaus 🌱\t日本\x1b[2J")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(r": /srv/Gewächshaus 🌱\t日本\x1b[2J")


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


def test_nor_does_a_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", as_json=True)
    forged = "x\n\x1b[2J\x9b31m\x7f"
    logging.getLogger("edgepeer").info("refused: %s", forged)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert json.loads(line)["message"] == f"refused: {forged}"


def test_what_is_no_text_is_escaped_in_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", as_json=True)
    try:
        raise ValueError("/tmp/\udcff")
    except ValueError:
        logging.getLogger("edgepeer").exception("no /tmp/%s", "\udcff")
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert entry["message"] == "no /tmp/\\udcff"
    assert entry["exception"].endswith("ValueError: /tmp/\\udcff")


BROKEN = """
import threading
from edgepeer.cli.logs import setup_logging
setup_logging("info", as_json=True)
def end():
    raise ValueError("of a thread")
thread = threading.Thread(target=end, name="worker")
thread.start()
thread.join()
raise RuntimeError("two\\nlines")
"""


def test_what_nobody_expected_is_a_json_line_too() -> None:
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    thread, whole = map(json.loads, done.stderr.splitlines())
    assert (thread["level"], thread["message"]) == ("critical", "worker ended by what it did not expect")
    assert thread["exception"].endswith("ValueError: of a thread")
    assert (whole["level"], whole["message"]) == ("critical", "ended by what it did not expect: RuntimeError")
    assert whole["exception"].endswith("RuntimeError: two\nlines")


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        (["status", "--broker", "mqtt://127.0.0.1:1"], 1, "broker mqtt://127.0.0.1:1: connection refused"),
        (["peer", "--round-log", "nowhere/rounds"], 2, "round_log = nowhere/rounds: can't write there"),
    ],
)
def test_the_last_word_of_a_process_that_logs_in_json_is_a_line_of_it(
    given: list[str], status: int, said: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "edgepeer", *given, "--log-json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == status
    (line,) = done.stderr.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["exit_code"]) == ("error", status)
    assert entry["message"].startswith(said)
