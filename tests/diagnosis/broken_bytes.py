"""Bytes that break a protocol, and the memory that a reader takes for them: for the tests of all readers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence
from typing import Protocol

from hypothesis import strategies as st

Edit = tuple[int, int, bytes]
edits = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 20), st.binary(max_size=12)), min_size=1, max_size=4)


class Reader(Protocol):
    """A reader of one direction of a connection."""

    def feed(self, data: bytes) -> object: ...

    def end(self) -> object: ...


def mutated(wire: bytes, edits: Sequence[Edit]) -> bytes:
    """The bytes with some of them replaced, taken away or added: at a place, so many bytes by these."""
    for place, size, by in edits:
        at = place % (len(wire) + 1)
        wire = wire[:at] + by + wire[at + size :]
    return wire


def peak(reader: Reader, chunks: Iterable[bytes]) -> int:
    """The most memory that a reader takes while it is fed; what it returned is let go at once."""
    tracemalloc.start()
    try:
        for chunk in chunks:
            reader.feed(chunk)
        reader.end()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
