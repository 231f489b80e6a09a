"""Azurite for tests: Microsoft's own server of Azure's blob requests, from npm, with its objects as files; it keeps If-None-Match when two requests race."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from tests.brokers.install import NODE, by_npm
from tests.brokers.process import Guard, Served, Server, free_ports, listens

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and the key that Azurite's documentation names for all who use it."""


def azurite_program() -> Path:
    """Return the folder of the program, and bring it here if need be; raises MissingError."""
    return by_npm("azurite@3.35.0")


class Azurite(Served):
    """A server on a free loopback port."""

    def __init__(self) -> None:
        """Make a server ready to start; raises MissingError when it cannot be brought here."""
        folder = azurite_program()
        self._guard = Guard("azurite")
        self.log = self._guard.folder / "server.log"
        (self.port,) = free_ports(1)
        options = [f"--blobPort={self.port}", "--blobHost=127.0.0.1", f"--location={self._guard.folder / 'data'}"]
        command = [str(NODE), str(folder / "node_modules" / ".bin" / "azurite-blob"), *options]
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
        self._server = Server(
            self._guard,
            [*command, "--skipApiVersionCheck", "--disableTelemetry", "--silent"],
            environment,
            log=self.log,
            ready=partial(listens, self.port),
        )

    @property
    def url(self) -> str:
        """The URL of its blobs."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """End it, with its objects."""
        self._server.kill()
        self._guard.close()
