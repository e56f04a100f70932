"""The authority of a fleet: makes tokens, issues and renews certificates, evicts, rotates itself.

Whatever it promises is in its database before it says so. What it has promised once it says again: a device whose
answer was lost asks with the same key and gets the same certificate, until the token expires.

The authority is rotated in two steps. First there are two: the new one issues, both count, and members take a new
certificate as soon as they hear of it. When all have one, the old one is dropped.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from edgepeer.enrol.database import PUT_BACK, Database, has_tables
from edgepeer.enrol.messages import Granted
from edgepeer.enrol.strings import TOKEN_BYTES, JoinString
from edgepeer.errors import ConfigError, TrustError
from edgepeer.printable import printable
from edgepeer.processes import os_reason
from edgepeer.readable import readable
from edgepeer.trust.certificates import (
    LIFETIME_S,
    Authority,
    check,
    expired,
    issue,
    key_bytes,
    key_of_request,
    load_key,
    make_authority,
    make_key,
    private_pem,
    revocations,
)
from edgepeer.trust.clock import believable, certain_time, date, minute
from edgepeer.trust.directory import AUTHORITY, CERTIFICATE, JOIN_ANEW, Whereabouts
from edgepeer.trust.evictions import LONGEST, Listed, eviction, sign_list
from edgepeer.trust.files import make_private_directory
from edgepeer.trust.names import LONGEST_ID, Holder, Role, is_name

__all__ = ["Issued", "Registrar", "Token"]

_MOST_USES: Final = 4096
_NAMESAKES: Final = 4096
_FLEET: Final = "fleet"
"""The name of the fact that is _Facts."""
_OF_BEFORE: Final = "tokens of before"
"""The ids of those that were good as the rotation began: in their strings is the old authority."""
_MADE_BY: Final = {
    Role.PEER: "edgepeer fleet token",
    Role.BROKER: "edgepeer fleet token --role broker",
    Role.OPERATOR: "edgepeer fleet operator add NAME",
    Role.VIEWER: "edgepeer fleet token --role viewer",
}


@readable
class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet is."""

    fabric: str
    broker: tuple[str, ...]
    service: str
    lifetime_s: float
    """Of certificates."""


@dataclass(frozen=True)
class Issued:
    """The newest certificate of a member, for lists."""

    holder: Holder
    ends: float
    evicted: bool
    authority: int
    """Which one has issued it; the highest number is the newest."""
    token: str | None
    """With which it came in, if that is still known: no secret."""


@dataclass(frozen=True)
class Token:
    """A token that still lets somebody in, for lists."""

    id: str
    role: Role
    name: str | None
    left: int
    """Uses."""
    ends: float


