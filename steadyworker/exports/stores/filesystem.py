"""
Stores that fsspec reaches, as `ObjectStore`: `gs://` by gcsfs, `abfs://` by adlfs, and others by their own packages.

Google Cloud and Azure create an object by the request that ends its upload: Google's has `ifGenerationMatch=0`, Azure's `If-None-Match: *`.
fsspec's mode "xb" makes both.
A file of fsspec ends its upload even when its `with` block or its last reference ends by an error, so `put` marks it as closed before.

Another file system writes under a temporary name in the stage, and then moves the file.
An empty folder `.sw-stage` stays there: the `rmdir` of some libraries, such as that for HDFS, also removes what is in a folder.

A refused request is an ExportError, because the libraries have one error for a wrong login and for a missing right, which an operator can grant while the job waits.
The next run costs little: its first requests are a list and a put, before it makes a row.
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
from steadyworker.exports.commit import FULL
from steadyworker.exports.stage import STAGES
from steadyworker.exports.stores.store import GONE, AbsentError, ConditionError, Label, Listed, ObjectHead
from steadyworker.exports.stores.url import StoreUrl
from steadyworker.text.redaction import redact

_GCS, _AZURE = "'steadyworker[gcs]'", "'steadyworker[azure]'"
_GOOGLE_SCHEMES, _AZURE_SCHEMES, _SSH = ("gs", "gcs"), ("abfs", "abfss", "az"), ("sftp", "ssh")
_PACKAGES = {
    **dict.fromkeys(_GOOGLE_SCHEMES, _GCS),
    **dict.fromkeys(_AZURE_SCHEMES, _AZURE),
    **dict.fromkeys(_SSH, "sshfs"),
}
_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]*")  # it can have the id of an upload, or a signature
_BLOCK = 8 << 20  # bytes of one request
_LARGEST = {_GCS: 5 << 40, _AZURE: 50_000 * _BLOCK}  # the stores' own limits: Google's of bytes, Azure's of blocks
_CONNECT_WITHIN, _READ_WITHIN = 10, 60  # seconds; as for S3
_ALIVE = 15  # seconds without an answer after which the connection is asked whether it lives; SSH gives up after three such times
_LABEL = ("sw_uid", "sw_sha256", "sw_target")  # Azure accepts no hyphen


class FileSystem:
    """
    A file system of fsspec, as an `ObjectStore`.

    Attributes:
        address: The address.
        exact: True for Google Cloud and Azure.
        largest: The store's own limit.

    Raises:
        ExportRejected: fsspec does not know the scheme.
        ExportError: The client library is missing, or its settings are invalid.
    """

    def __init__(self, address: StoreUrl) -> None:
        self.address = address
        self.exact = not address.limits
        self.largest: int | None = _LARGEST.get(_PACKAGES.get(address.scheme, ""))
        with self._errors("connect"):
            kind, options = _kind(address)
            named = kind._get_kwargs_from_urls(address.at("x"))  # noqa: SLF001 - as fsspec's `url_to_fs`
            self._fs: Any = kind(**named, skip_instance_cache=True, **options)
            if address.scheme in _AZURE_SCHEMES and "@" in address.root:
                self._check_account(named.get("account_name") or "")

    def close(self) -> None:
        """Close the connections, because fsspec's objects stay until Python collects cycles, and adlfs's until the process ends."""
        fs, self._fs = self._fs, None
        with suppress(Exception):
            if self.address.scheme in _SSH:
                fs.loop.call_soon_threadsafe(fs.client.close)
            elif self.exact:
                from fsspec.asyn import sync

                if self.address.scheme in _AZURE_SCHEMES:
                    from adlfs.utils import close_credential

                    sync(fs.loop, fs.service_client.close)
                    sync(fs.loop, close_credential, fs)
                else:
                    sync(fs.loop, fs.session.close)

    def _check_account(self, name: str) -> None:
        """Raise ExportRejected if this is not the account of the settings, which adlfs prefers to that of the address."""
        known: str = self._fs.service_client.account_name or name
        if not name or name.partition(".")[0].lower() != known.partition(".")[0].lower():
            raise ExportRejected(
                f"Expected the Azure account of {self.address}, got the account of the settings ({known!r}): "
                "correct AZURE_STORAGE_CONNECTION_STRING, or write abfs://container/… without an account."
            )

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
        return ObjectHead(int(info["size"] or 0), etag, Label(*(labels.get(name) for name in _LABEL)))

    def read(self, key: str) -> bytes | None:
        """Return an object's bytes; None if it does not exist."""
        with self._errors("read"):
            try:
                data: bytes = self._fs.cat_file(self._path(key))
            except FileNotFoundError:
                return None
        return data

    def copy_to(self, key: str, file: BinaryIO) -> None:
        """Write an object's bytes to a file of this host; raise as `ObjectStore.copy_to`."""
        with self._errors("read"):
            try:
                with self._fs.open(self._path(key), "rb") as source:
                    while piece := source.read(_BLOCK):
                        file.write(piece)
            except FileNotFoundError as error:
                raise ExportError(self._text("read", error, GONE)) from error

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
            labels = zip(_LABEL, label or (), strict=False)
            metadata = {name: text for name, text in labels if text is not None}
            self._write(
                key, data, "wb" if over or match else "xb", {"metadata": metadata or None, "block_size": _BLOCK}
            )
        elif over:
            self._write(key, data, "wb", {})
        else:
            self._move(key, data, match, label)

    def delete(self, keys: list[str]) -> None:
        """Delete these objects; those that do not exist are no error."""
        for key in keys:
            with self._errors("delete"), suppress(FileNotFoundError):
                self._fs.rm_file(self._path(key))

    def objects(self, prefix: str) -> list[Listed]:
        """Return the objects whose keys begin with `prefix`, which ends in `/`; none if the folder's name is also an object's."""
        with self._errors("list"):
            base = self._path(prefix).rstrip("/")
            self._fs.invalidate_cache()
            if self.exact:
                found = self._fs.find(base, detail=True)
                if base in found:  # the only one, of Azure always
                    return []
            else:
                walked = self._fs.walk(base, detail=True, on_error=_raise_unless_absent)
                found = {f"{folder}/{name}": info for folder, _, files in walked for name, info in files.items()}
            return [Listed(prefix + path[len(base) + 1 :], _put_at(info)) for path, info in found.items()]

    def uploads(self, key: str) -> list[Any]:
        """Return nothing: both stores hide an unfinished upload, and end it after a week."""
        del key
        return []

    def abort(self, key: str, upload: str) -> None:
        """Do nothing: there are no such uploads."""

    def _write(self, key: str, data: bytes | BinaryIO, mode: str, options: dict[str, Any]) -> None:
        with self._errors("write"):
            path = self._path(key)
            try:
                self._make_folder(path)
                out = self._fs.open(path, mode, **options)
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

    def _make_folder(self, path: str) -> None:
        """Make the folder of this path, if the store has folders."""
        if not self.exact:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _move(self, key: str, data: bytes | BinaryIO, match: str | None, label: Label | None) -> None:
        """Write the bytes under a temporary name in the stage, and give them their name, unless another file than that of `match` has it."""
        # A later run of the job removes what begins with its uid and digest.
        owner = "put" if label is None else f"{label.uid}.{label.target}"
        new = f"{self.address.folder}{STAGES}/{owner}.{secrets.token_hex(8)}.new"
        try:
            self._write(new, data, "wb", {})
            head = self._compared(key, match)  # again, because the upload takes long
            with self._errors("move"):
                self._make_folder(self._path(key))
                if head is not None:
                    self._fs.rm_file(self._path(key))
                self._rename(self._path(new), self._path(key))
        except BaseException:
            with suppress(Exception):
                self.delete([new])
            raise

    def _rename(self, old: str, new: str) -> None:
        """Move a file; by SFTP with the protocol's own request, which most servers refuse if there is a file, and not with a shell's `cp`."""
        if self.address.scheme not in _SSH:
            self._fs.mv(old, new)
            return
        from fsspec.asyn import sync

        async def rename() -> None:
            async with self._fs._pool.get() as sftp:  # noqa: SLF001 - some servers allow no second session beside it
                await sftp.rename(old, new)

        try:
            sync(self._fs.loop, rename)
        except Exception as error:
            if self._fs.exists(new):
                raise ConditionError("another object") from error
            raise

    def _compared(self, key: str, match: str | None) -> ObjectHead | None:
        """Return the head of the object that may be replaced, or None; raise ConditionError if there is another one."""
        head = self.head(key)
        if head is not None and head.etag != match:
            raise ConditionError("another object")
        return head

    def _info(self, key: str) -> Any:
        self._fs.invalidate_cache()
        return self._fs.info(self._path(key))

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
        # The second one is fsspec's error where nothing can be written.
        except (FileNotFoundError, NotImplementedError) as error:
            if isinstance(error, FileNotFoundError) and self._has_bucket():
                remedy = "let the job run again, because the store has lost the upload or the object"
                raise ExportError(self._text(what, error, remedy)) from error
            remedy = "create the bucket, or correct the address; it must be of a store that accepts files"
            raise ExportRejected(self._text(what, error, remedy)) from error
        except Exception as error:  # each library has its own errors
            if isinstance(error, OSError) and error.errno in FULL:  # the disk of this host
                raise
            if "ContainerNotFound" in str(error):
                raise ExportRejected(self._text(what, error, "create the container, or correct its name")) from error
            remedy = "check the network, check the credentials of the store's own library, and their rights"
            if self.address.scheme in _SSH:
                remedy += "; the server's key must be in ~/.ssh/known_hosts"
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
        text = str(error).partition("\nRequestId:")[0]  # Azure's goes on with the time and the whole answer
        code = getattr(error, "error_code", None)
        got = _QUERY.sub(r"\1?…", ": ".join(filter(None, (type(error).__name__, code and str(code), text))))
        return f"Expected the store to {what} {self.address}, got {redact(got):.500}: {remedy}."


