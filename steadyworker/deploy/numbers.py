"""
The durations that a platform (systemd, Kubernetes) needs, computed from Workers and their settings.

::

    stop_within ───────────────→ grace ────────────→ terminationGracePeriodSeconds
    3 × heartbeat, lease + margin ──→ watchdog ────→ WatchdogSec, the time to failure of a liveness probe
    stop_within, watchdog ─────→ stop_silence ─────→ TimeoutStopSec with Type=notify
    time_limit ────────────────→ finishes_within ──→ the stop_within in which every job can finish

All results are whole seconds, rounded up, because that is what the platforms accept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from steadyworker.adapter import Capabilities
from steadyworker.clock import Times
from steadyworker.config.resolve import Options
from steadyworker.lifecycle import INTERRUPT_BEFORE_END
from steadyworker.spec import WorkerSpec

EXIT_TAKES = 2
"""
The seconds from the end of the stop budget to the end of the process: its last threads, and the exit of Python.

They make of the default `stop_within`, 28 s, the 30 s that Kubernetes allows by default.
"""

START_WITHIN = 90
"""
The seconds that a start may take, until the process reports that it runs.

The process reports this before its first contact with the broker, so only imports take time.
90 s is systemd's own default (DefaultTimeoutStartSec in systemd-system.conf(5)).
"""

PROBE_EVERY = 10
"""
The seconds between two liveness or readiness probes; Kubernetes' default (`periodSeconds`).

A worker process collects the evidence for a probe once a second.
"""

PROBE_WITHIN = 5
"""
The seconds that a probe waits for its reply.

Kubernetes' default of 1 s is too short for a node whose CPUs are all in use by jobs.
The health server itself allows 5 s for a request.
"""

STARTUP_EVERY = 5
"""The seconds between two startup probes: the process listens as soon as its imports are done."""

UNREADY_AFTER = 2
"""
The number of failed readiness probes after which a pod counts as not ready.

A worker receives no traffic from a Service, so this only changes what rollouts and operators see.
One failed probe can be a reconnect, which takes some seconds.
"""

RESTART_AFTER = 5
"""
The seconds between the end of a failed process and its next start.

They keep a process that fails at once from using a whole CPU, and are too short for an operator to wait for.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """
    What a platform must know about the worker processes of some Workers; all times are in seconds.

    Attributes:
        stop_within: The setting of this name: the time for a whole stop.
        time_limit: The longest time limit of these Workers; None if one of them has no limit.
        broker_notices: The time in which the broker notices a dead or frozen worker process: three heartbeats.
            0 if the broker has no heartbeats, because it is on this host.
        lease: The time for which a worker process holds a job without a renewal.
        lost_after: The time after which another worker process may take over the jobs of a frozen one: lease and margin.
    """

    stop_within: float
    time_limit: float | None
    broker_notices: float
    lease: float
    lost_after: float

    @property
    def grace(self) -> int:
        """
        The time between the platform's first signal and its SIGKILL, if the process cannot ask for more time.

        It is `stop_within`, and the time that the exit takes after it.
        With less, the platform kills jobs that had time left, and the ledger records crashes in place of interruptions.
        Kubernetes: `terminationGracePeriodSeconds`; a preStop hook's time must be added.
        systemd with Type=simple or Type=exec: TimeoutStopSec.
        """
        return math.ceil(self.stop_within) + EXIT_TAKES

    @property
    def watchdog(self) -> int:
        """
        The time without a sign of progress after which the platform restarts the process.

        A process that stands still for less time (a suspend, a swap, no CPU) loses nothing:
        the broker keeps its deliveries for three heartbeats, and the ledger keeps its jobs for lease and margin.
        An earlier restart would end jobs that could go on; a later one is no better, because another process has the jobs by then.
        So it is the longer of these two times.
        The process reports progress at least every 10 s, and only while each of its threads makes progress.
        """
        return math.ceil(max(self.broker_notices, self.lost_after))

    @property
    def stop_silence(self) -> int:
        """
        The time after which systemd kills a stopping process that does not ask for more time.

        While it stops, a worker process with Type=notify asks for 10 s more each second (EXTEND_TIMEOUT_USEC in sd_notify(3)).
        So TimeoutStopSec need not cover a `stop_within` of hours: a process that is silent for a whole watchdog's time hangs.
        """
        return min(self.grace, self.watchdog)

    @property
    def finishes_within(self) -> int | None:
        """
        The shortest `stop_within` in which every job can finish, or None if a Worker has no time limit.

        It is the time limit and the 13 s at the end of a stop, in which jobs are interrupted (`steadyworker/lifecycle.py`).
        With a shorter one, a job that still runs is interrupted, and continues from its checkpoint after the restart.
        """
        return None if self.time_limit is None else math.ceil(self.time_limit + INTERRUPT_BEFORE_END)

    @property
    def interrupts_after(self) -> int:
        """The time after the first stop signal in which jobs may finish; then they are interrupted."""
        return max(0, math.ceil(self.stop_within - INTERRUPT_BEFORE_END))

    @property
    def live_failures(self) -> int:
        """
        The number of failed liveness probes after which Kubernetes restarts the container (`failureThreshold`).

        `/livez` fails when a thread is stuck, which is known after 30 to 60 s; the probes then allow the watchdog's time.
        """
        return max(3, math.ceil(self.watchdog / PROBE_EVERY))

    @property
    def startup_failures(self) -> int:
        """The number of failed startup probes after which Kubernetes restarts the container: `START_WITHIN` in all."""
        return math.ceil(START_WITHIN / STARTUP_EVERY)


def numbers_of(
    specs: Sequence[WorkerSpec], options: Options, brokers: Sequence[Capabilities], times: Times | None = None
) -> Numbers:
    """
    Return the numbers for a worker process that runs these Workers with these settings.

    `brokers` has the capabilities of each Worker's adapter, because a heartbeat can be set in the broker's URL.
    """
    times = times or Times()
    limits = [spec.time_limit for spec in specs]
    bounded = [limit for limit in limits if limit is not None]
    return Numbers(
        stop_within=options.stop_within,
        time_limit=max(bounded) if bounded and len(bounded) == len(limits) else None,
        broker_notices=max((broker.forgets_consumers_within for broker in brokers), default=0.0),
        lease=times.lease,
        lost_after=times.lease + times.margin,
    )
