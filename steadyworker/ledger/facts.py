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

CHECKPOINT_BYTES = 400
"""The number of bytes of a checkpoint that an attempt keeps; it is twice what `Attempt` shows, so that no cut leaves half a secret."""

CHECKPOINT_SHOWN = 200
"""The number of characters of a checkpoint that `Attempt` shows."""

LOST = "lost"
"""The outcome of a run that ended without one, because its worker process died, froze, or lost the job."""


class Attempt(Struct, frozen=True):
    """
    One run of a job, from its claim to its end.

    Attributes:
        fence: The fencing token of the run.
        owner, host, pid, version: The worker process that ran the job: its owner id, its host, its process id, its version.
        slot: The number of the slot within the Worker.
        because: Why the run began: `new`, `replayed`, `retry`, `snoozed` or `interrupted` (a run before this one ended so),
            `taken over` (from a lost worker process) or `dropped` (by this worker process itself);
            then `; the broker lost its message` if the message came from the ledger.
        epoch: The number of the connection's epoch in which the message came; None if the message came from the ledger.
        started_at, ended_at: Wall clock, in seconds; `ended_at` is None while the run goes on.
        outcome: `done`, `failed`, `rejected`, `cancelled`, `snoozed`, `interrupted`, `crashed` or `lost`; empty while the run goes on.
        reason, error_class, error_text: Why the run ended so.
        traceback: The traceback of a failure, at most 16 KiB, without recognised secrets; empty without one.
        checkpoint_before, checkpoint_after: The checkpoint with which the run began and ended: JSON, cut at 200 characters.
        peak_memory: The peak of the child's resident memory during the run, in bytes, as the kernel counted it.
            If something else than SteadyWorker killed the child, this is the peak of the child's whole life.
            None in a thread slot, or if the kernel reports none.
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
