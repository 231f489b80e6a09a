"""
Stores that fsspec reaches, as `ObjectStore`: `gs://` by gcsfs, `abfs://` by adlfs, and others by their own packages.

Google Cloud and Azure create an object by the request that ends its upload: Google's has `ifGenerationMatch=0`, Azure's `If-None-Match: *`.
fsspec's mode "xb" makes both.
A file of fsspec ends its upload even when its `with` block or its last reference ends by an error, so `put` marks it as closed before.

Another file system writes under a temporary name in the stage, and then moves the file.
Only by SFTP, the empty folders of a stage are removed: the `rmdir` of another library, such as that for HDFS, can remove a folder that is not empty.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, BinaryIO

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.stage import STAGES
from steadyworker.exports.stores.store import AbsentError, ConditionError, Label, Listed, ObjectHead
from steadyworker.exports.stores.url import StoreUrl
from steadyworker.text.redaction import redact

_GCS, _AZURE = "'steadyworker[gcs]'", "'steadyworker[azure]'"
_PACKAGES = {"gs": _GCS, "gcs": _GCS, "abfs": _AZURE, "abfss": _AZURE, "az": _AZURE, "sftp": "sshfs", "ssh": "sshfs"}
_SSH = frozenset({"sftp", "ssh"})
_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]*")  # it can have the id of an upload, or a signature
_TRIES = 10  # to make a folder that other runs remove
_BLOCK = 8 << 20  # bytes of one request
_UID, _SHA256 = "sw_uid", "sw_sha256"  # Azure accepts no hyphen


class FileSystem:
    """
    A file system of fsspec, as an `ObjectStore`.

    Attributes:
        address: The address.
        exact: True for Google Cloud and Azure.

    Raises:
        ExportRejected: fsspec does not know the scheme.
        ExportError: The client library is missing, or its settings are invalid.
    """

    largest = None

    def __init__(self, address: StoreUrl) -> None:
        self.address = address
        self.exact = not address.limits
        options: dict[str, Any] = {"use_listings_cache": False} if self.exact else {}
        if address.scheme in _SSH:
            # Compare the server's key with ~/.ssh/known_hosts, which sshfs does not by default.
            options["known_hosts"] = ()
        with self._errors("connect"):
            kind = _kind(address)
            self._fs: Any = kind(**kind._get_kwargs_from_urls(address.at("x")), skip_instance_cache=True, **options)  # noqa: SLF001 - as fsspec's `url_to_fs`

    def close(self) -> None:
        """Close the connections: fsspec does it when its object is gone."""
        self._fs = None

    def head(self, key: str) -> ObjectHead | None:
        """Return what the store reports of an object; None if it does not exist."""
        with self._errors("read the size of"):
            try:
                info = self._info(key)
            except FileNotFoundError:
                return None
        if info["type"] == "directory" and self.exact:
            return None  # other objects have this key as the beginning of theirs
        labels = {name.lower(): value for name, value in (info.get("metadata") or {}).items()} if self.exact else {}
        etag = str(info.get("generation") or info.get("etag") or info.get("mtime"))
        return ObjectHead(int(info["size"] or 0), etag, Label(labels.get(_UID), labels.get(_SHA256)))

    def read(self, key: str) -> bytes | None:
        """Return an object's bytes; None if it does not exist."""
        with self._errors("read"):
            try:
                data: bytes = self._fs.cat_file(self._path(key))
            except FileNotFoundError:
                return None
        return data

    def copy_to(self, key: str, file: BinaryIO) -> None:
        """
        Write an object's bytes to a file of this host.

        Raises:
            AbsentError: The object does not exist.
            ExportError: The request failed.
        """
        with self._errors("read"):
            try:
                with self._fs.open(self._path(key), "rb") as source:
                    while piece := source.read(_BLOCK):
                        file.write(piece)
            except FileNotFoundError as error:
                raise AbsentError(str(error)) from error

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
        Put an object; raise as `ObjectStore.put`.

        `match` is compared before the request, because fsspec has no such condition.
        Only a frozen run of the same job could come between the two.
        """
        if not over and (match is not None or not self.exact):
            self._compared(key, match)
        if self.exact:
            labels = {} if label is None else {_UID: label.uid, _SHA256: label.sha256}
            metadata = {name: text for name, text in labels.items() if text is not None}
            self._write(
                key, data, "wb" if over or match else "xb", {"metadata": metadata or None, "block_size": _BLOCK}
            )
        elif over:
            self._write(key, data, "wb", {})
        else:
            self._move(key, data, match, label)

    def delete(self, keys: list[str]) -> None:
        """Delete these objects, and by SFTP the folders of a stage that are empty then."""
        for key in keys:
            with self._errors("delete"), suppress(FileNotFoundError):
                self._fs.rm_file(self._path(key))
        if self.address.scheme in _SSH:
            for folder in sorted({key.rpartition("/")[0] for key in keys}, reverse=True):
                self._remove_empty(folder)

    def objects(self, prefix: str) -> list[Listed]:
        """Return the objects whose keys begin with `prefix`, which ends in `/`."""
        with self._errors("list"):
            base = self._path(prefix).rstrip("/")
            self._fs.invalidate_cache()
            if self.exact:
                found = self._fs.find(base)
            else:
                walked = self._fs.walk(base, on_error=_raise_unless_absent)
                found = [f"{folder}/{name}" for folder, _, names in walked for name in names]
            keys = [prefix + path.removeprefix(base).lstrip("/") for path in found if path.startswith(f"{base}/")]
            return [Listed(key, self._modified(key)) for key in keys]

    def missing_folders(self) -> list[str]:
        """Return the folders of the address that do not exist, the innermost first; none, unless the store is reached by SFTP."""
        with self._errors("read"):
            folders = _folders(self.address.folder.rstrip("/")) if self.address.scheme in _SSH else []
            return [folder for folder in folders if not self._fs.exists(self._path(folder))]

    def remove_folders(self, folders: list[str]) -> None:
        """Remove these folders in their order, up to the first one that is not empty."""
        with suppress(Exception):  # each library has its own error for a folder that is not empty
            for folder in folders:
                self._rmdir(self._path(folder))

    def uploads(self, key: str) -> list[Any]:
        """Return nothing: both stores hide an unfinished upload, and end it after a week."""
        del key
        return []

    def abort(self, key: str, upload: str) -> None:
        """Do nothing: there are no such uploads."""

    def _write(self, key: str, data: bytes | BinaryIO, mode: str, options: dict[str, Any]) -> None:
        with self._errors("write"):
            try:
                out = self._open(self._path(key), mode, options)
                try:
                    if isinstance(data, bytes):
                        out.write(data)
                    else:
                        while piece := data.read(_BLOCK):
                            out.write(piece)
                    out.close()
                except BaseException:
                    with suppress(AttributeError):
                        out.closed = True  # otherwise the end of `out` would end the upload
                    raise
            except FileExistsError as error:
                raise ConditionError("another object") from error

    def _open(self, path: str, mode: str, options: dict[str, Any]) -> Any:
        """Open a file to write; make its folder, if the store has folders, and make it again if another run has just removed it as empty."""
        left = _TRIES
        while True:
            try:
                if not self.exact:
                    self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                return self._fs.open(path, mode, **options)
            except Exception as error:  # sshfs reports a folder that vanished while it was made as a file in its place
                vanished = isinstance(error, FileNotFoundError) or str(error).endswith("is not a directory")
                left -= 1
                if self.exact or not vanished or not left:
                    raise

    def _move(self, key: str, data: bytes | BinaryIO, match: str | None, label: Label | None) -> None:
        """Write the bytes under a temporary name in the stage, and give them their name, unless another file than that of `match` has it."""
        uid = label.uid if label is not None else "put"
        new = f"{self.address.folder}{STAGES}/{uid}/{secrets.token_hex(8)}.new"
        try:
            self._write(new, data, "wb", {})
            head = self._compared(key, match)  # again, because the upload takes long
            with self._errors("move"):
                self._fs.makedirs(self._path(key).rpartition("/")[0], exist_ok=True)
                if head is not None:
                    self._fs.rm_file(self._path(key))
                self._fs.mv(self._path(new), self._path(key))
        except BaseException:
            with suppress(Exception):
                self.delete([new])
            raise
        if self.address.scheme in _SSH:
            self._remove_empty(new.rpartition("/")[0])

    def _compared(self, key: str, match: str | None) -> ObjectHead | None:
        """Return the head of the object that may be replaced, or None; raise ConditionError if there is another one."""
        head = self.head(key)
        if head is not None and head.etag != match:
            raise ConditionError("another object")
        return head

    def _remove_empty(self, folder: str) -> None:
        """Remove a folder of a stage and those above it, as long as they are empty."""
        self.remove_folders([above for above in _folders(folder) if f"/{STAGES}" in f"/{above}"])

    def _rmdir(self, path: str) -> None:
        """Remove an empty folder; fsspec makes no synchronous method from `_rmdir`."""
        if hasattr(self._fs, "_rmdir"):
            from fsspec.asyn import sync

            sync(self._fs.loop, self._fs._rmdir, path)  # noqa: SLF001
        else:
            self._fs.rmdir(path)

    def _info(self, key: str) -> Any:
        self._fs.invalidate_cache()
        return self._fs.info(self._path(key))

    def _modified(self, key: str) -> datetime:
        """Return when an object was put; now, if the store does not report it."""
        try:
            at: datetime = self._fs.modified(self._path(key))
        except (NotImplementedError, FileNotFoundError):  # fsspec's answer for a file system that keeps no times
            return datetime.fromtimestamp(SystemClock().wall(), UTC)
        return at if at.tzinfo else at.replace(tzinfo=UTC)

    def _path(self, key: str) -> str:
        path: str = self._fs._strip_protocol(self.address.at(key))  # noqa: SLF001 - fsspec's own name for this
        return path

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Raise the errors of fsspec and of the libraries under it as those of `ObjectStore`."""
        try:
            yield
        except (ExportError, AbsentError, ConditionError):
            raise
        except ImportError as error:
            package = _PACKAGES.get(self.address.scheme)
            remedy = f"run pip install {package}" if package else str(error)
            raise ExportError(
                f"Expected the client library for {self.address.scheme}://, got no such module: {remedy}."
            ) from error
        except (
            FileNotFoundError,
            NotImplementedError,
        ) as error:  # fsspec raises the second where nothing can be written
            if isinstance(error, FileNotFoundError) and self._has_bucket():
                remedy = "let the job run again, because the store has lost the upload or the object"
                raise ExportError(self._text(what, error, remedy)) from error
            remedy = "create the bucket, or correct the address; it must be of a store that accepts files"
            raise ExportRejected(self._text(what, error, remedy)) from error
        except Exception as error:  # each library has its own errors
            if "ContainerNotFound" in str(error):
                raise ExportRejected(self._text(what, error, "create the container, or correct its name")) from error
            remedy = "check the credentials of the store's own library, their rights, and the network"
            raise ExportError(self._text(what, error, remedy)) from error

    def _has_bucket(self) -> bool:
        """Return whether the store lists the bucket, or refuses to; False for a store without buckets."""
        if not self.exact:
            return False
        try:
            self._fs.find(self._path(self.address.folder + STAGES))
        except FileNotFoundError:
            return False
        except Exception:  # noqa: BLE001 - only the bucket's absence is final
            return True
        return True

    def _text(self, what: str, error: Exception, remedy: str) -> str:
        got = _QUERY.sub(r"\1?…", f"{type(error).__name__}: {error}")
        return f"Expected the store to {what} {self.address}, got {redact(got):.500}: {remedy}."


def _raise_unless_absent(error: OSError) -> None:
    """Raise the error of a folder's list, which fsspec omits by default; a folder that does not exist has no files."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _folders(path: str) -> list[str]:
    """Return the path of a folder and those of all folders above it, the innermost first."""
    names = path.split("/") if path else []
    return ["/".join(names[:count]) for count in range(len(names), 0, -1)]


def _kind(address: StoreUrl) -> Any:
    """
    Return the class of the file system.

    Raises:
        ExportRejected: fsspec does not know the scheme.
        ImportError: fsspec, or the library for this scheme, is not installed.
    """
    if address.scheme in {"gs", "gcs"}:
        from gcsfs.core import GCSFileSystem  # the registered one lets readers see unfinished objects of zonal buckets

        return GCSFileSystem
    import fsspec

    try:
        return fsspec.get_filesystem_class(address.scheme)
    except ValueError as error:
        raise ExportRejected(
            f"Expected a store that this program or fsspec knows, got {redact(address.url)!r}: "
            "export to a path, s3://, gs://, abfs://, or a scheme that fsspec lists (fsspec.available_protocols())."
        ) from error
