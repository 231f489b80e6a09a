"""
The broker's URL: its addresses, login and options.

`amqp[s]://user:password@host1:5672,host2/vhost?option=value&…`; user, password and virtual host are percent-encoded.

| option | |
|---|---|
| `heartbeat` | seconds, 60 by default; a side that receives nothing for two to three times this long drops the connection |
| `connection_name` | the connection's name in the broker's lists and log; by default the consumer's name and its purpose |
| `cafile` | `amqps`: a PEM file of the authorities to trust for the broker's certificate, instead of the system's authorities |
| `certfile`, `keyfile` | `amqps`: our own certificate and its key; without a user in the URL, it is also the login (EXTERNAL) |
| `server_name` | `amqps`: the name in the broker's certificate, if it is not the host's name |
| `management` | the management API: a URL, or `off`; by default port 15672 (15671 with TLS) of the first host |

With a login by certificate, there is no password for the management API, so the adapter does not query it.
The adapter always verifies the broker's certificate.
All other limits in `ConnectionParameters` have fixed values, so that no wait is endless.
"""

from __future__ import annotations

import difflib
import os
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pika import ConnectionParameters, SSLOptions
from pika.credentials import ExternalCredentials, PlainCredentials

from steadyworker.errors import ConfigError
from steadyworker_rabbitmq.checks.management import Management

HEARTBEAT = 60
"""
The default heartbeat in seconds.

This heartbeat is long enough for a process to keep its connection during a short suspend or swap.
It is also short enough for the broker to notice a dead process within three minutes.
"""

# The pattern of RFC 3986, appendix B. Since its releases of 2025, Python's `urlsplit` refuses [::1] behind another host.
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.IGNORECASE | re.DOTALL)

_PORTS = {"amqp": 5672, "amqps": 5671}
_TLS_OPTIONS = ("cafile", "certfile", "keyfile", "server_name")
_OPTIONS = ("heartbeat", "connection_name", "management", *_TLS_OPTIONS)
_LONGEST_HEARTBEAT = 3600
_HOW = "write amqp[s]://user:password@host:port/vhost, with user and password percent-encoded"

# The first limit, in seconds, is for the socket; the second is for socket, TLS and AMQP together.
# So a slow broker has at least 10 s for its half of the handshake.
_CONNECT_WITHIN = 10.0
_OPEN_WITHIN = 20.0
# The longest time in seconds for which an alarm blocks the connection; without it, a call could wait without end.
_BLOCKED_FOR = 300.0
# The kernel notices a vanished peer within 30 s if data is unacknowledged, otherwise within 90 s.
_TCP = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one of the broker's hosts."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS files and names of the URL; the files are read again for each connection."""

    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """
        Return a TLS context that verifies certificate and host name.

        Raises:
            ConfigError: A file does not exist, cannot be read, or is not PEM.
        """
        for path in filter(None, (self.cafile, self.certfile, self.keyfile)):
            if not os.access(path, os.R_OK) or not Path(path).is_file():
                raise ConfigError(
                    f"Expected a file at {path} that this user may read, got none: "
                    "correct the broker's URL, or the file's permissions."
                )
        try:
            context = ssl.create_default_context(cafile=self.cafile)
            # This is Python's own minimum; Debian's Python leaves the minimum to OpenSSL's configuration.
            context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
            if self.certfile is not None:
                # With an empty password, OpenSSL refuses an encrypted key; without one, it would ask for a password on the terminal.
                context.load_cert_chain(self.certfile, self.keyfile, password="")
        except ssl.SSLError as error:
            got = error.reason or "no PEM"
            raise ConfigError(
                "Expected PEM files in the options cafile, certfile and keyfile, and a key without a password, "
                f"got: {got}: correct the files."
            ) from error
        return context


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """The parsed URL, with hosts in any order; its text and repr never show the password."""

    addresses: tuple[Address, ...]
    vhost: str = "/"
    user: str | None = "guest"
    password: str = field(default="guest", repr=False)
    tls: Tls | None = None
    heartbeat: int = HEARTBEAT
    name: str | None = None
    management_url: str | None = None

    def parameters(self, address: Address, purpose: str) -> ConnectionParameters:
        """
        Return the parameters for one try at one host, with a limit for every wait.

        Raises:
            ConfigError: A TLS file cannot be read.
        """
        credentials = ExternalCredentials() if self.user is None else PlainCredentials(self.user, self.password)
        tls = self.tls and SSLOptions(self.tls.context(), self.tls.server_name or address.host)
        return ConnectionParameters(
            host=address.host,
            port=address.port,
            virtual_host=self.vhost,
            credentials=credentials,
            heartbeat=self.heartbeat,
            ssl_options=tls,
            connection_attempts=1,
            socket_timeout=_CONNECT_WITHIN,
            stack_timeout=_OPEN_WITHIN,
            blocked_connection_timeout=_BLOCKED_FOR,
            client_properties={"connection_name": self.name or purpose, "product": "SteadyWorker"},
            tcp_options=_TCP,
        )

    @property
    def management(self) -> Management | None:
        """The management API, or None if it is off; the API can still be unreachable."""
        if self.management_url == "off" or self.user is None:
            return None
        scheme, port = ("https", 15671) if self.tls else ("http", 15672)
        host = str(Address(self.addresses[0].host, port))
        url = self.management_url or f"{scheme}://{host}"
        tls = self.tls.context() if self.tls is not None and url.startswith("https:") else None
        return Management(url, self.user, self.password, self.vhost, tls)

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses))


