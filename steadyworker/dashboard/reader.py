"""
Reads of the ledger for pages.

Several viewers of a page cause one read a second, and a page reads each fact once, whatever its size.
A read that takes long serves the longer, so that a large ledger spends little on the page.
While the ledger does not respond, a page shows what it last read, with its age.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar, cast

from msgspec import Struct

from steadyworker.clock import Clock
from steadyworker.errors import ConfigError, LedgerUnavailable
from steadyworker.ledger.base import Ledger
from steadyworker.text.plain_text import plain_text

FRESH = 1.0
"""Seconds for which one read serves every viewer of a page."""

AWAY = 5.0
"""Seconds for which no page asks a ledger again that did not respond, because each question can wait 10 s."""

CHEAP = 0.02
"""Seconds; a read that takes less is repeated for each page, so a fleet of usual size is shown as it is now."""

SHARE, LONGEST, LONGEST_LARGE = 0.001, 10.0, 60.0
"""
The share of a core that the repetitions of one slow read take at most, and the most seconds for which such a read serves.

A page has up to five slow reads, and its other reads take about as much, so all of them take about one hundredth.
Only a read that also takes more than `CHEAP` of this process's own processor time serves longer than `LONGEST`:
one of a large SQLite ledger, such as 0.1 s with 100,000 unfinished jobs. Others are slow while the host is busy.
"""

MOST_KEPT = 64
"""The number of pages, and of slow reads, whose last content is kept."""

Content = TypeVar("Content")

_SLOW = frozenset({"owners", "held", "needing", "running", "waiting"})
"""The reads that take longer the more jobs and worker processes there are."""

_READS = _SLOW | {
    *("url", "bindings", "read", "message", "orphans", "last_round", "last_progress", "jobs"),
    *("attempts", "last_runs", "tracebacks", "result", "link_events", "minutes", "pauses", "actions", "depths"),
}


class SlowReads:
    """The last results of slow reads, for all pages; thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self.generation = 0

    def read(self, key: Hashable, read: Callable[[], Any]) -> Any:
        """Return the result of this read, which may be as old as its cost allows."""
        with self._lock:
            until, known = self._known.get(key, (0.0, None))
            generation, began, spent = self.generation, self._clock.monotonic(), time.thread_time()
        if began < until:
            return known
        found = read()
        now, spent = self._clock.monotonic(), time.thread_time() - spent
        longest = LONGEST_LARGE if spent > CHEAP else LONGEST
        with self._lock:
            if generation == self.generation and now - began > CHEAP:
                self._known[key] = now + min(longest, (now - began) / SHARE), found
                self._known.move_to_end(key)
            while len(self._known) > MOST_KEPT:
                self._known.popitem(last=False)
        return found

    def forget(self) -> None:
        """Forget all results, also those of reads that go on now."""
        with self._lock:
            self.generation += 1
            self._known.clear()


class ReadOnce:
    """
    A ledger that only reads, each fact once; made for one page.

    `calls` has the name of each call that reached the ledger.
    A call that could write is an AttributeError, so no page can change the ledger.
    """

    def __init__(self, ledger: Any, slow: SlowReads | None = None, calls: list[str] | None = None) -> None:
        self._ledger = ledger
        self._slow = slow
        self._known: dict[Hashable, Any] = {}
        self.calls: list[str] = [] if calls is None else calls
        if hasattr(ledger, "facts"):
            self.facts = ReadOnce(ledger.facts, slow, self.calls)

    def __getattr__(self, name: str) -> Any:
        """Return a read of the ledger."""
        if name not in _READS:
            raise AttributeError(f"Expected a read of the ledger, got {name!r}: a page only reads.")
        value = getattr(self._ledger, name)
        if not callable(value):
            return value

        def once(*arguments: Any, **options: Any) -> Any:
            def read() -> Any:
                self.calls.append(name)
                return value(*arguments, **options)

            if name == "jobs":  # an iterator, which serves once
                return read()
            key = (name, arguments, tuple(sorted(options.items())))
            if key not in self._known:
                slow = self._slow if name in _SLOW else None
                self._known[key] = read() if slow is None else slow.read(key, read)
            return self._known[key]

        return once

    def slowly(self, key: Hashable, read: Callable[[], Content]) -> Content:
        """Return what this read of several facts returns, which may be as old as its cost allows."""
        return read() if self._slow is None else cast(Content, self._slow.read(key, read))

    @property
    def as_ledger(self) -> Ledger:
        """This object, for functions that only read a ledger."""
        return cast(Ledger, self)


