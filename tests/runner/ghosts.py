"""Jobs whose owner and message are gone, and words for what became of them."""

from __future__ import annotations

import hashlib
from typing import Any

from steadyworker.delivery import KEY
from steadyworker.events import JobStarted, MessageLost
from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Moving, Row, State, Verdict
from steadyworker.outcome import Counters
from steadyworker.testing.harness import Harness
from steadyworker.testing.worker_process import NAMESPACE
from tests.runner.kit import QUEUE, events

BODY = b"{}"
DIGEST = hashlib.sha256(BODY).digest()
SOON = 89
"""Nearly `orphan_after`: a second less, because fake time is a sum of floats."""

FOUND_AFTER = 60 + 30 + SOON
"""Lease, margin and that: a job whose owner is lost is no orphan yet."""

MISSED = 60 + 30 + 5
"""A little more than lease and margin: a delivery after this shows that the queue goes on without the lost message."""

SEARCH_EVERY = 32
"""Time for one more look, and for that second."""


def message(**headers: str) -> KeptMessage:
    """A message as the ledger keeps it."""
    pairs = ",".join(f'"{name}":"{text}"' for name, text in headers.items())
    return KeptMessage(BODY, f'{{"headers":{{{pairs}}}}}'.encode())


def ghost(h: Harness, key: str = "ghost", *, queue: str = QUEUE, namespace: str = NAMESPACE, **claimed: Any) -> Row:
    """The row of a job whose owner and message are gone; nothing of it is in the broker."""
    values: dict[str, Any] = {"hop": 0, "body_sha256": DIGEST, "counters": Counters(), "message": message()} | claimed
    row = h.ledger.claim(Claimed(JobId(namespace, queue, key), None, "ghost/1", **values))
    assert row is not None
    return row


def moving(h: Harness, row: Row, target: Moving, reason: str = "as asked", delay: float = 0.0) -> None:
    """Its owner had decided on a settlement."""
    assert h.ledger.moving(row.token, Verdict(target, reason, Counters(attempts=1), delay))


def lose(h: Harness, key: str) -> None:
    """Lose the job's messages in the work queue."""
    theirs = [each for each in h.broker.messages(QUEUE) if each.headers.get(KEY) == key]
    assert theirs
    for each in theirs:
        h.broker.lose(each)


def lost(h: Harness, key: str = "ghost") -> list[MessageLost]:
    return events(h, key, MessageLost)


def fates(h: Harness, key: str = "ghost") -> list[str]:
    return [event.fate for event in lost(h, key)]


def state(h: Harness, key: str = "ghost", round_: int = 0) -> State | None:
    row = h.ledger.read(JobId(NAMESPACE, QUEUE, key, round_))
    return None if row is None else row.state


def starts(h: Harness, key: str = "ghost") -> list[JobStarted]:
    return events(h, key, JobStarted)
