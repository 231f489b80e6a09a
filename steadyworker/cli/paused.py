"""The text of a paused queue, for every screen: who has paused it, since when and why, and the command that ends the pause."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from steadyworker.cli.output import ago
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.facts import Pause
from steadyworker.text.redaction import redact


def pause_parts(pause: Pause, now: float) -> Sequence[str]:
    """Return the clauses about a pause, whose subject is the queue."""
    by = f"paused by {pause.who} {ago(now - pause.at)}"
    parts = (by, pause.reason, f"`steadyworker resume {shlex.quote(pause.queue)}` ends the pause")
    return [part for part in parts if part]


def pause_texts(ledger: Ledger, now: float, namespace: str | None, queue: str | None = None) -> Iterator[str]:
    """Yield a sentence about each paused queue of this namespace and this name; None means every one."""
    for pause in ledger.facts.pauses():
        if namespace in (None, pause.namespace) and queue in (None, pause.queue):
            yield redact(f"{pause.queue} is {'; '.join(pause_parts(pause, now))}")
