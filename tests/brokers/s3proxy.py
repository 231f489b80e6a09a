"""S3Proxy for tests: a server of S3's requests, from Maven's jar, with its objects as files; it keeps If-None-Match when two requests race."""

from __future__ import annotations

import os
import secrets
from functools import partial
from pathlib import Path

from tests.brokers.address import Address
from tests.brokers.maven import java, java_program
from tests.brokers.process import Guard, Served, Server, free_ports, listens

VERSION = "4.1.0"
ARTIFACT = f"org.gaul:s3proxy:{VERSION}:jar-with-dependencies"
USER, REGION = "steadyworker", "us-east-1"
CONFIGURATION = """\
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={user}
s3proxy.credential={password}
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={data}
"""


def s3proxy_program() -> Path:
    """Return the folder of the program, and bring it here if need be; raises MissingError."""
    return java_program(f"s3proxy-{VERSION}", (ARTIFACT,))


class S3Proxy(Served):
    """A server on a free loopback port; its objects are in a temporary folder."""

    def __init__(self) -> None:
        """Make a server ready to start; raises MissingError when it cannot be brought here."""
        program = s3proxy_program()
        self._guard = Guard("s3proxy")
        self.log = self._guard.folder / "server.log"
        (self.port,) = free_ports(1)
        self.password = secrets.token_hex(16)
        data, settings = self._guard.folder / "data", self._guard.folder / "s3proxy.conf"
        data.mkdir()
        settings.write_text(CONFIGURATION.format(port=self.port, user=USER, password=self.password, data=data))
        small = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
        command = [str(java()), *small, "-cp", f"{program / 'lib'}/*", "org.gaul.s3proxy.Main", "--properties"]
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
        self._server = Server(
            self._guard, [*command, str(settings)], environment, log=self.log, ready=partial(listens, self.port)
        )

    @property
    def address(self) -> Address:
        """Where other test processes reach it: its URL has the user and the password."""
        return Address(f"http://{USER}:{self.password}@127.0.0.1:{self.port}")

    def close(self) -> None:
        """End it, with its objects."""
        self._guard.close()
