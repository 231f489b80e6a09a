"""
How long the ledger keeps the row of each state, in seconds of the wall clock.

The ledger always keeps `running`, `interrupted` and `moving` rows, except rows that only hold a cancel mark.
When a job has no row any more, the runner reads the counters from the headers of the job's message.
"""

from __future__ import annotations

DAY = 86_400.0

MOVED = 14 * DAY
"""The time for a `moved` row, counted from the time at which its retry is due."""

DONE = 14 * DAY
"""The time for a `done` row whose settlement is not confirmed, because the broker could deliver its message again."""

DONE_AND_KNOWN = DAY
"""The time for a `done` row whose settlement the broker confirmed, counted from the confirm."""

DEAD = 30 * DAY
"""The time for a `dead` row, unless its dead letter is replayed or dropped earlier."""

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
