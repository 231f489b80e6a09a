"""The silences of one side of a connection, compared with the heartbeat that both sides agreed on."""

from __future__ import annotations

from dataclasses import dataclass

_SLACK = 0.25
"""The seconds by which a byte may be late because this machine was busy."""

_DRIFTING = 8
"""The number of slightly late heartbeats in a row that counts as a drift."""


@dataclass(slots=True)
class Silence:
    """
    The time since the last byte of a side.

    Attributes:
        allowed: The largest silence that this side agreed to, in seconds; 0 if the sides agreed on no limit.
        exact: Whether the other side's limit has no grace, so that slightly late heartbeats matter (STOMP).
        last: The time of the side's last byte.
        late: Whether the present silence has been reported.
        paused: Whether nothing can be received, because the other side does not read.
    """

    allowed: float = 0.0
    exact: bool = False
    last: float = 0.0
    late: bool = False
    paused: bool = False
    _drift: int = 0
    _drifted: float = 0.0

    def agree(self, allowed: float, t: float, *, exact: bool = False) -> None:
        """Begin to judge silences."""
        self.allowed, self.exact = allowed, exact
        self.last = max(self.last, t)

    def resume(self, t: float) -> None:
        """Judge silences again, from this time on."""
        self.paused, self.last = False, max(self.last, t)
        self._drift, self._drifted = 0, 0.0

    @property
    def limit(self) -> float:
        """Return the time at which the present silence is late; infinite if it was reported, is paused, or has no limit."""
        if self.late or self.paused or not self.allowed:
            return float("inf")
        return self.last + self.allowed + max(_SLACK, self.allowed / 10)

    def received(self, t: float) -> float:
        """Note a byte, and return the length of the silence before the byte if the silence was too long, otherwise 0."""
        length, late = t - self.last, self.late or t > self.limit
        self.last, self.late = t, False
        return length if late else 0.0

    def drifts(self, beat: float) -> float:
        """
        Note the time between two heartbeats with no other bytes between them.

        Returns:
            The mean lateness in seconds when `_DRIFTING` heartbeats in a row were late, otherwise 0.
        """
        late = beat - self.allowed
        if not (self.exact and self.allowed and late > 0):
            self._drift, self._drifted = 0, 0.0
            return 0.0
        self._drift += 1
        self._drifted += late
        return self._drifted / _DRIFTING if self._drift == _DRIFTING else 0.0
