"""The report with which a worker process shows its state to people; the process registers it at each renewal."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from steadyworker.clock import Clock
from steadyworker.errors import Finding, by_level
from steadyworker.ledger.facts import STARTING, OwnerReport, QueueReport, ReportedFinding
from steadyworker.lifecycle import Stage
from steadyworker.runner.runner import Runner
from steadyworker.service.watchdog import Snapshot
from steadyworker.text.versions import version


class OwnerReporter:
    """
    The source of the reports of one worker process.

    Attributes:
        snapshot: Returns the reasons why the process is not ready, as the probes report them; the monitor sets it.

    Args:
        runners: The runners, by the name under which the process registers their queues.
        findings: Returns the findings of the last checks.
        clock: Its wall clock is the time of the start.
    """

    def __init__(self, runners: Mapping[str, Runner], findings: Callable[[], Sequence[Finding]], clock: Clock) -> None:
        self.snapshot: Callable[[], Snapshot] = lambda: Snapshot(unready=(STARTING,))
        self._runners = runners
        self._findings = findings
        self._started_at = clock.wall()

    def report(self) -> OwnerReport:
        """Return the present report; any thread may call this."""
        now = self.snapshot()
        not_ready = (*now.unlive, *now.unready)
        findings = sorted({each for each in self._findings() if each.level != "note"}, key=by_level)
        stages = [runner.state.stage for runner in self._runners.values()]
        return OwnerReport(
            pid=os.getpid(),
            version=version(),
            started_at=self._started_at,
            stage=max(stages, default=Stage.RUNNING).name.lower(),
            ready=not not_ready,
            not_ready=not_ready,
            queues={name: _queue(runner) for name, runner in self._runners.items()},
            findings=tuple(ReportedFinding(each.id, each.level, str(each)) for each in findings),
        )


def _queue(runner: Runner) -> QueueReport:
    reading = runner.reading()
    return QueueReport(
        slots=reading.slots,
        busy=runner.busy,
        time_limit=reading.time_limit,
        connected=reading.connected,
        paused=runner.pause is not None,
    )
