"""
The actions of the page: what a person does with a job, a queue, a worker process, or with all jobs of a choice.

They are the actions of the command line, on connections that live as long as one action.
A cancel, a pause and a command to a worker process need the ledger only; an action that sends or removes a message needs the broker, too.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from steadyworker.actions.jobs import needs_no_message
from steadyworker.actions.queues import PauseActions
from steadyworker.actions.report import Handled, QueueActions
from steadyworker.actions.workers import WorkerActions
from steadyworker.backends.connections import JobQueue, job_queue
from steadyworker.clock import Clock
from steadyworker.config.resolve import Options
from steadyworker.dashboard.access import Visitor
from steadyworker.dashboard.bulk import DONE, LAST_JOB, NEEDS_BROKER, STARTS, Bulk, BulkOrder, JobsPart, PageLinks, Work
from steadyworker.dashboard.chosen import Choice, Choices, chosen_job, seen_of_job
from steadyworker.dashboard.failures import Sought
from steadyworker.dashboard.forms import (
    ACTING,
    LONGEST_REASON,
    MOST_UNTYPED,
    OF_A_JOB,
    OF_A_QUEUE,
    OF_MANY,
    STOP,
    ActionResult,
    AskedAction,
    Seals,
    seen_of_pause,
)
from steadyworker.dashboard.queues import Held, held_cancel, held_queue
from steadyworker.errors import LedgerUnavailable, SteadyWorkerError, delay_in_seconds
from steadyworker.ledger.base import JobId, Ledger, Row
from steadyworker.outcome import JobState
from steadyworker.text.plain_text import plain_text
from steadyworker.text.redaction import redact
from steadyworker.units import span

_log = logging.getLogger(__name__)
_CHANGED = (
    "Nothing was done: this form was used before, or what it acts on has changed. "
    "Look at the page, and use its form again."
)
_BEGINS_WITHIN = 5.0
"""The longest time, in seconds, in which an action waits for others; then the request has ended, and the action never begins."""

_GOES_ON = ActionResult("", "This goes on, because the broker or the ledger responds slowly. The result appears here.")
_BUSY = ActionResult("error", "Nothing was done: another action on many jobs goes on. Wait for its end.")
_NOT_BEGUN = ActionResult("error", "Nothing was done, because other actions take long. Use the form again.")


class Doing:
    """The actions on one ledger; thread-safe; `named` has the queues whose Workers are known."""

    def __init__(self, options: Options, ledger: Ledger, clock: Clock, named: Mapping[str, JobQueue]) -> None:
        self._options = options
        self._ledger = ledger
        self._clock = clock
        self._choices = Choices()
        self.seals = Seals()
        self._named = named
        self._turns = threading.Semaphore(ACTING)  # a thread keeps its turn when its request ends before it
        self._under_way: dict[str, JobsPart] = {}
        self.bulk = Bulk(options, ledger, clock, self._queue_of)

    def waits(self, row: Row) -> bool:
        """Return whether a retry can send the job's message again."""
        return not needs_no_message(row)

    def choose(self, wanted: Sought) -> Choice:
        """Read and keep the jobs that fit a filter."""
        return self._choices.choose(self._ledger, self._clock.wall(), wanted, self.waits)

    def choice(self, name: str) -> Choice | None:
        """Return the choice of this name, or None if it is no longer kept."""
        return self._choices.kept(name)

    def act(self, wanted: AskedAction, visitor: Visitor, name: str) -> str:
        """
        Do what a form asks for, once, keep its result by this name, and return the address of the page that shows it.

        An action on many jobs goes on after this call; its page shows how far it came.
        """
        where = f"{wanted.path}?did={name}"
        if not self._turns.acquire(timeout=_BEGINS_WITHIN):
            return self.give_up(wanted, name)
        try:
            return self._act(wanted, visitor, name, where)
        finally:
            self._under_way.pop(name, None)
            self._turns.release()

    def close(self) -> None:
        """Wait a short time for the actions under way, let no other begin, and log those that do not end."""
        until = self._clock.monotonic() + LAST_JOB
        self.bulk.close()
        for _ in range(ACTING):
            self._turns.acquire(timeout=max(0.0, until - self._clock.monotonic()))
        for part in list(self._under_way.values()):
            part.why = "stopped with the page's process"
            part.record(self._clock.wall())

    def _act(self, wanted: AskedAction, visitor: Visitor, name: str, where: str) -> str:
        if not self.seals.keep_first(name, _GOES_ON):
            return where
        result: ActionResult | None
        try:
            if wanted.do in OF_MANY:
                result, where = self._on_many(wanted, visitor, where)
            else:
                result = self._done(wanted, visitor, name)
        except SteadyWorkerError as error:
            result = ActionResult("error", redact(f"{error}"))
        except Exception:  # noqa: BLE001 - one action fails, and the page goes on
            _log.error("%s", plain_text(traceback.format_exc(limit=-6)))
            text = "This is an error in SteadyWorker: the log of `steadyworker dashboard` has its traceback. Look at the page for what was done."
            result = ActionResult("error", text)
        if result is not None:
            self.seals.keep(name, result)
        return where

    def give_up(self, wanted: AskedAction, name: str) -> str:
        """Return the address of the page that shows the result of an action that takes long; one that has not begun never begins."""
        self.seals.keep_first(name, _NOT_BEGUN)
        return f"{wanted.path}?did={name}"

    def _done(self, wanted: AskedAction, visitor: Visitor, name: str) -> ActionResult:
        if wanted.do in OF_A_JOB:
            return self._on_job(wanted, visitor, name)
        if wanted.do == STOP:
            return self._stop(wanted, visitor)
        return self._on_queue(wanted, visitor) if wanted.do in OF_A_QUEUE else self._on_worker(wanted, visitor)

    def _queue_of(self, name: str) -> JobQueue:
        return self._named.get(name) or job_queue(name, self._options)

    def _use(self, wanted: AskedAction, seen: str, visitor: Visitor) -> bool:
        return self.seals.use(wanted.seal, wanted.do, wanted.on, seen, visitor.name)

    def _on_job(self, wanted: AskedAction, visitor: Visitor, name: str) -> ActionResult:
        namespace, queue, key = wanted.names
        try:
            delay = _delay(wanted.do, wanted)
        except ValueError as error:
            return ActionResult("error", f"Nothing was done. {error}")
        round_ = self._ledger.last_round(namespace, queue, key)
        id = JobId(namespace, queue, key, round_ or 0)
        row = self._ledger.read(id)
        if row is None or not self._use(wanted, seen_of_job(wanted.do, row), visitor):
            return ActionResult("error", _CHANGED)
        work = Work("", wanted.do, visitor.who, "", 1, self._clock.wall())
        order, job = BulkOrder(wanted.do, wanted.reason, delay, visitor.who), chosen_job(row, waits=True)
        with PageLinks(self._options, self._ledger, namespace) as links:
            at = self._queue_of(queue)
            actions = QueueActions(links, at, visitor.who)
            part = JobsPart(self._ledger, work, order, {id: job}, self.bulk.unsure, actions, one=True)
            self._under_way[name] = part
            problem = part.once(links, at)
            if problem is not None and wanted.do in NEEDS_BROKER:
                part.lost_sight()
            part.why = "" if problem is None else redact(str(problem))
            unlogged = part.record(self._clock.wall()) if work.done or part.unknown else ""
        if work.skipped:
            return ActionResult("error", _CHANGED)
        if part.unknown is not None:
            text = f"{part.why.removesuffix('.')}. {key} may be {DONE[wanted.do]}: a next attempt is safe."
            text = f"{text} The log of actions has not this: {unlogged}" if unlogged else text
            return ActionResult("error", redact(text))
        if part.why or work.failures:
            return ActionResult("error", part.why or redact(f"Nothing was done: {key} {work.failures[0][1]}."))
        held = Held()
        with suppress(LedgerUnavailable):  # the action is done, whatever its queue does
            if wanted.do in STARTS and not delay:
                held = held_queue(self._ledger, namespace, queue)
            if wanted.do == "cancel":
                held = held_cancel(self._ledger, row)
        return _logged(_done_text(wanted.do, row, part.last or Handled(key), delay, held), unlogged, stops=held.stops)

    def _on_queue(self, wanted: AskedAction, visitor: Visitor) -> ActionResult:
        namespace, queue = wanted.names
        if (namespace, queue) not in set(self._ledger.bindings()):
            return ActionResult("error", _CHANGED)
        with PageLinks(self._options, self._ledger, namespace) as links:
            actions = PauseActions(links, self._queue_of(queue), visitor.who)
            if not self._use(wanted, seen_of_pause(actions.present()), visitor):
                return ActionResult("error", _CHANGED)
            if wanted.do == "pause":
                done = actions.pause(wanted.reason)
                text = f"{queue} is paused: its worker processes receive no new message. Jobs that run go on."
            else:
                done = actions.resume()
                text = f"{queue} goes on: its worker processes receive messages again."
        if not done.changed:
            return ActionResult("error", f"{queue} is not paused.")
        held = Held()
        with suppress(LedgerUnavailable):  # the action is done, whatever its queue does
            if wanted.do == "resume":
                held = held_queue(self._ledger, namespace, queue)
        if held.stops:
            text = f"{queue} is no longer paused, but {held.why}."
        return _logged(text, done.unlogged, stops=held.stops)

    def _on_worker(self, wanted: AskedAction, visitor: Visitor) -> ActionResult:
        (owner,) = wanted.names
        seen = next((each for each in self._ledger.owners() if each.owner == owner), None)
        if seen is None or seen.report is None or seen.dead:
            return ActionResult("error", _CHANGED)
        if not self._use(wanted, seen.report.stage, visitor):
            return ActionResult("error", _CHANGED)
        name = f"{seen.host}:{seen.report.pid}"
        actions = WorkerActions(self._ledger, owner, name, visitor.who)
        if wanted.do == "quiet":
            return _logged(f"{name} receives no new message within 2 s. Its jobs go on.", actions.quiet())
        return _logged(f"{name} receives messages again within 2 s.", actions.resume())

    def _on_many(self, wanted: AskedAction, visitor: Visitor, where: str) -> tuple[ActionResult | None, str]:
        """Begin an action on the jobs of a choice; return why it did not begin, and the address of its page."""
        do, (name,) = OF_MANY[wanted.do], wanted.names
        if (choice := self._choices.kept(name)) is None:
            return ActionResult("error", _CHANGED), where
        number, problem, delay = len(choice.able(do)), "", 0.0
        try:
            delay = _delay(do, wanted)
        except ValueError as error:
            problem = str(error)
        if number > MOST_UNTYPED and wanted.number.replace(",", "") != str(number):
            problem = f"Expected the number {number}, got {wanted.number!r}."
        if problem:
            return ActionResult("error", f"Nothing was done. {problem}"), where
        if self.bulk.under_way():
            return _BUSY, where
        if not self._use(wanted, str(number), visitor):
            return ActionResult("error", _CHANGED), where
        work = self.bulk.begin(BulkOrder(do, wanted.reason, delay, visitor.who), choice)
        if work is None:
            return _BUSY, where
        return None, f"/doing/{work.name}"

    def _stop(self, wanted: AskedAction, visitor: Visitor) -> ActionResult:
        work = self.bulk.work(wanted.names[0])
        if work is None or work.ended_at is not None or not self._use(wanted, "", visitor):
            return ActionResult("error", _CHANGED)
        self.bulk.stop(work, f"stopped by {visitor.who}")
        return ActionResult("fine", "This stops after its present job.")


