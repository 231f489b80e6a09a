"""The address of a Spark Connect server, checked, and as it may be shown."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit

from steadyworker.errors import ConfigError

SCHEME = "sc://"
_PORT = 15002
_NEEDED = ("pyspark", "pyarrow", "pandas", "grpc", "grpc_status", "google.rpc", "zstandard")
_OURS = {"session_id": "each export has a session of its own"}


@dataclass(frozen=True, slots=True)
class ConnectAddress:
    """
    Where a Spark Connect server is.

    What follows the `;` (a token, perhaps) is checked and not kept.
    """

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Self:
        """
        Check `sc://host[:port][/;name=value;…]`.

        Raises:
            ConfigError: It is none; the message has nothing of what follows the host.
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
                "correct spark_master."
            )
        for name in map(unquote, names):
            if name in _OURS:
                raise ConfigError(f"Expected a Spark Connect address without {name}: {_OURS[name]}.")
        return cls(host, port)

    def __str__(self) -> str:
        return f"{SCHEME}{self.host}:{self.port}"

    def check_client(self) -> None:
        """
        Look whether this machine has what Spark Connect's client needs.

        Raises:
            ConfigError: It has not; says what to install.
        """
        missing = [name for name in _NEEDED if not _installed(name)]
        if missing:
            raise ConfigError(
                f"Expected what a Spark Connect client needs, got no {', '.join(missing)}: "
                "pip install 'steadyworker[spark-connect]'."
            )

    def answers(self, within: float) -> bool:
        """Whether something listens there."""
        try:
            socket.create_connection((self.host, self.port), within).close()
        except OSError:
            return False
        return True


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False
