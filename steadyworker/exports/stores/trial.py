"""The trial of a target before a deploy: small objects show whether the store can be reached, and what it promises."""

from __future__ import annotations

import secrets
from contextlib import closing

from steadyworker.errors import ExportError
from steadyworker.exports.stage import STAGES
from steadyworker.exports.stores.opening import open_store
from steadyworker.exports.stores.store import ConditionError, Label, StoreAddress


def tried(address: StoreAddress) -> tuple[str, ...]:
    """
    Put an object in a stage of this folder, read and remove it, and return what the store does not promise.

    Args:
        address: An object in the folder, which need not exist.

    Raises:
        ExportError: A request failed, or the store replaces an object that it must keep.
    """
    uid = f"try-{secrets.token_hex(4)}"
    key = f"{address.folder}{STAGES}/{uid}/object"
    with closing(open_store(address)) as store:
        try:
            store.put(key, b"first", over=False, label=Label(uid))
            try:
                store.put(key, b"second", over=False, label=Label(uid))
            except ConditionError:
                pass
            else:
                raise ExportError(
                    f"Expected the store of {address} to refuse a second object of one key, got none refused: use a server that "
                    "has conditional requests (S3: If-None-Match)."
                )
            head = store.head(key)
            if head is None or store.read(key) != b"first" or (store.exact and head.label.uid != uid):
                raise ExportError(
                    f"Expected the store of {address} to return the object and the metadata that were put, got others: use another store."
                )
        finally:
            store.delete([key])
        return address.limits
