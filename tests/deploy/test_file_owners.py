"""Root looks after a service's keys: what it writes there is the service's, and it can use what is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgepeer.trust.files import read_private, write_whole

SERVICE = 65532

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_what_root_writes_in_a_services_directory_is_the_services(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    write_whole(key, b"root's", private=True)
    assert key.stat().st_uid == 0
    os.chown(tmp_path, SERVICE, SERVICE)
    write_whole(key, b"its", private=True)
    assert (key.stat().st_uid, key.stat().st_gid, key.stat().st_mode & 0o777) == (SERVICE, SERVICE, 0o600)
    assert read_private(key) == b"its"
