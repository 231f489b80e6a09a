"""The adapter for RabbitMQ: it implements `steadyworker.adapter.Adapter` with one I/O thread and two connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import Event

from pika import BlockingConnection
from pika.adapters.select_connection import IOLoop
from pika.exceptions import AMQPError, ChannelClosedByBroker
from typing_extensions import override

from steadyworker.adapter import (
    Capabilities,
    Delays,
    Depth,
    Finding,
    OutgoingMessage,
    PublishesMany,
    Purges,
    QueueSpec,
    Renamable,
    Settings,
)
from steadyworker.errors import BrokerUnavailable, PublishFailed
from steadyworker.network import owed
from steadyworker.network.adapter import NetworkAdapter
from steadyworker.network.errors import Refused
from steadyworker.network.iothread import IoThread
from steadyworker.network.preparation import Preparation
from steadyworker.network.url import unencrypted
from steadyworker_rabbitmq.checks.findings import find, names_finding, refused_finding
from steadyworker_rabbitmq.checks.probe import BrokerProbe
from steadyworker_rabbitmq.connection import brief, hasty, visit
from steadyworker_rabbitmq.consumer import RabbitmqConsumer
from steadyworker_rabbitmq.deadletters import PATIENCE, RabbitmqDeadLetters
from steadyworker_rabbitmq.declare import prepare_at
from steadyworker_rabbitmq.depth import Counts, DepthReader, count_queues
from steadyworker_rabbitmq.errors import is_missing, translated
from steadyworker_rabbitmq.publisher import RabbitmqPublisher
from steadyworker_rabbitmq.topology import Topology
from steadyworker_rabbitmq.url import RabbitmqUrl, parse_url


class RabbitmqAdapter(
    NetworkAdapter[RabbitmqUrl, RabbitmqConsumer, RabbitmqPublisher], PublishesMany, Purges, Renamable
):
    """
    The adapter that one worker process uses for one queue of one virtual host. The adapter connects at its first use.

    Args:
        url: The broker's URL, as the README explains it.
        spec: The queue, and its dead-letter queue.
        settings: The operator's settings.

    Raises:
        ConfigError: The URL or a name is invalid for RabbitMQ.
    """

    def __init__(self, url: str, spec: QueueSpec, settings: Settings) -> None:
        super().__init__(url, parse_url, settings)
        self._spec = spec
        self._topology = Topology(spec, settings)
        purpose = f"{settings.consumer} prepares {spec.queue}"
        self._depths = DepthReader(self._topology, settings.clock)
        self._preparation = Preparation(lambda: prepare_at(self._url, self._topology, purpose))
        self._io = IoThread(f"rabbitmq {spec.queue}", settings.clock, IOLoop)
        self._consumer = RabbitmqConsumer(self._io, self._url, self._preparation, spec, settings)
        self._publisher = RabbitmqPublisher(
            self._io, self._url, self._preparation, self._topology, settings, self._consumer.signal
        )

    @override
    def publish_many(self, messages: Sequence[OutgoingMessage]) -> Sequence[PublishFailed | None]:
        return self._publisher.publish_many(messages)

    @property
    @override
    def capabilities(self) -> Capabilities:
        """
        The abilities of RabbitMQ: delays by levels, and a consumer count.

        A quorum queue counts a cancelled consumer until that consumer's last delivery is settled; a classic queue does not.
        If the next consumer cannot continue the cancelled consumer, the queue can count one consumer for each slot (`epoch.py`).
        Before the adapter knows the queue, it assumes the largest count of consumers, and assumes that the queue moves no rejected messages.
        Delivery timeout and delivery limit depend on the queue, so the abilities do not include them; `findings` reports both.
        """
        prepared = self._preparation.known
        several = prepared is None or (prepared.counts_holders and not prepared.continues_consumers)
        return Capabilities(
            system="rabbitmq",
            delays=Delays.LEVELS,
            levels=self._topology.levels,
            optional_ids=True,
            counts_consumers=True,
            counts_holders=prepared is None or prepared.counts_holders,
            most_consumers=self._spec.concurrency if several else 1,
            rejects=prepared is not None and prepared.rejects,
            forgets_consumers_within=3.0 * self._first.heartbeat,
            max_body=self._settings.max_body,
        )

    @override
    def identity(self) -> str:
        """Return the name of the cluster, and the virtual host."""
        with self._visit("reads the broker's identity") as connection, translated(str(self._first)):
            return BrokerProbe(connection, None).identity

    @override
    def may_have_been(self, identity: str) -> bool:
        """
        Return whether `identity` has the virtual host of this adapter.

        The other part of an identity is the cluster's name, which `rabbitmqctl set_cluster_name` changes.
        """
        return identity.endswith(f":{self._first.vhost}")

    @override
    def exists(self) -> bool:
        with self._visit("finds its queue") as connection, translated(str(self._first)):
            return BrokerProbe(connection, None, within=owed.QUESTION_WITHIN).exists(self._spec.queue)

    @override
    def consumers(self) -> int:
        """Return the number of the queue's consumers; 0 if the queue does not exist."""
        queue = self._spec.queue
        count = self._count([queue], "counts consumers")[queue]
        if isinstance(count, BrokerUnavailable):
            raise count
        return count.consumers

    @override
    def depth(self) -> Depth:
        """
        Return the numbers of the work queue, the retry queues and the dead-letter queue.

        Only the management API counts un-acked messages; `why` has the reason if the API does not respond, or refuses the user.
        """
        return self._depths.depth(self._count(self._depths.queues(), "counts messages"), self._url().management)

    @override
    def findings(self, spec: QueueSpec) -> Sequence[Finding]:
        topology = Topology(spec, self._settings)
        try:
            url = brief(self._url())
            purpose = f"{self._settings.consumer} checks {spec.queue}"
            with ExitStack() as visits, translated(str(url)):

                def reopen() -> BlockingConnection:
                    return visits.enter_context(visit(url, purpose))

                consuming = self._consumer.started
                found = find(reopen(), topology, url.management, consuming=consuming, reopen=reopen)
        except Refused as error:
            if self._consumer.was_connected:
                raise  # a refusal after a first connect can be temporary; the caller checks again later
            return [refused_finding(error)]
        if len(url.addresses) > 1 and not self._consumer.started:
            found += names_finding(*_names(url, purpose))
        if url.tls is None:
            found += unencrypted(url.addresses, "amqps:// in --broker")
        return found

    @override
    def purge(self) -> int:
        with self._visit("purges its queue") as connection, translated(str(self._first)):
            try:
                return int(connection.channel().queue_purge(self._spec.queue).method.message_count)
            except ChannelClosedByBroker as refused:
                if is_missing(refused):
                    return 0
                raise

    @contextmanager
    @override
    def dead_letters(self) -> Iterator[RabbitmqDeadLetters]:
        patient = replace(self._url(), heartbeat=PATIENCE)
        with visit(patient, f"{self._settings.consumer} reads {self._topology.dead}") as connection:
            with translated(str(patient)):
                channel = connection.channel()
            connect = partial(self._visit, f"counts readers of {self._topology.dead}")
            letters = RabbitmqDeadLetters(channel, connect, self._topology.dead, str(patient), self.publish)
            try:
                yield letters
            finally:
                with suppress(AMQPError):  # the end of the connection releases the letters, too
                    letters.release()

    def _count(self, queues: Sequence[str], purpose: str) -> Counts:
        if not self._consumer.started:
            with self._visit(purpose) as connection, translated(str(self._first)):
                return BrokerProbe(connection, None, within=owed.QUESTION_WITHIN).count(queues)
        abandoned = Event()
        question: Callable[[Future[Counts]], None] = partial(count_queues, self._consumer.link, queues, abandoned)
        try:
            with translated(str(self._first)):
                return self._io.ask(question, owed.ANSWER_WITHIN)
        finally:
            abandoned.set()

    def _visit(self, purpose: str) -> AbstractContextManager[BlockingConnection]:
        return visit(hasty(self._url()), f"{self._settings.consumer} {purpose}")


def _names(url: RabbitmqUrl, purpose: str) -> tuple[Mapping[str, str], Sequence[BrokerUnavailable]]:
    """Return the cluster name that each host reports, and the errors of the hosts that do not respond."""
    found: dict[str, str] = {}
    failed: list[BrokerUnavailable] = []
    for address in url.addresses:
        alone = hasty(replace(url, addresses=(address,)))
        try:
            with visit(alone, purpose) as connection, translated(str(address)):
                found[str(address)] = BrokerProbe(connection, None).identity.removesuffix(f":{url.vhost}")
        except BrokerUnavailable as error:
            failed.append(error)
    return found, failed
