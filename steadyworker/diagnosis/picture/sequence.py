"""
The frames of a connection from top to bottom: an arrow for each exact frame, and a band for each folded run.

The client's frames are at the left and point to the right; the broker's frames are at the right and point to the left.
A flag is shown at its time, with its evidence and its remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from steadyworker.diagnosis.picture.flags import Alike, Flag, Table
from steadyworker.diagnosis.picture.markup import Markup, tag, together
from steadyworker.diagnosis.picture.rows import FoldedRun, Moment, Rank, Row
from steadyworker.diagnosis.picture.story import Story
from steadyworker.diagnosis.picture.verdict import ending
from steadyworker.diagnosis.picture.words import MEANING, PARTS, lapse, listed, many, sentence
from steadyworker.units import count_text, size_text

_LATER = 1.0
"""If there are at least so many seconds between two rows, the page names the pause."""

_LONG = 1000.0
_LONGEST_MESSAGE = 6
"""The largest number of rows of a message: its frames, and flags between them."""

_LONGEST_LOGIN = 16
_LARGE = 200
"""The smallest size of a frame, in bytes, that the page always shows; near a flag, the page also shows smaller sizes."""

_CARRIERS = frozenset({"Basic.Publish", "Basic.Deliver", "Basic.GetOk", "Basic.Return"})
_PARTS = ("content", "body")
_COMMON = frozenset({"body", "delivery mode", "content type", "priority"})
"""The properties of messages that do not matter for a connection."""

_OTHER = {"client": "broker", "broker": "client"}
_KINDS = {"content": "message header", "body": "message body", "heartbeat": "heartbeat", "header": "protocol header"}


class TraceTimes:
    """The times of a trace for people: in seconds, and also by the clock of the trace's machine if the start is known."""

    def __init__(self, started: datetime | None) -> None:
        self._started = started

    def cells(self, t: float) -> Markup:
        """Return the first cells of a row, which contain a time."""
        clock = self.clock(t) if self._started else f"{t:.3f}"
        return together([tag("time", clock), tag("span", f"{t:.3f} s" if t < _LONG else f"{t:.1f} s", class_="s")])

    def clock(self, t: float) -> str:
        """Return a time by the clock, or in seconds since the trace began."""
        if self._started is None:
            return f"{t:.3f} s"
        try:
            return (self._started + timedelta(seconds=t)).strftime("%H:%M:%S.%f")[:-3]
        except OverflowError:
            return f"{t:.3f} s"


def sequence(story: Story, rows: list[Row], times: TraceTimes) -> Markup:
    """Return the rows of a connection as a list; an ordinary login is folded, and the reader can open it."""
    whole = list(_whole_messages(rows))
    login = _login(whole)
    if not login:
        return tag("ol", *_items(whole, story, times), class_="frames")
    inner = tag("ol", *_items(whole[:login], story, times), class_="frames")
    frames = sum(1 for row in whole[:login] if isinstance(row, Moment) and row.kind != "open")
    label = f"Login: {count_text(frames, 'frame')} in {lapse(whole[login - 1].t - whole[0].t)}"
    first = tag("summary", times.cells(whole[0].t), tag("div", tag("p", label)))
    folded = tag("li", tag("details", first, inner), class_="login")
    return tag("ol", folded, *_items(whole[login:], story, times, whole[login - 1]), class_="frames")


def _login(rows: list[Row]) -> int:
    """Return the number of rows of a login without a flag, gap or close; 0 if there is no such login."""
    for at, row in enumerate(rows[:_LONGEST_LOGIN]):
        if not isinstance(row, Moment) or row.kind in ("flag", "gap", "close"):
            return 0
        if row.name in ("Connection.OpenOk", "CONNECTED"):
            after = rows[at + 1 : at + 2]
            tuned = [each for each in after if isinstance(each, Moment) and each.kind == "tuned"]
            return at + 1 + len(tuned)
    return 0


def _items(rows: list[Row], story: Story, times: TraceTimes, before: Row | None = None) -> Iterator[Markup]:
    for at, row in enumerate(rows):
        end = before.end if isinstance(before, FoldedRun) else before.t if before else row.t
        if row.t - end >= _LATER and not (isinstance(row, Moment) and row.kind == "gap"):
            yield tag("li", f"{lapse(row.t - end)} later", class_="later")
        if isinstance(row, FoldedRun):
            yield _run(row, times)
        else:
            after = rows[at + 1] if at + 1 < len(rows) else None
            noticed = isinstance(after, Moment) and after.kind == "flag" and after.t == row.t
            yield _moment(row, story, times, noticed=noticed)
        before = row


