"""The address of a target in a store, and the store itself; this module imports no client library."""

from __future__ import annotations

import re
from typing import Any

from steadyworker.exports.s3.address import S3, SCHEME
from steadyworker.exports.s3.bucket import Bucket
from steadyworker.exports.stores.filesystem import FileSystem
from steadyworker.exports.stores.store import ObjectStore, StoreAddress
from steadyworker.exports.stores.url import StoreUrl

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def store_address(to: object, **options: Any) -> StoreAddress | None:
    """
    Return the address if this target is in a store, otherwise None.

    Args:
        to: The target, as the caller of `Job.export` gave it.
        options: Options of `S3`.

    Raises:
        ExportRejected: The URL is invalid.
    """
    if isinstance(to, (S3, StoreUrl)):
        return to
    if not isinstance(to, str) or not _URL.match(to):
        return None
    return S3(to, **options) if to.startswith(SCHEME) else StoreUrl(to)


def open_store(address: StoreAddress) -> ObjectStore:
    """
    Return the store of an address.

    Raises:
        ExportRejected: There is no such kind of store.
        ExportError: The client library is missing, or its settings are invalid.
    """
    return Bucket(address) if isinstance(address, S3) else FileSystem(address)  # type: ignore[arg-type] # the only other address
