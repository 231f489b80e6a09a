"""The primary key of a job's row."""

from __future__ import annotations

from msgspec import Struct


class JobId(Struct, frozen=True):
    """The primary key of a job's row."""

    namespace: str
    queue: str
    key: str
    round: int = 0
