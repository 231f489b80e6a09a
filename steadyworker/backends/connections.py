"""The connections of a Client or a command: the adapter of a queue, the ledger, and the namespace of the queue's jobs."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from steadyworker.adapter import Adapter, Uncounted
from steadyworker.backends.opening import LIVES, namespace_of, open_adapter_for, open_ledger
from steadyworker.backends.questions import ShortQuestions
from steadyworker.config.resolve import Options
from steadyworker.errors import BrokerUnavailable, ConfigError, UnknownQueue
from steadyworker.ledger.base import JobId, Ledger
from steadyworker.ledger.lease import QUIET, registered_name
from steadyworker.names import QUEUE_NAME
from steadyworker.spec import WorkerSpec, payload_type, spec_of
from steadyworker.units import count_text
from steadyworker.worker import WORKER, Worker

_CLOSE_WITHIN = 5.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class JobQueue:
    """
    A queue of jobs, identified by a Worker or by the queue's name.

    `opened_as` is the Worker's spec, or only the queue's name.
    `Connections.adapter` opens the queue's adapter with this value.
    """

    opened_as: WorkerSpec | str
    name: str
    key_header: str | None
    payload_type: Any


def job_queue(to: type[Worker[Any, Any]] | str, options: Options) -> JobQueue:
    """
    Return the queue of a Worker, or the queue with this name; the configuration file's settings for the Worker apply.

    Raises ConfigError for an invalid Worker class or name, and TypeError for another object, such as an instance.
    """
    if isinstance(to, Worker):
        name = type(to).__qualname__
        raise TypeError(
            f"Expected a Worker class or the name of a queue, got an instance of {name}: pass {name} itself."
        )
    if isinstance(to, str):
        module, _, name = to.partition(":")
        if WORKER.fullmatch(to):
            raise ConfigError(
                f"Expected a Worker class or the name of a queue, got {to!r}: "
                f"pass the class (`from {module} import {name}`), or the name of its queue.",
                id="config.worker",
            )
        if problem := QUEUE_NAME.problem(to):
            raise ConfigError(problem, id="config.queue-name")
        return JobQueue(to, to, None, Any)
    if not isinstance(to, type):
        raise TypeError(f"Expected a Worker class or the name of a queue, got {to!r}: pass one of them.")
    # With the isolation "thread", a class that no child process can import is valid, too; a sender starts no child process.
    spec = spec_of(to, {**options.workers.get(to.__name__, {}), "isolation": "thread"})
    return JobQueue(spec, spec.queue, spec.key_header, payload_type(to))


@dataclass(frozen=True, slots=True)
class FoundJob:
    """
    A job that the ledger may have.

    `away` is the reason why the broker was not asked about the namespace; empty if the broker has confirmed the namespace.
    """

    id: JobId
    away: str


class Connections:
    """
    The connections of one process, each opened at its first use; thread-safe.

    No thread holds the lock while it calls broker or ledger, so that a slow broker or ledger delays no other call.
    If two threads search the same namespace at the same time, both get the same result.

    Raises ConfigError for a URL that names no broker or ledger.
    No method creates a ledger; if the ledger does not exist, the methods that ask the ledger raise NoLedger.
    No question creates a broker that is a file; only `create_broker` and the `publish` of an adapter create it.
    Each method can raise BrokerUnavailable or LedgerUnavailable.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._adapters: dict[str, Adapter] = {}
        self._namespaces: dict[str, str] = {}
        self._shared: set[str] = set()
        self._bound: set[str] = set()
        self._ledger: Ledger | None = None
        self._questions = ShortQuestions()

    def adapter(self, queue: JobQueue) -> Adapter:
        """Return the adapter of this queue, without starting it."""
        with self._lock:
            if queue.name not in self._adapters:
                self._adapters[queue.name] = open_adapter_for(queue.opened_as, self._options, create=False)
            return self._adapters[queue.name]

    def ledger(self) -> Ledger:
        """Return the ledger."""
        with self._lock:
            if self._ledger is None:
                self._ledger = open_ledger(self._options)
            return self._ledger

    def create_broker(self, queue: JobQueue) -> None:
        """Create the broker of this queue if it is a missing file; only a sender may call this, before its questions."""
        if queue.name in self._namespaces or self.adapter(queue).exists():
            return
        creating = open_adapter_for(queue.opened_as, self._options)
        try:
            creating.identity()
        finally:
            creating.stop(_CLOSE_WITHIN)

    def knows(self, queue: JobQueue) -> bool:
        """Return True if the queue belongs to a Worker, or if the broker or the ledger has the queue; change nothing."""
        if not isinstance(queue.opened_as, str) or queue.name in self._namespaces:
            return True
        return self.adapter(queue).exists() or queue.name in self._seen_queues(queue)

    def namespace(self, queue: JobQueue, *, bind: bool = True) -> str:
        """
        Return the namespace of this queue's jobs; the first call asks the broker for its identity.

        With `bind`, the ledger binds the namespace to this broker after all checks; a caller that only reads needs no binding.

        Raises:
            UnknownQueue: `knows` returned False; the ledger has recorded nothing.
            NoLedger: No worker process has created the ledger.
            ConfigError: The queue has consumers, but the ledger does not know them; or `namespace_of` raised this error.
        """
        if (known := self._namespaces.get(queue.name)) is None:
            try:
                found = self._found_namespace(queue)
            except BrokerUnavailable:
                self.ledger().bindings()  # a missing ledger is a wrong setting, which comes first: this raises NoLedger
                raise
            known = self._namespaces.setdefault(queue.name, found)
        if queue.name not in self._shared:
            self._share(queue, known)
        if bind and queue.name not in self._bound:
            namespace_of(self.adapter(queue), self._options, self.ledger(), queue.name)
            self._bound.add(queue.name)
        return known

    def _found_namespace(self, queue: JobQueue) -> str:
        if not self.knows(queue):
            near = difflib.get_close_matches(queue.name, self._seen_queues(queue))
            remedy = f"did you mean {' or '.join(near)}?" if near else "correct it, or name the Worker."
            raise UnknownQueue(
                f"Expected the name of a queue that the broker or the ledger has, got {queue.name!r}: {remedy}"
            )
        return namespace_of(self.adapter(queue), self._options, self.ledger(), queue.name, bind=False)

    def _share(self, queue: JobQueue, namespace: str) -> None:
        """
        Check that the queue's consumers use this ledger.

        If the broker counts consumers, the ledger must know at least one of them.
        An owner that is not proven dead counts, even if this owner has not registered for hours.
        The reason is that the owner can be frozen or cut off.
        If the broker notices deaths late, an owner that has just died counts, too.
        """
        name = registered_name(namespace, queue.name)
        late = self.adapter(queue).capabilities.forgets_consumers_within
        within = LIVES + late if late else 0.0
        owners = (seen for seen in self.ledger().owners() if not seen.dead or seen.seen_ago < within)
        registered = {of for seen in owners for of in seen.queues}
        if registered & {name, f"{name}{QUIET}"}:
            self._shared.add(queue.name)
        elif not isinstance(consumers := self.adapter(queue).consumers(), Uncounted) and consumers:
            raise ConfigError(
                f"Expected the ledger of the workers of queue {queue.name!r}, got {self.ledger().url}: the queue has "
                f"{count_text(consumers, 'consumer')}, and this ledger knows none under the namespace {namespace!r}. "
                "Set --ledger and --namespace as the workers have them.",
                id="ledger.of-others",
            )

    def last_round(self, queue: JobQueue, key: str) -> int | None:
        """Return the last round of this key in the ledger, or None if there is no round; raise UnknownQueue for an unknown queue."""
        return self.ledger().last_round(self.namespace(queue, bind=False), queue.name, key)

    def last_job(self, queue: JobQueue, key: str) -> JobId:
        """Return the id of this key's current job, the key's last round; raise UnknownQueue for an unknown queue."""
        return JobId(self.namespace(queue), queue.name, key, self.last_round(queue, key) or 0)

    def found_job(self, queue: JobQueue, key: str, *, bind: bool = True) -> FoundJob:
        """
        Return the id of this key's current job as `last_job` does, also while the broker is away.

        If the broker does not respond within seconds, the ledger alone decides on the namespace.
        This is the setting `namespace`, or without it, the only namespace in which the ledger has this queue.

        Raises:
            BrokerUnavailable: The broker is away, and the ledger has the queue in no namespace, or in several.
        """
        away = ""
        try:
            if queue.name in self._shared:
                namespace = self.namespace(queue, bind=bind)
            else:
                namespace = self.ask_soon(("namespace", queue.name), lambda: self.namespace(queue, bind=bind))
        except BrokerUnavailable as error:
            away, namespace = str(error), self._bound_namespace(queue, error)
        round_ = self.ledger().last_round(namespace, queue.name, key)
        return FoundJob(JobId(namespace, queue.name, key, round_ or 0), away)

    def ask_soon(self, about: tuple[str, ...], question: Callable[[], Answer]) -> Answer:
        """Ask the broker a question, as `ShortQuestions.ask` does; raise BrokerUnavailable without an answer within seconds."""
        return self._questions.ask(about, question)

    def _bound_namespace(self, queue: JobQueue, error: BrokerUnavailable) -> str:
        bound = [namespace for namespace, name in self.ledger().bindings() if name == queue.name]
        wanted = self._options.namespace
        if found := [namespace for namespace in bound if wanted in (None, namespace)]:
            if len(found) == 1:
                return found[0]
            raise BrokerUnavailable(
                f"{error} Without the broker, the ledger must know one namespace of queue {queue.name!r}, "
                f"but it knows {count_text(len(found), 'namespace')}: set --namespace as the workers have it."
            ) from error
        raise error

    def _seen_queues(self, queue: JobQueue) -> Sequence[str]:
        return self.ledger().queues(self._options.namespace or self.adapter(queue).identity())

    def close(self) -> None:
        """Close the adapters and the ledger; a second call does nothing."""
        with self._lock:
            for adapter in self._adapters.values():
                adapter.stop(_CLOSE_WITHIN)
            self._adapters.clear()
        self._questions.close(1.0)
        with self._lock:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
