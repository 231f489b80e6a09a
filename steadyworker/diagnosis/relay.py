"""
The relay, which passes bytes between clients and the broker, and gives a copy to the reader (`tap.py`).

The relay does not change, reorder or interpret any byte.
It passes a half-close on as a half-close (behind TLS, as a close), and a reset as a reset.
While one side does not read, the relay does not read from the other side, and reports this (`What.BLOCKED`).
Without a relay, the kernel would stop the other side in the same way.
The relay reads the client's first bytes while it dials the broker, so it sees a client that leaves meanwhile.

The relay is one event loop in its own thread, so a terminal that is stopped never stops a byte.
While the reader reads, the relay waits up to `tracing._SWITCH` for the interpreter, so the fastest connections become slower.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import ssl
import struct
import sys
import termios
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from steadyworker.diagnosis.tap import OVERHEAD, Side, Tap, What

CHUNK = 1 << 16
"""The largest number of bytes that are received at once, and that may wait while the broker is dialed."""

PAUSE = 1.0
"""Seconds between two checks of a connection, and between two attempts if the trace has no free descriptor."""

BLOCKED = 0.1
"""Seconds for which bytes must wait for a side before this is reported; a silence is judged only if it is longer."""

_UNSENT = 1 << 16  # bytes that may wait in the kernel's send queue for a side that does not read
_PATIENCE = 10.0  # seconds in which one of the broker's addresses must accept a connection
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with a time of 0: `close` sends RST instead of FIN
_GONE = {errno.ECONNRESET, errno.EPIPE}
_FULL = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


@dataclass(frozen=True, slots=True)
class BrokerTarget:
    """The broker's addresses, and the optional TLS towards the broker and towards the clients."""

    addresses: Sequence[tuple[socket.AddressFamily, tuple[str, int]]]
    towards_broker: ssl.SSLContext | None = None
    server_name: str = ""
    towards_clients: ssl.SSLContext | None = None


