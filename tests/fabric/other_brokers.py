"""Brokers that are not ours, run as children: RabbitMQ with its MQTT plugin, and aedes on node."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import shutil
import tempfile
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ports import free_port

from edgepeer.fabric.address import BrokerAddress
from edgepeer.processes import dies_with_parent

__all__ = ["Missing", "aedes", "rabbitmq"]

_READY_S = 240.0
_STOP_S = 15.0
_INSTALL_S = 120.0

_AEDES = "aedes@1"
_AEDES_PROGRAM = """
const { createServer } = require('net')
const { Aedes } = require('aedes')
const ready = () => console.log('ready')
Aedes.createBroker().then(broker => createServer(broker.handle).listen(Number(process.argv[2]), '127.0.0.1', ready))
"""


class Missing(Exception):
    """This machine does not have that broker."""


@contextlib.asynccontextmanager
async def rabbitmq() -> AsyncIterator[BrokerAddress]:
    """Debian's RabbitMQ, as a node of its own, with all it writes in a directory that goes with it.

    Raises:
        Missing: it is not installed, or has no plugin for MQTT.
    """
    roots = glob.glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*")
    epmd = shutil.which("epmd")
    if not roots or epmd is None:
        raise Missing("rabbitmq-server is not installed")
    if not glob.glob(f"{roots[0]}/plugins/rabbitmq_mqtt-*"):
        raise Missing("this rabbitmq-server has no plugin rabbitmq_mqtt")
    port, names, nodes = (free_port() for _ in range(3))
    with tempfile.TemporaryDirectory(prefix="edgepeer-rabbitmq-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        (home / "enabled_plugins").write_text("[rabbitmq_mqtt].\n")
        (home / "rabbitmq.conf").write_text(
            f"listeners.tcp = none\nmqtt.listeners.tcp.1 = 127.0.0.1:{port}\nmqtt.allow_anonymous = true\n"
        )
        environment = {
            **os.environ,
            "HOME": directory,  # where Erlang keeps its cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_NODENAME": "edgepeer@localhost",
            "RABBITMQ_BASE": directory,
            "RABBITMQ_MNESIA_BASE": f"{home}/mnesia",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_CONF_ENV_FILE": f"{home}/none",
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{home}/advanced.config",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{home}/generated",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/enabled_plugins",
            "RABBITMQ_FEATURE_FLAGS_FILE": f"{home}/feature_flags",
            "RABBITMQ_PID_FILE": f"{home}/pid",
            "RUNNING_UNDER_SYSTEMD": "true",  # no shell between us and it
            "RABBITMQ_DIST_PORT": str(nodes),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none"
            ),
        }
        async with (
            _child(epmd, "-d", "-port", names, "-address", "127.0.0.1", ready="epmd running", env=environment),
            _child(f"{roots[0]}/sbin/rabbitmq-server", ready="completed with", cwd=home, env=environment),
        ):
            yield BrokerAddress(host="127.0.0.1", port=port)


@contextlib.asynccontextmanager
async def aedes(cache: Path) -> AsyncIterator[BrokerAddress]:
    """The npm package aedes, which keeps everything in memory. `cache`: a directory where it is installed, once.

    Raises:
        Missing: there is no node, or the package can't be had.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise Missing("node and npm are not installed")
    if _prepare(cache):
        installing = await asyncio.create_subprocess_exec(
            *(npm, "install", "--no-audit", "--no-fund", "--no-progress", _AEDES),
            cwd=cache,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            preexec_fn=dies_with_parent(),
        )
        try:
            async with asyncio.timeout(_INSTALL_S):
                await installing.wait()
        except TimeoutError:
            installing.kill()
            await installing.wait()
        if installing.returncode:
            raise Missing(f"npm can't install {_AEDES} here")
    port = free_port()
    async with _child(node, "broker.js", port, ready="ready", cwd=cache):
        yield BrokerAddress(host="127.0.0.1", port=port)


@contextlib.asynccontextmanager
async def _child(program: str, *arguments: object, ready: str, **options: Any) -> AsyncIterator[None]:
    """A program that runs from when it has said that it is ready until the context ends."""
    process = await asyncio.create_subprocess_exec(
        program,
        *map(str, arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        preexec_fn=dies_with_parent(),
        **options,
    )
    assert process.stdout is not None
    said: deque[str] = deque(maxlen=30)

    async def listen(stream: asyncio.StreamReader, until: str | None) -> None:
        while line := await stream.readline():
            said.append(line.decode(errors="replace"))
            if until is not None and until in said[-1]:
                return

    listening = None
    try:
        try:
            async with asyncio.timeout(_READY_S):
                await listen(process.stdout, ready)
        except TimeoutError:
            raise AssertionError(f"{program} is not ready after {_READY_S:g} s: {''.join(said)}") from None
        assert ready in "".join(said), f"{program} ended: {''.join(said)}"
        listening = asyncio.create_task(listen(process.stdout, None))
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if listening is not None:
            await listening


def _prepare(cache: Path) -> bool:
    """Whether the package is yet to be installed there."""
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "package.json").write_text('{"private": true}\n')
    (cache / "broker.js").write_text(_AEDES_PROGRAM)
    return not (cache / "node_modules/aedes").is_dir()
