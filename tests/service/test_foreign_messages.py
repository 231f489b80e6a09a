"""Whatever headers and body a foreign client sends: its message ends done or dead, and no process ends."""

from __future__ import annotations

import gzip
import itertools
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyworker.adapter import OutgoingMessage, QueueSpec, Settings, Target
from steadyworker.delivery import DEAD_HEADERS, KEY, OWN_HEADERS, REASON
from steadyworker.ledger.base import JobFilter, State
from steadyworker_rocketmq.names import is_system_property
from steadyworker_sqlite import SqliteAdapter
from tests.brokers.jms import MAP, content, kinds, send_map
from tests.brokers.rabbitmq import Vhost
from tests.brokers.rocketmq import RocketMQ4, RocketMQ5, RocketMQNode
from tests.brokers.stomp_broker import StompBroker
from tests.support.stage import WITHIN, Processes, Stage, WorkerProcess, eventually, processes_at

TYPED = "tests.support.jobs:Typed"
GOOD = b'{"merchant": "m-17"}'
MESSAGES = 100

_ours = st.sampled_from([*OWN_HEADERS, *DEAD_HEADERS, "traceparent", "sw-amqp", "x-delivery-count", ""])
_any_text = st.text(st.characters(exclude_categories=()), max_size=20)
_numbers = st.integers(-(2**63), 2**63 - 1)
_counters = st.sampled_from(
    ["0", "1", "3", "-1", "1e3", "²", "9" * 15, "9" * 16, "9" * 5000, " 1", "nan", "\N{ARABIC-INDIC DIGIT ONE}"]
)
_bodies = st.just(GOOD) | st.binary(max_size=50) | st.sampled_from([b"", b"null", b"[" * 5000, b'"\\ud800"'])
_headers = st.dictionaries(_ours | _any_text, _counters | _any_text, max_size=5)


def every_message_ends(processes: Processes, process: WorkerProcess, sent: int, dead: Callable[[], int]) -> int:
    """Wait until each message is done or a dead letter, and the same worker process has done one more; answers how many are done."""
    processes.send("typed", {"merchant": "the last"}, key="the-last")

    def done() -> int:
        return sum(row.state is State.DONE for row, _ in processes.ledger.jobs(JobFilter(queue="typed")))

    eventually(
        lambda: done() + dead() == sent + 1, f"{sent} ends", 60, lambda: f"{done()} {dead()}\n{process.log_end()}"
    )
    processes.reaches("typed", State.DONE, "the-last")
    assert process.poll() is None
    assert not process.lines("part_stuck")
    return done() - 1


def letters(processes: Processes) -> list[dict[str, Any]]:
    """Every dead letter, as the command shows it."""
    shown = processes.command("dead", "show", "typed", "--json")
    shown.ended(0)
    return [json.loads(line) for line in shown.log.read_text(encoding="utf-8").split("\n") if line]


@pytest.fixture
def process(stage: Stage) -> WorkerProcess:
    return stage.worker(TYPED).started()


def test_whatever_is_sent_to_the_embedded_broker_ends_done_or_dead(stage: Stage, process: WorkerProcess) -> None:
    adapter = SqliteAdapter(stage.broker, QueueSpec("typed", "typed.dead"), Settings())
    numbers = itertools.count(1)

    @given(_bodies, _headers, st.text(st.characters(codec="utf-8"), max_size=300))
    @settings(max_examples=MESSAGES)
    def send(body: bytes, headers: dict[str, str], id_: str) -> None:
        number = next(numbers)
        if KEY in headers:
            headers[KEY] += str(number)  # else two of them are one piece of work
        adapter.publish(OutgoingMessage(Target.WORK, body, headers, message_id=f"{id_}{number}"))

    send()
    adapter.stop(1)
    sent = next(numbers) - 1
    assert 0 < every_message_ends(stage, process, sent, lambda: stage.depth("typed.dead")) < sent
    assert len(letters(stage)) == stage.depth("typed.dead")


