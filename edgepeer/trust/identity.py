"""A device's identity: its key and certificate, the authorities that it believes, and who is out.

What is given up when something changes: certificates are remembered as checked, TLS contexts as made, until a new list
or another certificate is taken. Both may happen while everything runs: by `Evictions.accept`, by `renewed`, or because
another process wrote the files and `refresh` found them changed. Whoever asked by `on_change` is told, in the thread in
which it happened.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from edgepeer.errors import ConfigError, Expired, TrustError
from edgepeer.printable import printable
from edgepeer.processes import os_reason
from edgepeer.trust.certificates import (
    Authority,
    Checked,
    certificates_in,
    check,
    expired,
    key_bytes,
    load_key,
    pem,
)
from edgepeer.trust.clock import date
from edgepeer.trust.directory import AUTHORITIES, CERTIFICATE, EVICTIONS, JOIN_AGAIN, JOIN_ANEW, KEY, WHERE, Whereabouts
from edgepeer.trust.evictions import Evictions, Listed
from edgepeer.trust.files import read_private, try_to_write, write_whole
from edgepeer.trust.later import Later
from edgepeer.trust.names import Holder
from edgepeer.trust.shown import show

__all__ = ["Credential", "Identity"]

_REMEMBERED: Final = 8192
"""Certificates; then all are checked anew."""
_ECDSA: Final = ec.ECDSA(hashes.SHA256())
_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME, which Python has no name for: `check` looks at the time, by a believable clock."""
_ANOTHER: Final = "another identity was put there: start again to use it"

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Credential:
    """A certificate that counts."""

    holder: Holder
    checked: Checked

    @property
    def ends(self) -> float:
        """When it expires."""
        return self.checked.ends

    def verify(self, signature: bytes, data: bytes) -> None:
        """Check that its holder has signed the data.

        Raises:
            TrustError: no.
        """
        try:
            self.checked.key.verify(signature, data, _ECDSA)
        except (InvalidSignature, ValueError):
            raise TrustError(f"{self.holder} has not signed what is said to be of it") from None


