"""
Real client libraries are made to say what the catalogue explains: amqplib, rascal, php-amqplib, bunny, py-amqp, kombu, Celery.

Each library has a program in `peers/` that does one thing wrong after the other, and prints `## NAME` and what the library says.
The catalogue has to find exactly the expected entries in each part.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.brokers.fixtures import had
from tests.brokers.rabbitmq import Vhost
from tests.conftest import Eventually
from tests.diagnosis import foreign
from tests.diagnosis.explaining import records, sections
from tests.drills.contestants import peers_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REFUSED, NO_HOST, LOGIN = "network.connection-refused", "network.unknown-host", "rabbitmq.login-refused"

NODE = {
    "opening-closed": "amqplib.handshake-closed",
    "opening-http": "amqplib.broken-frame",
    "opening-header": "amqplib.broken-frame",
    "refused": REFUSED,
    "no-host": NO_HOST,
    "password": LOGIN,
    "channel-error": "rabbitmq.no-queue",
    "no-queue": "rabbitmq.no-queue",
    "closed-channel": "amqplib.closed",
    "no-buffer": "amqplib.wrong-argument",
    "odd-header": "amqplib.wrong-argument",
    "long-key": "amqplib.wrong-argument",
    "nacked": "amqplib.nacked",
    "no-channels": "amqplib.no-channels",
    "ended": "amqplib.channel-ended",
    "closed-connection": "amqplib.closed",
    "lost": "amqplib.unexpected-close",
    "heartbeat": "amqplib.heartbeat-timeout",
    "broken-frame": "amqplib.broken-frame",
    "second-header": "amqplib.broken-frame",
    "rascal-attribute": "rascal.unknown-attribute",
    "rascal-refused": REFUSED,
    "rascal-double-ack": "amqp.double-ack",
    "rascal-cancelled": "rascal.cancelled",
    "rascal-redeliveries": "rascal.redeliveries-exceeded",
}
PHP = {
    "password": LOGIN,
    "refused": REFUSED,
    "no-host": NO_HOST,
    "opening-closed": "phpamqplib.connection-lost",
    "opening-header": "phpamqplib.other-protocol",
    "opening-http": "phpamqplib.other-protocol",
    "silent": "phpamqplib.read-timeout",
    "no-queue": "rabbitmq.no-queue",
    "closed-channel": "phpamqplib.channel-closed",
    "nothing-came": "phpamqplib.read-timeout",
    "unknown-tag": "amqp.unknown-delivery-tag",
    "long-key": "phpamqplib.wrong-argument",
    "odd-header": "phpamqplib.wrong-argument",
    "heartbeat": "phpamqplib.missed-heartbeat",
    "cut": "phpamqplib.connection-lost",
    "cut-write": "phpamqplib.connection-lost",
}
SHARED = {
    "phpamqplib.invalid-frame-type",
    "phpamqplib.other-protocol",
    "phpamqplib.tls-on-port",
    "phpamqplib.read-timeout",
    "phpamqplib.connection-lost",
}
"""What a child may find that shares its connection with others."""

RUBY = {
    "refused": REFUSED,
    "no-host": f"{NO_HOST} {REFUSED}",
    "password": LOGIN,
    "opening-closed": "bunny.connection-lost",
    "opening-http": "bunny.broken-frame",
    "silent": "bunny.connection-lost",
    "no-queue": "rabbitmq.no-queue",
    "closed-channel": "rabbitmq.no-queue",
    "closed-connection": "bunny.closed",
    "long-key": "bunny.name-too-long",
    "lost": "bunny.connection-lost bunny.no-answer",
    "no-answer": "bunny.no-answer",
    "heartbeat": "bunny.connection-lost bunny.heartbeat-sender",
    "broken-frame": "bunny.broken-frame",
    "recovers": "bunny.connection-lost bunny.recovers",
}
PYTHON = {
    "password": LOGIN,
    "refused": REFUSED,
    "opening-closed": "pyamqp.server-closed",
    "no-queue": "rabbitmq.no-queue",
    "odd-header": "pyamqp.unsupported-value",
    "long-name": "pyamqp.name-too-long",
    "returned": "amqp.unroutable",
    "nacked": "pyamqp.nacked",
    "closed": "pyamqp.connection-closed",
    "lost": "pyamqp.server-closed",
    "heartbeat": "pyamqp.heartbeats-missed",
    "frame-end": "pyamqp.unexpected-frame",
    "frame-order": "pyamqp.unexpected-frame",
    "double-ack": "amqp.double-ack",
    "refused-content": "kombu.content-refused",
    "kombu-refused": REFUSED,
}


def agree(said: str, expected: dict[str, str]) -> None:
    """Compare what is found in each part with what is expected there."""
    found = {name: set(records(text)) for name, text in sections(said)}
    assert found == {name: set(ids.split()) for name, ids in expected.items()}, said


def test_amqplib_and_rascal(vhost: Vhost) -> None:
    with had():
        modules = foreign.node_modules()
    agree(foreign.run("node", str(foreign.PEERS / "wrong.js"), AMQP_URL=vhost.url, NODE_PATH=str(modules)), NODE)


def test_php_amqplib(vhost: Vhost) -> None:
    with had():
        php = foreign.php()
    said = foreign.run(php, str(foreign.PEERS / "wrong.php"), AMQP_URL=vhost.url)
    alone, _, shared = said.partition("## shared")
    agree(alone, PHP)
    found = {name: set(records(text)) for name, text in sections(f"## shared{shared}")}
    assert found, said
    assert set.union(*found.values()) <= SHARED, said
    assert "phpamqplib.invalid-frame-type" in set.union(*found.values())


def test_bunny(vhost: Vhost) -> None:
    with had():
        ruby = foreign.ruby()
    agree(foreign.run(ruby, str(foreign.PEERS / "wrong.rb"), AMQP_URL=vhost.url), RUBY)


def test_py_amqp_and_kombu(vhost: Vhost) -> None:
    agree(foreign.run(str(peers_python()), str(foreign.PEERS / "wrong_amqp.py"), AMQP_URL=vhost.url), PYTHON)


# --- Celery -----------------------------------------------------------------------------------------------------------

CELERY = {
    "celery.task-failed",
    "celery.unregistered-task",
    "celery.unknown-message",
    "kombu.content-refused",
    "celery.time-limit",
    "celery.worker-lost",
    "celery.connection-lost",
    "celery.cannot-connect",
    "celery.cannot-acknowledge",
}
SENDS = """
import kombu, os, celery_app
send = celery_app.app.send_task
send("fail"), send("nosuch"), send("die"), send("sleep", [60])
with kombu.Connection(os.environ["AMQP_URL"]) as connection:
    publish = connection.Producer().publish
    publish({"a": 1}, routing_key="jobs")
    publish("x", routing_key="jobs", serializer=None, content_type="application/x-python-serialize", content_encoding="utf-8")
