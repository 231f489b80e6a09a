"""
Real client libraries are made to say what the catalogue explains: amqplib, rascal, php-amqplib, bunny, py-amqp, kombu, Celery.

Each library has a program in `peers/` that does one thing wrong after the other, and prints `## NAME` and what the library says.
The catalogue has to find exactly the expected entries in each part.
amqplib and rascal come by npm, php-amqplib and bunny by apt, the others by pip, each once.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.brokers.fixtures import had
from tests.brokers.install import MissingError, apt_install, cache, lock, may_install
from tests.brokers.rabbitmq import Vhost
from tests.conftest import Eventually
from tests.diagnosis.explaining import records, sections
from tests.drills.contestants import peers_python
from tests.faults.link import Link
from tests.faults.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).with_name("peers")
NODE_PACKAGES = ("amqplib@2.3.1", "rascal@21.0.1")
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
    "refused": "bunny.unreachable",
    "no-host": "bunny.unreachable",
    "password": f"bunny.login-refused {LOGIN}",
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
    "no-queue": "rabbitmq.no-queue",
    "odd-header": "pyamqp.unsupported-value",
    "nacked": "pyamqp.nacked",
    "lost": "pyamqp.server-closed",
    "heartbeat": "pyamqp.heartbeats-missed",
    "frame-end": "pyamqp.unexpected-frame",
    "double-ack": "amqp.double-ack",
    "refused-content": "kombu.content-refused",
}


def node_modules() -> Path:
    """The folder with amqplib and rascal; raises MissingError when Node.js or a package cannot be had."""
    if not (npm := shutil.which("npm")):
        raise MissingError("npm was not found: install Node.js 18 or newer")
    made = cache() / f"node-{'-'.join(NODE_PACKAGES).replace('@', '-')}"
    with lock(made.name):
        if not made.exists():
            half = made.with_name(f"{made.name}.half")
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            quietly = ("--ignore-scripts", "--no-audit", "--no-fund")
            words = [npm, "install", "--prefix", str(half), *quietly, *NODE_PACKAGES]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise MissingError(f"npm install {' '.join(NODE_PACKAGES)} failed here: {done.stderr.strip()[-500:]}")
            half.rename(made)
    return made / "node_modules"


def debian(program: str, library: str, *packages: str) -> str:
    """A program and its library from Debian's packages; raises MissingError when they cannot be had."""
    if (not shutil.which(program) or not Path(library).exists()) and may_install():
        with lock("apt"):
            for package in packages:
                apt_install(package)
    found = shutil.which(program)
    if not found or not Path(library).exists():
        raise MissingError(f"{program} or {library} was not found: sudo apt-get install {' '.join(packages)}")
    return found


def said_by(*command: str, **environment: str) -> str:
    """Run a provoking program, and return what it said on both outputs; it ends by itself."""
    done = subprocess.run(
        command,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=240,
    )
    return done.stdout.decode(errors="replace")


def agree(said: str, expected: dict[str, str]) -> None:
    """Compare what is found in each part with what is expected there."""
    found = {name: set(records(text)) for name, text in sections(said)}
    assert found == {name: set(ids.split()) for name, ids in expected.items()}, said


def test_amqplib_and_rascal(vhost: Vhost) -> None:
    with had():
        modules = node_modules()
    agree(said_by("node", str(HERE / "wrong.js"), AMQP_URL=vhost.url, NODE_PATH=str(modules)), NODE)


def test_php_amqplib(vhost: Vhost) -> None:
    with had():
        php = debian("php", "/usr/share/php/PhpAmqpLib/autoload.php", "php-cli", "php-amqplib")
    said = said_by(php, str(HERE / "wrong.php"), AMQP_URL=vhost.url)
    alone, _, shared = said.partition("## shared")
    agree(alone, PHP)
    found = {name: set(records(text)) for name, text in sections(f"## shared{shared}")}
    assert found, said
    assert set.union(*found.values()) <= SHARED, said
    assert "phpamqplib.invalid-frame-type" in set.union(*found.values())


def test_bunny(vhost: Vhost) -> None:
    with had():
        ruby = debian("ruby", "/usr/share/doc/ruby-bunny", "ruby-bunny")
    agree(said_by(ruby, str(HERE / "wrong.rb"), AMQP_URL=vhost.url), RUBY)


def test_py_amqp_and_kombu(vhost: Vhost) -> None:
    agree(said_by(str(peers_python()), str(HERE / "wrong_amqp.py"), AMQP_URL=vhost.url), PYTHON)


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


LATER = {"celery.connection-lost", "celery.cannot-connect", "celery.cannot-acknowledge"}


def test_celery(vhost: Vhost, tmp_path: Path, eventually: Eventually) -> None:
    python, log = peers_python(), tmp_path / "worker.log"

    def seen(*ids: str) -> bool:
        return {*ids} <= records(log.read_text(errors="replace")).keys()

    with Proxy(vhost.url) as proxy, log.open("wb") as output:
        settings = {"AMQP_URL": proxy.url, "QUEUE": "jobs", "TIME_LIMIT": "4"}
        environment = {**os.environ, **settings, "PYTHONPATH": str(HERE), "PYTHONWARNINGS": "ignore"}
        celery = (str(python), "-m", "celery", "--app", "celery_app")
        worker = subprocess.Popen(
            [*celery, "worker", "--loglevel", "INFO", "--concurrency", "1"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            eventually(lambda: " ready." in log.read_text())
            subprocess.run([python, "-c", SENDS], env=environment, check=True)
            eventually(lambda: seen(*(CELERY - LATER)))
            send = "import celery_app; celery_app.app.send_task('sleep', [3])"
            subprocess.run([python, "-c", send], env=environment, check=True)
            eventually(lambda: log.read_text().count("Task sleep[") > 1)
            proxy.after(0, "up", Link.cut)
            eventually(lambda: seen("celery.cannot-connect"))
            proxy.resume()
            eventually(lambda: seen("celery.cannot-acknowledge"))
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    assert records(log.read_text(errors="replace")).keys() == CELERY
