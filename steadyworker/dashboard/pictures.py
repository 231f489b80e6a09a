"""
Pictures of connections: the last 24 hours of a worker process, and the connection under the runs of a job.

The pictures come from the events that worker processes record, and the ledger keeps these events for a day.
A process drops events while the ledger does not respond, so a time without knowledge is drawn as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from steadyworker.ledger.facts import Attempt, LinkEvent, QueueReport
from steadyworker.text.redaction import redact
from steadyworker.units import count_text, span

DAY = 86400.0
DAY_WIDTH, RUNS_WIDTH = 1440, 1000
"""The widths of a strip and of the lanes of a job, in their own units."""

_LEAST = 1.5
"""The least width of a segment, in thousandths of a picture, so that a short loss is visible."""

_CONNECTION = {
    "connected": "connected",
    "unblocked": "connected",
    "lost": "lost",
    "blocked": "blocked",
    "draining": "draining",
}
_CONNECTION_OF_RUN = {**_CONNECTION, "adopted": "connected"}
"""A new delivery proves a connection, also if no event of its begin was recorded."""

_DELIVERY = {"delivery-lost": "lost", "adopted": "holds its message"}
_BEFORE = {"lost": "connected", "blocked": "connected", "unblocked": "blocked", "draining": "connected"}
"""The state that the first event of a strip proves for the time before it."""

_MARK = 10.0
"""The width of the mark of the acknowledgement."""

ACKNOWLEDGED = {
    "confirmed": "acknowledged, and the broker has confirmed it",
    "sent": "acknowledged, but the broker has not confirmed it",
    "unknown": "unknown: no acknowledgement is recorded",
}
"""What the ledger knows of the acknowledgement of a job that is done, by `Row.settled`."""


class PictureSegment(Struct, frozen=True):
    """A part of a picture: its state, its place and width in units of the picture, and the same in words."""

    state: str
    x: float
    width: float
    text: str


class Strip(Struct, frozen=True):
    """The last 24 hours of one queue of a worker process, or the time since its start, the same in words, and what the process last reported."""

    queue: str
    report: QueueReport | None
    segments: Sequence[PictureSegment]
    text: str


class Lanes(Struct, frozen=True):
    """The runs of a job, the delivery that each holds, and the connection under it, from `began` to `ended`."""

    lanes: Mapping[str, Sequence[PictureSegment]]
    began: float
    ended: float
    text: str

    @property
    def unknown(self) -> bool:
        """Whether a part of the picture is unknown."""
        return any(each.state == "unknown" for segments in self.lanes.values() for each in segments)


def strip(
    queue: str,
    report: QueueReport | None,
    events: Sequence[LinkEvent],
    began: float,
    until: float,
    now: float,
    most: int,
) -> Strip:
    """
    Return the strip of a queue; without a report, the process is gone or silent.

    Args:
        queue: The queue.
        report: What a living process last reported of the queue, or None.
        events: The events of the worker process and this queue since `now - DAY`, oldest first.
        began: The start of the process.
        until: Its last sign of life.
        now: The right end of the strip; the left end is a day before, or the start of the process.
        most: The number of segments; earlier changes are not drawn.
    """
    first = max(began, now - DAY)
    found = [event for event in events if event.event in _CONNECTION]
    connected = None if report is None else report.connected
    state = {True: "connected", False: "lost", None: "unknown"}[connected]
    spans = list(_spans(_BEFORE.get(found[0].event, "unknown") if found else state, first, until, found, _CONNECTION))
    if found and connected is not None and connected != (spans[-1][0] != "lost"):
        spans.append(("unknown", until, until, "it now reports another state, and has recorded no event of this"))
    lost = [end - at for state, at, end, _ in spans if state == "lost"]
    text = f"{spans[-1][0]}, no loss recorded in {span(until - first)}"
    if lost:
        text = f"connection lost {count_text(len(lost), 'time')} in 24 hours, {span(sum(lost))} in all"
    if report is None:
        known = "no event is recorded" if spans[-1][0] == "unknown" else f"{spans[-1][0]} until then"
        text = "; ".join([f"last sign {span(now - until)} ago, {known}", *([text] if lost else [])])
    if len(spans) > most:
        dropped = len(spans) - most
        spans = [("unknown", first, spans[dropped][1], f"{count_text(dropped, 'change')} not drawn"), *spans[dropped:]]
    return Strip(queue, report, [_segment(each, first, now, DAY_WIDTH, "") for each in spans], text)


def lanes_of(
    runs: Sequence[Attempt],
    events: Sequence[LinkEvent],
    now: float,
    settled: str = "",
    signs: Mapping[tuple[int, float], float] | None = None,
) -> Lanes:
    """
    Return the picture of these runs, which is not empty; the events are those of the queue, oldest first.

    `settled` is `Row.settled` of a job that is done, for the mark of the acknowledgement at the end.
    `signs` has the last sign of life for fence and start of each run whose end no process recorded; all is unknown after it.
    Between two runs the delivery and the connection are unknown, because no process records them for the job.
    """
    runs = sorted(runs, key=lambda run: run.started_at)
    began = runs[0].started_at
    ended = max(now if run.ended_at is None else run.ended_at for run in runs)
    lanes: dict[str, list[PictureSegment]] = {"Run": [], "Delivery": [], "Connection": []}
    last = began
    for number, run in enumerate(runs, 1):
        end = now if run.ended_at is None else run.ended_at
        until = (signs or {}).get((run.fence, run.started_at), end)
        own = [event for event in events_of(run, events, now) if event.at <= until]
        known = run.epoch is not None
        gap = [("unknown", last, run.started_at, "no run")] if run.started_at - last > (ended - began) / 1000 else []
        spans = {
            "Run": [(run.outcome or "running", run.started_at, until, "")],
            "Delivery": [
                *gap,
                *_known_spans("holds its message" if known else "from the ledger", run, until, own, _DELIVERY, now),
            ],
            "Connection": [
                *gap,
                *_known_spans("connected" if known else "unknown", run, until, own, _CONNECTION_OF_RUN, now),
            ],
        }
        for name, found in spans.items():
            words = f"run {number}: " if name == "Run" else f"{name.lower()} "
            after = [("unknown", until, end, "no sign of its worker process")] if until < end else []
            lanes[name] += [_segment(each, began, ended, RUNS_WIDTH, words) for each in [*found, *after]]
        last = max(last, end)
    if settled:
        state = "unknown" if settled == "unknown" else "acknowledged"
        lanes["Delivery"].append(PictureSegment(state, RUNS_WIDTH - _MARK, _MARK, ACKNOWLEDGED[settled]))
    return Lanes(lanes, began, ended, count_text(len(runs), "run"))


def events_of(run: Attempt, events: Sequence[LinkEvent], now: float) -> Sequence[LinkEvent]:
    """Return the events of the run's worker process during the run, without those of other runs."""
    until = now if run.ended_at is None else run.ended_at
    return [
        event
        for event in events
        if event.owner == run.owner and run.started_at <= event.at <= until and event.fence in (None, run.fence)
    ]


