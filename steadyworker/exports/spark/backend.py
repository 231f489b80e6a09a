"""
What the host asks of the engine that it runs jobs with.

| engine | file | master | where Spark is |
|---|---|---|---|
| `Engine` | `engine.py` | `local[…]`, `spark://…`, any other | the driver is the host's own JVM |
| `ConnectEngine` | `connect.py` | `sc://…` | a Spark Connect server that the user runs; the host has no JVM |

Both are made with what they tell their events to, and with what ends the host when Spark is gone: the host's death is what
makes `SparkService` begin its jobs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from steadyworker.exports.spark.protocol import Run


class Backend(Protocol):
    """Runs jobs; `run`, `cancel` and `stop` are called by one thread, `alive` and `outlive` by one each."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Of what runs the jobs."""
        ...

    def warm_up(self, folder: Path) -> None:
        """Do what makes the first job slow; may write into a folder that is not there yet."""
        ...

    def run(self, run: Run) -> None:
        """Begin a job; returns at once.  Its last event is `done` or `failed`."""
        ...

    def cancel(self, job: str) -> None:
        """End a job; returns at once, ignored when it has ended."""
        ...

    def alive(self) -> bool:
        """Whether Spark answers; waits for as long as it hangs."""
        ...

    def outlive(self) -> None:
        """Return when what the host cannot be without has died; it may be that there is no such thing."""
        ...

    def abandon(self) -> None:
        """The worker process is gone: within 2 s, end what would outlive the host."""
        ...

    def stop(self) -> None:
        """End in good order."""
        ...