class Registrar:
    """A fleet's authority, on the machine that it lives on."""

    def __init__(self, database: Database) -> None:
        self._database: Final = database
        with database.or_closed():
            with database.look() as sql:
                facts = _fact(sql, _FLEET) if has_tables(sql) else None
            if facts is None:
                raise ConfigError(
                    f"{database.path}: holds no fleet: {PUT_BACK}; else `edgepeer fleet init NAME --broker HOST` makes "
                    "one"
                )
            read = msgspec.json.decode(facts, type=_Facts)
            self.fabric: Final = read.fabric
            self._lifetime_s: Final = read.lifetime_s

    @classmethod
    def open(cls, home: Path) -> Self:
        """The authority that lives there.

        Raises:
            ConfigError: none does; TrustError: its database can't be used.
        """
        return cls(Database(home / AUTHORITY))

    @classmethod
    def found(
        cls, home: Path, fabric: str, *, broker: tuple[str, ...], service: str, lifetime_s: float = LIFETIME_S
    ) -> Self:
        """Found a fleet there; the same again changes nothing.

        Raises:
            ConfigError: another lives there, or nobody can; TrustError: it can't be written.
        """
        try:
            make_private_directory(home)
        except OSError as error:
            raise ConfigError(f"home = {home}: can't make it: {os_reason(error)}; say another --home") from None
        facts = _Facts(fabric=fabric, broker=broker, service=service, lifetime_s=lifetime_s)
        database = Database(home / AUTHORITY, make=True)
        with database.or_closed(), database.change() as sql:
            there = _fact(sql, _FLEET)
            if there is None:
                _refuse_orphans(home)
                certain_time()
                _note(sql, _FLEET, msgspec.json.encode(facts))
                _add_authority(sql, fabric)
                _sign(sql, fabric)
            elif msgspec.json.decode(there, type=_Facts) != facts:
                other = msgspec.json.decode(there, type=_Facts)
                raise ConfigError(
                    f"home = {home}: fleet {other.fabric} lives there, with broker {','.join(other.broker)}, service "
                    f"{other.service} and a lifetime of {other.lifetime_s / 86400:g} days: choose another --home, or "
                    "say the same again; where broker or service are elsewhere by now: edgepeer fleet move"
                )
        return cls(database)

    def close(self) -> None:
        self._database.close()

    @property
    def service(self) -> str:
        """host:port where devices find it."""
        with self._database.look() as sql:
            return _facts(sql).service

    @property
    def broker(self) -> tuple[str, ...]:
        """URLs of the fleet's, the best first."""
        with self._database.look() as sql:
            return _facts(sql).broker

    @property
    def authorities(self) -> tuple[bytes, ...]:
        """DER, the one that issues last."""
        with self._database.look() as sql:
            return tuple(row[1] for row in _authorities(sql))

    @property
    def evictions(self) -> bytes:
        """The signed list."""
        with self._database.look() as sql:
            return _fact(sql, "evictions") or b""

    def where(self, role: Role, name: str) -> Whereabouts:
        """What a member's fleet.toml says."""
        with self._database.look() as sql:
            return _where(sql, role, name)

    def move(self, *, broker: tuple[str, ...], service: str) -> bool:
        """Let devices look for the broker, and for the service, there from now on: members hear of it whenever they ask
        the service. Whether that is elsewhere than before.

        Raises:
            TrustError: it can't be written.
        """
        with self._database.change() as sql:
            facts = _facts(sql)
            moved = msgspec.structs.replace(facts, broker=broker, service=service)
            _note(sql, _FLEET, msgspec.json.encode(moved))
        return moved != facts

    # -- letting in ----------------------------------------------------------------------------------------

    def token(
        self, *, role: Role = Role.PEER, name: str | None = None, uses: int = 1, ttl_s: float = 3600
    ) -> JoinString:
        """A token that lets so many devices in, for so long.

        Raises:
            ConfigError: the name can't be, or is taken; TrustError: it can't be written.
        """
        if name is not None:
            _check_name(role, name)
            if uses != 1:
                raise ConfigError(f"uses = {uses}: only one device can be {name}")
        with self._database.change() as sql:
            now = certain_time()
            if name is not None:
                _refuse_taken(sql, self.fabric, role, name, b"", now)
            string = JoinString.fresh(_authorities(sql)[-1][1])
            sql.execute("DELETE FROM tokens WHERE ends < ?", (now - LIFETIME_S,))
            sql.execute("DELETE FROM joined WHERE token NOT IN (SELECT id FROM tokens)")
            sql.execute(
                "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?)",
                (string.token, _hashed(string.secret), role, name, min(uses, _MOST_USES), now, now + ttl_s),
            )
        return string

    def withdraw(self, token: str) -> Token:
        """Let a token, by its id as in lists, let nobody in any more. Returns what it was.

        Raises:
            ConfigError: none is called so that still lets somebody in; TrustError: it can't be written.
        """
        with self._database.change() as sql:
            good = _open_tokens(sql, certain_time())
            found = next((each for each in good if each.id == token), None)
            if found is None:
                others = f"; those that do are {', '.join(each.id for each in good[:8])}" if good else ""
                raise ConfigError(f"no token {printable(token)} lets anybody in{others}")
            _close(sql, bytes.fromhex(found.id))
        return found

    def enrol(self, token: bytes, secret: bytes, request: bytes, name: str, *, exact: bool) -> Granted | None:
        """A certificate for who has the token. None where the secret is wrong: a guess.

        Raises:
            TrustError: no, and why; or it can't be written. Nothing has changed.
        """
        with self._database.change() as sql:
            row = sql.execute("SELECT secret, role, name, uses, ends FROM tokens WHERE id = ?", (token,)).fetchone()
            if not hmac.compare_digest(row[0] if row else bytes(32), _hashed(secret)) or row is None:
                return None
            role, fixed, uses, ends = Role(row[1]), row[2], row[3], row[4]
            now, another = certain_time(), f"make another with `{_MADE_BY[role]}`"
            if now > ends:
                raise TrustError(f"token {token.hex()} has expired at {minute(ends)}: {another}")
            public = key_of_request(request)
            key = key_bytes(public)
            again = sql.execute("SELECT serial FROM joined WHERE token = ? AND key = ?", (token, key)).fetchone()
            if again is not None:
                newest = _newest_of_key(sql, key)
                if newest is None:
                    raise TrustError(f"{_ousted(sql, self.fabric, token, key)}: {another}")
                return self._granted(sql, *newest)
            used = sql.execute("SELECT count(*) FROM joined WHERE token = ?", (token,)).fetchone()[0]
            if not uses:
                ousted = _ousted(sql, self.fabric, token)
                when = f"was closed when {ousted}" if ousted else "was taken back"
                raise TrustError(f"token {token.hex()} {when}: {another}")
            if used >= uses:
                raise TrustError(
                    f"token {token.hex()} is used up, by {_users(sql, token)}: {another}; if that was not you, evict "
                    "who it was"
                )
            chosen = self._chosen(sql, role, fixed, name, exact, key, now)
            serial, certificate = self._issue(sql, Holder(self.fabric, role, chosen, 0), public)
            sql.execute("INSERT INTO joined VALUES (?, ?, ?)", (token, key, serial))
            return self._granted(sql, role, chosen, certificate)

    def _chosen(
        self, sql: sqlite3.Connection, role: Role, fixed: str | None, name: str, exact: bool, key: bytes, now: float
    ) -> str:
        if fixed is not None:
            if exact and name != fixed:
                raise TrustError(f"the token is for {fixed}, but this device is {printable(name)} already")
            _refuse_taken(sql, self.fabric, role, fixed, key, now)
            return fixed
        try:
            _check_name(role, name)
        except ConfigError as error:
            raise TrustError(str(error)) from None
        if exact:
            _refuse_taken(sql, self.fabric, role, name, key, now)
            return name
        stem = name[: LONGEST_ID - 5]
        for candidate in (name, *(f"{stem}-{number}" for number in range(2, _NAMESAKES))):
            if _taken(sql, role, candidate, key, now) is None:
                return candidate
        raise TrustError(f"{_NAMESAKES} devices are called {name} already: say --id")

    def admit(self, role: Role, name: str, key: ec.EllipticCurvePublicKey) -> Granted:
        """A certificate for a member on this very machine.

        Raises:
            ConfigError: the name can't be; TrustError: it is taken, or it can't be written.
        """
        _check_name(role, name)
        with self._database.change() as sql:
            now = certain_time()
            _refuse_taken(sql, self.fabric, role, name, key_bytes(key), now)
            _, certificate = self._issue(sql, Holder(self.fabric, role, name, 0), key)
            return self._granted(sql, role, name, certificate)

    def renew(self, certificate: bytes, *, late: bool = False) -> Granted:
        """A new certificate for who has this one; the same again for who asks again soon.

        Args:
            late: for one that has expired, too, as of the members on this very machine.

        Raises:
            TrustError: it doesn't count, or not any more; or it can't be written.
        """
        with self._database.change() as sql:
            authorities = _authorities(sql)
            checked = check(certificate, [Authority.read(row[1]) for row in authorities])
            holder = checked.holder
            if not late and (over := expired(checked)) is not None:
                raise over
            if holder.fabric != self.fabric:
                raise TrustError(
                    f"certificate {holder.serial:x} is of {holder}, another fabric than {self.fabric}: bring the "
                    "device into this one: edgepeer join HOST STRING"
                )
            if (at := _out(sql).get(holder.serial)) is not None:
                raise TrustError(f"{eviction(holder, at)}: {JOIN_ANEW}")
            now, key = certain_time(), key_bytes(checked.key)
            _refuse_taken(sql, self.fabric, holder.role, holder.id, key, now)
            newest = sql.execute(
                "SELECT serial, certificate, authority FROM certificates "
                "WHERE key = ? AND out = 0 AND role = ? AND name = ? ORDER BY serial DESC LIMIT 1",
                (key, holder.role, holder.id),
            ).fetchone()
            # However often it asks, and with whichever: each that it has had must be in the list when it is evicted.
            fresh = newest and newest[2] == authorities[-1][0]
            if fresh and now - Holder(self.fabric, holder.role, holder.id, newest[0]).issued < self._lifetime_s / 3:
                return self._granted(sql, holder.role, holder.id, newest[1])
            _, renewed = self._issue(sql, holder, checked.key)
            return self._granted(sql, holder.role, holder.id, renewed)

    def own(self, key: ec.EllipticCurvePublicKey) -> dict[bytes, bytes]:
        """Certificates for the enrolment service itself, by the authority that has issued each, the newest last; they
        are in no list.

        Raises:
            TrustError: it can't be written.
        """
        with self._database.change() as sql:  # all at once: one that has ended meanwhile issues none
            rows, holder = _authorities(sql), Holder(self.fabric, Role.ENROLMENT, "service", _next_serial(sql))
        return {authority: issue(authority, load_key(signer), key, holder) for _, authority, signer in rows}

    def _issue(self, sql: sqlite3.Connection, holder: Holder, key: ec.EllipticCurvePublicKey) -> tuple[int, bytes]:
        number, authority, signer = _authorities(sql)[-1]
        serial = _next_serial(sql)
        named = Holder(holder.fabric, holder.role, holder.id, serial)
        certificate = issue(authority, load_key(signer), key, named, self._lifetime_s)
        ends = named.issued + self._lifetime_s
        sql.execute(
            "INSERT INTO certificates VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
            (serial, named.role, named.id, key_bytes(key), certificate, number, ends),
        )
        return serial, certificate

    def _granted(self, sql: sqlite3.Connection, role: Role, name: str, certificate: bytes) -> Granted:
        authorities = tuple(row[1] for row in _authorities(sql))
        return Granted(certificate, authorities, _fact(sql, "evictions") or b"", _where(sql, role, name))

    # -- throwing out --------------------------------------------------------------------------------------

    def evict(self, name: str) -> tuple[list[Holder], list[str]]:
        """Let a member be one no more, by its common name, as p7, @bob or viewer:eve. Tokens by which it came in, or
        that were made for it, let nobody in. Returns whom that was, by certificate, and the tokens. Who is out already
        stays so, and is returned, too: perhaps that was cut short before the fleet was told.

        Raises:
            ConfigError: nobody is called so; TrustError: it can't be written.
        """
        with self._database.change() as sql:
            rows = sql.execute("SELECT serial, role, name, key, out FROM certificates").fetchall()
            holders = [
                (Holder(self.fabric, Role(role), peer, serial), key, out) for serial, role, peer, key, out in rows
            ]
            called = [(holder, key, out) for holder, key, out in holders if holder.common_name == name]
            if not called:
                known = sorted({holder.common_name for holder, _, out in holders if not out})
                more = f" and {len(known) - 8} more" if len(known) > 8 else ""
                raise ConfigError(f"nobody is called {printable(name)}; members are {', '.join(known[:8])}{more}")
            found = [holder for holder, _, out in called if not out]
            if len(_out(sql)) + len(found) > LONGEST:
                raise TrustError(f"more than {LONGEST} certificates are out: rotate the authority instead")
            spent: list[str] = []
            now = int(believable() or 0)
            for holder in found:
                sql.execute("UPDATE certificates SET out = 1 WHERE serial = ?", (holder.serial,))
                sql.execute("INSERT OR REPLACE INTO evictions VALUES (?, ?)", (holder.serial, now))
            for holder, key, _ in called:
                its_own = (
                    "SELECT id FROM tokens WHERE (id IN (SELECT token FROM joined WHERE key = ?) "
                    "OR (role = ? AND name = ?)) AND uses > (SELECT count(*) FROM joined WHERE token = tokens.id)"
                )
                for (token,) in sql.execute(its_own, (key, holder.role, holder.id)).fetchall():
                    _close(sql, token)
                    spent.append(token.hex())
            if found:
                _sign(sql, self.fabric)
        return found or [holder for holder, _, _ in called], spent

    def hear(self, signed: bytes) -> bool:
        """Whether a list that the fleet has says more than this registrar knows, whose file may be an older copy that
        was put back. Then it counts here, too, and a later list is signed.

        Raises:
            TrustError: it can't be written.
        """
        if not signed or signed == self.evictions:
            return False
        with self._database.change() as sql:
            number, out = int(_fact(sql, "number") or b"0"), _out(sql)
            try:
                told = Listed.read(signed, self.fabric, [Authority.read(row[1]) for row in _authorities(sql)])
            except TrustError:  # whoever can write at the broker can say anything
                return False
            if told.number < number and told.out.keys() <= out.keys():
                return False
            for serial in told.out.keys() - out.keys():
                sql.execute("UPDATE certificates SET out = 1 WHERE serial = ?", (serial,))
                sql.execute("INSERT OR REPLACE INTO evictions VALUES (?, ?)", (serial, told.out[serial]))
            _note(sql, "number", b"%d" % max(number, told.number))
            _sign(sql, self.fabric)
        return True

    def revocations(self) -> bytes:
        """Who is out, for brokers of others: a PEM file."""
        with self._database.change() as sql:  # an earlier version's file has no table yet of when
            number, out = int(_fact(sql, "number") or b"0"), _out(sql)
            return b"".join(
                revocations(certificate, load_key(key), out, number) for _, certificate, key in _authorities(sql)
            )

    # -- rotating ------------------------------------------------------------------------------------------

    def rotate(self) -> None:
        """Let a new authority issue from now on; the one before counts until `finish`.

        Raises:
            ConfigError: a rotation is under way; TrustError: it can't be written.
        """
        with self._database.change() as sql:
            if len(_authorities(sql)) > 1:
                raise ConfigError("a rotation is under way: end it with `edgepeer fleet rotate-ca --finish`")
            of_before = _open_tokens(sql, certain_time())
            _note(sql, _OF_BEFORE, b"".join(bytes.fromhex(each.id) for each in of_before))
            _add_authority(sql, self.fabric)
            _sign(sql, self.fabric)

    def finish(self, *, force: bool = False) -> tuple[list[str], list[str]]:
        """Drop the old authority. Returns who had no certificate of the new one, and which tokens let nobody in any
        more: by the old one whoever has them knows this fleet.

        Raises:
            ConfigError: there is none to drop, or members still need it; TrustError: it can't be written.
        """
        with self._database.change() as sql:
            authorities = _authorities(sql)
            if len(authorities) < 2:
                raise ConfigError("no rotation is under way: begin one with `edgepeer fleet rotate-ca`")
            newest = authorities[-1][0]
            late = sorted(
                each.holder.common_name
                for each in self._members(sql, certain_time())
                if each.authority != newest and not each.evicted
            )
            if late and not force:
                raise ConfigError(
                    f"{len(late)} members have no certificate of the new authority yet ({', '.join(late[:8])}"
                    f"{', ...' if len(late) > 8 else ''}): start them, or leave them out with --force; they must then "
                    "join again"
                )
            signers = [load_key(key) for _, _, key in authorities]
            sql.execute("DELETE FROM authorities WHERE id < ?", (newest,))
            good, of_before = _open_tokens(sql, certain_time()), _fact(sql, _OF_BEFORE) or b""
            ids = {of_before[at : at + TOKEN_BYTES].hex() for at in range(0, len(of_before), TOKEN_BYTES)}
            spent = [each.id for each in good if each.id in ids]
            for token in spent:
                _close(sql, bytes.fromhex(token))
            _note(sql, _OF_BEFORE, b"")
            _sign(sql, self.fabric, signers)
        return late, spent

    # -- looking -------------------------------------------------------------------------------------------

    def members(self) -> list[Issued]:
        """The newest certificate of each that ever was one and could still be, by name."""
        with self._database.look() as sql:
            return self._members(sql, 0)

    def _members(self, sql: sqlite3.Connection, now: float) -> list[Issued]:
        rows = sql.execute(
            "SELECT role, name, max(serial), ends, out, authority, "
            "(SELECT lower(hex(token)) FROM joined WHERE joined.key = certificates.key LIMIT 1) "
            "FROM certificates WHERE ends > ? GROUP BY role, name ORDER BY role, name",
            (now,),
        ).fetchall()
        return [
            Issued(
                Holder(self.fabric, Role(role), name, serial),
                ends,
                bool(out),
                authority,
                token,
            )
            for role, name, serial, ends, out, authority, token in rows
        ]

    def operators(self) -> list[str]:
        """Ids of those who are operators, and of those for whom a token waits."""
        with self._database.look() as sql:
            rows = sql.execute(
                "SELECT name FROM certificates WHERE role = :role AND out = 0 "
                "UNION SELECT name FROM tokens WHERE role = :role AND name IS NOT NULL "
                "AND uses > (SELECT count(*) FROM joined WHERE token = tokens.id) ORDER BY name",
                {"role": str(Role.OPERATOR)},
            ).fetchall()
        return [row[0] for row in rows]

    def tokens(self) -> list[Token]:
        """Those that still let somebody in."""
        with self._database.look() as sql:
            return _open_tokens(sql, certain_time())

    @property
    def newest_authority(self) -> int:
        with self._database.look() as sql:
            return _authorities(sql)[-1][0]


