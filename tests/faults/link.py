"""One connection through the proxy: two pipes, each with a fault, and what can be done to them."""

from __future__ import annotations

import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, TypeAlias

Direction: TypeAlias = Literal["up", "down"]
BOTH: tuple[Direction, ...] = ("up", "down")
CHUNK = 1 << 16
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: close() sends RST at once, and forgets what was not sent."""


@dataclass(frozen=True)
class Fault:
    """What happens to the bytes of one direction."""

    hold: bool = False
    """Nothing is read: the sender's buffers fill up, then its writes block."""
    drop: bool = False
    """All is read, nothing is passed on."""
    rate: float = 0.0
    """Bytes a second; 0 for as fast as they come."""
    delay: float = 0.0
    """Seconds that each byte is on its way; as many are on their way as the source sends."""
    slice: int = CHUNK
    """Bytes of one write."""
    scrambled: tuple[int, int] | None = None
    """A seed, and which part of what is read at once arrives twice, or with its halves in the wrong order: one in so many."""


class Faults(ABC):
    """What can be done to one connection (`Link`), or to all of them and those to come (`Proxy`)."""

    @abstractmethod
    def cut(self) -> None:
        """Reset both ends (RST): ECONNRESET, at once."""

    @abstractmethod
    def close(self) -> None:
        """Close both ends in good order (FIN): end of file."""

    @abstractmethod
    def after(self, count: int, direction: Direction, action: Callable[[Link], None]) -> None:
        """When `count` more bytes have passed in this direction, and not one more, do this: `Link.cut`, `Link.stall`."""

    @abstractmethod
    def resume(self) -> None:
        """No fault any more; what was held flows on, what was dropped is gone."""

    @abstractmethod
    def change(self, directions: tuple[Direction, ...], **changes: Any) -> None:
        """Change the fault of these directions."""

    def stall(self) -> None:
        """Nothing arrives in either direction, and nobody is told: a network that lost its way."""
        self.change(BOTH, hold=True)

    def hold(self, direction: Direction) -> None:
        """Nothing is taken from the sender: back pressure."""
        self.change((direction,), hold=True)

    def drop(self, direction: Direction) -> None:
        """The sender's bytes, end and reset are taken and never arrive; the other direction works."""
        self.change((direction,), drop=True)

    def slow(self, bytes_per_second: float, *directions: Direction) -> None:
        """Pass no more than this (both directions when none is named)."""
        self.change(directions or BOTH, rate=bytes_per_second)

    def delay(self, seconds: float, *directions: Direction) -> None:
        """Let each byte arrive so much later (both directions when none is named): a distant server."""
        self.change(directions or BOTH, delay=seconds)

    def slice(self, count: int, *directions: Direction) -> None:
        """Write so many bytes at a time, each in a packet of its own (both directions when none is named)."""
        self.change(directions or BOTH, slice=count)

    def scramble(self, seed: int, one_in: int, *directions: Direction) -> None:
        """Let one part in so many arrive twice, or with its halves in the wrong order, as TCP never does (drawn by the seed)."""
        self.change(directions or BOTH, scrambled=(seed, one_in))


