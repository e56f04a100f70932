"""What signals do to a verb, whenever they come."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console

import edgepeer.cli
import edgepeer.cli.group
from edgepeer.cli.signals import run
from edgepeer.following.display import LiveDisplay

DEADLINE_S = 60
SHOW_CURSOR = "\x1b[?25h"


async def stopped_twice(first: signal.Signals, second: signal.Signals, done: list[str]) -> None:
    """A verb that is cleaning up when it is told to stop once more, and has finished when that was handled."""
    handled = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, handled.set)
    try:
        os.kill(os.getpid(), first)
        await asyncio.Event().wait()
    finally:
        os.kill(os.getpid(), second)
        os.kill(os.getpid(), signal.SIGUSR1)  # handled after that
        await handled.wait()
        done.append("cleaned up")


@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_cleaning_up_is_not_cut_short(second: signal.Signals, code: int) -> None:
    done: list[str] = []

    with pytest.raises(BaseException) as ended:  # noqa: PT011
        run(stopped_twice(signal.SIGTERM, second, done))
    assert done == ["cleaned up"]
    assert ended.type is (KeyboardInterrupt if second == signal.SIGINT else SystemExit)
    assert getattr(ended.value, "code", 130) == code


def test_a_second_ctrl_c_gives_back_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(os, "_exit", lambda code: told.append(f"ended with {code}"))

    terminal = io.StringIO()
    display = LiveDisplay(Console(file=terminal, force_terminal=True))

    def leave() -> None:
        display.leave()
        told.append("cursor" if terminal.getvalue().endswith(SHOW_CURSOR) else "no cursor")

    with display, pytest.raises(KeyboardInterrupt):
        run(stopped_twice(signal.SIGINT, signal.SIGINT, []), leave=leave)
    assert told == ["cursor", "ended with 130"]


def test_ctrl_c_while_a_verb_is_imported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(edgepeer.cli.group, "import_module", interrupted)
    monkeypatch.setattr("sys.argv", ["edgepeer", "status"])
    with pytest.raises(SystemExit) as ended:
        edgepeer.cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("verb", "number"), [("peer", signal.SIGUSR1), ("status", signal.SIGINT)])
def test_what_is_signalled_while_the_command_line_is_imported(verb: str, number: signal.Signals) -> None:
    """Whoever asks a peer how it stands does not end it; Ctrl-C ends what has not begun, without a word."""
    code = (
        "import os, sys, signal; import edgepeer.cli; real = __import__\n"
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'edgepeer.cli.group': os.kill(os.getpid(), signal.Signals(int(sys.argv.pop())))\n"
        "sys.meta_path.insert(0, Finder()); edgepeer.cli.main()"
    )
    arguments = [sys.executable, "-c", code, verb, "--broker", "mqtt://127.0.0.1:1", str(int(number))]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if number == signal.SIGINT:
        assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    else:
        assert done.returncode == 1
        assert "connection refused" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_containers_first_process_ends_when_it_is_told_to_while_it_starts(number: signal.Signals) -> None:
    """The kernel spares it what ends any other: it would have to be told again, or be killed."""
    code = (
        "import os, sys, signal; import edgepeer.cli; me, number = os.getpid(), int(sys.argv.pop())\n"
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'edgepeer.cli.group': os.kill(me, number)\n"
        "os.getpid = lambda: 1; sys.meta_path.insert(0, Finder()); edgepeer.cli.main()"
    )
    arguments = [sys.executable, "-c", code, "status", "--broker", "mqtt://127.0.0.1:1", str(int(number))]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (128 + number, "")