def _refuse_orphans(home: Path) -> None:
    """Members that another authority has let in: whoever joined by a new one would be strange to them."""
    if orphans := sorted(str(each.parent) for each in home.glob(f"*/{CERTIFICATE}")):
        raise ConfigError(
            f"home = {home}: {' and '.join(orphans)} are of a fleet whose authority, {AUTHORITY}, is not there: put "
            "the copy of that file back; or, for another fleet, which all devices must join anew, say another --home"
        )


def _fact(sql: sqlite3.Connection, name: str) -> bytes | None:
    row = sql.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None else bytes(row[0])


def _facts(sql: sqlite3.Connection) -> _Facts:
    """As they are now: another process may have moved the fleet."""
    facts = _fact(sql, _FLEET)
    if facts is None:
        raise TrustError(f"the authority's file holds no fleet any more: {PUT_BACK}")
    return msgspec.json.decode(facts, type=_Facts)


def _where(sql: sqlite3.Connection, role: Role, name: str) -> Whereabouts:
    facts = _facts(sql)
    return Whereabouts(fabric=facts.fabric, role=role, id=name, broker=facts.broker, service=facts.service)


def _note(sql: sqlite3.Connection, name: str, value: bytes) -> None:
    sql.execute(
        "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", (name, value)
    )


