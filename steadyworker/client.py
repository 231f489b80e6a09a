"""
The sender's API: send a job, read the job's state, and cancel the job.

A key names one piece of work.
If a second message has the same key, a worker process only acknowledges the message, so sending twice is harmless.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import msgspec

from steadyworker import payload as payloads
from steadyworker.actions.jobs import JobActions
from steadyworker.actions.report import ActionReport
from steadyworker.adapter import Adapter, Browsed, Browses, ChecksMessages, OutgoingMessage, Target, Unbrowsed
from steadyworker.backends.batches import publish_all
from steadyworker.backends.connections import Connections, JobQueue, job_queue
from steadyworker.clock import SystemClock
from steadyworker.config.resolve import Options, load
from steadyworker.delivery import KEY, QUEUE, ROUND, Delivery
from steadyworker.errors import (
    BadPayload,
    BrokerUnavailable,
    NotPublished,
    PublishFailed,
    SendError,
    SteadyWorkerError,
    UnknownQueue,
    delay_in_seconds,
    start_in_seconds,
)
from steadyworker.ledger.base import Row
from steadyworker.names import checked_key, no_unicode, normal_key
from steadyworker.outcome import JobState
from steadyworker.runner.envelope import key_of
from steadyworker.telemetry.traces import sender_headers
from steadyworker.text.plain_text import plain_text, surrogate_in
from steadyworker.units import count_text
from steadyworker.worker import Worker

P = TypeVar("P")
Answer = TypeVar("Answer")

Delay = float | timedelta | datetime | str
"""The least time until a job may start: seconds, a timedelta, a text such as "1h", or a datetime with a time zone."""

READ_AT_MOST = 10_000
"""The messages of a queue that a search for one key reads at most."""

_OURS = "sw-"
_NAMED = 5


@dataclass(frozen=True, slots=True)
class NewJob(Generic[P]):
    """One job for `Client.send_many`, with the arguments of `Client.send`."""

    payload: P
    key: str | None = None
    delay: Delay = 0
    headers: Mapping[str, str] | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class JobStatus:
    """
    The state of a job at this moment, as the ledger has it, or as a search of the queue has found it.

    Attributes:
        state: One of the values of JobState, which are also texts: `status.state == "running"`.
        attempts, crashes, losses, interruptions: The job's four counters.
        done, total, note: The last progress that the job's last run reported; without a report, they are None, None and "".
        reason: The reason for this state: the last failure, the dead letter's reason, or why the state is unknown.
        conflicts: The number of messages with this key and another payload; each became a dead letter with the reason `key-conflict`.
        started_at, ended_at, last_progress: Seconds since 1970 in UTC.
        due_at: The earliest time of the next run, in seconds since 1970, for a job that waits for a time; otherwise None.
        result: The value that the handler of a `done` job gave to `job.result`, as plain JSON data; otherwise None.
    """

    key: str
    state: JobState
    attempts: int = 0
    crashes: int = 0
    losses: int = 0
    interruptions: int = 0
    done: float | None = None
    total: float | None = None
    note: str = ""
    reason: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    last_progress: float | None = None
    conflicts: int = 0
    due_at: float | None = None
    result: Any = None

    @property
    def percent(self) -> float | None:
        """The part of the work that is done, from 0 to 100, by the last report of progress; None without a total."""
        if self.done is None or self.total is None or self.total <= 0:
            return None
        return 100.0 * min(1.0, max(0.0, self.done / self.total))


@dataclass(frozen=True, slots=True)
class QueueSearch:
    """
    The result of a search for one key in a queue.

    Only a search with an empty `stopped` shows that the queue has no message of this key.

    Attributes:
        found: The first message of this key, or None.
        messages_read: The number of messages that the search has read.
        stopped: The reason why the search has not read the whole queue; empty after a whole search, or if it found the message.
        messages: If the search has not read the whole queue, the number of messages that wait in the queue now.
            Otherwise, or if the broker does not report this number, None.
        failed: True if the broker did not show its messages, or stopped showing them; `stopped` then has the reason.
    """

    found: Browsed | None
    messages_read: int
    stopped: str
    messages: int | None = None
    failed: bool = False


class Client:
    """
    A sender of jobs, thread-safe and safe to fork: each process opens its own connection on first use.

    Args:
        broker: The broker's URL; by default the setting in the environment or in `steadyworker.toml`.
            In a handler, the command-line arguments of the worker process have priority over the environment and the file.
        ledger: The ledger's URL, by default the setting in the same places; only `status`, `cancel` and `send(again=True)` use it.

    Raises:
        ConfigError: A setting is not valid.
    """

    def __init__(self, broker: str | None = None, *, ledger: str | None = None) -> None:
        self._begin(load({"broker": broker, "ledger": ledger}, os.environ, Path.cwd()))

    @classmethod
    def configured(cls, options: Options) -> Self:
        """Return a Client with settings that the caller, such as a command, has already loaded."""
        client = cls.__new__(cls)
        client._begin(options)  # noqa: SLF001 - this is a constructor
        return client

    def _begin(self, options: Options) -> None:
        self._options = options
        self._links: dict[int, Connections] = {}
        self._closed = False

    def send(
        self,
        to: type[Worker[P, Any]] | str,
        payload: P,
        *,
        key: str | None = None,
        delay: Delay = 0,
        headers: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> str:
        """
        Send one job, and return its key once the broker has confirmed the message.

        Args:
            to: A Worker class or the name of a queue; for a Worker class, `send` checks the payload's type.
            payload: The job's payload.
                If `to` is a queue's name, or the payload type is `bytes`, `send` sends bytes unchanged.
            key: The name of this piece of work; without a key, `send` generates a key.
                If the key is not a plain name, `send` uses and returns `h-` and the key's SHA-256 instead.
            delay: The least time until the job may start: seconds, a timedelta, or a text such as "1h".
                A datetime with a time zone is the time before which the job does not start; a time in the past is now.
            headers: Your own headers for the handler; names that begin with `sw-` are reserved for SteadyWorker.
                In an active span of OpenTelemetry, the message also has the headers of the span's context.
            again: Run the job even if the ledger has a record of this key; the new job is the key's next round.

        Raises:
            SendError: The broker did not confirm the message; the text shows whether the message could have arrived.
                Send the job again with the same key.
            BadPayload: The payload is not of the Worker's payload type, or is too large.
            ConfigError: The Worker, the queue's name, or a setting is not valid.
                With `again`, this error can also mean: no worker process has created the ledger (NoLedger), or the queue's consumers use another ledger.
            LedgerUnavailable: `again` was given, and the ledger did not respond; nothing was sent.
            ValueError, TypeError: A key, a header or the delay is not valid.
        """
        queue = job_queue(to, self._options)
        job = NewJob(payload, key, delay, headers, again)
        outgoing = _message(queue, job)
        links = self._connected()
        adapter = links.adapter(queue)
        _check_body(adapter, outgoing)
        name = outgoing.headers[KEY]
        try:
            adapter.publish(_in_its_round(links, queue, job, outgoing))
        except (NotPublished, BrokerUnavailable) as error:
            raise SendError(f"{error} The job {name!r} was not sent.", unsent=[name]) from error
        except PublishFailed as error:
            raise SendError(
                f"{error} The job may or may not have arrived: send it again with the same key, {name!r}.",
                unknown=[name],
            ) from error
        return name

    def send_many(self, to: type[Worker[P, Any]] | str, jobs: Iterable[NewJob[P]]) -> list[str]:
        """
        Send jobs to one queue, and return their keys, in order, once the broker has confirmed every message.

        `send_many` checks every job, also its headers, before it sends the first one, and keeps all the messages in memory meanwhile.
        It sends in batches of up to 500 messages, so it takes little longer than a few calls of `send`.
        After a batch with an error it sends no further batch.

        Args:
            to: As in `send`.
            jobs: The jobs, each with the arguments of `send`; each job's key must be its own.

        Raises:
            SendError: The broker did not confirm every message; nothing is lost if you send the jobs again with the same keys.
                Its `confirmed`, `unknown` and `unsent` have every job's key exactly once, also a generated key.
            BadPayload, ConfigError, LedgerUnavailable, ValueError, TypeError: As in `send`; nothing was sent.
        """
        queue, links = job_queue(to, self._options), self._connected()
        adapter = links.adapter(queue)
        wanted = [(job, _message(queue, job)) for job in jobs]
        keys = [outgoing.headers[KEY] for _, outgoing in wanted]
        if double := next((key for key, count in Counter(keys).items() if count > 1), None):
            raise ValueError(
                f"Expected jobs with different keys, got {double!r} twice: give each job its own key, or the second does not run."
            )
        for _, outgoing in wanted:
            _check_body(adapter, outgoing)
        try:
            messages = [_in_its_round(links, queue, job, outgoing) for job, outgoing in wanted]
        except BrokerUnavailable as error:
            raise SendError(f"{error} None of the jobs was sent.", unsent=keys) from error
        if isinstance(adapter, ChecksMessages):
            for outgoing in messages:
                adapter.check_message(outgoing)
        results = publish_all(adapter, messages)
        if any(results):
            raise _partly_sent(keys, results)
        return keys

    async def asend(
        self,
        to: type[Worker[P, Any]] | str,
        payload: P,
        *,
        key: str | None = None,
        delay: Delay = 0,
        headers: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> str:
        """
        Send one job as `send` does, in a thread, so that the event loop is never blocked.

        If the task is cancelled while it waits, the message may or may not be sent: send the job again with the same key.
        """
        return await asyncio.to_thread(self.send, to, payload, key=key, delay=delay, headers=headers, again=again)

    async def asend_many(self, to: type[Worker[P, Any]] | str, jobs: Iterable[NewJob[P]]) -> list[str]:
        """Send jobs as `send_many` does, in a thread; if the task is cancelled, each message may or may not be sent."""
        return await asyncio.to_thread(self.send_many, to, jobs)

    def status(self, worker: type[Worker[Any, Any]] | str, key: str) -> JobStatus:
        """
        Return the state of this key's job (its last round).

        The ledger's record begins at the job's first delivery, and the ledger deletes it some time after the job's end.
        `send` records nothing, so for a key without a record, `status` searches the queue's first 10,000 messages.
        If the search finds the message, the state is `queued`, or `delayed` with the time in `due_at`.
        Otherwise the state is `unknown`, and `reason` explains what the search has read, and what it could not read.

        `unknown` can mean that:

        - no such job was sent, or its key is another one;
        - the message waits in the queue, but this broker does not respond, cannot show messages (RabbitMQ), or shows only some of them;
        - the message waits in the queue behind the first 10,000 messages;
        - a worker process received the message at this moment, and records it within a second;
        - the job has ended, and the ledger has deleted its record.

        After `send(again=True)`, `status` returns the state of the earlier round until a worker process receives the new message.
        While the broker is away, `status` returns the ledger's record within seconds, if the ledger has one namespace for this queue.

        Raises:
            ConfigError: No worker process has created the ledger (NoLedger), or the queue's consumers use another ledger.
            BrokerUnavailable: The broker did not respond, or its file does not exist, and the ledger has no namespace for this queue,
                or has several.
            LedgerUnavailable: The ledger did not respond.
            ValueError, TypeError: The key is not valid.
        """
        name, queue = checked_key(key), job_queue(worker, self._options)
        links = self._connected()
        try:
            place = links.found_job(queue, name, bind=False)
        except UnknownQueue as error:
            return JobStatus(name, JobState.UNKNOWN, reason=str(error))
        row = links.ledger().read(place.id)
        if row is None:
            search = (
                QueueSearch(None, 0, place.away, failed=True)
                if place.away
                else _search(links, queue, name, READ_AT_MOST, brief=True)
            )
            return _waiting(name, search)
        progress = links.ledger().last_progress(place.id)
        return JobStatus(
            key=name,
            state=row.job_state,
            attempts=row.counters.attempts,
            crashes=row.counters.crashes,
            losses=row.counters.losses,
            interruptions=row.counters.interruptions,
            done=progress.done if progress else None,
            total=progress.total if progress else None,
            note=progress.note if progress else "",
            reason=row.reason,
            started_at=row.started_at,
            ended_at=row.ended_at,
            last_progress=progress.at if progress else None,
            conflicts=row.conflicts,
            due_at=SystemClock().wall() + row.due_in if row.due_in else None,
            result=_result(links, row),
        )

    async def astatus(self, worker: type[Worker[Any, Any]] | str, key: str) -> JobStatus:
        """Return the state of this key's job as `status` does, in a thread, so that the event loop is never blocked."""
        return await asyncio.to_thread(self.status, worker, key)

    def find(self, worker: type[Worker[Any, Any]] | str, key: str, limit: int = READ_AT_MOST) -> QueueSearch:
        """
        Search the queue for a message of this key, and change nothing.

        The message stays in its place, and its number of deliveries does not rise.
        The search reads at most `limit` messages, in the order in which they are due, and has no time limit of its own.
        Some brokers show only a part of a queue; the result's `stopped` then names what the search has not read.
        The search does not find a message that a worker process holds; `status` returns the ledger's record of its job.

        Raises ConfigError, ValueError and TypeError as `status` does.
        """
        name, queue = checked_key(key), job_queue(worker, self._options)
        return _search(self._connected(), queue, name, limit)

    def cancel(
        self, worker: type[Worker[Any, Any]] | str, key: str, reason: str = "no reason was given"
    ) -> JobState | None:
        """
        Cancel the job of this key (its last round), and return the job's state, or None if the ledger had no record of the job.

        A run under way receives the cancel within 2 s.
        After this call has returned, that run begins no commit of an export.
        If the job has no run now, the runner cancels the job at its next delivery, and starts no run.
        In both cases the message becomes a dead letter with the reason "cancelled: …".
        The ledger keeps the cancel of an unknown key for 14 days.
        A job that has ended does not change.
        The reason is cut to 2,000 characters, and `***` replaces passwords.
        While the broker is away, `cancel` records the cancel within seconds, if the ledger has one namespace for this queue.

        Raises:
            UnknownQueue: Neither the broker nor the ledger has a queue of this name; nothing was recorded.
            ConfigError: No worker process has created the ledger (NoLedger), or the queue's consumers use another ledger.
            BrokerUnavailable: The broker did not respond, and the ledger has no namespace for this queue, or has several.
            LedgerUnavailable: The ledger did not respond.
            ValueError, TypeError: The key is not valid.
        """
        name, queue = checked_key(key), job_queue(worker, self._options)
        links = self._connected()
        ledger, job = links.ledger(), links.found_job(queue, name).id
        row = ledger.read(job)
        before = ledger.cancel(job, plain_text(reason))
        if before is None:
            return None
        return (row if row is not None and row.state is before else Row(job, "", before)).job_state

    async def acancel(
        self, worker: type[Worker[Any, Any]] | str, key: str, reason: str = "no reason was given"
    ) -> JobState | None:
        """Cancel the job of this key as `cancel` does, in a thread, so that the event loop is never blocked."""
        return await asyncio.to_thread(self.cancel, worker, key, reason)

    def retry(self, worker: type[Worker[Any, Any]] | str, key: str) -> None:
        """
        Run an unfinished job now: a job that waits for a retry, or a job whose message is lost.

        The job continues in the same round, with its counters and its last checkpoint.
        The message that the broker still delays then counts as a duplicate.
        The ledger's log of actions gets an entry with the user and the host of this process.

        Raises:
            SteadyWorkerError: The job has ended, runs now, or has no message in the ledger; the text has the remedy.
            PublishFailed: The broker did not confirm the message; call `retry` again.
            UnknownQueue, ConfigError, BrokerUnavailable, LedgerUnavailable: As `cancel` raises them.
            ValueError, TypeError: The key is not valid.
        """
        actions = JobActions(self._connected(), job_queue(worker, self._options))
        _succeeded(actions.retry(actions.ids([checked_key(key)])))

    def reschedule(self, worker: type[Worker[Any, Any]] | str, key: str, delay: float | timedelta | str) -> None:
        """
        Set a new time for a job that waits for a retry: the job runs after `delay`, counted from now.

        The delay is the least time, as in `send`.

        Raises:
            SteadyWorkerError: The job waits for no retry, or has no message in the ledger; the text has the remedy.
            PublishFailed: The broker did not confirm the message; call `reschedule` again.
            UnknownQueue, ConfigError, BrokerUnavailable, LedgerUnavailable: As `cancel` raises them.
            ValueError, TypeError: The key or the delay is not valid.
        """
        wait = delay_in_seconds(delay)
        actions = JobActions(self._connected(), job_queue(worker, self._options))
        _succeeded(actions.reschedule(actions.ids([checked_key(key)]), wait))

    def close(self) -> None:
        """Close this process's connections; safe to call twice, and from any thread."""
        self._closed = True
        links = self._links.pop(os.getpid(), None)
        if links is not None:
            links.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _connected(self) -> Connections:
        if self._closed:
            raise RuntimeError("Expected an open Client, got one that is closed: make a new one.")
        # A forked child still has its parent's connections, under the parent's pid.
        # The child neither uses nor frees these objects: to free them would close the parent's connections.
        # `setdefault` is atomic, so this needs no lock, which a fork could leave locked.
        links = self._links.get(os.getpid())
        return links if links is not None else self._links.setdefault(os.getpid(), Connections(self._options))


