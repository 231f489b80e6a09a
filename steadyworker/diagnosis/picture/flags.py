"""What a trace has noticed: flags, with their evidence as a table, in a bounded number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from steadyworker.diagnosis.picture.reading import Event, label, text_of, value_of
from steadyworker.diagnosis.picture.reading import field as field_of

MOST_ALIKE = 6
"""Flags of one id on one connection that are kept with their texts; others are counted."""

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
"""Flags that often follow from another one, which is then the cause to be named."""


@dataclass(frozen=True, slots=True)
class Table:
    """Evidence as a table; `head` is empty for a plain list."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0
    """Rows that were left out."""


@dataclass(slots=True)
class Flag:
    """One thing that was noticed, at its time."""

    id: str
    level: str
    what: str
    remedy: str
    evidence: Table | None
    t: float
    number: int

    @property
    def is_error(self) -> bool:
        """Whether it ends connections or loses messages."""
        return self.level != "warning"

    @property
    def is_cause(self) -> bool:
        """Whether it can be the first of a chain."""
        return self.id not in CONSEQUENCES


@dataclass(slots=True)
class Alike:
    """The flags of one id on one connection: the first ones, and the number of all."""

    first: list[Flag] = field(default_factory=list)
    count: int = 0
    last: float = 0.0

    def add(self, flag: Flag, most: int = MOST_ALIKE) -> bool:
        """Count a flag, and keep it if it is among the first, or the first error; return whether it is kept."""
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
        """The first error, else the first flag."""
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
    """Return evidence of any form as a table: rows as mappings or lists, a list of values, one mapping, or a text."""
    table = _whole(evidence)
    if table is None:
        return None
    rows, size = 0, 0
    while rows < len(table.rows) and size <= _LONGEST_TABLE:
        size += sum(map(len, table.rows[rows]))
        rows += 1
    return Table(table.head, table.rows[:rows], table.more + len(table.rows) - rows)


def _whole(evidence: object) -> Table | None:
    if evidence in (None, "", [], {}):
        return None
    if isinstance(evidence, Mapping):
        pairs = list(islice(evidence.items(), _MOST_TABLE_ROWS))
        facts = tuple((label(str(key)), _cell(str(key), value)) for key, value in pairs)
        return Table((), facts, len(evidence) - len(facts))
    if not isinstance(evidence, (list, tuple)):
        return Table((), ((_cell("", evidence),),))
    given = evidence[:_MOST_TABLE_ROWS]
    more = len(evidence) - len(given)
    if all(isinstance(row, Mapping) for row in given):
        columns = list(dict.fromkeys(str(key) for row in given for key in islice(row, _MOST_COLUMNS)))[:_MOST_COLUMNS]
        named = [{str(key): value for key, value in islice(row.items(), _MOST_COLUMNS * 2)} for row in given]
        rows = tuple(tuple(_cell(column, row.get(column, "")) for column in columns) for row in named)
        return Table(tuple(label(column) for column in columns), rows, more)
    lists = [row if isinstance(row, (list, tuple)) else (row,) for row in given]
    return Table((), tuple(tuple(_cell("", each) for each in row[:_MOST_COLUMNS]) for row in lists), more)


def _cell(key: str, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return text_of(value, _LONGEST_CELL)
    return value_of(key, value, _LONGEST_CELL)