class ReadPage(Struct, Generic[Content], frozen=True):
    """
    The content of a page.

    Attributes:
        content: The content.
        at: The wall clock when it was read.
        age: Seconds since then.
        problem: Why it could not be read again; empty if it is as new as it can be.
    """

    content: Content
    at: float
    age: float
    problem: str = ""


class _Kept:
    """The last content of one page, how long it serves, and the lock of its read."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.page: ReadPage[Any] | None = None
        self.until = 0.0


class Reader:
    """
    The reads of one ledger for all viewers; thread-safe.

    1. A page that was read less than `FRESH` seconds ago is not read again, unless an action has ended since the read began.
    2. If one read fails, the ledger is away for every page: only one of them tries again each `AWAY` seconds.
       The others show at once what they last read, or fail at once.
    3. The first read that succeeds ends this.
    """

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._slow = SlowReads(clock)
        self._failure = ""
        self._try_at = 0.0

    @property
    def url(self) -> str:
        """The URL of the ledger, without its password."""
        return self._ledger.url

    def now(self) -> float:
        """Return the wall clock."""
        return self._clock.wall()

    def page(self, key: Hashable, read: Callable[[ReadOnce, float], Content]) -> ReadPage[Content]:
        """
        Return the content of a page, read at most `FRESH` seconds ago, or what was last read if the ledger does not respond.

        Raises:
            LedgerUnavailable: The ledger does not respond, and this page was never read.
            ConfigError: The ledger does not exist, and this page was never read.
        """
        kept = self._kept_of(key)
        if not kept.lock.acquire(blocking=not self._is_away()):
            return self._last(kept)
        try:
            if kept.page is not None and self._clock.monotonic() < kept.until:
                return kept.page
            if not self._may_read():
                return self._last(kept)
            generation, wall = self._slow.generation, self._clock.wall()
            try:
                kept.page = ReadPage(read(ReadOnce(self._ledger, self._slow), wall), wall, 0.0)
            except (LedgerUnavailable, ConfigError) as error:
                self._failed(error)
                if kept.page is None:
                    raise
                return self._last(kept)
            with self._lock:
                self._failure = ""
                fresh = FRESH if generation == self._slow.generation else 0.0
                kept.until = self._clock.monotonic() + fresh
            return kept.page
        finally:
            kept.lock.release()

    def read_again(self) -> None:
        """Read each page again at its next request, because an action has changed something."""
        with self._lock:
            self._slow.forget()
            for kept in self._kept.values():
                kept.until = 0.0

    def _is_away(self) -> bool:
        with self._lock:
            return bool(self._failure)

    def _may_read(self) -> bool:
        """Return whether a page may read the ledger now; if the ledger is away, only one page may, each `AWAY` seconds."""
        with self._lock:
            now = self._clock.monotonic()
            if self._failure and now < self._try_at:
                return False
            self._try_at = now + AWAY
            return True

    def _failed(self, error: Exception) -> None:
        with self._lock:
            if not self._failure:
                self._try_at = self._clock.monotonic() + AWAY
            self._failure = plain_text(str(error))

    def _last(self, kept: _Kept) -> ReadPage[Any]:
        """Return what a page last read, with its age; raise LedgerUnavailable if the page was never read."""
        page, failure = kept.page, self._failure
        if page is None:
            raise LedgerUnavailable(failure)
        return ReadPage(page.content, page.at, max(0.0, self._clock.wall() - page.at), failure)

    def _kept_of(self, key: Hashable) -> _Kept:
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return kept
