"""
Transaction messages through a proxy, over rocketmq-python-client's producer.

To get a decision, a proxy asks the producers that have named the message's topic. A proxy knows no producer groups.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from steadyworker.errors import BrokerUnavailable, NotPublished, PublishFailed
from steadyworker_rocketmq.errors import ProxyError, is_missing_topic, refusal_of, unavailable
from steadyworker_rocketmq.grpc.client import TransactionSender
from steadyworker_rocketmq.grpc.senders import Senders
from steadyworker_rocketmq.messages import WireMessage
from steadyworker_rocketmq.transactions import Check, Decision, TransactionTransport
from steadyworker_rocketmq.url import RocketmqUrl

_ASKED_EVERY = 10.0
"""Seconds between two questions whether the proxy still replies. The library's producer does not notice an outage itself."""


def connect(
    url: RocketmqUrl, _group: str, topics: Sequence[str], check: Check, report: Callable[[str], None]
) -> TransactionTransport:
    """Return a producer of transaction messages. The producer connects in the background."""
    return GrpcTransport(url, topics, check, report)


class GrpcTransport:
    """
    A producer of transaction messages; thread-safe.

    Args:
        url: The proxies.
        topics: The topics for which the proxies ask this producer.
        check: Answers the proxies' questions.
        report: Receives a sentence each time the connection is lost.
    """

    def __init__(self, url: RocketmqUrl, topics: Sequence[str], check: Check, report: Callable[[str], None]) -> None:
        self._place = str(url)
        self._topics = topics
        self._report = report
        answers = {Decision.COMMIT: True, Decision.ROLLBACK: False}
        self._senders = Senders(lambda: TransactionSender(url, topics, lambda *asked: answers.get(check(*asked))))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep_connected, name="steadyworker-producer", daemon=True)
        self._thread.start()

    def send(self, topic: str, wire: WireMessage, run: Callable[[str], Decision]) -> Decision:
        """Send a half message, call `run` with its id, and send the decision to the broker; raises PublishFailed."""
        try:
            sender = self._senders.opened()
        except BrokerUnavailable as error:
            raise NotPublished(str(error)) from error
        try:
            half = sender.half(topic, wire)
        except ProxyError as error:
            if (refusal := refusal_of(error, topic)) is not None:
                raise refusal from error
            self._senders.replace(sender, error)
            raise NotPublished(f"{unavailable(error, self._place)} The local transaction was not run.") from error
        decision = run(half.id)
        if decision is not Decision.UNKNOWN:
            try:
                half.end(commit=decision is Decision.COMMIT)
            except ProxyError as error:
                self._senders.replace(sender, error)
                raise PublishFailed(
                    f"{unavailable(error, self._place)} The decision was {decision.name}; "
                    "if the broker does not have it, it asks `check`."
                ) from error
        return decision

    def close(self) -> None:
        """Close the connection, and wait for a check that is under way."""
        self._stopped.set()
        self._thread.join()
        self._senders.close()

    def _keep_connected(self) -> None:
        """Keep a connection open until the end, so that the proxy can ask this producer for decisions."""
        failing = False
        while not self._stopped.is_set():
            try:
                sender = self._senders.opened()
                try:
                    for topic in self._topics[:1]:
                        sender.route(topic)
                except ProxyError as error:
                    if not is_missing_topic(error):
                        self._senders.replace(sender, error)
                    raise
                failing = False
            except Exception as error:  # noqa: BLE001 - this thread must not end
                if not failing and not self._stopped.is_set():
                    failing = True
                    self._report(f"{unavailable(error, self._place)} Until then, the broker cannot ask `check`.")
            self._stopped.wait(_ASKED_EVERY)
