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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportError
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.stage import INSIDE, REMEMBERED, STAGES
from steadyworker.exports.stores.opening import open_store, store_address
from steadyworker.exports.stores.store import AbsentError, ConditionError, Label, Listed, ObjectStore, StoreAddress

_COMPLETE = "complete.json"
_CLAIM = ".claim"
_CLAIMS = 3  # requests: another job's claim can end between two of them
_END_OF_UID = re.compile("[./]")
_SOON = timedelta(minutes=10)
"""The time from a run's first record to its upload: the SDK's tries take half a minute."""


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
    """

    key: str
    upload: str | None = None
    options: Mapping[str, Any] = {}
    several: bool = False
    manifest: Manifest | None = None


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
        self._all = _stages(store.address)
        self._prefix = f"{self._all}{uid}.{digest}."
        self._claim, self._uid = f"{self._all}{digest}{_CLAIM}", uid

    def records(self) -> dict[int, RunRecord]:
        """Return the records of the job's runs by their fences, the newest first."""
        names = {found.key.removeprefix(self._prefix) for found in self._objects()}
        fences = sorted((int(name[:-5]) for name in names if name[:-5].isdecimal()), reverse=True)
        found = {fence: _record(self._store, f"{self._prefix}{fence}.json") for fence in fences}
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
                self._store.put(self._claim, self._uid.encode(), over=False, match=ends, label=Label(self._uid))
                return None
            head, ends = self._store.head(self._claim), None
            if head is not None:
                uid = head.label.uid or ""
                if uid == self._uid:
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
        data = self._store.read(self._prefix + _COMPLETE)
        try:
            return None if data is None else msgspec.json.decode(data, type=CompleteStage)
        except msgspec.MsgspecError:
            return None

    def reopen(self) -> None:
        """Remove what completes the object, because the upload no longer has these parts."""
        self._store.delete([self._prefix + _COMPLETE])

    def remove(self) -> None:
        """End all uploads of the job's runs for this target, and remove the stage."""
        _remove(self._store, self._objects(), self._all)

    def _objects(self) -> list[Listed]:
        return [found for found in self._store.objects(self._all) if found.key.startswith(self._prefix)]


def reap_store(
    store: ObjectStore, settled: Callable[[Sequence[str]], Iterable[str]], *, but: str = ""
) -> tuple[str, ...]:
    """
    Remove the stages of settled jobs in the address's folder of the store, as `stage.reap` does on a disk, and return the jobs' uids.

    Args:
        store: The store.
        settled: A function that gets uids, and returns the uids that are done or dead in the ledger.
        but: A uid that stays.
    """
    stages = _stages(store.address)
    by_uid: dict[str, list[Listed]] = {}
    for found in store.objects(stages):
        uid = _END_OF_UID.split(found.key.removeprefix(stages), maxsplit=1)[0]
        by_uid.setdefault(uid, []).append(found)
    by_uid.pop(but, None)
    forgotten = SystemClock().wall() - REMEMBERED
    done = frozenset(settled(list(by_uid))) if by_uid else frozenset()
    gone = [uid for uid, left in by_uid.items() if uid in done or max(each.at for each in left).timestamp() < forgotten]
    for uid in gone:
        for folder in {record.key for record in _records(store, by_uid[uid]) if record.several}:
            withdraw(store, folder, uid)
        _remove(store, by_uid[uid], stages)
    return tuple(sorted(gone))


def recorded(address: StoreAddress) -> str:
    """Return the text by which a worker process of this host finds the stages beside this address."""
    return msgspec.json.encode({"url": address.at(address.folder + STAGES), **address.reached_by}).decode()


def recorded_address(record: bytes) -> StoreAddress | None:
    """Return the address in a text of `recorded`; None if this is no such text."""
    try:
        found = msgspec.json.decode(record, type=dict[str, str | None])
        return store_address(found.pop("url"), **found)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, KeyError, ExportError):
        return None


def reap_address(address: StoreAddress, settled: Callable[[Sequence[str]], Iterable[str]]) -> bool:
    """
    Remove the stages of settled jobs in this address's folder, as `reap_store` does, and return whether stages are left.

    Raises:
        ExportError: There is no client library, or the store refused a request or did not respond.
    """
    with closing(open_store(address)) as store:
        reap_store(store, settled)
        return bool(store.objects(_stages(address)))


def withdraw(store: ObjectStore, folder: str, uid: str) -> None:
    """Remove the objects that a job has put into a folder, if the job has put no manifest after them; another job's manifest keeps none of them."""
    data = store.read(f"{folder}/{INSIDE}")
    with suppress(ExportError):  # the file of another program
        if data is not None and Manifest.parse(data, INSIDE).uid == uid:
            return
    for each in store.objects(f"{folder}/"):
        head = store.head(each.key)
        if head is not None and head.label.uid == uid:
            store.delete([each.key])


def _stages(address: StoreAddress) -> str:
    """Return the beginning of the keys of all stages beside this address."""
    return f"{address.folder}{STAGES}/"


def _remove(store: ObjectStore, found: list[Listed], stages: str) -> None:
    """Remove these objects of stages; first end the uploads that the records among them name."""
    for each in found:
        record = _record(store, each.key)
        if record is None:
            continue
        if record.several:
            _release(store, each.key, stages)
        elif record.upload is not None:
            store.abort(record.key, record.upload)
        else:
            _end_unrecorded(store, record.key, each.at, stages)
    store.delete([each.key for each in found])


def _release(store: ObjectStore, record: str, stages: str) -> None:
    """Remove the claim to a folder, if it is that of the job that has put this record."""
    uid, digest, _ = record.removeprefix(stages).split(".", 2)
    claim = f"{stages}{digest}{_CLAIM}"
    head = store.head(claim)
    if head is not None and head.label.uid == uid:
        store.delete([claim])


def _end_unrecorded(store: ObjectStore, key: str, began: datetime, stages: str) -> None:
    """
    End the upload that a run has begun, and could not record before it was killed.

    The store does not list whose an upload is.
    So this is an upload to the run's key that no record names, and that began in the ten minutes after the run's first record.
    """
    with suppress(ExportError):  # without the right to list uploads, the bucket's life-cycle rule ends them
        new = [each for each in store.uploads(key) if timedelta(seconds=-1) <= each["Initiated"] - began <= _SOON]
        known = {record.upload for record in _records(store, store.objects(stages))} if new else set()
        for each in new:
            if each["UploadId"] not in known:
                store.abort(key, each["UploadId"])


def _records(store: ObjectStore, listed: list[Listed]) -> Iterator[RunRecord]:
    """Yield the records of runs among these objects of stages."""
    found = (_record(store, each.key) for each in listed)
    return (record for record in found if record is not None)


def _record(store: ObjectStore, key: str) -> RunRecord | None:
    """Return the record of this key; None if the key is of something else in a stage, such as a part of Spark's."""
    folder, _, name = key.rpartition("/")
    is_record = folder.endswith(STAGES) and name.endswith(".json") and not name.endswith(f".{_COMPLETE}")
    data = store.read(key) if is_record else None
    try:
        return None if data is None else msgspec.json.decode(data, type=RunRecord)
    except msgspec.MsgspecError:
        return None
