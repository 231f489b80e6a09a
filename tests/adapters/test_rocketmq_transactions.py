"""
Transaction messages of RocketMQ, on 4.9.7 and 5.4.0, with both drivers: each message is where its decision puts it, and none in a circle.

The test brokers ask for the first time 3 s after a half message, and then every 3 s.
"""

from __future__ import annotations

import logging
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from steadyworker.errors import ConfigError, MessageRefused, NotPublished
from steadyworker_rocketmq.transactions import (
    Decision,
    Handler,
    LocalTransaction,
    TransactionalPublisher,
    TransactionMessage,
    open_transactional,
)
from tests.brokers.process import free_ports
from tests.brokers.rocketmq import RocketMQ4, RocketMQ5, RocketMQNode
from tests.faults.proxy import Proxy
from tests.support.stage import eventually

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(300)]

COMMIT, ROLLBACK, UNKNOWN = Decision
WITHIN = 40.0
"""Seconds for a broker's question, ten times what it needs."""

TAG = "captured"


@dataclass
class Shop:
    """One driver at a broker, with a topic of its own, and a shop whose durable state is `rows`."""

    node: RocketMQNode
    url: str
    topic: str
    rows: dict[str, Decision] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    asked: list[TransactionMessage] = field(default_factory=list)

    def open(self, run: Handler | None = None, check: Handler | None = None, tag: str = TAG) -> TransactionalPublisher:
        """Open a publisher whose local transaction returns COMMIT, unless `run` and `check` are given."""
        return open_transactional(
            self.url, f"{self.topic}-shop", [LocalTransaction(self.topic, tag, run or self.run, check or self.check)]
        )

    def run(self, message: TransactionMessage) -> Decision:
        self.ran.append(message.key)
        return self.rows.get(message.key, COMMIT)

    def check(self, message: TransactionMessage) -> Decision:
        self.asked.append(message)
        return self.rows.get(message.key, UNKNOWN)

    def keys(self) -> list[str]:
        """Return the keys of all messages that consumers can get, or have got."""
        return sorted(message.properties["KEYS"] for message in self.node.messages(self.topic))


@pytest.fixture(params=["direct on 4.9.7", pytest.param("direct on 5.4.0", marks=pytest.mark.slow), "gRPC on 5.4.0"])
def shop(request: pytest.FixtureRequest, rocketmq4: RocketMQ4, rocketmq5: RocketMQ5) -> Iterator[Shop]:
    driver, _, version = request.param.split(" ")
    node = rocketmq4 if version == "4.9.7" else rocketmq5
    topic = f"q-{secrets.token_hex(4)}"
    # A proxy accepts transaction messages in a topic for them only; a broker accepts them in a Worker's topic, too.
    node.make_topic(topic, 4, "TRANSACTION" if driver == "gRPC" else "NORMAL")
    yield Shop(node, node.url if driver == "gRPC" else node.remoting_url, topic)
    node.heal()
    node.remove(topic)


def test_a_message_is_where_its_decision_puts_it(shop: Shop) -> None:
    """Committed or rolled back: `run` is called once, and the broker asks for nothing."""
    shop.rows["never"] = ROLLBACK
    with shop.open() as publisher:
        assert publisher.send(shop.topic, TAG, b"{}", key="never", headers={"shop": "1"}) is ROLLBACK
        assert publisher.send(shop.topic, TAG, b"{}", key="now", headers={"shop": "1"}) is COMMIT
        eventually(lambda: shop.keys() == ["now"], "the committed message", WITHIN)
    assert shop.ran == ["never", "now"]
    assert shop.node.half(shop.topic) == 2
    assert shop.asked == []


def test_a_message_that_is_refused_for_good_is_reported_so_and_ends_no_other_transaction(shop: Shop) -> None:
    """It was sent while another one had no decision yet, whose connection must stay."""

    def run(message: TransactionMessage) -> Decision:
        with pytest.raises(MessageRefused, match="maxMessageSize"):
            publisher.send(shop.topic, TAG, bytes(5_000_000), key="large")
        return shop.run(message)

    with shop.open(run) as publisher:
        assert publisher.send(shop.topic, TAG, b"{}", key="small") is COMMIT
        eventually(lambda: shop.keys() == ["small"], "the committed message", WITHIN)
    assert shop.ran == ["small"]
    assert shop.asked == []


