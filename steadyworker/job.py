"""
The job that a handler receives; its methods are the handler's calls to the worker process.

Every method is thread-safe.
Every call in the table can raise Interrupt, so even the simplest handler ends when its run must end.

| call | raises Interrupt |
|---|---|
| `check()` | from the draining stage on |
| `progress()`, `result()`, `checkpoint()` (after the save), `export()` | from the interrupting stage on |
| any call that the ledger refuses, because another run has the job | at once (`fenced`) |
| `export()` of a cancelled job | at the latest before it puts the file in place |
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal

from typing_extensions import TypeVar

from steadyworker.clock import Clock
from steadyworker.errors import BadPayload, ExportError, number
from steadyworker.export import Export, ExportAddress
from steadyworker.link import FindEnded, Link, MayCommit, RememberFolder, SaveCheckpoint, SaveExportState, Task
from steadyworker.names import file_name
from steadyworker.payload import Decode, plain_encode
from steadyworker.telemetry.logs import structlog_logger
from steadyworker.text.plain_text import as_unicode, plain_text

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

P = TypeVar("P")
C = TypeVar("C", default=Any)
ManifestT = TypeVar("ManifestT")

_NOTE = 500
_CHECKPOINT_BYTES = 64 << 10  # a checkpoint is a position, not a result
_RESULT_BYTES = 64 << 10


class Job(Generic[P, C]):
    """
    One job, as its handler receives it.

    Attributes:
        payload: The message's body, decoded to the Worker's payload type.
    """

    def __init__(
        self, payload: P, task: Task, *, link: Link, clock: Clock, began: float, decode_checkpoint: Decode
    ) -> None:
        self.payload = payload
        self._deadline = None if task.time_limit is None else began + task.time_limit
        self._task = task
        self._link = link
        self._clock = clock
        self._decode_checkpoint = decode_checkpoint
        self._checkpoint = task.last_checkpoint
        self._services = _JobServices(task, link)
        self._exporting: set[str] = set()
        self._changes = threading.Lock()

    @property
    def body(self) -> bytes:
        """The message's body, unchanged."""
        return self._task.body

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers: the sender's headers, and SteadyWorker's own headers (`sw-…`)."""
        return self._task.headers

    @property
    def queue(self) -> str:
        """The queue that the message came from."""
        return self._task.queue

    @property
    def key(self) -> str:
        """The job's key, the same in every run: an idempotency key for your own effects."""
        return self._task.key

    @property
    def name(self) -> str:
        """The key in a form that is safe as a file name; after a first replay it ends with `.r1`."""
        return file_name(self._task.key, self._task.round)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1; if a deploy or a lost host ended a run, the run is not an attempt."""
        return self._task.attempt

    @property
    def fence(self) -> int:
        """
        This run's fencing token, with which your own storage can refuse writes of older runs.

        The token is greater than the token of every earlier run, and is never reused.
        """
        return self._task.fence

    @property
    def sent_at(self) -> float | None:
        """
        The time when the message was sent, or None if the message does not carry a time.

        The unit is seconds since 1970, by the sender's or the broker's clock.
        """
        return self._task.sent_at

    @property
    def redelivered(self) -> bool | None:
        """
        Whether the broker had delivered the message before this run began, or None if the broker does not report this.

        True does not mean that an earlier run began: only `attempt` and `last_checkpoint` show that.
        """
        return self._task.redelivered

    @property
    def time_left(self) -> float | None:
        """Seconds until the time limit, or None without a time limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock.monotonic())

    @property
    def last_checkpoint(self) -> C | None:
        """
        The last position that this run or an earlier run saved, or None if there is no checkpoint yet.

        Raises:
            ValueError: The checkpoint does not decode to the Worker's checkpoint type, because that type has changed.
        """
        if self._checkpoint is None:
            return None
        try:
            value: C = self._decode_checkpoint(self._checkpoint)
        except BadPayload as error:
            raise ValueError(
                f"Expected the last checkpoint to be of the Worker's checkpoint type, got another type ({error}): "
                "make the new type decode the old one, or replay the job with --from-start."
            ) from None
        return value

    @cached_property
    def log(self) -> BoundLogger:
        """A structlog logger that carries queue, key, attempt, fence and trace id; the first use in a child imports structlog."""
        return structlog_logger("steadyworker.job").bind(**self._task.context())

    def progress(self, done: float | None = None, total: float | None = None, note: str = "") -> None:
        """
        Report the job's progress; without arguments, report only that the job goes on.

        `steadyworker jobs` shows the progress, and the stall limit counts from the last call.
        A call is cheap enough for every row, because the slot sends at most five reports a second.

        Args:
            done: The amount of work that is done: a number of any kind.
            total: The amount of work in all.
            note: A text for people, cut to 500 characters; `***` replaces passwords in it.

        Raises:
            TypeError: `done` or `total` is not a number.
            ValueError: `done` or `total` is not finite.
            Interrupt: The run must end now.
        """
        self._link.check(hard=True)
        self._services.progress(done, total, note)

    def checkpoint(self, value: C) -> None:
        """
        Save a position that the next run of this job can start from.

        The position is durable when the call returns.
        While the ledger does not respond, the call waits: during an outage, a job goes on only until its next checkpoint.

        Raises:
            ValueError: The value is not JSON, not of the checkpoint type, or over 64 KiB: save a position, not a result.
            Interrupt: The run must end now (raised after the save), or another run has the job (raised at once).
        """
        try:
            text = plain_encode(value)
            self._decode_checkpoint(text)
        except BadPayload as error:
            raise ValueError(
                f"Expected a checkpoint of the Worker's checkpoint type, got {type(value).__name__}: {error}."
            ) from None
        if len(text) > _CHECKPOINT_BYTES:
            raise ValueError(
                f"Expected a checkpoint of at most {_CHECKPOINT_BYTES} bytes, got {len(text)}: "
                "save a position, and keep results elsewhere."
            )
        self._link.ask(SaveCheckpoint(text))
        self._checkpoint = text
        self._link.check(hard=True)

    def result(self, value: object) -> None:
        """
        Set the job's result, for `Client.status` and `steadyworker show`: a small value, or the place of a large one.

        The ledger records the result together with `done`, and deletes it together with the record of the job.
        So only the run that ends as done has a result.
        A second call replaces the result of the first.
        The result is your data, like a checkpoint: SteadyWorker shows it unchanged, so do not put a secret into it.

        Raises:
            ValueError: The value is not JSON, or over 64 KiB: keep the data elsewhere, and pass its path or URL.
            Interrupt: The run must end now.
        """
        self._link.check(hard=True)
        try:
            text = plain_encode(value)
        except BadPayload as error:
            raise ValueError(f"Expected a result that JSON can express, got {type(value).__name__}: {error}.") from None
        if len(text) > _RESULT_BYTES:
            raise ValueError(
                f"Expected a result of at most {_RESULT_BYTES} bytes of JSON, got {len(text)}: "
                "keep the data elsewhere, and pass its path or URL."
            )
        self._link.result = text

    def check(self) -> None:
        """
        Raise Interrupt when the worker process is stopping or this run must end; otherwise do nothing.

        During a stop, `check` raises at once, but `progress` and `checkpoint` raise only from 13 s before the end of the stop.
        Call `check` at places where the run can end without lost work; for the stall limit, a call does not count as progress.
        """
        self._link.check(hard=False)

    def export(
        self,
        export: Export[ManifestT],
        to: str | os.PathLike[str] | ExportAddress,
        *,
        format: Any = None,
        totals: Mapping[str, str] | None = None,
        by: Sequence[str] = (),
        if_exists: Literal["fail", "replace-own"] = "fail",
        split_rows: int | None = None,
        split_bytes: int | None = None,
        partition_by: Sequence[str] = (),
    ) -> ManifestT:
        """
        Export to one file or one folder of files, which appears complete or not at all, and return its Manifest.

        Args:
            export: `RowExport`, `DuckDBExport`, `SparkExport`, or any object with the same `write` method.
            to: A local path, an address such as "s3://bucket/key.csv" or "gs://bucket/key.csv", or `S3` with its options.
                A relative path starts at the working directory.
            format: `Csv()`, `JsonLines()`, `Parquet()` or `Xlsx()`; the file's name decides the default.
            totals: The columns to sum during the export, as a mapping of column to "sum".
            by: The columns by which the totals are grouped; at most 10,000 groups.
            if_exists: `replace-own` replaces the file of an earlier job with the same queue and key, if the file still has the size in its manifest.
                In a bucket, it replaces one object, and no folder of objects.
                A reader can see the new file beside the old manifest for a moment.
                `fail` replaces nothing.
            split_rows: The most rows of a file; with this or one of the next two arguments, `to` is a folder of files with a manifest.
            split_bytes: The size after which a file ends; not for XLSX.
            partition_by: The columns whose values name the files' folders, such as `merchant=m-17/`.

        Raises:
            ExportError: The export is not possible as requested, or another thread of this run exports to the same path.
            ExportRejected: No retry can make the export possible; if you do not catch this, the job becomes a dead letter.
            TargetExists: Another job's file has this path; TargetExists is an ExportRejected.
        """
        url = isinstance(to, str) and "://" in to
        target: str | os.PathLike[str] | ExportAddress = (
            to if url or not isinstance(to, (str, os.PathLike)) else Path(to)
        )
        self._link.check(hard=True)
        with self._alone(str(target.absolute() if isinstance(target, Path) else target)):
            options: dict[str, Any] = {} if if_exists == "fail" else {"if_exists": if_exists}
            limits = {"split_rows": split_rows, "split_bytes": split_bytes, "partition_by": tuple(partition_by) or None}
            options |= {name: limit for name, limit in limits.items() if limit is not None}
            manifest = export.write(
                self._services, target, format=format, totals=dict(totals or {}), by=tuple(by), **options
            )
        self._link.exports.append(manifest)
        return manifest

    @contextmanager
    def _alone(self, target: str) -> Iterator[None]:
        """
        Raise ExportError if this run is already exporting to the target.

        A second thread would remove the first thread's files, and commit an incomplete file.
        """
        with self._changes:
            if target in self._exporting:
                raise ExportError(
                    f"Expected one export at a time to {target}, got a second one of the same run: wait for the first. "
                    "The first may still run in a thread whose caller has stopped waiting (asyncio.wait_for, a future's timeout)."
                )
            self._exporting.add(target)
        try:
            yield
        finally:
            with self._changes:
                self._exporting.remove(target)


