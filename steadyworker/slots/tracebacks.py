"""
The traceback of a run, as text for people: bounded, without recognised secrets, and with the user's own frames first.

A failed handler's exception has a traceback; a child that a fatal signal ended leaves the stacks of its threads.
"""

from __future__ import annotations

import re
import sys
import traceback
from types import TracebackType

from steadyworker.text.plain_text import as_unicode, plain_text

LONGEST = 16 << 10
"""The maximum length of a traceback, in bytes of UTF-8."""

_SEARCHED = 32 << 10
"""
The number of characters at each end of a long text that are searched for secrets.

At most the outer half of each end stays, so that no cut leaves half a secret.
"""

_CUT = "\n  [… cut by SteadyWorker …]\n"
_OURS = "steadyworker."
_READER = re.compile(r'slots/child\.py", line \d+ in _read$', re.MULTILINE)


def traceback_of(error: BaseException | None) -> str:
    """
    Return the traceback of an exception and of its causes; empty without an exception, or if it cannot be printed.

    The frames of SteadyWorker that called the handler are left out, so the traceback begins with the handler's own frames.
    """
    if error is None:
        return ""
    try:
        whole = traceback.TracebackException(type(error), error, _own_frames(error.__traceback__))
        return shortened("".join(whole.format()))
    except BaseException:  # noqa: BLE001 - a user's class can raise anything, even SystemExit
        return ""


def shortened(text: str) -> str:
    """Return a traceback or stacks without recognised secrets; the middle of a long text is cut."""
    if len(text) > 2 * _SEARCHED:
        head, tail = _searched(text[:_SEARCHED]), _searched(text[-_SEARCHED:])
        text = f"{head[: len(head) // 2]}{_CUT}{tail[len(tail) // 2 :]}"
    else:
        text = _searched(text)
    if len(text.encode()) <= LONGEST:
        return text
    half = (LONGEST - len(_CUT.encode())) // 2
    data = text.encode()
    return f"{data[:half].decode(errors='ignore')}{_CUT}{data[-half:].decode(errors='ignore')}"


def _searched(text: str) -> str:
    return plain_text(text, sys.maxsize)


def stacks_text(data: bytes) -> str:
    """Return the stacks that a dying child has written, without the stack of SteadyWorker's own thread."""
    blocks = as_unicode(data.decode("utf-8", "backslashreplace")).split("\n\n")
    return shortened("\n\n".join(block for block in blocks if not _READER.search(block)))


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the frames without the leading frames of SteadyWorker; return all frames if all are SteadyWorker's."""
    own = frames
    while own is not None and own.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
        own = own.tb_next
    return own or frames
