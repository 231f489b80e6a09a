"""
What RocketMQ 4.9.7 and 5.4.0 and their clients say when something is wrong, and what the catalogue makes of it.

There is one provocation for each kind of failure, and not one for each entry.
A version that changes its text fails a test here: the entry of the catalogue then needs its new text.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.fixtures import had
from tests.brokers.maven import compiler, java
from tests.brokers.process import free_ports
from tests.brokers.rocketmq import LIMITED, RocketMQ4, RocketMQ5, RocketMQNode, rocketmq_program
from tests.brokers.rocketmq_witness import Account, RefusalError
from tests.diagnosis.explaining import Log, explained
from tests.support.stage import ROOT, eventually

pytestmark = [pytest.mark.slow, pytest.mark.rocketmq, pytest.mark.xdist_group("rocketmq"), pytest.mark.timeout(300)]

HERE = Path(__file__).parent

SEND, PULL, SEND_BACK = 10, 11, 36
"""Numbers of requests (`RequestCode`)."""

ANY_CODE = range(1, 5000)
PLACE = struct.Struct(">q")
"""The message's place in the commit log, 28 bytes behind its beginning."""


class Scene:
    """A node, a topic of its own, and requests that break a rule."""

    def __init__(self, node: RocketMQNode) -> None:
        self.node = node
        self.topic = f"wrong-{secrets.token_hex(4)}"
        node.make_topic(self.topic, 2)
        folder = node.folder / "logs" / "rocketmqlogs"
        names = ("broker", "store", "remoting", "transaction", "filter", "broker_default", "proxy")
        self.log = Log(node.log, node.folder / "proxy.log", *(folder / f"{name}.log" for name in names))

    def sent(self, body: bytes = b"x", **fields: str) -> str:
        """Send a message with these fields of the request, and return what the broker remarks."""
        plain = {
            "producerGroup": "p",
            "topic": self.topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "1",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": str(int(time.time() * 1000)),
            "flag": "0",
            "properties": "",
            "reconsumeTimes": "0",
            "unitMode": "false",
        }
        return str(self.ask(SEND, {**plain, **fields}, body)["remark"])

    def pulled(self, **fields: str) -> str:
        return str(self.pull(**fields)["remark"])

    def pull(self, **fields: str) -> Mapping[str, Any]:
        plain = {
            "consumerGroup": self.topic,
            "topic": self.topic,
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "1",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        return self.ask(PULL, {**plain, **fields})

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> Mapping[str, Any]:
        return self.node.witness.ask(self.node.broker_address, code, fields, body, allowed=ANY_CODE)


@pytest.fixture(params=["4", "5"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Each line in turn."""
    made = Scene(request.getfixturevalue(f"rocketmq{request.param}"))
    yield made
    made.node.remove(made.topic)


@pytest.fixture
def scene4(rocketmq4: RocketMQ4) -> Iterator[Scene]:
    made = Scene(rocketmq4)
    yield made
    rocketmq4.remove(made.topic)


@pytest.fixture
def scene5(rocketmq5: RocketMQ5) -> Iterator[Scene]:
    made = Scene(rocketmq5)
    yield made
    rocketmq5.remove(made.topic)


# --- Requests that a server refuses -----------------------------------------------------------------------------------

Ask = Callable[[Scene], str]


def without_reading(scene: Scene) -> str:
    """Pull while the broker may only be written to."""
    with scene.node.set("brokerPermission", "2"):
        return scene.pulled()


REPLIES: list[tuple[str, Ask]] = [
    ("topic-missing", lambda scene: scene.sent(topic="nope-1", defaultTopic="nope-2")),
    ("queue-number", lambda scene: scene.pulled(queueId="77")),
    ("message-illegal", lambda scene: scene.sent(b"x" * 5_000_000)),
    ("sql-filter-off", lambda scene: scene.pulled(expressionType="SQL92", subscription="a = 1")),
    ("forbidden", without_reading),
]
IN_THE_LOG: list[tuple[str, str, Ask]] = [
    ("topic-missing", "the topic nope-1 ", lambda scene: scene.pulled(topic="nope-1")),
    ("body-too-large", "msg body size: 5000001", lambda scene: scene.sent(b"x" * 5_000_001)),
    ("offset-moved", "requestOffset=99999", lambda scene: scene.pulled(queueOffset="99999")),
]


def test_what_a_request_does_wrong(scene: Scene) -> None:
    """Both what the server replies and what it logs is explained, by one entry."""
    scene.node.send(scene.topic)
    wrong = [
        f"{name}: {found} explain {said!r}"
        for name, ask in REPLIES
        if (found := explained(said := ask(scene))) != {f"rocketmq.{name}"}
    ]
    assert not wrong
    for name, mark, ask in IN_THE_LOG:
        ask(scene)
        scene.log.shows(f"rocketmq.{name}", mark)


def test_a_group_whose_name_is_too_long(scene4: Scene) -> None:
    """Its member consumes, and 4.9.7 refuses each retry."""
    scene, group = scene4, "topic_captured-refunded_".ljust(121, "x")  # the broker refuses to delete its retry topic
    scene.node.send(scene.topic)
    scene.node.witness.make_group(group, 16)
    fields = {"group": group, "offset": str(_place(scene)), "delayLevel": "1", "originMsgId": "1", "unitMode": "false"}
    said = str(scene.ask(SEND_BACK, {**fields, "originTopic": scene.topic, "maxReconsumeTimes": "16"})["remark"])
    assert explained(said) == {"rocketmq.message-illegal"}, said
    scene.log.shows("rocketmq.illegal-retry-topic", "topic length too long")
    assert explained(f"{scene.log.written()}\n{said}") == {"rocketmq.illegal-retry-topic"}
    scene.node.delete_group(group)


def _place(scene: Scene) -> int:
    """Return where the first message of the topic is in the broker's log."""
    (place,) = PLACE.unpack_from(scene.pull(consumerGroup="TOOLS_CONSUMER")["body"], 28)
    return int(place)


def test_a_copy_with_the_mark_of_a_transaction(scene: Scene) -> None:
    """A delay makes it visible: without one, the broker takes it for a half message, and says nothing."""
    with suppress(RefusalError):
        scene.sent(properties="TRAN_MSG\1true\2PGROUP\1p\2DELAY\x011\2UNIQ_KEY\1AA")
    scene.log.shows("rocketmq.half-topic-grows", "the real topic of schedule msg", within=60)


def test_foreign_bytes_at_a_port(scene: Scene) -> None:
    address = scene.node.broker_address
    with socket.create_connection((address.host, address.port), timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with suppress(ConnectionResetError):
            client.recv(1000)
        mark = "{}:{}".format(*client.getsockname())
    scene.log.shows("rocketmq.foreign-bytes", mark)


# --- Clients ----------------------------------------------------------------------------------------------------------


def parts(printed: str) -> Iterator[tuple[str, str]]:
    """Yield what a client was made to do, and what it said."""
    for part in printed.split("== ")[1:]:
        name, _, said = part.partition("\n")
        yield name, said


def test_what_the_java_client_logs(scene4: Scene, tmp_path: Path) -> None:
    """Its exceptions are explained, and its log has the rest: what the listener did, and the retries of the long group."""
    with had():
        path = f"{tmp_path}:{rocketmq_program(scene4.node.LINE) / 'lib'}/*"
        source = str(HERE / "RocketClient.java")
        subprocess.run([str(compiler()), "-cp", path, "-d", str(tmp_path), source], check=True, timeout=120)
    command = [str(java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={tmp_path}"]
    command += ["-cp", path, "RocketClient", str(scene4.node.name_servers[0]), scene4.topic]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    for name, said in parts(done.stdout):
        if name == "connect-failed":  # the client writes the address, or `null` if it has already closed the connection
            assert explained(said) in ({"rocketmq.connect-failed"}, {"rocketmq.name-server-unset"}), said
        elif name not in ("listener", "illegal-retry-topic"):
            assert explained(said) == {f"rocketmq.{name}"}, said
    log = (tmp_path / "logs" / "rocketmqlogs" / "rocketmq_client.log").read_text(encoding="utf-8", errors="replace")
    for expected in ("illegal-retry-topic", "listener-returned-null", "listener-raised"):
        assert f"rocketmq.{expected}" in explained(log), log
    scene4.node.delete_group("g" * 121)


def test_what_the_grpc_client_logs(scene5: Scene, rocketmq5: RocketMQ5, tmp_path: Path) -> None:
    for topic, kind in ((scene5.topic, "NORMAL"), (f"{scene5.topic}-delay", "DELAY")):
        rocketmq5.make_topic(topic, 1, kind)
    rocketmq5.witness.make_group(scene5.topic, 16)
    arguments = (str(rocketmq5.grpc_address), f"127.0.0.1:{free_ports(1)[0]}", scene5.topic)
    done = subprocess.run(
        [sys.executable, str(HERE / "grpc_client.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    found = [*parts(done.stdout)]
    assert len(found) == 7, done.stdout + done.stderr
    for name, said in found:
        assert explained(said) == {f"rocketmq.{name}"}, said
    log = (tmp_path / "logs" / "rocketmq_python" / "rocketmq_client.log").read_text()
    assert "rocketmq.proxy-away" in explained(log)


# --- Access control ---------------------------------------------------------------------------------------------------


@pytest.mark.rocketmq
@pytest.mark.xdist_group("rocketmq")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("line", [RocketMQ4, RocketMQ5], ids=["4", "5"])
def test_logins(line: type[RocketMQ4 | RocketMQ5]) -> None:
    with had():
        node = line(login=True)
    with closing(node):
        node.start()
        scene = Scene(node)
        node.limit(topics=[f"{scene.topic}-other"], groups=["g"])
        user, password = node.login
        for expected, login in (
            ("wrong-signature", Account(user, "wrong")),
            ("not-authorized", Account(LIMITED, f"{password}-2")),
        ):
            node.login = login
            eventually(lambda: explained(scene.sent()) == {f"rocketmq.{expected}"}, expected, 30, scene.sent)  # noqa: B023
        node.login = Account(user, password)
