"""
The forms of a page: which actions it offers, the seal of each form, and the results of actions.

A seal proves that this process drew the form, for this user, and for what the user saw.
It serves once: after an action on its target, and after each change of the target, the old form changes nothing.
So neither a double click, a reload nor a recorded request repeats an action.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import sha256

from msgspec import Struct

from steadyworker.dashboard.addresses import job_path, names_of, names_path
from steadyworker.dashboard.failures import FailureGroup, Sought
from steadyworker.dashboard.queues import QueueLine
from steadyworker.dashboard.workers import WorkerLine
from steadyworker.ledger.base import Row, State
from steadyworker.ledger.facts import Pause
from steadyworker.ledger.listing import Liveness
from steadyworker.outcome import JobState
from steadyworker.text.plain_text import plain_text
from steadyworker.units import count_text

MOST_RESULTS, MOST_TARGETS = 500, 10_000
"""The numbers of results, and of targets of an action, that this process remembers."""

QUIET = "quiet"
"""The stage of a worker process that receives no messages, by order."""

LONGEST_REASON = 300
"""The largest number of characters of a reason."""

OF_A_JOB = ("cancel", "undo", "retry", "reschedule", "replay", "restart", "drop")
OF_A_GROUP = "replay-group"
OF_A_QUEUE = ("pause", "resume")
OF_A_WORKER = ("quiet", "loud")

MOST_UNTYPED = 50
"""The largest number of jobs that a form changes without a typed number."""

_NAMES = {**dict.fromkeys(OF_A_JOB, 3), **dict.fromkeys(OF_A_QUEUE, 2), **dict.fromkeys(OF_A_WORKER, 1), OF_A_GROUP: 8}
"""For each action, the number of names in the address of its target."""

_UNFINISHED = (State.RUNNING, State.INTERRUPTED, State.MOVING, State.MOVED)


class Offer(Struct, frozen=True):
    """
    An action that a page offers.

    Attributes:
        do: The action.
        on: Its target, as `addresses` writes names.
        seal: The seal of the form.
        label: The text of the button.
        about: What the button acts on, for a screen reader.
        field: The field of the form, `reason`, `delay` or `number`; or empty.
        hint: The explanation of the action; with one, the button needs a second click.
        same: What stays the same when the target changes; empty if that is the target.
    """

    do: str
    on: str
    seal: str
    label: str
    about: str
    field: str = ""
    hint: str = ""
    same: str = ""

    @property
    def id(self) -> str:
        """The id of the form on the page, the same after each refresh."""
        return f"{self.do}-{sha256((self.same or self.on).encode(errors='surrogatepass')).hexdigest()[:10]}"


class AskedAction:
    """
    An action that a form asks for.

    Attributes:
        do, on: The action, and the address of its target.
        names: The names in this address.
        seal: The seal of the form.
        reason, delay, number: The fields of the form.
    """

    def __init__(self, act: str, reason: str, delay: str, number: str) -> None:
        """Read the value of a form's button; raise ValueError if no form has this value."""
        self.do, self.on, self.seal = act.split(" ")
        self.names: Sequence[str] = names_of(self.on)
        if _NAMES.get(self.do) != len(self.names):
            raise ValueError(act)
        self.reason = plain_text(reason.strip(), LONGEST_REASON)
        self.delay = delay
        self.number = number.strip()

    @property
    def namespace(self) -> str | None:
        """The namespace of the target; None for a worker process."""
        return None if self.do in OF_A_WORKER else self.names[0]

    @property
    def path(self) -> str:
        """The address of the page after the action."""
        if self.do in OF_A_JOB:
            namespace, queue, key = self.names
            return "/failures" if self.do == "drop" else job_path(namespace, queue, key)
        if self.do == OF_A_GROUP:
            return "/failures"
        return "/queues" if self.do in OF_A_QUEUE else "/workers"


class ActionResult(Struct, frozen=True):
    """The result of an action in words, and its colour: `fine`, `error`, or empty while the action goes on."""

    level: str
    text: str


