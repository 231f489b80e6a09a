"""
Counts and levels over time, in a fixed number of bins.

The length of a trace is not known while the trace is read.
When the trace's end passes the last bin, each pair of bins becomes one bin.
So a curve of an hour has the same size as a curve of a second, and is at most two times too coarse.
"""

from __future__ import annotations

from collections.abc import Iterator

BINS = 512
FIRST_WIDTH = 2.0**-14
"""The seconds of a bin at the start; the first 31 milliseconds fill all bins."""


class Counts:
    """The number of things in each bin of time."""

    __slots__ = ("_start", "counts", "width")

    def __init__(self, start: float) -> None:
        self._start = start
        self.width = FIRST_WIDTH
        self.counts = [0] * BINS

    def add(self, t: float, number: int = 1) -> None:
        """Count things at this time; a time before the start counts in the first bin."""
        bin_ = int((t - self._start) / self.width)
        while bin_ >= BINS:
            self.counts = [a + b for a, b in zip(self.counts[::2], self.counts[1::2], strict=True)] + [0] * (BINS // 2)
            self.width *= 2
            bin_ = int((t - self._start) / self.width)
        self.counts[max(bin_, 0)] += number

    def grouped(self, number: int) -> list[int]:
        """Return the sum of each group of `number` successive bins; the first group begins with the first bin."""
        return [sum(self.counts[at : at + number]) for at in range(0, BINS, number)]


class Level:
    """A level over time, such as the number of unacknowledged deliveries: its highest and its last value in each bin of time."""

    __slots__ = ("_bins", "_start", "highest", "last", "width")

    def __init__(self, start: float) -> None:
        self._start = start
        self.width = FIRST_WIDTH
        self.highest = 0.0
        self.last = 0.0
        self._bins: list[tuple[float, float] | None] = [None] * BINS

    def set(self, t: float, value: float) -> None:
        """Note the value that is valid from this time on."""
        bin_ = int((t - self._start) / self.width)
        while bin_ >= BINS:
            pairs = zip(self._bins[::2], self._bins[1::2], strict=True)
            self._bins = [_joined(a, b) for a, b in pairs] + [None] * (BINS // 2)
            self.width *= 2
            bin_ = int((t - self._start) / self.width)
        bin_ = max(bin_, 0)
        old = self._bins[bin_]
        self._bins[bin_] = (value if old is None or value > old[0] else old[0], value)
        self.last = value
        self.highest = max(self.highest, value)

    def grouped(self, number: int) -> list[float]:
        """Return the highest values of groups of `number` bins; a value is valid until the next value."""
        found: list[tuple[float, float] | None] = []
        for at in range(0, BINS, number):
            pair = None
            for each in self._bins[at : at + number]:
                pair = _joined(pair, each)
            found.append(pair)
        return list(_held(found))


def _joined(first: tuple[float, float] | None, second: tuple[float, float] | None) -> tuple[float, float] | None:
    if first is None or second is None:
        return first or second
    return max(first[0], second[0]), second[1]


def _held(pairs: list[tuple[float, float] | None]) -> Iterator[float]:
    held = 0.0
    for pair in pairs:
        if pair is None:
            yield held
        else:
            yield max(pair[0], held)
            held = pair[1]
