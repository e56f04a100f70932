"""A key and its certificate as TLS shows them: what this process holds, and not what is in a file by now.

Somebody may have made the device's directory another identity's meanwhile, or lost the file: a process that went by
that would show a certificate of somebody else than it says to be, and fall out of its fleet. OpenSSL takes both from a
file only: so they are put into one that is in memory, and has no name; or that is gone at once, where there is no such.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from edgepeer.trust.certificates import pem, private_pem

__all__ = ["show"]


def show(context: ssl.SSLContext, key: ec.EllipticCurvePrivateKey, certificate: bytes) -> None:
    """Let whoever uses that context show this certificate, which is for that key."""
    data = private_pem(key) + pem([certificate])
    try:
        with open(os.memfd_create("edgepeer"), "wb") as file:  # no child inherits it
            file.write(data)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    except (AttributeError, OSError):  # not Linux, or it lets nobody have such a file, or open it by its number
        with tempfile.TemporaryDirectory(prefix="edgepeer-") as directory:
            path = Path(directory) / "shown.pem"
            path.touch(mode=0o600)
            path.write_bytes(data)
            context.load_cert_chain(path)
