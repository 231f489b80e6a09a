"""
The code that the two SQL ledgers share: parameters of statements, values made of results, and findings.

The statements themselves differ, because each database has its own SQL, clocks and locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from steadyworker.errors import ConfigError, Finding, NoLedger, OlderLedger
from steadyworker.findings import FindingTexts
from steadyworker.ledger import hang, retention
from steadyworker.ledger.base import (
    Claimed,
    Ending,
    Hindrance,
    JobFilter,
    JobId,
    Need,
    NeedsOf,
    Orders,
    Orphan,
    Progress,
    Renewal,
    Row,
    State,
    Token,
    Verdict,
)
from steadyworker.ledger.facts import LOST, Attempt, Pause
from steadyworker.ledger.facts_rows import safe_checkpoint
from steadyworker.ledger.owners import host_of
from steadyworker.outcome import SNOOZED, Counters
from steadyworker.units import size_text

_finding = FindingTexts("steadyworker.ledger")

PAGE_ROWS = 200
"""The number of rows that a listing reads at a time, so that a long listing delays no other call."""

_PURGED_ROWS = 500
"""The largest number of rows that one statement of a purge deletes, so that no claim waits long."""

Values = dict[str, Any]
"""Named parameters of a statement; a statement may use only some of them."""

ENDED = frozenset((State.DONE, State.DEAD))
"""The states of a job that has ended."""

KEEP: Values = {
    "keep_moved": retention.MOVED,
    "keep_mark": retention.CANCEL_MARK,
    "keep_owners": retention.OWNERS,
    "absence": retention.ABSENCE,
}
"""The times of `steadyworker.ledger.retention`, in seconds."""


class Retentions:
    """The times for which one ledger object keeps the ended jobs of each queue."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], retention.Retention] = {}

    def set(self, namespace: str, queue: str, times: retention.Retention) -> None:
        """Keep the jobs of this queue for these times."""
        self._times[namespace, queue] = times

    def of(self, id: JobId) -> retention.Retention:
        """Return the times for a job."""
        return self._times.get((id.namespace, id.queue), retention.USUAL)

    def unconfirmed(self, id: JobId) -> float:
        """Return the time for a `done` row whose settlement is not confirmed: `DONE`, or the Worker's `done` if it is longer."""
        return max(retention.DONE, self.of(id).done)

    def attempts(self) -> Iterator[Values]:
        """Yield, for each queue, the parameters of the statement that deletes old attempts."""
        for (namespace, queue), times in self._times.items():
            yield {"namespace": namespace, "queue": queue, "keep_attempts": times.attempts}


def dead_values(times: retention.Retention) -> Values:
    """Return the parameters for the time that a dead job's row stays."""
    return {"keep_dead": times.dead, "keep_cancelled": times.cancelled}


def pk_values(id: JobId) -> Values:
    """Return the parameters for the primary key of a job's row."""
    return {"namespace": id.namespace, "queue": id.queue, "key": id.key, "round": id.round}


def mine_values(token: Token) -> Values:
    """Return the parameters that identify the row of a token; after the end of the token's claim, they match no row."""
    return pk_values(token.id) | {"uid": token.uid, "fence": token.fence, "owner": token.owner}


def seen_values(row: Row) -> Values:
    """Return the parameters that identify this row; after a later claim or change of state, they match no row."""
    return pk_values(row.id) | {"uid": row.uid, "fence": row.fence, "state": row.state.value}


def claim_values(claim: Claimed, worker: str) -> Values:
    """Return the values of a claim, without fence, lease and message; `worker` is the name of the process that claims."""
    values = {"owner": claim.owner, "hop": claim.hop, "body_sha256": claim.body_sha256, "worker": worker}
    return counters_values(claim.counters) | values


def verdict_values(verdict: Verdict, storable: Callable[[str], str]) -> Values:
    """Return the values of a settlement, without the time of its retry; `storable` escapes text that the database refuses."""
    return counters_values(verdict.counters) | {
        "target": verdict.target.value,
        "delay": verdict.delay,
        "reason": storable(verdict.reason),
        "error_class": storable(verdict.error_class),
        "error_text": storable(verdict.error_text),
        "keep_checkpoint": verdict.keep_checkpoint,
        "owes_call": verdict.owes_call,
    }


def counters_values(counters: Counters) -> Values:
    """Return the four counters and the time of the first failure."""
    return {
        "attempts": counters.attempts,
        "crashes": counters.crashes,
        "losses": counters.losses,
        "interruptions": counters.interruptions,
        "first_failed_at": counters.first_failed_at,
    }


def progress_values(progress: Progress, storable: Callable[[str], str]) -> Values:
    """Return the values of a report of progress; `storable` escapes text that the database refuses."""
    return {"done": progress.done, "total": progress.total, "note": storable(progress.note), "at": progress.at}


def progress_of(
    done: float | None, total: float | None, note: str, at: float, before_at: float | None, before_done: float | None
) -> Progress:
    """Return the progress in these columns."""
    before = None if before_at is None or before_done is None else (before_at, before_done)
    return Progress(done, total, note, at, before)


