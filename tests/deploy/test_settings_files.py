"""The settings in deploy/ are accepted by those who will read them."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest
from fleets import Fleet, Identity, Role
from ports import free_port

from edgepeer.errors import FabricError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.mosquitto import find_mosquitto
from edgepeer.fabric.rights import patterns
from edgepeer.settings import (
    BrokerSettings,
    EmulateSettings,
    PeerSettings,
    StatusSettings,
    TrainSettings,
    load_settings,
)

DEADLINE_S = 90.0
DEPLOY = Path(__file__).parents[2] / "deploy"
SETTINGS = DEPLOY / "edgepeer.toml"


@pytest.mark.parametrize("kind", [PeerSettings, BrokerSettings, TrainSettings, EmulateSettings, StatusSettings])
def test_the_example_settings_are_the_defaults(kind: type[PeerSettings]) -> None:
    assert load_settings(kind, environ={}, config=SETTINGS) == kind()


@pytest.mark.parametrize("kind", [PeerSettings, BrokerSettings])
def test_the_example_settings_are_valid_with_every_line_in_use(kind: type[PeerSettings], tmp_path: Path) -> None:
    # A key may be there twice, as an example and as the default: the first is used.
    lines: list[str] = []
    keys: set[str] = set()
    for line in SETTINGS.read_text().splitlines():
        setting = re.fullmatch(r"# (\w+) = (.+)", line)
        if line.startswith("["):
            keys.clear()
        if setting and setting[1] not in keys:
            keys.add(setting[1])
            lines.append(line.removeprefix("# "))
        elif line.startswith("["):
            lines.append(line)
    used = tmp_path / "edgepeer.toml"
    used.write_text("\n".join(lines).replace("/var/lib", str(tmp_path)))  # this machine may be a device itself
    settings = load_settings(kind, environ={}, config=used)
    assert settings.listen.startswith("0.0.0.0:")


@pytest.fixture
def mosquitto_settings(tmp_path: Path) -> tuple[Path, Fleet, int]:
    """The recommended settings with a free port, and certificates of this test's own; the fleet, and the port."""
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    port = free_port()
    fleet = Fleet(tmp_path / "fleet", "lab")
    for name in ("p1", "out"):
        fleet.member(name)
    fleet.evict("out")
    broker = fleet.directory("broker", Role.BROKER)
    (broker / "revoked.pem").write_bytes(fleet.founder.revocations())
    (broker / "mosquitto.acl").write_text("\n".join(patterns("lab", ["alice"])) + "\n")
    text = (DEPLOY / "mosquitto.conf").read_text()
    changes = {
        "\nlistener 8883\n": f"\nlistener {port} 127.0.0.1\n",
        " /etc/mosquitto/edgepeer/": f" {broker}/",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    if os.geteuid() == 0:
        text += "user root\n"  # or it would become user mosquitto, who can't read this test's files
    config = tmp_path / "mosquitto.conf"
    config.write_text(text)
    return config, fleet, port


async def test_mosquitto_accepts_the_recommended_settings(mosquitto_settings: tuple[Path, Fleet, int]) -> None:
    config, fleet, port = mosquitto_settings
    program = find_mosquitto()
    assert program is not None
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(program, "-c", config, stdout=pipe, stderr=pipe)
    address = BrokerAddress(host="127.0.0.1", port=port, tls=True)
    try:
        assert await _lets_in(address, fleet.member("p1"), within=DEADLINE_S)  # it has only just been started
        assert await _lets_in(address, fleet.operator(), within=DEADLINE_S)
        assert not await _lets_in(address, fleet.other().member("p1"))
        assert not await _lets_in(address, fleet.member("out"))
        assert not await _lets_in(BrokerAddress(host="127.0.0.1", port=port), None)
        assert process.returncode is None
    finally:
        process.terminate()
        async with asyncio.timeout(DEADLINE_S):
            said = b"".join(await process.communicate())
    assert b": Error: " not in said, said


async def _lets_in(address: BrokerAddress, identity: Identity | None, *, within: float = 2.0) -> bool:
    client = FabricClient(address, "lab", "visitor", on_event=lambda event: None, identity=identity)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(client.run())
        try:
            await client.connected(within)
        except FabricError:
            return False
        finally:
            await client.close(timeout=0.2)
    return True
