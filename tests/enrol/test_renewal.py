"""Certificates are renewed before they end, and authorities are rotated under those who hold them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from pathlib import Path

import pytest
from office import Office, at_its_own_port, man_in_the_middle, renew_at, until

from edgepeer.enrol import client, renewal
from edgepeer.enrol.joining import follow
from edgepeer.enrol.registrar import Registrar
from edgepeer.enrol.renewal import due, keep_renewed, renew_now
from edgepeer.enrol.service import EnrolmentService
from edgepeer.errors import ConfigError, TrustError
from edgepeer.trust import clock
from edgepeer.trust.files import write_whole
from edgepeer.trust.identity import Identity


async def test_a_certificate_is_renewed_over_mutual_tls(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    p1, later = await office.member("p1"), time.time() + 200 * 86400
    told: list[int] = []
    p1.on_change(lambda: told.append(p1.holder.serial))
    before = p1.holder.serial
    assert not due(p1)
    monkeypatch.setattr(clock.time, "time", lambda: later)
    await renew_at(office, p1)
    assert p1.holder.serial > before
    assert told == [p1.holder.serial]
    assert Identity.load(p1.directory).holder == p1.holder
    office.registrar.evict("p1")
    with pytest.raises(TrustError, match="peer p1 of greenhouse was evicted"):
        await renew_at(office, p1)


async def test_nobody_but_the_service_renews(office: Office, tmp_path: Path) -> None:
    p1, mallory = await office.member("p1"), await office.member("mallory")
    async with man_in_the_middle(office, mallory.context(server=True)) as (port, seen):
        with pytest.raises(TrustError, match="peer mallory of greenhouse answers at"):
            await client.renew(p1, "127.0.0.1", port)
        assert not seen


async def test_a_member_keeps_itself_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with at_its_own_port(tmp_path, lifetime_s=900) as office:
        p1, now = await office.member("p1"), time.time()
        monkeypatch.setattr(clock.time, "time", lambda: now)
        task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0))
        for _ in range(3):
            ends = p1.ends
            now = ends - 310
            assert not due(p1)
            now = ends - 290
            await until(lambda ends=ends: p1.ends > ends)
            assert p1.ends == pytest.approx(now + 900, abs=2)
        task.cancel()


async def test_by_a_clock_that_is_far_ahead_the_service_is_not_asked_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "edgepeer.enrol.renewal")
    async with at_its_own_port(tmp_path, lifetime_s=9000) as office:
        p1 = await office.member("p1")
        monkeypatch.setattr(renewal, "due", lambda identity: looks.append(None) or True)
        looks: list[None] = []
        task = asyncio.create_task(keep_renewed(p1, look_s=0.001, spread_s=0))
        await until(lambda: "has a new certificate" in caplog.text)
        seen = len(looks)
        await until(lambda: len(looks) > seen + 20)
        assert caplog.text.count("has a new certificate") == 1
        task.cancel()


async def test_who_has_no_clock_asks_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It can't know when a third is left; else the others, who have one, would refuse it one day."""
    caplog.set_level(logging.INFO, "edgepeer.enrol.renewal")
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
        certificate = p1.certificate
        monkeypatch.setattr(renewal, "believable", lambda: None)
        asked: list[bytes] = []
        look = office.registrar.renew
        monkeypatch.setattr(office.registrar, "renew", lambda held: (asked.append(held), look(held))[1])
        task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0, blind_s=0.1))
        await until(lambda: len(asked) > 2)
        assert p1.certificate == certificate
        assert "has a new certificate" not in caplog.text
        later = time.time() + 700  # by the service's clock
        monkeypatch.setattr(time, "time", lambda: later)
        await until(lambda: p1.certificate != certificate)
        task.cancel()


async def test_the_authority_is_rotated_under_a_member(tmp_path: Path) -> None:
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1, old = await office.member("p1"), office.registrar.token()
        task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0))
        office.registrar.rotate()
        p1.evictions.accept(office.registrar.evictions)  # as it comes over MQTT, or from a neighbour
        await until(lambda: p1.authority.der == office.registrar.authorities[-1])
        await office.join("p2", old)
        office.registrar.finish()
        p1.evictions.accept(office.registrar.evictions)
        p2 = Identity.load(tmp_path / "p2" / "fleet")
        p2.evictions.accept(office.registrar.evictions)
        assert p1.check(p2.certificate).holder.id == "p2"
        await renew_now(p1)
        assert "of before the authority was rotated" in await office.refused("p3", old)
        task.cancel()


