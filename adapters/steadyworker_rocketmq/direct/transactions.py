"""
Transaction messages to the brokers, without a proxy.

| step | request | from |
|---|---|---|
| store a half message | send, with `TRAN_MSG` and the producer group in `PGROUP` | the sender |
| decide | end of transaction | the sender |
| be a producer of the group | heartbeat | the checks' connection to each broker |
| ask for a decision | check of a transaction | the broker, on that connection |

Names and codes come from `SendMessageRequestHeader`, `EndTransactionRequestHeader` and `MessageSysFlag` in 4.9.7 and 5.4.0.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from steadyworker.adapter import Clock, Settings
from steadyworker.errors import BrokerUnavailable, NotPublished, PublishFailed
from steadyworker.network.errors import Foreign, at_hop
from steadyworker.network.url import Address
from steadyworker_rocketmq.direct.producer import Producers, properties_of
from steadyworker_rocketmq.errors import refusal_of, unavailable
from steadyworker_rocketmq.frames import RemotingReply
from steadyworker_rocketmq.hops import of_broker
from steadyworker_rocketmq.messages import WireMessage, wire_of_stored
from steadyworker_rocketmq.remoting import Remoting, RocketmqBroker, TopicQueue
from steadyworker_rocketmq.stored import stored_messages
from steadyworker_rocketmq.topology import login_of, remoting_of
from steadyworker_rocketmq.transactions import Check, Decision, TransactionTransport
from steadyworker_rocketmq.url import RocketmqUrl

# RequestCode.
_HEARTBEAT, _END, _CHECK = 34, 37, 39

# MessageSysFlag.
_PREPARED = 0x4
_DECISIONS = {Decision.COMMIT: 0x8, Decision.ROLLBACK: 0xC}

_BEAT_EVERY = 30.0
"""Seconds between two heartbeats, the same as in RocketMQ's own clients. A broker forgets a producer after 120 s."""

_ASKED_EVERY = 5.0
"""Seconds between two questions for the brokers."""

_PLACE_DIGITS = 16
"""The number of digits at the end of a broker's message id. These digits are the message's place in the commit log."""


@dataclass(frozen=True, slots=True)
class _Half:
    """A half message: the broker, the message's id, the transaction's id, and the places in the queue and in the commit log."""

    broker: Address
    topic: str
    id: str
    transaction: str
    offset: str
    place: str


def connect(
    url: RocketmqUrl, group: str, _topics: Sequence[str], check: Check, report: Callable[[str], None]
) -> TransactionTransport:
    """Return a producer of transaction messages. The producer connects in the background."""
    return DirectTransport(url, group, check, report, Settings().clock)


class DirectTransport:
    """
    A producer of transaction messages; thread-safe.

    Args:
        url: The brokers.
        group: The producer group.
        check: Answers the brokers' questions.
        report: Receives a sentence when a connection for checks is lost.
        clock: The clock.
    """

    def __init__(self, url: RocketmqUrl, group: str, check: Check, report: Callable[[str], None], clock: Clock) -> None:
        self._url = url
        self._group = group
        self._clock = clock
        self._producers = Producers(lambda: url, clock)
        self._checks = Checks(url, group, partial(self._answer, check), report, clock)

    def send(self, topic: str, wire: WireMessage, run: Callable[[str], Decision]) -> Decision:
        """Send a half message, call `run` with its id, and send the decision to the broker; raises PublishFailed."""
        try:
            half = self._producers.send(topic, partial(self._put, topic, wire))
        except BrokerUnavailable as error:
            raise NotPublished(str(error)) from error
        except Exception as error:
            if (refusal := refusal_of(error, topic)) is not None:
                raise refusal from error
            raise NotPublished(f"{unavailable(error, str(self._url))} The local transaction was not run.") from error
        decision = run(half.id)
        if decision in _DECISIONS:
            try:
                self._end(half, decision, checked=False)
            except Exception as error:
                raise PublishFailed(
                    f"{unavailable(error, str(self._url))} The decision was {decision.name}; "
                    "if the broker does not have it, it asks `check`."
                ) from error
        return decision

    def close(self) -> None:
        """Close the connections, and wait for a check that is under way."""
        self._checks.close()
        self._producers.close()

    def _put(self, topic: str, wire: WireMessage, remoting: Remoting, queue: TopicQueue) -> _Half:
        properties = properties_of(wire, self._clock) | {"TRAN_MSG": "true", "PGROUP": self._group}
        fields = {"producerGroup": self._group, "sysFlag": str(_PREPARED)}
        reply = remoting.store(queue, topic, wire.body, properties, fields)
        stored_id = reply.fields.get("msgId", "")
        try:
            place = int(stored_id[-_PLACE_DIGITS:], 16)
        except ValueError as error:
            raise Foreign("a stored message without its place") from error
        return _Half(
            broker=queue.broker.address,
            topic=topic,
            id=properties["UNIQ_KEY"],
            transaction=reply.fields.get("transactionId") or properties["UNIQ_KEY"],
            offset=str(reply.number("queueOffset")),
            place=str(place),
        )

    def _answer(self, check: Check, broker: Address, request: RemotingReply) -> None:
        """Answer a broker's question."""
        for stored in stored_messages(request.body):
            decision = check(stored.topic, wire_of_stored(stored), stored.id)
            if decision in _DECISIONS:
                fields = request.fields
                half = _Half(
                    broker=broker,
                    topic=stored.topic,
                    id=stored.id,
                    transaction=fields.get("transactionId", stored.id),
                    offset=fields.get("tranStateTableOffset", ""),
                    place=fields.get("commitLogOffset", ""),
                )
                self._end(half, decision, checked=True)

    def _end(self, half: _Half, decision: Decision, *, checked: bool) -> None:
        fields = {
            "producerGroup": self._group,
            "topic": half.topic,
            "tranStateTableOffset": half.offset,
            "commitLogOffset": half.place,
            "commitOrRollback": str(_DECISIONS[decision]),
            "fromTransactionCheck": str(checked).lower(),
            "msgId": half.id,
            "transactionId": half.transaction,
        }
        with self._producers.lend() as producer:
            producer.remoting.ask(half.broker, _END, fields)


