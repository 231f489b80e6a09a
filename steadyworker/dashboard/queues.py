"""The page of the queues: what waits in each, who consumes it, and how its runs of the last hour ended."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from steadyworker.backends.waiting import RECENT, QueueNow, queues_now, quiet_clause
from steadyworker.clock import Times
from steadyworker.dashboard.estimates import RunsOfQueue, runs_of
from steadyworker.dashboard.notices import LOUD_AGAIN, Notice, queue_notices
from steadyworker.dashboard.paging import ListPart, part_of
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.ledger.base import Ledger, Row, State
from steadyworker.ledger.facts import Minute
from steadyworker.ledger.hang import STUCK_AFTER
from steadyworker.ledger.lease import attended, registered_name
from steadyworker.ledger.listing import Liveness, liveness
from steadyworker.ledger.need_words import START_ONE
from steadyworker.text.redaction import redact
from steadyworker.units import count_text, span

HOUR = 3600.0

MOST_QUEUES = 50
"""The number of queues in a part of the list, so that a page has less than 100 kB; with more, those that need a person, and paused ones, come first."""

_EMBEDDED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_NUMBERS = ("ready", "oldest_age", "delayed", "unacked", "dead", "consumers")


class QueueLine(Struct, frozen=True):
    """
    A queue as a row.

    Attributes:
        now: The broker's numbers, the pause, and the worker processes.
        age: Seconds since a worker process measured the broker's numbers; None if no process did.
        slots, busy: The slots of the living worker processes, and those with a job; None if none of them reports slots.
        waits: What waits because all slots are busy; empty if nothing does.
        runs: The runs that ended within the last hour.
        unknown: For each number that is unknown, its name and the reason.
        notices: What the queue needs.
    """

    now: QueueNow
    age: float | None
    slots: int | None
    busy: int | None
    waits: str
    runs: RunsOfQueue
    unknown: Sequence[tuple[str, str]]
    notices: Sequence[Notice]


def broker_text(namespace: str) -> str:
    """Return the name of a broker for people: the name of an embedded one is an id that it gave itself."""
    return "embedded queue" if _EMBEDDED.fullmatch(namespace) else namespace


class QueuesPage(Struct, frozen=True):
    """The content of the page."""

    headline: str
    queues: ListPart[QueueLine]


def queues_page(once: ReadOnce, now: float, namespace: str | None, page: int = 1) -> QueuesPage:
    """Return the content of the page of the queues."""
    lines = queue_lines(once, now, namespace)
    troubled = sum(bool(line.notices) for line in lines)
    paused = sum(line.now.pause is not None for line in lines)
    if len(lines) > MOST_QUEUES:
        lines.sort(key=lambda line: (not line.notices, line.now.pause is None))
    return QueuesPage(_headline(len(lines), troubled, paused), part_of(lines, page, MOST_QUEUES))


def queue_lines(once: ReadOnce, now: float, namespace: str | None) -> list[QueueLine]:
    """Return all queues, by their names."""
    ledger = once.as_ledger
    names = sorted((pair for pair in ledger.bindings() if namespace in (None, pair[0])), key=lambda pair: pair[::-1])
    minutes: dict[tuple[str, str], list[Minute]] = {}
    for minute in ledger.facts.minutes(now - HOUR, namespace):
        minutes.setdefault((minute.namespace, minute.queue), []).append(minute)
    ages = {(each.namespace, each.queue): each.age for each in ledger.facts.depths()}
    slots = _slots(ledger)
    return [
        _line(each, ages.get(pair), slots.get(registered_name(*pair)), minutes.get(pair, []))
        for each in queues_now(ledger, names)
        for pair in [(each.namespace, each.queue)]
    ]


def _slots(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """
    Return the numbers of slots and of busy slots of each queue, by its registered name, of the living worker processes that report slots.

    A slot is busy with a job that the ledger holds for it: the number in a report is up to 15 s old.
    """
    held = {(each.owner, registered_name(each.namespace, each.queue)): each.jobs for each in ledger.held(STUCK_AFTER)}
    found: dict[str, tuple[int, int]] = {}
    for owner in ledger.owners():
        if owner.report is not None and liveness(owner, Times()) is not Liveness.GONE:
            for name, report in owner.report.queues.items():
                slots, busy = found.get(name, (0, 0))
                found[name] = slots + report.slots, busy + min(report.slots, held.get((owner.owner, name), 0))
    return found


class Held(Struct, frozen=True):
    """Why no job of a queue begins now, or a cancel waits, as a clause; `stops` is False if only its slots are busy."""

    why: str = ""
    stops: bool = False

    @property
    def added(self) -> str:
        """The clause, to add to a sentence."""
        return f"; {self.why}" if self.why else ""


def held_queue(ledger: Ledger, namespace: str, queue: str) -> Held:
    """Return why no job of a queue begins now: a pause, quiet worker processes, no worker process, or busy slots."""
    for pause in ledger.facts.pauses():
        if (pause.namespace, pause.queue) == (namespace, queue):
            return Held(f"{queue} is paused by {pause.who}{f': {pause.reason}' if pause.reason else ''}", stops=True)
    name = registered_name(namespace, queue)
    living = [each for each in ledger.owners() if liveness(each, Times()) is not Liveness.GONE]
    if quiet := quiet_clause(ledger, namespace, queue, living):
        return Held(f"{quiet}; {LOUD_AGAIN}", stops=True)
    if not any(name in attended(each.queues) for each in living):
        return Held(f"no worker process consumes {queue}: {START_ONE}", stops=True)
    return Held(_busy(_slots(ledger).get(name)))


def held_cancel(ledger: Ledger, row: Row) -> Held:
    """Return what the cancel of a run waits for, because its worker process is gone."""
    living = [each for each in ledger.owners() if liveness(each, Times()) is not Liveness.GONE]
    if row.state is not State.RUNNING or row.owner in {each.owner for each in living}:
        return Held()
    queue, name = row.id.queue, registered_name(row.id.namespace, row.id.queue)
    others = any(name in attended(each.queues) for each in living)
    when = f"another worker process of {queue} takes it over" if others else f"a worker process of {queue} starts"
    return Held(f"it ends when {when}", stops=True)


def _full(queue: QueueNow, slots: tuple[int, int] | None) -> str:
    """Return that all slots of a queue with ready messages are busy; otherwise an empty text."""
    return _busy(slots) if queue.depth.ready and queue.pause is None else ""


def _busy(slots: tuple[int, int] | None) -> str:
    if slots is None or slots[1] < slots[0] or not slots[0]:
        return ""
    return "its only slot is busy" if slots[0] == 1 else f"all its {slots[0]:,} slots are busy"


def waits_text(ledger: Ledger, queues: Sequence[QueueNow]) -> str:
    """Return how many messages are ready in these queues, the age of the oldest, and whether all slots of its queue are busy."""
    ready = sum(each.depth.ready or 0 for each in queues)
    if not ready:
        return ""
    age = max(each.age for each in queues if each.depth.ready)
    if age > RECENT:
        return f"{count_text(ready, 'message')} {'was' if ready == 1 else 'were'} ready {span(age)} ago"
    text = f"{count_text(ready, 'message')} {'is' if ready == 1 else 'are'} ready"
    oldest = max((each for each in queues if each.depth.ready), key=lambda each: each.depth.oldest_age or 0.0)
    if oldest.depth.oldest_age is None:
        return text
    held = held_queue(ledger, oldest.namespace, oldest.queue)
    where = f" in {oldest.queue}, because {held.why}" if held.why else ""
    return redact(f"{text}, the oldest for {span(oldest.depth.oldest_age)}{where}")


def _line(queue: QueueNow, age: float | None, slots: tuple[int, int] | None, minutes: Sequence[Minute]) -> QueueLine:
    unknown: dict[str, list[str]] = {}
    for number in _NUMBERS:
        if getattr(queue.depth, number) is None and number in queue.depth.why:
            unknown.setdefault(redact(queue.depth.why[number]), []).append(number.replace("_", " "))
    if age is not None and age > RECENT:
        unknown[f"the numbers are {span(age)} old, because no worker process has measured them since"] = ["now"]
    waits = ""
    if full := _full(queue, slots):
        oldest = f", the oldest for {span(queue.depth.oldest_age)}" if queue.depth.oldest_age is not None else ""
        waits = f"{count_text(queue.depth.ready or 0, 'message')} ready{oldest}; {full}."
    return QueueLine(
        queue,
        age,
        None if slots is None else slots[0],
        None if slots is None else slots[1],
        waits,
        runs_of(minutes),
        [(", ".join(numbers), why) for why, numbers in unknown.items()],
        list(queue_notices([queue])),
    )


def _headline(number: int, troubled: int, paused: int) -> str:
    if not number:
        return "No queue: no worker process has run with this ledger"
    parts = [f"{number:,} queue" if number == 1 else f"{number:,} queues"]
    if troubled:
        parts.append(f"{troubled:,} {'needs' if troubled == 1 else 'need'} a person")
    if paused:
        parts.append(f"{paused:,} paused")
    return ", ".join(parts)
