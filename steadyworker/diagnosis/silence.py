"""The silences of one side of a connection, compared with the heartbeat that both sides agreed on."""

from __future__ import annotations

from dataclasses import dataclass

_SLACK = 0.25
"""The seconds by which a byte may be late because this machine was busy."""


@dataclass(slots=True)
class Silence:
    """
    The time since the last byte of a side.

    Attributes:
        allowed: The largest silence that this side agreed to, in seconds; 0 if the sides agreed on no limit.
        last: The time of the side's last byte.
        late: Whether the present silence has been reported.
        paused: Whether nothing can be received, because the other side does not read.
    """

    allowed: float = 0.0
    last: float = 0.0
    late: bool = False
    paused: bool = False

    def agree(self, allowed: float, t: float) -> None:
        """Begin to judge silences."""
        self.allowed = allowed
        self.last = max(self.last, t)

    def resume(self, t: float) -> None:
        """Judge silences again, from this time on."""
        self.paused, self.last = False, max(self.last, t)

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
