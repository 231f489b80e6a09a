"""The embedded broker's adapter: `steadyworker.adapter.Adapter` over one file."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from typing_extensions import override

from steadyworker.adapter import (
    Adapter,
    Browsed,
    Browses,
    Capabilities,
    ChecksMessages,
    DeadLetters,
    Delivery,
    Depth,
    Finding,
    OutgoingMessage,
    PublishesMany,
    Purges,
    QueueSpec,
    Settings,
    Settle,
    Settled,
    Sink,
    Target,
    Unbrowsed,
    check_size,
)
from steadyworker.errors import BrokerUnavailable, LettersHeld, PublishFailed, Unsettled
from steadyworker.findings import FindingTexts
from steadyworker.system.mounts import mounted
from steadyworker.system.private import access_findings
from steadyworker_sqlite.connection import SqliteConsumer, delivery_of, numbers_of
from steadyworker_sqlite.errors import Unusable, translated
from steadyworker_sqlite.presence import Presence, is_consuming, is_gone
from steadyworker_sqlite.publisher import SqlitePublisher
from steadyworker_sqlite.session import SILENCE, evict_the_gone
from steadyworker_sqlite.store import FIRST, BrokerFile, NewMessage, Peer, Store, is_missing
from steadyworker_sqlite.topology import HEADER_BYTES, place_findings

_finding = FindingTexts("steadyworker_sqlite")


class SqliteAdapter(Adapter, Browses, ChecksMessages, PublishesMany, Purges):
    """
    One queue of one broker file, consumed by one worker process.

    Args:
        path: The broker file.
        spec: The queue, and its dead-letter queue.
        settings: The operator's settings. The adapter creates the file and the queues only if `topology` is "declare".
            Without `create`, only a published message creates them.
        silence: Seconds after which a frozen consumer loses its messages.
    """

    def __init__(self, path: Path, spec: QueueSpec, settings: Settings, silence: float = SILENCE) -> None:
        self.path = path
        self._spec = spec
        self._settings = settings
        self._silence = silence
        self._declares = settings.topology == "declare"
        self._file = BrokerFile(path, settings.clock, create=self._declares)
        self._publisher = SqlitePublisher(self._file, declare=self._declares, ask_creates=settings.create)
        self._consumer = SqliteConsumer(self._file, spec, settings, silence)

    @property
    @override
    def capabilities(self) -> Capabilities:
        """Every capability, but all worker processes must be on one host. The operator sets the limit for bodies."""
        return Capabilities(
            system="steadyworker",
            counts_consumers=True,
            redelivers_within=self._silence,
            max_body=self._settings.max_body,
            one_host=True,
        )

    @property
    @override
    def last_turn(self) -> float | None:
        return self._consumer.last_turn

    @override
    def start(self, sink: Sink) -> None:
        self._consumer.start(sink)

    @override
    def prefetch(self, count: int) -> None:
        self._consumer.prefetch(count)

    @override
    def publish(self, message: OutgoingMessage) -> None:
        (error,) = self.publish_many([message])
        if error is not None:
            raise error

    @override
    def publish_many(self, messages: Sequence[OutgoingMessage]) -> Sequence[PublishFailed | None]:
        """Publish all the messages in one commit."""
        return self._publisher.publish([self._new_message(message) for message in messages])

    @override
    def check_message(self, message: OutgoingMessage) -> None:
        self._new_message(message)

    def _new_message(self, message: OutgoingMessage) -> NewMessage:
        headers = json.dumps(dict(message.headers))
        if message.first:
            check_size("a body", len(message.body), self._settings.max_body)
            check_size("headers", len(headers), HEADER_BYTES)
        queue = self._spec.dead_letter_queue if message.to is Target.DEAD else self._spec.queue
        delay = max(0.0, message.delay) if message.to is Target.LATER else 0.0
        return NewMessage(queue, message.message_id or str(uuid.uuid4()), headers, message.body, delay)

    @override
    def settle(self, delivery: Delivery, how: Settle) -> Settled:
        """Return when the settlement is committed. Then an ack is on disk, and a release is visible to every process."""
        self._consumer.settle(delivery, how)
        return Settled.CONFIRMED

    @override
    def identity(self) -> str:
        """Return the random id of the file, which is generated when the file is created; this call creates it only with `create`."""
        return self._publisher.ask(Store.identity)

    @override
    def exists(self) -> bool:
        return not is_missing(self.path) and self._publisher.ask(lambda store: store.has_queue(self._spec.queue))

    @override
    def consumers(self) -> int:
        """Return the number of consumers; 0 without a file."""
        return 0 if self._is_unmade else self._publisher.ask(lambda store: self._consuming(store, self._alive(store)))

    @override
    def depth(self) -> Depth:
        """Return all numbers, read in one transaction; a message that a dead consumer still holds is ready."""
        if self._is_unmade:
            return Depth(ready=0, delayed=0, unacked=0, dead=0, consumers=0)

        # Another connection than the publisher's, so that no publish waits until a long queue is counted.
        with closing(self._file.open()) as store:
            alive = self._alive(store)
            ids, consumers = (peer.id for peer in alive), self._consuming(store, alive)
            return store.depth(self._spec.queue, self._spec.dead_letter_queue, ids, consumers)

    @override
    def browse(self, limit: int) -> Iterator[Browsed | Unbrowsed]:
        if self._is_unmade:
            return iter((Unbrowsed(f"there is no broker file at {self.path}: correct --broker, or send a first job"),))
        with closing(self._file.open()) as store:
            return iter(store.browse(self._spec.queue, (peer.id for peer in self._alive(store)), limit))

    @property
    def _is_unmade(self) -> bool:
        """True if the file was not created yet; False if it was removed or emptied."""
        return is_missing(self.path) and self._file.loss() is None

    def _alive(self, store: Store) -> list[Peer]:
        silent_since = self._settings.clock.boottime() - self._silence
        return [peer for peer in store.peers() if not is_gone(store.folder, peer.presence, silent_since)]

    def _consuming(self, store: Store, alive: Iterable[Peer]) -> int:
        consumers = (peer.presence for peer in alive if peer.queue == self._spec.queue and not peer.reads)
        return sum(is_consuming(store.folder, name) for name in consumers)

    @override
    def findings(self, spec: QueueSpec) -> Sequence[Finding]:
        wrong = place_findings(self.path, mounted())
        if wrong:
            return wrong
        if (loss := self._file.loss()) is not None:
            return [_finding("embedded.file-replaced", path=self.path, loss=loss, remedy=self._file.remedy)]
        if not self.path.exists() or (not self._settings.create and is_missing(self.path)):
            return [] if self._declares else [_finding("embedded.missing-file", path=self.path)]
        try:
            store = Store(self.path, self._settings.clock, create=False)
        except Unusable as error:
            return [_finding("embedded.unusable-file", error=error)]
        with closing(store):
            queues = () if self._declares else (spec.queue, spec.dead_letter_queue)
            missing = [queue for queue in queues if not store.has_queue(queue)]
        return [
            *access_findings("the broker file", self.path),
            *(_finding("embedded.missing-queue", queue=queue, path=self.path) for queue in missing),
        ]

    @override
    def purge(self) -> int:
        return self._publisher.ask(lambda store: store.purge(self._spec.queue)) if self.exists() else 0

    @contextmanager
    @override
    def dead_letters(self) -> Iterator[SqliteDeadLetters]:
        """
        Open the dead letters.

        The reader has its own presence, so another process can release the letters even if the reader is killed.
        """
        queue = self._spec.dead_letter_queue
        with ExitStack() as stack:
            store = self._file.open(create=self._settings.create)
            stack.callback(store.close)
            with translated(self.path):
                # The presence has no time, because a reader can need hours for one dead letter.
                presence = Presence(store.folder, stamp=None)
            stack.callback(presence.close)
            evict_the_gone(store, presence, float("-inf"))
            with store.transaction(durable=False):
                if any(peer.reads and peer.queue == queue for peer in store.peers()):
                    raise LettersHeld(
                        f"Expected no other reader of the dead-letter queue {queue!r}, got one: "
                        "wait until the other `steadyworker dead` command has ended."
                    )
                reader = store.register(queue, presence.name, self._settings.consumer, reads=True)
            try:
                yield SqliteDeadLetters(self, store, queue, reader)
            finally:
                # If this fails, the free lock has the same effect: the next process releases the dead letters.
                with suppress(BrokerUnavailable), store.transaction(durable=False):
                    store.evict((reader,))

    @override
    def stop(self, within: float) -> None:
        self._consumer.stop(within)
        self._publisher.close()


class SqliteDeadLetters(DeadLetters):
    """The dead letters of one queue, which one reader holds. Only one thread may use them."""

    def __init__(self, adapter: SqliteAdapter, store: Store, queue: str, reader: int) -> None:
        self._adapter = adapter
        self._store = store
        self._queue = queue
        self._reader = reader

    @override
    def __iter__(self) -> Iterator[Delivery]:
        newest = self._store.last(self._queue)  # letters that arrive later are for the next reader
        place = FIRST
        while True:
            # Start after the last place; otherwise each step would first search through all letters that this reader holds.
            with self._store.transaction(durable=False):
                received = self._store.receive(self._reader, self._queue, limit=1, upto=newest, after=place)
            if not received:
                return
            place = received[0].place
            yield delivery_of(0, received[0])

    @override
    def publish(self, message: OutgoingMessage) -> None:
        self._adapter.publish(message)

    @override
    def drop(self, delivery: Delivery) -> None:
        seq, count = numbers_of(delivery)
        with translated(self._adapter.path, Unsettled), self._store.transaction(durable=True):
            self._store.assert_registered(self._reader)
            self._store.settle(self._reader, seq, count, remove=True)
