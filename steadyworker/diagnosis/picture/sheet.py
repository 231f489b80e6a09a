"""
The parts of the page, in the order of a reader's questions, within the size of the page.

The first part explains what happened, and what to do.
Then all connections follow on one time line, and then each connection, first the connection of the verdict.
A part that does not fit is made again with fewer rows, or at last left out; the page gives the number of such parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from steadyworker.diagnosis.picture.lanes import lanes
from steadyworker.diagnosis.picture.markup import Markup, anchors, link, tag, together, weight
from steadyworker.diagnosis.picture.sequence import TraceTimes, flag_card, mark, sequence, table
from steadyworker.diagnosis.picture.story import Story
from steadyworker.diagnosis.picture.trace import Trace
from steadyworker.diagnosis.picture.verdict import TraceVerdict, end_of, verdict_of
from steadyworker.diagnosis.picture.words import lapse, many, sentence
from steadyworker.units import count_text, size_text

ROOM = 275_000
"""The bytes for all parts; the style, script and frame of the page need further bytes."""

_DETAIL = ((220, 240), (90, 160), (40, 80), (12, 40))
"""Pairs of rows and bins for a connection; the first pair that fits is used."""

_LONG = 120
"""If the verdict has more characters than this, its letters are smaller."""

_SMALLEST = 4_000
"""The smallest size of a connection on the page, in bytes."""

_FIRST_SHARE = 0.6
_MOST_LINES = 30
_TABLE_ROOM = 30_000
_TOP_ROOM = 75_000
_ORPHANS_ROOM = 30_000
_COUNTED = (
    *(("broker", "method", "Basic.Deliver"), ("broker", "frame", "MESSAGE"), ("client", "method", "Basic.Ack")),
    *(("client", "frame", "ACK"), ("client", "method", "Basic.Publish"), ("client", "frame", "SEND")),
    *(("client", "method", "Basic.Nack"), ("client", "method", "Basic.Reject"), ("client", "frame", "NACK")),
)


@dataclass(frozen=True, slots=True)
class Sheet:
    """The body of the page, and its title."""

    title: str
    body: Markup


def sheet_of(trace: Trace) -> Sheet:
    """Return the page of a trace without the page's frame."""
    verdict, times = verdict_of(trace), TraceTimes(trace.started)
    room = ROOM - _TOP_ROOM
    orphans = _orphans(trace, times)
    room -= weight(orphans)
    order = _order(trace, verdict)
    pictures: list[Markup] = []
    for story in order:
        share = room * _FIRST_SHARE if story is verdict.story and len(order) > 1 else room
        picture = _fitting(story, verdict, times, share) if share > _SMALLEST else None
        if picture:
            pictures.append(picture)
            room -= weight(picture)
    known = frozenset(anchors(together([orphans, *pictures])))
    left_out = len(order) - len(pictures)
    if left_out:
        note = (
            f"{count_text(left_out, 'connection')} without a picture, so that the page stays small enough for a ticket."
        )
        pictures.append(tag("p", note, class_="quiet rest"))
    top = [_top(trace, verdict, times, known), _all_connections(trace, verdict, known)]
    return Sheet(verdict.sentence, together([*top, orphans, *pictures, _foot(trace)]))


def _order(trace: Trace, verdict: TraceVerdict) -> list[Story]:
    """
    Return the connections that have a picture.

    The connection of the verdict is first, then come connections with flags, and then all other connections in their order.
    """
    stories = [story for story in trace.stories.values() if story.frames or story.flags or story.closes]
    return sorted(stories, key=lambda story: (story is not verdict.story, not story.flags, story.start))


def _fitting(story: Story, verdict: TraceVerdict, times: TraceTimes, room: float) -> Markup | None:
    for rows, bins in _DETAIL:
        part = _connection(story, verdict, times, rows, bins)
        if weight(part) <= room:
            return part
    return None


# --- What happened ----------------------------------------------------------------------------------------------------


