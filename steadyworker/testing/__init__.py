"""
Tools for tests of Workers, adapters and ledgers.

- `run_one` runs one job in the calling thread.
- `Harness` (and the pytest fixture `harness`) runs a whole worker process, with a broker, a ledger and a clock in memory.
  A test annotates the fixture as `harness: MakeHarness`; `WorkerProcess`, `QueuedMessage` and `Until` are types of its attributes.
- `conformance` holds the test suites that every adapter and every ledger must pass.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyworker.testing import conformance
    from steadyworker.testing.harness import Harness, Until
    from steadyworker.testing.one_run import RunResult, run_one
    from steadyworker.testing.plugin import MakeHarness
    from steadyworker.testing.queues import QueuedMessage
    from steadyworker.testing.worker_process import WorkerProcess

__all__ = [
    "Harness",
    "MakeHarness",
    "QueuedMessage",
    "RunResult",
    "Until",
    "WorkerProcess",
    "conformance",
    "run_one",
]

_HOMES = {
    "Harness": "harness",
    "MakeHarness": "plugin",
    "QueuedMessage": "queues",
    "RunResult": "one_run",
    "Until": "harness",
    "WorkerProcess": "worker_process",
    "run_one": "one_run",
}


def __getattr__(name: str) -> Any:
    if name == "conformance":
        return importlib.import_module(f"{__name__}.conformance")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
