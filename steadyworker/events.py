"""
What happened, as frozen records for listeners; a listener observes and can change nothing.

A listener that raises is logged once and otherwise ignored: it never fails a job.
The names below are frozen like an API: the log's `event` field carries them in snake case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The base of all: which job, where, and when (wall clock, seconds in UTC)."""

    key: str
    queue: str
    fence: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(Event):
    """A run began."""

    attempt: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded(Event):
    """A run ended; its outcome is not yet in the ledger."""

    outcome: str
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettled(Event):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Adrift(Event):
    """The run's delivery is no longer valid; the run goes on."""

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(Event):
    """A redelivery was bound to the run that is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed(Event):
    """A delivery was passed on, unrun: someone else runs its job."""

    delay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Event):
    """A delivery was answered from the record, unrun."""

    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver(Event):
    """A run whose owner is gone was taken over."""

    losses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced(Event):
    """The ledger refused a write: the run was dropped."""

    write: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(Event):
    """A checkpoint is durable."""

    size: int


Listener = Callable[[Event], None]
