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
        try:
            if inside is not None:
                local.with_name(local.name + SUFFIX).write_bytes(inside)
                _copy(store, address.key, local, Manifest.parse(inside, f"{address}{SUFFIX}").bytes)
            else:
                _copy_folder(store, address, local)
        except OSError as error:
            raise ExportError(
                f"Expected to copy {address} to this host, got {error.strerror!r}: free disk space, set TMPDIR to a larger disk, "
                "or remove a key that is a file and a folder."
            ) from error
        yield local


def _copy_folder(store: ObjectStore, address: StoreAddress, local: Path) -> None:
    data = store.read(f"{address.key}/{INSIDE}")
    if data is None:
        raise ExportError(
            f"Expected a manifest at {address}{SUFFIX} or {address}/{INSIDE}, got none: check that job.export made this object."
        )
    listed = Manifest.parse(data, f"{address}/{INSIDE}").files or ()
    wrong = [file.name for file in listed if not _is_inside(file.name)]
    if wrong:
        raise ExportError(
            f"Expected names of files in the manifest {address}/{INSIDE}, got {wrong[0]!r:.200}: export the folder again."
        )
    sizes = {file.name: file.bytes for file in listed}
    local.mkdir()
    (local / INSIDE).write_bytes(data)
    for each in store.objects(f"{address.key}/"):
        name = each.key.removeprefix(f"{address.key}/")
        if name == INSIDE or not _is_inside(name):
            continue
        path = local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in sizes:
            _copy(store, each.key, path, sizes[name])
        else:
            path.touch()  # `verify` reports its name


def _is_inside(name: str) -> bool:
    """Return whether this name, after the path of a folder, is the path of a file in the folder."""
    return not {"", ".", ".."} & {*name.split("/")} and "\0" not in name


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