def _whole_messages(rows: list[Row]) -> Iterator[Row]:
    """Yield the rows; a message that came in one piece becomes one row, and the flags inside the message follow."""
    at = 0
    while at < len(rows):
        row = rows[at]
        used, shown = 1, [row]
        if isinstance(row, Moment) and row.name in _CARRIERS:
            used, shown = _message(row, rows[at + 1 : at + _LONGEST_MESSAGE])
        yield from shown
        at += used


def _message(method: Moment, behind: list[Row]) -> tuple[int, list[Row]]:
    """Return the number of rows that belong to a message, and the rows to show; a whole message becomes one row."""
    parts: list[Moment] = []
    flags: list[Row] = []
    for row in behind:
        if isinstance(row, Moment) and row.kind == "flag":
            flags.append(row)
            continue
        if not (isinstance(row, Moment) and row.kind == _PARTS[len(parts)] and _same_place(row, method)):
            break
        parts.append(row)
        if len(parts) == len(_PARTS) or not parts[0].body_size:
            size = method.size + sum(part.size for part in parts)
            whole = replace(method, size=size, details=(*method.details, *_properties(parts[0])))
            return 1 + len(parts) + len(flags), [whole, *flags]
    return 1, [method]


def _same_place(part: Moment, method: Moment) -> bool:
    return part.side == method.side and part.channel == method.channel


def _properties(content: Moment) -> list[tuple[str, str]]:
    return [pair for pair in content.details if pair[0] not in _COMMON][:3]


def _moment(moment: Moment, story: Story, times: TraceTimes, *, noticed: bool) -> Markup:
    if moment.kind == "flag":
        return _flag(moment, story, times)
    band = _BANDS.get(moment.kind)
    if band is None:
        return _frame(moment, times, noticed=noticed)
    describe, style = band
    return _row(times, moment.t, tag("div", tag("p", describe(moment, story))), f"{style} {moment.side}")


def _row(times: TraceTimes, t: float, content: Markup, style: str, id_: str | None = None) -> Markup:
    return tag("li", times.cells(t), content, class_=style, id_=id_, data_t=f"{t:.3f}")


def _frame(moment: Moment, times: TraceTimes, *, noticed: bool) -> Markup:
    other = _OTHER.get(moment.side)
    name = moment.name or _KINDS.get(moment.kind, moment.kind)
    facts = [("channel", moment.channel)] if moment.channel not in ("", "0") else []
    facts += [pair for pair in moment.details if moment.kind != "frame" or pair[0] != "body"]
    telling = moment.size >= _LARGE or (moment.rank is Rank.NEIGHBOUR and moment.kind != "heartbeat")
    size = [tag("i", size_text(moment.size))] if telling and moment.size else []
    who = tag("span", f"{moment.side} to {other}: " if other else "", class_="unseen")
    meaning = MEANING.get(moment.name, "")
    if moment.kind == "header":
        again = dict(moment.details).get("second")
        facts = []
        meaning = "sends the protocol header again" if again else "sends the protocol header"
    content = [
        who,
        tag("b", name),
        *([tag("em", meaning)] if meaning else []),
        *(_fact(*fact) for fact in facts),
        *size,
    ]
    wrong = " wrong" if moment.name in ("Connection.Close", "Channel.Close", "ERROR") and not _orderly(moment) else ""
    style = f"frame {moment.side}{wrong}" + " beat" * (moment.kind == "heartbeat") + " noticed" * noticed
    return _row(times, moment.t, tag("div", tag("p", *_spaced(content))), style)


def _orderly(moment: Moment) -> bool:
    return dict(moment.details).get("code") == "200"


def _spaced(parts: list[Markup]) -> Iterator[Markup]:
    for at, part in enumerate(parts):
        yield part
        if at < len(parts) - 1:
            yield together([" "])


def _fact(label: str, value: str) -> Markup:
    return tag("i", f"{label} ", tag("u", value))


def _run(run: FoldedRun, times: TraceTimes) -> Markup:
    sides = []
    for side in ("client", "broker", "trace"):
        sent = _sent(run, side)
        if sent:
            sides.append(tag("p", tag("span", f"{side}: ", class_="unseen"), sent, class_=side))
    length = tag("p", f"in {lapse(run.end - run.start)}" if run.end > run.start else "at once", class_="length")
    return _row(times, run.start, tag("div", *sides, length), "run")


def _sent(run: FoldedRun, side: str) -> str:
    """Return a text of the frames that one end sent in a run, the most frequent first; the parts of messages are left out."""
    counts = [(number, kind, name) for (who, kind, name), number in run.counts.items() if who == side]
    carried = any(name in _CARRIERS for _, _, name in counts)
    counts = [(number, kind, name) for number, kind, name in counts if not (carried and kind in PARTS)]
    parts = [_many(side, kind, name, number) for number, kind, name in sorted(counts, key=lambda part: -part[0])]
    size = run.sizes.get(side, 0)
    return listed(parts) + (f" · {size_text(size)}" if size and parts else "")


