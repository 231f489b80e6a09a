"""The page of one job: its state in a sentence, what it needs, its runs with the connection under them, and its message."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import islice

import msgspec
from msgspec import Struct, field

from steadyworker.dashboard.exported import ExportFacts, export_facts
from steadyworker.dashboard.job_line import JobLine, job_line, why_text
from steadyworker.dashboard.notices import cancel_text, need_text
from steadyworker.dashboard.pictures import ACKNOWLEDGED, DAY, Lanes, events_of, lanes_of
from steadyworker.dashboard.queues import Held, broker_text, held_queue
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.ledger.base import JobId, KeptMessage, Ledger, Moving, Row, State
from steadyworker.ledger.facts import CHECKPOINT_SHOWN, LOST, Action, Attempt, LinkEvent
from steadyworker.ledger.hang import longest_silence
from steadyworker.ledger.listing import ListedJob, Listing, Liveness, Need, Wanted
from steadyworker.ledger.need_words import (
    MAY_HANG,
    hang_clause,
    limit_clause,
    owner_clause,
    reason_text,
    remedy_clause,
    sentence,
)
from steadyworker.ledger.story_words import BECAUSE, ENDED, EVENTS
from steadyworker.names import normal_key
from steadyworker.outcome import JobState
from steadyworker.text.plain_text import plain_text
from steadyworker.text.redaction import REDACTED, is_secret_name, redact, without_secrets
from steadyworker.units import span

MOST_ROUNDS = 3
"""The number of rounds of a key whose runs the page shows; the last rounds."""

MOST_SHOWN = 4000
"""The largest number of characters of a payload, a header and a result."""

_WAITING = (JobState.INTERRUPTED, JobState.RETRYING, JobState.SCHEDULED)
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
_MOST_ACTIONS = 50
_MOST_HEADERS = 50
_LARGEST_JSON = 64 << 10

_EXACT = msgspec.json.Decoder(float_hook=Decimal)
_AS_NUMBERS = msgspec.json.Encoder(decimal_format="number")
"""With these, a number of a payload is shown as its sender wrote it."""

_LEVELS = {"done": "fine", "failed": "error", "rejected": "error", "crashed": "error", "lost": "error"}


class StoryBlock(Struct, frozen=True):
    """
    A part of the story: a run with the events during it, or an action of a person.

    Attributes:
        at: The time at which it begins.
        number: The number of the run, from 1; 0 for an action.
        attempt: The run; None for an action.
        because, outcome, level: Why the run began and how it ended, in words; the colour of its outcome.
        seconds: The length of the run; until now if it goes on, and until the last sign of life of a worker process that is gone.
        last_sign: This last sign; None for a run that goes on, or whose worker process recorded its end.
        error: Why the run ended so.
        events: The events of the connection during the run: time, words, cause.
        action: The action; None for a run.
    """

    at: float
    number: int = 0
    round: int = 0
    attempt: Attempt | None = None
    because: str = ""
    outcome: str = ""
    level: str = ""
    seconds: float = 0.0
    last_sign: float | None = None
    error: str = ""
    events: Sequence[tuple[float, str, str]] = ()
    action: Action | None = None


class DeadLetterLine(Struct, frozen=True):
    """
    A dead letter of the job, as the ledger knows it.

    Attributes:
        round: The round that ended so.
        at: The time of its end.
        reason: Why the job was given up.
        is_sent: True if the broker has confirmed the letter; False if a worker process has still to send it.
        kept: True if the ledger has the job's message, so that a replay needs no letter.
    """

    round: int
    at: float | None
    reason: str
    is_sent: bool
    kept: bool


class JobPage(Struct, frozen=True):
    """
    The content of the page.

    Attributes:
        line: The job as a row.
        sentence: Its state in a sentence.
        need: What it needs; empty if it needs nothing.
        hint: Whether it makes progress, and what a person can do; empty if `need` has this, or if nothing is to do.
        at: Its progress and the age of the progress; empty without one.
        facts: Names and values, for people.
        lanes: The picture of the runs and the connection under them; None without a run.
        story: Its runs and the actions of people, oldest first.
        earlier_rounds: The number of rounds that the page leaves out.
        result, payload: Their texts; None without one.
        headers: The headers of the message; None if the ledger has not kept it.
        size: The number of bytes of the payload.
        export: What the ledger has of its export; None without one.
        letters: Its dead letters, newest first.
        conflicts: The number of dead letters with its key and another payload.
        waiting_letters: The number of all dead letters of its queue, and the seconds since it was measured; None if unknown.
    """

    line: JobLine
    sentence: str
    need: str
    hint: str
    at: str
    facts: Sequence[tuple[str, str]]
    times: Sequence[tuple[str, float | None]]
    lanes: Lanes | None
    story: Sequence[StoryBlock]
    earlier_rounds: int
    result: str | None
    payload: str | None
    headers: Sequence[tuple[str, str]] | None
    size: int
    export: ExportFacts | None
    letters: Sequence[DeadLetterLine]
    conflicts: int
    waiting_letters: tuple[int, float] | None


class _KeptHeaders(Struct, frozen=True):
    """The facts of a kept message that the page shows."""

    headers: dict[str, str] = field(default_factory=dict)


def job_page(once: ReadOnce, now: float, wanted: JobId) -> JobPage | None:
    """Return the content of the page of a job's last round; None if the ledger does not have the job."""
    ledger = once.as_ledger
    which = Wanted(namespace=wanted.namespace, queue=wanted.queue, keys=(wanted.key,))
    rounds = list(islice(Listing(ledger, which, now).jobs(), MOST_ROUNDS))
    if not rounds:
        return None
    job = rounds[0]
    row = job.row
    first = max(0, row.id.round - MOST_ROUNDS + 1)
    runs = [
        (round_, attempt)
        for round_ in range(first, row.id.round + 1)
        for attempt in ledger.facts.attempts(JobId(row.id.namespace, row.id.queue, row.id.key, round_))
    ]
    actions = ledger.facts.actions(None, row.id.namespace, row.id.queue, row.id.key, limit=_MOST_ACTIONS)
    events = _events(once, runs, row.id.queue, now)
    signs = _last_signs(job, [run for _, run in runs], events, ledger, now)
    story = [*_run_blocks(runs, events, signs, now), *(StoryBlock(action.at, action=action) for action in actions)]
    result = ledger.facts.result(row.id) if row.state is State.DONE else None
    message = ledger.message(row.id)
    headers = None if message is None else headers_of(message)
    held = held_queue(ledger, row.id.namespace, row.id.queue) if row.job_state in _WAITING else Held()
    line = job_line(job, now, held=held.why)
    need = _need(job, now)
    letters = [letter for each in rounds if (letter := _letter(each.row, ledger)) is not None]
    return JobPage(
        line,
        sentence_of(job, line, now),
        need,
        "" if need else hint_of(job, line, held, now),
        f"{line.progress}, {span(line.silent)} ago" if line.progress and line.silent is not None else "",
        _facts(job, line, headers or ()),
        [("first seen", row.created_at), ("started", row.started_at), ("ended", row.ended_at)],
        lanes_of([run for _, run in runs], events, now, row.settled if row.state is State.DONE else "", signs)
        if runs
        else None,
        sorted(story, key=lambda block: (block.at, block.number)),
        first,
        None if result is None else shown(result),
        None if message is None else shown(message.body),
        headers,
        0 if message is None else len(message.body),
        export_facts(row.export_state, done=row.state is State.DONE),
        letters,
        row.conflicts,
        _waiting_letters(row, ledger) if letters or row.conflicts else None,
    )


