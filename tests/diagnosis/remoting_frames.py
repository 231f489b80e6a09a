"""Frames of RocketMQ's remoting protocol, written for the tests of its reader, by nothing of the reader's or the adapter's."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

JAVA_4_9_7 = 407


def as_json(
    code: int,
    opaque: int = 1,
    fields: Mapping[str, Any] | None = None,
    body: bytes = b"",
    *,
    flag: int = 0,
    remark: str | None = None,
    language: str = "JAVA",
    version: int = JAVA_4_9_7,
) -> bytes:
    """A frame with a header in JSON, as Java writes it: what is null is left out, and the names are sorted."""
    header = {"code": code, "extFields": fields, "flag": flag, "language": language, "opaque": opaque}
    header |= {"remark": remark, "serializeTypeCurrentRPC": "JSON", "version": version}
    present = {name: value for name, value in header.items() if value is not None}
    return framed(0, json.dumps(present, separators=(",", ":"), ensure_ascii=False).encode(), body)


def framed(kind: int, header: bytes, body: bytes = b"") -> bytes:
    """The two lengths, a header of this kind, and a body."""
    return struct.pack(">IB", 4 + len(header) + len(body), kind) + len(header).to_bytes(3, "big") + header + body


def properties(**given: str) -> str:
    """The properties of a message as a field of the request."""
    return "".join(f"{name}\1{value}\2" for name, value in given.items())
