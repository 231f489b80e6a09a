"""
The page of the warnings: what the worker processes last found in their checks, and what the ledger shows by itself.

The ledger shows jobs whose message is late, consumers of unknown origin, an alarm of a broker, and a fleet of several versions.
Each warning has a remedy and its entry in the catalogue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from steadyworker.backends.waiting import queues_now
from steadyworker.clock import Times
from steadyworker.dashboard.notices import Notice, job_notice, queue_notices
from steadyworker.dashboard.pictures import DAY
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.ledger.base import Ledger, Need, OwnerSeen
from steadyworker.ledger.facts import LinkEvent, ReportedFinding
from steadyworker.ledger.fleet import bound_names, queue_of
from steadyworker.ledger.lease import attended
from steadyworker.ledger.listing import ListedJob, Listing, Liveness, Wanted, liveness
from steadyworker.ledger.need_words import sentence
from steadyworker.text.redaction import redact
from steadyworker.units import count_text, span

MOST_WARNINGS = 100
"""The largest number of findings on the page, errors first."""

MOST_OVERDUE, MOST_OVERDUE_SHOWN = 1000, 20
"""The largest numbers of overdue jobs that the page counts and shows."""

_LATE = 60.0
"""Seconds after which a delayed message that is due, and still delayed, is late: clocks differ, and a count takes time."""

_DEPLOY = 600.0
"""Seconds for which a process of another version is part of a rolling deploy."""


class FindingLine(Struct, frozen=True):
    """A finding as a row: the living worker processes that report it, and the seconds since the last of them did so."""

    finding: ReportedFinding
    workers: Sequence[str]
    age: float


class WarningsPage(Struct, frozen=True):
    """
    The content of the page.

    Attributes:
        findings: What the worker processes have found, errors first; `all_findings` also counts those that are left out.
        notices: What the ledger shows; `all_overdue` counts all overdue jobs, up to `MOST_OVERDUE` and one more.
    """

    headline: str
    findings: Sequence[FindingLine]
    notices: Sequence[Notice]
    all_findings: int
    shown_overdue: int
    all_overdue: int

    @property
    def number(self) -> int:
        """The number of all warnings."""
        return self.all_findings + len(self.notices) + self.all_overdue - self.shown_overdue


def warnings_page(once: ReadOnce, now: float, namespace: str | None) -> WarningsPage:
    """Return the content of the page of the warnings; the page has no code of the application, so it checks nothing itself."""
    ledger = once.as_ledger
    bound = bound_names(ledger)
    living = [
        owner
        for owner in ledger.owners()
        if liveness(owner, Times()) is not Liveness.GONE
        and (namespace is None or any(name in bound and bound[name][0] == namespace for name in attended(owner.queues)))
    ]
    lines = _findings(living)
    pairs = [pair for pair in ledger.bindings() if namespace in (None, pair[0])]
    overdue = _overdue(Listing(ledger, Wanted(namespace), now))
    queues = queues_now(ledger, pairs)
    shown = overdue[:MOST_OVERDUE_SHOWN]
    notices = [
        *_alarms(ledger, living, now),
        *(job_notice(job, now) for job in shown),
        *queue_notices(queues),
        *_late_delays(ledger, pairs, now),
        *_versions(living, bound, now),
    ]
    page = WarningsPage("", lines[:MOST_WARNINGS], notices, len(lines), len(shown), len(overdue))
    return replace(page, headline=count_text(page.number, "warning") if page.number else "No warning")


def _overdue(listing: Listing) -> Sequence[ListedJob]:
    """Return the overdue jobs, at most `MOST_OVERDUE` and one more; they are the most urgent, so most ledgers need a short list."""
    overdue: list[ListedJob] = []
    for most in (MOST_OVERDUE_SHOWN, MOST_OVERDUE + 1):
        needing = listing.needing(0, most).jobs
        overdue = list(takewhile(lambda job: job.need in (Need.STRANDED, Need.OVERDUE), needing))
        if len(overdue) < most:
            break
    return overdue


def _findings(living: Sequence[OwnerSeen]) -> list[FindingLine]:
    reports: dict[ReportedFinding, list[tuple[float, str]]] = {}
    for owner in living:
        if owner.report is not None:
            for finding in owner.report.findings:
                reports.setdefault(finding, []).append((owner.seen_ago, f"{owner.host}:{owner.report.pid}"))
    lines = [
        FindingLine(finding, sorted(name for _, name in found), min(found)[0]) for finding, found in reports.items()
    ]
    return sorted(lines, key=lambda line: (line.finding.level != "error", -len(line.workers), line.finding.id))


def _alarms(ledger: Ledger, living: Sequence[OwnerSeen], now: float) -> Iterator[Notice]:
    """Yield a notice for each queue whose broker has an alarm, as the worker processes have recorded it within a day."""
    blocked: dict[tuple[str, str], LinkEvent] = {}
    for event in ledger.facts.link_events(now - DAY):
        if event.event == "blocked":
            blocked[event.owner, event.queue] = event
        elif event.event == "unblocked":
            blocked.pop((event.owner, event.queue), None)
    found: dict[str, list[LinkEvent]] = {}
    # An alarm makes a process not ready; the event of its end can be missing.
    unready = {owner.owner for owner in living if owner.report is None or not owner.report.ready}
    for event in blocked.values():
        if event.owner in unready:
            found.setdefault(event.queue, []).append(event)
    for queue, events in sorted(found.items()):
        first = min(events, key=lambda event: event.at)
        workers = count_text(len(events), "worker process", "worker processes")
        why = redact(first.why) or "The broker accepts no messages: free memory or disk space on the broker"
        text = f"{sentence(why)} {workers} recorded this, the first {span(now - first.at)} ago. Jobs go on; retries and dead letters wait."
        yield Notice("error", "broker alarm", queue, "", "/workers", text, "broker.alarm")


def _late_delays(ledger: Ledger, pairs: Collection[tuple[str, str]], now: float) -> Iterator[Notice]:
    """Yield a notice for each queue whose first delayed message was due when it was counted, and long before."""
    for each in ledger.facts.depths():
        due = each.depth.next_due
        if (each.namespace, each.queue) not in pairs or not each.depth.delayed or due is None:
            continue
        if (late := now - each.age - due) > _LATE:
            text = f"{count_text(each.depth.delayed, 'delayed message')}, and the first was due {span(late)} before it was counted. Check the broker's scheduler and clock."
            yield Notice("warning", "late delays", each.queue, "", "/queues", text, "broker.late-delays")


def _versions(living: Sequence[OwnerSeen], bound: Mapping[str, tuple[str, str]], now: float) -> Iterator[Notice]:
    """Yield a notice for each queue whose worker processes, which run for a while and receive messages, have several versions."""
    queues: dict[str, Counter[str]] = {}
    for owner in living:
        report = owner.report
        if report is not None and report.stage == "running" and now - report.started_at > _DEPLOY:
            for name in attended(owner.queues):
                queues.setdefault(name, Counter())[report.version] += 1
    for name, versions in sorted(queues.items()):
        if len(versions) > 1:
            counts = ", ".join(f"{version or 'unknown'} ({number:,})" for version, number in sorted(versions.items()))
            text = f"Its worker processes have the versions {counts}. Deploy one version to all hosts."
            yield Notice(
                "warning", "several versions", queue_of(name, bound), "", "/workers", text, "ledger.several-versions"
            )