def test_a_lone_surrogate_is_a_dead_letter_that_names_its_header(stage: Stage, process: WorkerProcess) -> None:
    """What `os.fsdecode` makes of a name that is not UTF-8: in a name, in a value, and in the key."""
    adapter = SqliteAdapter(stage.broker, QueueSpec("typed", "typed.dead"), Settings())
    odd = "caf\udce9.csv"
    for headers in ({"file": odd}, {odd: "file"}, {KEY: odd}):
        adapter.publish(OutgoingMessage(Target.WORK, GOOD, headers))
    adapter.stop(1)
    assert every_message_ends(stage, process, 3, lambda: stage.depth("typed.dead")) == 0
    records = letters(stage)
    fault = ": expected valid Unicode, got a lone surrogate at 3"
    assert {record["reason"] for record in records} == {
        f"bad-header: {name}{fault}" for name in ("file", r"caf\udce9.csv", KEY)
    }
    assert records[0]["headers"]["file"] == r"caf\udce9.csv"
    assert stage.lines("starts") == ["the-last 1 0"]


def test_whatever_another_program_writes_into_the_file_ends_done_or_dead(stage: Stage, process: WorkerProcess) -> None:
    written = ["{", "7", "[]", '{"a": 1, "b": null}', '{"a": ' + "9" * 5000 + "}", "[" * 100_000, "", '"\\ud800"']
    with closing(sqlite3.connect(stage.broker, isolation_level=None, timeout=WITHIN)) as broker:
        for number, headers in enumerate(written):
            insert_message(broker, f"CAST(x'{headers.encode().hex()}' AS TEXT)", f"'foreign-{number}'")
        insert_message(broker, "CAST(x'7bff7d' AS TEXT)", "'not UTF-8'")
        insert_message(broker, "'{}'", "CAST(x'eda080' AS TEXT)")
    every_message_ends(stage, process, len(written) + 2, lambda: stage.depth("typed.dead"))
    assert len(letters(stage)) == stage.depth("typed.dead")


def insert_message(broker: sqlite3.Connection, headers: str, message_id: str) -> None:
    broker.execute(
        "INSERT INTO messages (queue, message_id, headers, due, due_wall, sent_at, body)"
        f" VALUES ('typed', {message_id}, {headers}, 0, 0, 0, ?)",
        (GOOD,),
    )


class Raw(str):
    """A text that is sent as these bytes, which are not UTF-8."""

    __slots__ = ()

    def encode(self, encoding: str = "", errors: str = "") -> bytes:
        return b"caf\xe9\xed\xb3\xa9"


_amqp_values: Any = st.recursive(
    st.none()
    | st.booleans()
    | _numbers
    | _counters
    | st.text(st.characters(codec="utf-8"), max_size=20)
    | st.binary(max_size=20)
    | st.sampled_from([Raw("raw"), datetime(2026, 11, 23, tzinfo=UTC), Decimal("1.5"), "x" * 20_000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "sw-hop"]), inner, max_size=3),
    max_leaves=5,
)
_amqp_names = (_ours | st.text(st.characters(codec="utf-8"), max_size=60) | st.binary(max_size=60)).filter(
    lambda name: name not in ("CC", "BCC", b"CC", b"BCC")  # lists of queues: a broker refuses another value
)
_amqp_texts = st.none() | st.text(st.characters(codec="utf-8"), max_size=40) | st.binary(max_size=40)


