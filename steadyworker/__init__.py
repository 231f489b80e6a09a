"""
Jobs of seconds to many hours, one message each, that no dropped connection can lose or repeat.

Subclass `Worker`, write `handle(job)`, and start it with `run` or on the command line: `steadyworker run app:Worker`.
Names are imported when they are first used, so that `import steadyworker` costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyworker.client import Client, JobStatus
    from steadyworker.errors import ConfigError, Interrupt, Reject, Retry, SendError, Snooze, SteadyWorkerError
    from steadyworker.job import Job
    from steadyworker.retry import RetryPolicy
    from steadyworker.service.launch import run
    from steadyworker.worker import Worker

if sys.platform == "win32":
    raise ImportError("SteadyWorker runs on Linux, and on macOS for development; on Windows run it under WSL 2.")

__all__ = [
    "Client",
    "ConfigError",
    "Interrupt",
    "Job",
    "JobStatus",
    "Reject",
    "Retry",
    "RetryPolicy",
    "SendError",
    "Snooze",
    "SteadyWorkerError",
    "Worker",
    "run",
]

_HOMES = {
    "Client": "client",
    "ConfigError": "errors",
    "Interrupt": "errors",
    "Job": "job",
    "JobStatus": "client",
    "Reject": "errors",
    "Retry": "errors",
    "RetryPolicy": "retry",
    "SendError": "errors",
    "Snooze": "errors",
    "SteadyWorkerError": "errors",
    "Worker": "worker",
    "run": "service.launch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
