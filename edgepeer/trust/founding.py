"""A fleet that lives as long as its process: its authority is kept nowhere, its members' directories are.

For emulations, and for tests. Fleets that stay are looked after by `edgepeer.enrol`.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from edgepeer.trust.certificates import LIFETIME_S, issue, make_authority, make_key, pem, private_pem, revocations
from edgepeer.trust.directory import KEY, Whereabouts, keep
from edgepeer.trust.evictions import sign_list
from edgepeer.trust.files import make_private_directory, write_whole
from edgepeer.trust.names import Holder, Role

__all__ = ["Founder"]


class Founder:
    """Makes members of one fleet, and evicts them."""

    def __init__(
        self, root: Path, fabric: str, *, broker: tuple[str, ...] = ("mqtts://127.0.0.1:8883",), service: str = ""
    ) -> None:
        self.root: Final = root
        """Members' directories are made there, by id."""
        self.fabric: Final = fabric
        self.broker = broker
        self.service = service or "127.0.0.1:7701"
        self.number = 0
        """Of the newest list."""
        self.out: dict[int, int] = {}
        """Serial numbers of the evicted, and when they were."""
        self.members: dict[str, list[int]] = {}
        """Serial numbers of their certificates, by id."""
        self._last = 0
        self._signers: list[ec.EllipticCurvePrivateKey] = []
        self.authorities: list[bytes] = []
        """DER, the one that issues last."""
        self.add_authority()

    def add_authority(self) -> bytes:
        """Let another authority issue certificates from now on; returns the list that says so. The first call is the
        founding."""
        signer = make_key()
        self.authorities.append(make_authority(f"{self.fabric} {secrets.token_hex(4)}", signer, self._serial()))
        self._signers.append(signer)
        return self._sign()

    def member(self, peer: str, role: Role = Role.PEER, *, lifetime_s: float = LIFETIME_S) -> Path:
        """The directory of a new member."""
        directory = self.root / peer
        key = make_key()
        make_private_directory(directory)
        write_whole(directory / KEY, private_pem(key), private=True)
        self.renew(peer, key.public_key(), role, lifetime_s=lifetime_s)
        return directory

    def renew(self, peer: str, key: ec.EllipticCurvePublicKey, role: Role, *, lifetime_s: float = LIFETIME_S) -> bytes:
        """Another certificate for a member, which is put into its directory."""
        certificate = self.issue(Holder(self.fabric, role, peer, self._serial()), key, lifetime_s=lifetime_s)
        where = Whereabouts(fabric=self.fabric, role=role, id=peer, broker=self.broker, service=self.service)
        authorities = pem(self.authorities)
        keep(self.root / peer, where, certificate=pem([certificate]), authorities=authorities, evictions=self.signed)
        return certificate

    def issue(self, holder: Holder, key: ec.EllipticCurvePublicKey, *, lifetime_s: float = LIFETIME_S) -> bytes:
        """A certificate of the newest authority, DER."""
        self.members.setdefault(holder.id, []).append(holder.serial)
        return issue(self.authorities[-1], self._signers[-1], key, holder, lifetime_s)

    def evict(self, *peers: str) -> bytes:
        """The list without these; it is for whoever calls to bring it to the others."""
        self.out |= {serial: int(time.time()) for peer in peers for serial in self.members[peer]}
        return self._sign()

    def revocations(self) -> bytes:
        """The same for brokers of others: a PEM file of each authority's."""
        pairs = zip(self.authorities, self._signers, strict=True)
        return b"".join(revocations(each, signer, self.out, self.number) for each, signer in pairs)

    def _serial(self) -> int:
        self._last = Holder.serial_after(self._last, time.time())
        return self._last

    def _sign(self) -> bytes:
        self.number += 1
        self.signed = sign_list(self.fabric, self.number, self.out, self.authorities, self._signers)
        return self.signed