class Identity:
    """This device's key and certificate, and the authorities it trusts."""

    def __init__(self, directory: Path, where: Whereabouts, listed: Listed) -> None:
        """Use `load`."""
        self.directory: Final = directory
        self.where = where
        """Broker, and where certificates are renewed."""
        self.evictions: Final = Evictions(where.fabric, listed, self._listed)
        self.certificate = b""
        """DER."""
        self.doubted = False
        """Whether the fleet's broker shows a certificate of an authority that is not known here: perhaps the fleet has
        had a new one while this device was off."""
        self.reached: bool | None = None
        """Whether a broker lets this device in; None: nobody has looked for one. If none does, perhaps the fleet has
        another one by now."""
        self.later: Final = Later()
        """Writes what may wait, for who has an event loop."""
        self._keeping = threading.Lock()
        """Held by whoever writes a list: the older of two must not come last."""
        self._key: ec.EllipticCurvePrivateKey
        self._own: Checked
        self._credentials: dict[bytes, Credential] = {}
        self._contexts: dict[bool, ssl.SSLContext] = {}
        self._told: list[Callable[[], None]] = []
        self._stamp: object = None

    @classmethod
    def load(cls, directory: Path) -> Identity:
        """The identity that the directory holds.

        Raises:
            ConfigError: it has none, or what it has can't be used: which file, what is wrong, what to do.
            Expired: its certificate has, and nothing else is wrong.
        """
        where = Whereabouts.read(directory)
        if (mode := directory.stat().st_mode) & 0o022:
            raise ConfigError(f"{directory}: others may write there (mode {mode & 0o777:o}): chmod 700 {directory}")
        stamp = _stamp(directory)
        known = _read(directory / AUTHORITIES, lambda data: [Authority.read(each) for each in certificates_in(data)])
        listed = _read(directory / EVICTIONS, lambda data: Listed.read(data, where.fabric, known))
        identity = cls(directory, where, listed)
        identity._key = _read(directory / KEY, load_key, private=True)
        certificate = _read(directory / CERTIFICATE, lambda data: certificates_in(data)[0])
        identity._take(certificate, _read(directory / CERTIFICATE, lambda _: identity._own_checked(certificate)))
        identity._stamp = stamp
        return identity

    def __str__(self) -> str:
        holder = self.holder
        return f"certificate {holder.serial:x} of {holder}, until {date(self.ends)}, in {self.directory}"

    @property
    def holder(self) -> Holder:
        """Who this device is."""
        return self._own.holder

    @property
    def ends(self) -> float:
        """When its certificate expires."""
        return self._own.ends

    @property
    def expired(self) -> Expired | None:
        """That its certificate has, by this device's clock, if that can be believed."""
        return expired(self._own)

    @property
    def evicted(self) -> bool:
        """Whether this device itself is out."""
        return self.holder.serial in self.evictions.serials

    @property
    def authority(self) -> Authority:
        """Who issued its certificate."""
        return self._own.authority

    @property
    def key(self) -> ec.EllipticCurvePrivateKey:
        """Of the certificate; it stays on this device."""
        return self._key

    def sign(self, data: bytes) -> bytes:
        """An ECDSA signature of P-256 with SHA-256."""
        return self._key.sign(data, _ECDSA)

    def check(self, certificate: bytes) -> Credential:
        """Whose certificate it is, as DER.

        Raises:
            TrustError: nobody's in this fleet, or not any more: says whose, what is wrong, since when.
        """
        name = hashlib.sha256(certificate).digest()
        found = self._credentials.get(name)
        if found is None:
            checked = check(certificate, self.evictions.authorities)
            self._refuse(checked.holder)
            found = Credential(checked.holder, checked)
            if len(self._credentials) >= _REMEMBERED:
                self._credentials.clear()
            self._credentials[name] = found
        if (late := expired(found.checked)) is not None:
            raise late
        return found

    def is_of_fleet(self, certificate: bytes) -> bool:
        """Whether an authority that counts has issued it, to whomever: one who is out by now, too."""
        try:
            check(certificate, self.evictions.authorities)
        except TrustError:
            return False
        return True

    def _refuse(self, holder: Holder) -> None:
        if holder.fabric != self.where.fabric:
            raise TrustError(
                f"certificate {holder.serial:x} is of {holder}, another fabric than {self.where.fabric}: bring the "
                "device into this one: edgepeer join HOST STRING"
            )
        if holder.serial in self.evictions.serials:
            raise TrustError(f"{self.evictions.told(holder)}: {JOIN_ANEW}")

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Mutual TLS 1.3 with whom the fleet's authorities vouch for. Host names don't count; who it is, and that it
        has not expired or been evicted, whoever uses it must learn by `check` of the other end's certificate."""
        context = self._contexts.get(server)
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
            context.options |= ssl.OP_NO_TICKET
            if server:
                context.num_tickets = 0  # nobody resumes: who was evicted in between must not
            show(context, self._key, self.certificate)
            context.load_verify_locations(cadata=pem(each.der for each in self.evictions.authorities).decode())
            self._contexts[server] = context
        return context

    def on_change(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Let `tell` be called when there is a new list, certificate or authority, or the fleet has moved. Returns what
        ends that."""
        self._told.append(tell)

        def end() -> None:
            with contextlib.suppress(ValueError):
                self._told.remove(tell)

        return end

    def renewed(self, certificate: bytes) -> None:
        """Take another certificate for the same key and name, and keep it.

        Raises:
            TrustError: it is not that; ConfigError: the directory is another identity's by now; OSError: it can't be
            kept, and is not taken.
        """
        checked = self._own_checked(certificate)
        self._put_there(certificate)
        self._take(certificate, checked)
        self._tell()

    async def renewed_beside(self, certificate: bytes) -> None:
        """The same beside the event loop, which goes on while the disk takes it: it counts when that has it. Who loses
        power before has the one of before, as if it had not asked yet."""
        checked = self._own_checked(certificate)
        await self.later.done(CERTIFICATE, functools.partial(self._put_there, certificate))
        self._take(certificate, checked)
        self._tell()

    def moved(self, where: Whereabouts) -> bool:
        """Take that the fleet is there, and keep it. Whether it was elsewhere.

        Raises:
            TrustError: that is for somebody else; ConfigError, OSError: as of `renewed`.
        """
        if news := self._is_news(where):
            self._put_where(where)
            self._go_there(where)
        return news

    async def moved_beside(self, where: Whereabouts) -> bool:
        """The same beside the event loop. Who loses power before has the place of before, and asks again."""
        if news := self._is_news(where):
            await self.later.done(WHERE, functools.partial(self._put_where, where))
            self._go_there(where)
        return news

    def _is_news(self, where: Whereabouts) -> bool:
        if not self._is_for_us(where):
            raise TrustError(f"is told where {where.role} {where.id} of {where.fabric} finds its fleet")
        return where != self.where

    def _is_for_us(self, where: Whereabouts) -> bool:
        return (where.fabric, where.role, where.id) == (self.where.fabric, self.where.role, self.where.id)

    def _put_where(self, where: Whereabouts) -> None:
        self._refuse_another()
        write_whole(self.directory / WHERE, where.toml())
        self._stamp = _stamp(self.directory)

    def _go_there(self, where: Whereabouts) -> None:
        self.where = where
        _log.info(
            "the fleet has moved: broker %s, enrolment service %s", printable(",".join(where.broker)), where.service
        )
        self._tell()

    async def could_keep_another(self) -> None:
        """See whether another certificate could be kept: who can't is not to ask for one, or it would be listed as who
        has it, and be left out when the authority before is dropped.

        Raises:
            ConfigError, OSError: as of `renewed`.
        """
        await self.later.done(CERTIFICATE, self._try_to_put_there)

    def _try_to_put_there(self) -> None:
        self._refuse_another()
        try_to_write(self.directory / CERTIFICATE, pem([self.certificate]))

    def _refuse_another(self) -> None:
        if self._is_another_there():
            raise ConfigError(f"fleet = {self.directory}: {_ANOTHER}")

    def _put_there(self, certificate: bytes) -> None:
        self._refuse_another()
        write_whole(self.directory / CERTIFICATE, pem([certificate]))
        self._stamp = _stamp(self.directory)

    def refresh(self) -> bool:
        """Take what another process has put into the directory, if anything. Whether there was something.

        Raises:
            ConfigError, Expired: what is there now can't be used; all stays as it was.
        """
        stamp = _stamp(self.directory)
        if stamp == self._stamp:
            return False
        changed = False
        with contextlib.suppress(OSError, TrustError):  # first of all: it may say that this device is out
            changed = self.evictions.accept((self.directory / EVICTIONS).read_bytes())
        if self.evicted:
            self._stamp = stamp
            return changed
        fresh = Identity.load(self.directory)
        if key_bytes(fresh._key.public_key()) != key_bytes(self._key.public_key()) or not self._is_for_us(fresh.where):
            raise ConfigError(f"fleet = {self.directory}: {_ANOTHER}")
        self._stamp = stamp
        if fresh.where != self.where:
            self._go_there(fresh.where)
            changed = True
        if fresh.certificate != self.certificate:
            self._take(fresh.certificate, self._own_checked(fresh.certificate))
            self._tell()
            changed = True
        return changed

    def _own_checked(self, certificate: bytes) -> Checked:
        checked = check(certificate, self.evictions.authorities)
        holder, where = checked.holder, self.where
        if (holder.fabric, holder.role, holder.id) != (where.fabric, where.role, where.id):
            raise TrustError(f"is of {holder}, but fleet.toml says {where.role} {where.id} of {where.fabric}")
        if key_bytes(checked.key) != key_bytes(self._key.public_key()):
            raise TrustError(f"is for another key than the one in {KEY}: they were not made together")
        self._refuse(holder)
        if (late := expired(checked)) is not None:  # last: it may pass, and what else is wrong does not
            raise late
        return checked

    def _take(self, certificate: bytes, checked: Checked) -> None:
        self._own, self.certificate, self.doubted = checked, certificate, False
        self._forget()

    def _listed(self, listed: Listed) -> None:
        try:
            at_once = (self.directory / AUTHORITIES).read_bytes() != pem(each.der for each in listed.authorities)
        except OSError:
            at_once = True
        if at_once:
            # The certificate that one of these issues next is of no use beside a file that does not have its authority.
            self._keep(listed)
        else:
            # It counts from now on. Who loses power before it is on the disk is as one that was off when it was told:
            # the authority had it on its own disk first, the broker and all others have it, and tell who comes.
            self.later.do(EVICTIONS, functools.partial(self._keep, listed))
        self._forget()
        self._tell()

    def _keep(self, listed: Listed) -> None:
        # Authorities first: each of the lists before and after is signed by one that is in the file then.
        files = ((AUTHORITIES, pem(each.der for each in listed.authorities)), (EVICTIONS, listed.signed))
        try:
            with self._keeping:
                if self._is_another_there():
                    raise ConfigError(_ANOTHER)
                for name, data in files if not self._newer_kept(listed) else ():
                    if (self.directory / name).read_bytes() != data:  # else another process has written it
                        write_whole(self.directory / name, data)
                        self._stamp = _stamp(self.directory)
        except (OSError, ConfigError) as error:
            _log.error(
                "eviction list %d can't be kept in %s (%s): it counts until this process ends",
                *(listed.number, self.directory, os_reason(error) if isinstance(error, OSError) else error),
            )

    def _is_another_there(self) -> bool:
        """Whether `edgepeer join`, which makes a new key, has made the directory another's meanwhile: who writes to it
        for whom this process is would put that one out of its fleet."""
        with contextlib.suppress(OSError, ValueError, ConfigError):  # a spoilt key is nobody else's
            there = load_key(read_private(self.directory / KEY))
            return key_bytes(there.public_key()) != key_bytes(self._key.public_key())
        return False

    def _newer_kept(self, listed: Listed) -> bool:
        """Whether another process, which has heard of more, has written a later list."""
        try:
            kept = Listed.read((self.directory / EVICTIONS).read_bytes(), self.where.fabric, listed.authorities)
        except (OSError, TrustError):
            return False
        return kept.number > listed.number

    def _forget(self) -> None:
        self._credentials.clear()
        self._contexts.clear()

    def _tell(self) -> None:
        for tell in [*self._told]:
            tell()


def _read(path: Path, take: Callable[[bytes], _T], *, private: bool = False) -> _T:
    try:
        return take(read_private(path) if private else path.read_bytes())
    except PermissionError:
        raise ConfigError(f"{path}: can't read it: permission denied; start as the user whose it is") from None
    except OSError as error:
        raise ConfigError(f"{path}: can't read it: {os_reason(error)}; {JOIN_AGAIN}") from None
    except Expired as error:  # no setting is wrong
        raise Expired(f"{path}: {error}") from None
    except (TrustError, ValueError) as error:
        remedy = "" if " edgepeer join " in str(error) else f"; {JOIN_AGAIN}"
        raise ConfigError(f"{path}: {error}{remedy}") from None


def _stamp(directory: Path) -> object:
    found = []
    for name in (CERTIFICATE, AUTHORITIES, EVICTIONS, WHERE):
        with contextlib.suppress(OSError):
            state = os.stat(directory / name)
            found.append((name, state.st_ino, state.st_mtime_ns, state.st_size))
    return found
