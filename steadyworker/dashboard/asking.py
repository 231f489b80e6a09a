"""
Questions to the broker: what waits in its queues now, asked in the background while a person views the page.

A page never waits for the broker: it shows the last numbers with their age, and whether the broker responds.
One thread asks one queue after the other, so a broker that stalls costs one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from msgspec import Struct

from steadyworker.adapter import Adapter
from steadyworker.backends.opening import namespace_of
from steadyworker.clock import Clock
from steadyworker.config.resolve import Options
from steadyworker.depth import Depth
from steadyworker.errors import BrokerUnavailable, ConfigError, LedgerUnavailable
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.facts import MeasuredDepth
from steadyworker.text.plain_text import plain_text
from steadyworker.text.redaction import redact
from steadyworker.units import span

EVERY = 5.0
"""Seconds between the end of one round of questions and the begin of the next."""

SPARE = 0.2
"""Seconds of rest for each queue of a round, because most questions need a connection of their own."""

VIEWED_WITHIN = 60.0
"""Seconds since the last page with numbers of a broker, after which the questions end."""

LATE = 5.0
"""Seconds after which a question without a reply is a problem that the page shows."""

MOST_ASKED = 200
"""The number of queues that a round asks about."""

_STOP_WITHIN = 2.0


class BrokerNow(Struct, frozen=True):
    """
    The broker, as the page knows it.

    Attributes:
        url: Its URL, without secrets.
        age: Seconds since its last reply; None before the first.
        problem: Why there is no newer reply; empty while the broker responds.
    """

    url: str
    age: float | None
    problem: str


class BrokerAsker:
    """
    The questions to one broker; thread-safe.

    Args:
        options: The settings with the broker's URL and the namespace.
        ledger: The ledger, which has the names of the queues.
        clock: The clock.
        open_adapter: Opens the adapter of the queue with this name; no question may create a broker.
    """

    def __init__(self, options: Options, ledger: Ledger, clock: Clock, open_adapter: Callable[[str], Adapter]) -> None:
        self._options = options
        self._ledger = ledger
        self._clock = clock
        self._open = open_adapter
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._adapters: dict[str, Adapter] = {}
        self._namespaces: dict[str, str] = {}
        self._depths: Mapping[tuple[str, str], tuple[float, Depth]] = {}
        self._viewed = 0.0
        self._asked: float | None = None
        self._replied: float | None = None
        self._problem = ""

    def over(self, ledger: Ledger) -> Ledger:
        """Return this ledger, whose depths are the broker's own wherever these are newer than those of the worker processes."""
        return cast(Ledger, _AskedLedger(ledger, self))

    def depths(self, recorded: Sequence[MeasuredDepth]) -> Sequence[MeasuredDepth]:
        """Return the newest depth of each queue, and ask for newer ones in the background."""
        self._view()
        now = self._clock.monotonic()
        with self._lock:
            found = {name: MeasuredDepth(*name, depth, now - at) for name, (at, depth) in self._depths.items()}
        newest = {(each.namespace, each.queue): each for each in recorded}
        for name, each in found.items():
            if name not in newest or each.age <= newest[name].age:
                newest[name] = each
        return [each for _, each in sorted(newest.items(), key=lambda pair: pair[0])]

    def state(self) -> BrokerNow:
        """Return whether the broker responds."""
        now = self._clock.monotonic()
        with self._lock:
            problem, asked, replied = self._problem, self._asked, self._replied
        if asked is not None and now - asked > LATE:
            problem = f"The present question has had no reply for {span(now - asked)}."
        return BrokerNow(redact(self._options.broker), None if replied is None else now - replied, problem)

    def close(self) -> None:
        """End the questions; a question that the broker does not answer ends with the process."""
        self._stopping.set()
        with self._lock:
            thread, adapters = self._thread, list(self._adapters.values())
        for adapter in adapters:
            adapter.stop(0.0)
        if thread is not None:
            thread.join(_STOP_WITHIN)

    def _view(self) -> None:
        """Note that a person views a page, and begin to ask if no thread asks."""
        with self._lock:
            self._viewed = self._clock.monotonic()
            if self._thread is not None or self._stopping.is_set():
                return
            thread = threading.Thread(target=self._run, name="steadyworker asks the broker", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # pids.max of the cgroup
                self._problem = f"This process cannot start a thread for the questions: {error}."
            else:
                self._thread = thread

    def _run(self) -> None:
        while True:
            asked = 0
            try:
                with suppress(LedgerUnavailable):  # the page shows this by itself
                    asked = self._round()
            except Exception as error:  # noqa: BLE001 - a client library can raise anything
                self._failed(error)
            if self._stopping.wait(max(EVERY, asked * SPARE)):
                return
            with self._lock:
                if self._clock.monotonic() - self._viewed > VIEWED_WITHIN:
                    self._thread = None
                    return

    def _round(self) -> int:
        """Ask about each queue of the ledger that belongs to this broker, and return their number."""
        names = [pair for pair in self._ledger.bindings() if self._options.namespace in (None, pair[0])]
        refused = ""
        for name in names[:MOST_ASKED]:
            if self._stopping.is_set():
                break
            try:
                depth = self._depth(*name)
            except ConfigError as error:
                refused = plain_text(str(error))
                continue
            except BrokerUnavailable as error:
                if type(error) is BrokerUnavailable:
                    raise
                depth = Depth.unknown(plain_text(str(error)))  # a subclass is about this queue only
            if depth is not None:
                self._replied_with(name, depth)
        with self._lock:
            self._problem = refused
        return len(self._depths)

    def _depth(self, namespace: str, queue: str) -> Depth | None:
        """Return the depth of a queue; None if another broker has it."""
        with self._lock:
            self._asked = self._clock.monotonic()
        try:
            adapter = self._adapters.get(queue)
            if adapter is None:
                adapter = self._open(queue)
                with self._lock:
                    self._adapters[queue] = adapter
            if queue not in self._namespaces:
                self._namespaces[queue] = namespace_of(adapter, self._options, self._ledger, queue, bind=False)
            return adapter.depth() if self._namespaces[queue] == namespace else None
        finally:
            with self._lock:
                self._asked = None

    def _replied_with(self, name: tuple[str, str], depth: Depth) -> None:
        with self._lock:
            self._replied = self._clock.monotonic()
            self._depths = {**self._depths, name: (self._replied, depth)}

    def _failed(self, error: Exception) -> None:
        self._namespaces.clear()  # another broker can return at this address
        with self._lock:
            self._problem = plain_text(str(error))


class _AskedFacts:
    """The facts of a ledger with the broker's own depths."""

    def __init__(self, facts: Any, asker: BrokerAsker) -> None:
        self._facts = facts
        self._asker = asker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facts, name)

    def depths(self) -> Sequence[MeasuredDepth]:
        return self._asker.depths(self._facts.depths())


class _AskedLedger:
    """A ledger whose facts have the broker's own depths."""

    def __init__(self, ledger: Ledger, asker: BrokerAsker) -> None:
        self._ledger = ledger
        self.facts = _AskedFacts(ledger.facts, asker)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)