class Checks:
    """
    The connections on which brokers ask for decisions. Each broker has its own connection.

    Args:
        url: The brokers.
        group: The producer group.
        answer: Answers one question of a broker.
        report: Receives a sentence when a connection is lost.
        clock: The clock.
    """

    def __init__(
        self,
        url: RocketmqUrl,
        group: str,
        answer: Callable[[Address, RemotingReply], None],
        report: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._url = url
        self._body = json.dumps(
            {
                "clientID": f"steadyworker@{os.getpid()}#{secrets.token_hex(8)}",
                "producerDataSet": [{"groupName": group}],
                "consumerDataSet": [],
            }
        ).encode()
        self._answer = answer
        self._report = report
        self._clock = clock
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._asked: set[str] = set()
        self._threads: dict[Address, threading.Thread] = {}
        self._failing: set[Address] = set()
        self._answers = ThreadPoolExecutor(1, "steadyworker-checks")
        self._thread = threading.Thread(target=self._keep_connected, name="steadyworker-producer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections, and wait for an answer that is under way."""
        self._stopped.set()
        self._thread.join()
        for thread in self._threads.values():
            thread.join()
        self._answers.shutdown(cancel_futures=True)

    def _keep_connected(self) -> None:
        """Keep a connection to each broker, until the end."""
        brokers: list[RocketmqBroker] = []
        with remoting_of(self._url, self._clock) as remoting:
            while not self._stopped.is_set():
                try:
                    brokers = remoting.brokers()
                except Exception as error:  # noqa: BLE001 - this thread must not end
                    if not brokers:
                        self._failed(self._url.addresses[0], error)
                for broker in brokers:
                    thread = self._threads.get(broker.address)
                    if thread is None or not thread.is_alive():
                        thread = threading.Thread(
                            target=self._listen, args=(broker,), name="steadyworker-producer", daemon=True
                        )
                        with suppress(RuntimeError):  # no thread can be started now
                            thread.start()
                            self._threads[broker.address] = thread
                self._stopped.wait(_ASKED_EVERY)

    def _listen(self, named: RocketmqBroker) -> None:
        """Act as a producer of the group at this broker, until an error or the end."""
        broker = named.address
        try:
            with Remoting([], login_of(self._url), self._clock, on_request=partial(self._asked_by, broker)) as remoting:
                beaten_at = 0.0
                while not self._stopped.is_set():
                    if not beaten_at or self._clock.monotonic() - beaten_at >= _BEAT_EVERY:
                        remoting.ask(broker, _HEARTBEAT, body=self._body)
                        beaten_at = self._clock.monotonic()
                        self._failing.discard(broker)
                    remoting.serve(broker, 1.0)
        except Exception as error:  # noqa: BLE001 - the next turn connects again
            at_hop(error, of_broker(named.name, broker, str(self._url)))
            self._failed(broker, error)

    def _asked_by(self, broker: Address, request: RemotingReply) -> None:
        """Answer a question in the background, unless the same question already waits for its answer."""
        question = request.fields.get("msgId", "") or request.fields.get("commitLogOffset", "")
        with self._lock:
            if request.code != _CHECK or question in self._asked or self._stopped.is_set():
                return
            self._asked.add(question)
        self._answers.submit(self._answered, broker, request, question)

    def _answered(self, broker: Address, request: RemotingReply, question: str) -> None:
        try:
            self._answer(broker, request)
        except Exception as error:  # noqa: BLE001 - the broker asks again
            self._failed(broker, error)
        finally:
            with self._lock:
                self._asked.discard(question)

    def _failed(self, broker: Address, error: Exception) -> None:
        """Report a failure of a broker, if it is the first failure since the broker's last reply."""
        if broker not in self._failing and not self._stopped.is_set():
            self._failing.add(broker)
            self._report(f"{unavailable(error, str(broker))} Until then, this broker cannot ask `check`.")