def _succeeded(report: ActionReport) -> None:
    """Raise the error of an action on one job, or SteadyWorkerError with the reason why the action changed nothing."""
    for handled in report.checked().handled:
        if handled.problem:
            raise SteadyWorkerError(f"The job {handled.key!r} {handled.problem}.")


def message(
    queue: JobQueue, payload: object, *, key: str | None, delay: Delay, headers: Mapping[str, str]
) -> OutgoingMessage:
    """
    Return the checked message that `Client.send` publishes, with a generated key if none is given.

    Raises BadPayload, ConfigError, ValueError and TypeError as `Client.send` does.
    """
    wait = start_in_seconds(delay, SystemClock().wall())
    _check_headers(headers)
    raw = isinstance(queue.opened_as, str) and isinstance(payload, bytes)
    body = payloads.encode(payload, bytes if raw else queue.payload_type)
    name = _key(key, headers, queue.key_header)
    own = {KEY: name} if queue.key_header is None else {KEY: name, queue.key_header: name}
    to = Target.LATER if wait else Target.WORK
    return OutgoingMessage(
        to, body, {**sender_headers(headers), **headers, **own}, delay=wait, message_id=name, first=True
    )


def _check_body(adapter: Adapter, outgoing: OutgoingMessage) -> None:
    largest = adapter.capabilities.max_body
    if largest is not None and len(outgoing.body) > largest:
        raise BadPayload(
            f"Expected a payload of at most {largest} bytes for this broker, got {len(outgoing.body)}: "
            "store the data elsewhere and send a reference to it."
        )


