"""
The tables of the page and of the command line in a terminal: what runs, what waits, which worker processes live, what failed, who did what.

`steadyworker top` reads the ledger each 2 s, and asks no broker before an action.
It draws with textual (extra `top`): a well-kept library with keys, windows, wide characters, resizing, and a test driver (`Pilot`).
rich's `Live`, which the core has, only draws; a reader of keys, a cursor and questions would be code of our own.
`--once` and `--json` need neither textual nor a terminal.

| file | subject |
|---|---|
| `command.py` | the verb `top` |
| `tables.py` | the tables as values, as lines of a width, and as records |
| `orders.py` | the actions on selected rows |
| `view.py` | the view: tabs, keys, questions, and the last known tables while the ledger is away |
"""

from __future__ import annotations

from steadyworker.cli.other_verbs import Verb

TOP = Verb("Show jobs, queues and worker processes in this terminal.", "steadyworker.dashboard.top.command")
"""`steadyworker top`: shows the tables."""