def _top(trace: Trace, verdict: TraceVerdict, times: TraceTimes, known: frozenset[str]) -> Markup:
    parts = [
        tag("p", _about(trace), class_="about"),
        tag("h1", verdict.sentence, class_="long" if len(verdict.sentence) > _LONG else None),
    ]
    parts += [tag("p", text, class_="support") for text in verdict.support]
    flag = verdict.flag
    if flag is not None:
        boxes = []
        if flag.remedy:
            more = tag("p", "More about it: ", tag("code", f"steadyworker explain --id {flag.id}"), class_="quiet")
            boxes.append(tag("div", tag("h2", "What to do"), tag("p", sentence(flag.remedy)), more, class_="box"))
        if flag.evidence:
            jump = tag("p", link(f"flag{flag.number}", known, f"Look at the moment, {times.clock(flag.t)}"))
            boxes.append(tag("div", tag("h2", "What shows it"), table(flag.evidence), jump, class_="box"))
        parts.append(tag("div", *boxes, class_="boxes"))
        parts.extend(_others(verdict, times, known))
    parts.append(_facts(trace))
    return tag("header", *parts, class_=f"top {verdict.level}")


def _others(verdict: TraceVerdict, times: TraceTimes, known: frozenset[str]) -> Iterator[Markup]:
    if verdict.others:
        lines = [
            tag(
                "li",
                link(f"flag{flag.number}", known, mark(flag), sentence(flag.what) or flag.id),
                " ",
                tag("time", times.clock(flag.t)),
            )
            for flag in verdict.others
        ]
        rest = [tag("li", f"and {count_text(verdict.more, 'more kind')} of flags")] if verdict.more else []
        yield tag("h2", "Also noticed")
        yield tag("ul", *lines, *rest, class_="others")


def _about(trace: Trace) -> str:
    when = [trace.started.strftime("%Y-%m-%d %H:%M:%S %Z").strip()] if trace.started else []
    way = [f"client → {trace.listen or 'trace'} → broker {trace.to}"] if trace.to else []
    return " · ".join(["SteadyWorker trace", *when, lapse(trace.last - (trace.start or 0.0)), *way])


def _facts(trace: Trace) -> Markup:
    counts = Counter(trace.past)
    for story in trace.stories.values():
        counts.update(story.counts)
        counts["", "bytes", ""] += sum(lane.bytes for lane in story.lanes.values())
    size = counts.pop(("", "bytes", ""), 0)
    frames = sum(counts.values()) + trace.other_frames
    facts = [count_text(trace.connections, "connection"), count_text(frames, "frame")]
    facts += [many(*key, counts[key]) for key in _COUNTED if counts[key]]
    facts.append(size_text(size))
    flags = max(trace.flagged, sum(alike.count for _, alike in trace.all_flags()))
    facts.append(count_text(flags, "flag") if flags else "no flags")
    return tag("ul", *(tag("li", fact) for fact in facts), class_="facts")


# --- All connections --------------------------------------------------------------------------------------------------


def _all_connections(trace: Trace, verdict: TraceVerdict, known: frozenset[str]) -> Markup:
    """Return all connections on one time line, if there is more than one connection."""
    if trace.connections < 2:  # noqa: PLR2004 - a common time line needs two connections
        return together([])
    start, length = trace.start or 0.0, max(trace.last - (trace.start or 0.0), 0.001)
    lines: list[Markup] = []
    room = _TABLE_ROOM
    for story in sorted(_order(trace, verdict)[:_MOST_LINES], key=lambda story: story.start):
        line = _line(story, start, length, known)
        room -= weight(line)
        if room < 0:
            break
        lines.append(line)
    more = trace.connections - len(lines)
    rest = [tag("p", f"and {count_text(more, 'more connection')}", class_="quiet")] if more > 0 else []
    return tag("section", tag("h2", "All connections"), tag("ul", *lines, class_="lines"), *rest, class_="all")


def _line(story: Story, start: float, length: float, known: frozenset[str]) -> Markup:
    left = (story.start - start) / length * 100
    width = max((story.last - story.start) / length * 100, 0.5)
    flags = sorted(flag.t for alike in story.flags.values() for flag in alike.first)[:8]
    left = min(left, 99.5)
    bar = tag("rect", x=f"{left:.2f}%", y=5, width=f"{min(width, 100 - left):.2f}%", height=8, rx=2, class_="open")
    dots = [tag("circle", cx=f"{(t - start) / length * 100:.2f}%", cy=9, r=5, class_="dot") for t in flags]
    picture = tag("svg", bar, *dots, width="100%", height=18, aria_hidden="true", overflow="visible")
    facts = [lapse(story.last - story.start), count_text(story.frames, "frame"), _state(story)]
    if story.flagged:
        facts.append(count_text(story.flagged, "flag"))
    name = link(f"connection{_anchor(story)}", known, f"Connection {story.conn}")
    return tag(
        "li",
        tag("p", name, " ", tag("span", _end(story, "client"), class_="quiet")),
        picture,
        tag("p", ", ".join(facts), class_="quiet"),
    )


