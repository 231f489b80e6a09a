"""A copy of any message is the same job's, whichever adapter carries it: key, uid, round, body and the sender's headers stay."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika.spec import Basic, BasicProperties

from steadyworker.actions.deadletters import DeadLetterQueue
from steadyworker.adapter import DeadLetters, Delivery, OutgoingMessage, Redelivered, Target
from steadyworker.clock import Times
from steadyworker.delivery import HOP, KEY, ROUND, UID
from steadyworker.ledger.base import Claimed, Moving, Row, Verdict
from steadyworker.outcome import Counters
from steadyworker.runner.envelope import Envelope, identify
from steadyworker.runner.planning import deferred, message_for
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from steadyworker_rabbitmq import messages as amqp
from steadyworker_rocketmq import messages as rocketmq
from steadyworker_rocketmq.names import PROXY_PROPERTIES_BYTES
from steadyworker_sqlite.store import headers_of
from steadyworker_stomp import messages as stomp
from steadyworker_stomp.dialects import ARTEMIS, CLASSIC, Dialect

QUEUE, NAMESPACE, KEY_HEADER, FRAME = "exports", "shop", "orderKey", 4096


def by_amqp(message: OutgoingMessage) -> Delivery:
    """With frames of 4 KiB, the smallest that a broker may ask for."""
    sent, body = amqp.carried(amqp.properties_of(message, "m-1", 5), message.body, FRAME)
    assert amqp.size_of(sent) <= FRAME
    arrived = BasicProperties()
    arrived.decode(b"".join(sent.encode()))
    return amqp.delivery_of(1, QUEUE, Basic.Deliver("tag", 1), arrived, body)


def by_stomp(message: OutgoingMessage, dialect: Dialect) -> Delivery:
    """As the broker delivers a frame: without what it has obeyed, and with what it adds."""
    headers, body = stomp.frame_of(message, dialect)
    assert stomp.fits(headers)
    headers = {name: text for name, text in headers.items() if name != "AMQ_SCHEDULED_DELAY"}
    length = {"content-length": str(len(body))}  # stomp.py adds it, and the broker keeps it
    return stomp.delivery_of(1, QUEUE, dialect, {**headers, **length, "ack": "1", "message-id": "consumer,1"}, body)


def by_rocketmq(message: OutgoingMessage) -> Delivery:
    wire = rocketmq.carried_wire(message)
    assert rocketmq.fits(wire)
    copied = wire.copied("id-1", 5.0)  # as a proxy's delayed message is moved, and a released one is sent again
    assert copied.size() <= PROXY_PROPERTIES_BYTES
    return rocketmq.delivery_of(1, "1", QUEUE, copied, "id-2", Redelivered.UNKNOWN, 6.0)


def by_file(message: OutgoingMessage) -> Delivery:
    return Delivery(1, "1", QUEUE, message.body, headers_of(json.dumps(dict(message.headers))), "m-1")


ADAPTERS: dict[str, Callable[[OutgoingMessage], Delivery]] = {
    "rabbitmq": by_amqp,
    "classic": lambda message: by_stomp(message, CLASSIC),
    "artemis": lambda message: by_stomp(message, ARTEMIS),
    "rocketmq": by_rocketmq,
    "sqlite": by_file,
}


def retried(envelope: Envelope, row: Row) -> OutgoingMessage:
    verdict = Verdict(Moving.RETRY, "x" * 2000, Counters(attempts=1, first_failed_at=1.5), 5.0)
    return message_for(envelope, envelope.hop, verdict, row.uid, "worker")


def snoozed(envelope: Envelope, row: Row) -> OutgoingMessage:
    return message_for(envelope, envelope.hop, Verdict(Moving.RETRY, "snooze", Counters(), 5.0), row.uid, "worker")


def put_off(envelope: Envelope, row: Row) -> OutgoingMessage:
    return deferred(envelope, row.uid, 30.0)


def dead(envelope: Envelope, row: Row) -> OutgoingMessage:
    verdict = Verdict(Moving.DEAD, "exhausted", Counters(attempts=5), error_class="E" * 99, error_text="e" * 3000)
    return message_for(envelope, envelope.hop, verdict, row.uid, "worker")


class Letter:
    """A dead-letter queue with one letter; it keeps what a replay publishes."""

    def __init__(self, letter: Delivery) -> None:
        self._letter = letter
        self.published: list[OutgoingMessage] = []

    @contextmanager
    def __call__(self) -> Iterator[DeadLetters]:
        yield self

    def __iter__(self) -> Iterator[Delivery]:
        return iter([self._letter])

    def publish(self, message: OutgoingMessage) -> None:
        self.published.append(message)

    def drop(self, delivery: Delivery) -> None:
        pass


def read(delivery: Delivery) -> Envelope:
    envelope = identify(delivery, NAMESPACE, KEY_HEADER)
    assert isinstance(envelope, Envelope)
    return envelope


def theirs(delivery: Delivery) -> dict[str, str]:
    return {name: text for name, text in delivery.headers.items() if not name.startswith("sw-")}


_texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
_long = st.builds(lambda text, times: text * times, _texts, st.sampled_from([1, 1, 50, 900, 5000]))
_names = _texts.filter(lambda name: not name.startswith(("sw-", "AMQ_", "_AMQ_", "x-", "JMS", "CC", "BCC")))
_headers = st.dictionaries(_names, _long, max_size=4)


@pytest.mark.parametrize("carry", ADAPTERS.values(), ids=ADAPTERS.keys())
@settings(max_examples=50)
@given(
    headers=_headers,
    many=st.sampled_from([0, 0, 200, 950]),
    key=_long,
    body=st.binary(max_size=5),
    steps=st.lists(st.sampled_from([retried, snoozed, put_off]), max_size=3),
)
def test_a_copy_of_any_message_is_its_originals_job(
    carry: Callable[[OutgoingMessage], Delivery],
    headers: dict[str, str],
    many: int,
    key: str,
    body: bytes,
    steps: list[Callable[[Envelope, Row], OutgoingMessage]],
) -> None:
    """Through retry, snooze and deferral, as a dead letter, and after its replay."""
    headers = {**headers, **{f"h{number}": "" for number in range(many)}, KEY_HEADER: key}
    ledger = MemoryLedger(FakeClock(), Times())
    first = read(carry(OutgoingMessage(Target.WORK, body, headers)))
    row = ledger.claim(Claimed(first.id, None, "owner", 0, first.body_sha256, Counters()))
    assert row is not None
    envelope, hop = first, 0
    delivery = first.delivery
    for step in [*steps, dead]:
        message = step(envelope, row)
        hop += step in (retried, snoozed)
        delivery = carry(message)
        envelope = read(delivery)
        assert (envelope.id, envelope.uid, envelope.hop) == (first.id, row.uid, hop)
        assert (envelope.body_sha256, delivery.body) == (first.body_sha256, body)
        assert envelope.conflict(row.uid) == ""
        assert theirs(delivery) == theirs(first.delivery)
        assert envelope.letter == (step is dead)
    letters = Letter(delivery)
    (replayed,) = DeadLetterQueue(letters, ledger, NAMESPACE, QUEUE, key_header=KEY_HEADER).replay()
    (message,) = letters.published
    again = read(carry(message))
    assert (replayed.letter.key, replayed.letter.round, replayed.letter.uid) == (first.id.key, 0, row.uid)
    assert (again.id.key, again.id.round, again.hop, again.uid) == (first.id.key, 1, 0, None)
    assert again.conflict(None) == ""
    assert theirs(again.delivery) == theirs(first.delivery)


@pytest.mark.parametrize("carry", ADAPTERS.values(), ids=ADAPTERS.keys())
def test_a_copy_that_another_program_has_changed_is_still_its_originals_job(
    carry: Callable[[OutgoingMessage], Delivery],
) -> None:
    """A bridge can cut or remove the header of the sender's key; the job's own key, and the uid that proves it, are there."""
    copy = {KEY: "right", HOP: "1", ROUND: "2", UID: "u-1"}
    for changed in ({KEY_HEADER: "ri"}, {KEY_HEADER: ""}, {}):
        envelope = read(carry(OutgoingMessage(Target.LATER, b"{}", copy | changed, 5.0)))
        assert (envelope.id.key, envelope.id.round, envelope.hop) == ("right", 2, 1)
        assert envelope.conflict("u-1") == ""