class Pipe:
    """
    One direction of a link.

    At most one chunk waits between source and sink, so that back pressure passes through; with a delay, many are on their way.
    """

    def __init__(self, source: socket.socket, sink: socket.socket, fault: Fault, name: str = "") -> None:
        self.source, self.sink, self.fault = source, sink, fault
        self.passed = self.scrambled = 0
        self._name = name
        self._drawn: Random | None = None
        self.stop_at: int | None = None
        """`passed` at which `action` is due."""
        self.action: Callable[[Link], None] = Link.cut
        self._waiting: deque[tuple[float, bytes]] = deque()  # each chunk, with the time at which it arrives
        self._ended = self._closed = False
        self._arrives = self._paced = 0.0

    @property
    def reads(self) -> bool:
        takes = self.fault.drop or self.fault.delay or not self._waiting
        return bool(takes) and not (self.fault.hold or self._ended)

    @property
    def writes(self) -> bool:
        waits = bool(self._waiting) or (self._ended and not self._closed)
        return waits and not (self.fault.hold or self.fault.drop)

    @property
    def due(self) -> float:
        """The loop's time before which nothing more is written."""
        return max(self._paced, self._waiting[0][0] if self._waiting else self._arrives)

    @property
    def finished(self) -> bool:
        """Whether the source ended, and the sink was told."""
        return self._closed

    def read(self, now: float) -> None:
        """Take what is there; raises OSError when the source was reset."""
        data = self.source.recv(CHUNK)
        self._ended = not data
        self._arrives = now + self.fault.delay
        if self.fault.drop:
            self._waiting.clear()
        elif data:
            self._waiting.append((self._arrives, self._scrambled(data)))

    def _scrambled(self, data: bytes) -> bytes:
        if self.fault.scrambled is None:
            return data
        seed, one_in = self.fault.scrambled
        self._drawn = self._drawn or Random(f"{seed} {self._name}")
        if self._drawn.randrange(one_in):
            return data
        self.scrambled += 1
        half = len(data) // 2
        return data * 2 if self._drawn.randrange(2) else data[half:] + data[:half]

    def write(self, now: float) -> None:
        """Pass on one slice, or the end; raises OSError when the sink is gone."""
        if not self._waiting:
            self.sink.shutdown(socket.SHUT_WR)
            self._closed = True
            return
        size = self.fault.slice
        if self.fault.rate:
            size = min(size, max(1, int(self.fault.rate / 20)))  # twenty writes a second look like a slow line
        if self.stop_at is not None:
            size = min(size, self.stop_at - self.passed)
        arrives, data = self._waiting[0]
        sent = self.sink.send(data[:size])
        if sent < len(data):
            self._waiting[0] = (arrives, data[sent:])
        else:
            self._waiting.popleft()
        self.passed += sent
        self._paced = now + sent / self.fault.rate if self.fault.rate else 0.0

    def lose(self) -> None:
        """The source is gone, and nobody beyond this pipe hears of it."""
        self._ended = self._closed = True
        self._waiting.clear()

    def heal(self) -> None:
        """No fault any more; what is on its way arrives when it would have."""
        self.fault, self.stop_at, self._paced = Fault(), None, 0.0


class Link(Faults):
    """One connection; `number` counts from 1."""

    def __init__(
        self,
        number: int,
        client: socket.socket,
        server: socket.socket,
        faults: dict[Direction, Fault],
        do: Callable[[Callable[[], None]], None],
        forget: Callable[[socket.socket], None],
    ) -> None:
        """`do` runs a callable in the loop's thread, and returns when it has run; `forget` hears of each end's close."""
        self.number = number
        self.open = True
        self.sockets = (client, server)
        for end in self.sockets:
            end.setblocking(False)
            with suppress(OSError):  # not for the socket pair of a silent server
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pipes: dict[Direction, Pipe] = {
            "up": Pipe(client, server, faults["up"], f"{number} up"),
            "down": Pipe(server, client, faults["down"], f"{number} down"),
        }
        self._do, self._forget = do, forget

    def passed(self, direction: Direction) -> int:
        """Bytes that went out in this direction."""
        return self.pipes[direction].passed

    def cut(self) -> None:
        def reset() -> None:
            for end in self.sockets:
                with suppress(OSError):  # it has ended already
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.end()

        self._do(reset)

    def close(self) -> None:
        self._do(self.end)

    def after(self, count: int, direction: Direction, action: Callable[[Link], None]) -> None:
        def arm() -> None:
            pipe = self.pipes[direction]
            pipe.stop_at, pipe.action = pipe.passed + count, action
            self.act()

        self._do(arm)

    def resume(self) -> None:
        def heal() -> None:
            for pipe in self.pipes.values():
                pipe.heal()

        self._do(heal)

    def change(self, directions: tuple[Direction, ...], **changes: Any) -> None:
        def set_faults() -> None:
            for direction in directions:
                pipe = self.pipes[direction]
                pipe.fault = replace(pipe.fault, **changes)

        self._do(set_faults)

    # --- For the loop -------------------------------------------------------------------------------------------------

    def end(self) -> None:
        if not self.open:  # it broke in this very turn of the loop, before it was asked to end
            return
        self.open = False
        for end in self.sockets:
            self._forget(end)
            end.close()

    def out_of(self, end: socket.socket) -> Pipe:
        """The pipe that reads from this end."""
        return self.pipes["up" if end is self.sockets[0] else "down"]

    def into(self, end: socket.socket) -> Pipe:
        """The pipe that writes to this end."""
        return self.pipes["down" if end is self.sockets[0] else "up"]

    @property
    def finished(self) -> bool:
        """Whether both ends have closed in good order."""
        return all(pipe.finished for pipe in self.pipes.values())

    def act(self) -> None:
        """Do what is due after so many bytes."""
        for pipe in self.pipes.values():
            if pipe.stop_at == pipe.passed:
                pipe.stop_at = None
                pipe.action(self)

    def broken(self, end: socket.socket) -> None:
        """An end was reset: the other end hears of it, but through a fault."""
        fault = self.out_of(end).fault
        if fault.drop or fault.hold:
            self.out_of(end).lose()
            self.into(end).fault = Fault(drop=True)
        else:
            self.cut()
