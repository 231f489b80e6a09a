"""The flags of a trace, in a bounded number, with their evidence as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from steadyworker.diagnosis.picture.event_fields import Event, label, text_of, value_of
from steadyworker.diagnosis.picture.event_fields import field as field_of

MOST_ALIKE = 6
"""The largest number of kept flags of one id on one connection; further flags are only counted."""

MOST_IDS = 40
_MOST_TABLE_ROWS = 16
_MOST_COLUMNS = 6
_LONGEST_CELL = 90
_LONGEST_TABLE = 1_500

CONSEQUENCES = frozenset(
    {
        *("amqp.frame-cut", "amqp.connection-forced", "amqp.channel-error", "amqp.dead-channel"),
        *("stomp.frame-cut", "stomp.error-frame", "trace.unparsable"),
        *("rocketmq.frame-cut", "rocketmq.half-topic-grows", "rocketmq.message-illegal", "rocketmq.error-reply"),
        "rocketmq.reply-timeout",
    }
)
"""The flags that often follow from another flag, which is then named as the cause."""


@dataclass(frozen=True, slots=True)
class Table:
    """Evidence as a table."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int
    """The number of rows that were left out."""


@dataclass(slots=True)
class Flag:
    """A flag with its time."""

    id: str
    level: str
    what: str
    remedy: str
    evidence: Table | None
    t: float
    number: int

    @property
    def is_error(self) -> bool:
        """Whether the flag's problem ends connections or loses messages."""
        return self.level != "warning"

    @property
    def is_cause(self) -> bool:
        """Whether the flag can be the first of a chain of flags."""
        return self.id not in CONSEQUENCES


@dataclass(slots=True)
class Alike:
    """The flags of one id on one connection: the first flags, and the number of all flags."""

    first: list[Flag] = field(default_factory=list)
    count: int = 0
    last: float = 0.0

    def add(self, flag: Flag, most: int = MOST_ALIKE) -> bool:
        """Count a flag; keep the flag if it is among the first flags, or is the first error; return whether the flag is kept."""
        self.count += 1
        self.last = flag.t
        if len(self.first) < most:
            self.first.append(flag)
        elif flag.is_error and not self.worst.is_error:
            self.first[-1] = flag
        else:
            return False
        return True

    @property
    def worst(self) -> Flag:
        """The first error, or the first flag if there is no error."""
        return next((flag for flag in self.first if flag.is_error), self.first[0])


def flag_of(event: Event, t: float, number: int) -> Flag:
    """Return the flag that an event reports."""
    return Flag(
        id=text_of(event.get("id") or "unknown", 60),
        level="warning" if event.get("level") == "warning" else "error",
        what=text_of(event.get("what"), 400),
        remedy=text_of(event.get("remedy"), 500),
        evidence=table_of(field_of(event, "evidence")),
        t=t,
        number=number,
    )


def table_of(evidence: object) -> Table | None:
    """Return evidence, a list of mappings, as a table; None for anything else."""
    given = [row for row in evidence if isinstance(row, Mapping)] if isinstance(evidence, list) else []
    columns = list(dict.fromkeys(str(key) for row in given[:_MOST_TABLE_ROWS] for key in islice(row, _MOST_COLUMNS)))
    if not columns:
        return None
    rows: list[tuple[str, ...]] = []
    size = 0
    for row in given[:_MOST_TABLE_ROWS]:
        if size <= _LONGEST_TABLE:
            named = {str(key): value for key, value in islice(row.items(), _MOST_COLUMNS * 2)}
            rows.append(tuple(_cell(column, named.get(column, "")) for column in columns[:_MOST_COLUMNS]))
            size += sum(map(len, rows[-1]))
    return Table(tuple(label(column) for column in columns[:_MOST_COLUMNS]), tuple(rows), len(given) - len(rows))


def _cell(key: str, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return text_of(value, _LONGEST_CELL)
    return value_of(key, value, _LONGEST_CELL)
