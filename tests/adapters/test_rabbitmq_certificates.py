"""A certificate is a login: with it alone a worker comes in; for another one, or none, the error names what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from steadyworker.adapter import Connected, Delivered, QueueSpec, Settings, Unreachable
from steadyworker.delivery import KEY, OutgoingMessage, Settle, Settled, Target
from steadyworker.errors import BrokerUnavailable
from steadyworker.network import backoff
from steadyworker_rabbitmq import RabbitmqAdapter
from tests.brokers.rabbitmq import Node, Vhost

SPEC = QueueSpec("exports", "exports.dead", time_limit=5)
Eventually = Callable[..., Any]


class Worker:
    """One adapter, and all signals that it sent."""

    def __init__(self, url: str) -> None:
        self.signals: list[Any] = []
        self.adapter = RabbitmqAdapter(url, SPEC, Settings(delays=(1.0,)))
        self.adapter.prefetch(1)
        self.adapter.start(self.signals.append)

    def first(self, kind: type[Any], eventually: Eventually) -> Any:
        return eventually(lambda: [signal for signal in list(self.signals) if isinstance(signal, kind)])[0]


OpenWorker = Callable[[str], Worker]


@pytest.fixture
def open_worker() -> Iterator[OpenWorker]:
    """Workers that are stopped at the end of the test."""
    workers: list[Worker] = []

    def another(url: str) -> Worker:
        workers.append(Worker(url))
        return workers[-1]

    yield another
    for worker in workers:
        worker.adapter.stop(5)


class Desk:
    """Where certificates are made, and the URLs that name them."""

    def __init__(self, node: Node, vhost: Vhost, folder: Path) -> None:
        self.node, self.vhost, self.folder = node, vhost, folder
        self.keys: list[str] = []

    def issued(self, name: str, *, by: trustme.CA | None = None) -> str:
        """The options of a URL for a certificate of that name; from the broker's own authority unless `by` another."""
        made = (by or self.node.ca).issue_cert("worker.example", common_name=name)
        number = len(self.keys)
        certificate, key = self.folder / f"{number}.pem", self.folder / f"{number}.key"
        made.cert_chain_pems[0].write_to_path(certificate)
        made.private_key_pem.write_to_path(key)
        self.keys.append(key.read_text())
        return f"&certfile={certificate}&keyfile={key}"

    def url(self, options: str, port: int | None = None) -> str:
        """Without a user, and without a password."""
        return f"amqps://127.0.0.1:{port or self.node.amqps}/{self.vhost.name}?cafile={self.node.ca_file}{options}"

    def is_secret(self, *texts: object) -> None:
        """No line of a key is in these texts."""
        text = "".join(map(repr, texts))
        lines = [line for key in self.keys for line in key.splitlines() if not line.startswith("-----")]
        assert lines
        assert not [line for line in lines if line in text]


@pytest.fixture
def desk(rabbitmq_node: Node, vhost: Vhost, tmp_path: Path) -> Desk:
    return Desk(rabbitmq_node, vhost, tmp_path)


def test_a_certificate_logs_in_without_a_password(desk: Desk, open_worker: OpenWorker, eventually: Eventually) -> None:
    """It makes the queues, publishes, consumes and settles as the user whom the certificate names, on all its connections."""
    worker = open_worker(desk.url(desk.issued(desk.vhost.user)))
    worker.first(Connected, eventually)
    worker.adapter.publish(OutgoingMessage(Target.WORK, b"{}", {KEY: "k-1"}))
    delivery = worker.first(Delivered, eventually).delivery
    assert worker.adapter.settle(delivery, Settle.ACK) is Settled.CONFIRMED
    assert worker.adapter.findings(SPEC) == []
    with worker.adapter.dead_letters() as dead:
        assert list(dead) == []
    assert not [signal for signal in worker.signals if isinstance(signal, Unreachable)]


def test_a_name_that_nobody_has_is_final(
    desk: Desk, open_worker: OpenWorker, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    worker = open_worker(desk.url(desk.issued("nobody")))
    gone = worker.first(Unreachable, eventually)
    (finding,) = worker.adapter.findings(SPEC)
    for text in (gone.cause, finding.what):
        assert "ssl_cert_login_from" in text
        assert "certfile" in text
    assert gone.final
    desk.is_secret(worker.signals, finding, caplog.text)


@pytest.mark.parametrize("tls", ["tlsv1.2", "tlsv1.3"])
@pytest.mark.parametrize("given", ["of another authority", "none"])
def test_a_certificate_that_is_refused_is_final(
    desk: Desk,
    open_worker: OpenWorker,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    tls: str,
    given: str,
) -> None:
    """Within the handshake (1.2), or when it seemed to be over (1.3): the error has the broker's own alert."""
    caplog.set_level("DEBUG")
    foreign = desk.issued(desk.vhost.user, by=trustme.CA())
    with desk.node.listener_for_certificates(tls) as port:
        worker = open_worker(desk.url("" if given == "none" else foreign, port))
        gone = worker.first(Unreachable, eventually)
        (finding,) = worker.adapter.findings(SPEC)
        for text in (gone.cause, finding.what):
            assert "_ALERT_" in text
            assert "certfile" in text
        assert gone.final
        desk.is_secret(worker.signals, finding, caplog.text)


def test_a_missing_right_of_a_certificates_user_is_named_without_the_user(desk: Desk) -> None:
    """AMQP does not report which user the certificate names."""
    path = f"permissions/{desk.vhost.name}/{desk.vhost.user}"
    desk.node.management("PUT", path, {"configure": "^$", "write": "^$", "read": "^$"})
    adapter = RabbitmqAdapter(desk.url(desk.issued(desk.vhost.user)), SPEC, Settings(delays=(1.0,)))
    remedies = [finding.remedy for finding in adapter.findings(SPEC)]
    assert any(f"set_permissions -p {desk.vhost.name} USER " in remedy for remedy in remedies)


def test_a_certificate_that_is_refused_later_is_waited_for(
    desk: Desk, open_worker: OpenWorker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was renewed by the wrong authority, and is renewed again: read anew for each connection."""
    monkeypatch.setattr(backoff, "LONGEST", 2.0)
    options = desk.issued(desk.vhost.user)
    worker = open_worker(desk.url(options))
    worker.first(Connected, eventually)
    files = [desk.folder / "0.pem", desk.folder / "0.key"]
    good = [file.read_bytes() for file in files]
    made = trustme.CA().issue_cert("worker.example", common_name=desk.vhost.user)
    for file, blob in zip(files, (made.cert_chain_pems[0], made.private_key_pem), strict=True):
        blob.write_to_path(file)
    with pytest.raises(BrokerUnavailable, match="_ALERT_"):
        worker.adapter.identity()
    desk.node.ctl("close_all_connections", "-p", desk.vhost.name, "test")
    assert not worker.first(Unreachable, eventually).final
    for file, content in zip(files, good, strict=True):
        file.write_bytes(content)
    eventually(lambda: len([signal for signal in worker.signals if isinstance(signal, Connected)]) == 2)
