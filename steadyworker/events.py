"""
What happened, as frozen records for listeners; a listener observes and can change nothing.

A listener that raises is logged once and otherwise ignored: it never fails a job.
The names below are frozen like an API: the log's `event` field carries them in snake case.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct


class Event(Struct, frozen=True, kw_only=True):
    """The base of all: which job, where, and when (wall clock, seconds in UTC)."""

    key: str
    queue: str
    fence: int
    at: float


class JobStarted(Event, frozen=True, kw_only=True):
    """A run began."""

    attempt: int
    why: str


class JobEnded(Event, frozen=True, kw_only=True):
    """A run ended; its outcome is not yet in the ledger."""

    outcome: str
    reason: str
    seconds: float


class JobSettled(Event, frozen=True, kw_only=True):
    """A message is settled: the one canonical record of it."""

    settlement: str
    outcome: str
    reason: str
    attempts: int
    crashes: int
    losses: int
    interruptions: int
    settled: str
    seconds: float


class DeliveryLost(Event, frozen=True, kw_only=True):
    """The run's delivery is no longer valid; the run goes on."""

    cause: str


class Adopted(Event, frozen=True, kw_only=True):
    """A redelivery was bound to the run that is under way."""


class DeliveryDeferred(Event, frozen=True, kw_only=True):
    """A delivery was passed on, unrun: someone else runs its job."""

    delay: float


class DuplicateAcked(Event, frozen=True, kw_only=True):
    """A delivery was answered from the record, unrun."""

    state: str


class TakenOver(Event, frozen=True, kw_only=True):
    """A run whose owner is gone was taken over."""

    losses: int


class Fenced(Event, frozen=True, kw_only=True):
    """The ledger refused a write: the run was dropped."""

    write: str


class Checkpointed(Event, frozen=True, kw_only=True):
    """A checkpoint is durable."""

    size: int


Listener = Callable[[Event], None]
