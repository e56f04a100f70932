"""What systemctl does for install.sh, below a root directory: it really runs the services, and waits until they are
ready. Units count as they were at the last daemon-reload. Environment: ROOT, and START_TIMEOUT in place of a minute.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(os.environ["ROOT"])
RUN = ROOT / "run"
LOADED = RUN / "loaded"
GONE_S = 20.0


def main(verb: str, *units: str) -> int:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # services are no children of who asks for them
    if verb == "daemon-reload":
        shutil.rmtree(LOADED, ignore_errors=True)
        shutil.copytree(ROOT / "etc/systemd/system", LOADED, symlinks=True)
        return 0
    (unit,) = units
    match verb:
        case "is-active":
            print("active" if alive(unit) else "inactive")
            return 0 if alive(unit) else 3
        case "stop":
            stop(unit)
            return 0
        case "start" | "restart":
            stop(unit)
            return start(unit)
    raise SystemExit(f"systemctl {verb}: not known here")


def pid_file(unit: str) -> Path:
    return RUN / f"{unit}.pid"


def alive(unit: str) -> int:
    """Its process id, or 0."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pid = int(pid_file(unit).read_text())
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            return pid
    return 0


def stop(unit: str) -> None:
    pid = alive(unit)
    if not pid:
        return
    with contextlib.suppress(ProcessLookupError):
        watched = os.pidfd_open(pid)
        os.kill(pid, signal.SIGTERM)
        if not select.select([watched], [], [], GONE_S)[0]:
            os.kill(pid, signal.SIGKILL)


def start(unit: str) -> int:
    lines = [line.partition("=") for line in (LOADED / unit).read_text().splitlines() if "=" in line]
    settings = {name: value for name, _, value in lines}
    credentials = RUN / "credentials" / unit
    credentials.mkdir(parents=True, exist_ok=True)
    name, _, source = settings["LoadCredential"].partition(":")
    shutil.copy(ROOT / source.lstrip("/"), credentials / name)
    places = {"%d": str(credentials), "%S": str(ROOT / "var/lib"), "/opt/edgepeer": str(ROOT / "opt/edgepeer")}

    def placed(text: str) -> str:
        for short, full in places.items():
            text = text.replace(short, full)
        return text

    environment = dict(os.environ)
    environment |= dict(placed(value).split("=", 1) for key, _, value in lines if key == "Environment")
    if state := settings.get("StateDirectory"):
        (ROOT / "var/lib" / state).mkdir(parents=True, exist_ok=True)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
        tempfile.TemporaryDirectory(prefix="notify-") as place,
    ):
        if settings.get("Type") == "notify":
            # In a place of its own: the name of such a socket may have 107 bytes.
            address = str(Path(place) / "socket")
            ready.bind(address)
            environment["NOTIFY_SOCKET"] = address
        with (RUN / f"{unit}.log").open("ab") as log:
            process = subprocess.Popen(
                shlex.split(placed(settings["ExecStart"])),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        pid_file(unit).write_text(str(process.pid))
        if settings.get("Type") != "notify":
            return 0
        deadline = time.monotonic() + float(os.environ.get("START_TIMEOUT", "60"))
        ready.settimeout(0.05)
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(TimeoutError):
                if b"READY=1" in ready.recv(4096).split(b"\n"):
                    return 0
    stop(unit)
    return 1


if __name__ == "__main__":
    sys.exit(main(*(argument for argument in sys.argv[1:] if not argument.startswith("-"))))
