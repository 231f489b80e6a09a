"""
The durations that a platform (systemd, Kubernetes) needs, computed from Workers and their settings.

::

    stop_within ───────────────→ grace ────────────→ terminationGracePeriodSeconds
    3 × heartbeat, lease + margin ──→ watchdog ────→ WatchdogSec, the time to failure of a liveness probe
    stop_within, watchdog ─────→ stop_silence ─────→ TimeoutStopSec with Type=notify
    time_limit ────────────────→ finishes_within ──→ the stop_within in which every job can finish

All results are rounded up to whole seconds, because the platforms accept only whole seconds.
The templates have the reason of each result, and the durations that no Worker changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from steadyworker.adapter import Capabilities
from steadyworker.clock import Times
from steadyworker.config.resolve import Options
from steadyworker.lifecycle import EXIT_TAKES, INTERRUPT_BEFORE_END
from steadyworker.spec import WorkerSpec

PROBE_EVERY = 10
"""The seconds between two liveness probes; Kubernetes' default (`periodSeconds`)."""

_IN_TEMPLATES = (
    *("stop_within", "grace", "stop_silence", "interrupts_after"),
    *("broker_notices", "lost_after", "watchdog", "live_failures"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """
    The durations of the worker processes of some Workers, in seconds.

    Attributes:
        stop_within: The setting of this name: the time for a whole stop.
        time_limit: The longest time limit of these Workers; infinite if a Worker has no limit.
        broker_notices: The time in which the broker notices a dead or frozen worker process: three heartbeats.
            The time is 0 for a broker on this host, because such a broker has no heartbeats.
        lost_after: The time after which another worker process may take over the jobs of a frozen worker process: lease and margin.
    """

    stop_within: float
    time_limit: float
    broker_notices: float
    lost_after: float

    @property
    def grace(self) -> int:
        """
        The time between the platform's first signal and its SIGKILL; in this time, the process stops and exits.

        With a shorter time, the platform kills jobs that still have time, and the ledger records crashes instead of interruptions.
        """
        return math.ceil(self.stop_within) + EXIT_TAKES

    @property
    def watchdog(self) -> int:
        """
        The time without a sign of progress after which the platform restarts the process.

        An earlier restart would end jobs that could go on.
        A later restart has no advantage, because another process has taken over the jobs by then.
        """
        return math.ceil(max(self.broker_notices, self.lost_after))

    @property
    def stop_silence(self) -> int:
        """The time after which systemd kills a stopping process that does not ask for more time (EXTEND_TIMEOUT_USEC in sd_notify(3))."""
        return min(self.grace, self.watchdog)

    @property
    def interrupts_after(self) -> int:
        """The time after the first stop signal in which jobs may finish. After this time, the jobs are interrupted."""
        return max(0, math.ceil(self.stop_within - INTERRUPT_BEFORE_END))

    @property
    def finishes_within(self) -> int | None:
        """The shortest `stop_within` in which every job can finish, or None if a Worker has no time limit."""
        return math.ceil(self.time_limit + INTERRUPT_BEFORE_END) if self.time_limit < math.inf else None

    @property
    def live_failures(self) -> int:
        """
        The number of failed liveness probes after which Kubernetes restarts the container (`failureThreshold`).

        When a thread is stuck for 30 to 60 s, `/livez` begins to fail.
        From then on, the probes must fail for the watchdog's time before the restart.
        """
        return max(3, math.ceil(self.watchdog / PROBE_EVERY))

    def values(self) -> dict[str, str]:
        """Return the numbers by their names in the templates, and a sentence about the end of a job."""
        finishes = "Jobs without a time limit can outlast every stop_within."
        if self.finishes_within is not None:
            finishes = f"With stop_within = {self.finishes_within} or more, every job can finish."
        return {name: f"{getattr(self, name):.15g}" for name in _IN_TEMPLATES} | {"finishes": finishes}


def numbers_of(specs: Sequence[WorkerSpec], options: Options, brokers: Sequence[Capabilities]) -> Numbers:
    """Return the numbers of a process that runs these Workers; `brokers` has the capabilities of each Worker's broker."""
    return Numbers(
        stop_within=options.stop_within,
        time_limit=max(spec.time_limit or math.inf for spec in specs),
        broker_notices=max(broker.forgets_consumers_within for broker in brokers),
        lost_after=Times().lease + Times().margin,
    )
