"""
Finds the boundaries of frames in bytes that can begin in the middle of a frame.

A reader that missed bytes must find the next frame before it can go on.
If a client writes a frame into the middle of another frame, the outer frame contains the head of the inner frame.
A frame of AMQP has a type, a size within the limit, and the end octet at the right place; a method has a known class.
"""

from __future__ import annotations

import re
import struct

from steadyworker.diagnosis.protocols import STOMP_COMMANDS

ENOUGH = 3
"""The number of frames in a row that cannot be a coincidence."""

LONGEST_COMMAND = 16
"""The number of bytes that can be an incomplete beginning of a frame of STOMP."""

_HEAD = struct.Struct(">BHI")
_AROUND = 8
_END = 0xCE
_TYPES = {1, 2, 3, 8}
_SHORTEST = 11  # bytes that show the start of a method frame
_METHOD_START = re.compile(rb"\x01..[\x00-\x07]...\x00[\x0a\x14\x1e\x28\x32\x3c\x55\x5a]\x00[\x0a-\x78]", re.DOTALL)
_STOMP_START = re.compile(rb"\x00[\r\n]*(?=(?:" + "|".join(STOMP_COMMANDS).encode() + rb")\r?\n)")


def next_amqp(data: bytes, frame_max: int) -> tuple[int | None, int]:
    """
    Find the first method frame that other AMQP frames follow without a gap.

    Returns:
        The place where the method frame begins, or None if more bytes are needed to find it.
        The second value is the place from which the bytes must be kept for the next search.
    """
    needed = max(0, len(data) - _SHORTEST + 1)
    for found in _METHOD_START.finditer(data):
        at = found.start()
        for _ in range(ENOUGH):
            end = _end(data, at, frame_max)
            if end == 0 or end > len(data):
                break
            at = end
        else:
            return found.start(), found.start()
        if end:
            needed = min(needed, found.start())
    return None, needed


def inner_amqp(data: bytes, frame_max: int) -> int | None:
    """Return the place of the first complete method frame that begins after the first byte, or None if no frame does."""
    starts = (found.start() for found in _METHOD_START.finditer(data, 1))
    return next((at for at in starts if 0 < _end(data, at, frame_max) <= len(data)), None)


def next_stomp(data: bytes) -> int | None:
    """Return where a STOMP frame begins after the end of another frame; None if more bytes are needed to find it."""
    found = _STOMP_START.search(data)
    return found.end() if found else None


def _end(data: bytes, at: int, frame_max: int) -> int:
    """Return the end of the frame at `at`, which is behind the data if the frame is incomplete; 0 if it is no frame."""
    if len(data) - at < _HEAD.size:
        return len(data) + 1
    kind, _, size = _HEAD.unpack_from(data, at)
    end = at + size + _AROUND
    valid = kind in _TYPES and size <= frame_max - _AROUND and (end > len(data) or data[end - 1] == _END)
    return end if valid else 0
