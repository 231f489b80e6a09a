"""The address of a Spark Connect server, and its form without secrets."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit

from steadyworker.errors import ConfigError

SCHEME = "sc://"
_PORT = 15002
_NEEDED = ("pyspark", "pyarrow", "pandas", "grpc", "grpc_status", "google.rpc")


@dataclass(frozen=True, slots=True)
class ConnectAddress:
    """
    The host and port of a Spark Connect server.

    The options after the `;` can contain a token; this class checks the options, but does not store them.
    """

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Self:
        """
        Parse and check `sc://host[:port][/;name=value;…]`.

        Raises:
            ConfigError: The text is not such an address; the message leaves out all text after the host.
        """
        parts = urlsplit("http" + url.removeprefix("sc"))
        try:
            host, port = parts.hostname or "", parts.port or _PORT
        except ValueError:
            host, port = "", _PORT
        path, _, options = parts.path.partition(";")
        names = [option.partition("=")[0] for option in options.split(";")] if options else []
        strange = "@" in parts.netloc or parts.query or parts.fragment or path not in {"", "/"}
        if not url.startswith(SCHEME) or not host or strange or not all(names):
            raise ConfigError(
                f"Expected a Spark Connect server as sc://host:port/;name=value;…, got one at {host or 'no host'!r}: "
                "correct spark_master.",
                id="spark.setting",
            )
        if "session_id" in map(unquote, names):
            raise ConfigError(
                "Expected a Spark Connect address without session_id: each export has a session of its own.",
                id="spark.setting",
            )
        return cls(host, port)

    def __str__(self) -> str:
        return f"{SCHEME}{self.host}:{self.port}"

    def check_client(self) -> None:
        """
        Check that this machine has the packages of Spark Connect's client.

        Raises:
            ConfigError: A package is missing; the message names the extra to install.
        """
        missing = [name for name in _NEEDED if not _installed(name)]
        if missing:
            raise ConfigError(
                f"Expected the packages of a Spark Connect client, got no {', '.join(missing)}: "
                "pip install 'steadyworker[spark-connect]'.",
                id="spark.setting",
            )

    def answers(self, within: float) -> bool:
        """Return whether a server accepts a connection at this address within `within` seconds."""
        try:
            socket.create_connection((self.host, self.port), within).close()
        except OSError:
            return False
        return True


def of_session(url: str, session: str) -> str:
    """
    Return the address with the name of a session.

    The address also gets a user, unless it has one, because each host must be able to end the sessions of other hosts.
    """
    base, _, given = url.partition(";")
    options = [option for option in given.split(";") if option]
    user = [] if any(option.startswith("user_id=") for option in options) else ["user_id=steadyworker"]
    return f"{base.removesuffix('/')}/;{';'.join([*options, *user, f'session_id={session}'])}"


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the module's parent package is missing
        return False
