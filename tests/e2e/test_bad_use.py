"""Whatever a user gets wrong: one clear line on standard error, a status that is not 0. Nobody hangs."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from real_programs import Field, edgepeer, without

from edgepeer.fabric.broker import EmbeddedBroker

FAILS = -1
"""Either status: 2 where it is seen before anything was started, 1 where only the devices can know."""


@pytest.fixture
async def broker() -> AsyncIterator[str]:
    async with EmbeddedBroker() as running:
        yield running.address.url()


@pytest.fixture
async def locked() -> AsyncIterator[str]:
    async with EmbeddedBroker(username="fleet", password="right") as running:
        yield f"127.0.0.1:{running.address.port}"


@pytest.fixture
def taken() -> Iterator[str]:
    """An address where somebody listens and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"127.0.0.1:{sock.getsockname()[1]}"


async def refusal(*arguments: object, home: Path, **environment: str) -> tuple[int, str]:
    """How the program ends, and the one line that it says."""
    async with edgepeer(*arguments, home=home, **environment) as program:
        status = await program.end()
    errors = [line for line in program.err if " info " not in line]
    assert len(errors) == 1, program.everything()
    assert errors[0].startswith("edgepeer: ")
    return status, errors[0].removeprefix("edgepeer: ")


async def all_refused(cases: dict[tuple[object, ...], tuple[int, str]], home: Path, *, at_once: int = 2) -> None:
    """Each command line ends with that status and says that; so many are run at a time."""
    gate = asyncio.Semaphore(at_once)

    async def check(arguments: tuple[object, ...], status: int, said: str) -> None:
        async with gate:
            found, line = await refusal(*arguments, home=home)
        assert found in ((1, 2) if status == FAILS else (status,)), (arguments, found, line)
        assert said in line, (arguments, line)

    async with asyncio.TaskGroup() as tasks:
        for arguments, (status, said) in cases.items():
            tasks.create_task(check(arguments, status, said))


