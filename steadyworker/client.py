"""
The sender's API: send a job, read the job's state, and cancel the job.

A key names one piece of work.
If a second message has the same key, a worker process only acknowledges the message, so sending twice is harmless.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from steadyworker import payload as payloads
from steadyworker.actions.jobs import JobActions
from steadyworker.actions.report import ActionReport
from steadyworker.adapter import OutgoingMessage, Target
from steadyworker.backends.connections import Connections, JobQueue, job_queue
from steadyworker.config.resolve import Options, load
from steadyworker.delivery import KEY, QUEUE, ROUND
from steadyworker.errors import (
    BadPayload,
    BrokerUnavailable,
    NotPublished,
    PublishFailed,
    SendError,
    SteadyWorkerError,
    delay_in_seconds,
)
from steadyworker.ledger.base import Row
from steadyworker.names import checked_key, no_unicode
from steadyworker.outcome import JobState
from steadyworker.text.plain_text import plain_text, surrogate_in
from steadyworker.worker import Worker

P = TypeVar("P")

_OURS = "sw-"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """
    The state of a job as the ledger has it at this moment.

    Attributes:
        attempts, crashes, losses, interruptions: The job's four counters.
        done, total, note: The last progress that the job's last run reported; without a report, they are None, None and "".
        reason: The reason for this state: the last failure, or the dead letter's reason.
        conflicts: The number of messages with this key and another payload; each became a dead letter with the reason `key-conflict`.
        started_at, ended_at, last_progress: Seconds since 1970 in UTC.
    """

    key: str
    state: JobState
    attempts: int
    crashes: int
    losses: int
    interruptions: int
    done: float | None
    total: float | None
    note: str
    reason: str
    started_at: float | None
    ended_at: float | None
    last_progress: float | None
    conflicts: int = 0


class Client:
    """
    A sender of jobs, thread-safe and safe to fork: each process opens its own connection on first use.

    Args:
        broker: The broker's URL; by default the setting in the environment or in `steadyworker.toml`.
            In a handler, the command-line arguments of the worker process outrank the environment and the file.
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
        delay: float | timedelta | str = 0,
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
            headers: Your own headers for the handler; names that begin with `sw-` are reserved for SteadyWorker.
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
        outgoing = message(queue, payload, key=key, delay=delay, headers={} if headers is None else headers)
        links = self._connected()
        adapter = links.adapter(queue)
        largest = adapter.capabilities.max_body
        if largest is not None and len(outgoing.body) > largest:
            raise BadPayload(
                f"Expected a payload of at most {largest} bytes for this broker, got {len(outgoing.body)}: "
                "store the data elsewhere and send a reference to it."
            )
        name = outgoing.headers[KEY]
        try:
            if again and links.knows(queue) and (last := links.last_round(queue, name)) is not None:
                outgoing = replace(outgoing, headers={**outgoing.headers, QUEUE: queue.name, ROUND: str(last + 1)})
            adapter.publish(outgoing)
        except (NotPublished, BrokerUnavailable) as error:
            raise SendError(f"{error} The job {name!r} was not sent.") from error
        except PublishFailed as error:
            raise SendError(
                f"{error} The job may or may not have arrived: send it again with the same key, {name!r}."
            ) from error
        return name

    async def asend(
        self,
        to: type[Worker[P, Any]] | str,
        payload: P,
        *,
        key: str | None = None,
        delay: float | timedelta | str = 0,
        headers: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> str:
        """
        Send one job as `send` does, in a thread, so that the event loop is never blocked.

        If the task is cancelled while it waits, the message may or may not be sent: send the job again with the same key.
        """
        return await asyncio.to_thread(self.send, to, payload, key=key, delay=delay, headers=headers, again=again)

    def status(self, worker: type[Worker[Any, Any]] | str, key: str) -> JobStatus | None:
        """
        Return the state of this key's job (its last round), or None if the ledger has no record of the job.

        The record begins at the job's first delivery, and the ledger deletes it some time after the job's end.

        Raises:
            ConfigError: No worker process has created the ledger (NoLedger), or the queue's consumers use another ledger.
            BrokerUnavailable: The broker, whose identity is the ledger's namespace, did not respond.
            LedgerUnavailable: The ledger did not respond.
            ValueError, TypeError: The key is not valid.
        """
        name, queue = checked_key(key), job_queue(worker, self._options)
        links = self._connected()
        if not links.knows(queue):
            return None
        job = links.last_job(queue, name)
        row = links.ledger().read(job)
        if row is None:
            return None
        progress = links.ledger().last_progress(job)
        return JobStatus(
            key=job.key,
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
        )

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

        Raises:
            UnknownQueue: Neither the broker nor the ledger has a queue of this name; nothing was recorded.
            ConfigError: No worker process has created the ledger (NoLedger), or the queue's consumers use another ledger.
            BrokerUnavailable: The broker, whose identity is the ledger's namespace, did not respond.
            LedgerUnavailable: The ledger did not respond.
            ValueError, TypeError: The key is not valid.
        """
        name, queue = checked_key(key), job_queue(worker, self._options)
        links = self._connected()
        ledger, job = links.ledger(), links.last_job(queue, name)
        row = ledger.read(job)
        before = ledger.cancel(job, plain_text(reason))
        if before is None:
            return None
        return (row if row is not None and row.state is before else Row(job, "", before)).job_state

    def retry(self, worker: type[Worker[Any, Any]] | str, key: str) -> None:
        """
        Run a job now that waits for a retry, or send the lost message of an unfinished job again.

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
        Let a job that waits for a retry run after `delay`, counted from now, sooner or later than it would.

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
    queue: JobQueue, payload: object, *, key: str | None, delay: float | timedelta | str, headers: Mapping[str, str]
) -> OutgoingMessage:
    """
    Return the checked message that `Client.send` publishes, with a generated key if none is given.

    Raises BadPayload, ConfigError, ValueError and TypeError as `Client.send` does.
    """
    wait = delay_in_seconds(delay)
    _check_headers(headers)
    raw = isinstance(queue.opened_as, str) and isinstance(payload, bytes)
    body = payloads.encode(payload, bytes if raw else queue.payload_type)
    name = _key(key, headers, queue.key_header)
    own = {KEY: name} if queue.key_header is None else {KEY: name, queue.key_header: name}
    to = Target.LATER if wait else Target.WORK
    return OutgoingMessage(to, body, {**headers, **own}, delay=wait, message_id=name, first=True)


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
