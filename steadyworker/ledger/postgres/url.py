"""
The conversion of a `postgresql://` URL to libpq's parameters, with a limit for every wait and with TLS that verifies the server.

The URL has libpq's own syntax, including several hosts, `sslmode`, `options` and `service`.
The variables of libpq (`PGHOST`, `PGPASSWORD` …) and the password file of libpq supply what the URL leaves out.
If libpq cannot read a URL, no message repeats libpq's error, because this error can quote the password.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from steadyworker.errors import ConfigError
from steadyworker.names import is_loopback
from steadyworker.system.authorities import trusted_authorities

_LEAST_CONNECT = 2.0
"""The shortest connect timeout, in seconds; libpq replaces a shorter timeout by two seconds."""

Parameters = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """
    The address of the server that has the ledger.

    Attributes:
        conninfo: The parameters for libpq; they contain the password.
        shown: The URL for people, with only user, hosts, ports and database.
        password: The password, which must not appear in messages; empty if there is none.
        chooses_schema: True if the URL's `options` set the search path, which names the schema of the tables.
        verified: True if no other server can pose as this server: the server is on this host, or TLS verifies the server.
    """

    conninfo: str = field(repr=False)
    shown: str
    password: str = field(repr=False)
    chooses_schema: bool
    verified: bool


def server_address(url: str, call: float) -> ServerAddress:
    """
    Return the address in a `postgresql://` URL; `call` is the limit for one ledger call in seconds.

    Raises ConfigError for a URL that libpq cannot read.
    """
    given = _read(url)
    known = _environment() | given
    tls = tls_defaults(known)
    parameters = _limits(call, len(known.get("host", "").split(","))) | tls | given
    parameters["client_encoding"] = "UTF8"
    verified = not is_remote(known) or (known | tls).get("sslmode") in {"verify-ca", "verify-full"}
    chooses_schema = "search_path" in known.get("options", "")
    return ServerAddress(
        make_conninfo(**parameters), _shown(known), known.get("password", ""), chooses_schema, verified
    )


def _read(url: str) -> dict[str, str]:
    """Return the URL's parameters, by libpq's names."""
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except ProgrammingError:
        given = {}
    ports = given.get("port", "").split(",")
    # For libpq, a `/` in the password ends the host: libpq reads the text before the `/` as a port, and the rest as a database.
    torn = "@" in url.partition("://")[2].partition("/")[2].partition("?")[0]
    if not given or torn or not all(port.isdecimal() for port in ports if port):
        raise ConfigError(
            "Expected --ledger postgresql://user:password@host:port/database, got a URL that libpq cannot read: "
            "percent-encode user and password (`/` is %2F, `@` is %40), and check the options.",
            id="config.ledger-url",
        ) from None
    return given


def tls_defaults(parameters: Parameters) -> dict[str, str]:
    """
    Return the TLS parameters to add to a URL without `sslmode`.

    The default of libpq, `prefer`, accepts any server without verification.
    For a server on this host, this default stays.
    Any other server must show a certificate for its name (`sslmode=verify-full`), signed by an authority that this system trusts.
    """
    if "sslmode" in parameters or not is_remote(parameters):
        return {}
    return {"sslmode": "verify-full", "sslrootcert": parameters.get("sslrootcert", trusted_authorities())}


def is_remote(parameters: Parameters) -> bool:
    """Return whether any host is another machine; return True for a `service`, because only libpq can read a service's hosts."""
    if "service" in parameters:
        return True
    hosts = f"{parameters.get('host', '')},{parameters.get('hostaddr', '')}".split(",")
    return not all(_is_here(host) for host in hosts if host)


def _is_here(host: str) -> bool:
    """Return whether the host is a Unix socket (a path, or `@name`) or a loopback address."""
    return host.startswith(("/", "@")) or is_loopback(host)


def _environment() -> dict[str, str]:
    """Return the parameters that the environment variables of libpq set, as libpq reads these variables."""
    return {
        option.keyword.decode(): option.val.decode()
        for option in Conninfo.get_defaults()
        if option.val is not None and option.val != option.compiled
    }


def _limits(call: float, hosts: int) -> dict[str, str]:
    """
    Return the options of a connection: time limits for libpq and the kernel, and the condition that the server is a primary.

    Connecting may take `call` / 2 seconds, divided equally among all hosts.
    """
    return {
        "application_name": f"steadyworker/{socket.gethostname()}/{os.getpid()}",
        "connect_timeout": f"{max(_LEAST_CONNECT, call / 2 / hosts):.0f}",
        "keepalives_idle": "15",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": f"{call * 1000:.0f}",
        "target_session_attrs": "read-write",
    }


def _shown(parameters: Parameters) -> str:
    hosts = parameters.get("host", parameters.get("hostaddr", "")).split(",")
    ports = parameters.get("port", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = [_place(host) + (f":{port}" if port else "") for host, port in zip(hosts, ports, strict=False)]
    user = quote(parameters.get("user", ""), safe="")
    database = quote(parameters.get("dbname", parameters.get("service", "")), safe="")
    return f"postgresql://{user}{'@' if user else ''}{','.join(places)}/{database}"


def _place(host: str) -> str:
    return f"[{host}]" if ":" in host else quote(host, safe="")
