"""What removes the stages of settled jobs from a store, and finishes what only the manifest was missing from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

import msgspec

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportError
from steadyworker.exports.manifest import Manifest, same_key
from steadyworker.exports.stage import INSIDE, REMEMBERED, STAGES, SUFFIX
from steadyworker.exports.stores.opening import open_store, store_address
from steadyworker.exports.stores.stage import StoreStage, owner_of, stages_of
from steadyworker.exports.stores.store import (
    AbsentError,
    ConditionError,
    Label,
    Listed,
    ObjectHead,
    ObjectStore,
    StoreAddress,
)

_LATE = 600.0
"""The seconds that the last request of a killed process can take in the store: S3's Complete of many parts takes minutes."""


class Reaped(NamedTuple):
    """
    What `reap_store` has done.

    Attributes:
        uids: The uids of the jobs whose stages are removed.
        error: The first error for a job whose stage stays; None if there is none.
    """

    uids: tuple[str, ...]
    error: ExportError | None


def reap_store(
    store: ObjectStore, settled: Callable[[Sequence[str]], Iterable[str]], *, but: str = "", waiting: str | None = None
) -> Reaped:
    """
    Remove the stages of settled jobs in the address's folder of the store, as `stage.reap` does on a disk.

    If a job was killed between its object and the manifest, and ended without another run, put the manifest before; without labels, nothing shows whose an object is.

    Args:
        store: The store.
        settled: A function that gets uids, and returns the uids that are done or dead in the ledger.
        but: A uid that stays.
        waiting: The digest of a target for which a job waits: its stages come first, and the first error ends the rest.

    Raises:
        ExportError: The store does not list the stages.
    """
    by_uid: dict[str, list[Listed]] = {}
    for found in store.objects(stages_of(store.address)):
        by_uid.setdefault(owner_of(found.key)[0], []).append(found)
    by_uid.pop(but, None)
    forgotten = SystemClock().wall() - REMEMBERED
    done = frozenset(settled(list(by_uid))) if by_uid else frozenset()
    gone, error = [], None
    for uid in sorted(by_uid, key=lambda uid: waiting not in {owner_of(found.key)[1] for found in by_uid[uid]}):
        left = by_uid[uid]
        if uid in done or max(each.at for each in left).timestamp() < forgotten:
            try:
                if _reap_job(store, uid, left):
                    gone.append(uid)
            except ExportError as failed:
                error = error or failed
                if waiting is not None:
                    break
    return Reaped(tuple(sorted(gone)), error)


def _reap_job(store: ObjectStore, uid: str, left: list[Listed]) -> bool:
    """Remove the stages of a job, and return True; return False if an upload can still become an object, because Complete was sent shortly before."""
    unsettled = False
    late = SystemClock().wall() - max(each.at for each in left).timestamp() < _LATE
    for digest in sorted({digest for each in left if (digest := owner_of(each.key)[1]) is not None}):
        stage = StoreStage(store, uid, digest)
        records = stage.records().values()
        if any(record.published for record in records):
            stage.end()
            continue
        for folder in {record.key for record in records if record.several}:
            withdraw(store, folder, Label(uid, target=digest))
        stage.end()  # before the look at an object, so that none can appear later
        complete = stage.read()
        for record in records:
            manifest = record.manifest if complete is None else complete.manifest
            if record.several or manifest is None:
                continue
            head = store.head(record.key)
            if head is not None and head.label.uid == uid:  # without labels, no one knows whose object it is
                _finish(store, record.key, head, manifest)
            elif complete is not None and late:
                unsettled = True
    if not unsettled:
        store.delete([each.key for each in left])
    return not unsettled


def _finish(store: ObjectStore, key: str, head: ObjectHead, manifest: Manifest) -> None:
    """Put the manifest of an object, if this is the manifest's object; the stage has the only copy."""
    # The label of an upload in parts has no SHA-256; all runs of a job complete the same parts.
    same_bytes = head.size == manifest.bytes and head.label.sha256 in {None, manifest.sha256}
    if not same_bytes or head.label.uid != manifest.uid:
        return
    at = key + SUFFIX
    there, data = store.head(at), store.read(at)
    if data is not None:
        try:
            found = Manifest.parse(data, at)
        except ExportError:
            return  # another program's file
        if found.uid == manifest.uid or not same_key(found, manifest):
            return  # only the manifest of an earlier job whose object this job has replaced is replaced, too
    with suppress(AbsentError, ConditionError):  # another process has put it
        match = there.etag if there is not None else None
        store.put(at, manifest.dump(), over=False, match=match, label=Label(manifest.uid, target=head.label.target))


def withdraw(store: ObjectStore, folder: str, label: Label) -> None:
    """
    Remove the objects that a job has put into a folder, if the job has put no manifest after them; another job's manifest keeps none of them.

    Args:
        store: The store.
        folder: The folder's key.
        label: The uid and the target's digest, which are on the objects.
    """
    manifest = store.head(f"{folder}/{INSIDE}")
    if manifest is not None and manifest.label.uid == label.uid:
        return
    for each in store.objects(f"{folder}/"):
        head = store.head(each.key)
        if head is not None and (head.label.uid, head.label.target) == (label.uid, label.target):
            store.delete([each.key])


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
            The stages of all other jobs are removed then.
    """
    with closing(open_store(address)) as store:
        if (error := reap_store(store, settled).error) is not None:
            raise error
        return bool(store.objects(stages_of(address)))
