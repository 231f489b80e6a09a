"""The delivery tags of a channel that wait for their acknowledgement."""

from __future__ import annotations

from enum import Enum, auto
from itertools import takewhile

MOST_WAITING = 100_000
"""The largest number of tags that are kept; if more wait, no acknowledgement is judged any more."""


class AckResult(Enum):
    """The effect of an acknowledgement."""

    NOW = auto()
    BEFORE = auto()
    """The tag was settled before, or the delivery needed no acknowledgement."""
    UNKNOWN = auto()
    """No delivery has this tag."""


class Tags:
    """The tags that wait, each with the time of its delivery; a broker numbers the deliveries of a channel from 1."""

    def __init__(self) -> None:
        self.highest = 0
        self._waiting: dict[int, float] = {}
        self._sure = True

    @property
    def waiting(self) -> int:
        """The number of tags that wait."""
        return len(self._waiting)

    @property
    def oldest(self) -> tuple[int, float] | None:
        """The oldest tag that waits, and the time of its delivery."""
        return next(iter(self._waiting.items()), None)

    def delivered(self, tag: int, *, needs_ack: bool, t: float = 0.0) -> None:
        """Note a delivery."""
        if tag <= self.highest:
            return
        self.highest = tag
        self._sure &= len(self._waiting) < MOST_WAITING
        if needs_ack and self._sure:
            self._waiting[tag] = t

    def settle(self, tag: int, *, multiple: bool = False) -> AckResult:
        """
        Note an acknowledgement.

        With `multiple`, all tags up to `tag` are acknowledged; if `tag` is 0, all tags are acknowledged.
        """
        last = tag or self.highest if multiple else tag
        if last > self.highest or (not last and not multiple):
            return AckResult.UNKNOWN
        settled = list(takewhile(lambda each: each <= last, self._waiting)) if multiple else [tag]
        found = [each for each in settled if self._waiting.pop(each, None) is not None]
        return AckResult.NOW if found or not self._sure or (multiple and not tag) else AckResult.BEFORE

    def requeued(self) -> None:
        """Note that all waiting messages went back to their queues, and will come again with new tags."""
        self._waiting.clear()