def test_a_setting_that_can_not_be(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[peer\nfanout = 2\n")
    (tmp_path / "unknown.toml").write_text("[peer]\nspeed = 9\n")
    (tmp_path / "file").touch()
    cases: dict[tuple[object, ...], str] = {
        ("emulate", "--peers", 0): "peers = 0 (from --peers): must be an integer from 1 to 64",
        ("emulate", "--peers", "many"): "peers = many (from --peers): must be an integer",
        ("emulate", "--fanout", 0): "fanout = 0",
        ("emulate", "--rounds", 0): "rounds = 0",
        ("emulate", "--broker", "redis://x"): "broker = ",
        ("emulate", "--report", "file/x"): "report = file/x: can't write there",
        ("peer", "--config", "bad.toml"): "bad.toml: is not TOML",
        ("peer", "--config", "unknown.toml"): "[peer] speed is unknown; allowed are ",
        ("peer", "--fabric", "a/b"): "fabric = a/b",
        ("peer", "--listen", "nowhere"): "listen = nowhere",
        ("peer", "--listen", "0.0.0.0:0"): "listen = 0.0.0.0:0: whoever reaches that port could read and change",
        ("broker", "--listen", "[::]:0"): "or give --insecure where you trust the whole network",
        ("train", "--learning-rate", -1): "learning_rate = -1",
        ("train", "--model", "a b"): "model = a b (from --model): must be mlp, ",
        ("status", "--timeout", 0): "timeout = 0",
    }
    for arguments, said in cases.items():
        assert said in refused(*arguments), arguments


async def test_a_broker_that_is_not_there(taken: str, tmp_path: Path) -> None:
    nobody = "mqtt://127.0.0.1:1"
    cases: dict[tuple[object, ...], tuple[int, str]] = {}
    for verb in ("peer", "train", "status"):
        cases[verb, "--broker", nobody] = (1, f"broker {nobody}: connection refused")
    for verb in ("peer", "emulate"):
        cases[verb, "--broker", f"mqtt://{taken}"] = (1, f"broker mqtt://{taken}: timed out")
    cases["peer", "--broker", "mqtt://no-such-host.invalid"] = (1, "host name 'no-such-host.invalid' not found")
    await all_refused(cases, tmp_path, at_once=3)  # they mostly wait


async def test_wrong_credentials(locked: str, tmp_path: Path) -> None:
    cases: dict[tuple[object, ...], tuple[int, str]] = {}
    for verb in ("peer", "train", "status", "emulate"):
        cases[verb, "--broker", f"mqtt://{locked}"] = (1, "wrong user name or password")
        cases[verb, "--broker", f"mqtt://fleet:secret@{locked}"] = (1, "wrong user name or password")
    await all_refused(cases, tmp_path)
    _, line = await refusal("peer", "--broker", f"mqtt://fleet:secret@{locked}", home=tmp_path)
    assert "secret" not in line


async def test_a_port_in_use(broker: str, taken: str, tmp_path: Path) -> None:
    cases = {
        ("broker", "--listen", taken): (2, "port is already in use"),
        ("peer", "--broker", broker, "--listen", taken): (2, "address already in use"),
        ("peer", "--broker", broker, "--insecure", "--listen", "203.0.113.9:0"): (2, "listen 203.0.113.9:0: "),
    }
    await all_refused(cases, tmp_path)


async def test_a_state_directory_that_can_not_be_used(broker: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/identity").write_text("somebody 3\n")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/identity").write_text("?? ??\n")
    cases = {
        ("peer", "--broker", broker, "--state-dir", "file/x"): (2, "state_dir file/x: can't keep the identity there"),
        ("peer", "--broker", broker, "--state-dir", "taken", "--peer-id", "me"): (2, "belongs to peer 'somebody'"),
        ("peer", "--broker", broker, "--state-dir", "broken"): (2, "state_dir broken"),
    }
    await all_refused(cases, tmp_path)


async def test_jobs_that_can_not_be_done(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "flat.npz", x=rng.random((50, 4), dtype=np.float32), y=np.arange(50) % 3)
    np.savez(tmp_path / "short.npz", x=rng.random((50, 4), dtype=np.float32), y=np.arange(9) % 3)
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    (tmp_path / "text.npz").write_text("not a zip\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half/train-images-idx3-ubyte").write_bytes(b"\x00\x00\x08\x03\x00")
    (tmp_path / "model.json").write_text("{}")
    one = ("emulate", "--peers", 1, "--trainer", "numpy")
    keras = ("emulate", "--peers", 1, "--trainer", "keras")
    cases = {
        (*one, "--dataset", "cats"): (2, "cats"),
        (*one, "--dataset", "npz:nowhere.npz"): (2, "nowhere.npz"),
        (*one, "--dataset", f"npz:{tmp_path}/short.npz"): (FAILS, "short.npz"),
        (*one, "--dataset", f"npz:{tmp_path}/other.npz"): (FAILS, "other.npz"),
        (*one, "--dataset", f"npz:{tmp_path}/text.npz"): (FAILS, "text.npz"),
        (*one, "--dataset", "mnist", "--data-dir", "empty"): (FAILS, "empty"),
        (*one, "--dataset", "mnist", "--data-dir", "half"): (FAILS, "train-labels-idx1-ubyte"),
        (*one, "--dataset", "mnist", "--data-dir", "nowhere"): (2, "nowhere"),
        (*one, "--model", "cnn"): (2, "trainer numpy: can't do model 'cnn'"),
        (*one, "--model", "colossus"): (2, "colossus"),
        (*keras, "--dataset", f"npz:{tmp_path}/flat.npz", "--model", "cnn"): (FAILS, "cnn"),
        (*keras, "--model", "no_such_package:model"): (FAILS, "no_such_package"),
        (*keras, "--model-config", "model.json"): (FAILS, "model_config"),
    }
    await all_refused(cases, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_data_directory_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir(mode=0)
    job = ("emulate", "--peers", 1, "--trainer", "numpy", "--dataset", "mnist", "--data-dir", "secret")
    status, line = await refusal(*job, home=tmp_path)
    assert status == 2
    assert "secret" in line


@pytest.mark.parametrize(
    ("package", "arguments", "said"),
    [
        ("tensorflow", ("emulate", "--peers", "1"), "edgepeer[tensorflow]"),
        ("sklearn", ("emulate", "--peers", "1", "--trainer", "numpy"), "edgepeer[digits]"),
        ("amqtt", ("broker", "--listen", "127.0.0.1:0"), "edgepeer[broker]"),
        ("amqtt", ("emulate", "--peers", "1"), "edgepeer[broker]"),
        ("cryptography", ("join", "127.0.0.1:1", "epj1-" + "a" * 58), "edgepeer[secure]"),
        ("cryptography", ("fleet", "list"), "edgepeer[secure]"),
        ("cryptography", ("fleet", "init", "g", "--broker", "b"), "edgepeer[secure]"),
    ],
)
async def test_a_package_that_is_not_installed(
    package: str, arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    status, line = await refusal(*arguments, home=tmp_path, **without(package, tmp_path))
    assert status in (1, 2)
    assert f"pip install '{said}'" in line


async def test_one_peer_that_can_not_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.ones((30, 3), np.float32), y=np.arange(30) % 2)
    async with Field(tmp_path) as field:
        await field.open()
        await field.add("p0", "p1")
        await field.add("odd", dataset="local:gone.npz")
        training = await field.train(rounds=300, peers=2)
        report = await field.outcome(training)
        assert set(report["parameter_digests"]) == {"p0", "p1"}
        assert re.search(r"odd failed: .*gone\.npz", training.everything())
        await field.status("--json", peers=3)
