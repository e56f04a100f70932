"""How OpenMPI's ranks are started: on this machine's loopback, or one in each namespace of an emulated network."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["find_mpirun", "mpirun_command", "write_agent"]

_RENAME = "import os, socket, sys; socket.sethostname(sys.argv[1]); os.execvp('sh', ['sh', '-c', sys.argv[2]])"


def find_mpirun() -> str | None:
    """The mpirun of this Python's environment before any other, for it must fit the libmpi beside it."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


def mpirun_command(ranks: int, hosts: Sequence[str] = (), agent: Path | None = None) -> list[str]:
    """What a rank's command line begins with.

    Args:
        hosts: of each rank, which `agent` runs commands on; without them all ranks are here.
    """
    settings = {
        "pml": "ob1",  # the layer that takes btl
        "btl": "tcp,self",
        "btl_tcp_if_include": "eth0" if hosts else "lo",
        "mpi_yield_when_idle": "1",
    }
    command = [str(find_mpirun()), "-np", str(ranks)]
    command += [word for name, value in settings.items() for word in ("--mca", name, value)]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if not hosts:  # bound to cores it is up to a fifth faster
        return [*command, "--oversubscribe", "--bind-to", "core:overload-allowed:if-supported"]
    command += ["--host", ",".join(f"{host}:1" for host in hosts), "--map-by", "ppr:1:node"]
    command += ["--bind-to", "none"]  # each takes itself for alone on its host, and would be bound to the first core
    # Each host's daemon is started from here: those in between could not enter a namespace beside their own.
    return [*command, "--prtemca", "plm_ssh_agent", str(agent), "--prtemca", "plm_ssh_no_tree_spawn", "1"]


def write_agent(path: Path, prefixes: Mapping[str, Sequence[str]]) -> None:
    """Write a program that runs a command "on a host", as ssh would: with that host's prefix.

    Each host has a name of its own: ranks that share one take each other for neighbours in one machine. Needs root:
    others can't get from one namespace, where mpirun is, into the next.
    """
    lines = ["#!/bin/sh", "host=$1; shift", "case $host in"]
    for number, (host, prefix) in enumerate(prefixes.items()):
        rename = ["unshare", "--uts", sys.executable, "-I", "-c", _RENAME, f"host{number}"]
        lines.append(f'{host}) exec {shlex.join([*prefix, *rename])} "$*" ;;')
    path.write_text("\n".join([*lines, "esac", "exit 1", ""]))
    path.chmod(0o700)
