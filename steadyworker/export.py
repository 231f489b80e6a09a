"""
The contract between a job and an export; it consists of three small Protocols, `Export`, `ExportAddress` and `Services`.

The exports themselves are in `steadyworker.exports`, which the rest of the package never imports.
The export runs in the job's own process (the child).
That process writes the file to a staging folder (the stage), computes the file's hash, and requests permission to commit.
Then it links the file to the target.
To reach the ledger and the services of the worker process, the export calls `Services`, which `job.py` implements over the pipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import TypeVar

ManifestT_co = TypeVar("ManifestT_co", covariant=True, default=Any)


class Services(Protocol):
    """The calls from an export to its job; each call raises Interrupt if the run must end."""

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

    @property
    def queue(self) -> str:
        """The queue of the job's message."""
        ...

    @property
    def namespace(self) -> str:
        """The ledger's name for the broker of the queue."""
        ...

    def progress(self, done: float | None, total: float | None, note: str = "") -> None:
        """Report progress; call it for real progress only, never by a timer."""
        ...

    def check(self) -> None:
        """Raise Interrupt if the run must end."""
        ...

    def export_state(self) -> bytes | None:
        """Return the bytes of the job's last `save_export_state`, in this run or an earlier run; None if nothing is stored."""
        ...

    def save_export_state(self, value: bytes | None) -> None:
        """
        Store the export's state in the ledger, and return when the ledger has it durably.

        The state has at most 64 KiB: a reference to external work, or a position in the output; None clears the state.
        """
        ...

    def may_commit(self) -> None:
        """
        Ask the ledger for permission to publish the export, and return when the ledger gives it.

        The ledger gives permission if this run still owns the job, and the job is not cancelled.

        Raises:
            Interrupt: Its reason is "fenced" if another run owns the job now, or "cancelled" if the job is cancelled.
        """
        ...

    def staged(self, folder: Path | str) -> None:
        """
        Record that a folder has a stage, so that a worker process can remove the stage if this run cannot.

        A folder of this host is a Path; for other folders, the text is one that `steadyworker.exports.folders` knows.
        """
        ...

    def ended(self, uids: Sequence[str]) -> frozenset[str]:
        """Return the given uids whose jobs are done or dead in the ledger."""
        ...

    def call(self, service: str, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """
        Call a service of the worker process, and yield the service's events; the last event has `"end": True`.

        If the caller closes the iterator early, the call is cancelled.
        """
        ...


class ExportAddress(Protocol):
    """A target that is no path of this host, such as `steadyworker.exports.S3`; its text (`str`) is its URL."""

    @property
    def url(self) -> str:
        """The URL."""
        ...


class Export(Protocol[ManifestT_co]):
    """An export into one file: `RowExport`, `DuckDBExport`, `SparkExport`, or a user's own class; such a class can have its own type of manifest."""

    def write(
        self, services: Services, to: Any, *, format: Any, totals: Mapping[str, str], by: Sequence[str]
    ) -> ManifestT_co:
        """
        Make the file, whole or not at all, and return the file's manifest.

        `to` is a Path of this host, or a URL such as `s3://…`, or an `ExportAddress`, as the caller of `Job.export` gave it.
        If this job has made the file before, return the manifest of that file.
        `Job.export` passes `if_exists`, `split_rows`, `split_bytes` and `partition_by` only if its caller does.
        So an export without these parameters replaces no file, and makes one file.
        """
        ...
