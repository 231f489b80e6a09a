"""
The actions of the page: what a person does with a job, a queue or a worker process.

They are the actions of the command line, on connections that live as long as one action.
A cancel, a pause and a command to a worker process need the ledger only; an action that sends or removes a message needs the broker, too.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Mapping

from typing_extensions import override

from steadyworker.actions.deadletters import Replayed
from steadyworker.actions.jobs import JobActions, needs_no_message
from steadyworker.actions.letters import LetterActions
from steadyworker.actions.queues import PauseActions
from steadyworker.actions.report import ActionReport
from steadyworker.actions.workers import WorkerActions
from steadyworker.backends.connections import Connections, JobQueue, job_queue
from steadyworker.clock import Clock
from steadyworker.config.resolve import Options
from steadyworker.dashboard.failures import Sought, failure_groups
from steadyworker.dashboard.forms import (
    MOST_UNTYPED,
    OF_A_GROUP,
    OF_A_JOB,
    OF_A_QUEUE,
    ActionResult,
    AskedAction,
    Seals,
    seen_of_job,
    seen_of_pause,
)
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.errors import ConfigError, SteadyWorkerError, delay_in_seconds
from steadyworker.ledger.base import JobId, Ledger, Row
from steadyworker.outcome import JobState
from steadyworker.text.plain_text import plain_text
from steadyworker.text.redaction import redact
from steadyworker.units import count_text, span

_log = logging.getLogger(__name__)
_ASKS = ("retry", "reschedule", "replay", "restart", "drop")
_LAST_LETTER = 10.0
"""The longest time, in seconds, in which a stop waits for the letter that is replayed now."""
_CHANGED = (
    "Nothing was done: this form was used before, or what it acts on has changed. "
    "Look at the page, and use its form again."
)


class Doing:
    """The actions on one ledger; thread-safe."""

    def __init__(self, options: Options, ledger: Ledger, clock: Clock) -> None:
        self._options = options
        self._ledger = ledger
        self._clock = clock
        self._bulk = threading.Lock()
        self._stopping = threading.Event()
        self.seals = Seals()

    def close(self) -> None:
        """End the replay of a group after its present letter, so that the log of actions has what was replayed."""
        self._stopping.set()
        if self._bulk.acquire(timeout=_LAST_LETTER):
            self._bulk.release()

    def waits(self, row: Row) -> bool:
        """Return whether a retry can send the job's message again."""
        return not needs_no_message(row)

    def act(self, wanted: AskedAction, user: str) -> str:
        """
        Do what a form asks for, once, and return the name of its result.

        The user is the person in the log of actions, or without a name, the user of this process.
        A replay of a group goes on after this call; its result shows how far it came.
        """
        try:
            if wanted.do == OF_A_GROUP:
                return self._on_group(wanted, user)
            return self.seals.keep(self._done(wanted, user))
        except Exception:  # noqa: BLE001 - one action fails, and the page goes on
            _log.error("%s", plain_text(traceback.format_exc()))
            text = "This is an error in SteadyWorker: the log of `steadyworker dashboard` has its traceback. Look at the page for what was done."
            return self.seals.keep(ActionResult("error", text))

    def _done(self, wanted: AskedAction, user: str) -> ActionResult:
        try:
            if wanted.do in OF_A_JOB:
                return self._on_job(wanted, user)
            return self._on_queue(wanted, user) if wanted.do in OF_A_QUEUE else self._on_worker(wanted, user)
        except SteadyWorkerError as error:
            return ActionResult("error", redact(f"{error}"))

    def _on_job(self, wanted: AskedAction, user: str) -> ActionResult:
        namespace, queue, key = wanted.names
        delay = 0.0
        if wanted.do == "reschedule":
            try:
                delay = delay_in_seconds(wanted.delay)
            except ValueError as error:
                return ActionResult("error", f"Nothing was done. {plain_text(str(error))}")
        round_ = self._ledger.last_round(namespace, queue, key)
        id = JobId(namespace, queue, key, round_ or 0)
        row = self._ledger.read(id)
        if row is None or not self.seals.use(wanted.seal, wanted.do, wanted.on, seen_of_job(wanted.do, row), user):
            return ActionResult("error", _CHANGED)
        with _PageLinks(self._options, self._ledger, namespace) as links:
            at = job_queue(queue, self._options)
            if wanted.do in _ASKS:
                links.check(at)
            actions = JobActions(links, at, user)
            match wanted.do:
                case "cancel":
                    report = actions.cancel([id], wanted.reason or "by an operator")
                case "undo":
                    report = actions.undo([id])
                case "retry":
                    report = actions.retry([id])
                case "reschedule":
                    report = actions.reschedule([id], delay)
                case _:
                    report = _on_letter(LetterActions(links, at, user), wanted.do, id)
        return _result(wanted.do, row, report)

    def _on_queue(self, wanted: AskedAction, user: str) -> ActionResult:
        namespace, queue = wanted.names
        if (namespace, queue) not in set(self._ledger.bindings()):
            return ActionResult("error", _CHANGED)
        with _PageLinks(self._options, self._ledger, namespace) as links:
            actions = PauseActions(links, job_queue(queue, self._options), user)
            if not self.seals.use(wanted.seal, wanted.do, wanted.on, seen_of_pause(actions.present()), user):
                return ActionResult("error", _CHANGED)
            if wanted.do == "pause":
                done = actions.pause(wanted.reason)
                text = f"{queue} is paused: its worker processes receive no new message. Jobs that run go on."
            else:
                done = actions.resume()
                text = f"{queue} goes on: its worker processes receive messages again."
        if not done.changed:
            return ActionResult("error", f"{queue} is not paused.")
        return _logged(text, done.unlogged)

    def _on_worker(self, wanted: AskedAction, user: str) -> ActionResult:
        (owner,) = wanted.names
        seen = next((each for each in self._ledger.owners() if each.owner == owner), None)
        if seen is None or seen.report is None:
            return ActionResult("error", _CHANGED)
        if not self.seals.use(wanted.seal, wanted.do, wanted.on, seen.report.stage, user):
            return ActionResult("error", _CHANGED)
        name = f"{seen.host}:{seen.report.pid}"
        actions = WorkerActions(self._ledger, owner, name, user)
        if wanted.do == "quiet":
            return _logged(f"{name} receives no new message within 2 s. Its jobs go on.", actions.quiet())
        return _logged(f"{name} receives messages again within 2 s.", actions.resume())

    def _on_group(self, wanted: AskedAction, user: str) -> str:
        """Begin the replay of the dead jobs of a group."""
        keep = self.seals.keep
        namespace, queue, kind, frame, of, when, text = (name.removeprefix("=") for name in wanted.names[:-1])
        try:
            last = float(wanted.names[-1])
            sought = Sought(of or None, queue, when, text)
            groups, _ = failure_groups(ReadOnce(self._ledger), self._clock.wall(), sought)
        except ValueError:
            return keep(ActionResult("error", _CHANGED))
        except SteadyWorkerError as error:
            return keep(ActionResult("error", redact(str(error))))
        same = (each for each in groups if (each.namespace, each.kind, each.path) == (namespace, kind, frame))
        rounds = {id.key: id.round for group in same for at, id in group.dead_jobs if at <= last}
        number = len(rounds)
        if number > MOST_UNTYPED and wanted.number.replace(",", "") != str(number):
            return keep(
                ActionResult("error", f"Nothing was done. Expected the number {number}, got {wanted.number!r}.")
            )
        if not self._bulk.acquire(blocking=False):
            return keep(ActionResult("error", "Nothing was done: another group is replayed now. Wait for its end."))
        if not self.seals.use(wanted.seal, wanted.do, wanted.on, str(number), user):
            self._bulk.release()
            return keep(ActionResult("error", _CHANGED))
        name = keep(ActionResult("", f"0 of {count_text(number, 'job')} replayed: this goes on."))
        threading.Thread(target=self._replay, args=(namespace, queue, rounds, user, name), daemon=True).start()
        return name

    def _replay(self, namespace: str, queue: str, rounds: Mapping[str, int], user: str, name: str) -> None:
        """Replay the dead letters of these keys in their rounds, and keep how far this came as the result of this name."""
        replayed, number, keep = 0, count_text(len(rounds), "job"), self.seals.keep

        def each(_: Replayed) -> None:
            nonlocal replayed
            replayed += 1
            keep(ActionResult("", f"{replayed:,} of {number} replayed: this goes on."), name)
            if self._stopping.is_set():
                raise SteadyWorkerError("The page's process stops.")

        result = ActionResult("error", _CHANGED)
        try:
            with _PageLinks(self._options, self._ledger, namespace) as links:
                at = job_queue(queue, self._options)
                links.check(at)
                actions = LetterActions(links, at, user)
                report = actions.replay(actions.opened(), list(rounds), rounds=rounds, each=each)
            text = f"{replayed:,} of {number} replayed: they are in {queue} again, in their next rounds."
            result = _logged(text, report.unlogged)
            if report.error is not None:
                rest = "The others are unchanged: look at the page, and replay them again."
                result = ActionResult("error", redact(f"{text} Then: {report.error} {rest}"))
        except SteadyWorkerError as error:
            result = ActionResult("error", redact(f"Nothing was replayed: {error}"))
        except Exception:  # noqa: BLE001 - the page goes on
            _log.error("%s", plain_text(traceback.format_exc()))
            text = f"{replayed:,} of {number} replayed, then an error of SteadyWorker; the log of `steadyworker dashboard` has it."
            result = ActionResult("error", text)
        finally:
            keep(result, name)
            self._bulk.release()


