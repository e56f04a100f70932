"""aarch64 without such a machine: the README's own steps, then a fleet of what they have unpacked, under qemu's user
emulation. Two peers join, meet over TLS, and train for two rounds. Minutes: `make check-deploy` asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from devices import DEPLOY
from ports import free_port
from real_programs import Program, clean_environment

MISSING: Final = [name for name in ("mmdebstrap", "qemu-aarch64-static") if shutil.which(name) is None]
PATIENCE_S: Final = 300.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("CHECK_DEPLOY" not in os.environ, reason="takes minutes: make check-deploy"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
    pytest.mark.timeout(900),
]


def readme_steps() -> list[str]:
    text = (DEPLOY / "README.md").read_text()
    block = re.search(r"```sh\n(mmdebstrap --variant=extract.*?)```", text, re.DOTALL)
    assert block
    return block[1].splitlines()


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> tuple[Path, list[str]]:
    """Where the steps were done, and how its edgepeer is run: their last line, without its arguments."""
    place = tmp_path_factory.mktemp("aarch64")
    steps = readme_steps()
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for line in steps:
        done = subprocess.run(
            ["bash", "-ec", line],
            cwd=place,
            env={**os.environ, "PATH": tools, "WHEEL": str(wheel)},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout[-2000:], done.stderr[-2000:])
    assert re.match(r"edgepeer \S+ \(Python 3\.11\.\d+, aarch64\)", done.stdout), done.stdout
    return place, steps[-1].removesuffix(" version").split()


async def test_a_fleet_of_aarch64_trains_over_tls(unpacked: tuple[Path, list[str]], tmp_path: Path) -> None:
    place, command = unpacked
    draw = np.random.default_rng(1)
    x = draw.normal(size=(200, 8)).astype(np.float32)
    np.savez(tmp_path / "readings.npz", x=x, y=(x[:, 0] > 0).astype(np.int64), classes=2)
    broker_port, service_port = free_port(), free_port()

    @contextlib.asynccontextmanager
    async def emulated(*arguments: object) -> AsyncIterator[Program]:
        process = await asyncio.create_subprocess_exec(
            *command,
            *map(str, arguments),
            cwd=place,
            env=clean_environment(tmp_path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        program = Program(process)
        try:
            yield program
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await program.end()

    async def done(*arguments: object) -> str:
        async with emulated(*arguments) as program:
            assert await program.end(PATIENCE_S) == 0, program.everything()
            return program.out[-1] if program.out else ""

    home = ["--home", tmp_path / "fleet"]
    places = ["--broker", f"mqtts://127.0.0.1:{broker_port}", "--service", f"127.0.0.1:{service_port}"]
    await done("fleet", "init", "lab", *places, *home)
    async with contextlib.AsyncExitStack() as stack:
        listen = ["--listen", f"127.0.0.1:{broker_port}"]
        broker = await stack.enter_async_context(emulated("broker", *listen, "--fleet", tmp_path / "fleet/broker"))
        serving = emulated("fleet", "serve", "--listen", f"127.0.0.1:{service_port}", *home)
        service = await stack.enter_async_context(serving)
        await broker.said("broker ready at mqtts://", PATIENCE_S)
        await service.said("ready at", PATIENCE_S)
        peers = []
        for name in ("ash", "birch"):
            line = await done("fleet", "token", *home)
            assert line.startswith("edgepeer join ")
            await done(*line.split()[1:], "--id", name, "--dir", tmp_path / name)
            peer = emulated(
                "peer", "--fleet", tmp_path / name, "--trainer", "numpy", "--state-dir", tmp_path / f"{name}.state"
            )
            peers.append(await stack.enter_async_context(peer))
        for peer in peers:
            await peer.said("2 peers", PATIENCE_S)
        job = ["--peers", "2", "--rounds", "2", "--trainer", "numpy", "--dataset", f"npz:{tmp_path}/readings.npz"]
        said = await done("train", "--fleet", tmp_path / "fleet/operator", *job, "--report", tmp_path / "report")
        assert said
    assert (tmp_path / "report/report.json").exists()