def test_the_broker_asks_for_a_missing_decision(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """`run` ends without a decision, or raises, even SystemExit; `check` then decides, and its errors decide nothing."""
    errors: dict[str, Callable[[], object]] = {"raises": lambda: 1 / 0, "exits": sys.exit, "none": lambda: None}

    def run(message: TransactionMessage) -> Decision:
        shop.ran.append(message.key)
        return errors.get(message.key, lambda: UNKNOWN)()  # type: ignore[return-value]

    def check(message: TransactionMessage) -> Decision:
        shop.check(message)
        if message.key in errors and message.key not in shop.rows:
            errors[message.key]()
            return None  # type: ignore[return-value]
        return shop.rows.get(message.key, UNKNOWN)

    with shop.open(run, check) as publisher:
        shop.rows["sold"], shop.rows["lost"] = COMMIT, ROLLBACK
        for key, raised in (("raises", ZeroDivisionError), ("exits", SystemExit), ("none", TypeError)):
            with pytest.raises(raised):
                publisher.send(shop.topic, TAG, b"\0\xff", key=key, headers={"shop": "1"})
        for key in ("sold", "lost", "open"):
            assert publisher.send(shop.topic, TAG, b"", key=key) is UNKNOWN
        asked = {"raises", "exits", "none", "sold", "lost", "open"}
        eventually(lambda: {message.key for message in shop.asked} == asked, "a question about each", WITHIN)
        eventually(lambda: shop.keys() == ["sold"], "the message that check committed", WITHIN)
        lines = [record for record in caplog.records if record.name == "steadyworker_rocketmq"]
        assert {type(line.exc_info[1]) for line in lines if line.exc_info} >= {ZeroDivisionError, SystemExit, TypeError}
        assert all("correct `check`; until then the answer is UNKNOWN" in line.getMessage() for line in lines)
        shop.rows.update(dict.fromkeys(errors, COMMIT))  # the checker is corrected
        eventually(lambda: shop.keys() == ["exits", "none", "raises", "sold"], "the others", WITHIN)
    message = next(message for message in shop.asked if message.key == "raises")
    assert (message.topic, message.tag, message.body) == (shop.topic, TAG, b"\0\xff")
    assert message.headers == {"shop": "1"}
    assert next(message.body for message in shop.asked if message.key == "sold") == b""
    assert len(shop.ran) == len(set(shop.ran)) == 6


@pytest.mark.slow
def test_a_message_without_a_local_transaction_is_never_committed(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Another process of the group lacks the tag: it logs that, and decides nothing; the right one does."""
    with shop.open(lambda _: UNKNOWN) as publisher:
        publisher.send(shop.topic, TAG, b"{}", key="order-1")
    shop.rows["order-1"] = COMMIT
    with shop.open(tag="refunded"):
        text = f"got none (topic '{shop.topic}', tag '{TAG}', message "
        eventually(lambda: text in caplog.text, "a line in the log", WITHIN)
    assert shop.asked == []
    assert shop.keys() == []
    assert "in every process of this producer group" in caplog.text
    with shop.open():
        eventually(lambda: shop.keys() == ["order-1"], "the message", WITHIN)


@pytest.mark.slow
def test_a_check_while_the_local_transaction_runs(shop: Shop) -> None:
    """The broker asks before `run` has ended: the answer is UNKNOWN, and the decision counts, once."""
    was_asked = threading.Event()

    def run(message: TransactionMessage) -> Decision:
        if message.key == "slow":
            assert was_asked.wait(WITHIN)
            return COMMIT
        return UNKNOWN

    def check(message: TransactionMessage) -> Decision:
        was_asked.set()
        return shop.check(message)

    with shop.open(run, check) as publisher:
        assert publisher.send(shop.topic, TAG, b"{}", key="slow") is COMMIT
        eventually(lambda: shop.keys() == ["slow"], "the message", WITHIN)
        shop.rows["next"] = COMMIT
        publisher.send(shop.topic, TAG, b"{}", key="next")
        eventually(lambda: shop.keys() == ["next", "slow"], "one that the broker asked for later", WITHIN)


def test_what_cannot_be_sent(shop: Shop) -> None:
    """`run` is not called where the broker cannot have the message, and the error has the reason."""
    with shop.open() as publisher:
        with pytest.raises(ConfigError, match="Expected a topic and a tag of a LocalTransaction"):
            publisher.send(shop.topic, "refunded", b"{}", key="order-1")
        with pytest.raises(ValueError, match="Expected a key without blanks"):
            publisher.send(shop.topic, TAG, b"{}", key="order 1")
        with pytest.raises(ValueError, match="Expected headers of at most"):
            publisher.send(shop.topic, TAG, b"{}", key="order-1", headers={"large": "x" * 20_000})
    with pytest.raises(NotPublished, match="open another"):
        publisher.send(shop.topic, TAG, b"{}", key="order-1")
    scheme = shop.url.partition(":")[0]
    with (
        open_transactional(
            f"{scheme}://127.0.0.1:{free_ports(1)[0]}", "shop", [LocalTransaction("orders", TAG, shop.run, shop.check)]
        ) as nowhere,
        pytest.raises(NotPublished),
    ):
        nowhere.send("orders", TAG, b"{}", key="order-1")
    assert [*shop.ran, *shop.keys()] == []


@pytest.mark.parametrize(
    ("group", "topic", "tag", "text"),
    [
        ("shop", "RMQ_SYS_TRANS_HALF_TOPIC", TAG, "not one of RocketMQ's own"),
        ("shop", "%RETRY%shop", TAG, "not one of RocketMQ's own"),
        ("shop", "orders", "a|b", "one tag without"),
        ("shop", "orders", " ", "a tag that is not blank"),
        ("g" * 300, "orders", TAG, "which has 300: RocketMQ's limit is 255"),
    ],
)
def test_a_name_that_rocketmq_refuses(group: str, topic: str, tag: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        open_transactional(
            "rocketmq://localhost", group, [LocalTransaction(topic, tag, lambda _: COMMIT, lambda _: COMMIT)]
        )


def test_a_copied_mark_of_a_system_topic_is_never_committed(
    rocketmq4: RocketMQ4, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that copies TRAN_MSG into its group's retry topic: the message stays hidden, and the log has the reason."""
    group, topic = f"q-{secrets.token_hex(4)}", f"%RETRY%q-{secrets.token_hex(4)}"
    with open_transactional(rocketmq4.remoting_url, group, []):
        rocketmq4.make_topic(topic)
        rocketmq4.send(topic, b"{}", {"TRAN_MSG": "true", "PGROUP": group})
        text = f"got one of a system topic (topic '{topic}'"
        eventually(lambda: text in caplog.text, "a line in the log", WITHIN)
    assert "let it copy its own properties only" in caplog.text
    assert rocketmq4.count(topic) == 0
    rocketmq4.remove(topic.removeprefix("%RETRY%"))


@pytest.mark.slow
def test_a_message_is_given_up_after_fifteen_questions(shop: Shop) -> None:
    """It ends where an operator finds it, and not at a consumer; this needs a minute."""
    with shop.node.set("transactionCheckMax", "15"), shop.open(lambda _: UNKNOWN) as publisher:
        publisher.send(shop.topic, TAG, b"{}", key="order-1")
        eventually(lambda: shop.node.gave_up(shop.topic), "a message that is given up", 150.0)
    shop.node.forget_given_up()
    assert shop.keys() == []
    # The broker counts its questions, those that a proxy had no producer for, too.
    fewest = 15 if shop.url.startswith("rocketmq:") else 1
    assert fewest <= len(shop.asked) <= 15


@pytest.mark.slow
def test_the_connection_for_questions_comes_back(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """A cut between publisher and broker: one line in the log, and the next question is answered."""
    caplog.set_level(logging.WARNING)
    if shop.url.startswith("rocketmq:"):
        pytest.skip(
            "the brokers' addresses come from the name server, past a fault proxy; test_the_broker_restarts has it"
        )
    with Proxy(shop.url) as proxy:
        direct, shop.url = shop.url, proxy.url
        with shop.open(lambda _: UNKNOWN) as publisher:
            publisher.send(shop.topic, TAG, b"{}", key="order-1")
            eventually(lambda: shop.asked, "a question", WITHIN)
            proxy.refuse()
            proxy.cut()
            eventually(lambda: "the broker cannot ask `check`" in caplog.text, "a line in the log", WITHIN)
            with pytest.raises(NotPublished):
                publisher.send(shop.topic, TAG, b"{}", key="order-2")
            proxy.accept()
            shop.rows["order-1"] = COMMIT
            eventually(lambda: shop.keys() == ["order-1"], "the message", 2 * WITHIN)
            assert publisher.send(shop.topic, TAG, b"{}", key="order-3") is UNKNOWN
        shop.url = direct
    assert caplog.text.count("the broker cannot ask `check`") == 1


@pytest.mark.slow
def test_the_broker_restarts(shop: Shop) -> None:
    """A broker that is killed between half message and decision asks when it is back."""
    assert isinstance(shop.node, RocketMQ4 | RocketMQ5)
    node = shop.node
    with shop.open(lambda _: UNKNOWN) as publisher:
        publisher.send(shop.topic, TAG, b"{}", key="order-1")
        node.broker.kill()
        shop.rows["order-1"] = COMMIT
        node.broker.start()
        eventually(lambda: shop.keys() == ["order-1"], "the message", 3 * WITHIN)


@pytest.mark.slow
def test_the_page_s_example_runs(rocketmq4: RocketMQ4, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "adapters/steadyworker_rocketmq/README.md"
    found = re.search(r"```python\n(# capture\.py\n.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    assert '"rocketmq://localhost"' in found[1]
    (tmp_path / "capture.py").write_text(found[1].replace('"rocketmq://localhost"', repr(rocketmq4.remoting_url)))
    rocketmq4.make_topic("payment-exports")
    done = subprocess.run([sys.executable, "capture.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("COMMIT\n", 0), done.stderr
    eventually(lambda: rocketmq4.count("payment-exports") == 1, "the message", WITHIN)
    rocketmq4.remove("payment-exports")
