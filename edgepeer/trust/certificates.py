"""Authorities, certificates and requests for them: made, issued, checked.

All keys are of P-256 with SHA-256. An authority counts for 10 years, a certificate for one, both since 1970: a device
may not know what time it is. Names and extensions of a request are never looked at; what a certificate says, its
issuer has made up.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgepeer.errors import Expired, TrustError
from edgepeer.trust.clock import believable, date
from edgepeer.trust.names import Holder, Role

__all__ = [
    "LIFETIME_S",
    "Authority",
    "Checked",
    "certificates_in",
    "check",
    "expired",
    "issue",
    "key_bytes",
    "key_of_request",
    "load_key",
    "make_authority",
    "make_key",
    "pem",
    "private_pem",
    "request",
    "revocations",
]

LIFETIME_S: Final = 365 * 86400
_AUTHORITY_LIFETIME_S: Final = 3653 * 86400
_SINCE: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST: Final = 4096
"""Bytes of a certificate, or of a request for one: what is larger isn't looked at."""
_DIGEST: Final = hashes.SHA256()
_ECDSA: Final = ec.ECDSA(_DIGEST)
_SERVES: Final = {Role.PEER, Role.BROKER, Role.ENROLMENT}
_DIALS: Final = {Role.PEER, Role.OPERATOR, Role.VIEWER, Role.BROKER}
"""A broker, too: to have its certificate renewed."""
_MALFORMED: Final = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True)
class Authority:
    """One who says who is of the fleet, as all know it; taken apart once."""

    der: bytes
    name: x509.Name
    key: ec.EllipticCurvePublicKey

    @classmethod
    def read(cls, der: bytes) -> Authority:
        """The authority whose certificate it is.

        Raises:
            TrustError: it is none.
        """
        try:
            certificate = x509.load_der_x509_certificate(_bounded(der))
            key = certificate.public_key()
            able = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
            if not able or not isinstance(key, ec.EllipticCurvePublicKey) or certificate.issuer != certificate.subject:
                raise ValueError("no authority's")
            key.verify(certificate.signature, certificate.tbs_certificate_bytes, _ECDSA)
        except (*_MALFORMED, InvalidSignature):
            raise TrustError("what should be the certificate of an authority is none") from None
        return cls(bytes(der), certificate.subject, key)

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Whether it has signed that."""
        try:
            self.key.verify(signature, data, _ECDSA)
        except (InvalidSignature, ValueError):
            return False
        return True


def make_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def load_key(data: bytes) -> ec.EllipticCurvePrivateKey:
    """A private key as `private_pem` wrote it.

    Raises:
        ValueError: it is none.
    """
    try:
        key = load_pem_private_key(data, None)
    except (*_MALFORMED,):
        raise ValueError("is not a private key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise ValueError("is not a key of P-256")
    return key


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def pem(certificates: Iterable[bytes]) -> bytes:
    """Certificates, as a file of them."""
    return "".join(map(ssl.DER_cert_to_PEM_cert, certificates)).encode()


def certificates_in(data: bytes) -> list[bytes]:
    """The certificates of a file.

    Raises:
        ValueError: it has none, or something else.
    """
    try:
        return [each.public_bytes(Encoding.DER) for each in x509.load_pem_x509_certificates(data)]
    except (*_MALFORMED,):
        raise ValueError("holds no certificate") from None


def make_authority(name: str, key: ec.EllipticCurvePrivateKey, serial: int) -> bytes:
    """A certificate that the key signs for itself: what it issues counts. Each of a fleet has a name of its own."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = _usage(key_cert_sign=True, crl_sign=True, digital_signature=False)
    return (
        _builder(subject, subject, key.public_key(), key.public_key(), serial, _AUTHORITY_LIFETIME_S)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, _DIGEST)
        .public_bytes(Encoding.DER)
    )


