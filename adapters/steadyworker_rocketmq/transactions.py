"""
Transaction messages, for producers. The broker delivers such a message only if the producer's local transaction is committed.

::

    captured = LocalTransaction("payments", "captured", run=capture, check=was_captured)
    with open_transactional("rocketmq+grpc://localhost", "shop-payments", [captured]) as publisher:
        publisher.send("payments", "captured", b'{"order": 17}', key="order-17")

1. The broker stores the message, and keeps it from consumers: it is a half message.
2. `run` executes the local transaction, and returns a `Decision`, which the publisher sends to the broker.
3. If the broker receives no COMMIT or ROLLBACK, it asks a producer of the group again and again, and `check` answers.

`check` must answer from durable state, such as the row that `run` has written.
The answer is COMMIT if the row is there, and ROLLBACK if the row will never be there.
`check` can be called in another process, after a restart, and while `run` is under way (tried with 5.4.0). While `run` is under way, the answer is UNKNOWN.

If a message has no `LocalTransaction`, or its `check` fails, the answer is UNKNOWN, never COMMIT, and the log has an error.
After 15 questions without a decision, the broker moves the message to `TRANS_CHECK_MAX_TIME_TOPIC`, where an operator finds it.
The broker also counts questions that reach no producer.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, Self

from steadyworker.adapter import OutgoingMessage, Redelivered, Target
from steadyworker.errors import ConfigError
from steadyworker_rocketmq.messages import HEADERS_BYTES, KEYS, TAGS, WireMessage, delivery_of, fits, wire_of
from steadyworker_rocketmq.names import (
    is_system_topic,
    problem_of_key,
    problem_of_producer_group,
    problem_of_tag,
    problem_of_topic,
)
from steadyworker_rocketmq.url import parse_url

_log = logging.getLogger("steadyworker_rocketmq")

_JOB_KEY = "sw-job-key"


class Decision(Enum):
    """The end of a local transaction: consumers receive the message, or never receive it, or the broker asks later."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TransactionMessage:
    """
    A message of a transaction: the argument of `run` and `check`.

    Attributes:
        topic: The topic.
        tag: The tag.
        body: The body.
        headers: The headers.
        key: The key from the sender.
        id: The message's id.
    """

    topic: str
    tag: str
    body: bytes
    headers: Mapping[str, str]
    key: str
    id: str


Handler = Callable[[TransactionMessage], Decision]


@dataclass(frozen=True, slots=True)
class LocalTransaction:
    """
    The functions for the messages of one topic and tag.

    Attributes:
        topic: The topic.
        tag: The tag.
        run: Executes the local transaction. Called once, in the thread that called `send`.
        check: Reads how the local transaction ended. Called in another thread, any number of times.
    """

    topic: str
    tag: str
    run: Handler
    check: Handler


Check = Callable[[str, WireMessage, str], Decision]
"""The type of a function that answers the broker's question about a message with this topic and id."""


class TransactionTransport(Protocol):
    """One driver's producer of transaction messages."""

    def send(self, topic: str, wire: WireMessage, run: Callable[[str], Decision]) -> Decision:
        """Send a half message, call `run` with its id, send the decision to the broker, and return the decision."""
        ...

    def close(self) -> None:
        """Close the connections, and wait for a check that is under way."""
        ...


