"""
What the publication of an export needs of a store: the Protocol that a bucket of S3 and a file system of fsspec implement.

This module imports no client library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any, BinaryIO, NamedTuple, Protocol

GONE = "see what removes objects there, and try again"
"""The remedy for an object that was seen, and does not exist any longer."""


class AbsentError(Exception):
    """An object or an upload that does not exist."""


class ConditionError(Exception):
    """A condition of a request, such as `over=False`, that did not hold."""


class Label(NamedTuple):
    """
    What the metadata of an object name.

    Attributes:
        uid: The uid of the job that put the object.
        sha256: The SHA-256 of the object in hex digits; None for a manifest, and for an object that is made from parts.
        target: The digest of the job's target (`ExportTarget.digest`), because a job can have several.
    """

    uid: str | None
    sha256: str | None = None
    target: str | None = None


class ObjectHead(NamedTuple):
    """
    What a store reports of an object without its bytes.

    Attributes:
        size: The number of bytes.
        etag: A text that another object at this key does not have.
        label: The object's label; without a uid if another program put the object, or if the store keeps no labels.
    """

    size: int
    etag: str
    label: Label


class Listed(NamedTuple):
    """
    An object in a list.

    Attributes:
        key: The object's key.
        at: The time at which it was put.
    """

    key: str
    at: datetime


class StoreAddress(Protocol):
    """The address of an object in a store, or of a folder of objects; it needs no client library."""

    @property
    def url(self) -> str:
        """The address as it was given; a folder's can end in `/`."""
        ...

    @property
    def key(self) -> str:
        """The object's key, or the folder's without a slash at its end."""
        ...

    @property
    def name(self) -> str:
        """The last name of the key."""
        ...

    @property
    def folder(self) -> str:
        """The beginning of the key up to the name: empty, or with a slash at its end."""
        ...

    @property
    def scratch(self) -> str | os.PathLike[str] | None:
        """The folder of this host for what a run keeps outside of memory; None for the default."""
        ...

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences about what an export to this store does not promise."""
        ...

    @property
    def reached_by(self) -> Mapping[str, str | None]:
        """The arguments, beside the URL, by which another process of this host reaches the same store."""
        ...

    def at(self, key: str) -> str:
        """Return the URL of another key in the same store."""
        ...


class ObjectStore(Protocol):
    """
    A store of objects; its methods are thread-safe.

    Each method raises ExportError if the request failed, and ExportRejected if each attempt would fail in the same way.
    """

    @property
    def address(self) -> StoreAddress:
        """The address of the export."""
        ...

    @property
    def exact(self) -> bool:
        """
        True if an object appears whole, if of several `put` with `over=False` one succeeds, and if objects have labels.

        If it is False, `address.limits` lists what the store cannot promise.
        """
        ...

    @property
    def largest(self) -> int | None:
        """The most bytes that one `put` accepts; None if there is no limit."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...

    def head(self, key: str) -> ObjectHead | None:
        """Return what the store reports of an object; None if it does not exist."""
        ...

    def read(self, key: str) -> bytes | None:
        """Return an object's bytes; None if it does not exist."""
        ...

    def copy_to(self, key: str, file: BinaryIO) -> None:
        """Write the bytes of an object that was seen before to a file of this host; raise ExportError if the object is gone."""
        ...

    def put(
        self,
        key: str,
        data: bytes | BinaryIO,
        *,
        over: bool = True,
        match: str | None = None,
        label: Label | None = None,
    ) -> None:
        """
        Put an object.

        Args:
            key: The object's key.
            data: Its content, as bytes or as an open file.
            over: True to replace an object of this key.
            match: The ETag of the only object that may be replaced.
            label: The object's label.

        Raises:
            ConditionError: There is an object although `over` is False, or it is not the one of `match`.
        """
        ...

    def delete(self, keys: list[str]) -> None:
        """Delete these objects; those that do not exist are no error."""
        ...

    def objects(self, prefix: str) -> list[Listed]:
        """Return the objects whose keys begin with `prefix`, which ends in `/`."""
        ...

    def uploads(self, key: str) -> list[Any]:
        """Return the unfinished uploads to this key; of a store that hides and ends them by itself, none."""
        ...

    def abort(self, key: str, upload: str) -> None:
        """End an upload; do nothing if it has ended."""
        ...
