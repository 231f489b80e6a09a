"""
Repeats the broker's checks while the worker process runs, because an operator may change policies at any time.

::

    start ── a minute ──→ look ── no error ──→ a day ──→ look …
                           │
                           └── an error ── a minute ──→ look ── the same error ──→ it is lasting: exit 78

The first look comes a minute after the start: by then the broker has its queues, and reports which policy applies to each.
The verdict is that of `check` and of the start: what would have prevented the start also ends the worker process.
One look is not enough for that, because a broker that is being changed may report something that is over a moment later.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from steadyworker.adapter import Adapter, QueueSpec
from steadyworker.errors import BrokerUnavailable, Finding
from steadyworker.telemetry.logs import get_logger

SOON = 60.0
DAILY = 86400.0


class BrokerRecheck:
    """
    The checks of all brokers of one worker process, in a thread of their own, because a broker may respond slowly.

    Args:
        brokers: Each adapter, which has been started, with the queue that it is for.
        known: Findings that the start has logged; a warning is logged once.
    """

    def __init__(self, brokers: Sequence[tuple[Adapter, QueueSpec]], known: Collection[Finding] = ()) -> None:
        self.lasting: Sequence[Finding] = ()
        self._brokers = brokers
        self._known = set(known)
        self._suspected: frozenset[Finding] = frozenset()
        self._ended = threading.Event()

    def run(self) -> None:
        """Look a minute from now, and then daily, until `end`."""
        wait = SOON
        while not self._ended.wait(wait):
            wait = self.look()

    def end(self) -> None:
        """Make `run` return; a look that is under way is not waited for."""
        self._ended.set()

    def look(self) -> float:
        """
        Check every broker once, and return the seconds until the next look.

        A broker that does not respond is looked at again a minute later.
        """
        away = False
        found: list[Finding] = []
        for adapter, spec in self._brokers:
            try:
                found += adapter.findings(spec)
            except BrokerUnavailable:
                away = True
        self._log(found)
        errors = frozenset(finding for finding in found if finding.level == "error")
        self.lasting = [finding for finding in found if finding in errors & self._suspected]
        self._suspected = errors
        return SOON if away or errors else DAILY

    def _log(self, found: Sequence[Finding]) -> None:
        log = get_logger("steadyworker.check")
        for finding in dict.fromkeys(found):
            if finding not in self._known:
                say = log.error if finding.level == "error" else log.warning
                say(f"check_{finding.level}", what=finding.what, remedy=finding.remedy)
        self._known.update(found)
