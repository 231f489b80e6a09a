"""
From a `postgresql://` URL to what libpq is told: time limits on everything, and TLS that verifies.

The URL is libpq's own: several hosts, `sslmode`, `options`, `service`; its variables (`PGHOST`, `PGPASSWORD` …) and its
password file fill in what the URL leaves out.
What libpq says of a URL that it cannot read is never repeated, for it quotes the part where it stumbled: the password.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from steadyworker.errors import ConfigError

_LEAST_CONNECT = 2.0
"""libpq takes less than two seconds for a mistake, and waits for two."""

_CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Red Hat, Fedora, Amazon
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS
)

Parameters = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """
    Where the ledger is.

    Attributes:
        conninfo: What libpq is told; holds the password.
        shown: The URL for people: user, hosts, ports and database, and nothing else.
        password: To be taken out of whatever is said; empty when the URL has none.
        verified: No stranger can pass for this server: it is on this host, or TLS verifies its name.
    """

    conninfo: str = field(repr=False)
    shown: str
    password: str = field(repr=False)
    verified: bool


def target_of(url: str, call: float) -> Target:
    """
    Read a `postgresql://` URL; `call` is how many seconds one ledger call may take.

    Raises ConfigError for a URL that libpq cannot read.
    """
    given = _read(url)
    known = _environment() | given
    tls = tls_defaults(known)
    told = _limits(call, len(known.get("host", "").split(","))) | tls | given
    told["options"] = f"{given.get('options', '')} {_session(call)}".strip()
    told["client_encoding"] = "UTF8"
    verified = not is_remote(known) or (known | tls).get("sslmode") in {"verify-ca", "verify-full"}
    return Target(make_conninfo(**told), _shown(known), known.get("password", ""), verified)


def _read(url: str) -> dict[str, str]:
    """What the URL says, by libpq's names."""
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except ProgrammingError:
        given = {}
    ports = given.get("port", "").split(",")
    # A `/` in a password ends the host for libpq: the password's head is a port to it, its tail a database.
    torn = "@" in url.partition("://")[2].partition("/")[2].partition("?")[0]
    if not given or torn or not all(port.isdecimal() for port in ports if port):
        raise ConfigError(
            "Expected --ledger postgresql://user:password@host:port/database, got a URL that libpq does not read so: "
            "percent-encode what is special in user and password (`/` is %2F, `@` is %40), and check its options."
        ) from None
    return given


def tls_defaults(parameters: Parameters) -> dict[str, str]:
    """
    What is added where these parameters do not say how TLS is to be used.

    libpq's own default, `prefer`, talks to whoever answers.
    A server on this host is left to that; any other must show a certificate for its name (`sslmode=verify-full`), signed
    by an authority that this system trusts.
    """
    if "sslmode" in parameters or not is_remote(parameters):
        return {}
    return {"sslmode": "verify-full", "sslrootcert": parameters.get("sslrootcert", _system_roots())}


def is_remote(parameters: Parameters) -> bool:
    """Whether any of the hosts is not this one; of a `service`, whose hosts only libpq knows, that is assumed."""
    if "service" in parameters:
        return True
    hosts = f"{parameters.get('host', '')},{parameters.get('hostaddr', '')}".split(",")
    return not all(_is_here(host) for host in hosts if host)


def _is_here(host: str) -> bool:
    """A Unix socket (a path, or `@name`), or a loopback address."""
    if host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _system_roots() -> str:
    """
    The authorities that this system trusts.

    libpq's word for them is `system`, but the OpenSSL in psycopg's binary wheels looks where no system keeps them.
    """
    found = ssl.get_default_verify_paths().cafile
    return found or next((path for path in _CA_BUNDLES if Path(path).exists()), "system")


def _environment() -> dict[str, str]:
    """What libpq's variables say, as libpq reads them."""
    return {
        option.keyword.decode(): option.val.decode()
        for option in Conninfo.get_defaults()
        if option.val is not None and option.val != option.compiled
    }


def _limits(call: float, hosts: int) -> dict[str, str]:
    """How long libpq and the kernel may wait (to connect half a call, all hosts together); a primary is wanted."""
    return {
        "application_name": f"steadyworker/{socket.gethostname()}/{os.getpid()}",
        "connect_timeout": f"{max(_LEAST_CONNECT, call / 2 / hosts):.0f}",
        "keepalives_idle": "15",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": f"{call * 1000:.0f}",
        "target_session_attrs": "read-write",
    }


def _session(call: float) -> str:
    """
    The server's own limits, in milliseconds: it gives up before we do, so that no statement lands long after its call.

    A compare-and-set must be refused, not fail, where another was first: `read committed`, whatever the database prefers.
    """
    limits = {
        "lock_timeout": f"{call * 500:.0f}",
        "statement_timeout": f"{call * 800:.0f}",
        "idle_in_transaction_session_timeout": f"{call * 1000:.0f}",
        "default_transaction_isolation": r"read\ committed",
    }
    return " ".join(f"-c {name}={value}" for name, value in limits.items())


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
