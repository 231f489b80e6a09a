"""
An action on the jobs of a choice: one job after the other, in a thread of the page's process.

It leaves out each job that has changed since the choice.
While broker or ledger are away, it tries again for a minute, at the job that was under way.
A stop, by a person or by the end of the process, ends it after its present job.
Each end leaves one entry for each queue in the log of actions, with how far it came; only a killed process leaves none.
While the ledger is away, this process keeps the entry, and writes it before the next action or at its own end.
"""

from __future__ import annotations

import logging
import secrets
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from typing_extensions import override

from steadyworker.actions.deadletters import DeadLetterQueue, Replayed
from steadyworker.actions.jobs import JobActions
from steadyworker.actions.letters import LetterActions
from steadyworker.actions.report import ActionReport, Handled, QueueActions
from steadyworker.backends.connections import Connections, JobQueue
from steadyworker.clock import Clock
from steadyworker.config.resolve import Options
from steadyworker.dashboard.chosen import Choice, ChosenJob
from steadyworker.dashboard.queues import held_queue
from steadyworker.errors import (
    BrokerUnavailable,
    ConfigError,
    LedgerUnavailable,
    PublishFailed,
    SteadyWorkerError,
    Unsettled,
)
from steadyworker.ledger.base import JobId, Ledger
from steadyworker.text.plain_text import plain_text
from steadyworker.text.redaction import redact
from steadyworker.units import count_text, span

MOST_WORKS = 50
"""The number of actions on many jobs that this process remembers."""

MOST_FAILED = 20
"""The number of failed jobs that the page of an action names."""

