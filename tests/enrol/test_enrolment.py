"""Joining over sockets: the service and its clients."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import ssl
from pathlib import Path

import pytest
from fleets import Fleet
from office import DEADLINE_S, Office, man_in_the_middle, open_office

from edgepeer.enrol import joining, messages
from edgepeer.enrol.joining import Joined, join
from edgepeer.enrol.strings import JoinString
from edgepeer.errors import ConfigError, FabricError, TrustError
from edgepeer.trust import clock
from edgepeer.trust.identity import Identity
from edgepeer.trust.names import Role


async def test_a_device_joins(office: Office) -> None:
    string, name = office.registrar.token(), "p0"
    joined = await office.join(name, string)
    assert (joined.where.id, joined.where.fabric, joined.where.broker, joined.anew) == (
        name,
        "greenhouse",
        ("mqtts://b",),
        True,
    )
    identity = Identity.load(joined.directory)
    assert identity.holder.role is Role.PEER
    assert {path.name: path.stat().st_mode & 0o777 for path in joined.directory.iterdir()}["key.pem"] == 0o600
    assert joined.directory.stat().st_mode & 0o777 == 0o700
    assert len(list(joined.directory.iterdir())) == 5
    # Again changes nothing, the token being used up or not.
    kept = {path: path.read_bytes() for path in joined.directory.iterdir()}
    assert not (await office.join(name, string)).anew
    assert kept == {path: path.read_bytes() for path in joined.directory.iterdir()}
    assert f"is used up, by {name}" in await office.refused("another", string)


async def test_one_token_twice_at_once(office: Office) -> None:
    string = office.registrar.token()
    ends = await asyncio.gather(*(office.join(f"p{n}", string) for n in range(6)), return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["Joined", *["TrustError"] * 5]
    assert len(office.registrar.members()) == 1


async def test_the_same_line_twice_at_once_on_one_device(office: Office) -> None:
    """Else one writes its certificate beside the other's key, says that it has joined, and can't any more."""
    string = office.registrar.token()
    ends = await asyncio.gather(*(office.join("p1", string) for _ in range(2)), return_exceptions=True)
    said = [str(end) for end in ends if not isinstance(end, Joined)]
    directory = office.home / "p1" / "fleet"
    assert said == [f"{directory}: another edgepeer makes a member of it just now: wait until it ends"]
    assert Identity.load(directory).holder.id == "p1"
    assert not (await office.join("p1", string)).anew


async def test_fifty_devices_at_once(office: Office) -> None:
    string = office.registrar.token(uses=50)
    gate = asyncio.Semaphore(12)

    async def come(number: int) -> None:
        async with gate:
            await office.join(f"p{number}", string)

    await asyncio.gather(*(come(number) for number in range(50)))
    assert len(office.registrar.members()) == 50


async def test_a_service_without_a_clock_says_so_in_a_line(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clock.time, "time", lambda: 0.0)
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", office.service.port)
        assert not await reader.read()
        writer.close()
    told = [record for record in caplog.records if record.name == "edgepeer.enrol.service"]
    assert [record.getMessage() for record in told] == [
        "connection of 127.0.0.1 closed: this machine's clock says 1970-01-01, which can't be: set it, then try again "
        "(1 so far)"
    ]
    assert told[0].exc_info is None


async def test_without_a_clock(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    string = office.registrar.token()
    before = clock.time.time
    for now, name in ((0.0, "p1"), (4_102_444_800.0, "p2")):

        def other(now: float = now) -> float:
            return now

        # The registrar's clock is right, the device's isn't: they share a process here.
        monkeypatch.setattr(joining, "keep_granted", at_another_time(monkeypatch, other, before))
        await office.join(name, string if name == "p1" else None)
        monkeypatch.setattr(clock.time, "time", other)
        assert Identity.load(office.home / name / "fleet").holder.id == name
        monkeypatch.setattr(clock.time, "time", before)


def at_another_time(monkeypatch: pytest.MonkeyPatch, now: object, before: object):  # type: ignore[no-untyped-def]
    def keep(*arguments):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(clock.time, "time", now)
        try:
            REAL_KEEP(*arguments)
        finally:
            monkeypatch.setattr(clock.time, "time", before)

    return keep


REAL_KEEP = joining.keep_granted


@pytest.mark.parametrize("who", ["stranger", "member", "another fleet of the same name"])
async def test_a_man_in_the_middle_learns_no_secret(office: Office, tmp_path: Path, who: str) -> None:
    if who == "member":  # with a certificate of the right authority, but not for this
        context = (await office.member("mallory")).context(server=True)
    else:
        context = Fleet(tmp_path / "evil").member("mallory").context(server=True)
    context.verify_mode = ssl.CERT_NONE
    string = office.registrar.token()
    async with man_in_the_middle(office, context) as (port, seen):
        with pytest.raises(TrustError) as caught:
            await join(tmp_path / "p1", "127.0.0.1", port, string)
    assert str(caught.value) in (
        f"who answers at 127.0.0.1:{port} has no certificate of the authority that we know: it is somebody else, or "
        "the fleet has another one since (then bring the device in again: edgepeer join HOST STRING); nothing was sent",
        f"peer mallory of greenhouse answers at 127.0.0.1:{port} instead of the enrolment service",
    )
    assert seen  # it has passed the authority's certificate on
    assert string.secret not in seen
    assert not (tmp_path / "p1" / "certificate.pem").exists()
    await office.join("p1", string)


async def test_another_fleets_service(office: Office, tmp_path: Path) -> None:
    async with open_office(tmp_path, role="other") as other:
        said = await other.refused("p1", office.registrar.token())
    assert "is not of the fleet that the join string is for" in said
    assert said.endswith("nothing was sent")


async def test_nobody_is_there(tmp_path: Path, office: Office) -> None:
    string = office.registrar.token()
    with pytest.raises(FabricError, match=r"127.0.0.1:1: connection refused; is `edgepeer fleet serve` running"):
        await join(tmp_path / "p1", "127.0.0.1", 1, string)
    with pytest.raises(FabricError, match="host name not found"):
        await join(tmp_path / "p1", "no-such-host.invalid", 7701, string)


async def test_what_is_wrong_with_the_device(office: Office, tmp_path: Path) -> None:
    string = office.registrar.token()
    assert "id ../p1" not in await office.refused("p1", JoinString(bytes(16), string.token, string.secret))
    with pytest.raises(ConfigError, match=r"id '../p1': must be 1 to 63 letters"):
        await join(tmp_path / "x", "127.0.0.1", office.service.port, string, name="../p1")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match="file/fleet: can't write there: "):
        await join(file / "fleet", "127.0.0.1", office.service.port, string)
    state = tmp_path / "state"
    state.mkdir()
    (state / "identity").write_text("p5 1 1\n")
    with pytest.raises(ConfigError, match="state belongs to peer p5: leave --id out"):
        await join(state / "fleet", "127.0.0.1", office.service.port, string, name="p6")
    assert (await join(state / "fleet", "127.0.0.1", office.service.port, string)).where.id == "p5"
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o777)
    open_to_all.chmod(0o777)
    with pytest.raises(ConfigError, match="others may write there"):
        await join(open_to_all, "127.0.0.1", office.service.port, office.registrar.token())


async def test_what_was_granted_and_could_not_be_kept(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever took another token for it would be told that another device has that name."""
    string, directory = office.registrar.token(), tmp_path / "fleet"

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(joining, "keep", full)
        with pytest.raises(ConfigError, match=r"no space left on device; the fleet has let the device in, .*again$"):
            await join(directory, "127.0.0.1", office.service.port, string, name="p1")
    assert [each.holder.id for each in office.registrar.members()] == ["p1"]
    assert (await join(directory, "127.0.0.1", office.service.port, string, name="p1")).where.id == "p1"
    assert len(office.registrar.members()) == 1
    with monkeypatch.context() as patched:
        patched.setattr(joining, "make_key", full)
        with pytest.raises(ConfigError, match=r"no space left on device; the device has not joined$"):
            await join(tmp_path / "other", "127.0.0.1", office.service.port, office.registrar.token())


