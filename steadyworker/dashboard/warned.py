"""The page of the warnings: what the worker processes last found in their checks, and consumers of unknown origin."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from steadyworker.backends.waiting import queues_now
from steadyworker.clock import Times
from steadyworker.dashboard.notices import Notice, queue_notices
from steadyworker.dashboard.queues import recorded_depth
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.ledger.facts import ReportedFinding
from steadyworker.ledger.lease import attended
from steadyworker.ledger.listing import Liveness, liveness
from steadyworker.units import count_text

MOST_WARNINGS = 100
"""The largest number of findings on the page, errors first."""


class FindingLine(Struct, frozen=True):
    """A finding as a row: the living worker processes that report it, and the seconds since the last of them did so."""

    finding: ReportedFinding
    workers: Sequence[str]
    age: float


class WarningsPage(Struct, frozen=True):
    """The content of the page; `all_findings` is the number of findings, also of those that are left out."""

    headline: str
    findings: Sequence[FindingLine]
    queues: Sequence[Notice]
    all_findings: int


def warnings_page(once: ReadOnce, namespace: str | None) -> WarningsPage:
    """Return the content of the page of the warnings; the page has no code of the application, so it checks nothing itself."""
    ledger = once.as_ledger
    reports: dict[ReportedFinding, list[tuple[float, str]]] = {}
    for owner in ledger.owners():
        names = attended(owner.queues)
        shown = namespace is None or any(name.startswith(f"{namespace}/") for name in names)
        if shown and owner.report is not None and liveness(owner, Times()) is not Liveness.GONE:
            for finding in owner.report.findings:
                reports.setdefault(finding, []).append((owner.seen_ago, f"{owner.host}:{owner.report.pid}"))
    lines = [
        FindingLine(finding, sorted(name for _, name in found), min(found)[0]) for finding, found in reports.items()
    ]
    lines.sort(key=lambda line: (line.finding.level != "error", -len(line.workers), line.finding.id))
    pairs = [pair for pair in ledger.bindings() if namespace in (None, pair[0])]
    notices = list(queue_notices(queues_now(ledger, pairs, recorded_depth(ledger))))
    number = len(lines) + len(notices)
    headline = count_text(number, "warning") if number else "No warning"
    return WarningsPage(headline, lines[:MOST_WARNINGS], notices, len(lines))
