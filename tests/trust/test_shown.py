"""What TLS shows is what a process holds, on any system."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from fleets import Fleet

from edgepeer.trust.directory import FILES


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "fleet")


def no_such_call(*_: object) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda patch: None,
        lambda patch: patch.setattr(os, "memfd_create", no_such_call),
        lambda patch: patch.delattr(os, "memfd_create"),
        lambda patch: patch.setattr(os, "memfd_create", lambda _: os.open(os.devnull, os.O_WRONLY)),
    ],
    ids=["memory", "a kernel that is kept from it", "no Linux", "it can't be opened by its number"],
)
def test_a_certificate_is_shown_without_the_files(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[pytest.MonkeyPatch], None]
) -> None:
    p1, p2 = fleet.member("p1"), fleet.member("p2")
    for name in FILES:
        (p1.directory / name).unlink()
    with monkeypatch.context() as patch:
        spoil(patch)
        context = p1.context(server=True)
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(there, here, server_side=True)
    client = p2.context(server=False).wrap_bio(here, there)
    for end in (client, server, client, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert p2.check(client.getpeercert(binary_form=True) or b"").holder == p1.holder