class _PageLinks(Connections):
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


def _on_letter(actions: LetterActions, do: str, id: JobId) -> ActionReport:
    """Replay or drop the dead letter of a job, and no other letter with its key."""
    letters, rounds = actions.opened(), {id.key: id.round}
    if do == "drop":
        return actions.drop(letters, [id.key], rounds=rounds)
    return actions.replay(letters, [id.key], rounds=rounds, from_start=do == "restart")


def _result(do: str, row: Row, report: ActionReport) -> ActionResult:
    """Return the result of an action on one job."""
    if report.error is not None:
        return ActionResult("error", redact(str(report.error)))
    if not report.handled:
        return ActionResult("error", f"Nothing was done: {row.id.key} has no dead letter.")
    handled = report.handled[0]
    key = handled.key
    if handled.problem:
        return ActionResult("error", redact(f"Nothing was done: {key} {handled.problem}."))
    match do:
        case "cancel" if handled.before is JobState.RUNNING:
            text = f"{key} is running: it receives the cancellation within 2 s."
        case "cancel":
            text = f"{key} is cancelled (it was {handled.before}): it will not run again."
        case "undo":
            text = f"{key} is no longer cancelled: it runs when its message arrives."
        case "retry":
            text = f"{key} ({handled.before}): its message is in {row.id.queue} again."
        case "replay" | "restart":
            text = f"{key} is in {row.id.queue} again, in its next round."
        case "drop":
            text = f"{key} is dropped: its dead letter and its record are deleted."
        case _:
            text = f"{key} ({handled.before}): due in {span(handled.due_in)}."
    return _logged(text, report.unlogged)


def _logged(text: str, unlogged: str) -> ActionResult:
    if not unlogged:
        return ActionResult("fine", redact(text))
    return ActionResult("error", redact(f"{text} This is done, but not in the log of actions: {unlogged}"))
