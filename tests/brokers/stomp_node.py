"""An ActiveMQ that the tests start, Classic or Artemis, in a folder of its own: to be frozen, killed and set."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificate

from tests.brokers.address import Address
from tests.brokers.maven import java
from tests.brokers.process import Guard, Served, Server, free_ports
from tests.brokers.stomp_broker import LIMITED, StompBroker

USER = "steadyworker"
STORE_PASSWORD = "changeit"
"""The password of the files with certificates; that of the logins is made for each node."""

AGENT = "org.jolokia:jolokia-agent-jvm:2.2.9:javaagent"
SMALL = ("-Xms32m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""A Java that stays small (an idle broker has some 120 MB), and starts without its second compiler, which costs seconds."""

ADDRESSES = ("-Djava.net.preferIPv4Stack=true",)
LOG = (
    *("-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"),
    "-Dorg.slf4j.simpleLogger.log.org.apache.activemq.audit=warn",
)
"""Artemis's audit would else write several lines for each message."""


class StompNode(Served, StompBroker):
    """
    A broker on free loopback ports, in a temporary folder; its store is on disk, with fsync.

    Every login needs the password.
    """

    def __init__(self, name: str, program: Path) -> None:
        """Make one ready to start, from the folder of its program; raises MissingError without Java."""
        self._guard = Guard(name)
        self.folder = self._guard.folder
        self.log = self.folder / "node.log"
        self.plain, self.tls, self.mutual, self.other, agent = free_ports(5)
        password = secrets.token_hex(8)
        login = f"{USER}:{password}"
        super().__init__(
            Address(
                url=f"stomp://{login}@127.0.0.1:{self.plain}",
                management_url=f"http://127.0.0.1:{agent}/jolokia/",
                tls_url=f"stomp+ssl://{login}@127.0.0.1:{self.tls}",
                mutual_url=f"stomp+ssl://{login}@127.0.0.1:{self.mutual}",
                other_url=f"stomp://{login}@127.0.0.1:{self.other}",
                limited_url=f"stomp://{LIMITED}:{password}@127.0.0.1:{self.plain}",
                certificates=str(self.folder),
            )
        )
        self.ca = trustme.CA()
        """Signed the node's certificate (127.0.0.1, localhost), and signs whatever else a test needs."""
        self._expires: datetime | None = None
        self._write_certificates()
        self._changed = ""
        self._write_logins(self.password)
        self._write(
            "agent.properties",
            {
                "host": "127.0.0.1",
                "port": str(agent),
                "user": self.user,
                "password": self.password,
                "discoveryEnabled": "false",
            },
        )
        (jar,) = program.glob("lib/jolokia-agent-jvm-*.jar")
        command = [str(java()), *SMALL, *ADDRESSES, *LOG, f"-Djava.io.tmpdir={self.folder}"]
        command += [f"-javaagent:{jar}=config={self.folder / 'agent.properties'}"]
        command += ["-cp", f"{program / 'classes'}:{program / 'lib'}/*", *self._main()]
        self._server = Server(self._guard, command, {"LANG": "C.UTF-8"}, log=self.log, ready=self._answers)

    def _main(self) -> Sequence[str]:
        """Write the files that the program reads; return its main class and its arguments."""
        raise NotImplementedError

    # --- Its life -----------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Make it run, reachable and with a valid certificate, whatever a test did to it."""
        self.thaw()
        if self._changed:
            self._changed = ""
            self._write_logins(self.password)
            self.stop()
        if self._expires:
            self.set_certificate()
        self.start()

    def close(self) -> None:
        """End the process and remove the folder."""
        self._server.kill()
        self._guard.close()

    def remove_queues(self, prefix: str) -> None:
        """Remove them, even where a test has left the node dead or frozen."""
        self.heal()
        super().remove_queues(prefix)

    def close_connections(self) -> None:
        """Let the broker close every client's connection; clients notice a moment later."""
        raise NotImplementedError

    def set_certificate(self, not_after: datetime | None = None) -> None:
        """Give it another certificate, by default one that is valid for years; a node that runs is restarted for it."""
        self._expires = not_after
        self._write_certificates()
        if self.running:
            self.stop()
            self.start()

    def set_authority(self) -> None:
        """Give it a new authority, which signs its certificate and those of its clients; a node that runs is restarted for it."""
        self.ca = trustme.CA()
        self.set_certificate()

    def change_password(self, password: str) -> None:
        """Give every login another password until `heal`, and restart for it; `url` keeps the first one."""
        self._changed = password
        self._write_logins(password)
        self.stop()
        self.start()

    # --- How it is started --------------------------------------------------------------------------------------------

    @property
    def key_store(self) -> Path:
        """The node's certificate and key, for Java."""
        return self.folder / "server.p12"

    @property
    def trust_store(self) -> Path:
        """The CA whose clients `mutual_url` takes, for Java."""
        return self.folder / "ca.p12"

    def _write(self, name: str, properties: dict[str, str]) -> Path:
        """Write a file of Java's properties, and return its path."""
        path = self.folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        path.chmod(0o600)
        return path

    def _write_logins(self, password: str) -> None:
        self.logins = self._write("logins.properties", {"user": self.user, "limited": LIMITED, "password": password})

    def _write_certificates(self) -> None:
        locked = BestAvailableEncryption(STORE_PASSWORD.encode())
        server = self.ca.issue_cert("127.0.0.1", "localhost", not_after=self._expires)
        leaf, *chain = (load_pem_x509_certificate(pem.bytes()) for pem in server.cert_chain_pems)
        key = load_pem_private_key(server.private_key_pem.bytes(), None)
        ours = load_pem_x509_certificate(self.ca.cert_pem.bytes())
        self.key_store.write_bytes(
            pkcs12.serialize_key_and_certificates(b"server", key, leaf, chain, locked)  # type: ignore[arg-type]
        )
        self.trust_store.write_bytes(pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(ours, b"ca")], locked))
        self.ca.cert_pem.write_to_path(self.ca_file)
        client = self.ca.issue_cert("client")
        client.private_key_pem.write_to_path(self.key)
        self.certificate.write_bytes(b"".join(pem.bytes() for pem in client.cert_chain_pems))

    def _answers(self) -> bool:
        """Return whether a login succeeds, Jolokia answers, and the other listeners take connections."""
        try:
            self.client(self.url.replace(self.password, self._changed or self.password)).close()
            self.counts("canary")
            for port in (self.tls, self.mutual, self.other):
                socket.create_connection(("127.0.0.1", port), timeout=30).close()
        except (OSError, EOFError):
            return False
        return True
