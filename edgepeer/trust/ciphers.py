"""Which cipher two peers seal with, and the keys that come from what they tell each other.

AES-GCM is the fastest where the processor has instructions for it, and several times slower than ChaCha20-Poly1305
where it hasn't: a Raspberry Pi 4, say.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Final, TypeAlias

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

__all__ = ["KEY_BYTES", "TAG_BYTES", "Cipher", "cipher", "derive", "has_aes"]

KEY_BYTES: Final = 32
"""Of everything that keys come from."""
TAG_BYTES: Final = 16
"""By which what is sealed is longer."""
_AES_KEY_BYTES: Final = 16
Cipher: TypeAlias = AESGCM | ChaCha20Poly1305


@functools.cache
def has_aes() -> bool:
    """Whether this processor has instructions for AES."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:  # no Linux
        return platform.machine().lower() in ("x86_64", "amd64", "arm64")
    for line in told.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return "aes" in flags.split()
    return False


def derive(secret: bytes, info: bytes) -> bytes:
    """A key for one purpose: HKDF-SHA256 (RFC 5869)."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def cipher(key: bytes, *, aes: bool) -> Cipher:
    """What seals with that key, of KEY_BYTES."""
    return AESGCM(key[:_AES_KEY_BYTES]) if aes else ChaCha20Poly1305(key)