_Span = tuple[str, float, float, str]


def _known_spans(
    state: str, run: Attempt, until: float, events: Sequence[LinkEvent], changes: Mapping[str, str], now: float
) -> Iterator[_Span]:
    """Yield the states of a run; what was more than a day ago is unknown."""
    known_from = min(now - DAY, until)
    if known_from <= run.started_at:
        yield from _spans(state, run.started_at, until, events, changes)
    else:
        yield "unknown", run.started_at, known_from, "the events of that time are deleted"
        yield from _spans("unknown", known_from, until, events, changes)


def _spans(
    state: str, at: float, until: float, events: Sequence[LinkEvent], changes: Mapping[str, str]
) -> Iterator[_Span]:
    """
    Yield each state with its begin, its end and its cause.

    If an event belongs to a later connection than the last one that was recorded, the state before it is unknown.
    """
    why, epoch = "", 0
    for event in events:
        if event.event not in changes or (
            event.event == "adopted" and state == changes["adopted"] != _DELIVERY["adopted"]
        ):
            continue
        if changes is not _DELIVERY and event.event != "connected" and 0 < epoch < event.epoch:
            state, why = "unknown", "an event of this time was not recorded"
        if event.at > at:
            yield state, at, event.at, why
        state, at, why, epoch = changes[event.event], max(at, event.at), redact(event.why), event.epoch
    yield state, at, max(at, until), why


def _segment(found: _Span, left: float, right: float, width: int, words: str) -> PictureSegment:
    state, at, end, why = found
    scale = width / max(right - left, 0.001)
    shown = max((end - at) * scale, _LEAST * width / 1000)
    text = f"{words}{state} for {span(end - at)}"
    x = min((at - left) * scale, width - shown)
    return PictureSegment(state, round(x, 1), round(shown, 1), f"{text}: {why}" if why else text)
