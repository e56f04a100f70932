"""The role for Ansible: clean, and run twice against a directory of this machine, with a real enrolment service."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from devices import DEPLOY, REPOSITORY, Device
from ports import free_port
from real_programs import edgepeer

ROLE: Final = DEPLOY / "ansible"
TOOLS: Final = Path(sys.executable).parent
SEARCHED: Final = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"


def tool(name: str) -> str:
    found = shutil.which(name, path=SEARCHED)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.slow
def test_the_role_is_clean(tmp_path: Path) -> None:
    copy = tmp_path / "ansible"
    shutil.copytree(ROLE, copy)
    checked = subprocess.run(
        [tool("ansible-lint"), "--offline", "--strict", "--nocolor"],
        cwd=copy,
        env={**os.environ, "PATH": SEARCHED, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
async def test_a_second_run_changes_nothing(tmp_path: Path, wheel: Path) -> None:
    play = tool("ansible-playbook")
    device, home = Device(tmp_path / "device"), tmp_path / "fleet"
    # The role says DESTDIR itself.
    environment = {name: value for name, value in device.environment.items() if name != "DESTDIR"}
    authority = ["--home", str(home)]
    place = f"127.0.0.1:{free_port()}"
    founded = ("fleet", "init", "lab", "--broker", "127.0.0.1", "--service", place, *authority)
    async with edgepeer(*founded, home=tmp_path) as founding:
        assert await founding.end() == 0, founding.everything()
    serving = edgepeer("fleet", "serve", "--listen", place, *authority, home=tmp_path)
    async with serving as service:
        await service.said("ready at")
        settings = {
            "ansible_python_interpreter": sys.executable,
            "ansible_become": False,
            "edgepeer_root": str(device.root),
            "edgepeer_wheel": str(wheel),
            "edgepeer_settings": '[common]\nlog_level = "debug"\n',
            "edgepeer_authority_command": str(tmp_path / "edgepeer"),
            "edgepeer_authority_arguments": authority,
            "edgepeer_authority_become": False,
        }
        program = tmp_path / "edgepeer"
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH="{REPOSITORY}:$PYTHONPATH" exec "{sys.executable}" -m edgepeer "$@"\n'
        )
        program.chmod(0o755)
        (tmp_path / "settings.json").write_text(json.dumps(settings))
        (tmp_path / "inventory").write_text("[edgepeer_devices]\npi ansible_connection=local\n")
        command = [play, "-i", tmp_path / "inventory", "-e", f"@{tmp_path}/settings.json", ROLE / "site.yml", "-v"]
        counts = []
        for _ in range(2):
            done = await asyncio.to_thread(
                subprocess.run,
                [*map(str, command)],
                cwd=tmp_path,
                env={**environment, "PATH": SEARCHED, "HOME": str(tmp_path), "ANSIBLE_NOCOLOR": "1"},
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr + service.everything()
            assert "epj1-" not in done.stdout + done.stderr
            recap = re.search(r"^pi\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=0\s+failed=0", done.stdout, re.MULTILINE)
            assert recap, done.stdout
            counts.append(int(recap[2]))
    assert counts[0] > 5
    assert counts[1] == 0, done.stdout
    assert device.current == "1"
    joined = device.root / "var/lib/edgepeer/fleet"
    assert (joined / "key.pem").stat().st_mode & 0o777 == 0o600
    assert 'log_level = "debug"' in (device.root / "etc/edgepeer/edgepeer.toml").read_text()
