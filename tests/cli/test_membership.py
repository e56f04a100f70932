"""What a fleet's directory says of fabric, broker and name, and what contradicts it; and open ports without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleets import Fleet, Role

from edgepeer.errors import ConfigError
from edgepeer.settings import BrokerSettings, PeerSettings, StatusSettings, TrainSettings, VerbSettings, load_settings
from edgepeer.trust.directory import CERTIFICATE, FILES, WHERE


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "fleet", broker=("mqtts://a", "mqtts://b:1"))


def load(kind: type[VerbSettings], **flags: object) -> VerbSettings:
    return load_settings(kind, flags=flags, environ={"XDG_CONFIG_HOME": "/nonexistent"})


def refusal(kind: type[VerbSettings], **flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(kind, **flags)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_a_member_need_say_nothing_else(fleet: Fleet) -> None:
    directory = fleet.directory("p1")
    settings = load(PeerSettings, fleet=str(directory), listen="0.0.0.0:7700")
    assert isinstance(settings, PeerSettings)
    assert (settings.broker, settings.fabric, settings.peer_id, settings.fleet) == (
        *("mqtts://a,mqtts://b:1", "greenhouse", "p1", directory),
    )
    for kind in (TrainSettings, StatusSettings):
        operated = load(kind, fleet=str(fleet.directory("alice", Role.OPERATOR)))
        assert (operated.broker, operated.fabric) == ("mqtts://a,mqtts://b:1", "greenhouse")
    load(BrokerSettings, fleet=str(fleet.directory("hub", Role.BROKER)), listen="0.0.0.0:8883")


def test_a_state_directory_may_hold_it(fleet: Fleet, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    settings = load(PeerSettings, state_dir=str(state))
    assert (settings.fleet, settings.fabric) == (None, "default")
    fleet.directory("p1").rename(state / "fleet")
    settings = load(PeerSettings, state_dir=str(state), peer_id="p1", broker="mqtts://c", fabric="greenhouse")
    assert (settings.fleet, settings.broker) == (state / "fleet", "mqtts://c")


@pytest.mark.parametrize("lost", FILES)
def test_of_which_a_part_is_lost(fleet: Fleet, lost: str, tmp_path: Path) -> None:
    """A device that has lost what says of which fleet it is must not run outside of any."""
    state = tmp_path / "state"
    state.mkdir()
    fleet.directory("p1").rename(state / "fleet")
    (state / "fleet" / lost).unlink()
    if lost in (CERTIFICATE, WHERE):
        assert str(state / "fleet") in refusal(PeerSettings, state_dir=str(state))
        assert "edgepeer join HOST STRING" in refusal(PeerSettings, state_dir=str(state), broker="mqtt://c")
    else:  # found when its identity is loaded
        assert load(PeerSettings, state_dir=str(state)).fleet == state / "fleet"  # type: ignore[attr-defined]


def test_what_contradicts_it(fleet: Fleet, tmp_path: Path) -> None:
    p1 = str(fleet.directory("p1"))
    assert refusal(PeerSettings, fleet=p1, fabric="x") == f"fabric = x: the fleet in {p1} says greenhouse: leave it out"
    assert refusal(PeerSettings, fleet=p1, peer_id="p2") == f"peer_id = p2: the fleet in {p1} says p1: leave it out"
    said = refusal(PeerSettings, fleet=p1, broker="mqtts://a,mqtt://u:hunter2@b")
    assert said == f"broker = mqtts://***@b: a fleet ({p1}) needs mqtts://, so that nobody else can listen"
    assert refusal(TrainSettings, fleet=p1) == (
        f"fleet = {p1}: is of peer p1, but train needs operator: `edgepeer fleet operator add NAME` lets one in"
    )
    assert "but broker needs broker" in refusal(BrokerSettings, fleet=p1)
    assert "leave one of them out" in refusal(PeerSettings, fleet=p1, insecure="true")
    alice = str(fleet.directory("alice", Role.OPERATOR))
    assert "is of operator alice, but peer needs peer: on the device, `edgepeer join" in refusal(
        PeerSettings, fleet=alice
    )
    assert f"fleet = {tmp_path}: no fleet was joined there" in refusal(StatusSettings, fleet=str(tmp_path))
    (tmp_path / "fleet.db").touch()
    assert f"need is in {tmp_path}/operator and {tmp_path}/broker" in refusal(StatusSettings, fleet=str(tmp_path))
    where = Path(p1) / "fleet.toml"
    where.write_text(where.read_text().replace("mqtts://b", "mqtt://b"))
    assert "needs mqtts://, so that nobody else can listen" in refusal(PeerSettings, fleet=p1)
    where.write_text("fabric = 'a/b'\n")
    assert f"{p1}/fleet.toml: " in refusal(PeerSettings, fleet=p1)


@pytest.mark.parametrize("kind", [PeerSettings, BrokerSettings])
@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:7700", "192.168.1.10:7700", "raspberrypi.local:7700"])
def test_an_open_port_without_a_fleet_must_be_asked_for(kind: type[VerbSettings], listen: str) -> None:
    assert refusal(kind, listen=listen) == (
        f"listen = {listen}: whoever reaches that port could read and change everything: join a fleet (edgepeer join) "
        "and say --fleet, or give --insecure where you trust the whole network"
    )
    load(kind, listen=listen, insecure="true")
    for own in ("127.0.0.1:0", "127.0.0.9:1", "localhost:0", "[::1]:0"):
        load(kind, listen=own)
