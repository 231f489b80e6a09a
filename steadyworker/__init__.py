"""
A framework for jobs of seconds to many hours: a dropped connection neither loses nor repeats a job.

Each job is one message in a queue of a broker.

Subclass `Worker`, write `handle(job)`, and start the Worker with `run` or on the command line: `steadyworker run app:Worker`.
Each name is imported at its first use, so that `import steadyworker` is fast.

The steps of a message through the package:

| step | place |
|---|---|
| the broker's adapter receives it | a package that implements `adapter.py`, such as `steadyworker_rabbitmq` or `steadyworker_stomp` |
| the runner reads the job's row, and starts, adopts or defers | `runner/deliveries.py`, by the rules in `ledger/rules.py` |
| a slot runs the handler | `slots/` |
| a pure function decides on ack, retry or dead letter | `retry.py` |
| the settler records, publishes and acknowledges | `runner/settler.py` |

A new broker needs only a package with an adapter, and no change here; `steadyworker_sqlite` is the package to copy.

The glossary:
| term | meaning |
|---|---|
| ledger | The durable record of jobs: each job's owner, lease, checkpoint and outcome. |
| owner | The worker process that runs a job, or settles its message. |
| lease | The time for which the owner holds a job: 60 s, renewed every 15 s. |
| margin | The 30 s after the end of a lease. During the margin, another worker process takes the job over only if the owner is proven dead. |
| fence | The fencing token of a run (`job.fence`). It is greater than the token of every earlier run, and is never reused. The ledger refuses a write under an older fence. |
| epoch | The life of one connection to the broker. A delivery can be settled only in the epoch in which it arrived. |
| hop | The number of a job's message. The first message has hop 0, and each copy that a retry or a snooze sends has the next hop. |
| round | The number of a job under its key. The first job has round 0. Each replay of a dead letter, and each `send(again=True)`, begins the next round. |
| adopt | To bind a redelivery to its job's run, which is already under way in this worker process. The run goes on, and settles this delivery. |
| detached | A run is detached while its delivery is lost, and no redelivery has replaced the delivery. |
| trusted | A run is trusted for 50 s from the start of its claim, or of its last granted renewal. Only a trusted run may commit. |
| keeper | The thread that renews the leases, and reads the cancel marks of running jobs. |
| parked | A settlement plan is parked if the broker never accepts its message. The worker process keeps the delivery, and tries again later. |
| turn | One pass of a thread's loop. The watchdog reports a thread that makes no turn. |
| slot | The place where one run at a time happens: a child process, or a thread. A slot is warm when it can begin a run. |
| guard | A small process beside the worker process. When the worker process dies, the guard kills every process that the children of the worker process have started. |
| checkpoint | A position that a job saves. The job's next run starts from this position. |
| snooze | To put a job off for a while. No counter changes. |
| quiet | The stage in which a worker process takes no new message, but keeps its connection and its runs. The process can return to the stage `running`. |
| draining | The first stage of a stop. The worker process takes no new message, but the runs may finish. |
| orphan | A claimed job whose message does not come again. A worker process runs the job with the message that the ledger keeps. |
| taken over | A job is taken over when another worker process runs it from its last checkpoint. The reason is that the old owner is dead, or that lease and margin are over. |
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyworker.client import Client, JobStatus, NewJob
    from steadyworker.errors import (
        BadPayload,
        BrokerUnavailable,
        ConfigError,
        Interrupt,
        LedgerUnavailable,
        Reject,
        Retry,
        SendError,
        Snooze,
        SteadyWorkerError,
    )
    from steadyworker.job import Job
    from steadyworker.outcome import JobState
    from steadyworker.retry import RetryPolicy
    from steadyworker.service.launch import run
    from steadyworker.worker import Worker

if sys.platform == "win32":
    raise ImportError("SteadyWorker runs on Linux, and on macOS for development; on Windows run it under WSL 2.")

__all__ = [
    "BadPayload",
    "BrokerUnavailable",
    "Client",
    "ConfigError",
    "Interrupt",
    "Job",
    "JobState",
    "JobStatus",
    "LedgerUnavailable",
    "NewJob",
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
    "BadPayload": "errors",
    "BrokerUnavailable": "errors",
    "Client": "client",
    "ConfigError": "errors",
    "Interrupt": "errors",
    "Job": "job",
    "JobState": "outcome",
    "JobStatus": "client",
    "LedgerUnavailable": "errors",
    "NewJob": "client",
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