def issue(
    authority: bytes,
    signer: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey,
    holder: Holder,
    lifetime_s: float = LIFETIME_S,
) -> bytes:
    """A certificate of that authority, that whoever has the key is that holder."""
    issuer = x509.load_der_x509_certificate(authority).subject
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, holder.common_name)])
    uses = [ExtendedKeyUsageOID.SERVER_AUTH] * (holder.role in _SERVES)
    uses += [ExtendedKeyUsageOID.CLIENT_AUTH] * (holder.role in _DIALS)
    return (
        _builder(subject, issuer, key, signer.public_key(), holder.serial, lifetime_s)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(holder.uri)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(key_cert_sign=False, crl_sign=False, digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .sign(signer, _DIGEST)
        .public_bytes(Encoding.DER)
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePublicKey,
    serial: int,
    lifetime_s: float,
) -> x509.CertificateBuilder:
    issued = datetime.fromtimestamp((serial >> 16) // 1000, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(_SINCE)
        .not_valid_after(issued + timedelta(seconds=lifetime_s))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _usage(*, key_cert_sign: bool, crl_sign: bool, digital_signature: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """That the key's owner wants a certificate. It names nobody: who that is, the authority says."""
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .sign(key, _DIGEST)
        .public_bytes(Encoding.DER)
    )


def key_of_request(der: bytes) -> ec.EllipticCurvePublicKey:
    """The key of a request, which its sender has; and nothing else of it.

    Raises:
        TrustError: it is not what it should be.
    """
    try:
        asked = x509.load_der_x509_csr(_bounded(der))
        key = asked.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
            raise TrustError("the request for a certificate is for a key that is not of P-256")
        if not asked.is_signature_valid:
            raise TrustError("the request for a certificate is not signed by its key")
    except (*_MALFORMED, InvalidSignature):
        raise TrustError("the request for a certificate is malformed") from None
    return key


def key_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """The same for the same key."""
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


@dataclass(frozen=True)
class Checked:
    """What an authority that counts has said."""

    holder: Holder
    key: ec.EllipticCurvePublicKey
    authority: Authority
    ends: float
    """When it stops counting."""


def check(der: bytes, authorities: Sequence[Authority]) -> Checked:
    """Whom a certificate names, which one of the authorities must have issued. Whether it has expired isn't looked at.

    Raises:
        TrustError: none has, or it is not as they issue them; says what is wrong.
    """
    try:
        certificate = x509.load_der_x509_certificate(_bounded(der))
        serial = certificate.serial_number
        issuers = [each for each in authorities if each.name == certificate.issuer]
        tbs, signature = certificate.tbs_certificate_bytes, certificate.signature
        plain = certificate.signature_algorithm_oid == x509.SignatureAlgorithmOID.ECDSA_WITH_SHA256
        authority = next((each for each in issuers if plain and each.verify(signature, tbs)), None)
        if authority is None:
            raise TrustError(
                f"certificate {serial:x} was issued by no authority of this fleet: it is of another one, or of before "
                "the authority was rotated; bring the device in again: edgepeer join HOST STRING"
            )
        extensions = certificate.extensions
        names = list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        uris = [each.value for each in names if isinstance(each, x509.UniformResourceIdentifier)]
        if len(names) != 1 or len(uris) != 1:
            raise TrustError(f"certificate {serial:x} has {len(names)} names, not one")
        holder = Holder.parse(uris[0], serial)
        common = [each.value for each in certificate.subject]
        if common != [holder.common_name]:
            raise TrustError(f"certificate {serial:x} of {holder} has another common name than that")
        if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise TrustError(f"certificate {serial:x} is an authority's, not a member's")
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
            raise TrustError(f"certificate {serial:x} of {holder} is for a key that is not of P-256")
        return Checked(holder, key, authority, certificate.not_valid_after_utc.timestamp())
    except (*_MALFORMED,):
        raise TrustError("a certificate is malformed") from None


def expired(checked: Checked) -> Expired | None:
    """That a certificate has, by a clock that can be believed."""
    now = believable()
    if now is None or now <= checked.ends:
        return None
    joins = checked.holder.role in (Role.PEER, Role.VIEWER)
    beside = "" if joins else "beside the authority `edgepeer fleet serve` renews it; elsewhere "
    again = f"{beside}join again: edgepeer join HOST STRING"
    return Expired(
        f"certificate {checked.holder.serial:x} of {checked.holder} has expired on {date(checked.ends)} (today is "
        f"{date(now)} by this machine's clock, which is to be set if that is wrong): {again}"
    )


def revocations(authority: bytes, signer: ec.EllipticCurvePrivateKey, serials: Iterable[int], number: int) -> bytes:
    """The list of who is out in the form that brokers of others read, as PEM. It stays good for as long as the
    authority: once one is out of date, OpenSSL refuses everybody."""
    issuer = x509.load_der_x509_certificate(authority)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(_SINCE)
        .next_update(issuer.not_valid_after_utc)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    for serial in sorted(serials):
        out = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(_SINCE).build()
        builder = builder.add_revoked_certificate(out)
    return builder.sign(signer, _DIGEST).public_bytes(Encoding.PEM)


def _bounded(der: bytes) -> bytes:
    if len(der) > _LARGEST:
        raise ValueError(f"{len(der)} bytes, more than {_LARGEST}")
    return bytes(der)