@pytest.fixture
def place(tmp_path: Path, vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    monkeypatch.setenv("STEADYWORKER_DELAYS", "1,5")
    with processes_at(f"{vhost.url}?heartbeat=60&management=off", tmp_path) as made:
        yield made


def test_whatever_is_sent_over_amqp_ends_done_or_dead(place: Processes, vhost: Vhost) -> None:
    process = place.worker(TYPED, ledger_reach="host").started()
    place.send("typed", {"merchant": "the first"}, key="the-first")  # from here on the queue exists
    numbers = itertools.count(1)
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.url))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()

        @given(
            _bodies,
            st.dictionaries(_amqp_names, _amqp_values, max_size=5),
            st.fixed_dictionaries(dict.fromkeys(("content_type", "correlation_id", "type"), _amqp_texts)),
            st.none() | st.integers(0, 2**63 - 1),
        )
        @settings(max_examples=MESSAGES)
        def send(body: bytes, headers: dict[Any, Any], texts: dict[str, Any], sent_at: int | None) -> None:
            number = next(numbers)
            headers = {name: value for name, value in headers.items() if name not in (KEY, KEY.encode(), "", b"")}
            if number % 3 == 0:
                headers[KEY] = f"{headers.get(REASON, '')!r}{number}"
            properties = pika.BasicProperties(
                headers=headers, message_id=f"m-{number}", timestamp=sent_at, delivery_mode=2, **texts
            )
            channel.basic_publish("", "typed", body, properties, mandatory=True)

        send()

        def dead() -> int:
            return int(channel.queue_declare("typed.dead", passive=True).method.message_count)

        sent = next(numbers)  # with the first
        assert 0 < every_message_ends(place, process, sent, dead) < sent
        count = dead()
    assert len(letters(place)) == count


def test_a_body_with_a_content_encoding_is_a_dead_letter_that_names_it(place: Processes, vhost: Vhost) -> None:
    """As a sender that compresses its bodies declares it; the utf-8 of Celery's senders is what every body is."""
    place.worker(TYPED, ledger_reach="host").started()
    place.send("typed", {"merchant": "the first"}, key="the-first")  # from here on the queue exists
    bodies = {"gzip": gzip.compress(GOOD), "utf-8": GOOD, "UTF-8": b"no JSON"}
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.url))) as connection:
        for encoding, body in bodies.items():
            given = pika.BasicProperties(content_encoding=encoding, message_id=encoding, delivery_mode=2)
            connection.channel().basic_publish("", "typed", body, given)
    for key, state in (("gzip", State.DEAD), ("utf-8", State.DONE), ("UTF-8", State.DEAD)):
        place.reaches("typed", state, key)
    reasons = eventually(
        lambda: len(found := letters(place)) == 2 and {each["key"]: each["reason"] for each in found}, "two"
    )
    assert reasons["gzip"] == (
        "bad-payload: $: expected UTF-8, got byte 0x8b at 1; "
        "its sender's content encoding is 'gzip', and SteadyWorker decodes none"
    )
    assert "content encoding" not in reasons["UTF-8"]


_stomp_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)
# Hypothesis draws texts of our code too. A broker acts on these, or refuses their values, so nothing may arrive.
_READ_BY_ACTIVEMQ = {
    *("content-length", "destination", "destination-type", "persistent", "receipt", "reply-to", "transaction"),
    *("JMSXGroupSeq", "expires", "priority", "timestamp", "transformation"),
}
_stomp_names = (
    st.sampled_from(["sw-stomp", "sw-queue", "JMSXGroupID", "type", "_AMQ_ORIG_QUEUE", "redelivered"])
    | _ours.filter(bool)
    | _stomp_text.filter(bool).filter(
        lambda name: name not in _READ_BY_ACTIVEMQ and not name.startswith(("AMQ_", "_AMQ_"))
    )
)
_stomp_values = (
    _counters | _stomp_text | st.sampled_from(['{"headers": 7}', '{"headers": {"sw-job-key": null}}', "x" * 9_000])
)
_stomp_properties: st.SearchStrategy[dict[str, str]] = st.fixed_dictionaries(
    {},
    optional={
        "JMSXGroupSeq": st.sampled_from(["0", "7", "-1"]),
        "priority": st.sampled_from(["0", "9"]),
        "timestamp": st.sampled_from(["0", "1", "1764061200000"]),
        "reply-to": st.just("/queue/typed.answers"),
    },
)


@pytest.fixture
def at_activemq(stomp_broker: StompBroker, tmp_path: Path) -> Iterator[Processes]:
    stomp_broker.remove_queues("typed")
    with processes_at(stomp_broker.url, tmp_path) as made:
        yield made
    stomp_broker.remove_queues("typed")


