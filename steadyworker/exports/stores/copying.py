"""Copies of published exports on this host, for `verify`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from steadyworker.errors import ExportError
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.stage import INSIDE, SUFFIX
from steadyworker.exports.stores.opening import open_store
from steadyworker.exports.stores.store import ObjectStore, StoreAddress


@contextmanager
def copied(address: StoreAddress) -> Iterator[Path]:
    """
    Yield the path of a copy of the object or the folder on this host, with its manifest, as `Local` makes them.

    The copy is in a private folder below the system's folder for temporary files, and is removed at the end.

    Raises:
        ExportError: There is no manifest, or the store does not give an object.
    """
    with closing(open_store(address)) as store, tempfile.TemporaryDirectory(prefix="steadyworker-verify-") as made:
        local = Path(made) / address.name
        inside = None if address.url.endswith("/") else store.read(address.key + SUFFIX)
        if inside is not None:
            local.with_name(local.name + SUFFIX).write_bytes(inside)
            _copy(store, address.key, local, Manifest.parse(inside, f"{address}{SUFFIX}").bytes)
        else:
            _copy_folder(store, address, local)
        yield local


def _copy_folder(store: ObjectStore, address: StoreAddress, local: Path) -> None:
    data = store.read(f"{address.key}/{INSIDE}")
    if data is None:
        raise ExportError(
            f"Expected a manifest at {address}{SUFFIX} or {address}/{INSIDE}, got none: check that job.export made this object."
        )
    local.mkdir()
    (local / INSIDE).write_bytes(data)
    sizes = {file.name: file.bytes for file in Manifest.parse(data, f"{address}/{INSIDE}").files or ()}
    for each in store.objects(f"{address.key}/"):
        name = each.key.removeprefix(f"{address.key}/")
        if name != INSIDE and ".." not in name.split("/"):
            path = local / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _copy(store, each.key, path, sizes.get(name, 0))


def _copy(store: ObjectStore, key: str, path: Path, expected: int) -> None:
    """Copy an object, if there is one; of one with a wrong size copy only the size, because `verify` compares the sizes first."""
    head = store.head(key)
    if head is None:
        return
    with path.open("wb") as file:
        if head.size == expected:
            store.copy_to(key, file)
        else:
            file.truncate(head.size)