def parse_url(url: str) -> BrokerUrl:
    """
    Parse a broker's URL.

    Raises:
        ConfigError: The URL is invalid; the message never repeats a password.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise ConfigError(f"Expected a broker's URL, got something else: {_HOW}.")  # it can have a password
    parts = SplitResult(match[1].lower(), match[2], match[3], match[4] or "", "")
    userinfo, at, hosts = parts.netloc.rpartition("@")
    user, colon, password = userinfo.partition(":")
    # An '@' after the host is part of an unencoded password, so no message before this check may repeat the URL.
    if "@" in url.removeprefix(f"{parts.scheme}://{parts.netloc}") or "#" in url:
        raise ConfigError(
            "Expected '@', '/', '?' and '#' to be percent-encoded in the broker's URL, got one that is not: "
            f"{_HOW} (%40 %2F %3F %23)."
        )
    if parts.path.count("/") > 1:
        raise ConfigError(f"Expected one virtual host in the broker's URL, got {parts.path!r}: {_HOW} ('/' as %2F).")
    options = _options(parts)
    tls = Tls(**{name: options.get(name) for name in _TLS_OPTIONS}) if parts.scheme == "amqps" else None
    external = tls is not None and tls.certfile is not None and not at
    found = BrokerUrl(
        addresses=tuple(_address(host, _PORTS[parts.scheme]) for host in hosts.split(",")),
        vhost=unquote(parts.path[1:]) or "/",
        user=None if external else unquote(user) if at else "guest",
        password=unquote(password) if colon else "" if at else "guest",
        tls=tls,
        heartbeat=_heartbeat(options.get("heartbeat", str(HEARTBEAT))),
        name=options.get("connection_name"),
        management_url=_management(options.get("management")),
    )
    if tls is not None:
        tls.context()  # so that a missing file is reported now, not at the first connect
    return found


def _options(parts: SplitResult) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigError(
            "Expected name=value&… after the '?' of the broker's URL, got something else: correct the options."
        ) from None
    options = dict(pairs)
    for name, value in options.items():
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, n=1)
            remedy = f"did you mean {near[0]}?" if near else "leave it out."
            raise ConfigError(
                f"Expected only the options {', '.join(_OPTIONS)} in the broker's URL, got {name!r}: {remedy}"
            )
        if name in _TLS_OPTIONS and parts.scheme != "amqps":
            raise ConfigError(
                f"Expected the option {name} only in a URL that begins with amqps://, got {parts.scheme}://: "
                "write amqps://, or leave the option out."
            )
        if not value:
            raise ConfigError(
                f"Expected a value for the option {name} in the broker's URL, got none: give a value, or leave the option out."
            )
    if len(pairs) != len(options):
        raise ConfigError("Expected each option of the broker's URL once, got an option twice: remove one of the two.")
    if ("keyfile" in options) and "certfile" not in options:
        raise ConfigError(
            "Expected the options certfile and keyfile together in the broker's URL, got keyfile alone: add certfile."
        )
    return options


def _address(text: str, default_port: int) -> Address:
    host, bracket, rest = text[1:].partition("]") if text.startswith("[") else (text.partition(":")[0], "", "")
    port = rest if bracket else text.removeprefix(host)
    if not host or (port and not (port.startswith(":") and port[1:].isdecimal() and 0 < int(port[1:]) < 1 << 16)):
        # The message does not repeat the text after the colon, because that text can be a password.
        raise ConfigError(
            f"Expected host or host:port in the broker's URL, got {host!r} with a port that is not from 1 to 65535: {_HOW}."
            if host
            else f"Expected host or host:port in the broker's URL, got none: {_HOW}."
        )
    return Address(host, int(port[1:]) if port else default_port)


def _heartbeat(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= _LONGEST_HEARTBEAT:
        return int(text)
    raise ConfigError(
        f"Expected the option heartbeat to be from 1 to {_LONGEST_HEARTBEAT} whole seconds, got {text!r}: "
        "correct it; 0 is refused, because without a heartbeat a vanished broker is never noticed."
    )


def _management(text: str | None) -> str | None:
    if text is None or text == "off":
        return text
    with suppress(ValueError):  # an unclosed bracket, or an invalid port
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc and parts.port != 0:
            return text
    raise ConfigError(
        "Expected management=http[s]://host:port (without a user) or management=off in the broker's URL, "
        "got something else: correct it."
    )
