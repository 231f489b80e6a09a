"""
The broker's URL: its addresses, login and options.

The README of this adapter explains the form of the URL, and lists the options in a table.
With a login by certificate, there is no password for the management API, so the adapter does not query this API.
The adapter always verifies the broker's certificate.
All other limits in `ConnectionParameters` have fixed values, so that no wait is endless.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pika import ConnectionParameters, SSLOptions
from pika.credentials import ExternalCredentials, PlainCredentials

from steadyworker.errors import ConfigError
from steadyworker.network.url import TCP_OPTIONS, Address, Form, Tls, heartbeat_of
from steadyworker_rabbitmq.checks.management import ManagementApi

HEARTBEAT = 60
"""
The default heartbeat in seconds.

With this heartbeat, a process keeps its connection during a short suspend or swap.
The broker still notices a dead process within three minutes.
"""

FORM = Form(
    ports={"amqp": 5672, "amqps": 5671},
    tls_scheme="amqps",
    options=("heartbeat", "connection_name", "management"),
    example="write amqp[s]://user:password@host:port/vhost, with user and password percent-encoded",
    path="virtual host",
)

# The first limit, in seconds, is for the socket; the second limit is for socket, TLS and AMQP together.
# So a slow broker has at least 10 s for its half of the handshake.
_CONNECT_WITHIN = 10.0
_OPEN_WITHIN = 20.0
# The longest time in seconds for which an alarm blocks the connection; without this limit, a call could wait without end.
_BLOCKED_FOR = 300.0


@dataclass(frozen=True, slots=True)
class RabbitmqUrl:
    """The parsed URL, with hosts in any order. Neither its text nor its repr shows the password."""

    addresses: tuple[Address, ...]
    vhost: str = "/"
    user: str | None = "guest"
    password: str = field(default="guest", repr=False)
    tls: Tls | None = None
    heartbeat: int = HEARTBEAT
    name: str | None = None
    management_url: str | None = None
    open_within: float = _OPEN_WITHIN

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
            stack_timeout=self.open_within,
            blocked_connection_timeout=_BLOCKED_FOR,
            client_properties={"connection_name": self.name or purpose, "product": "SteadyWorker"},
            tcp_options=TCP_OPTIONS,
        )

    @property
    def management(self) -> ManagementApi | None:
        """The management API, which can still be unreachable; None if the URL or a login by certificate switches it off."""
        if self.management_url == "off" or self.user is None:
            return None
        scheme, port = ("https", 15671) if self.tls else ("http", 15672)
        host = str(Address(self.addresses[0].host, port))
        url = self.management_url or f"{scheme}://{host}"
        tls = self.tls.context() if self.tls is not None and url.startswith("https:") else None
        return ManagementApi(url, self.user, self.password, self.vhost, tls)

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses))


def parse_url(url: str) -> RabbitmqUrl:
    """
    Parse a broker's URL.

    Raises:
        ConfigError: The URL is invalid. The error's text never contains a password.
    """
    found = FORM.parse(url)
    external = found.user is None and found.tls is not None and found.tls.certfile is not None
    anonymous = found.user is None
    return RabbitmqUrl(
        addresses=found.addresses,
        vhost=found.path or "/",
        user=None if external else "guest" if anonymous else found.user,
        password="guest" if anonymous else found.password,  # the broker's own default
        tls=found.tls,
        heartbeat=heartbeat_of(found.options, HEARTBEAT),
        name=found.options.get("connection_name"),
        management_url=_management(found.options.get("management")),
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
        "got something else: correct it.",
        id="config.broker-url",
    )