def _authorities(sql: sqlite3.Connection) -> list[tuple[int, bytes, bytes]]:
    return sql.execute("SELECT id, certificate, key FROM authorities ORDER BY id").fetchall()


def _add_authority(sql: sqlite3.Connection, fabric: str) -> None:
    key = make_key()
    certificate = make_authority(f"{fabric} {secrets.token_hex(4)}", key, _next_serial(sql))
    sql.execute("INSERT INTO authorities (certificate, key) VALUES (?, ?)", (certificate, private_pem(key)))


def _next_serial(sql: sqlite3.Connection) -> int:
    serial = Holder.serial_after(int(_fact(sql, "serial") or b"0"), certain_time())
    _note(sql, "serial", b"%d" % serial)
    return serial


def _out(sql: sqlite3.Connection) -> dict[int, int]:
    """Who is out, and since when; 0: it was not told yet. Of whom only others have told, no certificate is known."""
    rows = sql.execute(
        "SELECT serial, at FROM evictions UNION SELECT serial, 0 FROM certificates "
        "WHERE out = 1 AND serial NOT IN (SELECT serial FROM evictions)"
    )
    return dict(rows.fetchall())


def _sign(sql: sqlite3.Connection, fabric: str, signers: list[ec.EllipticCurvePrivateKey] | None = None) -> None:
    number = int(_fact(sql, "number") or b"0") + 1
    rows = _authorities(sql)
    by = signers or [load_key(key) for _, _, key in rows]
    _note(sql, "number", b"%d" % number)
    _note(sql, "evictions", sign_list(fabric, number, _out(sql), [row[1] for row in rows], by))