def _need(job: ListedJob, now: float) -> str:
    """Return what a job needs, without what the sentence about its state has."""
    match job.need:
        case Need.DEAD:
            return sentence(remedy_clause(job))
        case Need.STUCK:
            return f"{sentence(limit_clause(job, now))} {sentence(remedy_clause(job))}"
        case _:
            return need_text(job, now)


def jobs_of_key(once: ReadOnce, namespace: str | None, key: str) -> Sequence[JobId]:
    """Return the jobs of this key, at most one of each queue, each in its last round."""
    key, ledger = normal_key(key), once.as_ledger
    pairs = [pair for pair in ledger.bindings() if key and namespace in (None, pair[0])]
    rounds = [(pair, ledger.last_round(*pair, key)) for pair in pairs]
    return [JobId(*pair, key, round_) for pair, round_ in rounds if round_ is not None]


def _letter(row: Row, ledger: Ledger) -> DeadLetterLine | None:
    """Return the dead letter of a round; None if the round has none."""
    if row.state is not State.DEAD and not (row.state is State.MOVING and row.target is Moving.DEAD):
        return None
    reason = redact(reason_text(row.reason, row.counters.attempts)) or "no reason is recorded"
    return DeadLetterLine(
        row.id.round, row.ended_at, reason, row.state is State.DEAD, ledger.message(row.id) is not None
    )


def _waiting_letters(row: Row, ledger: Ledger) -> tuple[int, float] | None:
    for measured in ledger.facts.depths():
        if (measured.namespace, measured.queue) == (row.id.namespace, row.id.queue) and measured.depth.dead is not None:
            return measured.depth.dead, measured.age
    return None


