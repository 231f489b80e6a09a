"""
The story of a job: its runs, the events of the connection during them, and what people did, in the order of time; for people.

The runs, events and actions are facts of the ledger (`steadyworker.ledger.facts`), so a part of them can be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from steadyworker.ledger.base import JobId, Ledger
from steadyworker.ledger.facts import Action, Attempt, LinkEvent


class StoryKind(StrEnum):
    """The kind of an entry of a story."""

    BEGAN = "began"
    ENDED = "ended"
    LINK = "link"
    ACTION = "action"


class StoryEntry(Struct, frozen=True):
    """
    An entry of a story.

    Attributes:
        at: Wall clock, in seconds.
        kind: The kind of entry.
        number: The number of the run within the story, from 1; 0 for an action.
        round: The job's round; 0 for an action.
        attempt, event, action: The fact of this entry; two of these three attributes are None.
    """

    at: float
    kind: StoryKind
    number: int = 0
    round: int = 0
    attempt: Attempt | None = None
    event: LinkEvent | None = None
    action: Action | None = None


def story(ledger: Ledger, namespace: str, queue: str, key: str) -> Sequence[StoryEntry]:
    """Return the story of all rounds of a key, oldest first; raise LedgerUnavailable as every call of the ledger."""
    last = ledger.last_round(namespace, queue, key)
    runs = [
        (round_, attempt)
        for round_ in range(0 if last is None else last + 1)
        for attempt in ledger.facts.attempts(JobId(namespace, queue, key, round_))
    ]
    entries = [
        StoryEntry(action.at, StoryKind.ACTION, action=action)
        for action in ledger.facts.actions(namespace=namespace, queue=queue, key=key)
    ]
    for number, (round_, attempt) in enumerate(runs, 1):
        events = ledger.facts.link_events(attempt.started_at, owner=attempt.owner)
        entries += run_entries(number, round_, attempt, [event for event in events if event.queue == queue])
    return sorted(entries, key=lambda entry: entry.at)


def run_entries(number: int, round_: int, attempt: Attempt, events: Sequence[LinkEvent]) -> Iterator[StoryEntry]:
    """Yield the entries of one run: its begin, the events of its worker process until its end that concern it, and its end."""
    yield StoryEntry(attempt.started_at, StoryKind.BEGAN, number, round_, attempt=attempt)
    for event in events:
        during = event.at >= attempt.started_at and (attempt.ended_at is None or event.at <= attempt.ended_at)
        if during and event.fence in (None, attempt.fence):
            yield StoryEntry(event.at, StoryKind.LINK, number, round_, event=event)
    if attempt.ended_at is not None:
        yield StoryEntry(attempt.ended_at, StoryKind.ENDED, number, round_, attempt=attempt)
