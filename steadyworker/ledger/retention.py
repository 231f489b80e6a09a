"""
The time that a row is kept after its job's end, in seconds of the wall clock.

`running`, `interrupted` and `moving` rows are always kept, except those that only hold a cancel mark.
When a row is gone, the runner reads the counters from the headers of the job's message.
"""

from __future__ import annotations

DAY = 86_400.0

MOVED = 14 * DAY
"""For a `moved` row, counted from the time at which its retry is due."""

DONE = 14 * DAY
"""For a `done` row whose settlement is not confirmed: the broker could deliver its message again."""

DONE_AND_KNOWN = DAY
"""For a `done` row whose settlement the broker confirmed, counted from the confirm."""

DEAD = 30 * DAY
"""For a `dead` row, unless its dead letter is replayed or dropped earlier."""

CANCEL_MARK = 14 * DAY
"""For a row that `cancel` made in advance and that no message claimed, counted from the last cancel."""

OWNERS = DAY
"""For an owner, counted from its last registration; after this time, the ledger no longer lists the owner."""

ABSENCE = 3600.0
"""
After this time without a registered owner of a queue, no older row of the queue runs without its message.

In this time, worker processes with another ledger can have done the queue's jobs.
"""