def sentence_of(job: ListedJob, line: JobLine, now: float) -> str:
    """Return the job's state in a sentence: what it does, and why."""
    row = job.row
    ended = f" {span(now - row.ended_at)} ago" if row.ended_at is not None else ""
    due = f"due in {span(row.due_in)}" if row.due_in else "which is due"
    reason = redact(row.reason)
    text = ""
    match row.job_state:
        case JobState.RUNNING:
            text = _running_sentence(job, line, now)
        case JobState.INTERRUPTED:
            text = "A stop of its worker process ended its run; the job waits for its message"
        case JobState.RETRYING:
            text = f"Waits for its retry, {due}; its last run: {reason}" if reason else f"Waits for its retry, {due}"
        case JobState.SCHEDULED:
            text = f"Waits for its next run after a snooze, {due}"
        case JobState.DONE:
            known = row.ended_at is not None and row.started_at is not None
            taken = span((row.ended_at or 0.0) - (row.started_at or 0.0))
            text = f"Done{ended}, after a run of {taken}" if known else f"Done{ended}"
        case JobState.CANCELLED:
            text = f"Cancelled{ended}: {redact(row.cancel_reason or row.reason)}"
        case JobState.DEAD:
            text = f"Failed for good{ended}: {why_text(job) or 'no reason is recorded'}"
        case JobState.CANCEL_WAITING:
            text = f"Cancelled before its first message came: {redact(row.cancel_reason or '')}"
    return f"{text.removesuffix('.')}."


def hint_of(job: ListedJob, line: JobLine, held: Held, now: float) -> str:
    """Return whether a job that needs no person makes progress, and what a person can do; `held` is that of its queue."""
    row = job.row
    queue, key = shlex.quote(row.id.queue), shlex.quote(row.id.key)
    if row.job_state is JobState.RUNNING:
        return _running_hint(job, line, now, f"{queue} {key}")
    text = ""
    if row.job_state in _WAITING:
        if job.pause is not None:
            text = f"Its queue is paused by {job.pause.who}: `steadyworker resume {queue}` ends the pause."
        elif held.stops:
            text = f"It cannot go on: {held.why}."
        elif row.job_state is JobState.INTERRUPTED:
            begin = "from its last checkpoint" if row.checkpoint is not None else "from the start"
            text = f"A worker process of its queue runs it with the next free slot, {begin}{held.added}."
        elif row.due_in:
            sooner = f"`steadyworker retry {queue} {key}` makes it due now"
            text = f"A worker process of its queue runs it at that time. {sooner}."
        else:
            text = f"It is due now: a worker process of its queue runs it with the next free slot{held.added}."
    return text


def _running_hint(job: ListedJob, line: JobLine, now: float, named: str) -> str:
    row, progress = job.row, job.progress
    if waits := cancel_text(job):
        return waits
    if row.cancel_reason is not None:
        return f"A cancel is on its way to the run: {redact(row.cancel_reason)}."
    if job.owner is None or job.owner.liveness is not Liveness.ALIVE:
        return ""
    left = limit_clause(job, now)
    if progress is not None and line.silent is not None and line.silent <= (line.elapsed or 0.0):
        longest = longest_silence(row.started_at, progress)
        if line.silent <= longest / 2:
            return sentence(f"it makes progress: the last was {span(line.silent)} ago", left)
        return f"No progress for {span(line.silent)}. {sentence(f'it may hang if there is none for {span(longest)}', left)}"
    nothing = "its run has reported no progress, so nothing shows whether it is stuck"
    return f"{sentence(nothing, left)} `steadyworker cancel {named}` ends it."


def _running_sentence(job: ListedJob, line: JobLine, now: float) -> str:
    place, owner = line.place or "an unknown host", job.owner
    if owner is not None and owner.liveness is not Liveness.ALIVE:
        state = "is gone" if owner.liveness is Liveness.GONE else "is silent"
        what = "" if job.need is Need.NO_WORKER else owner_clause(owner, paused=job.pause is not None)
        return "; ".join(filter(None, (f"Its worker process {place} {state}", what)))
    if job.need is Need.STUCK:
        return f"Runs for {span(line.elapsed)} on {place}, but {MAY_HANG}: {hang_clause(job, now)}"
    parts = [
        f"Runs for {span(line.elapsed)} on {place}",
        line.progress,
        f"{line.left} left" if line.left else "",
    ]
    detached = owner is not None and not owner.connected
    goes_on = "; its worker process has no connection to the broker, and the run goes on" if detached else ""
    return f"{', '.join(part for part in parts if part)}{goes_on}"


def shown(value: bytes) -> str:
    """Return a payload or a result for people: JSON is indented; secrets are removed, and a long text is cut."""
    text: str | None = None
    if len(value) <= _LARGEST_JSON:
        try:
            data = without_secrets(_EXACT.decode(value))
            text = msgspec.json.format(_AS_NUMBERS.encode(data), indent=2).decode()
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            text = None
    return plain_text(value if text is None else text, MOST_SHOWN)


