"""Stores in the memory of the test, whose requests a test can delay or refuse, because no server does this on demand."""

from __future__ import annotations

import itertools
import threading
from datetime import UTC, datetime
from typing import Any, BinaryIO

import pytest

from steadyworker.errors import ExportError
from steadyworker.exports.stores import copying, reaping, target, trial
from steadyworker.exports.stores.store import ConditionError, Label, Listed, ObjectHead, StoreAddress


class Memory:
    """
    An `ObjectStore` that keeps conditions and labels, as Google Cloud does; `objects_by_key` holds content, ETag and label.

    A test changes a method of one store to make its requests fail.
    """

    largest = None
    exact = True

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.objects_by_key: dict[str, tuple[bytes, str, Label]] = {}
        self.address: StoreAddress
        self._lock, self._etags = threading.Lock(), itertools.count(1)

        def open_store(address: StoreAddress) -> Memory:
            self.address = address
            return self

        for module in (copying, reaping, target, trial):
            monkeypatch.setattr(module, "open_store", open_store)

    def close(self) -> None: ...

    def names(self) -> list[str]:
        return sorted(self.objects_by_key)

    def head(self, key: str) -> ObjectHead | None:
        found = self.objects_by_key.get(key)
        return None if found is None else ObjectHead(len(found[0]), found[1], found[2])

    def read(self, key: str) -> bytes | None:
        found = self.objects_by_key.get(key)
        return None if found is None else found[0]

    def copy_to(self, key: str, file: BinaryIO) -> None:
        data = self.read(key)
        if data is None:
            raise ExportError(f"no object {key}")
        file.write(data)

    def put(
        self,
        key: str,
        data: bytes | BinaryIO,
        *,
        over: bool = True,
        match: str | None = None,
        label: Label | None = None,
    ) -> None:
        content = data if isinstance(data, bytes) else data.read()
        with self._lock:
            found = self.objects_by_key.get(key)
            if found is not None and (match is not None or not over) and found[1] != match:
                raise ConditionError("another object")
            if found is None and match is not None:
                raise ConditionError("no object")
            self.objects_by_key[key] = (content, f"etag-{next(self._etags)}", label or Label(None))

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self.objects_by_key.pop(key, None)

    def objects(self, prefix: str) -> list[Listed]:
        return [Listed(key, datetime.now(UTC)) for key in self.names() if key.startswith(prefix)]

    def uploads(self, key: str) -> list[Any]:
        del key
        return []

    def abort(self, key: str, upload: str) -> None: ...
