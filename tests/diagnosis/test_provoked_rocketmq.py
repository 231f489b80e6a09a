"""
What RocketMQ 4.9.7 and 5.4.0 and their clients say when something is wrong, and what the catalogue makes of it.

A version that changes its text fails a test here: the entry of the catalogue then needs its new text.
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest

from steadyworker.network.url import Address
from tests.brokers.fixtures import had
from tests.brokers.maven import compiler, java
from tests.brokers.process import free_ports
from tests.brokers.rocketmq import LIMITED, RocketMQ4, RocketMQ5, RocketMQNode, rocketmq_program
from tests.brokers.rocketmq_witness import Account, RefusalError
from tests.diagnosis.explaining import Log, explained
from tests.support.stage import ROOT, eventually

pytestmark = [pytest.mark.slow, pytest.mark.rocketmq, pytest.mark.xdist_group("rocketmq"), pytest.mark.timeout(300)]

HERE = Path(__file__).parent

SEND, PULL, MEMBERS, END_TRANSACTION, SEND_BACK, LOCK, MAKE_TOPIC = 10, 11, 38, 37, 36, 41, 17
ROUTE, CONNECTIONS, DELETE_TOPIC = 105, 203, 215
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
        return self.asked(SEND, {**plain, **fields}, body)

    def pulled(self, **fields: str) -> str:
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
        return self.asked(PULL, {**plain, **fields})

    def made(self, **fields: str) -> str:
        plain = {"topic": self.topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
        numbers = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "order": "false"}
        return self.asked(MAKE_TOPIC, {**plain, **numbers, **fields})

    def asked(self, code: int, fields: Mapping[str, str], body: bytes = b"", *, at: Address | None = None) -> str:
        reply = self.node.witness.ask(at or self.node.broker_address, code, fields, body, allowed=ANY_CODE)
        return str(reply["remark"])


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


def with_setting(name: str, value: str, ask: Ask) -> Ask:
    """Return a request while the broker has another setting."""

    def asked(scene: Scene) -> str:
        with scene.node.set(name, value):
            return ask(scene)

    return asked


def of_a_missing_group(scene: Scene) -> str:
    fields = {"offset": "0", "group": f"{scene.topic}-none", "delayLevel": "0", "originMsgId": "1", "unitMode": "false"}
    with scene.node.set("autoCreateSubscriptionGroup", "false"):
        said = scene.asked(SEND_BACK, {**fields, "originTopic": scene.topic, "maxReconsumeTimes": "16"})
        return f"{said}\n{scene.pulled(consumerGroup=scene.topic + '-none')}"


def of_a_closed_topic(scene: Scene) -> str:
    scene.made(perm="2")
    said = scene.pulled()
    scene.made()
    return said


REPLIES: list[tuple[str, Ask]] = [
    ("no-route", lambda scene: scene.asked(ROUTE, {"topic": "nope"}, at=scene.node.name_servers[0])),
    ("topic-missing", lambda scene: scene.sent(topic="nope-1", defaultTopic="nope-2")),
    ("topic-missing", lambda scene: scene.pulled(topic="nope-1")),
    ("system-topic", lambda scene: scene.sent(topic="RMQ_SYS_TRANS_HALF_TOPIC")),
    ("system-topic", lambda scene: scene.asked(DELETE_TOPIC, {"topic": "TBW102"})),
    ("queue-number", lambda scene: scene.sent(queueId="99")),
    ("queue-number", lambda scene: scene.pulled(queueId="77")),
    ("long-name", lambda scene: scene.made(topic="t" * 128)),
    ("illegal-name", lambda scene: scene.made(topic="a b")),
    ("message-illegal", lambda scene: scene.sent(b"x" * 5_000_000)),
    ("message-illegal", lambda scene: scene.sent(properties="k\1" + "v" * 33_000)),
    ("group-missing", of_a_missing_group),
    ("sql-filter-off", lambda scene: scene.pulled(expressionType="SQL92", subscription="a = 1")),
    ("no-member", lambda scene: scene.asked(CONNECTIONS, {"consumerGroup": "nobody"})),
    ("no-member", lambda scene: scene.asked(MEMBERS, {"consumerGroup": "nobody"})),
    ("forbidden", with_setting("brokerPermission", "2", lambda scene: scene.pulled())),
    ("forbidden", of_a_closed_topic),
    (
        "transactions-refused",
        with_setting("rejectTransactionMessage", "true", lambda scene: scene.sent(properties="TRAN_MSG\1true")),
    ),
]
IN_THE_LOG: list[tuple[str, str, Ask]] = [
    ("topic-missing", "the topic nope-1 ", lambda scene: scene.pulled(topic="nope-1")),
    ("queue-number", "queueId[77]", lambda scene: scene.pulled(queueId="77")),
    ("body-too-large", "msg body size: 5000001", lambda scene: scene.sent(b"x" * 5_000_001)),
    ("properties-too-long", "properties length", lambda scene: scene.sent(properties="k\1" + "v" * 33_000)),
    ("offset-moved", "requestOffset=99999", lambda scene: scene.pulled(queueOffset="99999")),
    ("filter-expression", "expr=a = = 1", lambda scene: scene.pulled(expressionType="SQL92", subscription="a = = 1")),
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
    if scene.node.LINE == "4":
        assert explained(with_setting("brokerRole", "SLAVE", Scene.sent)(scene)) == {"rocketmq.store-unavailable"}
    for name, mark, ask in IN_THE_LOG:
        ask(scene)
        scene.log.shows(f"rocketmq.{name}", mark)


def test_a_group_whose_name_is_too_long(scene4: Scene) -> None:
    """Its member consumes, and 4.9.7 refuses each retry."""
    scene, group = scene4, "topic_captured-refunded_".ljust(121, "x")  # the broker refuses to delete its retry topic
    scene.node.send(scene.topic)
    scene.node.witness.make_group(group, 16)
    fields = {"group": group, "offset": str(_place(scene)), "delayLevel": "1", "originMsgId": "1", "unitMode": "false"}
    said = scene.asked(SEND_BACK, {**fields, "originTopic": scene.topic, "maxReconsumeTimes": "16"})
    assert explained(said) == {"rocketmq.message-illegal"}, said
    scene.log.shows("rocketmq.illegal-retry-topic", "topic length too long")
    assert explained(f"{scene.log.written()}\n{said}") == {"rocketmq.illegal-retry-topic"}
    scene.node.delete_group(group)


def _place(scene: Scene) -> int:
    """Return where the first message of the topic is in the broker's log."""
    fields = {"consumerGroup": "TOOLS_CONSUMER", "topic": scene.topic, "queueId": "0", "queueOffset": "0"}
    more = {"maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}
    more |= {"subscription": "*", "expressionType": "TAG"}
    reply = scene.node.witness.ask(scene.node.broker_address, PULL, {**fields, **more})
    (place,) = PLACE.unpack_from(reply["body"], 28)
    return int(place)


def test_a_copy_with_the_mark_of_a_transaction(scene: Scene) -> None:
    """A delay makes it visible: without one, the broker takes it for a half message, and says nothing."""
    with suppress(RefusalError):
        scene.sent(properties="TRAN_MSG\1true\2PGROUP\1p\2DELAY\x011\2UNIQ_KEY\1AA")
    scene.log.shows("rocketmq.half-topic-grows", "the real topic of schedule msg", within=60)


def test_a_transaction_that_is_never_decided(scene5: Scene) -> None:
    """The broker asks, finds no producer of the group, and gives up."""
    group = f"nobody-{scene5.topic}"
    properties = f"TRAN_MSG\1true\2PGROUP\1{group}\2UNIQ_KEY\1{scene5.topic}"
    with scene5.node.set("transactionCheckMax", "1"):
        scene5.sent(producerGroup=group, properties=properties)
        scene5.log.shows("rocketmq.no-producer-to-ask", f"groupId={group}", within=60)
        scene5.log.shows("rocketmq.given-up-transaction", f"real topic={scene5.topic}", within=60)
    scene5.node.forget_given_up()


def test_a_broker_that_is_busy(scene5: Scene) -> None:
    """A broker without patience sheds load; as a slave and with a slow page cache, it has two other reasons."""
    said: set[str] = set()

    def send() -> None:
        with suppress(RefusalError):
            said.update(scene5.sent() for _ in range(40))

    for setting, value in (("waitTimeMillsInSendQueue", "-1"), ("osPageCacheBusyTimeOutMills", "-1")):
        with scene5.node.set(setting, value):
            threads = [threading.Thread(target=send) for _ in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    said.add(with_setting("brokerRole", "SLAVE", Scene.sent)(scene5))
    reasons = {text[1 : text.index("]")] for text in said if text.startswith("[")}
    assert {"TIMEOUT_CLEAN_QUEUE", "REJECTREQUEST"} <= reasons
    for text in said - {""}:
        assert explained(text) == {"rocketmq.broker-busy"}, text


# --- Bytes of another protocol ----------------------------------------------------------------------------------------


def foreign(address: Address, data: bytes) -> str:
    """Send these bytes to a port, wait until the server closes, and return our own address."""
    with socket.create_connection((address.host, address.port), timeout=20) as client:
        client.sendall(data)
        with suppress(ConnectionResetError):
            client.recv(1000)
        return "{}:{}".format(*client.getsockname())


def test_foreign_bytes_at_a_port(scene: Scene) -> None:
    mark = foreign(scene.node.broker_address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    scene.log.shows("rocketmq.foreign-bytes", mark)
    if scene.node.LINE == "4":
        mark = foreign(scene.node.broker_address, b"\0\0\0\4\1\2\3\4")
        scene.log.shows("rocketmq.bad-frame", mark)


def test_foreign_bytes_at_a_proxy(scene5: Scene, rocketmq5: RocketMQ5) -> None:
    foreign(rocketmq5.grpc_address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    scene5.log.shows("rocketmq.http-to-grpc", "HTTP/1.x request")


def test_a_certificate_that_is_not_trusted(scene: Scene) -> None:
    """Without files of its own, a broker makes a certificate at its start."""
    address = scene.node.broker_address
    with socket.create_connection((address.host, address.port), timeout=20) as client, pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(client, server_hostname="localhost")
    scene.log.shows("rocketmq.tls-refused", "DecoderException")


# --- Clients ----------------------------------------------------------------------------------------------------------


def parts(printed: str) -> Iterator[tuple[str, str]]:
    """Yield what a client was made to do, and what it said."""
    for part in printed.split("== ")[1:]:
        name, _, said = part.partition("\n")
        yield name, said


class JavaClient:
    """RocketMQ's Java client of the node's version, in a home of its own."""

    def __init__(self, node: RocketMQNode, folder: Path) -> None:
        self.node, self.home = node, folder
        self._path = f"{folder}:{rocketmq_program(node.LINE) / 'lib'}/*"
        source = str(HERE / "RocketClient.java")
        subprocess.run([str(compiler()), "-cp", self._path, "-d", str(folder), source], check=True, timeout=120)
        self.log = folder / "logs" / "rocketmqlogs" / "rocketmq_client.log"

    def run(self, topic: str, *arguments: str) -> str:
        """Return what it prints."""
        command = [str(java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={self.home}"]
        command += ["-cp", self._path, "RocketClient", str(self.node.name_servers[0]), topic, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout


def test_what_the_java_client_logs(scene4: Scene, tmp_path: Path) -> None:
    """Its exceptions are explained, and its log has the rest: what the listener did, and the retries of the long group."""
    with had():
        client = JavaClient(scene4.node, tmp_path)
    for name, said in parts(client.run(scene4.topic)):
        if name not in ("listener", "illegal-retry-topic"):
            assert explained(said) == {f"rocketmq.{name}"}, said
    log = client.log.read_text(encoding="utf-8", errors="replace")
    for expected in ("illegal-retry-topic", "listener-returned-null", "listener-raised"):
        assert f"rocketmq.{expected}" in explained(log), log
    scene4.node.delete_group("g" * 121)


def test_what_the_newer_java_client_logs(scene5: Scene, tmp_path: Path) -> None:
    """It refuses the group with the long name before it connects."""
    with had():
        client = JavaClient(scene5.node, tmp_path)
    for name, said in parts(client.run(scene5.topic)):
        if name != "listener":
            assert explained(said) == {f"rocketmq.{name}"}, said


def test_a_broker_that_is_frozen(scene4: Scene, tmp_path: Path) -> None:
    with had():
        client = JavaClient(scene4.node, tmp_path)
    scene4.node.broker.freeze()
    try:
        said = client.run(scene4.topic, "send")
    finally:
        scene4.node.thaw()
    assert explained(said) == {"rocketmq.reply-timeout"}, said


def test_a_master_without_a_slave(scene4: Scene, tmp_path: Path) -> None:
    with had():
        client = JavaClient(scene4.node, tmp_path)
    with scene4.node.set("brokerRole", "SYNC_MASTER"):
        said = client.run(scene4.topic, "send")
    assert explained(said) == {"rocketmq.no-replica"}, said


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
    assert len(found) == 18, done.stdout + done.stderr
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
            ("unknown-key", Account("nobody", password)),
            ("not-authorized", Account(LIMITED, f"{password}-2")),
        ):
            node.login = login
            eventually(lambda: explained(scene.sent()) == {f"rocketmq.{expected}"}, expected, 30, scene.sent)  # noqa: B023
        node.login = Account(user, password)
