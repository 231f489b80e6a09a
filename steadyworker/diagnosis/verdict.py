"""The conclusion from the flags of a trace, in a few sentences for a reader who has never seen a trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from steadyworker.diagnosis.wire import Event
from steadyworker.text.plain_text import plain_text
from steadyworker.units import count_text, span

CONSEQUENCES = frozenset(
    {
        *("amqp.frame-cut", "amqp.connection-forced", "amqp.channel-error", "amqp.dead-channel"),
        *("stomp.frame-cut", "stomp.error-frame", "trace.unparsable"),
    }
)
"""The flags that often follow from another flag, which is then the cause."""

LONGEST = 400
"""The largest number of characters of a text on the page."""

_REASONS = frozenset({"Connection.Close", "Channel.Close", "ERROR"})
_GOODBYES = frozenset({"Connection.Close", "DISCONNECT"})
_MOST_REASONS, _MOST_CONNECTIONS = 10, 1_000
_BREAK = re.compile(r"(?:: |\. )(?=\S)")
_SHORTEST = 25
_AT_ONCE = 0.01  # a close within this number of seconds is "at once"
_ORDERLY = 200  # the reply code of an end without an error


class FlagKind(Struct):
    """The flags of one id: the first, or the first error if there is one, and the connections, up to a number."""

    flag: Event
    connections: set[int] = set()

    def add(self, flag: Event) -> None:
        """Note the next flag."""
        if len(self.connections) < _MOST_CONNECTIONS:
            self.connections.add(flag["conn"])
        if flag["level"] == "error" != self.flag["level"]:
            self.flag = flag

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """The sort key: errors before warnings, causes before consequences, earlier flags before later flags."""
        return self.flag["level"] != "error", self.flag["id"] in CONSEQUENCES, self.flag["t"]


class ConnectionEnd(Struct):
    """The end of a connection: the first close, the reasons that the sides gave, and whether they ended in order."""

    close: Event | None = None
    reasons: list[Event] = []
    abrupt: bool = False
    _goodbye: bool = False

    def add(self, event: Event) -> None:
        """Note an event; an end without a goodbye is abrupt if the frames could be read."""
        if event["kind"] == "close":
            self.close = self.close or event
            self.abrupt |= event["how"] == "refused"
        elif event["kind"] in {"method", "frame"}:
            self._goodbye |= event["name"] in _REASONS | _GOODBYES
            self.abrupt = not self._goodbye
            if event["name"] in _REASONS and len(self.reasons) < _MOST_REASONS:
                self.reasons.append(event)


class TraceVerdict(Struct, frozen=True):
    """The verdict: its sentence, the sentences that support it, its level, and the flag that proves it."""

    headline: str
    support: Sequence[str]
    level: str
    flag: Event | None = None


def verdict_of(
    kinds: Iterable[FlagKind], ends: Mapping[int, ConnectionEnd], count: int, seconds: float
) -> TraceVerdict:
    """Return the most likely cause of failure, or the fact that nothing was noticed."""
    kind = min(kinds, key=lambda each: each.rank, default=None)
    if kind is None:
        return _nothing(ends, count, seconds)
    flag = kind.flag
    what = flag["what"] or f"The trace noticed {flag['id']}"
    found = _BREAK.search(what, _SHORTEST)
    head, rest = (what[: found.start()], [_sentence(what[found.end() :])]) if found else (what, [])
    support = [*rest, *_end_after(flag, ends.get(flag["conn"]), seconds)]
    if others := len(kind.connections - {flag["conn"]}):
        least = "at least " if len(kind.connections) == _MOST_CONNECTIONS else ""
        support.append(f"The same was noticed on {least}{count_text(others, 'other connection')}.")
    return TraceVerdict(_sentence(head), support, flag["level"], flag)


def lapse(seconds: float) -> str:
    """Return a duration for people: `3 ms`, `0.4 s`, `2 min 05 s`."""
    if seconds < 0.1:  # noqa: PLR2004 - a tenth of a second is the last that `0.1 s` can express
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else span(seconds)  # noqa: PLR2004 - a minute


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?', '!')) else '.'}"


def _end_after(flag: Event, end: ConnectionEnd | None, seconds: float) -> Iterator[str]:
    """Yield how the connection of a flag ended, and the reasons in the words of the protocol."""
    if end is None:  # the page has dropped the connection
        return
    reasons = [each for each in end.reasons if each["t"] >= flag["t"]]
    last = next((each for each in reasons if each["name"] != "Channel.Close"), end.close)
    if last is None or last["from"] == "trace":
        yield f"The connection was still open {lapse(seconds - flag['t'])} later, when the trace ended."
    elif "closed the connection" not in flag["what"] and last["t"] >= flag["t"]:
        wait = last["t"] - flag["t"]
        yield f"The {last['from']} closed the connection {'at once' if wait < _AT_ONCE else f'{lapse(wait)} later'}."
    for reason in reasons[:2]:
        fields = {**reason, **reason.get("headers", {})}
        text, code = fields.get("reply_text") or fields.get("message"), fields.get("reply_code")
        if text and code != _ORDERLY:
            yield f"The {reason['from']} reported: “{plain_text(text, LONGEST)}”{f' (code {code})' if code else ''}."


def _nothing(ends: Mapping[int, ConnectionEnd], count: int, seconds: float) -> TraceVerdict:
    headline = f"Nothing was noticed that ends connections, on {count_text(count, 'connection')} in {lapse(seconds)}."
    abrupt = [end.close for end in ends.values() if end.close and end.abrupt and end.close["from"] != "trace"]
    if not abrupt:
        return TraceVerdict(headline, (), "fine")
    first = abrupt[0]
    how = {"reset": "was reset by", "refused": "failed with"}.get(first["how"], "was closed by")
    why = f": {plain_text(first['error'], LONGEST)}." if first.get("error") else ", without a reason."
    more = f" {count_text(len(abrupt) - 1, 'more connection')} ended so." if len(abrupt) > 1 else ""
    return TraceVerdict(headline, [f"But connection {first['conn']} {how} the {first['from']}{why}{more}"], "warning")
