"""TLS to RocketMQ's proxies: certificate and host name are verified, and a refusal names its remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import pytest
import trustme

from tests.brokers.fixtures import had
from tests.brokers.rocketmq import RocketMQ5
from tests.support.stage import ROOT

ROOTS = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"

ASK = """
import sys
from steadyworker.adapter import QueueSpec, Settings
from steadyworker.errors import BrokerUnavailable
from steadyworker_rocketmq.grpc import GrpcAdapter
for url in sys.argv[1:]:
    adapter = GrpcAdapter(url, QueueSpec("work", "work.dead"), Settings())
    try:
        print(*(f"{each.level}: {each.what}" for each in adapter.findings(QueueSpec("work", "work.dead"))), sep=" ")
    except BrokerUnavailable as error:
        print(f"unavailable: {error}")
    adapter.stop(5)
"""

WORK = """
import queue, sys
from steadyworker.adapter import Delivered, OutgoingMessage, QueueSpec, Settings, Settle, Target
from steadyworker_rocketmq.grpc import GrpcAdapter
adapter = GrpcAdapter(sys.argv[1], QueueSpec("work", "work.dead"), Settings())
signals = queue.Queue()
adapter.publish(OutgoingMessage(Target.WORK, b"over TLS", {"sw-job-key": "k-1"}))
adapter.start(signals.put)
adapter.prefetch(1)
while not isinstance(signal := signals.get(timeout=60), Delivered):
    pass
print(signal.delivery.body.decode(), adapter.settle(signal.delivery, Settle.ACK))
adapter.stop(5)
"""


def run(script: str, *urls: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Run a script in a process of its own, because gRPC reads its environment once; return its lines."""
    done = subprocess.run(
        [sys.executable, "-c", script, *urls],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def servers(ca: trustme.CA) -> Iterator[dict[str, int]]:
    """The ports of gRPC servers that have no service of RocketMQ's: the TLS handshake comes first."""
    certificates = {
        "good": ca.issue_cert("127.0.0.1", "localhost"),
        "elsewhere": ca.issue_cert("elsewhere.example"),
        "expired": ca.issue_cert("127.0.0.1", not_after=datetime(2020, 1, 1, tzinfo=UTC)),
        "plain": None,
    }
    ports = {}
    with ExitStack() as stack:
        for name, certificate in certificates.items():
            server = grpc.server(futures.ThreadPoolExecutor(2))
            if certificate is None:
                ports[name] = server.add_insecure_port("127.0.0.1:0")
            else:
                pair = (certificate.private_key_pem.bytes(), certificate.cert_chain_pems[0].bytes())
                ports[name] = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
            server.start()
            stack.callback(server.stop, None)
        yield ports


def test_what_is_not_trusted_is_refused_with_what_to_do(
    ca: trustme.CA, servers: dict[str, int], tmp_path: Path
) -> None:
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")

    def url(name: str, s: str = "s") -> str:
        return f"rocketmq+grpc{s}://127.0.0.1:{servers[name]}?members=off"

    good, elsewhere, expired, plain, refused = run(
        ASK,
        url("good"),
        url("elsewhere"),
        url("expired"),
        url("plain"),
        url("good", ""),
        env={ROOTS: str(tmp_path / "ca.pem")},
    )
    assert "error: " in good
    assert "a gRPC service that is no RocketMQ" in good  # the handshake has succeeded
    assert (
        "got: a certificate for another host name; write a name that is in the proxy's certificate as the host"
        in elsewhere
    )
    assert "got: a certificate that is not trusted (certificate has expired); renew the proxy's certificate" in expired
    assert "got: no TLS; write rocketmq+grpc:// in --broker if the proxy has no TLS" in plain
    assert refused.startswith("unavailable: ")
    assert "if the proxy has TLS only, write rocketmq+grpcs:// in --broker" in refused
    assert all(line.startswith("error: ") for line in (elsewhere, expired, plain))


def test_other_authorities_than_those_of_the_variable_are_not_trusted(servers: dict[str, int], tmp_path: Path) -> None:
    """Not without the variable, and not with that of another authority."""
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    for env in ({}, {ROOTS: str(tmp_path / "other.pem")}):
        (text,) = run(ASK, f"rocketmq+grpcs://localhost:{servers['good']}?members=off", env=env)
        assert text.startswith("error: ")
        assert "got: a certificate that is not trusted (unable to get local issuer certificate)" in text
        assert f"set the environment variable {ROOTS} to a PEM file of the authorities to trust" in text


@pytest.mark.slow
@pytest.mark.rocketmq
@pytest.mark.xdist_group("rocketmq")
@pytest.mark.timeout(300)
def test_a_worker_behind_a_proxy_with_tls(ca: trustme.CA, tmp_path: Path) -> None:
    """By name and by address."""
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    with had():
        node = RocketMQ5(certificate=ca.issue_cert("127.0.0.1", "localhost"))
    with closing(node):
        node.start()
        options = node.url.partition("?")[2]
        for host in ("localhost", "127.0.0.1"):
            url = f"rocketmq+grpcs://{host}:{node.grpc_address.port}?{options}"
            assert run(WORK, url, env={ROOTS: str(tmp_path / "ca.pem")}) == ["over TLS Settled.SENT"]
        (text,) = run(ASK, url)
        assert "a certificate that is not trusted" in text


@pytest.mark.slow
def test_a_proxy_as_it_is_shipped_has_a_certificate_that_is_refused(rocketmq5: RocketMQ5) -> None:
    (text,) = run(ASK, rocketmq5.url.replace("rocketmq+grpc:", "rocketmq+grpcs:"))
    assert "got: a certificate " in text
