"""A ledger as the first worker process makes it: no other process creates one."""

from __future__ import annotations

from contextlib import closing

from steadyworker.backends.opening import open_ledger
from steadyworker.config.resolve import Options


def make_ledger(options: Options) -> None:
    """Create the ledger that these settings name."""
    with closing(open_ledger(options, create=True)) as ledger:
        ledger.ledger_id()
