"""
The gauges of `/metrics`: the state of the worker process at the moment of a scrape.

`QueueReading` is the state of one queue; the service fills its fields, and this file only names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from steadyworker.depth import Depth
from steadyworker.telemetry.logs import lines_lost
from steadyworker.text.versions import version

if TYPE_CHECKING:
    from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class QueueReading:
    """
    The state of one queue's runner.

    Attributes:
        running: The number of runs, including runs whose settlement is not over.
        slots: The number of slots.
        slots_ready: The number of slots that can begin a run, or have a run.
        connected: True while the connection to the broker is open.
        blocked: True while the broker accepts no publishes, because of an alarm.
        ledger_up: True if the ledger responded to the last call.
        oldest: Seconds since the start of the oldest run; 0 without a run.
        time_limit: The Worker's `time_limit`, in seconds; None without a limit.
        losses: The number of lost connections, by reason.
        paused: True while the runner obeys a pause of this queue.
        depth: The queue's depth, if this process has measured it in the last seconds; otherwise None.
        known: False if the runner's thread stands still, so that the other values can be old.
    """

    queue: str
    running: int
    slots: int
    slots_ready: int
    connected: bool
    blocked: bool
    ledger_up: bool
    oldest: float
    time_limit: float | None
    losses: Mapping[str, int] = field(default_factory=dict)
    paused: bool = False
    depth: Depth | None = None
    known: bool = True

    @property
    def up(self) -> bool:
        """True while the connection to the broker is open, and the ledger responds; False if the process cannot know this."""
        return self.known and self.connected and self.ledger_up


_GAUGES: tuple[tuple[str, str, Callable[[QueueReading], float | None]], ...] = (
    ("jobs_running", "Runs, including those whose settlement is not over.", lambda each: each.running),
    ("slots", "Slots, each of which can have one run.", lambda each: each.slots),
    ("slots_ready", "Slots that can begin a run, or have one.", lambda each: each.slots_ready),
    ("connection_up", "1 while the broker's connection stands.", lambda each: each.connected),
    ("connection_blocked", "1 while the broker accepts no publishes.", lambda each: each.blocked),
    ("ledger_up", "1 if the ledger responded to the last call.", lambda each: each.ledger_up),
    ("job_oldest_run_seconds", "Seconds since the start of the oldest run; 0 without a run.", lambda each: each.oldest),
    ("job_time_limit_seconds", "The Worker's time_limit; no sample without one.", lambda each: each.time_limit),
    ("paused", "1 while a person pauses the queue for the whole fleet.", lambda each: each.paused),
)


_MESSAGES = ("ready", "delayed", "unacked", "dead")
"""The states of a message in a queue, each the name of a number of `Depth`."""

_DEPTH_GAUGES: tuple[tuple[str, str, Callable[[Depth], float | None]], ...] = (
    ("queue_consumers", "Consumers of the queue, as the broker counts them.", lambda depth: depth.consumers),
    (
        "queue_oldest_ready_age_seconds",
        "Age of the oldest ready message; 0 without one.",
        lambda depth: 0 if depth.ready == 0 else depth.oldest_age,
    ),
    (
        "queue_next_due_timestamp_seconds",
        "Time at which the first delayed message is due; no sample without one.",
        lambda depth: depth.next_due,
    ),
)

_UP = "1 while the broker's connection stands and the ledger responds; 0 also if the process cannot know this."


def gauges(
    queues: Sequence[str],
    readings: Callable[[], Sequence[QueueReading]],
    state: Callable[[], Mapping[str, bool]],
    ledger_bytes: Callable[[], int | None],
) -> Collector:
    """
    Return a collector that calls these functions at each scrape.

    `queues` are the queues of the process, which are not up before the first reading.

    `state` returns whether the process is `alive` and `ready`, as the probes report.
    `ledger_bytes` returns the size of the ledger, or None if this process has not measured it.
    Raise ImportError if prometheus-client is not installed.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

    class Gauges(Collector):
        def collect(self) -> Iterator[Any]:
            info = GaugeMetricFamily("steadyworker_info", "The version of SteadyWorker.", labels=("version",))
            info.add_metric((version(),), 1)
            yield info
            for name, holds in state().items():
                yield GaugeMetricFamily(
                    f"steadyworker_{name}", f"1 while the process is {name}, as the probes report it.", holds
                )
            found = readings()
            up = GaugeMetricFamily("steadyworker_up", _UP, labels=("queue",))
            for queue, works in (dict.fromkeys(queues, False) | {each.queue: each.up for each in found}).items():
                up.add_metric((queue,), works)
            yield up
            for name, text, read in _GAUGES:
                gauge = GaugeMetricFamily(f"steadyworker_{name}", text, labels=("queue",))
                for each in found:
                    if (value := read(each)) is not None:
                        gauge.add_metric((each.queue,), value)
                yield gauge
            yield from _depth_families({each.queue: each.depth for each in found if each.depth is not None})
            text = "Size of the ledger's file or tables, from a worker process that measures a queue."
            if (size := ledger_bytes()) is not None:
                yield GaugeMetricFamily("steadyworker_ledger_bytes", text, size)
            lost = CounterMetricFamily(
                "steadyworker_connection_losses", "Lost connections to the broker.", labels=("queue", "reason")
            )
            for each in found:
                for reason, number in each.losses.items():
                    lost.add_metric((each.queue, reason), number)
            yield lost
            unwritten = "Log lines of this process that were lost, because their reader stood still."
            yield CounterMetricFamily("steadyworker_log_lines_lost", unwritten, lines_lost())

    return Gauges()


def _depth_families(depths: Mapping[str, Depth]) -> Iterator[Any]:
    """Yield the numbers of the queues that this process has measured, by queue; an unknown number has no sample."""
    from prometheus_client.core import GaugeMetricFamily

    text = "Messages of the queue and of its dead-letter queue, from the one worker process that measures them."
    messages = GaugeMetricFamily("steadyworker_queue_messages", text, labels=("queue", "state"))
    for queue, depth in depths.items():
        for state in _MESSAGES:
            if (number := getattr(depth, state)) is not None:
                messages.add_metric((queue, state), number)
    yield messages
    for name, text, read in _DEPTH_GAUGES:
        gauge = GaugeMetricFamily(f"steadyworker_{name}", text, labels=("queue",))
        for queue, depth in depths.items():
            if (value := read(depth)) is not None:
                gauge.add_metric((queue,), value)
        yield gauge
