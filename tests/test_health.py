"""Probes over real sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse

import pytest

from steadyworker.errors import ConfigError
from steadyworker.service.health import HealthServer
from steadyworker.service.watchdog import Snapshot
from steadyworker.telemetry.metrics import Page


class Probed:
    """A server whose snapshot the test sets."""

    def __init__(self, metrics: Page | None = None) -> None:
        self.snapshot = Snapshot()
        self.server = HealthServer("127.0.0.1:0", lambda: self.snapshot, metrics=metrics)

    @property
    def place(self) -> tuple[str, int]:
        host, _, port = self.server.address.rpartition(":")
        return host, int(port)

    def ask(self, method: str, path: str, accept: str = "*/*") -> tuple[HTTPResponse, str]:
        connection = HTTPConnection(*self.place, timeout=10)
        connection.request(method, path, headers={"Accept": accept})
        response = connection.getresponse()
        body = response.read().decode()
        connection.close()
        return response, body

    def say(self, raw: bytes) -> bytes:
        with socket.create_connection(self.place, timeout=10) as client:
            client.sendall(raw)
            answer = b""
            while more := client.recv(4096):
                answer += more
            return answer


def ended(client: socket.socket) -> bool:
    """Wait for the end of this connection, and return whether nothing came before it."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def probed() -> Iterator[Probed]:
    probed = Probed()
    probed.server.start()
    yield probed
    probed.server.stop()


def test_alive_and_ready(probed: Probed) -> None:
    for path in ("/livez", "/readyz", "/readyz?verbose"):
        response, body = probed.ask("GET", path)
        assert (response.status, body) == (200, "ok\n")


def test_not_ready_is_alive_and_names_the_cause(probed: Probed) -> None:
    probed.snapshot = Snapshot(unready=("broker: refused", "draining"))
    assert probed.ask("GET", "/livez")[0].status == 200
    response, body = probed.ask("GET", "/readyz")
    assert (response.status, body) == (503, "broker: refused\ndraining\n")


def test_a_paused_process_is_ready_and_names_the_pause(probed: Probed) -> None:
    """A rolling deploy waits until each process is ready, so a pause must not stop it."""
    probed.snapshot = Snapshot(pauses=("exports: paused by ada@ops: disk is full",))
    response, body = probed.ask("GET", "/readyz")
    assert (response.status, body) == (200, "exports: paused by ada@ops: disk is full\n")
    assert probed.ask("GET", "/livez")[1] == "ok\n"
    assert json.loads(probed.ask("GET", "/readyz", accept="application/json")[1]) == {
        "ok": True,
        "reasons": ["exports: paused by ada@ops: disk is full"],
    }
    probed.snapshot = Snapshot(unready=("broker: refused",), pauses=("exports: paused by ada@ops",))
    response, body = probed.ask("GET", "/readyz")
    assert (response.status, body) == (503, "broker: refused\nexports: paused by ada@ops\n")


def test_not_alive_is_not_ready_either(probed: Probed) -> None:
    probed.snapshot = Snapshot(unlive=("stuck: io",), unready=("quiet",))
    assert probed.ask("GET", "/livez")[1] == "stuck: io\n"
    response, body = probed.ask("GET", "/readyz", accept="application/json")
    assert response.getheader("Content-Type") == "application/json"
    assert json.loads(body) == {"ok": False, "reasons": ["stuck: io", "quiet"]}


def test_the_answer_has_nothing_about_its_server(probed: Probed) -> None:
    response, _ = probed.ask("GET", "/livez")
    assert {name.lower() for name, _ in response.getheaders()} == {"content-type", "content-length", "cache-control"}


def test_head_has_no_body(probed: Probed) -> None:
    response, body = probed.ask("HEAD", "/livez")
    assert (response.status, body) == (200, "")


