"""
The stage of a job in a store: the records of its runs, and what a later run needs to complete the object.

::

    FOLDER/.sw-stage/<uid>.<digest>.<fence>.json     one for each run: its upload, or none yet
    FOLDER/.sw-stage/<uid>.<digest>.complete.json    of an upload in parts: the manifest and the parts; with it the stage is complete

`digest` is `ExportTarget.digest` of the target.
The job that makes a folder of several files first puts `<digest>.claim`, with its uid as the label.
So another job is refused before it puts a file, although its files can have other names.

There are no folders in the stage, because a store that has folders would keep them empty; only Spark's parts are in `<uid>/parts/`.
Each run writes only its own record, so a run that was frozen changes nothing of a later one.
`complete.json` is put once, with If-None-Match; so all runs of a job complete the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from steadyworker.errors import ExportError
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.stage import STAGES
from steadyworker.exports.stores.store import AbsentError, ConditionError, Label, Listed, ObjectStore, StoreAddress

Kind = TypeVar("Kind")

_COMPLETE = "complete.json"
_CLAIM = ".claim"
_CLAIMS = 3  # requests: another job's claim can end between two of them
_NAME = re.compile(r"(?P<uid>[^./]+)\.(?P<digest>[0-9a-f]{16})\.(?:[0-9]+|complete)\.json")
_SOON = timedelta(minutes=10)
"""The time from a run's first record to its upload: the SDK's tries take up to six minutes."""


class UploadedPart(msgspec.Struct, frozen=True, kw_only=True):
    """
    A part of an upload.

    Attributes:
        number: Its number, from 1.
        etag: The server's name of its content.
        bytes: Its size.
        sha256: Its SHA-256 as Base64; a server that has stored it demands it for Complete.
    """

    number: int
    etag: str
    bytes: int
    sha256: str


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    One run of a job, in the store.

    Attributes:
        key: The key of the object.
        upload: The id of the run's upload; None before the upload begins.
        options: The upload's size of parts, KMS key and storage class.
        several: True if the key is of a folder, whose objects have no such uploads.
        manifest: The manifest of the file that the run is about to put; None before, and for an upload or a folder.
        published: True if the job has published, but the store did not let it remove this stage.
    """

    key: str
    upload: str | None = None
    options: Mapping[str, Any] = {}
    several: bool = False
    manifest: Manifest | None = None
    published: bool = False