WAITS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each further attempt, since the last job that was done, while broker or ledger are away."""

LAST_JOB = 10.0
"""The longest time, in seconds, in which a stop of the process waits for the job that is under way."""

NEEDS_BROKER = ("retry", "reschedule", "replay", "restart", "drop")
"""The actions that need the broker."""

NO_REASON = "by an operator"
"""The reason of a cancel without one."""

STARTS = ("retry", "replay", "restart")
"""The actions after which jobs begin, as soon as their queue lets them."""

_ON_LETTERS = ("replay", "restart", "drop")
_AWAY = (BrokerUnavailable, LedgerUnavailable, PublishFailed, Unsettled)
_CHANGED = "has changed since"
DONE = {
    "cancel": "cancelled",
    "undo": "no longer cancelled",
    "retry": "sent again",
    "reschedule": "rescheduled",
    "replay": "replayed",
    "restart": "replayed from the start",
    "drop": "dropped",
}
"""For each action, the word for a job that it has changed."""

LOGGED = {"undo": "undo cancel", "restart": "replay"}
"""The names of actions in the log, where they differ."""

_LATE = 1.0
"""Seconds after which an entry of the log of actions names its delay."""

_log = logging.getLogger(__name__)

Unsure = tuple[str, JobId, str]
"""An action, and the id and the uid of a job on which its result is unknown."""


class _StoppedError(SteadyWorkerError):
    """A stop of an action on many jobs."""


class Work(Struct):
    """
    An action on many jobs, and how far it came.

    Attributes:
        name: Its name in its address.
        do, who, choice: The action, its person, and the name of its choice.
        number: The number of its jobs.
        began_at, ended_at: The times of the wall clock; the end is None while it goes on.
        done, skipped, failed: The numbers of jobs that it has changed, that had changed before, and that it could not change.
        failures: The first failed jobs, each with the reason.
        present: The key of the job that is under way.
        unknown: The key of a job that it may have changed, because an answer of the broker was lost; empty without one.
        note: What it waits for.
        stop: Why it must stop; empty without a stop.
        level, text: Its result.
    """

    name: str
    do: str
    who: str
    choice: str
    number: int
    began_at: float
    ended_at: float | None = None
    done: int = 0
    skipped: int = 0
    failed: int = 0
    failures: list[tuple[JobId, str]] = []
    present: str = ""
    unknown: str = ""
    note: str = ""
    stop: str = ""
    level: str = ""
    text: str = ""

    @property
    def far(self) -> str:
        """How far it came, in words."""
        others = [
            f"{count_text(self.skipped, 'job')} had changed before" if self.skipped else "",
            f"{count_text(self.failed, 'job')} could not change" if self.failed else "",
        ]
        first = f"{self.done:,} of {count_text(self.number, 'job')} {DONE[self.do]}"
        return "; ".join(part for part in (first, *others) if part)


class BulkOrder(Struct, frozen=True):
    """What a person has asked for: the action, its reason (or an empty text) and its delay, and the person."""

    do: str
    reason: str
    delay: float
    who: str


class Bulk:
    """The actions on many jobs of one ledger, one at a time; `queue_of` returns the queue of a name; thread-safe."""

    def __init__(self, options: Options, ledger: Ledger, clock: Clock, queue_of: Callable[[str], JobQueue]) -> None:
        self._options = options
        self._ledger = ledger
        self._clock = clock
        self._queue_of = queue_of
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._works: OrderedDict[str, Work] = OrderedDict()
        self.unsure: set[Unsure] = set()
        self._writing = threading.Lock()
        self._unwritten: list[JobsPart] = []

    def begin(self, order: BulkOrder, choice: Choice) -> Work | None:
        """
        Begin an action on the jobs of a choice that allow it; return None if another action goes on.

        Raises SteadyWorkerError if the process cannot start a thread.
        """
        jobs = choice.able(order.do)
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return None
            name, now = secrets.token_urlsafe(9), self._clock.wall()
            work = Work(name, order.do, order.who, choice.name, len(jobs), now)
            self._wake.clear()
            thread = threading.Thread(target=self._run, args=(work, order, jobs), daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # pids.max of the cgroup
                raise SteadyWorkerError(
                    f"Nothing was done: this process cannot start a thread for the action: {error}. Try again later."
                ) from error
            self._thread = thread
            self._works[work.name] = work
            while len(self._works) > MOST_WORKS:
                self._works.popitem(last=False)
        return work

    def work(self, name: str) -> Work | None:
        """Return the action of this name."""
        with self._lock:
            return self._works.get(name)

    def under_way(self) -> list[Work]:
        """Return the actions that go on."""
        with self._lock:
            return [work for work in self._works.values() if work.ended_at is None]

    def stop(self, work: Work, why: str) -> None:
        """End an action after its present job."""
        work.stop = work.stop or why
        self._wake.set()

    def close(self) -> None:
        """End the action that goes on after its present job, so that the log of actions has how far it came."""
        for work in self.under_way():
            self.stop(work, "stopped with the page's process")
        if self._thread is not None:
            self._thread.join(LAST_JOB)
        self._write()

    def _run(self, work: Work, order: BulkOrder, jobs: list[ChosenJob]) -> None:
        queues: dict[tuple[str, str], dict[JobId, ChosenJob]] = {}
        for job in jobs:
            queues.setdefault((job.id.namespace, job.id.queue), {})[job.id] = job
        self._write()
        problem = ""
        try:
            for (namespace, queue), some in queues.items():
                at = self._queue_of(queue)
                actions = QueueActions(PageLinks(self._options, self._ledger, namespace), at, order.who)
                part = JobsPart(self._ledger, work, order, some, self.unsure, actions)
                with self._writing:
                    self._unwritten.append(part)
                error = self._on_queue(part, namespace, at)
                part.why = "" if error is None else redact(str(error))
                part.ended_at = self._clock.wall()
                self._write()
                problem = problem or ("" if isinstance(error, _StoppedError) else part.why)
                if work.stop:
                    break
        except Exception:  # noqa: BLE001 - the page goes on
            problem = str(_logged_error())
        unlogged = self._log(work)
        rest = work.number - work.done - work.skipped - work.failed
        texts = (
            f"{work.far}.",
            f"{work.stop[:1].upper()}{work.stop[1:]}." if work.stop else "",
            f"Then: {problem.removesuffix('.')}." if problem else "",
            f"{count_text(rest, 'job')} {'is' if rest == 1 else 'are'} as before." if rest else "",
            f"Of these, {work.unknown} may be {DONE[work.do]}: a next attempt is safe."
            if rest and work.unknown
            else "",
            f"The log of actions gets this before the next action, or at the end of this process: {unlogged}"
            if unlogged
            else "",
        )
        stopped = self._stopped(order, list(queues)) if work.done else ""
        work.text = redact(" ".join(text for text in (*texts, stopped) if text))
        work.level = "error" if problem or rest or work.failed or unlogged else "warning" if stopped else "fine"
        work.note = work.present = ""
        work.ended_at = self._clock.wall()

    def _stopped(self, order: BulkOrder, queues: Sequence[tuple[str, str]]) -> str:
        """Return why the jobs of these queues do not begin although the action has made them due; otherwise an empty text."""
        if order.do not in STARTS or order.delay:
            return ""
        try:
            held = [held_queue(self._ledger, *pair) for pair in queues]
        except LedgerUnavailable:  # the action itself is done
            return ""
        why = "; ".join(each.why for each in held if each.stops)
        return f"They wait: {why}." if why else ""

    def _log(self, work: Work) -> str:
        """Write to the log of actions, and try again while the ledger is away; return why it could not be written."""
        problem = self._write()
        for seconds in WAITS:
            if not problem:
                break
            work.note = redact(f"The log of actions waits: {problem} The next attempt is in {span(seconds)}.")
            if self._wake.wait(seconds):
                break
            problem = self._write()
        return problem

    def _write(self) -> str:
        """Write the entries that the log of actions does not have; return why it could not be written, or an empty text."""
        with self._writing:
            while self._unwritten:
                try:
                    if problem := self._unwritten[0].record(self._clock.wall()):
                        return problem
                except Exception:  # noqa: BLE001 - an entry that always fails must not stop the entries after it
                    self._unwritten.pop(0)
                    return str(_logged_error())
                self._unwritten.pop(0)
        return ""

    def _on_queue(self, part: JobsPart, namespace: str, at: JobQueue) -> SteadyWorkerError | None:
        """Act on the jobs of one queue, and try again while broker or ledger are away; return what ended this early."""
        tries = 0
        while True:
            before = len(part.rest)
            # Each attempt has its own connections, because another broker can come back at the address.
            with PageLinks(self._options, self._ledger, namespace) as links:
                error = part.once(links, at)
            if error is None or isinstance(error, _StoppedError):
                return error
            part.lost_sight()
            if not isinstance(error, _AWAY):
                return error
            tries = 1 if len(part.rest) < before else tries + 1
            if tries > len(WAITS):
                return error
            part.note(error, WAITS[tries - 1])
            if self._wake.wait(WAITS[tries - 1]):
                return error


class JobsPart:
    """
    The part of an action that concerns one queue: the jobs that are left, and those that an earlier error left `unsure`.

    With `one`, it is an action on one job; `last` is then how the job was handled.
    """

    def __init__(
        self,
        ledger: Ledger,
        work: Work,
        order: BulkOrder,
        jobs: Mapping[JobId, ChosenJob],
        unsure: set[Unsure],
        actions: QueueActions,
        *,
        one: bool = False,
    ) -> None:
        self._one = one
        self.last: Handled | None = None
        self._letters: DeadLetterQueue | None = None
        self._ledger = ledger
        self._work = work
        self._order = order
        self._number = len(jobs)
        self._present: JobId | None = None
        self._unsure = unsure
        self._actions = actions
        self.unknown: JobId | None = None
        self.why = ""
        self.ended_at: float | None = None
        self._done: list[str] = []
        self._skipped = 0
        self._failed = 0
        self.rest = dict(jobs)
        self._ids = {id.key: id for id in jobs}

    def once(self, links: PageLinks, at: JobQueue) -> SteadyWorkerError | None:
        """Act on the jobs that are left; return the error that ended this early."""
        try:
            if self._order.do in NEEDS_BROKER:
                links.check(at)
            error = self._report(links, at).error
            if error is None:
                self._end_rest()
        except SteadyWorkerError as caught:
            return caught
        except Exception:  # noqa: BLE001 - the page goes on
            return _logged_error()
        return error

    def _report(self, links: PageLinks, at: JobQueue) -> ActionReport:
        do, order = self._order.do, self._order
        if do in _ON_LETTERS:
            letters = LetterActions(links, at, order.who, logs=False)
            self._letters = letters.opened()
            rounds = {id.key: id.round for id in self.rest}
            # With its key, a letter is read without the bodies of others, and a missing letter is an error.
            keys = list(rounds) if self._one and not any(self._of(id) in self._unsure for id in self.rest) else None
            if do == "drop":
                return letters.drop(
                    self._letters,
                    keys,
                    rounds=rounds,
                    gone=True,
                    each=lambda letter: self._count(self._ids[letter.key]),
                    unless=self._unless,
                )
            return letters.replay(
                self._letters,
                keys,
                rounds=rounds,
                gone=True,
                from_start=do == "restart",
                delay=order.delay,
                each=self._replayed,
                unless=self._unless,
            )
        jobs, ids = JobActions(links, at, order.who, logs=False), list(self.rest)
        match do:
            case "cancel":
                return jobs.cancel(ids, order.reason or NO_REASON, self._handled, self._unless)
            case "undo":
                return jobs.undo(ids, self._handled, self._unless)
            case "retry":
                return jobs.retry(ids, self._handled, self._unless)
            case _:
                return jobs.reschedule(ids, order.delay, self._handled, self._unless)

    def lost_sight(self) -> None:
        """Keep that the result of the job under way is unknown, so that each later attempt handles it again."""
        if self._present is not None:
            self._unsure.add(self._of(self._present))
            self.unknown, self._present = self._present, None
            self._work.unknown = self.unknown.key

    def note(self, error: SteadyWorkerError, seconds: float) -> None:
        """Note why the action waits, and how long."""
        self._work.note = redact(f"{error} The next attempt is in {span(seconds)}.")

    def record(self, now: float) -> str:
        """Write how far this came to the log of actions; return why it could not be written, or an empty text."""
        order, done = self._order, list(self._done)
        unknown = self._present or self.unknown
        late = 0.0 if self.ended_at is None else now - self.ended_at
        details = (
            order.reason or (NO_REASON if order.do == "cancel" else ""),
            f"in {order.delay:g} s" if order.delay else "",
            "from the start" if order.do == "restart" else "",
            f"{len(done):,} of {count_text(self._number, 'job')}" if len(done) < self._number and not self._one else "",
            f"{self._skipped:,} had changed" if self._skipped else "",
            f"{self._failed:,} could not change" if self._failed else "",
            f"result unknown: {self.why if self._one else unknown.key}" if unknown is not None else "",
            self._work.stop if self._work.stop != self.why else "",
            "" if self._one else self.why,
            f"written {span(late)} later" if late > _LATE else "",
        )
        detail = "; ".join(text for text in details if text)
        keys = done if unknown is None else [unknown.key, *done]
        return self._actions.record(LOGGED.get(order.do, order.do), keys, len(done), detail)

    def _of(self, id: JobId) -> Unsure:
        return self._order.do, id, self.rest[id].uid

    def _unless(self, id: JobId) -> str:
        if id not in self.rest:
            return _CHANGED  # a second letter of a job that was done
        if self._work.stop:
            raise _StoppedError(self._work.stop)
        self._work.present, self._work.note = id.key, ""
        if self._is_another(id) if self._of(id) in self._unsure else self._has_changed(id):
            self._skip(id)
            return _CHANGED
        self._present = id
        return ""

    def _is_another(self, id: JobId) -> bool:
        row = self._ledger.read(id)
        return row is not None and row.uid != self.rest[id].uid

    def _has_changed(self, id: JobId) -> bool:
        last = self._ledger.last_round(id.namespace, id.queue, id.key)
        return last != id.round or not self.rest[id].is_same(self._order.do, self._ledger.read(id))

    def _skip(self, id: JobId) -> None:
        del self.rest[id]
        self._present = None
        self._skipped += 1
        self._work.skipped += 1

    def _fail(self, id: JobId, problem: str) -> None:
        del self.rest[id]
        self._present = None
        self._failed += 1
        self._work.failed += 1
        if len(self._work.failures) < MOST_FAILED:
            self._work.failures.append((id, redact(problem)))

    def _count(self, id: JobId) -> None:
        self._unsure.discard(self._of(id))
        del self.rest[id]
        self._present = None
        if self.unknown == id:
            self.unknown, self._work.unknown = None, ""
        self._done.append(id.key)
        self._work.done += 1

    def _handled(self, handled: Handled) -> None:
        id = self._ids[handled.key]
        if handled.problem == _CHANGED:
            return
        self.last = handled
        if handled.problem:
            self._fail(id, handled.problem)
        else:
            self._count(id)

    def _replayed(self, replayed: Replayed) -> None:
        self._count(self._ids[replayed.letter.key])

    def _end_rest(self) -> None:
        """Judge the jobs for which there was no letter: an attempt before a lost connection has done them, they have changed, or they have none."""
        for id in list(self.rest):
            last = self._ledger.last_round(id.namespace, id.queue, id.key)
            if self._of(id) in self._unsure and (last is None if self._order.do == "drop" else last == id.round + 1):
                self._count(id)
            elif self._of(id) in self._unsure and self._order.do == "drop" and not self._has_changed(id):
                # An earlier attempt has removed the letter, and lost the ledger before it deleted the record.
                assert self._letters is not None
                self._letters.forget(id)
                self._count(id)
            elif self._has_changed(id):
                self._skip(id)
            else:
                self._fail(id, "has no complete dead letter, and the ledger has no copy of its message")


def _logged_error() -> SteadyWorkerError:
    """Log the present exception, and return an error that names the log."""
    _log.error("%s", plain_text(traceback.format_exc(limit=-6)))
    return SteadyWorkerError("This is an error in SteadyWorker: the page's log has its traceback.")


class PageLinks(Connections):
    """The connections of one action on a queue of a known namespace; the ledger belongs to the page."""

    def __init__(self, options: Options, ledger: Ledger, namespace: str) -> None:
        super().__init__(options)
        self._of_page = ledger
        self._known = namespace

    @override
    def ledger(self) -> Ledger:
        return self._of_page

    @override
    def namespace(self, queue: JobQueue, *, bind: bool = True) -> str:
        """Return the namespace that the form names, without a question to the broker; its jobs show that it is bound."""
        del queue, bind
        return self._known

    def check(self, queue: JobQueue) -> None:
        """Raise ConfigError if the broker of the settings is not the one of the job."""
        if (found := super().namespace(queue, bind=False)) != self._known:
            raise ConfigError(
                f"Expected the broker of the job, {self._known!r}, got {found!r}: start the dashboard with its --broker."
            )
