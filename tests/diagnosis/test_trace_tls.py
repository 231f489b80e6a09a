"""TLS: terminated by the trace with given keys, or passed on, and then only sizes and times are known."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from steadyworker.diagnosis.cli.trace import towards_broker, towards_clients
from steadyworker.diagnosis.relay import BrokerTarget
from tests.brokers.rabbitmq import Vhost
from tests.diagnosis.amqp_client import AmqpClient
from tests.diagnosis.test_relay import WITHIN, read_all
from tests.diagnosis.traced import Traced


@dataclass(frozen=True)
class Keys:
    """A certificate for localhost, its key, and the authority that signed it."""

    certificate: Path
    key: Path
    ca: Path

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder = tmp_path_factory.mktemp("keys")
    authority = trustme.CA()
    made = authority.issue_cert("localhost", "127.0.0.1")
    found = Keys(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
    made.private_key_pem.write_to_path(found.key)
    found.certificate.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
    authority.cert_pem.write_to_path(found.ca)
    return found


class EchoServer:
    """A broker with TLS that sends back all that it gets, until the client closes its direction."""

    def __init__(self, keys: Keys) -> None:
        context = towards_clients(keys.certificate, keys.key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.error = ""

        def serve() -> None:
            connection, _ = self._listener.accept()
            with connection:
                try:
                    with context.wrap_socket(connection, server_side=True) as secure:
                        while data := secure.recv(1 << 16):
                            secure.sendall(data)
                        secure.unwrap().close()
                except OSError as error:
                    self.error = str(error)

        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._thread.join(WITHIN)
        self._listener.close()


@pytest.fixture
def echo(keys: Keys) -> Iterator[EchoServer]:
    server = EchoServer(keys)
    yield server
    server.close()


def test_all_bytes_arrive_through_two_handshakes(keys: Keys, echo: EchoServer) -> None:
    data = bytes(range(256)) * 20_000
    target = BrokerTarget(
        (), towards_broker(keys.ca, verify=True), "localhost", towards_clients(keys.certificate, keys.key)
    )
    with Traced(echo.address, target=target) as trace:
        assert asyncio.run(echoed(trace.port, keys.client(), data)) == data
        trace.wait_kind("close", who="broker")
        trace.stop()
    assert trace.wire.bytes == {"client": len(data), "broker": len(data)}
    (opened,) = trace.of("open")
    assert opened["tls"]
    assert trace.wait_kind("connected")["tls_to_broker"]
    assert echo.error == ""


async def echoed(port: int, context: ssl.SSLContext, data: bytes) -> bytes:
    """Send the data and read as much at the same time: no two threads can, as OpenSSL's connection is for one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    writer.write(data)
    got = await asyncio.wait_for(reader.readexactly(len(data)), WITHIN)
    writer.close()
    await writer.wait_closed()
    return got


def test_the_frames_of_a_terminated_connection_are_read(keys: Keys, vhost: Vhost) -> None:
    target = BrokerTarget((), None, "", towards_clients(keys.certificate, keys.key))
    with Traced(vhost.url, target=target) as trace:
        with AmqpClient(trace.through(), context=keys.client()) as client:
            client.queue(b"{}")
        trace.wait_kind("method", name="Basic.Publish")
        assert trace.flags() == []


def test_a_broker_whose_certificate_is_not_trusted_is_an_event(keys: Keys, echo: EchoServer) -> None:
    target = BrokerTarget((), towards_broker(None, verify=True), "localhost")
    with (
        Traced(echo.address, target=target) as trace,
        socket.create_connection(("127.0.0.1", trace.port), timeout=WITHIN) as client,
    ):
        assert read_all(client) == b""
        close = trace.wait_kind("close", how="refused")
    assert close["who"] == "broker"
    assert close["error"].startswith("certificate verify failed: ")


def test_a_client_that_does_not_trust_the_trace_is_an_event(keys: Keys) -> None:
    target = BrokerTarget((), None, "", towards_clients(keys.certificate, keys.key))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Traced(f"127.0.0.1:{server.getsockname()[1]}", target=target) as trace,
        socket.create_connection(("127.0.0.1", trace.port), timeout=WITHIN) as plain,
    ):
        with pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
        close = trace.wait_kind("close", who="client")
    assert "unknown ca" in close["error"]


def test_tls_that_passes_is_reported_once_as_encrypted(keys: Keys, echo: EchoServer) -> None:
    with Traced(echo.address) as trace:
        with (
            socket.create_connection(("127.0.0.1", trace.port), timeout=WITHIN) as plain,
            keys.client().wrap_socket(plain, server_hostname="localhost") as client,
        ):
            for _ in range(3):
                client.sendall(b"x" * 1000)
                assert client.recv(1000) == b"x" * 1000
            client.unwrap().close()  # else the server's alert meets a closed client, and may end in a reset
        trace.wait_kind("close", who="broker")
        (said,) = trace.of("skipped")
        assert said["what"].startswith("encrypted: only sizes and times are known")
        assert trace.flags() == []
        assert sum(event["size"] for event in trace.of("bytes")) == sum(trace.wire.bytes.values())