async def test_who_is_let_in_by_no_broker_hears_where_the_fleet_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "edgepeer")
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
        certificate, there = p1.certificate, p1.where
        told: list[tuple[str, ...]] = []
        p1.on_change(lambda: told.append(p1.where.broker))
        office.registrar.move(broker=("mqtts://c", "mqtts://d:1"), service=there.service)
        task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0))
        p1.reached = False
        await until(lambda: told)
        task.cancel()
        assert told == [("mqtts://c", "mqtts://d:1")]
        assert Identity.load(p1.directory).where == p1.where
        assert (p1.where.service, p1.certificate) == (there.service, certificate)
        said = [record for record in caplog.records if record.levelno >= logging.INFO]
        assert [record.getMessage() for record in said[-1:]] == [
            f"the fleet has moved: broker mqtts://c,mqtts://d:1, enrolment service {there.service}"
        ]
        assert "p1 asks where its fleet is, and has nothing to renew" in caplog.text


async def test_the_service_is_not_asked_by_who_has_a_broker_nor_without_end(tmp_path: Path) -> None:
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
        asked: list[bytes] = []
        renew = office.registrar.renew
        office.registrar.renew = lambda held: (asked.append(held), renew(held))[1]  # type: ignore[method-assign]
        looks: list[None] = []
        p1.refresh = lambda: bool(looks.append(None))  # type: ignore[method-assign]
        task = asyncio.create_task(keep_renewed(p1, look_s=0.001, spread_s=0))
        for reached, questions in ((None, 0), (True, 0), (False, 1), (True, 1), (False, 2)):
            p1.reached = reached
            seen = len(looks)
            await until(lambda seen=seen: len(looks) > seen + 50)
            assert len(asked) == questions, reached
        task.cancel()


async def test_a_service_that_is_away_is_no_news_in_an_outage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
    caplog.set_level(logging.DEBUG, "edgepeer.enrol.renewal")
    task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0))
    p1.reached = False
    await until(lambda: "connection refused" in caplog.text)
    task.cancel()
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


async def test_who_finds_its_fleet_at_the_service_of_now(tmp_path: Path) -> None:
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
        office.registrar.move(broker=("mqtts://c",), service="127.0.0.1:1")
        host, port = "127.0.0.1", office.service.port
        assert (await follow(p1.directory, host, port)).anew
        assert not (await follow(p1.directory, host, port)).anew
        assert Identity.load(p1.directory).where.service == "127.0.0.1:1"
        assert p1.refresh()  # a peer that runs meanwhile
        assert p1.where.broker == ("mqtts://c",)
        office.registrar.evict("p1")
        with pytest.raises(TrustError, match="peer p1 of greenhouse was evicted"):
            await follow(p1.directory, host, port)
        with pytest.raises(ConfigError, match="no fleet was joined there"):
            await follow(tmp_path / "nobody", host, port)


@pytest.mark.parametrize("broker", [("mqtt://c",), ("mqtts://c:0",), ("c",)])
async def test_where_nobody_could_go_the_fleet_is_not(office: Office, broker: tuple[str, ...]) -> None:
    p1 = await office.member("p1")
    office.registrar.move(broker=broker, service="127.0.0.1:1")
    kept = Identity.load(p1.directory).where
    with pytest.raises(TrustError, match="says that the fleet has moved, but not where to: broker"):
        await renew_now(p1, ("127.0.0.1", office.service.port))
    assert p1.where == kept == Identity.load(p1.directory).where