"""


@dataclass
class Way:
    """A forwarder between a worker and its broker, which can be cut and closed."""

    port: int = 0
    open: bool = True
    ends: list[socket.socket] = field(default_factory=list)

    def cut(self) -> None:
        for one in self.ends:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def way_to(broker: int) -> Iterator[Way]:
    way = Way()

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = server.accept()
                if not way.open:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", broker))
                way.ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=(one, other), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        way.port = server.getsockname()[1]
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield way
        way.cut()


def test_celery(vhost: Vhost, tmp_path: Path, eventually: Eventually) -> None:
    python, parts = peers_python(), urlsplit(vhost.url)
    log = tmp_path / "worker.log"

    def seen(*ids: str) -> bool:
        return {*ids} <= records(log.read_text(errors="replace")).keys()

    with way_to(parts.port or 5672) as way, log.open("wb") as output:
        environment = {
            **os.environ,
            "AMQP_URL": parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{way.port}")).geturl(),
            "QUEUE": "jobs",
            "TIME_LIMIT": "4",
            "PYTHONPATH": str(foreign.PEERS),
            "PYTHONWARNINGS": "ignore",
        }
        words = [
            str(python),
            "-m",
            "celery",
            "--app",
            "celery_app",
            "worker",
            "--loglevel",
            "INFO",
            "--concurrency",
            "1",
        ]
        worker = subprocess.Popen(
            words, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            eventually(lambda: " ready." in log.read_text())
            subprocess.run([python, "-c", SENDS], env=environment, check=True)
            eventually(
                lambda: seen(
                    *(CELERY - {"celery.connection-lost", "celery.cannot-connect", "celery.cannot-acknowledge"})
                )
            )
            send = "import celery_app; celery_app.app.send_task('sleep', [3])"
            subprocess.run([python, "-c", send], env=environment, check=True)
            eventually(lambda: log.read_text().count("Task sleep[") > 1)
            way.open = False
            way.cut()
            eventually(lambda: seen("celery.cannot-connect"))
            way.open = True
            eventually(lambda: seen("celery.cannot-acknowledge"))
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    assert records(log.read_text(errors="replace")).keys() == CELERY
