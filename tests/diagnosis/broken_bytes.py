"""Bytes that break a protocol, and the memory that a reader takes for them: for the tests of all readers."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from hypothesis import strategies as st

from steadyworker.clock import SystemClock
from tests.diagnosis.traffic import cut

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


def spoilt(chance: random.Random, wire: bytes, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """The bytes with up to six changes, of the kinds that break a protocol; `words` mean something in it."""
    found = bytearray(wire)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 6))):
        at = chance.randrange(len(found) + 1)
        word = chance.choice(words)
        match chance.randrange(7):
            case 0:
                found[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                found[at:at] = chance.randbytes(chance.randrange(1, 16))
            case 2:
                del found[at : at + chance.randrange(1, 16)]
            case 3:
                found[at:at] = word
            case 4:
                found[at : at + len(word)] = word
            case 5:
                piece = chance.choice(others)
                start = chance.randrange(len(piece) + 1)
                found[at:at] = piece[start : start + chance.randrange(400)]
            case _:
                found[at:at] = found[at : at + chance.randrange(200)]
    return bytes(found)


def fuzz(
    wires: Sequence[bytes],
    words: Sequence[bytes],
    judge: Callable[[random.Random, bytes, list[bytes]], None],
    take_memory: Callable[[bytes], None],
) -> None:
    """For a minute, judge one of the wires after the other, spoilt and in pieces; now and then see what memory it takes."""
    clock, seed = SystemClock(), random.SystemRandom().randrange(2**64)
    chance = random.Random(seed)
    until, rounds = clock.monotonic() + 60, 0
    while clock.monotonic() < until:
        wire = spoilt(chance, chance.choice(wires), wires, words)
        chunks = cut(wire, [chance.randrange(len(wire) + 1) for _ in range(chance.randrange(20))])
        began = clock.monotonic()
        try:
            judge(chance, wire, chunks)
            if rounds % 50 == 0:
                take_memory(wire)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {rounds}: {wire!r}")
            raise
        assert clock.monotonic() - began < 20, f"seed {seed}, round {rounds} took too long"
        rounds += 1
    assert rounds > 1000
