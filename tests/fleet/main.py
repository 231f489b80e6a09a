"""
`tests.support.main` for worker processes that try the broker again after two seconds at most; five more words:

| word | what it does |
|---|---|
| `look` | seconds between two looks at the queue's consumers |
| `spare` | seconds that a surplus of them may last beyond three heartbeats |
| `quiet` | seconds without a consumer after which a worker process registers as quiet |
| `measure` | seconds between two measurements of what waits |
| `recheck` | seconds between two repetitions of the broker's checks |
"""

from __future__ import annotations

import json
import os
import sys
from unittest.mock import patch

from steadyworker.network import backoff
from steadyworker.runner import consumer_audit, runner
from steadyworker.service import broker_recheck, depth_meter
from tests.support.main import main

if __name__ == "__main__":
    script = json.loads(os.environ["STAGE"])
    patch.object(backoff, "LONGEST", 2.0).start()
    patch.object(consumer_audit, "AUDIT_EVERY", script.get("look", consumer_audit.AUDIT_EVERY)).start()
    patch.object(consumer_audit, "_SPARE", script.get("spare", consumer_audit._SPARE)).start()
    patch.object(runner, "QUIET_AFTER", script.get("quiet", runner.QUIET_AFTER)).start()
    patch.object(depth_meter, "EVERY", script.get("measure", depth_meter.EVERY)).start()
    for name in ("SOON", "DAILY"):
        patch.object(broker_recheck, name, script.get("recheck", getattr(broker_recheck, name))).start()
    sys.exit(main())
