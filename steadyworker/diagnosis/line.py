"""The common part of all protocols' conversations: a connection's events, and the known facts about its two sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from steadyworker.diagnosis.protocols import Spelled, spell_bytes
from steadyworker.diagnosis.silence import Silence
from steadyworker.diagnosis.tap import Side
from steadyworker.diagnosis.wire import Level, Wire

_CONSEQUENCE = 10.0
"""The seconds after a flag in which an error of the broker counts as the flag's consequence."""

MOST_FLAGS = 20
"""The largest number of flags of one id on one connection; later flags are only counted."""

_HEAD = 8  # the largest number of bytes that evidence shows


class Line:
    """
    One connection.

    Attributes:
        number: The number of the connection in this trace.
        silences: The silence of each side.
        closed_by: The side that closed first; `closed_how` is the way in which it closed.
        flagged: The number of the connection's flags of each id.
    """

    def __init__(self, wire: Wire, number: int) -> None:
        self.wire = wire
        self.number = number
        self.client_address = ""
        self.silences = {side: Silence() for side in Side}
        self.closed_by: Side | None = None
        self.closed_how = ""
        self.flagged: Counter[str] = Counter()
        self._explained_until = float("-inf")

    def event(self, t: float, side: Side | None, kind: str, /, **detail: object) -> None:
        """Write an event of a side or of the trace itself."""
        self.wire.event(t, self.number, "trace" if side is None else side.label, kind, **detail)

    def frame(self, t: float, side: Side, kind: str, /, **detail: object) -> None:
        """Write the event of one frame, and count it."""
        self.wire.frames[side.label] += 1
        self.wire.event(t, self.number, side.label, kind, **detail)

    def count(self, side: Side) -> None:
        """Count a frame for which no event is written."""
        self.wire.frames[side.label] += 1

    def flag(
        self,
        t: float,
        flag: str,
        what: str,
        evidence: Iterable[Mapping[str, object]] = (),
        *,
        level: Level | None = None,
        unless_flagged: bool = False,
    ) -> None:
        """
        Write a flag; after `MOST_FLAGS` flags of one id, only count it.

        With `unless_flagged`, write the flag only if no other flag explains it.
        """
        if unless_flagged and t < self._explained_until:
            return
        if flag not in _NO_CAUSES:
            self._explained_until = t + _CONSEQUENCE
        self.flagged[flag] += 1
        if self.flagged[flag] > MOST_FLAGS:
            self.wire.flags[flag] += 1
            return
        peer = {"peer": self.client_address} if self.client_address else None
        self.wire.flag(t, self.number, flag, what, evidence, level, peer)

    def cut(self, side: Side, what: str) -> str:
        """Return the sentence for a frame that was cut off."""
        if self.closed_by is None or self.closed_by is side:
            how = "reset the connection" if self.closed_how == "reset" else "closed its direction"
            return f"The {side.label} {how} in the middle of a frame: {what}."
        how = "reset" if self.closed_how == "reset" else "closed"
        return f"The {self.closed_by.label} {how} the connection while the {side.label} was in the middle of a frame: {what}."


_NO_CAUSES = {
    *("amqp.late-heartbeat", "amqp.broker-silent", "stomp.late-heartbeat", "stomp.broker-silent"),
    "amqp.unlimited-prefetch",
}
"""The flags that do not explain an error of the broker."""


def spelled(raw: bytes | Spelled) -> list[dict[str, object]]:
    """Return bytes as rows of evidence; each field of a frame's head is shown as number, hexadecimal and characters."""
    found = spell_bytes(raw[:_HEAD]) if isinstance(raw, bytes) else raw
    rows: list[dict[str, object]] = [
        {"field": row.field, "number": row.number, "hex": row.hex, "characters": row.characters} for row in found.rows
    ]
    if rows and found.protocol:
        rows.append({"field": "together", "number": "", "hex": "", "characters": found.protocol})
    return rows
