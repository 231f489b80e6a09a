"""The publishing connection. One waiting thread commits the messages of all waiting threads, so one fsync confirms many messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from steadyworker.errors import BrokerUnavailable, NotPublished, PublishFailed, TargetMissing
from steadyworker_sqlite.errors import translated
from steadyworker_sqlite.presence import ring
from steadyworker_sqlite.store import BrokerFile, NewMessage, Store

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    entry: NewMessage
    confirmed: Future[PublishFailed | None] = field(default_factory=Future)


class SqlitePublisher:
    """
    The publisher for one broker file. It is thread-safe.

    The publisher opens the file at its first use, and again after an error.

    Args:
        file: The broker file.
        declare: True to create the queues if they are missing.
        ask_creates: True if a query, too, may create a missing file.
    """

    def __init__(self, file: BrokerFile, *, declare: bool, ask_creates: bool) -> None:
        self._file = file
        self._path = file.path
        self._declare = declare
        self._ask_creates = ask_creates
        self._store: Store | None = None
        self._waiting: list[_Waiting] = []
        self._adding = threading.Lock()
        self._using = threading.Lock()
        self._closed = False

    def publish(self, entries: Sequence[NewMessage]) -> list[PublishFailed | None]:
        """Return when each message is on disk, or has an error; the result of a message on disk is None."""
        batch = [_Waiting(entry) for entry in entries]
        with self._adding:
            self._waiting.extend(batch)
        with self._using:
            if not all(waiting.confirmed.done() for waiting in batch):  # otherwise another thread has committed them
                self._commit()
        return [waiting.confirmed.result() for waiting in batch]

    def ask(self, question: Callable[[Store], Answer]) -> Answer:
        """Run a query on the broker file, and return the query's result; otherwise raise BrokerUnavailable."""
        with self._using:
            try:
                store = self._open(create=self._ask_creates)
                store.check_place()
                return question(store)
            except BrokerUnavailable:
                self._drop()
                raise

    def close(self) -> None:
        """Close the connection; every later `publish` fails."""
        with self._using:
            self._closed = True
            self._drop()

    def _commit(self) -> None:
        batch: list[_Waiting] = []
        try:
            with self._adding:
                batch, self._waiting = self._waiting, batch
            with translated(self._path, NotPublished):
                store = self._open()
            with translated(self._path, PublishFailed):
                wanted = self._known(store, batch)
                queues = {waiting.entry.queue for waiting in wanted}
                with store.transaction(durable=True):
                    if self._declare:
                        store.declare(queue for queue in queues if not store.has_queue(queue))
                    store.put(waiting.entry for waiting in wanted)
                bells = [peer.presence for peer in store.peers() if peer.queue in queues and not peer.reads]
            for waiting in wanted:
                waiting.confirmed.set_result(None)
        except BaseException as error:
            # This clause catches every error, because all threads with a message in the batch wait for the result.
            failed = error if isinstance(error, PublishFailed) else _broken_off(error)
            for waiting in batch:
                if not waiting.confirmed.done():
                    waiting.confirmed.set_result(failed)
            self._drop()
            if isinstance(error, PublishFailed):
                return
            raise
        for bell in bells:
            ring(store.folder, bell)

    def _known(self, store: Store, batch: list[_Waiting]) -> list[_Waiting]:
        """Return the messages whose queue exists, or may be created by this publisher; refuse the other messages."""
        wanted: list[_Waiting] = []
        for waiting in batch:
            queue = waiting.entry.queue
            if self._declare or store.has_queue(queue):
                wanted.append(waiting)
            else:
                missing = f"Expected the queue {queue!r} in {self._path}, but it was never declared: "
                waiting.confirmed.set_result(TargetMissing(missing + "run once with --topology declare."))
        return wanted

    def _open(self, *, create: bool = True) -> Store:
        if self._closed:
            raise BrokerUnavailable("Expected an open adapter, got one that was stopped: open another.")
        if self._store is None:
            self._store = self._file.open(create=create)
        return self._store

    def _drop(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()


def _broken_off(error: BaseException) -> PublishFailed:
    failed = PublishFailed(
        f"Expected the message to be committed with those of other threads, got {type(error).__name__}: {error}; send it again."
    )
    failed.__cause__ = error
    return failed
