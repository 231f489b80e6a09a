"""
Repeats the broker's checks while the worker process runs, because an operator can change policies at any time.

::

    start ── a minute ──→ check ── no error ──→ a day ──→ check …
                            │
                            └── an error ── a minute ──→ check ── the same error ──→ it is lasting: exit 78

The first check is one minute after the start: the broker then has the queues, and reports the policy of each queue.
An error that would have prevented the start also ends the worker process, if two checks in a row find it.
One check is not enough, because during a change the broker can report an error that ends a moment later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from steadyworker.errors import BrokerUnavailable, Finding
from steadyworker.telemetry.logs import EXPLAIN, get_logger

SOON = 60.0
DAILY = 86400.0


class BrokerRecheck:
    """
    The checks of all brokers of one worker process.

    Attributes:
        lasting: The errors that the last two checks have found.
        found: The findings of the start, and those of the last check; other threads read them.

    Args:
        questions: Functions. Each returns the findings of one queue's broker, or raises BrokerUnavailable.
        known: The findings that the start has logged. They are not logged again.
    """

    def __init__(self, questions: Sequence[Callable[[], Sequence[Finding]]], known: Collection[Finding] = ()) -> None:
        self.lasting: Sequence[Finding] = ()
        self._questions = questions
        self._start = tuple(known)
        self._known = set(known)
        self.found: Sequence[Finding] = self._start
        self._suspected: frozenset[Finding] = frozenset()

    def check(self) -> float:
        """
        Check every broker once, and return the seconds until the next check.

        If a broker does not respond, or has an error, the next check is one minute later.
        """
        away = False
        found: list[Finding] = []
        for question in self._questions:
            try:
                found += question()
            except BrokerUnavailable:
                away = True
        self._log(found)
        self.found = (*self._start, *found)
        errors = frozenset(finding for finding in found if finding.level == "error")
        self.lasting = [finding for finding in found if finding in errors & self._suspected]
        self._suspected = errors
        return SOON if away or errors else DAILY

    def _log(self, found: Sequence[Finding]) -> None:
        log = get_logger("steadyworker.check")
        for finding in dict.fromkeys(found):
            if finding not in self._known:
                line = log.error if finding.level == "error" else log.warning
                line(f"check_{finding.level}", **fields_of(finding))
        self._known.update(found)


def fields_of(finding: Finding) -> dict[str, str]:
    """Return the fields of a finding's line in the log."""
    return {"what": finding.what, "remedy": finding.remedy, EXPLAIN: finding.id}
