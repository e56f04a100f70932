"""The container images: built for amd64 and arm64, small, and run. No registry is needed: the base is made here, by
mmdebstrap, and the packages are brought along. Minutes, and root: `make check-deploy` asks for it.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
from devices import DEPLOY, REPOSITORY
from real_programs import edgepeer

MISSING: Final = [name for name in ("buildah", "mmdebstrap", "qemu-aarch64-static") if shutil.which(name) is None]
MOST_MB: Final = 250
RUNS_S: Final = 20
RUNS_EMULATED_S: Final = 90
NATIVE: Final = ("python3", "-m", "edgepeer")
NUMBERS: Final = "import sys; sys.path.insert(0, '/opt/edgepeer'); import numpy, uvloop, edgepeer.trust.identity;"
RUNS: Final = "import sys; sys.path.insert(0, '/opt/edgepeer'); sys.argv = {!r}; import edgepeer.cli as c; c.main()"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("CHECK_DEPLOY" not in os.environ, reason="takes minutes: make check-deploy"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.timeout(1200),
]


def call(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, (command, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


class Builder:
    """buildah with a store of its own."""

    def __init__(self, store: Path) -> None:
        self._options = ["--root", store / "root", "--runroot", store / "run", "--storage-driver", "vfs"]

    def __call__(self, *arguments: object) -> str:
        return call("buildah", *self._options, *arguments).strip()

    def image_of(self, root: Path, name: str, machine: str) -> None:
        """What docker would pull, from a root file system."""
        made = self("from", "scratch")
        self("add", "--quiet", made, root, "/")
        variant = ["--variant", "v8"] if machine == "arm64" else []
        paths = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self("config", "--os", "linux", "--arch", machine, *variant, "--env", paths, made)
        self("commit", "--quiet", "--rm", made, name)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    place = tmp_path_factory.mktemp("images")
    made = Builder(place / "store")
    lean = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")]
    for name, machine, options in (
        ("build", "amd64", ["--variant=essential", "--include=python3,python3-venv"]),
        ("base-amd64", "amd64", ["--variant=essential", "--include=python3,libstdc++6", *lean]),
        ("base-arm64", "arm64", ["--variant=extract", "--arch=arm64", "--include=python3,libstdc++6", *lean]),
    ):
        call("mmdebstrap", "--quiet", *options, "bookworm", place / f"{name}.tar")
        made.image_of(place / f"{name}.tar", name, machine)
    yield made
    for container in made("containers", "--quiet").split():
        made("rm", container)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout, with all packages."""
    place = tmp_path_factory.mktemp("context")
    shutil.copytree(REPOSITORY / "edgepeer", place / "edgepeer", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(DEPLOY / "container", place / "deploy/container")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, place)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", place / "deploy/container/wheels"]
    for machine in ("x86_64", "aarch64"):
        platforms = [f"--platform=manylinux_{each}_{machine}" for each in ("2_34", "2_28", "2_27", "2_26", "2_17")]
        options = [*platforms, f"--platform=manylinux2014_{machine}", "--python-version=3.11", "--only-binary=:all:"]
        call(*download, *options, f"{built(place)}[secure,metrics]", "setuptools>=77")
    return place


def by_hand(root: Path, *arguments: str) -> list[object]:
    """How to run edgepeer in an image of another machine."""
    program = NUMBERS + RUNS.format(["edgepeer", *arguments])
    return ["chroot", "--userspec=65532:65532", root, "/qemu", "/usr/bin/python3.11", "-c", program]


def said_within(seconds: int, command: Iterable[object]) -> list[str]:
    """A command that says what it does until it is stopped. By `timeout`: who is killed here would leave it running."""
    return ["sh", "-c", f"timeout {seconds} {shlex.join(map(str, command))} 2>&1 || test $? = 124"]


def built(place: Path) -> Path:
    into = place.parent / "built"
    if not into.exists():
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
        copy = place.parent / "copy"
        shutil.copytree(place, copy)
        call(*command, "--wheel-dir", into, copy)
    return next(into.glob("*.whl"))


@pytest.mark.parametrize("machine", ["amd64", "arm64"])
async def test_the_image_is_small_and_runs(machine: str, builder: Builder, context: Path, tmp_path: Path) -> None:
    told = {
        "BASE": f"localhost/base-{machine}",
        "BUILD": "localhost/build",
        "PYTHON": "3.11",
        "BUILDPLATFORM": "linux/amd64",
        "TARGETPLATFORM": f"linux/{machine}",
    }
    given = [f"--build-arg={name}={value}" for name, value in told.items()]
    options = ["--isolation=chroot", "--network=host", "--pull-never", f"--platform=linux/{machine}", *given]
    name = f"edgepeer-{machine}"
    await asyncio.to_thread(
        builder, "bud", *options, "-f", context / "deploy/container/Containerfile", "-t", name, context
    )
    image = builder("from", "--pull-never", f"--arch={machine}", f"localhost/{name}")
    root = Path(builder("mount", image))
    megabytes = int(call("du", "-s", "--apparent-size", "-B1", root).split()[0]) / 1e6
    print(f"{name}: {megabytes:.0f} MB")
    assert megabytes <= MOST_MB
    assert (root / "var/lib/edgepeer").stat().st_uid == 65532
    if machine == "amd64":
        inside = ["run", "--isolation=chroot", image, "--"]
        assert builder(*inside, "id", "-u") == "65532"
        shown = builder(*inside, *NATIVE, "version")
        builder(*inside, *NATIVE, "fleet", "init", "lab", "--broker", "localhost", "--home", "/var/lib/edgepeer/trial")
    else:
        # Nothing is registered for foreign programs here, so it is run by hand.
        shutil.copy(shutil.which("qemu-aarch64-static") or "", root / "qemu")
        shown = call(*by_hand(root, "version"))
    async with edgepeer("broker", "--listen", "127.0.0.1:0", home=tmp_path) as broker:
        peer = ["peer", "--trainer", "numpy", "--broker", (await broker.said("broker ready at (.+)"))[1]]
        if machine == "amd64":
            said = await asyncio.to_thread(builder, *inside, *said_within(RUNS_S, [*NATIVE, *peer]))
        else:
            said = await asyncio.to_thread(call, *said_within(RUNS_EMULATED_S, by_hand(root, *peer)))
    assert "view 1 of generation" in said, said
    assert shown.startswith("edgepeer ")
    assert {"amd64": "x86_64", "arm64": "aarch64"}[machine] in shown
