"""
`tests.support.main` for worker processes on RabbitMQ, which is asked again after two seconds at most; two more words:

| word | what it does |
|---|---|
| `look` | seconds between two looks at the queue's consumers |
| `spare` | seconds that a surplus of them may last beyond three heartbeats |
"""

from __future__ import annotations

import json
import os
import sys
from unittest.mock import patch

from steadyworker import reach
from steadyworker_rabbitmq import backoff
from tests.support.main import main

if __name__ == "__main__":
    script = json.loads(os.environ["STAGE"])
    patch.object(backoff, "LONGEST", 2.0).start()
    patch.object(reach, "LOOK_EVERY", script.get("look", reach.LOOK_EVERY)).start()
    patch.object(reach, "_SPARE", script.get("spare", reach._SPARE)).start()
    sys.exit(main())