def _in_its_round(links: Connections, queue: JobQueue, job: NewJob[Any], outgoing: OutgoingMessage) -> OutgoingMessage:
    """Return the message, for the key's next round if the job runs again and the ledger has a record of the key."""
    if not job.again:
        return outgoing
    links.create_broker(queue)
    if not links.knows(queue) or (last := links.last_round(queue, outgoing.headers[KEY])) is None:
        return outgoing
    return replace(outgoing, headers={**outgoing.headers, QUEUE: queue.name, ROUND: str(last + 1)})


def _partly_sent(keys: Sequence[str], results: Sequence[PublishFailed | None]) -> SendError:
    confirmed = [key for key, error in zip(keys, results, strict=True) if error is None]
    failed = [(key, error) for key, error in zip(keys, results, strict=True) if error is not None]
    unsent = [key for key, error in failed if isinstance(error, NotPublished)]
    unknown = [key for key, error in failed if not isinstance(error, NotPublished)]
    first = failed[0][1]
    return SendError(
        f"{first} Of {count_text(len(keys), 'job')}, {len(confirmed):,} were sent, "
        f"{len(unknown):,} may or may not have arrived{_named(unknown)}, and {len(unsent):,} were not sent{_named(unsent)}: "
        "send those again with the same keys.",
        confirmed=confirmed,
        unknown=unknown,
        unsent=unsent,
    )


