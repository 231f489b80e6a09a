"""The data that is kept of a trace: the story of each connection while there is room, and data about all connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from steadyworker.diagnosis.picture.event_fields import Event, count_of, name_of, number_of, text_of
from steadyworker.diagnosis.picture.flags import MOST_IDS, Alike, Flag, flag_of
from steadyworker.diagnosis.picture.rows import ROWS
from steadyworker.diagnosis.picture.story import FRAMES, Story

MOST_STORIES = 300
"""The largest number of connections with a story; of further connections, only a line or a number is kept."""

FULL_STORIES = 40
"""The largest number of connections that keep all their rows; if there are more, each connection keeps fewer rows."""

FEW_ROWS = 60
_MOST_NAMES = 400  # the number of known names of connections without a story
_LONGEST_TRACE = 1e9


class Trace:
    """The content of a trace, as far as its events were read."""

    def __init__(self) -> None:
        self.started: datetime | None = None
        self.listen = ""
        self.to = ""
        self.stories: dict[str, Story] = {}
        self.connections = 0
        self.flags: dict[str, Alike] = {}
        """Flags that belong to no connection with a story."""
        self.past: Counter[tuple[str, str, str]] = Counter()
        """The frames of connections that have lost their story; the kind `bytes` counts their bytes."""
        self.other_frames = 0
        """The frames of connections that never had a story."""
        self.flagged = 0
        """The number of flags by the trace's own count, which includes flags that the trace did not list."""
        self.trouble = ""
        self.start: float | None = None
        self.last = 0.0
        self._numbers = 0
        self._without_story: set[str] = set()
        self._current: tuple[object, Story | None] = (None, None)

    def add(self, event: Event) -> None:
        """Add the next event."""
        kind = event.get("kind")
        if kind == "trace":
            self._begin(event)
            return
        t = self._time(event.get("t"))
        conn = event.get("conn")
        flag = self._flag(event, t) if kind == "flag" else None
        if conn is None:
            self._of_no_connection(event, flag)
            return
        known, story = self._current
        if story is None or conn != known:
            story = self._story(conn, t)
            self._current = (conn, story)
        if story is not None:
            story.add(event, t, flag)
        else:
            self._of_no_story(conn, event, flag)

    def all_flags(self) -> Iterator[tuple[Story | None, Alike]]:
        """Yield the flags of each id with their connection."""
        for story in self.stories.values():
            yield from ((story, alike) for alike in story.flags.values())
        yield from ((None, alike) for alike in self.flags.values())

    def _begin(self, event: Event) -> None:
        self.listen = text_of(event.get("listen"), 60)
        self.to = text_of(event.get("to"), 60)
        try:
            self.started = datetime.fromisoformat(text_of(event.get("started"), 40))
        except ValueError:
            self.started = None

    def _time(self, value: object) -> float:
        """Return the time of an event; an event without a time gets the time of the event before."""
        t = value if type(value) is float else number_of(value)
        if t is None or not 0 <= t < _LONGEST_TRACE:
            t = self.last
        if self.start is None or t < self.start:
            self.start = t
        self.last = max(self.last, t)
        return t

    def _flag(self, event: Event, t: float) -> Flag:
        self._numbers += 1
        return flag_of(event, t, self._numbers)

    def _of_no_connection(self, event: Event, flag: Flag | None) -> None:
        kind = event.get("kind")
        if flag is not None:
            self._keep(flag)
        elif kind == "end":
            flags = event.get("flags")
            counts = list(flags.values())[:MOST_IDS] if isinstance(flags, dict) else []
            self.flagged = sum(count_of(count) for count in counts)
        elif kind == "trouble":
            self.trouble = text_of(event.get("error"), 200) or "connections could not be accepted"

    def _keep(self, flag: Flag) -> None:
        if flag.id in self.flags or len(self.flags) < MOST_IDS:
            self.flags.setdefault(flag.id, Alike()).add(flag, 1)

    def _story(self, conn: object, t: float) -> Story | None:
        """Return the story of a connection; if there are too many, a new story replaces the least important story."""
        name = _name(conn)
        story = self.stories.get(name)
        if story is not None:
            return story
        if name in self._without_story:
            return None
        if len(self.stories) >= MOST_STORIES:
            victim = self._least_important()
            if victim is None:
                return None
            self._shorten(self.stories.pop(victim))
        if len(self.stories) == FULL_STORIES:
            for each in self.stories.values():
                if not each.flags:
                    each.rows.shrink(FEW_ROWS)
        self.connections += 1
        story = self.stories[name] = Story(name, t, ROWS if len(self.stories) < FULL_STORIES else FEW_ROWS)
        return story

    def _least_important(self) -> str | None:
        """
        Return the least important connection that has ended, or None.

        This is the first ended connection without a flag, or otherwise the eleventh ended connection.
        """
        ended = [name for name, story in self.stories.items() if story.closed]
        plain = next((name for name in ended if not self.stories[name].flags), None)
        return plain or next(iter(ended[10:]), None)

    def _shorten(self, story: Story) -> None:
        self.past.update(story.counts)
        self.past["", "bytes", ""] += sum(lane.bytes for lane in story.lanes.values())
        for id_, alike in story.flags.items():
            if id_ in self.flags or len(self.flags) < MOST_IDS:
                kept = self.flags.setdefault(id_, Alike([alike.worst]))
                kept.count += alike.count
                kept.last = max(kept.last, alike.last)
        if len(self._without_story) < _MOST_NAMES:
            self._without_story.add(story.conn)

    def _of_no_story(self, conn: object, event: Event, flag: Flag | None) -> None:
        if flag is not None:
            self._keep(flag)
        name = _name(conn)
        if name in self._without_story:
            self.other_frames += name_of(event.get("kind")) in FRAMES
        elif len(self._without_story) < _MOST_NAMES:
            self._without_story.add(name)
            self.connections += 1
            self.other_frames += name_of(event.get("kind")) in FRAMES
        else:
            self.connections += event.get("kind") == "open"


def _name(conn: object) -> str:
    return str(conn) if isinstance(conn, int) else text_of(conn, 40)