def orders_of(found: Sequence[Sequence[Any]]) -> Orders:
    """Return the orders in these rows, each with its kind and five values."""
    cancels = {uid: reason for kind, uid, reason, *_ in found if kind == "cancel"}
    pauses = tuple(Pause(*values) for kind, *values in found if kind == "pause")
    return Orders(cancels, pauses, commands=any(kind == "command" for kind, *_ in found))


def filter_values(which: JobFilter) -> Values:
    """Return the conditions of a listing, without the states, because the two databases need different forms for states."""
    names = ("namespace", "queue", "kept", "last", "snoozed", "since", "grep")
    return {name: getattr(which, name) for name in names} | {"snooze": SNOOZED}


SILENCE: Values = {
    "many_done": hang.MANY_DONE,
    "usual_steps": hang.USUAL_STEPS,
    "soonest": hang.SOONEST,
    "samples_apart": hang.SAMPLES_APART,
}
"""The numbers of `ledger.hang` for the statements that search the runs that may hang."""


def needs_values(which: NeedsOf) -> Values:
    """Return the conditions of a list of jobs that need a person; an owner with a queue is one text, with line feeds."""
    values = asdict(which)
    return values | SILENCE | {"alone": ["\n".join(each) for each in which.alone]}


_NEEDS = tuple(Need)


def need_of(number: int | None) -> Need | None:
    """Return the need with this number in a statement."""
    return None if number is None else _NEEDS[number]


def unfinished(which: JobFilter) -> bool:
    """Return whether only jobs that are neither done nor dead can fit these conditions."""
    return not ENDED & frozenset(State if which.states is None else which.states)


def attempt_of(found: Sequence[Any]) -> Attempt:
    """
    Return the run of a row, whose columns are those of `Attempt` without the host, and then `later`; a checkpoint is bytes.

    `later` is the start of the job's last claim if that claim came after this run, otherwise None.
    A worker process of an earlier version that claims a job does not write the end of the run before.
    So a run without an end has ended as lost, at the latest at the later claim.
    """
    fence, owner, *others, before, after, peak_memory, later = found
    values = [fence, owner, host_of(owner), *others, safe_checkpoint(before), safe_checkpoint(after), peak_memory]
    run = Attempt(*values)
    return run if run.outcome or later is None else replace(run, outcome=LOST, ended_at=later)


def kept_checkpoint(checkpoint: bytes | None) -> bytes | None:
    """Return a checkpoint as the row of an attempt has it: without secrets, because the row stays when the job goes on."""
    return (safe_checkpoint(checkpoint) or "").encode() if checkpoint is not None else None


def began_values(claim: Claimed, pid: int, version: str) -> Values:
    """Return the values of a new attempt; without `claim.run`, all are None."""
    run = claim.run
    if run is None:
        return dict.fromkeys(("pid", "slot", "version", "because", "epoch", "before"))
    before = kept_checkpoint(None if claim.seen is None else claim.seen.checkpoint)
    values = {"pid": pid, "slot": run.slot, "version": version, "because": run.because, "epoch": run.epoch}
    return values | {"before": before}


def ending_values(end: Ending | None, storable: Callable[[str], str]) -> Values:
    """Return the values of the end of an attempt; without an end, all are None."""
    if end is None:
        return dict.fromkeys(("outcome", "why", "raised", "raised_text", "traceback", "peak_memory", "left"))
    return {
        "outcome": end.outcome,
        "why": storable(end.reason),
        "raised": storable(end.error_class),
        "raised_text": storable(end.error_text),
        "traceback": storable(end.traceback),
        "peak_memory": end.peak_memory,
        "left": kept_checkpoint(end.checkpoint),
    }


def permit(found: Sequence[Sequence[Any]]) -> Renewal:
    """
    Return the reply to `may_commit`.

    `found` is empty if the ledger refused the call; otherwise `found` has one row, whose only column is the job's cancel mark.
    """
    reason = found[0][0] if found else None
    return Renewal(bool(found) and reason is None, reason)


def orphan(row: Row, unseen_for: float, hindrance: str | None) -> Orphan:
    """Return an orphan; `hindrance` is the value of a Hindrance, or None."""
    return Orphan(row, unseen_for, None if hindrance is None else Hindrance(hindrance))


def never_dead(_owner: str) -> bool:
    """Return False instead of checking for a proof of death, because the owner of a new claim lives."""
    return False


def purged(delete: Callable[[int], int]) -> int:
    """Call `delete` with `_PURGED_ROWS` until it deletes fewer rows; return the number of all deleted rows."""
    total = 0
    while True:
        batch = delete(_PURGED_ROWS)
        total += batch
        if batch < _PURGED_ROWS:
            return total


def no_ledger_finding(error: NoLedger) -> Finding:
    """Return the finding of `check` on a ledger that the first worker process will create or migrate."""
    return _finding("ledger.older" if isinstance(error, OlderLedger) else "ledger.missing", error=error)


def too_large_finding(path: Path, limit: int, size: int) -> Finding:
    """Return the finding for a ledger that stays above its limit."""
    return _finding("ledger.too-large", path=path, limit=size_text(limit), size=size_text(size))


def unusable_finding(error: ConfigError) -> Finding:
    """Return the finding for a ledger that cannot be opened."""
    return _finding("ledger.unusable", error=error)
