"""The conclusion from a trace, in a few sentences for a reader who has never seen a trace."""

from __future__ import annotations

import re
from dataclasses import dataclass

from steadyworker.diagnosis.picture.event_fields import SIDES
from steadyworker.diagnosis.picture.flags import Alike, Flag
from steadyworker.diagnosis.picture.story import ConnectionClose, Reason, Story
from steadyworker.diagnosis.picture.trace import Trace
from steadyworker.diagnosis.picture.words import lapse, sentence
from steadyworker.units import count_text

_SHORT = 110
"""The largest length, in characters, of a sentence that can get a further clause."""

_SHORTEST = 25
_BREAK = re.compile(r"(?:: |\. )(?=\S)")
_CLAUSE = re.compile(r", (?:and|because|although|so|which|but) |[;!?]")
_SAME = re.compile(r"^(The (client|broker) .*), and the \2 closed")
_AT_ONCE = 0.005
"""The seconds within which a close is "at once"; an end that closes so soon has decided earlier to close."""

_MOST_OTHERS = 4
_ORDERLY = "200"
"""The reply code of an end without an error."""


@dataclass(frozen=True, slots=True)
class TraceVerdict:
    """The verdict: its sentence, the sentences that support it, the flag that proves it, and the flag's connection."""

    sentence: str
    support: tuple[str, ...]
    level: str
    flag: Flag | None = None
    story: Story | None = None
    others: tuple[Flag, ...] = ()
    more: int = 0


def verdict_of(trace: Trace) -> TraceVerdict:
    """Return the verdict: the most likely cause of failure, or the fact that nothing was noticed."""
    ranked = sorted(trace.all_flags(), key=lambda pair: _rank(pair[1]))
    if not ranked:
        return _nothing(trace)
    story, alike = ranked[0]
    flag = alike.worst
    head, rest = _halves(flag.what.strip() or f"The trace noticed {flag.id}.")
    end = None if "closed the connection" in flag.what else _end_after(story, flag)
    if end and end[0] and _fits_a_clause(head):
        headline = f"{head}, {end[0]}."
        headline = _SAME.sub(r"\1 and closed", headline)
    else:
        headline, rest = sentence(head), [*rest, *([end[1]] if end else [])]
    support = [*rest, *_reasons(story, flag), *_again(ranked, alike)]
    others = _others(ranked, flag.id)
    level = "error" if flag.is_error else "warning"
    return TraceVerdict(
        headline, tuple(support), level, flag, story, tuple(others[:_MOST_OTHERS]), len(others[_MOST_OTHERS:])
    )


def _halves(what: str) -> tuple[str, list[str]]:
    """Return the part of a text before the first colon or sentence end, and the rest."""
    found = _BREAK.search(what, _SHORTEST)
    if not found:
        return what.rstrip("."), []
    rest = what[found.end() :].strip()
    return what[: found.start()], [sentence(rest[0].upper() + rest[1:])]


def _fits_a_clause(head: str) -> bool:
    return len(head) <= _SHORT and not _CLAUSE.search(head)


def _rank(alike: Alike) -> tuple[bool, bool, float]:
    """Return a sort key: errors before warnings, causes before consequences, and earlier flags before later flags."""
    flag = alike.worst
    return not flag.is_error, not flag.is_cause, flag.t


def _end_after(story: Story | None, flag: Flag) -> tuple[str, str] | None:
    """Return the time from a flag to the end of the connection, as a clause (or an empty text) and as a sentence."""
    if story is None:
        return None
    ended = end_of(story)
    if ended is None:
        if story.last - flag.t < _AT_ONCE:
            return None
        return "", f"The connection was still open {lapse(story.last - flag.t)} later, when the trace ended."
    t, who = ended
    if t < flag.t:
        return None
    if t - flag.t < _AT_ONCE:
        return f"and the {who} closed the connection at once", f"The {who} closed the connection at once."
    wait = lapse(t - flag.t)
    return f"{wait} before the {who} closed the connection", f"The {who} closed the connection {wait} later."


def end_of(story: Story) -> tuple[float, str] | None:
    """
    Return the time at which a connection ended, and the end that ended it.

    This end is the end that sent a reason, or otherwise the end that closed first.
    """
    if not story.closed:
        return None
    spoken = next((reason for reason in story.reasons if reason.name in ("Connection.Close", "ERROR")), None)
    return (spoken.t, spoken.side) if spoken else (story.closes[0].t, story.closes[0].who)


def _reasons(story: Story | None, flag: Flag) -> list[str]:
    """Return the reasons that the ends gave after the flag, in the words of the protocol."""
    if story is None:
        return []
    later = [reason for reason in story.reasons if reason.t >= flag.t and reason.text and reason.code != _ORDERLY]
    return [stated(reason) for reason in later[:2]]


def stated(reason: Reason) -> str:
    """Return an end's reason as a sentence."""
    what = {"Channel.Close": "when it closed the channel", "ERROR": "an error"}.get(
        reason.name, "when it closed the connection"
    )
    code = f" (code {reason.code})" if reason.code else ""
    return f"The {reason.side} reported {what}: “{reason.text}”{code}."


def _again(ranked: list[tuple[Story | None, Alike]], alike: Alike) -> list[str]:
    """Return where and how often the same flag was raised."""
    sentences = []
    if alike.count > 1:
        sentences.append(f"The same was noticed {count_text(alike.count - 1, 'more time')} on this connection.")
    same = {id(where) for where, other in ranked if other is not alike and other.first[0].id == alike.first[0].id}
    if same:
        sentences.append(f"The same was noticed on {count_text(len(same), 'other connection')}.")
    return sentences


def _others(ranked: list[tuple[Story | None, Alike]], id_: str) -> list[Flag]:
    """Return the first flag of every id except `id_`, in the order of time."""
    first: dict[str, Flag] = {}
    for _, alike in ranked:
        flag = alike.worst
        if flag.id != id_ and (flag.id not in first or flag.t < first[flag.id].t):
            first[flag.id] = flag
    return sorted(first.values(), key=lambda flag: flag.t)


def _nothing(trace: Trace) -> TraceVerdict:
    time = lapse(trace.last - (trace.start or 0.0))
    headline = f"Nothing was noticed that ends connections, on {count_text(trace.connections, 'connection')} in {time}."
    ends = [ending(story.closes[0]) for story in trace.stories.values() if story.closes and abrupt(story)]
    support = []
    if ends:
        first, more = ends[0], len(ends) - 1
        support.append(f"But {first} without a reason" + (f", and {more} more ended so." if more else "."))
    return TraceVerdict(headline, tuple(support), "warning" if ends else "fine")


def abrupt(story: Story) -> bool:
    """Return whether the connection ended without the protocol's goodbye."""
    return bool(story.closed and story.frames) and not story.reasons and not story.ended_in_order


def ending(close: ConnectionClose, *, first: bool = True) -> str:
    """Return a clause that describes the close of a connection."""
    error = f" ({close.error})" if close.error else ""
    if close.who == "trace":
        return "the trace ended, and closed the connection"
    if close.how == "refused":
        return f"the {close.who} could not be reached{error}"
    if not first:
        return f"the {close.who} closed its side, too{error}"
    how = "reset the connection (TCP reset)" if close.how == "reset" else "closed the connection"
    where = " in the middle of a frame" if close.in_frame else ""
    who = close.who if close.who in SIDES else "other end"
    return f"the {who} {how}{where}{error}"
