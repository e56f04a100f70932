"""The members on the registrar's own machine, the broker and the first operator: they need neither token nor service.

Besides, what a mosquitto reads: `broker/revoked.pem`, which tells it who is out, and `broker/mosquitto.acl`, who may
write and read what there.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from edgepeer.enrol.joining import device_key, keep_granted
from edgepeer.enrol.registrar import Registrar
from edgepeer.enrol.renewal import due
from edgepeer.enrol.strings import fingerprint
from edgepeer.errors import EdgepeerError, TrustError
from edgepeer.fabric.rights import patterns
from edgepeer.processes import os_reason
from edgepeer.trust.certificates import Authority, certificates_in, check, expired, key_bytes, load_key
from edgepeer.trust.clock import date
from edgepeer.trust.directory import AUTHORITIES, AUTHORITY, CERTIFICATE, EVICTIONS, KEY, is_joined
from edgepeer.trust.files import alone_in, read_private, write_whole
from edgepeer.trust.identity import Identity
from edgepeer.trust.names import Role

__all__ = ["Household"]

_BROKER: Final = "broker"
_OPERATOR: Final = "operator"
_REVOKED: Final = "revoked.pem"
_RULES: Final = "mosquitto.acl"
_ABOUT_RULES: Final = """\
# Who may write and read what at this fleet's mosquitto (deploy/mosquitto.conf); made by `edgepeer fleet`, anew whenever
# there is another operator. %u is a peer's id, by its certificate: a peer speaks for itself alone. Lines without it are
# for every member, and mosquitto warns of them. Letters to others (relay) are not to be heard. An operator clears
# what is left of jobs that are over, and of the evicted. All of it is a second line of defence: documents are signed,
# and what somebody else has written counts for nothing.
"""
_MEND: Final = "let who looks after the fleet write there, and free some space if there is none"

_log = logging.getLogger(__name__)


class Household:
    """Those members. Their directories are below the registrar's."""

    def __init__(self, registrar: Registrar, home: Path) -> None:
        self._registrar = registrar
        self.broker: Final = home / _BROKER
        self.operator: Final = home / _OPERATOR
        self.revoked: Final = self.broker / _REVOKED

    def settle(self, operator: str) -> None:
        """Make those that aren't there yet.

        Raises:
            ConfigError: the operator's name can't be; TrustError: it is taken, or nothing can be written.
        """
        for directory, role, name in ((self.broker, Role.BROKER, "broker"), (self.operator, Role.OPERATOR, operator)):
            try:
                with alone_in(directory):
                    if is_joined(directory):
                        continue
                    key = device_key(directory)
                    granted = self._registrar.admit(role, name, key.public_key())
                    keep_granted(directory, granted, key.public_key(), fingerprint(granted.authorities[-1]))
            except OSError as error:
                raise TrustError(f"{directory}: can't write there: {os_reason(error)}") from None
        if trouble := self._update()[1]:
            raise TrustError(trouble[0])

    def update(self) -> list[Identity]:
        """Let them know who is out and where the fleet is, and have certificates that go on. Returns those that are
        members still. What can't be read or written the log tells: whoever is evicted meanwhile is out all the same,
        and the fleet must hear it.

        Raises:
            TrustError: the registrar's own file can't be used.
        """
        found, trouble = self._update()
        for each in trouble:
            _log.error("%s", each)
        return found

    def _update(self) -> tuple[list[Identity], list[str]]:
        """Besides, what has kept this from being done for one of them, or for a mosquitto."""
        found, trouble = [], []
        for directory in (self.broker, self.operator):
            try:
                if not is_joined(directory):
                    continue
                self._renew_late(directory)
                identity = Identity.load(directory)
                self.agree(identity, identity.evictions.signed)
                if due(identity):
                    granted = self._registrar.renew(identity.certificate)
                    identity.renewed(granted.certificate)
                identity.moved(self._registrar.where(identity.holder.role, identity.holder.id))
                if not identity.evicted:
                    found.append(identity)
            except OSError as error:
                trouble.append(f"{directory}: can't read or write there: {os_reason(error)}: {_MEND}")
            except EdgepeerError as error:
                _log.warning("%s", error)
        revoked, rules = self._registrar.revocations(), self._rules()
        try:
            if self.broker.is_dir():
                write_whole(self.revoked, revoked)
                write_whole(self.broker / _RULES, rules)
        except OSError as error:
            trouble.append(f"{self.revoked}: can't be written: {os_reason(error)}: {_MEND}")
        return found, trouble

    def _renew_late(self, directory: Path) -> None:
        """Let a member whose certificate has expired have another, as where this machine was off for long: with the
        authority beside it, it need not be let in again.

        Raises:
            TrustError: it is a member no more; OSError: it can't be written.
        """
        try:
            known = [Authority.read(each) for each in certificates_in((directory / AUTHORITIES).read_bytes())]
            certificate = certificates_in((directory / CERTIFICATE).read_bytes())[0]
            checked = check(certificate, known)
            key = load_key(read_private(directory / KEY)).public_key()
            told = (directory / EVICTIONS).read_bytes()
        except (OSError, ValueError, EdgepeerError):
            return  # whoever loads it says what is wrong
        if expired(checked) is None or key_bytes(key) != key_bytes(checked.key):
            return
        self._hear(told)  # first of all: it may say that this member is out
        granted = self._registrar.renew(certificate, late=True)
        with alone_in(directory):
            keep_granted(directory, granted, key, fingerprint(granted.authorities[-1]))
        _log.info("%s, which had expired on %s, has a new certificate", checked.holder, date(checked.ends))

    def agree(self, member: Identity, told: bytes) -> None:
        """Let the registrar, whose file may be an older copy, know who is out by the list that a member or the broker
        has; and the member, who is out by the registrar's.

        Raises:
            TrustError: that can't be written.
        """
        self._hear(told)
        try:
            member.evictions.accept(self._registrar.evictions)
        except TrustError as error:
            raise TrustError(
                f"{member.directory}: {error}: the {AUTHORITY} beside it is another fleet's, or of before the "
                "authority was rotated: put a later copy back"
            ) from None

    def _hear(self, told: bytes) -> None:
        if self._registrar.hear(told):
            _log.warning(
                "this fleet.db is older than the list of who is out that the fleet has: it counts here as well"
            )

    def _rules(self) -> bytes:
        """mosquitto's acl_file."""
        lines = patterns(self._registrar.fabric, self._registrar.operators())
        return "\n".join([_ABOUT_RULES.strip(), *lines, ""]).encode()
