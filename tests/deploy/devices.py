"""A device below a directory of the test's own: what install.sh puts there, services that run, a loss of power."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

__all__ = ["DEPLOY", "REPOSITORY", "Device", "changed_wheel", "clean"]

REPOSITORY: Final = Path(__file__).parents[2]
DEPLOY: Final = REPOSITORY / "deploy"
_STEPS: Final = ("cp", "ln", "mv", "rm", "sync")
"""Commands that change something; systemctl is one, too."""


def clean() -> dict[str, str]:
    """The environment without settings of edgepeer, and with the libraries that are here for other Pythons, too."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EDGEPEER_")}
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    return {**kept, "PYTHONPATH": os.pathsep.join(libraries), "PYTHON": sys.executable, "OPENBLAS_NUM_THREADS": "1"}


def changed_wheel(wheel: Path, into: Path, changes: dict[str, str]) -> Path:
    """The same wheel with other modules, by their paths in the package."""
    into.mkdir()
    texts = {f"edgepeer/{name}": text for name, text in changes.items()}
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(into / wheel.name, "w") as new:
        assert texts.keys() <= {*old.namelist()}
        for name in old.namelist():
            new.writestr(old.getinfo(name), texts.get(name, old.read(name)))
    return into / wheel.name


class Device:
    """Everything below one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "opt/edgepeer"
        self.units = root / "etc/systemd/system"
        for directory in (self.units, root / "etc/edgepeer", root / "run", self.home):
            directory.mkdir(parents=True, exist_ok=True)
        systemctl = root / "systemctl"
        systemctl.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -IS "{Path(__file__).with_name("systemctl.py")}" "$@"\n'
        )
        systemctl.chmod(0o755)
        # The disk is no part of the test, and slow where others use it.
        (root / "quick").mkdir(exist_ok=True)
        (root / "quick/sync").symlink_to("/bin/true")
        # Nor is a pip of each version's own, which takes seconds to unpack: pip is found with the other libraries.
        python = root / "quick/python"
        python.write_text(
            f'#!/bin/sh\n[ "$1 $2" != "-m venv" ] || set -- "$@" --without-pip\nexec "{sys.executable}" "$@"\n'
        )
        python.chmod(0o755)
        self.environment = {
            **clean(),
            "PATH": f"{root}/quick:{os.environ['PATH']}",
            "PYTHON": str(python),
            "DESTDIR": str(root),
            "ROOT": str(root),
            "SYSTEMCTL": str(systemctl),
            "PIP_NO_DEPS": "1",
            "START_TIMEOUT": "30",
        }

    def run(self, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*map(str, command)],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            env={**self.environment, **environment},
            start_new_session=True,
        )

    def install(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("sh", DEPLOY / "install.sh", *arguments, **environment)

    def versions(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("sh", DEPLOY / "versions.sh", *arguments, **environment)

    def systemctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.root / "systemctl", *arguments)

    @property
    def current(self) -> str:
        """The version that the next start takes."""
        return os.readlink(self.home / "current").removeprefix("versions/")

    @property
    def there(self) -> set[str]:
        """The versions that are installed."""
        return {path.name for path in (self.home / "versions").iterdir()}

    @property
    def on_trial(self) -> bool:
        return (self.home / "trial").exists()

    @property
    def pid(self) -> int:
        """Of the peer that runs; 0: none does."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.root / "run/edgepeer-peer.service.pid").read_text())
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                return pid
        return 0

    @property
    def log(self) -> str:
        path = self.root / "run/edgepeer-peer.service.log"
        return path.read_text() if path.exists() else ""

    def start(self) -> None:
        self.systemctl("daemon-reload")
        started = self.systemctl("start", "edgepeer-peer.service")
        assert started.returncode == 0, (started.stderr, self.log)

    def lose_power(self) -> None:
        """Whatever runs does not run any more."""
        if pid := self.pid:
            os.kill(pid, signal.SIGKILL)

    def boot(self) -> None:
        """As systemd does it: first the rollback, if its condition holds, then the peer."""
        if self.on_trial:
            self.systemctl("daemon-reload")
            restored = self.versions("restore")
            assert restored.returncode == 0, restored.stderr
        self.start()

    def cut_at(self, step: int) -> dict[str, str]:
        """An environment in which the power goes before that step, counted from 1, of what is run in it."""
        count, tools = self.root / "steps", self.root / "tools"
        count.write_text("0")
        tools.mkdir(exist_ok=True)
        for name in (*_STEPS, "systemctl"):
            program = {"systemctl": self.root / "systemctl", "sync": "/bin/true"}.get(name, f"/bin/{name}")
            (tools / name).write_text(
                f'#!/bin/sh\nread -r n <"{count}"; n=$((n + 1)); echo $n >"{count}"\n'
                f'[ $n -ne {step} ] || kill -9 0\nexec "{program}" "$@"\n'
            )
            (tools / name).chmod(0o755)
        return {"PATH": f"{tools}:{os.environ['PATH']}", "SYSTEMCTL": str(tools / "systemctl")}

    def steps(self) -> int:
        """How many steps the last one that was run so has begun."""
        return int((self.root / "steps").read_text())
