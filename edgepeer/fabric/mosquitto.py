"""A real mosquitto as a child of this process: the broker of a large fleet, on this machine.

Keeps nothing on disk but its configuration, in a directory that goes with it. Its queue limits are lifted:
with its defaults it drops messages of QoS 1 under load.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from edgepeer.errors import ConfigError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.rights import patterns
from edgepeer.processes import dies_with_parent
from edgepeer.trust.directory import AUTHORITIES, CERTIFICATE, KEY
from edgepeer.trust.names import Role

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["Mosquitto", "find_mosquitto"]

_READY_S: Final = 5.0
_POLL_S: Final = 0.005
_STOP_S: Final = 2.0
_PBKDF2_ROUNDS: Final = 101  # mosquitto_passwd's own number


def find_mosquitto() -> Path | None:
    """The mosquitto of this machine: on PATH, or where distributions put it."""
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin")
    return Path(found) if found else None


class Mosquitto:
    """One mosquitto, running while its context is open; `stop` and `start` restart it on the same port.

    Args:
        port: 0 takes a free one.
        username, password: what clients must say; without them everybody on this machine is let in.
        identity: of a broker of a fleet, which lets in members of it, as deploy/mosquitto.conf has it.
        operators: ids of those of the fleet.
        home: a directory for its configuration, of which others take care; without, it has one that goes with it.

    Raises:
        ConfigError: mosquitto isn't installed, or does not start; or the identity is not a broker's.
    """

    def __init__(
        self,
        port: int = 0,
        username: str | None = None,
        password: str | None = None,
        identity: Identity | None = None,
        operators: Sequence[str] = (),
        home: Path | None = None,
    ) -> None:
        if (username is None) != (password is None):
            raise ConfigError("broker login: give both a user name and a password, or neither")
        if identity is not None and identity.holder.role is not Role.BROKER:
            raise ConfigError(f"fleet = {identity.directory}: is of {identity.holder}, and not of a broker")
        self._port = port
        self._identity = identity
        self._operators = operators
        self._username, self._password = username, password
        self._home = home
        self._own_home: tempfile.TemporaryDirectory[str] | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> BrokerAddress:
        return BrokerAddress(
            host="127.0.0.1",
            port=self._port,
            username=self._username,
            password=self._password,
            tls=self._identity is not None,
        )

    async def __aenter__(self) -> Mosquitto:
        if self._home is None:
            self._own_home = tempfile.TemporaryDirectory(prefix="edgepeer-mosquitto-")
            self._home = Path(self._own_home.name)
        try:
            await self.start()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        finally:
            if self._own_home is not None:
                self._own_home.cleanup()
                self._home = self._own_home = None

    async def start(self) -> None:
        """Start it and return when it accepts connections."""
        home = self._home
        assert home is not None, "use it as a context manager"
        program = find_mosquitto()
        if program is None:
            raise ConfigError("mosquitto is not installed: apt install mosquitto, or use the embedded broker")
        self._port = _free_port(self._port)
        (home / "mosquitto.conf").write_text(self._configuration(home))
        with (home / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                program,
                "-c",
                home / "mosquitto.conf",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # It has nothing to write. Of 60 SIGTERM just when it has begun to listen it has not heeded one.
                preexec_fn=dies_with_parent(signal.SIGKILL),
            )
        try:
            async with asyncio.timeout(_READY_S):
                while not await self._accepts():  # noqa: ASYNC110  # a child process sets no Event
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ConfigError(f"mosquitto on port {self._port}: not ready within {_READY_S} s") from None

    async def stop(self) -> None:
        """End it, if it runs, and wait until it has."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except BaseException as error:  # where nobody waits any more, it ends at once
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            if not isinstance(error, TimeoutError):
                raise
            await process.wait()

    async def _accepts(self) -> bool:
        process = self._process
        if process is None or process.returncode is not None:
            assert self._home is not None
            lines = (self._home / "log").read_text(errors="replace").split("\n")
            said = next((line for line in lines if "rror" in line), "it ended at once")
            raise ConfigError(f"mosquitto on port {self._port}: {said.strip()}")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    def _configuration(self, home: Path) -> str:
        lines = [
            f"listener {self._port} 127.0.0.1",
            "persistence false",
            "max_queued_messages 1000000",  # with 0, no limit, 2.0.11 hangs up on who writes where it may not
            "max_inflight_messages 0",
            "set_tcp_nodelay true",
            "log_dest stderr",
            "log_type error",
            "log_type warning",
        ]
        if os.geteuid() == 0:
            # It would become user 'mosquitto', who may not read our directory.
            lines.append(f"user {pwd.getpwuid(0).pw_name}")
        if self._identity is not None:
            (home / "acl").touch(mode=0o600)
            (home / "acl").write_text("\n".join(patterns(self._identity.holder.fabric, self._operators)) + "\n")
            lines += [
                f"cafile {self._identity.directory / AUTHORITIES}",
                f"certfile {self._identity.directory / CERTIFICATE}",
                f"keyfile {self._identity.directory / KEY}",
                "tls_version tlsv1.3",
                "require_certificate true",
                "use_identity_as_username true",
                "allow_anonymous false",
                f"acl_file {home / 'acl'}",
            ]
        elif self._username is None or self._password is None:
            lines.append("allow_anonymous true")
        else:
            (home / "passwords").touch(mode=0o600)
            (home / "passwords").write_text(f"{self._username}:{_hashed(self._password)}\n")
            lines += ["allow_anonymous false", f"password_file {home / 'passwords'}"]
        return "\n".join(lines) + "\n"


def _hashed(password: str) -> str:
    """The password as mosquitto_passwd writes it, which isn't everywhere where mosquitto is."""
    salt = secrets.token_bytes(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _PBKDF2_ROUNDS, 64)
    return f"$7${_PBKDF2_ROUNDS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def _free_port(wanted: int) -> int:
    """The wanted port, or any for 0, free at this moment: who answers there later is our mosquitto."""
    try:
        with socket.create_server(("127.0.0.1", wanted)) as probe:
            return int(probe.getsockname()[1])
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"mosquitto on port {wanted}: {reason}; choose another, or 0 for any") from error