def _open_tokens(sql: sqlite3.Connection, now: float) -> list[Token]:
    rows = sql.execute(
        "SELECT id, role, name, uses - (SELECT count(*) FROM joined WHERE token = tokens.id) AS left, ends "
        "FROM tokens WHERE left > 0 AND ends > ? ORDER BY ends",
        (now,),
    ).fetchall()
    return [Token(token.hex(), Role(role), name, left, ends) for token, role, name, left, ends in rows]


def _close(sql: sqlite3.Connection, token: bytes) -> None:
    sql.execute("UPDATE tokens SET uses = 0 WHERE id = ?", (token,))


def _hashed(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _check_name(role: Role, name: str) -> None:
    longest = 63 if role is Role.PEER else LONGEST_ID
    if not is_name(name) or len(name) > longest:
        raise ConfigError(
            f"{role} {printable(name)!r}: allowed are 1 to {longest} letters, digits, '.', '_' and '-', a letter or "
            "digit first"
        )


def _taken(sql: sqlite3.Connection, role: Role, name: str, key: bytes, now: float) -> int | None:
    row = sql.execute(
        "SELECT max(serial) FROM certificates WHERE role = ? AND name = ? AND out = 0 AND key != ? AND ends > ?",
        (role, name, key, now),
    ).fetchone()
    return None if row is None or row[0] is None else int(row[0])


def _refuse_taken(sql: sqlite3.Connection, fabric: str, role: Role, name: str, key: bytes, now: float) -> None:
    if (serial := _taken(sql, role, name, key, now)) is not None:
        other = Holder(fabric, role, name, serial)
        raise TrustError(
            f"another device is {other} since {date(other.issued)}: if it is gone, `edgepeer fleet evict "
            f"{other.common_name}`; else choose another name"
        )


def _newest_of_key(sql: sqlite3.Connection, key: bytes) -> tuple[Role, str, bytes] | None:
    row = sql.execute(
        "SELECT role, name, certificate FROM certificates WHERE key = ? AND out = 0 ORDER BY serial DESC LIMIT 1",
        (key,),
    ).fetchone()
    return None if row is None else (Role(row[0]), row[1], row[2])


def _users(sql: sqlite3.Connection, token: bytes) -> str:
    rows = sql.execute(
        "SELECT name FROM certificates JOIN joined ON certificates.serial = joined.serial WHERE token = ? LIMIT 3",
        (token,),
    ).fetchall()
    return ", ".join(row[0] for row in rows)


def _ousted(sql: sqlite3.Connection, fabric: str, token: bytes, key: bytes | None = None) -> str:
    """That the last one was evicted who has come with that token, and that key; empty if nobody was."""
    row = sql.execute(
        "SELECT role, name, certificates.serial, coalesce(at, 0) FROM joined "
        "JOIN certificates USING (key) LEFT JOIN evictions ON evictions.serial = certificates.serial "
        "WHERE token = ? AND out = 1 AND key = coalesce(?, key) ORDER BY at DESC, certificates.serial DESC LIMIT 1",
        (token, key),
    ).fetchone()
    return eviction(Holder(fabric, Role(row[0]), row[1], row[2]), row[3]) if row is not None else ""