async def test_a_member_of_another_fleet_must_mean_it(office: Office, tmp_path: Path) -> None:
    await office.join("p1")
    key = (tmp_path / "p1" / "fleet" / "key.pem").read_bytes()
    async with open_office(tmp_path, role="other") as other:
        string = other.registrar.token()
        assert (
            "is peer p1 of greenhouse, another fleet than the join string is for, or the same"
            in await other.refused("p1", string)
        )
        assert (await other.join("p1", string, again=True)).anew
    assert (tmp_path / "p1" / "fleet" / "key.pem").read_bytes() != key


async def test_who_was_evicted_joins_anew_with_another_key(office: Office) -> None:
    p1 = await office.member("p1")
    office.registrar.evict("p1")
    p1.evictions.accept(office.registrar.evictions)
    # Who is not let in stays who it was.
    kept = {path.name: path.read_bytes() for path in p1.directory.iterdir()}
    string = office.registrar.token()
    assert "not known here" in await office.refused("p1", JoinString(string.authority, string.token, bytes(16)))
    assert kept.items() <= {path.name: path.read_bytes() for path in p1.directory.iterdir()}.items()
    again = await office.member("p1")
    assert sorted(path.name for path in p1.directory.iterdir()) == sorted(kept)
    assert again.holder.serial > p1.holder.serial
    assert again.key.public_key() != p1.key.public_key()
    p1.evictions.accept(office.registrar.evictions)
    assert p1.check(again.certificate).holder.id == "p1"


async def test_no_secret_is_in_a_log(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    string = office.registrar.token()
    await office.refused("p1", JoinString(string.authority, string.token, bytes(15) + b"1"))
    await office.join("p1", string)
    await office.refused("p2", string)
    assert "has joined" in caplog.text
    for shown in (string.text(), string.secret.hex(), string.text()[30:], str(string.secret)):
        assert shown not in caplog.text
    assert string.secret.hex() not in repr(messages.Enrol(string.token, string.secret, b"x", "p1", True))
