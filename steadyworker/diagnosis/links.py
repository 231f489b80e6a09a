"""
The connections of the relay, and the two directions of each.

A direction of a connection goes through these states:

    | state | bytes | next |
    |---|---|---|
    | open | pass | FIN: ended; write fails: broken; read fails: the connection is reset |
    | ended | the last ones pass | all passed: FIN is sent, and the direction is done |
    | broken | are read no more | the other direction's last bytes pass, then the connection is reset |

A connection is closed when both directions are done.
"""

from __future__ import annotations

from steadyworker.diagnosis.ends import End
from steadyworker.diagnosis.tap import Side


class Flow:
    """One direction of a connection: `side` is the one that sends."""

    __slots__ = (
        "acked",
        "broken",
        "done",
        "ended",
        "link",
        "pending",
        "progress",
        "reported",
        "side",
        "skipped",
        "source",
        "target",
    )

    def __init__(self, link: RelayLink, side: Side, source: End, target: End) -> None:
        self.link, self.side, self.source, self.target = link, side, source, target
        self.pending: bytes | memoryview = b""
        self.ended = self.broken = self.done = False
        self.skipped = 0
        self.acked = 0  # what the target's kernel had confirmed at the last check
        self.progress = 0.0  # when that was more than before
        self.reported = 0.0  # when the queue was last reported

    @property
    def reads(self) -> bool:
        """Whether bytes may be received now."""
        return not (self.ended or self.pending) and self.source.ready and self.target.ready and not self.target.owes


class RelayLink:
    """One connection of a client, and that to the broker."""

    __slots__ = ("_tried", "broker", "client", "down", "number", "reset", "up")

    def __init__(self, number: int, client: End, broker: End) -> None:
        self.number = number
        self.client, self.broker = client, broker
        self.up = Flow(self, Side.CLIENT, client, broker)
        self.down = Flow(self, Side.BROKER, broker, client)
        self.reset = False
        self._tried = 1

    def of(self, end: End) -> tuple[Flow, Flow]:
        """Return the direction that comes from an end, and the one that goes there."""
        return (self.up, self.down) if end is self.client else (self.down, self.up)

    def next_address(self, count: int) -> int | None:
        """Return the index of the next of the broker's addresses; None if all were tried."""
        if self._tried >= count:
            return None
        self._tried += 1
        return self._tried - 1
