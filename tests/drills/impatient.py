"""
Our worker, asking for a delivery timeout that its jobs outlive: `python -m tests.drills.impatient MODULE:WORKER`.

From 4.3 on a consumer's own timeout outranks the node's, and the one that we ask for is above the time limit: D3's never fires.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

from steadyworker_rabbitmq.checks import limits
from tests.drills.stories import DELIVERY_TIMEOUT
from tests.support.main import main

if __name__ == "__main__":
    with patch.object(limits, "wanted_timeout", lambda _time_limit: DELIVERY_TIMEOUT):
        sys.exit(main())