class Relay:
    """The relay of one listening socket; the times of its records are those of `clock`."""

    def __init__(self, listener: socket.socket, target: BrokerTarget, tap: Tap, clock: Callable[[], float]) -> None:
        listener.setblocking(False)  # noqa: FBT003 - the method's only parameter
        self._listener = listener
        self._target = target
        self._tap = tap
        self._clock = clock

    async def run(self) -> None:
        """Pass bytes until this task is cancelled, which closes all connections."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, __: None)  # each end reports its own error, without bytes in its text
        number = 0
        try:
            async with asyncio.TaskGroup() as links:
                while True:
                    try:
                        connection, address = await loop.sock_accept(self._listener)
                    except OSError as error:
                        if error.errno in _FULL:  # the client stays in the backlog
                            self._tap.note(What.TROUBLE, 0, Side.CLIENT, self._clock(), error=text_of(error))
                            await asyncio.sleep(PAUSE)
                        continue  # otherwise, the client has gone already
                    number += 1
                    link = RelayLink(number, self._target, self._tap, self._clock)
                    links.create_task(link.run(connection, text_of_address(address)))
        finally:
            self._listener.close()
            self._tap.finish()


class RelayEnd(asyncio.BufferedProtocol):
    """The connection towards one side, with or without TLS."""

    transport: asyncio.Transport
    socket: Any

    def __init__(self, link: RelayLink, side: Side) -> None:
        self._link = link
        self._side = side
        self._timer: asyncio.TimerHandle | None = None
        self._reported = False
        self._buffer = memoryview(bytearray(CHUNK))
        self.blocked = False
        """Whether bytes wait for room in the kernel's send queue."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.socket = transport.get_extra_info("socket")
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        transport.set_write_buffer_limits(high=1, low=0)  # with 0, TLS never resumes
        self._link.made(self._side, self)

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._link.received(self._side, bytes(self._buffer[:nbytes]))

    @override
    def eof_received(self) -> bool:
        self._link.ended(self._side)
        return self.transport.can_write_eof()  # a direction of TLS cannot stay open alone

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        if isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError) and self.transport.can_write_eof():
            with suppress(OSError):  # a write has failed, and the side's last bytes are still to be read
                while data := os.read(self.socket.fileno(), CHUNK):
                    self._link.received(self._side, data)
        self._link.lost(self._side, exc)
        self.close(reset=exc is not None)

    @override
    def pause_writing(self) -> None:
        self.blocked = True
        self._link.hold(self._side.other, hold=True)
        self._timer = asyncio.get_running_loop().call_later(BLOCKED, self._report)

    @override
    def resume_writing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reported:
            self._reported = False
            self._link.note(What.BLOCKED, self._side, blocked=False, bytes=self._waiting())
        if self.blocked:
            self.blocked = False
            self._link.hold(self._side.other, hold=False)

    def finish(self) -> None:
        """Close this direction when its bytes are sent."""
        if self.transport.can_write_eof():
            with suppress(OSError):  # the side has reset the connection
                self.transport.write_eof()
        else:
            self.transport.close()

    def close(self, *, reset: bool) -> None:
        """Close the connection at once, with RST or FIN."""
        if reset:
            with suppress(OSError):  # the socket is closed already
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _report(self) -> None:
        self._reported = self._link.has_room(2 * OVERHEAD)
        if self._reported:
            self._link.note(What.BLOCKED, self._side, blocked=True, bytes=self._waiting())

    def _waiting(self) -> int:
        """Return the number of bytes that the side has not confirmed."""
        with suppress(OSError):
            queue = fcntl.ioctl(self.socket.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
            return int.from_bytes(queue, sys.byteorder) + self.transport.get_write_buffer_size()
        return 0


class RelayLink:
    """A client's connection, with the relay's connection to the broker."""

    def __init__(self, number: int, target: BrokerTarget, tap: Tap, clock: Callable[[], float]) -> None:
        self._number = number
        self._target = target
        self._tap = tap
        self._clock = clock
        self._ends: dict[Side, RelayEnd] = {}
        self._held = bytearray()  # the client's bytes until the broker is reached
        self._skipped: Counter[Side] = Counter()  # bytes that passed without a copy, and are not reported yet
        self._ended: set[Side] = set()
        self._reset = False
        self._lost: set[Side] = set()
        self._over = asyncio.Event()
        self._closed = False

    async def run(self, connection: socket.socket, address: str) -> None:
        """Connect to the broker, and pass bytes until both sides have ended."""
        context = self._target.towards_clients
        self.note(What.OPENED, Side.CLIENT, client=address, tls=bool(context))
        tasks = [asyncio.create_task(work) for work in (self._connect(connection, context), self._watch())]
        for task in tasks:
            task.add_done_callback(self._check)
        try:
            await self._over.wait()
        finally:
            by_trace = not self._over.is_set()
            self._over.set()
            for task in tasks:
                task.cancel()
            for side in Side:
                self._report_skipped(side)
            for end in self._ends.values():
                end.close(reset=self._reset)
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # the loop closes the sockets
            self.note(What.CLOSED, Side.CLIENT, by_trace=by_trace)
            self._closed = True

    def _check(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end_after_mistake(error)

    def _end_after_mistake(self, error: BaseException) -> None:
        """End this connection, and no other one, after an error in the trace itself."""
        self.note(What.TROUBLE, Side.CLIENT, error=f"{text_of_mistake(error)}: this connection was ended")
        self._reset = True
        self._over.set()

    async def _connect(self, connection: socket.socket, context: ssl.SSLContext | None) -> None:
        side = Side.CLIENT
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: RelayEnd(self, Side.CLIENT), connection, ssl=context
            )
            side = Side.BROKER
            await self._dial()
        except OSError as error:
            if not self._over.is_set():
                self.note(What.FAILED, side, error=text_of(error))
                self._reset = not isinstance(error, ssl.SSLError)  # an alert of TLS must arrive
                self._over.set()

    async def _dial(self) -> None:
        """Connect to the first of the broker's addresses that can be reached."""
        context = self._target.towards_broker
        failure = OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
        for family, (host, port) in self._target.addresses:
            try:
                async with asyncio.timeout(_PATIENCE):
                    await asyncio.get_running_loop().create_connection(
                        lambda: RelayEnd(self, Side.BROKER),
                        host,
                        port,
                        family=family,
                        ssl=context,
                        server_hostname=self._target.server_name if context else None,
                    )
            except TimeoutError:  # it has no text
                failure = OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            except OSError as error:
                failure = error
            else:
                return
        raise failure

    # --- What the ends report ------------------------------------------------------------------------------------------

    def made(self, side: Side, end: RelayEnd) -> None:
        """Note that a side is connected; send the broker what the client has sent meanwhile."""
        self._ends[side] = end
        if side is Side.BROKER:
            addresses = {"broker": "peername", "seen_as": "sockname"}  # absent if the broker has gone already
            found = {name: end.transport.get_extra_info(key) for name, key in addresses.items()}
            facts = {name: text_of_address(address) for name, address in found.items() if address}
            self.note(What.CONNECTED, side, **facts, tls_to_broker=bool(self._target.towards_broker))
            held, self._held = bytes(self._held), bytearray()
            if not end.blocked:
                self.hold(Side.CLIENT, hold=False)
            end.transport.write(held)
            if Side.CLIENT in self._ended:
                end.finish()

    def received(self, side: Side, data: bytes) -> None:
        """Copy the bytes for the reader, or count them if there is no room; pass them to the other side."""
        now = self._clock()
        if self._skipped[side] and self.has_room(len(data) + OVERHEAD):
            self._report_skipped(side)
        if self._skipped[side] or not self._tap.data(self._number, side, now, data):
            self._skipped[side] += len(data)
        if (target := self._ends.get(side.other)) is not None:
            if not target.transport.is_closing():
                target.transport.write(data)
        else:
            self._held += data
            if len(self._held) >= CHUNK:
                self.hold(side, hold=True)

    def ended(self, side: Side) -> None:
        """Note that a side closed its direction, and close this direction of the other side."""
        if side in self._ended or self._over.is_set():
            return
        self._ended.add(side)
        self._report_skipped(side)
        self.note(What.ENDED, side)
        if (target := self._ends.get(side.other)) is not None:
            target.finish()
        if len(self._ended) == len(Side):
            for end in self._ends.values():
                end.transport.close()

    def lost(self, side: Side, error: Exception | None) -> None:
        """Note that a side's connection is closed; after an error, the other side's connection is reset."""
        if error is None:
            self.ended(side)
            self._lost.add(side)
            if self._lost == self._ends.keys():
                self._over.set()
        elif isinstance(error, OSError):
            self._was_reset(side, error)
        else:
            self._end_after_mistake(error)

    def hold(self, side: Side, *, hold: bool) -> None:
        """Stop or continue to read from a side."""
        if (end := self._ends.get(side)) is not None and not end.transport.is_closing():
            (end.transport.pause_reading if hold else end.transport.resume_reading)()

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes may wait for the reader, too."""
        return self._tap.has_room(size)

    def note(self, what: What, side: Side, **facts: Any) -> None:
        """Report an event to the reader."""
        if not self._closed:
            self._tap.note(what, self._number, side, self._clock(), **facts)

    def _report_skipped(self, side: Side) -> None:
        if size := self._skipped.pop(side, 0):
            self._tap.note(What.SKIPPED, self._number, side, self._clock(), size=size)

    def _was_reset(self, side: Side, error: OSError) -> None:
        """Report once that a side reset the connection."""
        if not self._over.is_set():
            self._report_skipped(side)
            plain = not isinstance(error, ssl.SSLError) and error.errno in _GONE
            self.note(What.RESET, side, **({} if plain else {"error": text_of(error)}))
            self._reset = True
            self._over.set()

    async def _watch(self) -> None:
        """Find out whether a side that is not read now has reset the connection."""
        while True:
            await asyncio.sleep(PAUSE)
            for side, end in tuple(self._ends.items()):
                if self.has_room(OVERHEAD):
                    self._report_skipped(side)
                if not end.transport.is_reading() or side in self._ended:
                    with suppress(OSError):
                        number = end.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                        if number:
                            self._was_reset(side, OSError(number, os.strerror(number)))


def text_of_address(address: tuple[str | int, ...]) -> str:
    """Return `host:port`, with brackets around a host of IPv6."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def text_of(error: OSError) -> str:
    """Return an error's text for people, without the place in a C file that errors of TLS name."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return os.strerror(error.errno) if error.errno else str(error) or "the other side closed the connection"


def text_of_mistake(error: BaseException) -> str:
    """Return the kind and the place of an error in the trace's own code, without its text, which can contain bytes."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}"