class _JobServices:
    """The calls of an export to its job: `export.Services` over the link."""

    def __init__(self, task: Task, link: Link) -> None:
        self._task = task
        self._link = link
        self._export_state = task.export_state

    @property
    def uid(self) -> str:
        return self._task.uid

    @property
    def fence(self) -> int:
        return self._task.fence

    @property
    def key(self) -> str:
        return self._task.key

    @property
    def queue(self) -> str:
        return self._task.queue

    @property
    def namespace(self) -> str:
        return self._task.namespace

    def progress(self, done: float | None, total: float | None, note: str = "") -> None:
        # These checks are here, so that the handler's own line raises the error; no later step may refuse the values.
        done = None if done is None else number("the progress (done)", done)
        total = None if total is None else number("the progress (total)", total)
        self._link.progress(done, total, plain_text(note, _NOTE) if note else "")
        self._link.check(hard=True)

    def check(self) -> None:
        self._link.check(hard=True)

    def export_state(self) -> bytes | None:
        return self._export_state

    def save_export_state(self, value: bytes | None) -> None:
        if value is not None and not isinstance(value, bytes):
            raise TypeError(f"Expected an export's state as bytes or None, got {type(value).__name__}: encode it.")
        if value is not None and len(value) > _CHECKPOINT_BYTES:
            raise ValueError(f"Expected an export's state of at most {_CHECKPOINT_BYTES} bytes, got {len(value)}.")
        self._link.ask(SaveExportState(value))
        self._export_state = value

    def may_commit(self) -> None:
        self._link.ask(MayCommit())

    def staged(self, folder: Path | str) -> None:
        self._link.ask(RememberFolder(os.fsencode(folder)))  # bytes: a frame would change a name that is not UTF-8

    def ended(self, uids: Sequence[str]) -> frozenset[str]:
        return frozenset(self._link.ask(FindEnded([as_unicode(uid) for uid in uids])))

    def call(self, service: str, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if not isinstance(service, str):
            raise TypeError(f"Expected the name of a service, got {service!r}: pass a text.")
        return self._link.call(service, request)
