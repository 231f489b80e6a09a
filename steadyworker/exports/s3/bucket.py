"""
Requests to a bucket, by boto3, and the meaning of their errors.

The SDK makes a request that was throttled six times in about half a minute, and one without an answer six times in six minutes.
What is left then is an ExportError, and the job's next attempt continues.
An error that each attempt would meet again, such as a bucket that does not exist, is an ExportRejected.
A wrong or expired login is an ExportError, because an operator can renew it while the job waits for its next attempt.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any, BinaryIO

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.commit import FULL
from steadyworker.exports.s3.address import S3
from steadyworker.exports.stores.files import CONNECTIONS
from steadyworker.exports.stores.store import GONE, AbsentError, ConditionError, Label, Listed, ObjectHead
from steadyworker.text.redaction import redact

_CHECKSUM = "x-amz-checksum-sha256"
_LABEL = ("sw-uid", "sw-sha256", "sw-target")
_TRIES = 6
_CONNECT_WITHIN, _READ_WITHIN = 10, 60  # seconds; S3 sends spaces while a Complete takes longer

_LOGIN = {
    "ExpiredToken": "renew the credentials",
    "ExpiredTokenException": "renew the credentials",
    "InvalidAccessKeyId": "correct the credentials",
    "InvalidClientTokenId": "correct the credentials",
    "InvalidToken": "renew the credentials",
    "RequestExpired": "renew the credentials, and check this host's clock",
    "RequestTimeTooSkewed": "set this host's clock",
    "SignatureDoesNotMatch": "correct the credentials",
    "TokenRefreshRequired": "renew the credentials",
}
"""The errors of credentials, each with its remedy."""

_NEVER = {
    "AccessDenied": "give this job's credentials the rights that `steadyworker.exports.s3` lists",
    "AllAccessDisabled": "use another bucket",
    "AuthorizationHeaderMalformed": "set the bucket's own region: S3(…, region=…), or AWS_DEFAULT_REGION",
    "IllegalLocationConstraintException": "set the bucket's own region: S3(…, region=…), or AWS_DEFAULT_REGION",
    "InvalidArgument": "correct the options of S3(…)",
    "InvalidBucketName": "correct the bucket's name",
    "InvalidStorageClass": "correct storage_class of S3(…)",
    "KeyTooLongError": "shorten the key",
    "MethodNotAllowed": "use a server that has S3's multipart uploads and If-None-Match",
    "NoSuchBucket": "create the bucket, or correct its name",
    "NotImplemented": "use a server that has S3's multipart uploads and If-None-Match",
    "PermanentRedirect": "set the bucket's own region: S3(…, region=…), or AWS_DEFAULT_REGION",
}
"""The errors that each attempt meets again, each with its remedy."""

_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "ndjson": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "gz": "application/gzip",
    "zst": "application/zstd",
}

_CONDITION = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})
_PARTS = frozenset({"InvalidPart", "InvalidPartOrder"})
_BUSY = frozenset({"SlowDown", "RequestTimeout", "TooManyRequests", "429"})
_MISSING = frozenset({"NoSuchKey", "NoSuchUpload", "NoSuchVersion", "NotFound", "404"})


class PartsDifferError(Exception):
    """An upload whose parts are other ones than those that were to be completed."""


class Bucket:
    """
    The bucket of an address, as an `ObjectStore`.

    Attributes:
        address: The address.
        exact: True: the condition If-None-Match holds when requests race.
        largest: S3's own limit for PutObject.

    Raises:
        ExportError: boto3 is not installed, or the SDK's settings are invalid.
    """

    exact = True
    largest: int | None = 5 << 30

    def __init__(self, address: S3) -> None:
        self.address = address
        with self._errors("connect"):
            self._client = _client(address)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def call(self, operation: str, **arguments: Any) -> Any:
        """
        Send one request to the bucket, and return the answer.

        Raises:
            AbsentError: The object or the upload does not exist.
            ConditionError: A condition of the request did not hold.
            PartsDifferError: The upload has other parts.
            ExportRejected: Each attempt would get this error again.
            ExportError: The request failed.
        """
        with self._errors(operation):
            return getattr(self._client, operation)(Bucket=self.address.bucket, **arguments)

    def head(self, key: str) -> ObjectHead | None:
        """Return what the bucket reports of an object; None if it does not exist."""
        try:
            found = self.call("head_object", Key=key)
        except AbsentError:
            return None
        metadata = {name.lower(): text for name, text in found["Metadata"].items()}  # as a server has spelt the header
        return ObjectHead(found["ContentLength"], found["ETag"], Label(*(metadata.get(name) for name in _LABEL)))

    def read(self, key: str) -> bytes | None:
        """Return an object's bytes; None if it does not exist."""
        try:
            answer = self.call("get_object", Key=key)
        except AbsentError:
            return None
        with self._errors("get_object"):
            data: bytes = answer["Body"].read()
        return data

    def read_range(self, key: str, first: int, last: int, etag: str) -> bytes:
        """
        Return an object's bytes from `first` to `last`, both included.

        Raises:
            AbsentError: The object does not exist.
            ConditionError: The object is another one than the one with this ETag.
            ExportError: The request failed.
        """
        body = self.call("get_object", Key=key, Range=f"bytes={first}-{last}", IfMatch=etag)["Body"]
        with self._errors("get_object"):
            data: bytes = body.read()
        return data

    def copy_to(self, key: str, file: BinaryIO) -> None:
        """Write an object's bytes to a file of this host; raise as `ObjectStore.copy_to`."""
        try:
            body = self.call("get_object", Key=key)["Body"]
        except AbsentError as error:
            raise self._failed(ExportError, "get_object", str(error), GONE) from error
        with self._errors("get_object"):
            file.writelines(body.iter_chunks(1 << 20))

    def put(
        self,
        key: str,
        data: bytes | BinaryIO,
        *,
        over: bool = True,
        match: str | None = None,
        label: Label | None = None,
    ) -> None:
        """Put an object; raise as `ObjectStore.put`."""
        options = self._encryption()
        if match is not None:
            options["IfMatch"] = match
        elif not over:
            options["IfNoneMatch"] = "*"
        if isinstance(data, bytes):
            options |= {"ChecksumSHA256": base64.b64encode(hashlib.sha256(data).digest()).decode()}
        if label is not None and label.sha256 is not None:
            sha256 = base64.b64encode(bytes.fromhex(label.sha256)).decode()
            options |= self.options(key, label) | {"ChecksumSHA256": sha256}
        elif label is not None:
            options |= {"ContentType": "application/json", "Metadata": _metadata(label)}
        self.call("put_object", Key=key, Body=data, **options)

    def delete(self, keys: list[str]) -> None:
        """Delete these objects, one by one, because not each server deletes several at once."""
        for key in keys:
            with suppress(AbsentError):  # the answer of Google's servers
                self.call("delete_object", Key=key)

    def objects(self, prefix: str) -> list[Listed]:
        """Return the objects whose keys begin with `prefix`."""
        with self._errors("list_objects_v2"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.address.bucket, Prefix=prefix)
            return [Listed(found["Key"], found["LastModified"]) for page in pages for found in page.get("Contents", ())]

    def uploads(self, key: str) -> list[Any]:
        """Return what the bucket lists of the unfinished uploads to this key."""
        with self._errors("list_multipart_uploads"):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.address.bucket, Prefix=key
            )
            return [found for page in pages for found in page.get("Uploads", ()) if found["Key"] == key]

    def parts(self, key: str, upload: str) -> list[Any]:
        """
        Return what the bucket lists of an upload's parts.

        Raises:
            AbsentError: The upload does not exist.
            ExportError: The request failed.
        """
        with self._errors("list_parts"):
            pages = self._client.get_paginator("list_parts").paginate(
                Bucket=self.address.bucket, Key=key, UploadId=upload
            )
            return [found for page in pages for found in page.get("Parts", ())]

    def abort(self, key: str, upload: str) -> None:
        """End an upload; do nothing if it has ended."""
        with suppress(AbsentError):
            self.call("abort_multipart_upload", Key=key, UploadId=upload)

    def options(self, key: str, label: Label) -> dict[str, Any]:
        """Return the arguments of a new object of this key, which carries this label."""
        kind = _TYPES.get(key.rpartition(".")[2].lower(), "application/octet-stream")
        found = {"ContentType": kind, "Metadata": _metadata(label), **self._encryption()}
        if self.address.storage_class is not None:
            found["StorageClass"] = self.address.storage_class
        return found

    def _encryption(self) -> dict[str, Any]:
        """Return the arguments of each new object; a bucket's policy can refuse one without its key."""
        key = self.address.kms_key
        return {} if key is None else {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}

    def link(self, seconds: int) -> str:
        """Return a URL by which anyone can read the object for this time."""
        with self._errors("sign a link"):
            url: str = self._client.generate_presigned_url(
                "get_object", {"Bucket": self.address.bucket, "Key": self.address.key}, seconds
            )
            return url

    @contextmanager
    def _errors(self, operation: str) -> Iterator[None]:
        """Raise the errors of boto3 as those of `call`."""
        exceptions = _exceptions()
        try:
            yield
        except exceptions.ClientError as error:
            raise self._refused(operation, error.response) from error
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise self._failed(ExportError, operation, str(error), "give the AWS SDK's settings credentials") from error
        # An invalid endpoint in the SDK's settings is a ValueError.
        except (exceptions.BotoCoreError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in FULL:  # the disk of this host
                raise
            raise self._failed(
                ExportError, operation, str(error), "check the endpoint, the network and the SDK's settings"
            ) from error

    def _refused(self, operation: str, response: Any) -> Exception:
        found, status = response.get("Error", {}), response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code, text = str(found.get("Code", "")), str(found.get("Message", ""))
        shown = f"{code} ({text})" if text else code
        for codes, kind in ((_MISSING, AbsentError), (_CONDITION, ConditionError), (_PARTS, PartsDifferError)):
            if code in codes:
                return kind(shown)
        if code in _NEVER or code.startswith("KMS."):
            remedy = _NEVER.get(code, "correct the KMS key, its state and its rights")
            return self._failed(ExportRejected, operation, shown, remedy)
        if code in _LOGIN:
            remedy = _LOGIN[code]
        elif status >= HTTPStatus.INTERNAL_SERVER_ERROR or code in _BUSY:
            remedy = f"the store did not accept it in {_TRIES} tries, and the next run continues"
        else:
            remedy = "check the options of S3(…), the rights of the credentials and the bucket's region"
        return self._failed(ExportError, operation, shown, remedy)

    def _failed(self, kind: type[ExportError], operation: str, got: str, remedy: str) -> ExportError:
        """Return the error of a request to this address."""
        return kind(f"Expected the bucket to accept {operation} for {self.address}, got {redact(got):.500}: {remedy}.")


def _metadata(label: Label) -> dict[str, str]:
    return {name: text for name, text in zip(_LABEL, label, strict=True) if text is not None}


def _client(address: S3) -> Any:
    """Return a client, which threads can share."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise ExportError(
            "Expected boto3 for a target in a bucket, got no such module: run pip install 'steadyworker[s3]'."
        ) from error
    session = boto3.Session(profile_name=address.profile, region_name=address.region)
    config = Config(
        signature_version="s3v4",
        connect_timeout=_CONNECT_WITHIN,
        read_timeout=_READ_WITHIN,
        max_pool_connections=CONNECTIONS + 1,
        retries={"mode": "standard", "total_max_attempts": _TRIES},
        # Otherwise the SDK sends checksums in a form that older servers store as part of the object.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client = session.client("s3", endpoint_url=address.endpoint, config=config)
    unsigned = Config(s3={"payload_signing_enabled": False})

    def sign_checksum(request: Any, **_: Any) -> None:
        """Sign the body's checksum, which the server compares with the body, so that the SDK does not hash the body again."""
        if _CHECKSUM in request.headers:
            request.context["client_config"] = unsigned

    client.meta.events.register("before-sign.s3", sign_checksum)
    return client


def _exceptions() -> Any:
    try:
        import botocore.exceptions
    except ImportError as error:
        raise ExportError(
            "Expected boto3 for a target in a bucket, got no such module: run pip install 'steadyworker[s3]'."
        ) from error
    return botocore.exceptions