@pytest.mark.xdist_group("typed")  # one queue of one broker
def test_whatever_is_sent_over_stomp_ends_done_or_dead(at_activemq: Processes, stomp_broker: StompBroker) -> None:
    process = at_activemq.worker(TYPED, ledger_reach="host").started()
    numbers = itertools.count(1)
    with stomp_broker.client() as client:

        @given(_bodies, st.dictionaries(_stomp_names, _stomp_values, max_size=5), _stomp_properties)
        @settings(max_examples=MESSAGES)
        def send(body: bytes, headers: dict[str, str], properties: dict[str, str]) -> None:
            number = next(numbers)
            if number % 3 == 0:
                headers[KEY] = f"{number}:{headers.get(REASON, '')!r}"[:200]
            else:
                headers.pop(KEY, None)
            client.send("typed", body, headers | properties)

        send()
    sent = next(numbers) - 1

    def dead() -> int:
        return stomp_broker.depth("typed.dead")

    assert 0 < every_message_ends(at_activemq, process, sent, dead) < sent
    assert len(letters(at_activemq)) == dead()


@pytest.mark.xdist_group("typed")  # one queue of one broker
def test_check_reports_a_consumer_that_is_not_in_the_ledger(at_activemq: Processes, stomp_broker: StompBroker) -> None:
    """As a worker process does some minutes after its start; our own worker process is in the ledger."""

    def found() -> list[str]:
        checked = at_activemq.command("check", TYPED, "--json")
        checked.ended(0)
        (report,) = [json.loads(line) for line in checked.log.read_text(encoding="utf-8").splitlines()]
        return [each["what"] for each in report["findings"] if each["id"] == "check.foreign-consumers"]

    at_activemq.worker(TYPED).started()
    eventually(lambda: stomp_broker.consumers("typed") == 1, "our consumer")
    assert found() == []
    with stomp_broker.client() as foreign:
        foreign.subscribe("typed")
        (what,) = found()
        assert (
            what
            == "Queue 'typed' has 2 consumers, but this ledger lists 1: a consumer outside it may run the same jobs."
        )


@pytest.mark.xdist_group("typed")  # one queue of one broker
def test_a_jms_map_keeps_its_content_and_the_next_job_runs(at_activemq: Processes, stomp_broker: StompBroker) -> None:
    """The line and the counter report it; the job behind it runs; the content is where only the broker has it; nothing is a copy."""
    process = at_activemq.worker(TYPED, ledger_reach="host").started()
    send_map(stomp_broker, "typed")
    at_activemq.send("typed", {"merchant": "m-17"}, key="next")
    line = process.reports("delivery_rejected")
    assert line["explain"] == "steadyworker.unshown"
    assert line["reason"].startswith("unshown: expected text or bytes, got a JMS map")
    at_activemq.reaches("typed", State.DONE, "next")
    process.terminate()
    process.ended(0)
    assert len(process.lines("delivery_rejected")) == 1
    assert stomp_broker.depth("typed.dead") == 0
    if stomp_broker.is_artemis:
        assert kinds(stomp_broker, "typed") == [MAP]
        return
    (letter,) = [text for text in content(stomp_broker, "ActiveMQ.DLQ") if "queue://typed" in text]
    assert "harbour" in letter
    (shown,) = letters(at_activemq)
    assert shown["unshown"].startswith("expected text or bytes")
    dropped = at_activemq.command("dead", "drop", "typed", "--all")
    dropped.ended(1)
    assert "move or remove such a letter with the broker's console" in dropped.log.read_text(encoding="utf-8")
    assert stomp_broker.dead("typed") == 1


# A broker refuses its own separators in texts, and what does not fit into 32 KB: five of the longest values do.
_rocketmq_text = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=60)
_rocketmq_names = (
    st.sampled_from(["sw-rocketmq", "sw-compression", "KEYS", "TAGS", "RETRY_TOPIC", "PGROUP", "MSG_TYPE", "POP_CK"])
    | _ours.filter(bool)
    | _rocketmq_text.filter(bool).filter(lambda name: not is_system_property(name))  # DELAY, and what it refuses
)
_rocketmq_values = (
    _counters | _rocketmq_text | st.sampled_from(['{"headers": 7}', '{"due": 1e300, "id": 3}', "a  b", "x" * 6_000])
)
_compressions = st.sampled_from([0, 0, 0, 0x1, 0x101, 0x201, 0x301])
"""The broker's flags of a body: plain, zlib, lz4, zstd, zlib."""

