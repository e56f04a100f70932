"""The command line as a user meets it: help, exit codes, one-line errors, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgepeer.cli
from edgepeer.cli import broker, emulate, peer, status, train
from edgepeer.cli.verb import Verb
from edgepeer.errors import ConfigError, FabricError, JobError, ProtocolBug
from edgepeer.settings import PeerSettings, StatusSettings, settings_of
from edgepeer.training.saved import load_npz

VERBS = (broker.VERB, peer.VERB, train.VERB, emulate.VERB, status.VERB)
DEADLINE_S = 200
"""To start a Python and import what it needs takes a second; on a busy machine it may take many."""


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but a test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("EDGEPEER_")]:
        monkeypatch.delenv(name)


def edgepeer_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["edgepeer", *arguments])
    with pytest.raises(SystemExit) as caught:
        edgepeer.cli.main()
    return int(caught.value.code or 0)


_started: list[subprocess.Popen[str]] = []


def start(*arguments: str) -> subprocess.Popen[str]:
    """Ends with the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "edgepeer", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _started.append(process)
    return process


@pytest.fixture(autouse=True)
def _nobody_stays() -> Iterator[None]:
    yield
    while _started:
        with _started.pop() as process:
            process.kill()


@pytest.fixture
def running_broker() -> tuple[subprocess.Popen[str], str]:
    process = start("broker", "--listen", "127.0.0.1:0")
    assert process.stdout is not None
    found = re.fullmatch(r"broker ready at (mqtt://127\.0\.0\.1:\d+)\n", process.stdout.readline())
    assert found is not None, process.communicate()
    return process, found[1]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.kind.verb)
def test_help_names_every_setting_and_teaches_by_example(
    verb: Verb[StatusSettings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert edgepeer_main(monkeypatch, verb.kind.verb, "--help") == 0
    text = capsys.readouterr().out
    for setting in settings_of(verb.kind).values():
        assert setting.flag in text
    assert f"$ edgepeer {verb.kind.verb}" in text or f" edgepeer {verb.kind.verb}" in text
    assert f"EDGEPEER_{verb.kind.verb.upper()}_" in text


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.kind.verb)
def test_examples_use_flags_that_exist(verb: Verb[StatusSettings]) -> None:
    flags = {setting.flag for setting in settings_of(verb.kind).values()}
    for _, line in verb.examples:
        assert set(re.findall(r"--[a-z-]+", line)) <= flags


def test_the_list_of_verbs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert edgepeer_main(monkeypatch, "--help") == 0
    text = capsys.readouterr().out
    for name in ("broker", "peer", "train", "emulate", "status", "simulate", "version"):
        assert re.search(rf"^  {name} +\w.*\.$", text, re.MULTILINE)
    assert not re.search(r"^  \w+ .*\.\.\.$", text, re.MULTILINE)


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert edgepeer_main(monkeypatch, "version") == 0
    assert re.match(r"edgepeer \d+\.\d+\.\d+ \(Python 3\.", capsys.readouterr().out)


@pytest.mark.parametrize("arguments", [["fly"], ["peer", "--wings", "2"], ["peer", "--fanout"]])
def test_misuse(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert edgepeer_main(monkeypatch, *arguments) == 2
    assert "Error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["peer", "--fanout", "0"], "fanout = 0 (from --fanout): must be auto, or an integer from 1 to 64"),
        (["status", "--config", "no.toml"], "config = no.toml: can't read it: No such file or directory"),
        (["train", "--report", "/dev/null/x"], "report = /dev/null/x: can't write there: Not a directory"),
        (["train", "--model-config", "no.json"], "model_config = no.json: can't read it: No such file or dir"),
        (["status", "--config", "/dev/zero"], "config = /dev/zero: can't read it: has more than 16 MiB"),
        (["train", "--model-config", "/dev/null"], "model_config = /dev/null: is empty; is a model described in it?"),
        (["train", "--model-config", __file__], f"model_config = {__file__}: is not JSON: "),
        (["train", "--model-config", "/dev/zero"], "model_config = /dev/zero: can't read it: has more than 16 MiB"),
        (["emulate", "--scenario", "/dev/zero"], "scenario = /dev/zero: can't read it: has more than 16 MiB"),
        (["train", "--model", "rm -rf"], "model = rm -rf (from --model): must be mlp, "),
    ],
)
def test_bad_settings(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert edgepeer_main(monkeypatch, *arguments) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith(f"edgepeer: {said}")
    assert written.err.count("\n") == 1


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("arguments", [["version"], ["--help"]])
def test_a_full_disk(arguments: list[str], buffered: bool) -> None:
    env = os.environ | {"PYTHONUNBUFFERED": "" if buffered else "1"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "edgepeer", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            timeout=DEADLINE_S,
        )
    assert done.stderr == "edgepeer: standard output: no space left on device: what was to be printed is lost\n"
    assert done.returncode == 1


@pytest.mark.parametrize(("verb", "closed"), [("status", "<&-"), ("status", "2>&- >&-"), ("train", ">&-")])
def test_streams_that_are_closed(verb: str, closed: str) -> None:
    program = [sys.executable, "-m", "edgepeer", verb, "--broker", "mqtt://127.0.0.1:1", "--timeout", "1"]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *program]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch("" if "2>&-" in closed else r"edgepeer: broker .*: connection refused.*\n", done.stderr)


