"""The examples do what their text says, as processes of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def running(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """An example, with warnings as errors."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def outcome_of(process: subprocess.Popen[str], timeout: float) -> str:
    """What it printed, after it has ended well."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return out


def test_two_terminals_print_the_same_mean() -> None:
    pytest.importorskip("amqtt", reason="the embedded broker needs amqtt")
    broker = ("--broker", f"mqtt://127.0.0.1:{free_port()}")
    script = "allreduce_two_terminals.py"
    with ExitStack() as stack:
        first = stack.enter_context(running(script, *broker, "--embedded-broker", "--value", "1"))
        assert first.stdout is not None
        assert first.stdout.readline().startswith("broker ready at mqtt://127.0.0.1:")
        second = stack.enter_context(running(script, *broker, "--value", "3"))
        outputs = [outcome_of(process, timeout=200) for process in (second, first)]
    for output in outputs:
        assert "mean [2. 2. 2. 2.] over 2 peers, exact: True" in output
    digests = [re.findall(r"digest ([0-9a-f]{32})", output) for output in outputs]
    assert digests[0] == digests[1] != []


@pytest.mark.slow
def test_three_peers_train_a_keras_model_to_the_same_bits() -> None:
    for needed in ("amqtt", "keras", "tensorflow", "sklearn"):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    with running("train_keras.py") as process:
        output = outcome_of(process, timeout=220)
    lines = re.findall(r"peer (\d): accuracy ([0-9.]+) after 100 steps, last sum ([0-9a-f]{32})", output)
    assert sorted(peer for peer, _, _ in lines) == ["0", "1", "2"]
    assert len({digest for _, _, digest in lines}) == 1
    assert len({accuracy for _, accuracy, _ in lines}) == 1
    assert float(lines[0][1]) > 0.9


def test_a_coded_tree_does_not_wait_for_the_slow_peer() -> None:
    pytest.importorskip("amqtt", reason="the embedded broker needs amqtt")
    with running("coded_tree.py", "--rounds", "10") as process:
        output = outcome_of(process, timeout=200)
    assert "last sum: exact True, over 700 samples" in output
    assert "p6" not in output.splitlines()[0]  # the slow one


@pytest.mark.parametrize("wait", ["exact", "error<3.5"])
def test_a_coded_star_is_exact_or_says_that_it_is_not(wait: str) -> None:
    pytest.importorskip("amqtt", reason="the embedded broker needs amqtt")
    with running("coded_star.py", "--rounds", "5", "--wait", wait) as process:
        output = outcome_of(process, timeout=200)
    assert ("5 of 5 rounds exact" in output) == (wait == "exact")
    assert ("approximate: " in output) == (wait != "exact")


@pytest.mark.slow
@pytest.mark.parametrize(("split", "peers", "right"), [("codenet:m=2,n=2,t=1", 12, True), ("none:m=2,n=2", 4, False)])
def test_a_divided_network_is_right_although_peers_err_if_it_is_coded(split: str, peers: int, right: bool) -> None:
    pytest.importorskip("amqtt", reason="the embedded broker needs amqtt")
    with running("split_training.py", "--split", split) as process:
        output = outcome_of(process, timeout=220)
    assert f"{peers} peers, 60 iterations, each holds at most 908 bytes of the model" in output
    assert output.count(": found\n" if right else ": unseen\n") == 3
    accuracy = re.search(r"accuracy ([0-9.]+)", output)
    assert accuracy is not None
    assert (float(accuracy[1]) > 0.95) == right
