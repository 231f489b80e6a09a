"""
What `Job.export` knows of exports, and what an export may ask of its job: two small Protocols.

The export runs in the job's own process (the child).  It plans, stages, joins, hashes, asks leave and links;
whatever needs the ledger or the Spark host it asks for through `Services`, which `job.py` implements over the pipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class Services(Protocol):
    """What an export may ask of the job that makes it; any of these raises Interrupt when the run must end."""

    @property
    def uid(self) -> str:
        """The job's uid: in the stage, the manifest and the ledger."""
        ...

    @property
    def fence(self) -> int:
        """The run's fence."""
        ...

    @property
    def key(self) -> str:
        """The job's key."""
        ...

    def progress(self, done: float | None, total: float | None, note: str = "") -> None:
        """Evidence of progress; never called by a clock."""
        ...

    def check(self) -> None:
        """Raise Interrupt when the run must end."""
        ...

    def export_state(self) -> bytes | None:
        """What an earlier run of this job stored with `save_export_state`."""
        ...

    def save_export_state(self, value: bytes | None) -> None:
        """Store external work or a position, durable before this returns (at most 64 KiB)."""
        ...

    def may_commit(self) -> None:
        """Ask leave to commit: returns when the ledger says that this run is still the one; raises Interrupt("fenced") when it is not."""
        ...

    def ended(self, uids: Sequence[str]) -> frozenset[str]:
        """Which of these jobs the ledger says are done or dead, so that their stages may be reaped."""
        ...

    def call(self, service: str, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """
        Ask a service of the worker process; yields its events up to and with the one that has `"end": True`.

        Closing the iterator early cancels the call.
        """
        ...


class Export(Protocol):
    """Something that can be exported into one file: `SparkExport`, `RowExport`, or a user's own."""

    def write(self, services: Services, to: Path, *, format: Any, totals: Mapping[str, str], by: Sequence[str]) -> Any:
        """Make the file, whole or not at all, and answer its manifest; a file that this job made before is answered from its manifest."""
        ...
