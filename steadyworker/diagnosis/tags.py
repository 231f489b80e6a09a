"""The delivery tags of a channel: the tags that were delivered, and the tags that wait for their acknowledgement."""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum, auto

MOST_RUNS = 4_096
"""The largest number of runs of waiting tags; if there are more, the oldest two runs become one."""


class AckResult(Enum):
    """The effect of an acknowledgement."""

    NOW = auto()
    BEFORE = auto()
    """The tag was settled before, or the delivery needed no acknowledgement."""
    UNKNOWN = auto()
    """No delivery has this tag."""


class Tags:
    """
    The tags that wait, as runs of consecutive numbers.

    A broker numbers the deliveries of a channel from 1, and clients acknowledge them roughly in this order.
    So there are only a few runs, even if many tags wait.
    """

    __slots__ = ("_ends", "_starts", "highest", "waiting")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # for each run, the number after its last tag
        self.highest = 0
        self.waiting = 0

    def delivered(self, tag: int, *, needs_ack: bool) -> None:
        """Note a delivery."""
        if tag <= self.highest:
            return
        self.highest = tag
        if not needs_ack:
            return
        self.waiting += 1
        if self._ends and self._ends[-1] == tag:
            self._ends[-1] = tag + 1
            return
        self._starts.append(tag)
        self._ends.append(tag + 1)
        if len(self._starts) > MOST_RUNS:
            self.waiting += self._starts[1] - self._ends[0]
            del self._ends[0], self._starts[1]

    def settle(self, tag: int, *, multiple: bool = False) -> AckResult:
        """
        Note an acknowledgement.

        With `multiple`, all tags up to `tag` are acknowledged; if `tag` is 0, all tags are acknowledged.
        """
        if multiple:
            return self._settle_all(tag or self.highest) if tag or self.waiting else AckResult.NOW
        if not 0 < tag <= self.highest:
            return AckResult.UNKNOWN
        run = bisect_left(self._ends, tag + 1)
        if run == len(self._starts) or self._starts[run] > tag:
            return AckResult.BEFORE
        start, end = self._starts[run], self._ends[run]
        self.waiting -= 1
        if start == tag:
            self._starts[run] = tag + 1
        elif end == tag + 1:
            self._ends[run] = tag
        else:
            self._starts.insert(run + 1, tag + 1)
            self._ends.insert(run, tag)
        if self._starts[run] == self._ends[run]:
            del self._starts[run], self._ends[run]
        return AckResult.NOW

    def _settle_all(self, tag: int) -> AckResult:
        if tag > self.highest:
            return AckResult.UNKNOWN
        settled = False
        while self._starts and self._starts[0] <= tag:
            settled = True
            until = min(tag + 1, self._ends[0])
            self.waiting -= until - self._starts[0]
            if until == self._ends[0]:
                del self._starts[0], self._ends[0]
            else:
                self._starts[0] = until
                break
        return AckResult.NOW if settled else AckResult.BEFORE

    def requeued(self) -> None:
        """Record that all waiting messages went back to their queues, and will come again with new tags."""
        self._starts.clear()
        self._ends.clear()
        self.waiting = 0
