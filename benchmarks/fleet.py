"""The processes of one system: started once, measured in turns with other systems, idle in between."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from common import SINGLE_THREADED, cpu_seconds
from mpirun import find_mpirun, mpirun_command, write_agent

from edgepeer.emulation.network import EmulatedNetwork

__all__ = ["WARM_UP", "Fleet", "FleetError", "missing", "rank_name", "rank_names"]

_WORKER = Path(__file__).with_name("worker.py")
_DEADLINE = 120.0  # s: a machine with few cores imports many torches slowly


_NEEDED = {
    "gloo": ("torch", "'edgepeer[bench]'"),
    "mpi": ("mpi4py", "'edgepeer[bench]'"),
    "hivemind": ("hivemind", "hivemind"),  # needs so much else that the extra leaves it out
}

#: Untimed rounds before each block.
WARM_UP = 2


class FleetError(RuntimeError):
    """A worker died, hung, or reported a wrong sum."""


def missing(system: str, *, apart: bool = False) -> str | None:
    """What `system` lacks here, or None when it can be measured; `apart`: each rank in a namespace of its own."""
    needed, source = _NEEDED.get(system, (None, None))
    if needed and find_spec(needed) is None:
        return f"{needed} is not installed (pip install {source})"
    if system == "mpi" and find_mpirun() is None:
        return "no mpirun beside this Python or on the PATH (pip install 'edgepeer[bench]')"
    if system == "mpi" and apart and os.geteuid():
        return "only root can start its ranks in namespaces"
    return None


def rank_name(rank: int) -> str:
    """What a rank is called in a network, and in a fleet that it can prove to be of."""
    return f"rank{rank}"


def rank_names(peers: int) -> tuple[str, ...]:
    """What the ranks are called."""
    return tuple(map(rank_name, range(peers)))


class Fleet:
    """N workers of one system, as a context manager.

    Args:
        network: has `rank_names`; without it all workers are on this machine's loopback.
        worker: the program that each of them runs.
        deadline_s: for any answer of a worker.
    """

    def __init__(
        self,
        system: str,
        peers: int,
        elements: int,
        options: dict[str, Any] | None = None,
        network: EmulatedNetwork | None = None,
        worker: Path = _WORKER,
        deadline_s: float = _DEADLINE,
    ) -> None:
        self._worker, self._deadline = worker, deadline_s
        self.system, self.peers, self.elements = system, peers, elements
        self._network = network
        self._options = options or {}
        self._round = 0
        self._lines: list[IO[bytes]] = []
        self._sockets: list[socket.socket] = []
        self._pids: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Fleet:
        self._directory = tempfile.TemporaryDirectory(prefix="edgepeer-bench-")
        try:
            self._start(Path(self._directory.name))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._send({"stop": 0})
            with suppress(subprocess.TimeoutExpired):
                for process in self._processes:
                    process.wait(10)
        self._end()

    def measure(self, rounds: int) -> list[float]:
        """Time `rounds` allreduces after WARM_UP untimed ones and check the last sum at every rank.

        A round's time is the longest of the ranks' own calls. All ranks are ready before any is let go, and all
        are done before the next round is prepared.

        Returns: seconds of each round.
        Raises: FleetError when a worker is lost or a sum is wrong.
        """
        seconds = [self._one_round() for _ in range(WARM_UP + rounds)]
        wrong = [r for r, answer in enumerate(self.ask({"check": self._round})) if answer["mistakes"]]
        if wrong:
            raise FleetError(f"{self.system}: wrong sums at ranks {wrong} in round {self._round}")
        return seconds[WARM_UP:]

    def ask(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        """What every rank answers.

        Raises: FleetError when one is lost.
        """
        self._send(command)
        return [self._answer(index) for index in range(self.peers)]

    def cpu_seconds(self) -> float:
        """Processor time that the workers have used since their start."""
        return sum(cpu_seconds(pid) for pid in self._pids)

    def _one_round(self) -> float:
        self._round += 1
        self.ask({"prepare": self._round})
        return float(max(answer["seconds"] for answer in self.ask({"go": self._round})))

    def _start(self, directory: Path) -> None:
        control = str(directory / "control")
        self._options.setdefault("store", str(directory / "store"))
        self._log = (directory / "log").open("w+b")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(control)
            server.listen(self.peers)
            server.settimeout(1.0)
            self._processes = self._spawn(control, directory / "agent")
            hellos = [self._accept(server) for _ in range(self.peers)]
        places = {hello["network"] for hello in hellos}
        if self._network is not None and len(places) != self.peers:
            raise FleetError(f"{self.system}: {self.peers} ranks are in {len(places)} network namespaces, not one each")
        ranked = sorted(zip(hellos, self._sockets, self._lines, strict=True), key=lambda item: item[0]["rank"])
        self._sockets = [connection for _, connection, _ in ranked]
        self._lines = [lines for _, _, lines in ranked]
        self._pids = [hello["pid"] for hello, _, _ in ranked]
        self.ask({"start": [hello["address"] for hello, _, _ in ranked]})

    def _spawn(self, control: str, agent: Path) -> list[subprocess.Popen[bytes]]:
        network, names = self._network, rank_names(self.peers)
        interface = "lo" if network is None else "eth0"
        environment = os.environ | SINGLE_THREADED | {"GLOO_SOCKET_IFNAME": interface}
        addresses = ["127.0.0.1" if network is None else network.address(name) for name in names]
        prefixes = [[] if network is None else network.prefix(name) for name in names]

        def command(rank: int) -> list[str]:
            numbers = [str(rank), str(self.peers), str(self.elements)]
            options = json.dumps(self._options | {"address": addresses[rank]})
            return [sys.executable, str(self._worker), self.system, control, *numbers, options]

        if self.system != "mpi":
            commands = [[*prefixes[rank], *command(rank)] for rank in range(self.peers)]
        elif network is None:
            commands = [[*mpirun_command(self.peers), *command(0)]]
        else:
            write_agent(agent, dict(zip(addresses, prefixes, strict=True)))
            commands = [[*network.broker_prefix(), *mpirun_command(self.peers, addresses, agent), *command(0)]]
        return [
            subprocess.Popen(c, env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
            for c in commands
        ]

    def _accept(self, server: socket.socket) -> dict[str, Any]:
        give_up = time.monotonic() + self._deadline
        while True:
            try:
                connection, _ = server.accept()
                break
            except TimeoutError:
                ended = any(process.poll() is not None for process in self._processes)
                if ended or time.monotonic() > give_up:
                    raise self._lost("a worker did not start") from None
        connection.settimeout(self._deadline)
        self._sockets.append(connection)
        self._lines.append(connection.makefile("rb"))
        return self._answer(len(self._lines) - 1)

    def _send(self, command: dict[str, Any]) -> None:
        line = json.dumps(command).encode() + b"\n"
        for connection in self._sockets:
            connection.sendall(line)

    def _answer(self, index: int) -> dict[str, Any]:
        try:
            line = self._lines[index].readline()
        except TimeoutError:
            raise self._lost(f"no answer within {self._deadline:.0f} s") from None
        if not line:
            raise self._lost("a worker ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _lost(self, what: str) -> FleetError:
        time.sleep(0.5)  # for its last words
        self._log.seek(0)
        return FleetError(f"{self.system}, {self.peers} peers: {what}\n{self._log.read()[-2000:].decode()}")

    def _end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for connection in self._sockets:
            connection.close()
        self._log.close()
        self._directory.cleanup()
