"""
The list of jobs whose message is lost, with the command that helps each job; for people.

Worker processes run most such jobs by themselves, long before `OVERDUE` has passed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from steadyworker.ledger.base import Hindrance, Ledger, Orphan

OVERDUE = 3600.0
"""Seconds after which a job is overdue: its message did not arrive, or its worker process did not renew the lease."""

MOST = 100
"""The largest number of jobs of one queue that `lost` returns by default."""


def lost(ledger: Ledger, namespace: str, queue: str, *, stranded: bool, most: int = MOST) -> Sequence[Orphan]:
    """
    Return a queue's overdue jobs whose message did not come, the latest first, at most `most` of them.

    With `stranded`, return the jobs that no worker process runs by itself, otherwise the jobs that wait for a worker process.
    In a paused queue there are none, because its messages wait at the broker, and the ledger cannot know which of them is lost.
    """
    found = ledger.orphans(namespace, queue, OVERDUE, most, stranded=stranded)
    if found and any((pause.namespace, pause.queue) == (namespace, queue) for pause in ledger.facts.pauses()):
        return ()
    return found


def advice(orphan: Orphan) -> str:
    """Return the reason for which this job waits, and the command that starts it."""
    queue, key = shlex.quote(orphan.row.id.queue), shlex.quote(orphan.row.id.key)
    match orphan.hindrance:
        case Hindrance.OLD_RECORD:
            return (
                "no worker runs it by itself, because another ledger may have done it: "
                f"if not, and if its queue has no message of it, `steadyworker retry {queue} {key}`"
            )
        case Hindrance.NO_MESSAGE:
            return (
                "the ledger has not kept its message: "
                f"if its queue has no message of it, `steadyworker send {queue} … --key {key} --again`"
            )
        case None:
            return "a worker with a free slot runs it by itself"
