"""
Two small Protocols between a job and its exports: `Export` and `Services`.

The export runs in the job's own process (the child).
It plans, stages, joins, hashes, requests permission to commit, and links.
For the ledger and the Spark host it calls `Services`, which `job.py` implements over the pipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from steadyworker.exports.manifest import Manifest  # only exports need it


class Services(Protocol):
    """The calls that an export may make to its job; each of them raises Interrupt if the run must end."""

    @property
    def uid(self) -> str:
        """The job's uid, used in the stage, the manifest and the ledger."""
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
        """Report progress; call it for real progress only, never by a timer."""
        ...

    def check(self) -> None:
        """Raise Interrupt if the run must end."""
        ...

    def export_state(self) -> bytes | None:
        """Return what an earlier run of this job stored with `save_export_state`."""
        ...

    def save_export_state(self, value: bytes | None) -> None:
        """Store a reference to external work, or a position (at most 64 KiB); return when it is durable."""
        ...

    def may_commit(self) -> None:
        """
        Return if the ledger confirms that this run may publish the export: it still owns the job, which is not cancelled.

        Raises:
            Interrupt: With the reason "fenced": another run owns the job now; or "cancelled".
        """
        ...

    def staged(self, folder: Path) -> None:
        """Remember on this host that a folder has a stage, so that it is removed if this run cannot remove it."""
        ...

    def ended(self, uids: Sequence[str]) -> frozenset[str]:
        """Return those of these jobs that are done or dead in the ledger, so that their stages may be removed."""
        ...

    def call(self, service: str, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """
        Call a service of the worker process; yield its events, up to and including the one with `"end": True`.

        To close the iterator early cancels the call.
        """
        ...


class Export(Protocol):
    """An export into one file: `SparkExport`, `RowExport`, or a user's own class."""

    def write(
        self, services: Services, to: Path, *, format: Any, totals: Mapping[str, str], by: Sequence[str]
    ) -> Manifest:
        """
        Make the file, whole or not at all, and return its manifest.

        If this job has made the file before, return that file's manifest.
        """
        ...
