"""The registrar's file: an SQLite database, so that each change is in it as a whole or not at all, whenever the power
fails and however many processes write; only its owner can read it, for it holds the authority's key."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from edgepeer.errors import ConfigError, TrustError
from edgepeer.processes import os_reason

__all__ = ["PUT_BACK", "Database", "has_tables"]

PUT_BACK: Final = "if the fleet was here, put its copy back"
_EMPTY: Final = f"holds no fleet any more: {PUT_BACK}"
_PATIENCE_S: Final = 5.0
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
    """CREATE TABLE IF NOT EXISTS authorities (
        id INTEGER PRIMARY KEY, certificate BLOB NOT NULL, key BLOB NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS tokens (
        id BLOB PRIMARY KEY, secret BLOB NOT NULL, role TEXT NOT NULL, name TEXT,
        uses INTEGER NOT NULL, made REAL NOT NULL, ends REAL NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS joined (
        token BLOB NOT NULL, key BLOB NOT NULL, serial INTEGER NOT NULL, PRIMARY KEY (token, key))""",
    """CREATE TABLE IF NOT EXISTS certificates (
        serial INTEGER PRIMARY KEY, role TEXT NOT NULL, name TEXT NOT NULL, key BLOB NOT NULL,
        certificate BLOB NOT NULL, authority INTEGER NOT NULL, ends REAL NOT NULL, out INTEGER NOT NULL DEFAULT 0)""",
    # When, for people: an earlier version, to which one may have to go back, knows only the column `out`.
    "CREATE TABLE IF NOT EXISTS evictions (serial INTEGER PRIMARY KEY, at INTEGER NOT NULL)",
    "CREATE INDEX IF NOT EXISTS holders ON certificates (role, name)",
)


class Database:
    """The file, open. May be used by several threads, one at a time."""

    def __init__(self, path: Path, *, make: bool = False) -> None:
        """Open it, or make it.

        Raises:
            ConfigError: there is none, or others can read it; TrustError: it can't be used.
        """
        self.path: Final = path
        self._make = make
        self._lock = threading.RLock()
        try:
            if make and not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & 0o077:
                raise ConfigError(f"{path}: others can read the fleet's key (mode {mode:o}): chmod 600 {path}")
            if not os.access(path, os.R_OK):
                raise PermissionError
        except FileNotFoundError:
            raise ConfigError(
                f"{path}: there is no fleet here: `edgepeer fleet init NAME --broker HOST` makes one, or --home says "
                "where it is"
            ) from None
        except PermissionError:
            raise ConfigError(f"{path}: can't open it: permission denied; start as the user whose it is") from None
        except OSError as error:
            raise ConfigError(f"{path}: can't open it: {os_reason(error)}") from None
        with self._named():
            self._sql, self._seen = self._open()

    def _open(self) -> tuple[sqlite3.Connection, object]:
        stamp = self._stamp()
        sql = sqlite3.connect(self.path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
        try:
            sql.execute("PRAGMA synchronous = EXTRA")
            sql.execute("PRAGMA trusted_schema = OFF")
        except BaseException:
            sql.close()
            raise
        return sql, stamp

    def _stamp(self) -> object:
        """What tells whether the file is the one that it was.

        Raises:
            TrustError: there is none any more. SQLite would make one, in which there is no fleet.
        """
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise TrustError(f"{self.path}: can't find it any more: {os_reason(error)}; {PUT_BACK}") from None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _look_again(self) -> None:
        """Somebody else may have written the file, or put another in its place, a copy of before say: of that SQLite
        takes no notice, and would write what it remembers of the one into the other."""
        if self._stamp() != self._seen:
            self._sql.close()
            self._sql, self._seen = self._open()

    def close(self) -> None:
        with self._lock:
            self._sql.close()

    @contextlib.contextmanager
    def or_closed(self) -> Iterator[None]:
        """Whoever opens it and then can't use it does not leave it open."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """All that is done within is done, or nothing. Nobody else changes anything meanwhile.

        Raises:
            TrustError: it can't be written; nothing has changed.
        """
        with self._lock, self._named():
            self._look_again()
            self._sql.execute("BEGIN IMMEDIATE")
            try:
                if not (self._make or has_tables(self._sql)):
                    raise TrustError(f"{self.path}: {_EMPTY}")
                for table in _TABLES:
                    self._sql.execute(table)
                yield self._sql
                self._sql.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._sql.execute("ROLLBACK")
                raise
            self._seen = self._stamp()

    @contextlib.contextmanager
    def look(self) -> Iterator[sqlite3.Connection]:
        """Read only, all as of one moment."""
        with self._lock, self._named():
            self._look_again()
            self._sql.execute("BEGIN")
            try:
                yield self._sql
            finally:
                with contextlib.suppress(sqlite3.Error):
                    self._sql.execute("ROLLBACK")

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            emptied = str(error).startswith("no such table")
            raise TrustError(f"{self.path}: {_EMPTY if emptied else f'{error}; nothing was changed'}") from None


def has_tables(sql: sqlite3.Connection) -> bool:
    """Whether there has ever been a fleet in it."""
    return bool(sql.execute("SELECT count(*) FROM sqlite_master WHERE name = 'facts'").fetchone()[0])