class Seals:
    """The seals and the results of this process; thread-safe."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._acted = self._floor = 0
        self._last: OrderedDict[str, int] = OrderedDict()
        self._results: OrderedDict[str, ActionResult] = OrderedDict()

    def seal(self, do: str, on: str, seen: str, user: str) -> str:
        """Return the seal of a form: the action, its target, what the user saw of it, and the user."""
        with self._lock:
            return self._seal(do, on, seen, user)

    def use(self, seal: str, do: str, on: str, seen: str, user: str) -> bool:
        """Return whether the seal is valid; from now on, no present seal of this target is."""
        with self._lock:
            if not hmac.compare_digest(seal.encode(), self._seal(do, on, seen, user).encode()):
                return False
            self._acted += 1
            self._last[on] = self._acted
            self._last.move_to_end(on)
            while len(self._last) > MOST_TARGETS:
                self._floor = max(self._floor, self._last.popitem(last=False)[1])  # a used seal stays used
            return True

    def keep(self, result: ActionResult, name: str = "") -> str:
        """Keep a result for the page after it, in place of the one of this name; return its name, which is a secret."""
        name = name or secrets.token_urlsafe(9)
        with self._lock:
            self._results[name] = result
            while len(self._results) > MOST_RESULTS:
                self._results.popitem(last=False)
        return name

    def result(self, name: str) -> ActionResult | None:
        """Return the result of this name, or None."""
        with self._lock:
            return self._results.get(name)

    def _seal(self, do: str, on: str, seen: str, user: str) -> str:
        parts = (do, on, seen, user, str(self._last.get(on, self._floor)))
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return hmac.new(self._secret, text.encode(errors="surrogatepass"), sha256).hexdigest()[:32]


class Forms:
    """The forms for one user; a job `waits` if a retry can send its message again."""

    def __init__(self, seals: Seals, user: str, waits: Callable[[Row], bool]) -> None:
        self._seals = seals
        self._user = user
        self._waits = waits

    def job(self, row: Row) -> Sequence[Offer]:
        """Return what the user can do with a job."""
        on, key = names_path(row.id.namespace, row.id.queue, row.id.key), row.id.key
        marked, waits = row.cancel_reason is not None, self._waits(row)
        unfinished = row.state in _UNFINISHED
        offers = []
        if unfinished and not marked:
            hint = "A running job receives the cancel within 2 s; every cancelled job becomes a dead letter."
            offers.append(self._offer("cancel", on, seen_of_job("cancel", row), "Cancel", key, "reason", hint))
            if waits:
                offers.append(self._offer("retry", on, seen_of_job("retry", row), "Retry now", key))
            if waits and row.state is State.MOVED:
                hint = "From now until the job may run, such as 90s, 2h, 1d."
                seen = seen_of_job("reschedule", row)
                offers.append(self._offer("reschedule", on, seen, "Reschedule", key, "delay", hint))
        elif unfinished and row.job_state is not JobState.RUNNING:
            offers.append(self._offer("undo", on, seen_of_job("undo", row), "Undo the cancel", key))
        if row.state is State.DEAD:
            seen = seen_of_job("replay", row)
            offers.append(self._offer("replay", on, seen, "Replay", key))
            hint = "Deletes the checkpoint: the job starts from the beginning."
            offers.append(self._offer("restart", on, seen, "Replay from the start", key, hint=hint))
            hint = "Deletes the dead letter and the record of the job for good."
            offers.append(self._offer("drop", on, seen, "Drop", key, hint=hint))
        return offers

    def group(self, group: FailureGroup, sought: Sought) -> Offer | None:
        """Return the form that replays the dead jobs of a group which the page shows; later ones stay."""
        if not group.dead:
            return None
        # An empty part of an address names nothing, so each has a letter before it.
        same = [group.kind, group.path, sought.namespace or "", sought.when, sought.text]
        last = repr(max(at for at, _ in group.dead_jobs))
        on = names_path(group.namespace, group.queue, *(f"={text}" for text in same), last)
        number = f"{group.dead:,}"
        hint = f"Replays {count_text(group.dead, 'dead job')}: each replay begins the next round, from the last checkpoint."
        field = ""
        if group.dead > MOST_UNTYPED:
            field, hint = "number", f"{hint} Type {group.dead} to confirm the number."
        seal = self._seals.seal(OF_A_GROUP, on, str(group.dead), self._user)
        about = f"of {group.kind} in {group.queue}"
        place = f"{group.namespace}/{group.queue}/{group.kind}/{group.path}"
        return Offer(OF_A_GROUP, on, seal, f"Replay {number}", about, field, hint, place)

    def queue(self, line: QueueLine) -> Offer:
        """Return the form that pauses a queue, or ends its pause."""
        on, pause = names_path(line.now.namespace, line.now.queue), line.now.pause
        if pause is not None:
            return self._offer("resume", on, seen_of_pause(pause), "Resume queue", line.now.queue)
        hint = "Worker processes receive no new message of this queue; jobs that run go on."
        return self._offer("pause", on, seen_of_pause(None), "Pause queue", line.now.queue, "reason", hint)

    def worker(self, line: WorkerLine) -> Offer | None:
        """Return the form that lets a living worker process receive no messages, or receive messages again."""
        seen = line.now.seen
        if line.now.liveness is Liveness.GONE or seen.report is None:
            return None
        stage, on = seen.report.stage, names_path(seen.owner)
        if stage == QUIET:
            return self._offer("loud", on, stage, "Receive messages again", line.name)
        return self._offer("quiet", on, stage, "Receive no messages", line.name)

    def _offer(self, do: str, on: str, seen: str, label: str, about: str, field: str = "", hint: str = "") -> Offer:
        return Offer(do, on, self._seals.seal(do, on, seen, self._user), label, about, field, hint)


def seen_of_job(do: str, row: Row) -> str:
    """Return what a user sees of a job and must still be true: for a cancel, only the round and the mark."""
    seen = f"{row.id.round} {row.uid} {row.cancel_reason is not None}"
    return seen if do in ("cancel", "undo") else f"{seen} {row.state.value} {row.fence} {row.hop}"


def seen_of_pause(pause: Pause | None) -> str:
    """Return what a user sees of the pause of a queue."""
    return "" if pause is None else f"{pause.at!r} {pause.who}"
