"""Compiled (`setup.py`), the machine and its simulator do what their sources do: to the last effect, bit and moment."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from ports import free_port

import edgepeer
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.protocol import node
from edgepeer.simulation.drawing import Random, draw_story
from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.story import Story

ROOT = Path(edgepeer.__file__).parents[1]
SEED, SCHEDULES, ROUNDS = 20_000, 25, 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif("CHECK_COMPILED" not in os.environ, reason="compiles for minutes: make check-compiled"),
]


def traces() -> list[str]:
    """What drawn fleets do, each as the fingerprint of all effects of all peers and their times."""
    told = []
    for seed in range(SEED, SEED + SCHEDULES):
        story = Story(draw_story(Random(seed), peers=9))
        story.tell()
        told.append(story.world.trace_digest)
    return told


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a compiled package lies."""
    wheels, package = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("compiled")
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "edgepeer", source / "edgepeer", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", wheels, source]
    build = subprocess.run(
        command, env=os.environ | {"EDGEPEER_COMPILED": "1", "MYPYC_OPT_LEVEL": "0"}, capture_output=True, text=True
    )
    assert build.returncode == 0, build.stdout + build.stderr
    (wheel,) = wheels.iterdir()
    with ZipFile(wheel) as packed:
        packed.extractall(package)
    return package


async def said(package: Path, *arguments: str) -> list[str]:
    """What this file says as a program, with edgepeer from there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        *arguments,
        env=os.environ | {"PYTHONPATH": f"{package}{os.pathsep}{ROOT / 'tests'}"},
        cwd=package,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().splitlines()


async def test_drawn_fleets_do_the_same(compiled: Path) -> None:
    where, *fingerprints = await said(compiled, "traces")
    assert where.endswith(".so"), "it is the compiled machine that has run"
    assert node.__file__.endswith(".py"), "and here its source"
    assert fingerprints == traces()


async def test_schedules_are_read_and_told_the_same(compiled: Path) -> None:
    """What a schedule may say is read off its class, and a compiled one says its types in another way."""
    text = str(draw_story(Random(SEED), peers=9))
    digest = Story(Schedule.parse(text)).tell().trace_digest
    assert (await said(compiled, "tell", text))[1:] == [*text.splitlines(), digest]


async def test_compiled_peers_and_others_come_to_the_same_sums(compiled: Path) -> None:
    async with EmbeddedBroker(port=free_port()) as broker, asyncio.TaskGroup() as group:
        running = [
            group.create_task(said(package, "sums", str(broker.address), f"p{number}"))
            for number, package in enumerate([ROOT, compiled, ROOT, compiled])
        ]
    told = [task.result() for task in running]
    assert [Path(where).suffix for where, *_ in told] == [".py", ".so", ".py", ".so"]
    assert len(told[0]) == 1 + ROUNDS
    assert all(sums == told[0][1:] for _, *sums in told)


async def add_up(broker: str, name: str) -> None:
    numbers = np.random.default_rng()
    async with edgepeer.Peer(broker, fabric="both", peer_id=name) as peer:
        await peer.ready(peers=4, timeout=120)
        for _ in range(ROUNDS):
            outcome = await peer.allreduce(numbers.random(100_000, dtype="f4"))
            print(outcome.round, outcome.digest, *outcome.contributors)


if __name__ == "__main__":
    print(node.__file__)
    if sys.argv[1] == "traces":
        print(*traces(), sep="\n")
    elif sys.argv[1] == "tell":
        schedule = Schedule.parse(sys.argv[2])
        print(f"{schedule}{Story(schedule).tell().trace_digest}")
    else:
        asyncio.run(add_up(*sys.argv[2:]))
