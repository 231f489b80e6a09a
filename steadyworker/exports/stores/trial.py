"""The trial of a target before a deploy: small objects show whether the store can be reached, and what it promises."""

from __future__ import annotations

import secrets
from contextlib import closing, suppress

from steadyworker.errors import ExportError
from steadyworker.exports.stage import STAGES
from steadyworker.exports.stores.opening import open_store
from steadyworker.exports.stores.store import ConditionError, Label, ObjectStore, StoreAddress


def tried(address: StoreAddress) -> tuple[str, ...]:
    """
    List, put an object in a stage of this folder, read and remove it, and return what the store does not promise.

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
    """Make the requests of an export: list, put, put again, read."""
    store.objects(f"{store.address.folder}{STAGES}/")
    store.put(key, b"first", over=False, label=label)
    try:
        store.put(key, b"second", over=False, label=label)
    except ConditionError:
        pass
    else:
        raise ExportError(
            f"Expected the store of {store.address} to refuse a second object of one key, got none refused: use a server that "
            "has conditional requests (S3: If-None-Match)."
        )
    head = store.head(key)
    if head is None or store.read(key) != b"first" or (store.exact and head.label != label):
        raise ExportError(
            f"Expected the store of {store.address} to return the object and the metadata that were put, got others: use another store."
        )
