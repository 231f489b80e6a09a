"""
Finds the boundaries of frames in bytes that can begin in the middle of a frame.

A reader that missed bytes must find the next frame before it can go on.
If a client writes a frame into the middle of another frame, the outer frame contains the head of the inner frame.
The functions here find a frame by four properties of every frame.
A frame has a type, a size within the limit, a known class, and the end octet at the right place.
"""

from __future__ import annotations

import re
import struct

from steadyworker.diagnosis.protocols import STOMP_COMMANDS
from steadyworker.diagnosis.remoting import begins

ENOUGH = 3
"""The number of frames in a row that cannot be a coincidence."""

_HEAD = struct.Struct(">BHI")
_AROUND = 8
_END = 0xCE
_HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_CLASSES = {10, 20, 30, 40, 50, 60, 85, 90}
_TYPES = {1, 2, 3, 8}
_SHORTEST = 11  # bytes that show the start of a method frame
_METHODS = 120  # no class has a method with a larger number
_METHOD_START = re.compile(rb"\x01..[\x00-\x07]...\x00[\x0a\x14\x1e\x28\x32\x3c\x55\x5a]\x00[\x0a-\x78]", re.DOTALL)
_STOMP_START = re.compile(rb"\x00[\r\n]*(?=(?:" + "|".join(STOMP_COMMANDS).encode() + rb")\r?\n)")
_LONGEST_COMMAND = 16
# Two lengths, and the first bytes of a header, which is JSON, or binary with its language and its flag.
_REMOTING_START = re.compile(
    rb"\x00...\x00...(?=\{\")|\x00...\x01...(?=..[\x00-\x1f]......\x00\x00\x00[\x00-\x03])", re.DOTALL
)
_LONGEST_START = 21


def next_amqp(data: bytes, frame_max: int) -> tuple[int | None, int]:
    """
    Find the first method frame that other AMQP frames follow without a gap.

    Returns:
        The place where the method frame begins, or None if more bytes are needed to find it.
        The second value is the place from which the bytes must be kept for the next search.
    """
    needed = max(0, len(data) - _SHORTEST + 1)
    for found in _METHOD_START.finditer(data):
        count, at = 0, found.start()
        while count < ENOUGH and (size := _frame(data, at, frame_max)):
            count, at = count + 1, at + size
        if count == ENOUGH:
            return found.start(), found.start()
        if _is_incomplete(data, at, frame_max):
            needed = min(needed, found.start())
    return None, needed


def inner_amqp(data: bytes, frame_max: int) -> int | None:
    """Return the place of the first complete method frame that begins after the first byte, or None if no frame does."""
    for found in _METHOD_START.finditer(data, 1):
        if _frame(data, found.start(), frame_max):
            return found.start()
    return None


def next_stomp(data: bytes) -> int | None:
    """Return where a STOMP frame begins after the end of another frame; None if more bytes are needed to find it."""
    found = _STOMP_START.search(data)
    return found.end() if found else None


def keep_for_stomp(data: bytes) -> bytes:
    """Return the last bytes, which can contain the incomplete beginning of a frame."""
    return data[-_LONGEST_COMMAND:]


def next_remoting(data: bytes) -> int | None:
    """Return where a frame of RocketMQ's remoting protocol begins; None if more bytes are needed to find it."""
    starts = (found.start() for found in _REMOTING_START.finditer(data))
    return next((at for at in starts if begins(data[at : at + _AROUND])), None)


def keep_for_remoting(data: bytes) -> bytes:
    """Return the last bytes, which can contain the incomplete beginning of a frame."""
    return data[1 - _LONGEST_START :]


def _is_incomplete(data: bytes, at: int, frame_max: int) -> bool:
    """Return whether the bytes from `at` on can be an incomplete frame."""
    if len(data) - at < _HEAD.size:
        return True
    kind, _, size = _HEAD.unpack_from(data, at)
    return kind in _TYPES and size <= frame_max - _AROUND and at + size + _AROUND > len(data)


def _frame(data: bytes, at: int, frame_max: int) -> int:
    """Return the size of the frame that begins at `at` if the frame is valid and complete, otherwise 0."""
    if len(data) - at < _AROUND:
        return 0
    kind, _, size = _HEAD.unpack_from(data, at)
    whole = size + _AROUND
    if size > frame_max - _AROUND or at + whole > len(data) or data[at + whole - 1] != _END:
        return 0
    payload = at + _HEAD.size
    class_id = int.from_bytes(data[payload : payload + 2], "big")
    match kind:
        case 1:
            method = int.from_bytes(data[payload + 2 : payload + 4], "big")
            good = size >= 4 and class_id in _CLASSES and 0 < method <= _METHODS  # noqa: PLR2004 - class and method
        case 2:
            good = size >= 14 and class_id == 60  # noqa: PLR2004 - the only class with content, and the parts of its header
        case 3:
            good = True
        case _:
            good = data[at : at + whole] == _HEARTBEAT
    return whole if good else 0
