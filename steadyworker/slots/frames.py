"""
What a worker process and its slot child say to each other: msgpack with a length before it, over an inherited socket.

::

    worker process                     child
    Hello  ──────────────────────────→ import, setup
           ←────────────────────────── Warm, or Cold with the reason
    Begin  ──────────────────────────→ run
           ←────────────────────────── Moved …, Question …
    Reply …, Stop  ──────────────────→
           ←────────────────────────── Over, then the next Begin
    Ping   ──────────────────────────→ (every 15 s; silence of 60 s ends the child)
           ←────────────────────────── Pong
    Close  ──────────────────────────→ teardown, exit

The end of the stream is the end of the other side.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from steadyworker.errors import InterruptReason
from steadyworker.outcome import Crashed, Done, Failed, Interrupted, Outcome, Rejected, Snoozed
from steadyworker.slots.base import Task

STACKS_SIGNAL = signal.SIGUSR1
"""Makes a child write the stacks of all its threads to standard error, even while the GIL is held."""

MAX_FRAME = 16 << 20
"""A frame beyond this is not one of ours: a handler has written to our socket."""

_PREFIX = 4


class Frame(msgspec.Struct, tag=True, array_like=True, gc=False):
    """The base of all frames."""


class Hello(Frame):
    """Who the child is: what it imports, and where it looks; `silence`: how many seconds it waits to hear of us."""

    target: str
    path: list[str]
    log_format: str
    log_level: str
    silence: float


class Begin(Frame):
    """Run this."""

    task: Task


class Reply(Frame):
    """An answer to a Question."""

    fence: int
    id: int
    data: Any
    refused: InterruptReason | None
    end: bool


class Stop(Frame):
    """The run must end: soft (`check()` raises), or hard (every Job call raises, and so does the handler itself)."""

    fence: int
    reason: InterruptReason
    hard: bool


class Ping(Frame):
    """We live."""


class Close(Frame):
    """Call `teardown` and exit, after the present run if there is one."""


class Warm(Frame):
    """`setup` has returned."""


class Cold(Frame):
    """The module could not be imported, or `setup` raised; the child exits."""

    reason: str


class Moved(Frame):
    """Progress."""

    fence: int
    done: float | None
    total: float | None
    note: str


class Question(Frame):
    """The job asks."""

    fence: int
    id: int
    what: str
    data: Any


class Over(Frame):
    """The run has ended: the name of its outcome's class, and its fields."""

    fence: int
    kind: str
    fields: dict[str, Any]


class Pong(Frame):
    """So do we."""


Downward = Hello | Begin | Reply | Stop | Ping | Close
Upward = Warm | Cold | Moved | Question | Over | Pong
Kind = TypeVar("Kind")

_OUTCOMES: dict[str, type[Outcome]] = {
    cls.__name__: cls for cls in (Done, Failed, Rejected, Snoozed, Interrupted, Crashed)
}


def over(fence: int, outcome: Outcome) -> Over:
    """The frame that carries an outcome."""
    return Over(fence, type(outcome).__name__, msgspec.to_builtins(outcome))


def outcome_of(frame: Over) -> Outcome:
    """The outcome that a frame carries; raises ValueError for one that is none."""
    if frame.kind not in _OUTCOMES:
        raise ValueError(f"Expected an outcome, got {frame.kind!r}.")
    return msgspec.convert(frame.fields, _OUTCOMES[frame.kind])


def packed(frame: Downward | Upward) -> bytes:
    """A frame as it is sent."""
    body = msgspec.msgpack.encode(frame)
    return len(body).to_bytes(_PREFIX, "big") + body


class Unpacker(Generic[Kind]):
    """Puts frames together from what a stream delivers; `kind` is the union of the frames that may come."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Kind] = msgspec.msgpack.Decoder(kind)
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Kind]:
        """The frames that are whole now; raises ValueError for what is none."""
        self._rest += data
        while len(self._rest) >= _PREFIX:
            size = int.from_bytes(self._rest[:_PREFIX], "big")
            if size > MAX_FRAME:
                raise ValueError(f"Expected a frame of at most {MAX_FRAME} bytes, got {size}.")
            if len(self._rest) < _PREFIX + size:
                return
            body = bytes(self._rest[_PREFIX : _PREFIX + size])
            del self._rest[: _PREFIX + size]
            yield self._decoder.decode(body)
