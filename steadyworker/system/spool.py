"""A store for byte strings that together can be larger than the memory."""

from __future__ import annotations

import tempfile

_IN_MEMORY = 8 << 20  # bytes


class Spool:
    """A store of byte strings, each with a place; the store uses memory for the first 8 MiB, and then a file without a name."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - `close` closes it
        self.close = self._file.close

    def keep(self, data: bytes) -> tuple[int, int]:
        """Keep a byte string; return its place."""
        place = self._file.seek(0, 2)
        self._file.write(data)
        return place, len(data)

    def read(self, place: tuple[int, int]) -> bytes:
        """Return the byte string at a place."""
        self._file.seek(place[0])
        return self._file.read(place[1])