def test_a_reader_that_is_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "edgepeer", "version"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
        )
    finally:
        os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 1


def test_a_reader_of_both_streams_that_is_gone(tmp_path: Path) -> None:
    """As in `edgepeer train --save model.npz 2>&1 | head`: what is said in the end must not end it before."""
    code = (
        "import sys; from pathlib import Path; from edgepeer.cli.written import all_written, go_on_unread\n"
        "with all_written():\n"
        "    go_on_unread(save=Path('model'), report=None)\n"
        "    for _ in range(3): print('round', flush=True); print('error', file=sys.stderr)\n"
        "    Path('model').touch()"
    )
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=writing, stderr=writing, cwd=tmp_path, timeout=DEADLINE_S, check=False
        )
    finally:
        os.close(writing)
    assert done.returncode == 0
    assert (tmp_path / "model").exists()


@pytest.mark.parametrize("saves", [False, True])
def test_a_reader_that_goes_in_the_middle_of_a_job(
    saves: bool, running_broker: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    """Who only follows ends, and says that the job goes on; who is to save the model does so."""
    _, address = running_broker
    model = tmp_path / "model.npz"
    options = ["--broker", address, "--trainer", "numpy", "--rounds", "40", *(["--save", str(model)] if saves else [])]
    following = start("train", *options)
    assert following.stdout is not None
    assert following.stderr is not None
    assert following.stdout.readline().startswith("job ")
    assert following.stdout.readline() == "waiting for peers: 0 of 1 in\n"  # the job is in the fabric
    following.stdout.close()
    device = start("peer", "--broker", address, "--trainer", "numpy")
    try:
        assert following.wait(DEADLINE_S) == (0 if saves else 1)
        said = following.stderr.read()
        if saves:
            assert said == "edgepeer: nobody reads standard output any more: goes on, to save the model\n"
            assert load_npz(model).loss == "crossentropy"
        else:
            assert re.fullmatch(r"edgepeer: job \w+ goes on without this terminal; .*\n", said)
    finally:
        device.terminate()
        device.communicate(timeout=DEADLINE_S)


@pytest.mark.parametrize("verb", ["status", "train"])
def test_no_broker(verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EDGEPEER_STATUS_TIMEOUT", "1")
    assert edgepeer_main(monkeypatch, verb, "--broker", "mqtt://127.0.0.1:1") == 1
    written = capsys.readouterr()
    assert written.err.startswith("edgepeer: broker mqtt://127.0.0.1:1: ")
    assert written.err.count("\n") == 1


def failing(error: BaseException) -> Verb[PeerSettings]:
    def run(settings: PeerSettings) -> int:
        raise error

    return Verb(kind=PeerSettings, about="", examples=[], run=run)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FabricError("broker x:\n gone"), 1, "edgepeer: broker x: gone\n"),
        (ConfigError("port = 0"), 2, "edgepeer: port = 0\n"),
        (ExceptionGroup("two", [ExceptionGroup("one", [JobError("no data")])]), 1, "edgepeer: no data\n"),
        (KeyboardInterrupt(), 130, ""),
        (MemoryError("Unable to allocate 3 GiB"), 1, "edgepeer: out of memory: Unable to allocate 3 GiB\n"),
        (ExceptionGroup("one", [MemoryError()]), 1, "edgepeer: out of memory\n"),
    ],
)
def test_exit_codes(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(error).execute({}) == code
    assert capsys.readouterr().err == said


def test_bugs_are_not_hidden() -> None:
    with pytest.raises(ProtocolBug):
        failing(ProtocolBug("impossible")).execute({})
    with pytest.raises(ExceptionGroup):
        failing(ExceptionGroup("mixed", [JobError("no data"), ValueError("bug")])).execute({})


def test_status_of_an_empty_fabric(running_broker: tuple[subprocess.Popen[str], str]) -> None:
    _, address = running_broker
    plain = start("status", "--broker", address)
    machine = start("status", "--broker", address, "--fabric", "greenhouse", "--json")
    out, err = plain.communicate(timeout=DEADLINE_S)
    assert (plain.returncode, err) == (0, "")
    assert out == f"fabric default at {address}\njob: none\npeers: 0\nview: none\n"
    out, err = machine.communicate(timeout=DEADLINE_S)
    assert (machine.returncode, err) == (0, "")
    assert json.loads(out) == {
        "fabric": "greenhouse",
        "broker": address,
        "peers": [],
        "refused": {},
        "silent": {},
        "view": None,
        "job": None,
        "unreadable_job": "",
        "untold_job": "",
    }


def test_withdrawing_where_there_is_nothing(running_broker: tuple[subprocess.Popen[str], str]) -> None:
    process = start("train", "--withdraw", "--broker", running_broker[1])
    assert process.communicate(timeout=DEADLINE_S) == ("fabric 'default' has no job\n", "")
    assert process.returncode == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_broker_ends_when_told(
    running_broker: tuple[subprocess.Popen[str], str], number: signal.Signals, code: int
) -> None:
    process, _ = running_broker
    process.send_signal(number)
    assert process.communicate(timeout=DEADLINE_S) == ("", "")
    assert process.returncode == code


def test_a_port_in_use(running_broker: tuple[subprocess.Popen[str], str]) -> None:
    port = running_broker[1].rpartition(":")[2]
    process = start("broker", "--listen", f"127.0.0.1:{port}")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(f"edgepeer: broker on 127.0.0.1:{port}: port is already in use")
    assert err.count("\n") == 1


def test_ctrl_c_leaves_the_job_to_the_fabric(running_broker: tuple[subprocess.Popen[str], str]) -> None:
    _, address = running_broker
    process = start("train", "--broker", address, "--trainer", "numpy")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("job ")
    assert process.stdout.readline() == "waiting for peers: 0 of 1 in\n"
    second = start("train", "--broker", address)
    out, err = second.communicate(timeout=DEADLINE_S)
    assert (second.returncode, out) == (1, "")
    assert re.fullmatch(r"edgepeer: fabric 'default': job \w+ is not done yet \(it waits for 1 peers\); .*\n", err)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (130, "")
    assert re.fullmatch(r"edgepeer: job \w+ goes on without this terminal; .*\n", err)
    shown = start("status", "--broker", address, "--json")
    job = json.loads(shown.communicate(timeout=DEADLINE_S)[0])["job"]
    assert job["trainer"] == "numpy"
    withdrawn = start("train", "--withdraw", "--broker", address)
    assert withdrawn.communicate(timeout=DEADLINE_S)[0] == f"job {job['id']} is withdrawn\n"


def test_nobody_comes(running_broker: tuple[subprocess.Popen[str], str]) -> None:
    process = start("train", "--broker", running_broker[1], "--timeout", "1", "--peers", "3")
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert err == "edgepeer: nothing has moved for 1 s: no peer is in the fabric\n"
    shown = start("status", "--broker", running_broker[1], "--json")
    assert json.loads(shown.communicate(timeout=DEADLINE_S)[0])["job"] is None


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, click; from edgepeer.cli import application; made = application(); context = click.Context(made);"
        "assert all(made.get_command(context, verb) for verb in made.list_commands(context));"
        "heavy = {'tensorflow', 'keras', 'sklearn', 'matplotlib', 'amqtt', 'rich', 'numpy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.stdout, done.stderr) == ("[]\n", "")
