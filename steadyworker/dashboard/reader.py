"""
Reads of the ledger for pages.

Several viewers of a page cause one read a second, and a page reads each fact once, whatever its size.
While the ledger does not respond, a page shows what it last read, with its age.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar, cast

from msgspec import Struct

from steadyworker.clock import Clock
from steadyworker.errors import ConfigError, LedgerUnavailable
from steadyworker.ledger.base import EVERY_ROW, JobFilter, Ledger, Progress, Row, State
from steadyworker.text.plain_text import plain_text

FRESH = 1.0
"""Seconds for which one read serves every viewer of a page."""

AWAY = 5.0
"""Seconds for which a page does not ask a ledger again that did not respond, because each question can wait 10 s."""

MOST_KEPT = 64
"""The number of pages whose last content is kept."""

HELD = JobFilter(states=(State.RUNNING, State.MOVING))
"""The jobs that a worker process holds; several parts of a page need them."""

Content = TypeVar("Content")
Held = Sequence[tuple[Row, Progress | None]]

_READS = frozenset(
    {
        *("url", "bindings", "owners", "read", "message", "orphans", "last_round", "last_progress"),
        *("attempts", "tracebacks", "result", "link_events", "minutes", "pauses", "actions", "depths"),
    }
)


class ReadOnce:
    """
    A ledger that only reads, each fact once; made for one page.

    `calls` has the name of each call that reached the ledger.
    A call that could write is an AttributeError, so no page can change the ledger.
    """

    def __init__(self, ledger: Any, calls: list[str] | None = None) -> None:
        self._ledger = ledger
        self._known: dict[Hashable, Any] = {}
        self._held: Held | None = None
        self.calls: list[str] = [] if calls is None else calls
        if hasattr(ledger, "facts"):
            self.facts = ReadOnce(ledger.facts, self.calls)

    def __getattr__(self, name: str) -> Any:
        """Return a read of the ledger."""
        if name not in _READS:
            raise AttributeError(f"Expected a read of the ledger, got {name!r}: a page only reads.")
        value = getattr(self._ledger, name)
        if not callable(value):
            return value

        def once(*arguments: Any, **options: Any) -> Any:
            key = (name, arguments, tuple(sorted(options.items())))
            if key not in self._known:
                self.calls.append(name)
                self._known[key] = value(*arguments, **options)
            return self._known[key]

        return once

    def jobs(self, which: JobFilter = EVERY_ROW) -> Iterable[tuple[Row, Progress | None]]:
        """Return the jobs that fit; all questions about jobs that a worker process holds share one read."""
        if (
            which.states
            and JobFilter(which.namespace, which.queue, which.states) == which
            and {*which.states} <= {*(HELD.states or ())}
        ):
            states, namespace, queue = which.states, which.namespace, which.queue
            return (
                (row, progress)
                for row, progress in self.held()
                if row.state in states and namespace in (None, row.id.namespace) and queue in (None, row.id.queue)
            )
        self.calls.append("jobs")
        return cast(Iterable[tuple[Row, Progress | None]], self._ledger.jobs(which))

    def held(self) -> Held:
        """Return the jobs that a worker process holds."""
        if self._held is None:
            self.calls.append("jobs")
            self._held = list(self._ledger.jobs(HELD))
        return self._held

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
    """The reads of one ledger for all viewers; thread-safe."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

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
        with kept.lock:
            if kept.page is not None and self._clock.monotonic() < kept.until:
                return kept.page
            wall, fresh = self._clock.wall(), FRESH
            try:
                kept.page = ReadPage(read(ReadOnce(self._ledger), wall), wall, 0.0)
            except (LedgerUnavailable, ConfigError) as error:
                if kept.page is None:
                    raise
                age = max(0.0, wall - kept.page.at)
                kept.page = ReadPage(kept.page.content, kept.page.at, age, plain_text(str(error)))
                fresh = AWAY
            kept.until = self._clock.monotonic() + fresh
            return cast(ReadPage[Content], kept.page)

    def read_again(self) -> None:
        """Read each page again at its next request, because an action has changed something."""
        with self._lock:
            for kept in self._kept.values():
                kept.until = 0.0

    def _kept_of(self, key: Hashable) -> _Kept:
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return kept
