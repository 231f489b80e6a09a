"""Moto for tests: a server of S3's requests, from pip, whose buckets can have versions; its objects are in memory."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from tests.brokers.address import Address
from tests.brokers.install import by_pip
from tests.brokers.process import Guard, Served, Server, free_ports, listens


def moto_program() -> Path:
    """Return the folder of the program, and bring it here if need be; raises MissingError."""
    return by_pip("moto[server]==5.2.5")


class Moto(Served):
    """A server on a free loopback port, which checks no login."""

    def __init__(self) -> None:
        """Make a server ready to start; raises MissingError when it cannot be brought here."""
        folder = moto_program()
        self._guard = Guard("moto")
        self.log = self._guard.folder / "server.log"
        (self.port,) = free_ports(1)
        command = [sys.executable, "-m", "moto.server", "--host=127.0.0.1", f"--port={self.port}"]
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "PYTHONPATH": str(folder)}
        self._server = Server(self._guard, command, environment, log=self.log, ready=partial(listens, self.port))

    @property
    def address(self) -> Address:
        """Where it is, with any user and password."""
        return Address(f"http://user:password@127.0.0.1:{self.port}")

    def close(self) -> None:
        """End it, with its objects."""
        self._server.kill()
        self._guard.close()