def _state(story: Story) -> str:
    ended = end_of(story)
    return f"closed by the {ended[1]}" if ended else "still open"


def _anchor(story: Story) -> str:
    return "".join(character for character in story.conn if character.isascii() and character.isalnum())[:40]


def _orphans(trace: Trace, times: TraceTimes) -> Markup:
    """Return the flags of connections without a picture."""
    cards: list[Markup] = []
    room = _ORPHANS_ROOM
    for alike in trace.flags.values():
        card = tag("div", flag_card(alike.first[0], alike, times), id=f"flag{alike.first[0].number}")
        room -= weight(card)
        if room < 0:
            break
        cards.append(card)
    if not trace.flags:
        return together([])
    more = len(trace.flags) - len(cards)
    rest = [tag("p", f"and {count_text(more, 'more kind')} of flags", class_="quiet")] if more else []
    return tag("section", tag("h2", "Noticed on connections without a picture"), *cards, *rest, class_="orphans")


# --- One connection ---------------------------------------------------------------------------------------------------


def _connection(story: Story, verdict: TraceVerdict, times: TraceTimes, rows: int, bins: int) -> Markup:
    anchor = _anchor(story)
    notes = [tag("p", note, class_="quiet") for note in _notes(story)]
    ends = tag(
        "div", tag("p", tag("b", "Client"), " ", _end(story, "client")), tag("p", tag("b", "Broker"), " ", _end(story, "broker")),
        class_="ends", aria_hidden="true",
    )  # fmt: skip
    listing = tag("div", ends, sequence(story, story.rows.shown(rows), times), class_="lanes-down")
    drawn = lanes(story, bins, frozenset(anchors(listing)))
    picture = tag("div", drawn, class_="wide", tabindex=0, role="region", aria_label="Time line")
    brief = tag("label", tag("input", type="checkbox", class_="brief"), " only flags, gaps, openings and ends")
    title = tag(
        "h2",
        f"Connection {story.conn}",
        tag("span", f" {_state(story)}, {lapse(story.last - story.start)}", class_="quiet"),
    )
    opened = story is verdict.story or bool(story.flags) or verdict.story is None
    frames = tag("details", tag("summary", tag("h3", "Frame by frame")), brief, listing, open=opened)
    return tag("section", title, *notes, picture, frames, class_="connection", id=f"connection{anchor}")


def _end(story: Story, side: str) -> str:
    lane = story.lanes[side]
    return " ".join(part for part in (lane.address, lane.software) if part)


def _notes(story: Story) -> Iterator[str]:
    """Yield facts about the whole connection that a reader should know."""
    if story.tuned:
        yield f"Both ends agreed: {story.tuned}."
    if story.tls:
        yield f"Encrypted by {story.tls}."
    if story.seen_as:
        yield f"In the broker's log, this connection comes from {story.seen_as}."
    waiting = story.pending.count
    if waiting and story.closed:
        them = "them" if waiting > 1 else "it"
        yield (
            f"{count_text(waiting, 'delivery', 'deliveries')} had no ack when the connection ended, "
            f"so the broker delivers {them} again."
        )
    if story.more_gaps:
        yield f"The {len(story.gaps)} longest gaps are drawn, of {len(story.gaps) + story.more_gaps:,}."
    if story.skipped:
        yield f"{count_text(story.skipped, 'event')} of this connection were counted, and not recorded."


def _foot(trace: Trace) -> Markup:
    trouble = f" The trace had trouble: {sentence(trace.trouble)}" if trace.trouble else ""
    return tag(
        "footer",
        tag(
            "p",
            "Bars are frames; a dot above them is a heartbeat; a hatched field is a time without a byte. ",
            "Times are those of the machine that made the trace. ",
            f"The bodies of messages, and secrets, are not in a trace.{trouble}",
        ),
        tag("p", "Made by ", tag("code", "steadyworker trace"), "."),
    )
