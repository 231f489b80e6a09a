"""
The interface of an engine; the host runs jobs with an engine.

| engine | file | master | where Spark is |
|---|---|---|---|
| `Engine` | `engine.py` | `local[…]`, `spark://…`, any other | the driver is the host's own JVM |
| `ConnectEngine` | `connect.py` | `sc://…` | a Spark Connect server that the user runs; the host has no JVM |

Each engine gets two functions: the first receives the engine's events, and the second ends the host when Spark is lost.
After the death of a host, `SparkService` begins the host's jobs again on another host.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from steadyworker.exports.spark.protocol import RunExport


class Backend(Protocol):
    """
    An engine that runs jobs.

    One thread calls `run`, `cancel` and `stop`, another thread calls `alive`, and a third thread calls `outlive`.
    """

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of the software that runs the jobs, by name."""
        ...

    def warm_up(self, folder: Path) -> None:
        """Do the slow first steps before the first job; their files go into `folder`, which does not exist yet."""
        ...

    def run(self, run: RunExport) -> None:
        """Begin a job, and return at once; the job's last event is `done` or `failed`."""
        ...

    def cancel(self, job: str) -> None:
        """End a job, and return at once; do nothing if the job has ended."""
        ...

    def alive(self) -> bool:
        """Return True if Spark responds, and False if its connection fails; while Spark hangs, the call waits."""
        ...

    def outlive(self) -> int:
        """
        Wait until the JVM dies, and return its exit code, which is negative for a signal.

        Without a JVM, never return.
        """
        ...

    def abandon(self) -> None:
        """End everything that would outlive the host, within 2 s, because the worker process is gone."""
        ...

    def stop(self) -> None:
        """End the engine normally."""
        ...
