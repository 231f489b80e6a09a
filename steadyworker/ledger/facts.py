"""
What the ledger records for people: the attempts of a job.

None of this decides anything: the decision table (`steadyworker.ledger.rules`) reads only a job's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from steadyworker.ledger.job_id import JobId

MOST_ATTEMPTS = 20
"""The largest number of runs that the ledger keeps of one job; a claim deletes the oldest."""


class Attempt(Struct, frozen=True):
    """
    One run of a job, from its claim to its end.

    Attributes:
        fence: The fencing token of the run.
        owner, host, pid, version: The worker process that ran the job: its owner id, its host, its process id, its version.
        slot: The number of the slot within the Worker.
        because: Why the run began: `new`, `taken over`, or `after` with the state before the claim.
        epoch: The number of the connection's epoch in which the message came; None if the message came from the ledger.
        started_at, ended_at: Wall clock, in seconds; `ended_at` is None while the run goes on.
        outcome: `done`, `failed`, `rejected`, `snoozed`, `interrupted`, `crashed` or `lost`; empty while the run goes on.
        reason, error_class, error_text: Why the run ended so.
        traceback: The traceback of a failure, at most 16 KiB, without recognised secrets; empty without one.
        checkpoint_before, checkpoint_after: The checkpoint with which the run began and ended: JSON, cut at 200 characters.
        peak_memory: The peak of the run's resident memory in bytes, as the child's kernel counted it; None in a thread slot.
    """

    fence: int
    owner: str
    host: str
    pid: int
    slot: int
    version: str
    because: str
    epoch: int | None
    started_at: float
    ended_at: float | None = None
    outcome: str = ""
    reason: str = ""
    error_class: str = ""
    error_text: str = ""
    traceback: str = ""
    checkpoint_before: str | None = None
    checkpoint_after: str | None = None
    peak_memory: int | None = None


class Facts(Protocol):
    """The facts that a ledger keeps for people; every call can raise LedgerUnavailable."""

    def attempts(self, id: JobId) -> Sequence[Attempt]:
        """
        Return the last runs of a job, the oldest first, at most `MOST_ATTEMPTS`.

        They go with the job's row; a run that a worker process of an earlier version began is missing.
        """
        ...