def headers_of(message: KeptMessage) -> Sequence[tuple[str, str]]:
    """Return the names and values of a kept message's headers, sorted, without secrets."""
    try:
        headers: Mapping[str, str] = msgspec.json.decode(message.facts, type=_KeptHeaders).headers
    except msgspec.MsgspecError:
        return []
    return [
        (name, REDACTED if is_secret_name(name) else plain_text(text, MOST_SHOWN))
        for name, text in sorted(headers.items())[:_MOST_HEADERS]
    ]


def _events(once: ReadOnce, runs: Sequence[tuple[int, Attempt]], queue: str, now: float) -> Sequence[LinkEvent]:
    """Return the events of the worker processes that ran the job, by one read; the ledger keeps a day of them."""
    if not runs:
        return []
    owners = {attempt.owner for _, attempt in runs}
    since = max(now - DAY, min(attempt.started_at for _, attempt in runs))
    owner = next(iter(owners)) if len(owners) == 1 else None
    found = once.as_ledger.facts.link_events(since, owner=owner)
    return [event for event in found if event.owner in owners and event.queue == queue]


def _last_signs(
    job: ListedJob, runs: Sequence[Attempt], events: Sequence[LinkEvent], ledger: Ledger, now: float
) -> Mapping[tuple[int, float], float]:
    """
    Return the last sign of life for fence and start of each run whose worker process did not record its end.

    It is the last renewal or event of the worker process during the run, or the start of the run.
    """
    seen = {owner.owner: now - owner.seen_ago for owner in ledger.owners()}
    lives = job.row.state is State.RUNNING and job.owner is not None and job.owner.liveness is not Liveness.GONE
    signs = {}
    for run in runs:
        if run.outcome == LOST or (run.ended_at is None and not (lives and run.fence == job.row.fence)):
            end = now if run.ended_at is None else run.ended_at
            found = [min(seen.get(run.owner, run.started_at), end), *(each.at for each in events_of(run, events, now))]
            signs[run.fence, run.started_at] = max(run.started_at, *found)
    return signs


def _run_blocks(
    runs: Sequence[tuple[int, Attempt]],
    events: Sequence[LinkEvent],
    signs: Mapping[tuple[int, float], float],
    now: float,
) -> Sequence[StoryBlock]:
    blocks = []
    for number, (round_, attempt) in enumerate(runs, 1):
        sign = signs.get((attempt.fence, attempt.started_at))
        until = now if attempt.ended_at is None else attempt.ended_at
        outcome = "goes on" if attempt.ended_at is None else ENDED.get(attempt.outcome, attempt.outcome)
        if sign is not None and attempt.ended_at is None:
            outcome = "no end is recorded"
        found = [
            (event.at, EVENTS.get(event.event, event.event), redact(event.why))
            for event in events_of(attempt, events, now)
        ]
        because, semicolon, more = attempt.because.partition(";")
        error = ": ".join(part for part in (attempt.error_class, attempt.error_text) if part)
        reasons = [
            reason_text(attempt.reason),
            "" if (attempt.error_text or attempt.error_class) in attempt.reason else error,
        ]
        blocks.append(
            StoryBlock(
                attempt.started_at,
                number,
                round_,
                attempt,
                f"{BECAUSE.get(because, because)}{semicolon}{more}",
                outcome,
                "error" if sign is not None else _LEVELS.get(attempt.outcome, "" if attempt.outcome else "running"),
                (until if sign is None else sign) - attempt.started_at,
                sign,
                redact("; ".join(reason for reason in reasons if reason)),
                found,
            )
        )
    return blocks


def _facts(job: ListedJob, line: JobLine, headers: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    row = job.row
    traces = (_TRACE.fullmatch(text) for name, text in headers if name.lower() == "traceparent")
    used = (line.elapsed or 0.0) / line.limit if line.limit else 0.0
    named = (
        ("queue", row.id.queue),
        ("broker", broker_text(row.id.namespace)),
        ("round", str(row.id.round) if row.id.round else ""),
        ("tries", line.tries or ("rejected at once" if row.job_state is JobState.DEAD else "none failed")),
        ("worker process", ", ".join(text for text in (line.place, line.truth) if text)),
        ("time limit of a run", f"{span(line.limit)} ({used * 100:.0f} % used)" if line.limit else ""),
        ("last progress", f"{span(line.silent)} ago" if line.silent is not None else ""),
        ("last checkpoint", plain_text(row.checkpoint, CHECKPOINT_SHOWN) if row.checkpoint is not None else ""),
        ("reason", line.why),
        ("trace id", next((found[1] for found in traces if found is not None), "")),
        ("message", ACKNOWLEDGED[row.settled] if row.state is State.DONE else ""),
    )
    return [(name, text) for name, text in named if text]