def _named(keys: Sequence[str]) -> str:
    more = ", …" if len(keys) > _NAMED else ""
    return f" ({', '.join(keys[:_NAMED])}{more})" if keys else ""


def _search(links: Connections, queue: JobQueue, key: str, limit: int, *, brief: bool = False) -> QueueSearch:
    """Search a queue, and count its messages if the search has not read all of them; a `brief` search has a short time for each."""
    adapter = links.adapter(queue)
    if not isinstance(adapter, Browses):
        why = "This broker cannot show the messages of a queue without delivering them."
        return QueueSearch(None, 0, why, failed=True)

    def ask(what: str, question: Callable[[], Answer]) -> Answer:
        return links.ask_soon((what, queue.name, key), question) if brief else question()

    try:
        search = ask("search", lambda: _browsed(adapter, queue, key, limit))
    except BrokerUnavailable as error:
        return QueueSearch(None, 0, str(error), failed=True)
    if not search.stopped:
        return search
    try:
        depth = ask("depth", adapter.depth)
    except BrokerUnavailable:
        return search
    if depth.ready is None or depth.delayed is None:
        return search
    return replace(search, messages=max(depth.ready + depth.delayed, search.messages_read))


def _browsed(adapter: Browses, queue: JobQueue, key: str, limit: int) -> QueueSearch:
    """Return what a search of at most `limit` messages has found; the number of waiting messages is not in it."""
    messages_read, unread = 0, list[str]()
    try:
        for each in adapter.browse(limit + 1):  # one more, which shows that the limit is not the queue's end
            if isinstance(each, Unbrowsed):
                unread.append(each.why)
            elif messages_read == limit:
                return QueueSearch(None, messages_read, f"The search ended after {count_text(limit, 'message')}.")
            else:
                messages_read += 1
                seen = Delivery(0, "", queue.name, b"", each.headers, each.message_id)
                if (name := key_of(seen, queue.key_header)) is not None and normal_key(name) == key:
                    return QueueSearch(each, messages_read, "")
    except BrokerUnavailable as error:
        return QueueSearch(None, messages_read, str(error), failed=True)
    stopped = f"The search has not read the whole queue: {'; '.join(unread)}." if unread else ""
    return QueueSearch(None, messages_read, stopped)


