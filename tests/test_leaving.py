"""The end of a process, with its exit code, whatever is left."""

from __future__ import annotations

import subprocess
import sys

LEAVES = """
import threading
from steadyworker.system.leaving import leave

threading.stack_size(1 << 46)
leave(3)
"""


def test_a_process_that_can_start_no_thread_ends_with_its_code() -> None:
    ended = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (3, "")
