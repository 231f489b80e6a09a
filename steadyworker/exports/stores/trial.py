"""The trial of a target before a deploy: small objects show whether the store can be reached, and what it promises."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from steadyworker.errors import ExportError
from steadyworker.exports.s3.bucket import Bucket, PartsDifferError
from steadyworker.exports.stage import STAGES
from steadyworker.exports.stores.opening import open_store
from steadyworker.exports.stores.store import AbsentError, ConditionError, Label, ObjectStore, StoreAddress


def tried(address: StoreAddress) -> tuple[str, ...]:
    """
    List, put an object in a stage of this folder, read and remove it, and return what the store does not promise.

    The rights are those of an export, with the rights to delete and, in S3, to list uploads, which the removal of stages needs.
    In a store with folders, the folder stays, and an empty folder `.sw-stage` in it.

    Args:
        address: An object in the folder, which need not exist.

    Raises:
        ExportError: A request failed, or the store replaces an object that it must keep.
    """
    uid = f"try-{secrets.token_hex(4)}"
    key = f"{address.folder}{STAGES}/{uid}.object"
    with closing(open_store(address)) as store:
        try:
            _try(store, key, Label(uid))
        except BaseException:
            with suppress(ExportError):  # the first error shows more
                store.delete([key])
            raise
        store.delete([key])
        return address.limits


def _try(store: ObjectStore, key: str, label: Label) -> None:
    """Make the requests of an export: list, put, put again, read; in S3, also those of an upload in parts."""
    store.objects(f"{store.address.folder}{STAGES}/")
    store.put(key, b"first", over=False, label=label)
    _must_refuse(store, "put", lambda: store.put(key, b"second", over=False, label=label))
    _must_refuse(store, "put with If-Match", lambda: store.put(key, b"second", over=False, match='"0"', label=label))
    if isinstance(store, Bucket):
        _try_parts(store, key)
    head = store.head(key)
    if head is None or store.read(key) != b"first" or (store.exact and head.label != label):
        raise ExportError(
            f"Expected the store of {store.address} to return the object and the metadata that were put, got others: use another store."
        )


def _try_parts(bucket: Bucket, key: str) -> None:
    """Begin an upload to the key of an object that exists; the bucket must not complete it."""
    upload = bucket.call("create_multipart_upload", Key=key, ChecksumAlgorithm="SHA256")["UploadId"]
    try:
        sha256 = base64.b64encode(hashlib.sha256(b"third").digest()).decode()
        sent = bucket.call("upload_part", Key=key, UploadId=upload, PartNumber=1, Body=b"third", ChecksumSHA256=sha256)
        if not bucket.parts(key, upload) or not bucket.uploads(key):
            raise ExportError(
                f"Expected the bucket of {bucket.address} to list an upload and its part, got none: use a server that has S3's multipart uploads."
            )
        parts = {"Parts": [{"PartNumber": 1, "ETag": sent["ETag"], "ChecksumSHA256": sha256}]}
        complete = partial(bucket.call, "complete_multipart_upload", Key=key, UploadId=upload, IfNoneMatch="*")
        _must_refuse(bucket, "upload", lambda: complete(MultipartUpload=parts))
    finally:
        with suppress(ExportError):  # the first error shows more
            bucket.abort(key, upload)


def _must_refuse(store: ObjectStore, what: str, request: Callable[[], object]) -> None:
    """Make a request that may replace no object; raise ExportError if the store accepts it."""
    try:
        request()
    except ConditionError:
        return
    except (AbsentError, PartsDifferError) as error:
        raise ExportError(
            f"Expected the bucket of {store.address} to know its own upload, got {error}: use a server that has S3's multipart uploads."
        ) from error
    raise ExportError(
        f"Expected the store of {store.address} to refuse a second object of one key by {what}, got none refused: use a server that "
        "has conditional requests (S3: If-None-Match and If-Match)."
    )
