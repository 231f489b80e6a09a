"""
How long a row is remembered after its job's end (contract §4, R9), in seconds of the wall clock.

`running`, `interrupted` and `moving` rows stay.
For a row that is gone, the counters in its message's headers speak.
"""

from __future__ import annotations

DAY = 86_400.0

MOVED = 14 * DAY
"""A `moved` row, counted from when its copy is due."""

DONE = 14 * DAY
"""A `done` row whose settlement is not known: its message may come again."""

DONE_AND_KNOWN = DAY
"""A `done` row whose message is known to be gone, counted from that moment."""

DEAD = 30 * DAY
"""A `dead` row, unless its dead letter is replayed or dropped earlier."""

OWNERS = DAY
"""A worker process that was not seen for this long is no longer listed."""