def named_queues(workers: Iterable[Any], options: Options) -> Mapping[str, JobQueue]:
    """Return the queues of these Workers, or the queues with these names, each by its name; raise ConfigError for an invalid one."""
    return {queue.name: queue for queue in (job_queue(worker, options) for worker in workers)}


def _delay(do: str, wanted: AskedAction) -> float:
    """Return the delay of a form in seconds; raise ValueError if it is none, or missing."""
    if do != "reschedule" and not (wanted.delay and "delay" in OF_A_JOB[do].fields):
        return 0.0
    try:
        return delay_in_seconds(wanted.delay)
    except ValueError:
        got = plain_text(wanted.delay, LONGEST_REASON)
        raise ValueError(f"Expected a time such as 90s, 2h or 1d, at most ten years, got {got!r}.") from None


def _done_text(do: str, row: Row, handled: Handled, delay: float, held: Held) -> str:
    """Return what an action has done with one job; `held` is that of its queue, or of its cancel."""
    key = row.id.key
    match do:
        case "cancel" if handled.before is JobState.RUNNING and held.stops:
            text = f"{key} is cancelled: {held.why}."
        case "cancel" if handled.before is JobState.RUNNING:
            text = f"Cancel sent: {key} was running, and a worker process receives a cancel within 2 s."
        case "cancel":
            text = f"{key} is cancelled (it was {handled.before}): it will not run again."
        case "undo":
            text = f"{key} is no longer cancelled: it runs when its message arrives."
        case "retry" if held.stops:
            text = f"{key} ({handled.before}) is due now, but {held.why}."
        case "retry":
            text = f"{key} ({handled.before}) is due now: it runs with the next free slot{held.added}."
        case "replay" | "restart" if held.stops:
            text = f"{key} is replayed, but {held.why}."
        case "replay" | "restart":
            begin = "from its last checkpoint" if do == "replay" and row.checkpoint is not None else "from the start"
            when = f"in {span(delay)}" if delay else "with the next free slot"
            text = f"{key} runs again {when}, {begin}{held.added}."
        case "drop":
            text = f"{key} is dropped: its dead letter and its record are deleted."
        case _:
            text = f"{key} ({handled.before}): due in {span(handled.due_in)}."
    return text


def _logged(text: str, unlogged: str, *, stops: bool = False) -> ActionResult:
    if not unlogged:
        return ActionResult("warning" if stops else "fine", redact(text))
    return ActionResult("error", redact(f"{text} This is done, but not in the log of actions: {unlogged}"))
