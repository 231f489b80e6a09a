"""
The log lines of events, one for each event.

The time of a line is the time of its event.
Each settled message has one line `job_settled`, the canonical line of its job.
The names in `LINES` are as stable as an API.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import structs

from steadyworker.events import (
    Adopted,
    Checkpointed,
    DeliveryDeferred,
    DeliveryLost,
    DeliveryRejected,
    DuplicateAcked,
    Event,
    Fenced,
    JobEnded,
    JobSettled,
    JobStarted,
    Listener,
    MessageLost,
    TakenOver,
)
from steadyworker.telemetry.logs import EXPLAIN, get_logger, write_line

LINES: Mapping[type[Event], tuple[str, int]] = {
    JobStarted: ("job_started", logging.INFO),
    JobEnded: ("job_ended", logging.DEBUG),
    JobSettled: ("job_settled", logging.INFO),
    DeliveryLost: ("delivery_lost", logging.WARNING),
    Adopted: ("adopted", logging.INFO),
    DeliveryDeferred: ("delivery_deferred", logging.INFO),
    DuplicateAcked: ("duplicate_acked", logging.INFO),
    DeliveryRejected: ("delivery_rejected", logging.ERROR),
    TakenOver: ("taken_over", logging.WARNING),
    MessageLost: ("message_lost", logging.WARNING),
    Fenced: ("fenced", logging.WARNING),
    Checkpointed: ("checkpointed", logging.DEBUG),
}
"""For each kind of Event, the `event` and the level of its line."""


_ENTRIES: Mapping[type[Event], str] = {
    Fenced: "steadyworker.fenced",
    MessageLost: "steadyworker.message-lost",
    TakenOver: "steadyworker.taken-over",
    JobSettled: "steadyworker.dead-letter",
}
"""The entry of the catalogue for each kind of event with only one cause; any other event names the entry of its cause."""


_FAILURES = ("failed", "crashed")
"""The outcomes after which a job comes again because something went wrong."""


def log_events() -> Listener:
    """
    Return a listener that writes one line for each event, at the level of its kind.

    The line of a settled message has one of these levels:

    | the message | level |
    |---|---|
    | becomes a dead letter, which an operator must examine | ERROR |
    | comes again after a failure or a crash | WARNING |
    | is acknowledged, released, or comes again as the handler asked | INFO |
    | becomes a dead letter because a person cancelled the job | INFO |
    """
    log = logging.getLogger("steadyworker")
    optional = {kind: _optional(kind) for kind in LINES}

    def listen(event: Event) -> None:
        kind = type(event)
        name, level = LINES[kind]
        if isinstance(event, JobSettled):
            level = _level(event)
        if log.isEnabledFor(level):
            fields = structs.asdict(event)
            at = fields.pop("at")
            for field in optional[kind]:  # the line leaves out an empty field that has a default
                if not fields[field]:
                    del fields[field]
            if _needs_entry(event, level) and EXPLAIN not in fields and (entry := _ENTRIES.get(kind)) is not None:
                fields[EXPLAIN] = entry
            write_line(log, level, name, at, fields)

    return listen


def _level(event: JobSettled) -> int:
    if event.settlement == "dead-letter":
        return logging.INFO if event.outcome == "cancelled" else logging.ERROR
    return logging.WARNING if event.settlement == "later" and event.outcome in _FAILURES else logging.INFO


def _needs_entry(event: Event, level: int) -> bool:
    """Return whether the line names the entry of its kind; of the settled messages, only dead letters have one."""
    return level >= (logging.ERROR if isinstance(event, JobSettled) else logging.WARNING)


def _optional(kind: type[Event]) -> tuple[str, ...]:
    return kind.__struct_fields__[len(kind.__struct_fields__) - len(kind.__struct_defaults__) :]


def fan_out(listeners: Sequence[Listener]) -> Listener:
    """Return one listener that calls all these listeners; if a listener raises, log this once and never call that listener again."""
    active = list(listeners)
    log = get_logger("steadyworker.events")

    def emit(event: Event) -> None:
        for listener in list(active):
            try:
                listener(event)
            except Exception:  # a user's listener can raise anything
                with suppress(ValueError):  # another runner's thread has removed the listener first
                    active.remove(listener)
                log.exception("listener_silenced", listener=repr(listener), explain="steadyworker.listener-silenced")

    return emit
