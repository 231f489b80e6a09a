"""
The frames between a worker process and its slot child: msgpack with a length prefix, over an inherited socket.

::

    worker process                     child
    Hello  ──────────────────────────→ import, setup
           ←────────────────────────── SetupDone, or SetupFailed with the reason
    Begin  ──────────────────────────→ run
           ←────────────────────────── ProgressMade …, RequestMade …
    Reply …, Stop  ──────────────────→
           ←────────────────────────── RunEnded, then the next Begin
    Ping   ──────────────────────────→ (every 15 s; after 60 s without a frame, the child ends itself)
           ←────────────────────────── Pong
    Close  ──────────────────────────→ teardown, exit

The end of the stream means that the other side has ended.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from steadyworker.errors import InterruptReason
from steadyworker.link import JobRequest, Task
from steadyworker.outcome import Crashed, Done, Failed, Interrupted, Outcome, Rejected, Snoozed
from steadyworker.text.plain_text import as_unicode_data

PROTOCOL = 3
"""
The version of these frames, which a worker process passes to its child on the command line.

A child of another version does not start: someone has replaced the package under a live worker process.
Raise this number with each change of a frame, of `Task`, of a request or of an outcome.
Never change SetupFailed, with which a child of another version reports this.
"""

STACKS_SIGNAL = signal.SIGQUIT
"""The signal at which a child writes the stacks of all its threads to standard error, even while a thread holds the GIL."""

MAX_FRAME = 16 << 20
"""The longest frame that a child sends, in bytes; a longer frame means that a handler has written to the socket."""

ANY_FRAME = 1 << 32
"""A number above every length prefix: a child accepts frames of any size, because a message can have any size."""

_PREFIX = 4


class Frame(msgspec.Struct, tag=True, array_like=True, gc=False):
    """The base of all frames."""


class Hello(Frame):
    """
    The child's import target, `sys.path` and log settings.

    Paths are bytes, because the operating system does not require them to be valid text.
    `silence` is the number of seconds without a frame after which the child ends itself.
    """

    target: str
    path: list[bytes]
    log_format: str
    log_level: str
    silence: float


class Begin(Frame):
    """The order to run this task."""

    task: Task


class Reply(Frame):
    """A reply to the request with this id."""

    fence: int
    id: int
    data: Any
    refused: InterruptReason | None
    end: bool


class Stop(Frame):
    """
    The order to end the run.

    After a soft stop, `check()` raises Interrupt.
    After a hard stop, every Job call raises Interrupt, and a signal raises Interrupt in the handler's own code.
    """

    fence: int
    reason: InterruptReason
    hard: bool


class Ping(Frame):
    """The sign that the worker process is alive."""


class Close(Frame):
    """The order to call `teardown` and exit; a child with a present run first ends this run."""


class SetupDone(Frame):
    """The report that `setup` has returned."""


class SetupFailed(Frame):
    """The report that the child's version differs, the import failed or `setup` raised; after the report, the child exits."""

    reason: str


class ProgressMade(Frame):
    """The report of the job's progress."""

    fence: int
    done: float | None
    total: float | None
    note: str


class RequestMade(Frame):
    """A request of the job; the job waits for a Reply with the same id."""

    fence: int
    id: int
    request: JobRequest


class RunEnded(Frame):
    """
    The report that the run has ended, with the class name and the fields of the run's outcome.

    The traceback is empty without a failure; `peak_memory` is the peak of the run's resident memory in bytes, or None.
    """

    fence: int
    kind: str
    fields: dict[str, Any]
    traceback: str = ""
    peak_memory: int | None = None


class Pong(Frame):
    """The child's reply to Ping."""


ToChild = Hello | Begin | Reply | Stop | Ping | Close
FromChild = SetupDone | SetupFailed | ProgressMade | RequestMade | RunEnded | Pong
Kind = TypeVar("Kind")

_OUTCOMES: dict[str, type[Outcome]] = {
    cls.__name__: cls for cls in (Done, Failed, Rejected, Snoozed, Interrupted, Crashed)
}


def run_ended(fence: int, outcome: Outcome, traceback: str = "", peak_memory: int | None = None) -> RunEnded:
    """Return the frame that carries an outcome."""
    return RunEnded(
        fence, type(outcome).__name__, msgspec.to_builtins(outcome, builtin_types=(bytes,)), traceback, peak_memory
    )


def outcome_of(frame: RunEnded) -> Outcome:
    """Return the outcome that a frame carries; raise ValueError for an unknown class."""
    if frame.kind not in _OUTCOMES:
        raise ValueError(f"Expected the name of an outcome, got {frame.kind!r}.")
    return msgspec.convert(frame.fields, _OUTCOMES[frame.kind])


def packed(frame: ToChild | FromChild) -> bytes:
    """
    Return the bytes of a frame; write an escape for each lone surrogate in its texts, because UTF-8 cannot encode surrogates.

    Raise ValueError or TypeError if a job's request is too large, or has a value that is not plain data.
    """
    try:
        body = msgspec.msgpack.encode(frame)
    except UnicodeEncodeError:
        body = msgspec.msgpack.encode(as_unicode_data(msgspec.to_builtins(frame, builtin_types=(bytes,))))
    if isinstance(frame, RequestMade) and len(body) > MAX_FRAME:
        raise ValueError(f"Expected a request of at most {MAX_FRAME} bytes, got {len(body)}: make it smaller.")
    return len(body).to_bytes(_PREFIX, "big") + body


class Unpacker(Generic[Kind]):
    """
    A reader that assembles frames from the bytes of a stream.

    `kind` is the union of the expected frames; `largest` is the size of the longest accepted frame, in bytes.
    """

    def __init__(self, kind: Any, largest: int = MAX_FRAME) -> None:
        self._largest = largest
        self._decoder: msgspec.msgpack.Decoder[Kind] = msgspec.msgpack.Decoder(kind)
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Kind]:
        """Add bytes, and yield the frames that these bytes complete; raise ValueError or MsgspecError for invalid data."""
        self._rest += data
        while len(self._rest) >= _PREFIX:
            size = int.from_bytes(self._rest[:_PREFIX], "big")
            if size > self._largest:
                raise ValueError(f"Expected a frame of at most {self._largest} bytes, got {size}.")
            if len(self._rest) < _PREFIX + size:
                return
            body = bytes(self._rest[_PREFIX : _PREFIX + size])
            del self._rest[: _PREFIX + size]
            yield self._decoder.decode(body)