ROCKETMQ = [
    pytest.param(("rocketmq4", False), id="4"),
    pytest.param(("rocketmq5", True), id="5-grpc"),
    pytest.param(("rocketmq5", False), id="5", marks=pytest.mark.slow),
]


@pytest.fixture
def at_rocketmq(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Processes, RocketMQNode]]:
    fixture, grpc = request.param
    node: RocketMQ4 | RocketMQ5 = request.getfixturevalue(fixture)
    # Another group, because a proxy can still give a message to a worker of the test before, which was killed.
    url = f"{node.url}&queues=4" if grpc else f"{node.remoting_url}?queues=4&group={{queue}}-remoting"
    node.remove("typed")
    with processes_at(url, tmp_path) as made:
        yield made, node
    node.remove("typed")


@pytest.mark.rocketmq
@pytest.mark.xdist_group("rocketmq")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("at_rocketmq", ROCKETMQ, indirect=True)
def test_whatever_is_sent_to_rocketmq_ends_done_or_dead(at_rocketmq: tuple[Processes, RocketMQNode]) -> None:
    """Over remoting, whose producers may send more than a proxy accepts; bodies may be compressed, rightly or not."""
    place, node = at_rocketmq
    process = place.worker(TYPED, ledger_reach="host").started()
    numbers = itertools.count(1)
    queues = eventually(lambda: node.witness.route("typed"), "the topic")

    @given(_bodies, st.dictionaries(_rocketmq_names, _rocketmq_values, max_size=5), _compressions)
    @settings(max_examples=MESSAGES)
    def send(body: bytes, properties: dict[str, str], compression: int) -> None:
        number = next(numbers)
        if number % 3 == 0:
            properties[KEY] = f"{number}:{properties.get(REASON, '')!r}"[:200]
        else:
            properties.pop(KEY, None)
        packed = zlib.compress(body) if compression in (0x1, 0x301) and number % 2 else body
        if not packed and node.LINE == "5":  # which refuses an empty body
            packed = b"\n"
        node.witness.send(queues[number % len(queues)], "typed", packed, properties, flags=compression)

    send()
    sent = next(numbers) - 1

    def dead() -> int:
        return node.count("typed-dead")

    assert 0 < every_message_ends(place, process, sent, dead) < sent
    found = letters(place)
    assert len(found) == dead()
    assert all(letter["reason"] for letter in found)
    compressed = [
        letter for letter in found if "without compression, or compressed by zlib and whole" in letter["reason"]
    ]
    assert compressed
    assert not process.lines("broker_unreachable")


@pytest.mark.rocketmq
@pytest.mark.xdist_group("rocketmq")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("at_rocketmq", ROCKETMQ, indirect=True)
def test_a_compressed_dead_letter_of_another_producer_is_shown_with_its_reason_and_stays_marked(
    at_rocketmq: tuple[Processes, RocketMQNode],
) -> None:
    """A replay sends the same bytes; without a mark, the handler would take them for a plain body."""
    place, node = at_rocketmq
    process = place.worker(TYPED, ledger_reach="host").started()
    lz4 = b"\x04\x22\x4d\x18 not for us"
    (queue,) = eventually(lambda: node.witness.route("typed-dead"), "the topic of dead letters")
    node.witness.send(queue, "typed-dead", lz4, {KEY: "theirs"}, flags=0x101)
    node.witness.send(queue, "typed-dead", zlib.compress(GOOD), {KEY: "plain"}, flags=0x1)
    eventually(lambda: len(letters(place)) == 2, "two letters")
    replayed = place.command("dead", "replay", "typed", "theirs", "plain")
    replayed.ended(0)
    place.reaches("typed", State.DONE, "plain")
    eventually(lambda: [each["key"] for each in letters(place)] == ["theirs"], "one letter again", 60)
    (letter,) = letters(place)
    assert letter["reason"] == (
        "bad-payload: expected a body without compression, or compressed by zlib and whole, got one with 'lz4'"
    )
    assert process.poll() is None
