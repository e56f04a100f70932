"""Where the broker is: `mqtts://[user:password@]host[:port]`, or several of these, checked once; mqtt://: without TLS.

A password never shows: not in a repr, a log line or an error, not even when the rest is malformed.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote, urlsplit

from edgepeer.errors import ConfigError

__all__ = ["DEFAULT_PORT", "DEFAULT_TLS_PORT", "MAX_BROKERS", "BrokerAddress"]

DEFAULT_PORT = 1883
DEFAULT_TLS_PORT = 8883
MAX_BROKERS = 16
_SEPARATOR = re.compile(r", ?(?=mqtts?://)", re.IGNORECASE)  # a password may hold a comma
_HOST_NAME = re.compile(r"(?!-)[\w-]{1,63}(\.[\w-]{1,63})*\.?\Z")
_SHOWABLE = re.compile(
    r"([a-z][a-z0-9+.-]*://)?(.*@)?(\[[^\]]*\]|[^:/?#]*)(:\d{1,6}(?!\d))?(.*)\Z", re.IGNORECASE | re.DOTALL
)
_SHOWN_CHARS = 120
_CREDENTIAL_LIMIT_BYTES = 65535  # MQTT's own limit on a string
_SHAPE = "must be mqtt://[user:password@]host[:port], or mqtts://..."


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerAddress:
    """A broker and, if it wants one, our login; and where to go instead while it is away."""

    host: str
    """A name, an IPv4 or an IPv6 address, without brackets."""
    port: int = DEFAULT_PORT
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    """Whether it is spoken to in TLS."""
    others: tuple[BrokerAddress, ...] = ()
    """Brokers to use in its place, the best first."""

    @classmethod
    def parse(cls, text: str) -> BrokerAddress:
        """Read an address, or several with commas between them.

        Raises:
            ConfigError: one line that says what is wrong with it, without its password.
        """
        first, *rest = map(cls._parse_one, _SEPARATOR.split(text))
        if len(rest) >= MAX_BROKERS:
            raise ConfigError(f"broker: {len(rest) + 1} addresses, at most {MAX_BROKERS}")
        if any(other.tls != first.tls for other in rest):
            raise ConfigError("broker: some with TLS, some without: who stops the first chooses; all mqtts://, or none")
        return replace(first, others=tuple(rest))

    @classmethod
    def _parse_one(cls, text: str) -> BrokerAddress:
        shown = f"broker {_redacted(text)}"
        if not text.isprintable() or " " in text:
            raise ConfigError(f"{shown}: {_SHAPE}, without blanks")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            # urllib's own words may quote the password, when an unescaped '/' or '#' tore it apart.
            reason = "port must be 1 to 65535" if "ort" in str(error) else "not an address"
            raise ConfigError(f"{shown}: {reason}; {_SHAPE}") from None
        if parts.scheme not in ("mqtt", "mqtts") or not parts.netloc:
            raise ConfigError(f"{shown}: {_SHAPE}")
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            escapes = "in a password write '/', '?' and '#' as %2F, %3F and %23"
            raise ConfigError(f"{shown}: nothing may follow the port; {_SHAPE}; {escapes}")
        host = unquote(parts.hostname or "")
        if not _is_host(host):
            raise ConfigError(f"{shown}: host name missing or malformed; {_SHAPE}")
        if port == 0 or parts.netloc.endswith(":"):
            raise ConfigError(f"{shown}: port must be 1 to 65535; {_SHAPE}")
        username = unquote(parts.username) if parts.username is not None else None
        password = unquote(parts.password) if parts.password is not None else None
        if username is not None and not (username and username.isprintable()):
            raise ConfigError(f"{shown}: user name missing or not printable; {_SHAPE}")
        if max(len((secret or "").encode()) for secret in (username, password)) > _CREDENTIAL_LIMIT_BYTES:
            raise ConfigError(f"{shown}: user name or password is over {_CREDENTIAL_LIMIT_BYTES} bytes")
        tls = parts.scheme == "mqtts"
        usual = DEFAULT_TLS_PORT if tls else DEFAULT_PORT
        return cls(host=host, port=port or usual, username=username, password=password, tls=tls)

    @property
    def choices(self) -> tuple[BrokerAddress, ...]:
        """Each broker by itself, the best first."""
        return replace(self, others=()), *self.others

    def beginning_with(self, first: BrokerAddress) -> BrokerAddress:
        """The same, but one of them before the others."""
        return replace(first, others=tuple(each for each in self.choices if each != first))

    def url(self) -> str:
        """The whole address as `parse` reads it, password included: for a child process, not for a log."""
        return ",".join(each._url() for each in self.choices)

    def _url(self) -> str:
        login = ""
        if self.username is not None:
            secret = "" if self.password is None else f":{quote(self.password, safe='')}"
            login = f"{quote(self.username, safe='')}{secret}@"
        return f"{self._scheme()}://{login}{self._place()}"

    def __str__(self) -> str:
        return ", ".join(each._shown() for each in self.choices)

    def _shown(self) -> str:
        login = "" if self.username is None else f"{quote(self.username, safe='')}@"
        return f"{self._scheme()}://{login}{self._place()}"

    def _scheme(self) -> str:
        return "mqtts" if self.tls else "mqtt"

    def _place(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_host(host: str) -> bool:
    if _HOST_NAME.match(host) and len(host) <= 253:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _redacted(text: str) -> str:
    """The text with everything hidden that is, or might have been meant as, a password."""
    found = _SHOWABLE.match(text)
    scheme, login, host, port, rest = found.groups(default="") if found else ("", "", "", "", text)
    shown = f"{scheme}{'***@' if login else ''}{host}{port}"[:_SHOWN_CHARS]
    return ascii(shown + ("..." if rest else ""))