async def test_who_can_t_keep_a_certificate_asks_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be listed as who has one of the new authority, and nobody be warned before the old one ends."""
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
        office.registrar.rotate()
        p1.evictions.accept(office.registrar.evictions)

        def sync(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        before = {path.name for path in p1.directory.iterdir()}
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", sync)
            with pytest.raises(
                TrustError, match=r"fleet: can't write a new certificate there: no space left on device"
            ):
                await renew_now(p1)
        assert {path.name for path in p1.directory.iterdir()} == before
        with pytest.raises(ConfigError, match=r"no certificate of the new authority yet \(p1\): start them"):
            office.registrar.finish()
        await renew_now(p1)
        assert {path.name for path in p1.directory.iterdir()} == before
        office.registrar.finish()


async def test_the_old_authority_ends_while_somebody_connects(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    office.registrar.rotate()
    string, look = office.registrar.token(), Registrar.authorities.fget
    assert look is not None

    def and_then_it_ends(registrar: Registrar) -> tuple[bytes, ...]:
        found: tuple[bytes, ...] = look(registrar)
        if len(found) > 1:  # by `rotate-ca --finish`, another process
            registrar.finish(force=True)
        return found

    monkeypatch.setattr(Registrar, "authorities", property(and_then_it_ends))
    p1 = await office.member("p1", string)
    assert [p1.authority.der] == list(office.registrar.authorities)
    assert "mistake" not in caplog.text


async def test_who_was_off_when_the_authority_was_rotated(tmp_path: Path) -> None:
    """The broker has a certificate of the new one by then, and what would say so comes through the broker."""
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
        office.registrar.rotate()
        p1.doubted = True
        task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=1000))
        await until(lambda: p1.authority.der == office.registrar.authorities[-1])
        assert not p1.doubted
        certificate = p1.certificate
        p1.doubted = True  # again, with nothing new: whoever shows us something else is no broker of ours
        own = Identity.load(p1.directory)
        own.evictions.accept(office.registrar.evictions)
        assert own.certificate == certificate
        office.registrar.evict(p1.holder.id)
        p1.evictions.accept(office.registrar.evictions)
        await until(lambda: p1.evicted)
        task.cancel()
    assert p1.certificate == certificate


async def test_a_service_that_is_away_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
        port = office.service.port
        office.registrar.rotate()
        evictions = office.registrar.evictions
    p1.evictions.accept(evictions)
    task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0))
    await until(lambda: "connection refused; is `edgepeer fleet serve` running" in caplog.text)
    assert not task.done()
    registrar = Registrar.open(tmp_path / "own")
    async with EnrolmentService(registrar, "127.0.0.1", port):
        await renew_now(p1)
    registrar.close()
    task.cancel()
    assert p1.authority.der != p1.evictions.authorities[0].der


async def test_who_has_expired_says_so_though_the_service_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """To start the service is no cure any more."""
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
    later = time.time() + 2000
    monkeypatch.setattr(time, "time", lambda: later)
    task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0))
    await until(lambda: "connection refused" in caplog.text)
    task.cancel()
    (line,) = [record.getMessage() for record in caplog.records if "connection refused" in record.getMessage()]
    assert "of peer p1 of greenhouse has expired on 20" in line
    assert "edgepeer join HOST STRING; nor is there a new one: enrolment at" in line


async def test_nothing_that_is_put_there_ends_the_renewal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
        good = {path: path.read_bytes() for path in p1.directory.iterdir()}
        office.registrar.rotate()
        task = asyncio.create_task(keep_renewed(p1, look_s=0.01, spread_s=0))
        where, place = good[p1.directory / "fleet.toml"], f"127.0.0.1:{office.service.port}".encode()
        for name, wrong, told in (
            (
                "fleet.toml",
                where.replace(place, b"hub:port"),
                "fleet.toml: service = hub:port: must be",
            ),
            ("fleet.toml", b"a = " + b"[" * 10_000, "fleet.toml: "),
            ("fleet.toml", b"\xff", "can't decode byte"),
            ("certificate.pem", b"", "certificate.pem: holds no certificate"),
            ("authorities.pem", b"\0", "authorities.pem: "),
            ("evictions", b"\x93\x01", "evictions: an eviction list is malformed"),
        ):
            caplog.clear()
            write_whole(p1.directory / name, wrong)
            write_whole(p1.directory / "certificate.pem", b"" if name == "certificate.pem" else b"another")
            await until(lambda told=told: told in caplog.text)
            assert "Traceback" not in caplog.text
            for path, data in good.items():
                write_whole(path, data, private=path.name == "key.pem")
        # Who it is it knows: its key is needed on the disk by who starts next.
        before = p1.certificate
        (p1.directory / "key.pem").unlink()
        p1.evictions.accept(office.registrar.evictions)
        await until(lambda: p1.certificate != before)
        write_whole(p1.directory / "key.pem", good[p1.directory / "key.pem"], private=True)
        assert not task.done()
        task.cancel()


async def test_a_service_that_is_away_is_asked_ever_more_rarely_about_a_strange_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_its_own_port(tmp_path, lifetime_s=1000) as office:
        p1 = await office.member("p1")
    p1.doubted, looks, refresh = True, 0, p1.refresh

    def count() -> None:
        nonlocal looks
        looks += 1
        refresh()

    monkeypatch.setattr(p1, "refresh", count)
    monkeypatch.setattr("edgepeer.enrol.renewal._AT_FIRST_S", 1000.0)
    task = asyncio.create_task(keep_renewed(p1, look_s=1e-4, spread_s=1000))
    await until(lambda: "connection refused" in caplog.text)
    asked = looks
    await until(lambda: looks >= asked + 20)
    task.cancel()
    assert caplog.text.count("connection refused") == 1
