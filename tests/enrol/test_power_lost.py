"""The power fails, or the disk is full, at each step of what writes to it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from office import Office, renew_at

from edgepeer.errors import ConfigError
from edgepeer.trust.files import write_whole
from edgepeer.trust.identity import Identity


class PowerLost(BaseException):
    pass


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Power fails at that write or rename of those to come: the first number; the second counts them."""
    state = [-1, 0]

    def failing(real):  # type: ignore[no-untyped-def]
        def call(*arguments, **named):  # type: ignore[no-untyped-def]
            if state[0] == state[1]:
                raise PowerLost
            state[1] += 1
            return real(*arguments, **named)

        return call

    monkeypatch.setattr(os, "fsync", failing(os.fsync))
    monkeypatch.setattr(Path, "replace", failing(Path.replace))
    monkeypatch.setattr(Path, "unlink", failing(Path.unlink))
    return state


async def test_power_lost_at_each_step_of_joining(office: Office, writes: list[int]) -> None:
    string, steps = office.registrar.token(), 0
    while True:
        writes[:] = [steps, 0]
        try:
            await office.join("p1", string)
            break
        except PowerLost:
            steps += 1
            writes[:] = [-1, 0]
            with contextlib.suppress(ConfigError):  # it is one of the fleet, or it isn't
                Identity.load(office.home / "p1" / "fleet")
    assert steps > 10
    writes[:] = [-1, 0]
    assert Identity.load(office.home / "p1" / "fleet").holder.id == "p1"
    assert len(office.registrar.members()) == 1


async def test_power_lost_at_each_step_of_joining_anew(office: Office, writes: list[int]) -> None:
    old = await office.member("p1")
    office.registrar.evict("p1")
    old.evictions.accept(office.registrar.evictions)
    string, steps = office.registrar.token(), 0
    while True:
        writes[:] = [steps, 0]
        try:
            await office.join("p1", string)
            break
        except PowerLost:
            steps += 1
    writes[:] = [-1, 0]
    assert steps > 10
    assert Identity.load(old.directory).holder.serial > old.holder.serial
    assert len(list(old.directory.iterdir())) == 5


async def test_power_lost_at_each_step_of_renewal_and_of_a_new_list(office: Office, writes: list[int]) -> None:
    p1 = await office.member("p1")
    office.registrar.rotate()
    steps = 0
    while True:
        p1 = Identity.load(p1.directory)
        writes[:] = [steps, 0]
        try:
            await renew_at(office, p1)
            break
        except PowerLost:
            steps += 1
            writes[:] = [-1, 0]
            assert Identity.load(p1.directory).holder.id == "p1"
    writes[:] = [-1, 0]
    assert steps >= 3
    assert Identity.load(p1.directory).authority.der == office.registrar.authorities[-1]


async def test_a_full_disk(office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    p1 = await office.member("p1")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as there:
        there.setattr(os, "fsync", full)
        said = await office.refused("p2")
        assert "can't write there: no space left on device; the device has not joined" in said
        before = p1.holder
        with pytest.raises(OSError, match="No space"):
            await renew_at(office, p1)
        assert p1.holder == before
        office.registrar.rotate()
        assert p1.evictions.accept(office.registrar.evictions)  # it counts, and is said to be kept nowhere
        assert "can't be kept in" in caplog.text
    assert not [path for path in p1.directory.iterdir() if path.name.startswith(".")]
    assert Identity.load(p1.directory).holder == before
    with pytest.raises(OSError, match="Is a directory"):
        write_whole(p1.directory, b"")
