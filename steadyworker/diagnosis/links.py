"""
The relay's connections, and the two directions of each connection.

A direction of a connection goes through these states:

    | state | bytes | next |
    |---|---|---|
    | open | pass | after FIN: ended; if a write fails: broken; if a read fails: the connection is reset |
    | ended | the last bytes pass | when all have passed, the relay sends FIN, and the direction is done |
    | broken | are no longer read | the other direction's last bytes pass; then the connection is reset |

A connection is closed when both directions are done.
"""

from __future__ import annotations

from steadyworker.diagnosis.ends import End
from steadyworker.diagnosis.tap import Side


class Flow:
    """One direction of a connection; `side` is the side that sends."""

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
        self.acked = 0  # bytes that the target's kernel had confirmed at the last check
        self.progress = 0.0  # the time at which this number last grew
        self.reported = 0.0  # the time at which the queue was last reported

    @property
    def reads(self) -> bool:
        """Whether bytes may be received now."""
        return not (self.ended or self.pending) and self.source.ready and self.target.ready and not self.target.owes


class RelayLink:
    """A client's connection, with the relay's connection to the broker."""

    __slots__ = ("_tried", "broker", "client", "down", "number", "reset", "up")

    def __init__(self, number: int, client: End, broker: End) -> None:
        self.number = number
        self.client, self.broker = client, broker
        self.up = Flow(self, Side.CLIENT, client, broker)
        self.down = Flow(self, Side.BROKER, broker, client)
        self.reset = False
        self._tried = 1

    def of(self, end: End) -> tuple[Flow, Flow]:
        """Return two directions: the direction in which this end sends, and the direction in which this end receives."""
        return (self.up, self.down) if end is self.client else (self.down, self.up)

    def next_address(self, count: int) -> int | None:
        """Return the index of the broker's next address; None if all addresses were tried."""
        if self._tried >= count:
            return None
        self._tried += 1
        return self._tried - 1
