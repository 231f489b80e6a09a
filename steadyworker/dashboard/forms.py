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
from steadyworker.dashboard.chosen import Choice, actions_on, seen_of_job
from steadyworker.dashboard.queues import QueueLine
from steadyworker.dashboard.workers import WorkerLine
from steadyworker.ledger.base import Row
from steadyworker.ledger.facts import Pause
from steadyworker.ledger.fleet import QUIET_STAGE
from steadyworker.ledger.listing import Liveness
from steadyworker.text.plain_text import plain_text
from steadyworker.units import count_text

MOST_RESULTS, MOST_TARGETS = 500, 10_000
"""The numbers of results, and of targets of an action, that this process remembers."""

LONGEST_REASON = 300
"""The largest number of characters of a reason."""

MOST_UNTYPED = 50
"""The largest number of jobs that a form changes without a typed number."""


class Button(Struct, frozen=True):
    """The button of an action on jobs: its text for one job and for many, the fields of its form, and its explanation."""

    one: str
    many: str
    fields: Sequence[str] = ()
    hint: str = ""


_LATER = "The time until the job may run is such as 90s, 2h, 1d"
OF_A_JOB = {
    "cancel": Button(
        "Cancel",
        "Cancel {}",
        ("reason",),
        "A running job receives the cancel within 2 s. If its worker process is gone, it ends when another takes it over. The job becomes a dead letter; Replay continues it at its last checkpoint.",
    ),
    "undo": Button("Undo the cancel", "Undo the cancel of {}"),
    "retry": Button("Retry now", "Retry {} now"),
    "reschedule": Button("Reschedule", "Reschedule {}", ("delay",), f"{_LATER}."),
    "replay": Button(
        "Replay",
        "Replay {}",
        ("delay", "reason"),
        f"Runs the job again, from its last checkpoint. {_LATER}; empty for now.",
    ),
    "restart": Button(
        "Replay from the start",
        "Replay {} from the start",
        ("delay", "reason"),
        f"Deletes the checkpoint: the job starts from the beginning. {_LATER}; empty for now.",
    ),
    "drop": Button("Drop", "Drop {}", ("reason",), "Deletes the dead letter and the record of the job for good."),
}
ACTING = 2
"""The number of actions at the same time; others wait."""

OF_A_QUEUE = ("pause", "resume")
OF_A_WORKER = ("quiet", "loud")
STOP = "stop"
_MANY = "-all"
OF_MANY = {f"{do}{_MANY}": do for do in OF_A_JOB}
"""The actions on the jobs of a choice, each with its action on one job."""

_NAMES = {
    **dict.fromkeys(OF_A_JOB, 3),
    **dict.fromkeys(OF_MANY, 1),
    **dict.fromkeys(OF_A_QUEUE, 2),
    **dict.fromkeys((*OF_A_WORKER, STOP), 1),
}
"""For each action, the number of names in the address of its target."""


class Offer(Struct, frozen=True):
    """
    An action that a page offers.

    Attributes:
        do: The action.
        on: Its target, as `addresses` writes names.
        seal: The seal of the form.
        label: The text of the button.
        about: What the button acts on, for a screen reader.
        fields: The fields of the form: `reason`, `delay`, `number`.
        hint: The explanation of the action; with one, the button needs a second click.
    """

    do: str
    on: str
    seal: str
    label: str
    about: str
    fields: Sequence[str] = ()
    hint: str = ""

    @property
    def needed(self) -> Sequence[str]:
        """The fields that must not be empty."""
        return ("number", "delay") if self.do.startswith("reschedule") else ("number",)

    @property
    def id(self) -> str:
        """The id of the form on the page, the same after each refresh."""
        return f"{self.do}-{sha256(self.on.encode(errors='surrogatepass')).hexdigest()[:10]}"


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
        """The namespace of a job or a queue; None for another target."""
        return self.names[0] if self.do in OF_A_JOB or self.do in OF_A_QUEUE else None

    @property
    def path(self) -> str:
        """The address of the page after the action."""
        if self.do in OF_A_JOB:
            namespace, queue, key = self.names
            return "/failures" if self.do == "drop" else job_path(namespace, queue, key)
        if self.do in OF_MANY:
            return f"/chosen/{self.names[0]}"
        if self.do == STOP:
            return f"/doing/{self.names[0]}"
        return "/queues" if self.do in OF_A_QUEUE else "/workers"


class ActionResult(Struct, frozen=True):
    """The result of an action in words, and its colour: `fine`, `warning`, `error`, or empty while the action goes on."""

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

    def keep(self, name: str, result: ActionResult) -> None:
        """Keep a result for the page after it, in place of the one of this name."""
        with self._lock:
            self._results[name] = result
            while len(self._results) > MOST_RESULTS:
                self._results.popitem(last=False)

    def keep_first(self, name: str, result: ActionResult) -> bool:
        """Keep a result, unless there is one of this name; return whether it was kept."""
        with self._lock:
            return self._results.setdefault(name, result) is result

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
        on = names_path(row.id.namespace, row.id.queue, row.id.key)
        offers = []
        for do in actions_on(row, waits=self._waits(row)):
            button = OF_A_JOB[do]
            seen = seen_of_job(do, row)
            offers.append(self._offer(do, on, seen, button.one, row.id.key, button.fields, button.hint))
        return offers

    def choice(self, choice: Choice) -> Sequence[Offer]:
        """Return what the user can do with the jobs of a choice; each form names the number of jobs that allow it."""
        offers = []
        for many, do in OF_MANY.items():
            if not (number := len(choice.able(do))):
                continue
            button = OF_A_JOB[do]
            fields, hint = button.fields, button.hint
            if number > MOST_UNTYPED:
                fields, hint = (*fields, "number"), f"{hint} Type {number} to confirm the number."
            hint = f"{hint} What has changed since the choice is left out.".strip()
            label = button.many.format(count_text(number, "job"))
            offers.append(self._offer(many, choice.name, str(number), label, "", fields, hint))
        return offers

    def stop(self, name: str) -> Offer:
        """Return the form that stops an action on many jobs."""
        return self._offer(STOP, name, "", "Stop after the present job", "")

    def queue(self, line: QueueLine) -> Offer:
        """Return the form that pauses a queue, or ends its pause."""
        on, pause = names_path(line.now.namespace, line.now.queue), line.now.pause
        if pause is not None:
            return self._offer("resume", on, seen_of_pause(pause), "Resume queue", line.now.queue)
        hint = "Worker processes receive no new message of this queue; jobs that run go on."
        return self._offer("pause", on, seen_of_pause(None), "Pause queue", line.now.queue, ("reason",), hint)

    def worker(self, line: WorkerLine) -> Offer | None:
        """Return the form that lets a living worker process receive no messages, or receive messages again."""
        seen = line.now.seen
        if line.now.liveness is Liveness.GONE or seen.report is None:
            return None
        stage, on = seen.report.stage, names_path(seen.owner)
        if stage == QUIET_STAGE:
            return self._offer("loud", on, stage, "Start new jobs again", line.name)
        return self._offer("quiet", on, stage, "Start no new jobs", line.name)

    def _offer(
        self, do: str, on: str, seen: str, label: str, about: str, fields: Sequence[str] = (), hint: str = ""
    ) -> Offer:
        return Offer(do, on, self._seals.seal(do, on, seen, self._user), label, about, fields, hint)


def seen_of_pause(pause: Pause | None) -> str:
    """Return what a user sees of the pause of a queue."""
    return "" if pause is None else f"{pause.at!r} {pause.who}"
