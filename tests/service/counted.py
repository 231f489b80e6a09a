"""
A worker process on the embedded broker, which here counts its consumers for this user only as the test sets it.

The file `count` in the stage's folder has the number, or `none`; the audit runs every 0.1 s, and each one is a line in `audits`.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

from steadyworker.adapter import Capabilities, Uncounted
from steadyworker.runner import consumer_audit
from steadyworker_sqlite import SqliteAdapter
from tests.support.jobs import folder, note
from tests.support.main import main

ON_THE_NETWORK = Capabilities(counts_consumers=True)
"""What a broker is able to do that serves other hosts too."""


def consumers(_: SqliteAdapter) -> int | Uncounted:
    """The number that the test has set."""
    count = (folder() / "count").read_text()
    note("audits", count)
    return Uncounted("the user has no right to ask", "grant it") if count == "none" else int(count)


if __name__ == "__main__":
    patch.object(SqliteAdapter, "capabilities", ON_THE_NETWORK).start()
    patch.object(SqliteAdapter, "consumers", consumers).start()
    patch.object(consumer_audit, "AUDIT_EVERY", 0.1).start()
    sys.exit(main())