def test_everything_else_is_refused_without_an_echo(probed: Probed) -> None:
    assert probed.ask("GET", "/canary")[0].status == 404
    for method in ("POST", "DELETE", "CANARY"):
        response, body = probed.ask(method, "/livez")
        assert (response.status, response.getheader("Allow")) == (405, "GET, HEAD")
        assert "CANARY" not in body
    for raw in (b"canary\r\n\r\n", b"GET /livez CANARY/9\r\n\r\n", b"\x00\xff\r\n\r\n"):
        assert b"canary" not in probed.say(raw).lower()


def test_a_snapshot_that_fails_is_reported(probed: Probed) -> None:
    del probed.snapshot
    response, body = probed.ask("GET", "/livez")
    assert (response.status, body) == (500, "no snapshot: AttributeError\n")


def test_a_huge_request_is_cut_off_and_the_next_is_served(probed: Probed) -> None:
    sent = 0
    with socket.create_connection(probed.place, timeout=10) as client, suppress(OSError):  # reset, or broken pipe
        while sent < 1 << 30:
            sent += client.send(b"X: " + b"x" * 65536)
    assert sent < 1 << 30
    assert probed.ask("GET", "/livez")[0].status == 200


@pytest.mark.parametrize("slow", [16, 200])
def test_clients_that_send_no_head_delay_no_probe(probed: Probed, slow: int) -> None:
    """Each of them sends a byte and waits, again and again: as a scanner does, or a proxy that opens connections in advance."""
    others = {*threading.enumerate()}  # tests before this one may have left some
    hanging = [socket.create_connection(probed.place, timeout=10) for _ in range(slow)]
    for client in hanging:
        with suppress(OSError):  # dropped already
            client.send(b"G")
    assert [probed.ask("GET", "/livez")[0].status for _ in range(12)] == [200] * 12
    assert {*threading.enumerate()} <= others, "no thread for a client"
    assert all(map(ended, hanging)), "the oldest were dropped for others, and each after a second"
    probed.server.stop()
    for client in hanging:
        client.close()


def test_a_client_that_does_not_read_delays_no_probe(probed: Probed) -> None:
    probed.snapshot = Snapshot(unready=("x" * (32 << 20),))  # more than the sockets of both sides hold
    with socket.create_connection(probed.place, timeout=10) as client:
        client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.0 503"
        probed.snapshot = Snapshot()
        assert probed.ask("GET", "/livez")[0].status == 200


def test_stop_in_any_order_frees_the_address() -> None:
    never = Probed()
    address = never.server.address
    never.server.stop()
    never.server.stop()
    again = HealthServer(address, Snapshot)
    again.start()
    again.stop()


def test_an_address_in_use_is_a_config_error(probed: Probed) -> None:
    with pytest.raises(ConfigError, match=r"Expected to listen on 127\.0\.0\.1:\d+ for --health"):
        HealthServer(probed.server.address, Snapshot)


def test_ipv6() -> None:
    try:
        server = HealthServer("[::1]:0", Snapshot)
    except ConfigError:
        pytest.skip("no IPv6 on this machine")
    assert server.address.startswith("[::1]:")
    server.stop()


def test_metrics_are_not_there_unless_somebody_counts(probed: Probed) -> None:
    response, body = probed.ask("GET", "/metrics")
    assert response.status == 404
    assert "steadyworker[metrics]" in body


def test_metrics_that_fail_are_reported() -> None:
    def failing(accept: str) -> tuple[str, bytes]:
        raise ZeroDivisionError(f"CANARY {accept}")

    probed = Probed(failing)
    probed.server.start()
    response, body = probed.ask("GET", "/metrics")
    assert (response.status, body) == (500, "no metrics: ZeroDivisionError\n")
    assert probed.ask("GET", "/livez")[0].status == 200
    probed.server.stop()


def test_stop_ends_the_connections_that_are_open(probed: Probed) -> None:
    with socket.create_connection(probed.place, timeout=10) as client:
        assert probed.ask("GET", "/livez")[0].status == 200  # so the server has accepted the one before it
        probed.server.stop()
        assert ended(client)
