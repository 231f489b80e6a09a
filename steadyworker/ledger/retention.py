"""
How long the ledger keeps the row of each state, in seconds of the wall clock.

The ledger always keeps `running`, `interrupted` and `moving` rows, except rows that only hold a cancel mark.
When a job has no row any more, the runner reads the counters from the headers of the job's message.
"""

from __future__ import annotations

from msgspec import Struct

DAY = 86_400.0

MOVED = 14 * DAY
"""The time for a `moved` row, counted from the time at which its retry is due."""

DONE = 14 * DAY
"""The least time for a `done` row whose settlement is not confirmed, because the broker could deliver its message again."""


class Retention(Struct, frozen=True):
    """
    The times that a Worker can set, in seconds.

    Attributes:
        done: For a `done` row whose settlement the broker confirmed, counted from the confirm.
        dead: For a `dead` row, unless its dead letter is replayed or dropped earlier.
        cancelled: The same for a job that a cancel ended.
        attempts: For the record of a run, counted from the run's end; the record never stays longer than its job's row.
    """

    done: float = DAY
    dead: float = 90 * DAY
    cancelled: float = 7 * DAY
    attempts: float = 7 * DAY


USUAL = Retention()
"""The times for a queue whose Worker is not known, for example in a command."""

CANCEL_MARK = 14 * DAY
"""The time for a row that `cancel` inserted and no message has claimed, counted from the last cancel."""

OWNERS = DAY
"""The time for an owner, counted from its last registration; after this time, the ledger no longer lists the owner."""

ABSENCE = 3600.0
"""
If a queue has no registered owner for this time, no worker process runs an older row of the queue without its message.

The reason is that worker processes with another ledger can have done the queue's jobs in this time.
"""

LINK_EVENTS = DAY
"""The time for an event of a link."""

MINUTES = 2 * DAY
"""The time for the counts of a minute."""

COMMANDS = DAY
"""The time for a command that its worker process has not read."""

DEPTHS = DAY
"""The time for the last depth of a queue."""

ACTIONS = 90 * DAY
"""The time for an entry of the log of actions."""