def _many(side: str, kind: str, name: str, number: int) -> str:
    if kind == "flag":
        return f"{count_text(number, 'more flag')} ({name})"
    return many(side, kind, name, number)


def _plain(moment: Moment) -> str:
    return ", ".join(f"{name} {value}" for name, value in moment.details)


def _brackets(moment: Moment) -> str:
    details = _plain(moment)
    return f" ({details})" if details else ""


def _opened(moment: Moment, story: Story) -> str:
    return f"Connection {story.conn} opened{_brackets(moment)}"


def _tuned(_moment: Moment, story: Story) -> str:
    return f"Both ends agreed: {story.tuned}"


def _skipped(moment: Moment, _story: Story) -> str:
    facts = dict(moment.details)
    size = f" ({size_text(int(facts['bytes']))})" if facts.get("bytes", "").isdecimal() else ""
    number = f"{facts['count']} " if "count" in facts else ""
    return f"Not shown: {number}{facts.get('what', 'events')}{size}"


def _silent(moment: Moment, story: Story) -> str:
    gap = next((gap for gap in story.gaps if gap.end == moment.t and gap.side == moment.side), None)
    if gap is None:
        return f"No byte from the {moment.side}: {_plain(moment)}"
    allowed = f" {lapse(gap.allowed)} were allowed." if gap.allowed else ""
    return f"No byte from the {moment.side} for {lapse(gap.end - gap.start)}.{allowed}"


def _closed(moment: Moment, story: Story) -> str:
    at = next((at for at, close in enumerate(story.closes) if close.t == moment.t and close.who == moment.side), None)
    if at is None:
        return f"The connection was closed{_brackets(moment)}"
    clause = ending(story.closes[at], first=at == 0)
    return clause[0].upper() + clause[1:]


def _queued(moment: Moment, _story: Story) -> str:
    facts = dict(moment.details)
    size = facts.get("bytes", "")
    shown = size_text(int(size)) if size.isdecimal() else size
    since = f" for {facts['since']} s" if "since" in facts else ""
    side = facts.get("side", moment.side)
    return f"{shown} wait in the kernel{since}: the {side} does not read them"


_BANDS: dict[str, tuple[Callable[[Moment, Story], str], str]] = {
    "open": (_opened, "mark"),
    "tuned": (_tuned, "mark"),
    "skipped": (_skipped, "mark"),
    "close": (_closed, "mark closed"),
    "gap": (_silent, "silence gap"),
    "queue": (_queued, "silence"),
}


def _flag(moment: Moment, story: Story, times: TraceTimes) -> Markup:
    alike = story.flags.get(moment.name, Alike())
    flag = next((flag for flag in alike.first if flag.number == moment.number), None)
    if flag is None:
        return _row(times, moment.t, tag("div", tag("p", tag("b", f"Again {moment.name}"))), "again")
    card = flag_card(flag, alike, times, whole=flag is alike.first[0])
    return _row(times, moment.t, card, f"flag {flag.level}", f"flag{flag.number}")


def flag_card(flag: Flag, alike: Alike, times: TraceTimes, *, whole: bool = True) -> Markup:
    """Return a flag as a card; without `whole`, the remedy is left out, because an earlier card of this id has the remedy."""
    head = tag("p", mark(flag), tag("strong", sentence(flag.what) or flag.id))
    parts = [head]
    if flag.evidence:
        parts.append(table(flag.evidence))
    if whole:
        if flag.remedy:
            parts.append(tag("p", tag("b", "What to do: "), sentence(flag.remedy), class_="remedy"))
        again = f" · noticed {alike.count:,} times, last at {times.clock(alike.last)}" if alike.count > 1 else ""
        parts.append(tag("p", flag.level, " · ", tag("code", flag.id), again, class_="quiet"))
    return tag("div", *parts, class_=f"card {flag.level}")


def mark(flag: Flag) -> Markup:
    """Return the number of a flag as the time line shows it."""
    return tag("span", str(flag.number), class_=f"number {flag.level}")


def _table_row(row: tuple[str, ...]) -> Markup:
    """Return a row of a table; if all cells between the first and the last are empty, the last cell spans them."""
    if len(row) > 2 and row[0] and row[-1] and not any(row[1:-1]):  # noqa: PLR2004 - a row has two ends
        return tag("tr", tag("td", row[0]), tag("td", tag("b", row[-1]), colspan=len(row) - 1))
    return tag("tr", *(tag("td", cell) for cell in row))


def table(evidence: Table) -> Markup:
    """Return evidence as a table."""
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in evidence.head)))
    body = [_table_row(row) for row in evidence.rows]
    more = [tag("tr", tag("td", f"and {evidence.more:,} more"))] if evidence.more > 0 else []
    return tag("div", tag("table", head, tag("tbody", *body, *more)), class_="evidence")
