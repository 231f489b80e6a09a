"""
Measures what waits in the queues of this worker process; the ledger chooses one worker process of a fleet for each queue.

The meter has a thread of its own, because a broker can respond slowly.
The meter asks no broker whose connection is lost, and no decision depends on the meter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from steadyworker.adapter import Adapter, Depth
from steadyworker.clock import Clock
from steadyworker.errors import BrokerUnavailable, ConfigError, LedgerUnavailable
from steadyworker.ledger.facts import Facts
from steadyworker.telemetry.logs import get_logger
from steadyworker.text.plain_text import plain_text

EVERY = 10.0
"""Seconds between two measurements of a queue."""

_SIZE_EVERY = 60.0
"""Seconds between two reads of the size of the ledger."""

_AGAIN_AFTER = 60.0
"""Seconds without a measurement after the broker has not answered one."""


@dataclass(frozen=True, slots=True)
class MeasuredQueue:
    """A queue to measure; `is_connected` returns whether the connection to its broker is open, and any thread may call it."""

    namespace: str
    queue: str
    adapter: Adapter
    is_connected: Callable[[], bool]


class DepthMeter:
    """
    The measurements of one worker process.

    Attributes:
        depths: The depth of each queue that this process has measured in the last period, by queue.
            If another worker process measures a queue, the queue is not in this mapping.
        ledger_bytes: The size of the ledger, which this process reads once a minute while it measures a queue; otherwise None.
            So few processes of a fleet ask the server for the size, and no further choice is necessary.
    """

    def __init__(
        self, queues: Sequence[MeasuredQueue], facts: Facts, clock: Clock, size: Callable[[], int | None]
    ) -> None:
        self.depths: Mapping[str, Depth] = {}
        self.ledger_bytes: int | None = None
        self._size = size
        self._size_at = -math.inf
        self._last_size: int | None = None
        self._queues = queues
        self._facts = facts
        self._clock = clock
        self._again_at: dict[str, float] = {}
        self._log = get_logger("steadyworker.service")

    def measure(self) -> float:
        """
        Measure each queue whose turn it is, record the depths in the ledger, and return the seconds until the next call.

        If the ledger does not respond, no process measures.
        """
        found: dict[str, Depth] = {}
        for each in self._queues:
            with suppress(LedgerUnavailable):
                if (depth := self._measured(each)) is not None:
                    found[each.queue] = depth
                    self._facts.record_depth(each.namespace, each.queue, depth)
        self.depths = found
        self._read_size(measures=bool(found))
        return EVERY

    def _read_size(self, *, measures: bool) -> None:
        now = self._clock.monotonic()
        if measures and now >= self._size_at + _SIZE_EVERY:
            self._size_at = now
            with suppress(LedgerUnavailable):
                self._last_size = self._size()
        self.ledger_bytes = self._last_size if measures else None

    def _measured(self, each: MeasuredQueue) -> Depth | None:
        """Return the depth; None if the broker is away, or another process measures this queue."""
        if self._clock.monotonic() < self._again_at.get(each.queue, 0.0) or not each.is_connected():
            return None
        if not self._facts.may_measure(each.namespace, each.queue, EVERY):
            return None
        try:
            return each.adapter.depth()
        except (BrokerUnavailable, ConfigError) as error:  # ConfigError: the file with the URL cannot be read now
            why = str(error).removesuffix(".")
        except Exception as error:  # noqa: BLE001 - a client library can raise anything
            self._log.warning(
                "depth_not_measured", queue=each.queue, exc_info=True, explain="steadyworker.not-measured"
            )
            why = plain_text(error)
        self._again_at[each.queue] = self._clock.monotonic() + _AGAIN_AFTER
        return Depth.unknown(why)