def _result(links: Connections, row: Row) -> Any:
    """Return the result of a job that is done, or None; only such a job costs a second query."""
    text = links.ledger().facts.result(row.id) if row.job_state is JobState.DONE else None
    return None if text is None else msgspec.json.decode(text)


def _waiting(key: str, search: QueueSearch) -> JobStatus:
    if search.found is None:
        read, of = count_text(search.messages_read, "message"), ""
        if search.messages is not None:
            of = f", of {search.messages:,},"
        searched = f"a search of {read}{of} in its queue has not found it"
        why = f"The ledger has no record of this job, and {searched}. {search.stopped}".rstrip()
        return JobStatus(key, JobState.UNKNOWN, reason=why)
    due = search.found.due
    return JobStatus(key, JobState.QUEUED if due is None else JobState.DELAYED, due_at=due)


def _message(queue: JobQueue, job: NewJob[Any]) -> OutgoingMessage:
    headers = {} if job.headers is None else job.headers
    return message(queue, job.payload, key=job.key, delay=job.delay, headers=headers)


def _key(key: str | None, headers: Mapping[str, str], key_header: str | None) -> str:
    named = headers.get(key_header) if key_header else None
    if key is None and named is None:
        return uuid.uuid4().hex
    chosen, other = (checked_key(given) if given is not None else None for given in (key, named))
    if chosen is not None and other is not None and chosen != other:
        raise ValueError(f"Expected one key, got {key!r} and header {key_header} = {named!r}: give one of them.")
    return chosen or other or ""


def _check_headers(given: object) -> None:
    """Raise TypeError or ValueError for headers that a sender must not set."""
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise TypeError(
            f"Expected headers as a mapping, for example {{'tenant': 'north'}}, got a {kind}: write dict(…)."
        )
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"Expected headers of text, got {name!r}: {value!r}.")
        for part, text in (("name", name), ("value", value)):
            if (place := surrogate_in(text)) is not None:
                raise ValueError(f"Expected headers of valid Unicode, got {name!r}, whose {part} {no_unicode(place)}")
        if name.lower().startswith(_OURS):
            raise ValueError(f"Expected headers that do not begin with {_OURS!r}, got {name!r}: rename it.")