def _raise_unless_absent(error: OSError) -> None:
    """Raise the error of a folder's list, which fsspec omits by default; a folder that does not exist has no files."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _put_at(info: Any) -> datetime:
    """Return when an object was put; now, if the store's library does not report it."""
    at = info.get("mtime") or info.get("last_modified")
    if isinstance(at, (int, float)):
        with suppress(ValueError, OverflowError, OSError):  # it is no time in seconds
            at = datetime.fromtimestamp(at, UTC)
    if not isinstance(at, datetime):
        return datetime.fromtimestamp(SystemClock().wall(), UTC)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _kind(address: StoreUrl) -> tuple[Any, dict[str, Any]]:
    """
    Return the class of the file system, and its options.

    Raises:
        ExportRejected: fsspec does not know the scheme.
        ImportError: fsspec, or the library for this scheme, is not installed.
    """
    import fsspec.config

    options: dict[str, Any] = {}
    if address.scheme in _GOOGLE_SCHEMES:
        from aiohttp import ClientTimeout
        from gcsfs.core import GCSFileSystem  # the registered one lets readers see unfinished objects of zonal buckets

        # Without these limits, gcsfs waits for an answer for ever.
        limits = ClientTimeout(sock_connect=_CONNECT_WITHIN, sock_read=_READ_WITHIN)
        options = {"use_listings_cache": False, "requests_timeout": limits}
        return GCSFileSystem, options | fsspec.config.conf.get(address.scheme, {})
    if address.scheme in _AZURE_SCHEMES:
        options = {"use_listings_cache": False}
    elif address.scheme in _SSH:
        import sshfs  # type: ignore[import-untyped] # noqa: F401 - without it, fsspec takes a library that accepts each server's key

        # `()` is ~/.ssh/known_hosts; by default, sshfs accepts each server's key.
        options = {"known_hosts": (), "keepalive_interval": _ALIVE}
    try:
        kind = fsspec.get_filesystem_class(address.scheme)
    except ValueError as error:
        raise ExportRejected(
            f"Expected a store that this program or fsspec knows, got {redact(address.url)!r}: "
            "export to a path, s3://, gs://, abfs://, or a scheme that fsspec lists (fsspec.available_protocols())."
        ) from error
    return kind, options | fsspec.config.conf.get(address.scheme, {})
