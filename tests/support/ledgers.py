"""A ledger, and an embedded broker, as the first worker process makes them: no other process creates one by a question."""

from __future__ import annotations

from contextlib import closing

from steadyworker.backends.opening import open_adapter_for, open_ledger
from steadyworker.config.resolve import Options


def make_ledger(options: Options) -> None:
    """Create the ledger that these settings name, and the broker's file if the broker is the embedded one."""
    with closing(open_ledger(options, create=True)) as ledger:
        ledger.ledger_id()
    if options.broker.startswith("sqlite:"):
        adapter = open_adapter_for("exports", options)
        adapter.identity()
        adapter.stop(5)