class CompleteStage(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a run needs to complete the object, without any row.

    Attributes:
        upload: The id of the upload.
        parts: Its parts, in order.
        manifest: The object's manifest.
    """

    upload: str
    parts: tuple[UploadedPart, ...]
    manifest: Manifest


class StoreStage:
    """
    The stage of one job for one target.

    Args:
        store: The store.
        uid: The job's uid.
        digest: The target's digest.
    """

    def __init__(self, store: ObjectStore, uid: str, digest: str) -> None:
        self._store = store
        self._all = stages_of(store.address)
        self._prefix = f"{self._all}{uid}.{digest}."
        self._claim = f"{self._all}{digest}{_CLAIM}"
        self._label = Label(uid, target=digest)

    def records(self) -> dict[int, RunRecord]:
        """Return the records of the job's runs by their fences, the newest first."""
        names = {found.key.removeprefix(self._prefix) for found in self._objects()}
        fences = sorted((int(name[:-5]) for name in names if name[:-5].isdecimal()), reverse=True)
        found = {fence: record_of(self._store, f"{self._prefix}{fence}.json") for fence in fences}
        return {fence: record for fence, record in found.items() if record is not None}

    def record(self, fence: int, record: RunRecord) -> None:
        """Put the record of a run."""
        self._store.put(f"{self._prefix}{fence}.json", msgspec.json.encode(record))

    def claim(self, ended: Callable[[Sequence[str]], Iterable[str]]) -> str | None:
        """
        Put this job's claim to the folder, and return None; return the uid of another job that has claimed it, and has not ended.

        Raises:
            ExportError: Other jobs claimed the folder, and ended, again and again.
        """
        ends: str | None = None  # the ETag of a claim whose job has ended
        for _ in range(_CLAIMS):
            with suppress(AbsentError, ConditionError):
                self._store.put(self._claim, b"claimed", over=False, match=ends, label=self._label)
                return None
            head, ends = self._store.head(self._claim), None
            if head is not None:
                uid = head.label.uid or ""
                if uid == self._label.uid:
                    return None
                if uid not in ended([uid]):
                    return uid
                ends = head.etag
        raise ExportError(
            f"Expected the claim {self._store.address.at(self._claim)} to stay, got another one each time: the next run tries again."
        )

    def complete(self, complete: CompleteStage) -> CompleteStage:
        """Put what completes the object, or return what an earlier run of the job has put."""
        try:
            self._store.put(self._prefix + _COMPLETE, msgspec.json.encode(complete), over=False)
        except ConditionError:
            return self.read() or complete
        return complete

    def read(self) -> CompleteStage | None:
        """Return what completes the object; None if no run has put it."""
        return _decoded(self._store.read(self._prefix + _COMPLETE), CompleteStage)

    def reopen(self) -> None:
        """Remove what completes the object, because the upload no longer has these parts."""
        self._store.delete([self._prefix + _COMPLETE])

    def remove(self) -> None:
        """End the claim and all uploads of the job's runs for this target, and remove the stage."""
        self.end()
        self._store.delete([each.key for each in self._objects()])

    def end(self) -> None:
        """End the claim and all uploads of the job's runs for this target."""
        for each in self._objects():
            record = record_of(self._store, each.key)
            if record is None:
                continue
            if record.several:
                self._release()
            elif record.upload is not None:
                self._store.abort(record.key, record.upload)
            elif not record.published:
                self._end_unrecorded(record.key, each.at)

    def _objects(self) -> list[Listed]:
        return [found for found in self._store.objects(self._all) if found.key.startswith(self._prefix)]

    def _release(self) -> None:
        """Remove the claim, if it is this job's."""
        head = self._store.head(self._claim)
        if head is not None and head.label.uid == self._label.uid:
            self._store.delete([self._claim])

    def _end_unrecorded(self, key: str, began: datetime) -> None:
        """
        End the upload that a run has begun, and could not record before it was killed.

        The store does not list whose an upload is.
        So this is an upload to the run's key that no record names, and that began in the ten minutes after the run's first record.
        """
        with suppress(ExportError):  # without the right to list uploads, the bucket's life-cycle rule ends them
            new = [
                each for each in self._store.uploads(key) if timedelta(seconds=-1) <= each["Initiated"] - began <= _SOON
            ]
            all_records = (record_of(self._store, each.key) for each in self._store.objects(self._all)) if new else ()
            known = {record.upload for record in all_records if record is not None}
            for each in new:
                if each["UploadId"] not in known:
                    self._store.abort(key, each["UploadId"])


def stages_of(address: StoreAddress) -> str:
    """Return the beginning of the keys of all stages beside this address."""
    return f"{address.folder}{STAGES}/"


def owner_of(key: str) -> tuple[str, str | None]:
    """Return the uid of an object in a stage, and the target's digest; None if it is not of a `StoreStage`, such as a part of Spark's."""
    name = key.partition(f"{STAGES}/")[2] if key.startswith(f"{STAGES}/") else key.partition(f"/{STAGES}/")[2]
    own = _NAME.fullmatch(name)
    return (own["uid"], own["digest"]) if own else (re.split("[./]", name, maxsplit=1)[0], None)


def record_of(store: ObjectStore, key: str) -> RunRecord | None:
    """Return the record of this key; None if it is no record, or of a target that is not beside the stage."""
    folder, _, name = key.rpartition("/")
    is_record = folder.endswith(STAGES) and _NAME.fullmatch(name) and not name.endswith(f".{_COMPLETE}")
    record = _decoded(store.read(key), RunRecord) if is_record else None
    beside = record is not None and record.key.rpartition("/")[0] == folder.removesuffix(STAGES).removesuffix("/")
    return record if beside else None


def _decoded(data: bytes | None, kind: type[Kind]) -> Kind | None:
    try:
        return None if data is None else msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError:
        return None
