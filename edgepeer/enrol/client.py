"""What a device asks the enrolment service: to be let in, and for a new certificate.

Nobody learns the secret of a join string but who has a certificate, for this purpose, of the very authority that the
string names. So joining takes two connections: one to be told that authority's certificate, by anybody, and one that
is verified with it.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from edgepeer.enrol import messages
from edgepeer.enrol.messages import Granted
from edgepeer.enrol.strings import JoinString, fingerprint, server_name
from edgepeer.errors import FabricError, TrustError, WireError
from edgepeer.printable import printable
from edgepeer.processes import os_reason
from edgepeer.sockets import connect_to, format_place
from edgepeer.trust.certificates import Authority, check, pem
from edgepeer.trust.directory import JOIN_AGAIN
from edgepeer.trust.identity import Identity
from edgepeer.trust.names import Role

__all__ = ["enrol", "renew"]

_NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)
"""A device that joins may not know what time it is."""
_AGAIN_S: Final = 0.1
_TIMES: Final = 5
"""So many times, each pause twice as long as the one before, a service is asked again that hangs up at once."""


async def enrol(host: str, port: int, string: JoinString, request: bytes, name: str, *, exact: bool) -> Granted:
    """A certificate for who has that join string.

    Raises:
        FabricError: nobody answers there; TrustError: somebody else does, or it says no.
    """
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    told, _ = await _ask(host, port, blind, string.authority, messages.Ask())
    given = told.certificates if isinstance(told, messages.Authorities) else ()
    authority = next((each for each in given if fingerprint(each) == string.authority), None)
    if authority is None:
        raise TrustError(
            f"{format_place(host, port)} is not of the fleet that the join string is for: somebody else answers there, "
            "or the string is of another fleet, or of before the authority was rotated: let "
            "`edgepeer fleet token` print another; nothing was sent"
        )
    trusted = [Authority.read(authority)]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_flags |= _NO_CHECK_TIME
    context.load_verify_locations(cadata=pem([authority]).decode())
    wanted = messages.Enrol(string.token, string.secret, request, name, exact)
    answer, _ = await _ask(host, port, context, string.authority, wanted, trusted)
    return _granted(answer)


async def renew(identity: Identity, host: str, port: int) -> Granted:
    """Another certificate for this device.

    Raises:
        FabricError: nobody answers there; TrustError: somebody else does, or it says no.
    """
    trusted = [*identity.evictions.authorities]
    try:
        context = identity.context(server=False)
    except OSError as error:  # ssl's are, too: TLS can't be given what this device holds
        raise TrustError(f"fleet = {identity.directory}: can't be used any more: {os_reason(error)}") from None
    named = fingerprint(identity.authority.der)
    answer, _ = await _ask(host, port, context, named, messages.Renew(), trusted)
    return _granted(answer)


async def _ask(
    host: str,
    port: int,
    context: ssl.SSLContext,
    authority: bytes,
    question: messages.Question,
    trusted: list[Authority] | None = None,
) -> tuple[messages.Answer, bytes]:
    """The answer; the question is sent only if who listens there enrols for one of those that are trusted, if any."""
    place, writer = format_place(host, port), None
    with _said(place):
        try:
            async with asyncio.timeout(messages.PATIENCE_S):
                reader, writer = await _connection(host, port, context, server_name(authority))
                certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
                if trusted is not None:
                    holder = check(certificate, trusted).holder
                    if holder.role is not Role.ENROLMENT:
                        raise TrustError(f"{holder} answers at {place} instead of the enrolment service")
                messages.send(writer, question)
                await writer.drain()
                return messages.answer(await messages.receive(reader, messages.ANSWER_BYTES)), certificate
        finally:
            if writer is not None:
                writer.transport.abort()


async def _connection(
    host: str, port: int, context: ssl.SSLContext, name: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection. A service that has too many hangs up at once: it is tried again."""
    pause = _AGAIN_S
    while True:
        try:
            return await asyncio.open_connection(
                sock=await connect_to(host, port, messages.PATIENCE_S),
                ssl=context,
                server_hostname=name,
                ssl_handshake_timeout=messages.PATIENCE_S,
                ssl_shutdown_timeout=1.0,
            )
        except ConnectionResetError:
            if pause > _AGAIN_S * 2**_TIMES:
                raise
            await asyncio.sleep(random.uniform(0.5, 1) * pause)
            pause *= 2


@contextmanager
def _said(place: str) -> Iterator[None]:
    """What goes wrong with a connection, in one line."""
    serve = f"is `edgepeer fleet serve` running at {place}?"
    try:
        yield
    except ssl.SSLCertVerificationError:
        raise TrustError(
            f"who answers at {place} has no certificate of the authority that we know: it is somebody else, or the "
            f"fleet has another one since (then {JOIN_AGAIN}); nothing was sent"
        ) from None
    except ssl.SSLError as error:
        spoken = "what answers does not speak TLS" if error.reason == "WRONG_VERSION_NUMBER" else ""
        reason = spoken or printable(error.reason or "TLS failed").lower().replace("_", " ")
        raise FabricError(f"enrolment at {place}: {reason}; {serve}") from None
    except TimeoutError:
        raise FabricError(f"enrolment at {place}: no answer within {messages.PATIENCE_S:g} s; {serve}") from None
    except socket.gaierror:
        raise FabricError(f"enrolment at {place}: host name not found: check it, or say the address") from None
    except ConnectionResetError:
        raise FabricError(f"enrolment at {place}: hung up; it may have too many connections, or {serve}") from None
    except OSError as error:
        raise FabricError(f"enrolment at {place}: {os_reason(error)}; {serve}") from None
    except (WireError, asyncio.IncompleteReadError):
        raise FabricError(f"enrolment at {place}: hung up, or is something else; {serve}") from None
    except UnicodeError:
        raise FabricError(f"enrolment at {place}: not a host name") from None


def _granted(answer: messages.Answer) -> Granted:
    if isinstance(answer, messages.Refused):
        reason = answer.reason
        raise TrustError(reason if reason.isprintable() else printable(reason))
    if not isinstance(answer, Granted):
        raise TrustError("the enrolment service has answered something else")
    return answer