class TransactionalPublisher:
    """
    A publisher of transaction messages; thread-safe, and a context manager.

    Keep the publisher open for as long as the process lives, because the broker asks only connected producers.

    Args:
        transactions: The local transactions.
        connect: Returns a driver's producer. The producer answers the broker's questions by the function that `connect` receives.
    """

    def __init__(
        self, transactions: Iterable[LocalTransaction], connect: Callable[[Check], TransactionTransport]
    ) -> None:
        self._transactions = {(each.topic, each.tag): each for each in transactions}
        self._transport = connect(self._checked)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self, topic: str, tag: str, body: bytes, *, key: str, headers: Mapping[str, str] | None = None
    ) -> Decision:
        """
        Send a message in a transaction, and return the decision of the transaction's `run`.

        If `run` raises, `send` raises the same error. The broker then asks `check`, because the local transaction may be committed.

        Args:
            topic: The topic; at a proxy, its type must be TRANSACTION or MIXED.
            tag: The tag.
            body: The body.
            key: The key, such as the key of the row that `run` writes. For a Worker of the topic, this is the job's key.
            headers: The headers.

        Raises:
            ConfigError: There is no `LocalTransaction` for this topic and tag.
            ValueError: The key is invalid, or the headers are too large.
            MessageRefused: `run` was not called, and the topic refuses this message at every try, for example because it is too large.
            NotPublished: `run` was not called. The broker may have the message, so return ROLLBACK from `check` for it.
            PublishFailed: `run` was called, but the broker may not have the decision. Then the broker asks `check`.
        """
        transaction = self._transactions.get((topic, tag))
        if transaction is None:
            raise ConfigError(
                f"Expected a topic and a tag of a LocalTransaction, got {topic!r} and {tag!r}: "
                "pass a LocalTransaction for these two to open_transactional."
            )
        if (problem := problem_of_key(key)) is not None:
            raise ValueError(problem)
        given = dict(headers or {})
        sent = {**given, _JOB_KEY: key, TAGS: tag, KEYS: key}
        wire = wire_of(OutgoingMessage(Target.WORK, body, sent))
        if not fits(wire):
            raise ValueError(
                f"Expected headers of at most {HEADERS_BYTES} bytes with their names, got {wire.size()}: move the largest to the body."
            )
        failed: list[BaseException] = []

        def run(id_: str) -> Decision:
            try:
                return _decision(transaction.run(TransactionMessage(topic, tag, body, given, key, id_)))
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)
                return Decision.UNKNOWN

        decision = self._transport.send(topic, wire, run)
        if failed:
            raise failed[0]
        return decision

    def close(self) -> None:
        """Close the connections; the broker then asks other producers of the group for the decisions."""
        self._transport.close()

    def _checked(self, topic: str, wire: WireMessage, id_: str) -> Decision:
        """Answer the broker's question about a message without a decision."""
        tag = wire.tag or ""
        place = f"topic {topic!r}, tag {tag!r}, message {id_}"
        if is_system_topic(topic):
            _log.error(
                "Expected a transaction message of a user's topic, got one of a system topic (%s): a client copies the "
                "property TRAN_MSG of messages that it receives; let it copy its own properties only.",
                place,
            )
            return Decision.UNKNOWN
        transaction = self._transactions.get((topic, tag))
        if transaction is None:
            _log.error(
                "Expected a LocalTransaction for a message without a decision, got none (%s): give it to open_transactional "
                "in every process of this producer group; until then the answer is UNKNOWN.",
                place,
            )
            return Decision.UNKNOWN
        found = delivery_of(0, "", topic, wire, id_, Redelivered.UNKNOWN, None)
        headers = {name: text for name, text in found.headers.items() if name not in (_JOB_KEY, TAGS, KEYS)}
        key = found.headers.get(_JOB_KEY) or found.headers.get(KEYS, "")
        try:
            return _decision(transaction.check(TransactionMessage(topic, tag, found.body, headers, key, id_)))
        except BaseException:  # noqa: BLE001 - an error of the user's code, which only the log shows
            _log.exception(
                "Expected a decision from `check`, got an error (%s): correct `check`; until then the answer is UNKNOWN.",
                place,
            )
            return Decision.UNKNOWN


def _decision(answer: object) -> Decision:
    if isinstance(answer, Decision):
        return answer
    raise TypeError(
        f"Expected Decision.COMMIT, Decision.ROLLBACK or Decision.UNKNOWN, got {answer!r}: return one of them."
    )


def open_transactional(url: str, group: str, transactions: Iterable[LocalTransaction]) -> TransactionalPublisher:
    """
    Open a publisher of transaction messages. The publisher connects in the background.

    Args:
        url: The broker's URL, of either driver (`url.py`).
        group: The producer group. All processes of the group must have the same local transactions.
            A proxy has no producer groups. There, all processes that send to a topic are a group.
        transactions: The local transactions.

    Raises:
        ConfigError: The URL, the group, a topic or a tag is invalid, or the client library is not installed.
    """
    parsed = parse_url(url)
    known = list(transactions)
    problems = [problem_of_producer_group(group)]
    problems += [problem_of_topic(each.topic) or problem_of_tag(each.tag) for each in known]
    if problem := next((problem for problem in problems if problem is not None), None):
        raise ConfigError(problem)
    # Each driver is imported late, because only one of the two drivers needs a client library.
    module = importlib.import_module(
        f"steadyworker_rocketmq.{'grpc' if parsed.driver == 'grpc' else 'direct'}.transactions"
    )
    topics = sorted({each.topic for each in known})
    return TransactionalPublisher(known, lambda check: module.connect(parsed, group, topics, check, _log.warning))
