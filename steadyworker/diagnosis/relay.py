"""
The relay, which passes bytes between clients and the broker, and gives a copy to the reader (`tap.py`).

The relay does not change, reorder or interpret any byte.
It passes a half-close on as a half-close, and a reset as a reset.
While one side does not read, the relay does not read from the other side, and reports this (`What.BLOCKED`).
Without a relay, the kernel would stop the other side in the same way.
The relay reads the client's first bytes while it dials the broker, so it sees a client that leaves meanwhile.

The relay is one event loop in its own thread, so a terminal that is stopped never stops a byte.
While the reader reads, the relay waits up to `tracing._SWITCH` for the interpreter, so the fastest connections become slower.
Each connection is one task, with one more task for each direction:

    | a direction | then |
    |---|---|
    | receives the end of its source | sends FIN to its target, and ends |
    | cannot receive | the connection is reset: both directions end |
    | cannot send | ends; the target's last bytes may still pass in the other direction, then the connection is reset |
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from typing_extensions import override

from steadyworker.diagnosis.tap import OVERHEAD, Side, Tap, What

CHUNK = 1 << 16
"""The largest number of bytes that are received at once."""

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


class End:
    """A socket towards a client or the broker, without TLS."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the method's only parameter
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        self.socket = connection
        self.on_wait: Callable[[bool], bool] = lambda _: False
        """Is called with True when bytes have waited for `BLOCKED` seconds; if it returned True, with False at their end."""
        self._rest = 0  # bytes that wait for room in the kernel's send queue
        self._waits = False
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Prepare the connected socket for bytes."""

    async def receive(self) -> bytes:
        """Return the next bytes; none if the other side has closed its direction."""
        return await self._loop.sock_recv(self.socket, CHUNK)

    async def send(self, data: bytes) -> None:
        """Return when the kernel has accepted all these bytes."""
        view = memoryview(data)
        self._rest = len(view)
        timer: asyncio.TimerHandle | None = None
        try:
            while self._rest:
                try:
                    accepted = self.socket.send(view[-self._rest :])
                except BlockingIOError:
                    timer = timer or self._loop.call_later(BLOCKED, self._report_wait)
                    await self._until_writable()
                else:
                    self._rest -= accepted
        finally:
            if timer is not None:
                timer.cancel()
            if self._waits:
                self._waits = False
                self.on_wait(False)  # noqa: FBT003 - the only parameter

    async def finish(self) -> None:
        """Close this direction with FIN."""
        self.socket.shutdown(socket.SHUT_WR)

    @property
    def blocked(self) -> bool:
        """Whether bytes wait for room in the kernel's send queue."""
        return self._rest > 0

    def waiting(self) -> int:
        """Return the number of bytes that the other side has not confirmed."""
        queue = fcntl.ioctl(self.socket, termios.TIOCOUTQ, b"\0\0\0\0")
        return int.from_bytes(queue, sys.byteorder) + self._rest

    def close(self, *, reset: bool) -> None:
        """Close the socket, with RST or FIN."""
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.socket.close()

    def _report_wait(self) -> None:
        self._waits = self.on_wait(True)  # noqa: FBT003 - the only parameter

    async def _until_writable(self) -> None:
        writable = asyncio.Event()
        self._loop.add_writer(self.socket, writable.set)
        try:
            await writable.wait()
        finally:
            self._loop.remove_writer(self.socket)


class TlsEnd(End):
    """A socket with TLS; `server_name` is the name that the broker's certificate must have, None towards a client."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, server_name: str | None) -> None:
        super().__init__(connection)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._sending = asyncio.Lock()
        self._ready = bytearray()  # bytes that were decrypted before this direction was closed

    @override
    async def start(self) -> None:
        done = False
        while not done:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                await self._push()
                if not await self._pull():
                    raise ConnectionResetError("The other side closed the connection in the handshake.") from None
            finally:
                await self._push()  # an alert must arrive, too

    @override
    async def receive(self) -> bytes:
        while True:
            if self._ready:
                data = bytes(self._ready[:CHUNK])
                del self._ready[:CHUNK]
                return data
            try:
                return self._tls.read(CHUNK)
            except ssl.SSLWantReadError:
                await self._push()  # the reply to a change of keys
                await self._pull()
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLEOFError:
                if not self._incoming.eof:
                    raise  # an earlier error of TLS, and not the end of the connection
                return b""

    @override
    async def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        await self._push()

    @override
    async def finish(self) -> None:
        with suppress(ssl.SSLError):
            while data := self._tls.read(CHUNK):  # unwrap would discard these bytes
                self._ready += data
        with suppress(ssl.SSLError):  # a complete unwrap would wait for the other side's alert
            self._tls.unwrap()
        await self._push()
        await super().finish()

    async def _pull(self) -> bool:
        got = await super().receive()
        if got:
            self._incoming.write(got)
        else:
            self._incoming.write_eof()
        return bool(got)

    async def _push(self) -> None:
        async with self._sending:
            if self._outgoing.pending:
                await super().send(self._outgoing.read())


@dataclass(slots=True)
class Flow:
    """
    One direction of a connection.

    Attributes:
        side: The side that sends.
        target: The end that receives; None while the broker is dialed.
        held: The bytes that came before `target` was there.
        ready: Whether these bytes are sent.
        skipped: The number of bytes that passed without a copy, and are not reported yet.
        ended: Whether nothing more is received.
    """

    side: Side
    source: End
    target: End | None = None
    held: bytearray = field(default_factory=bytearray)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    skipped: int = 0
    ended: bool = False


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


class RelayLink:
    """A client's connection, with the relay's connection to the broker."""

    def __init__(self, number: int, target: BrokerTarget, tap: Tap, clock: Callable[[], float]) -> None:
        self._number = number
        self._target = target
        self._tap = tap
        self._clock = clock
        self._reset = False
        self._done = 0  # directions of which the FIN has passed

    async def run(self, connection: socket.socket, address: str) -> None:
        """Connect to the broker, and pass bytes until both sides have ended."""
        context = self._target.towards_clients
        self._note(What.OPENED, Side.CLIENT, client=address, tls=bool(context))
        client = TlsEnd(connection, context, None) if context else End(connection)
        ends, over = [client], False
        try:
            await self._pass_both(client, ends)
            over = True
        except Exception as error:  # noqa: BLE001 - no mistake in one connection may end all others
            self._note(What.TROUBLE, Side.CLIENT, error=f"{text_of_mistake(error)}: this connection was ended")
            self._reset = True
        finally:
            for end in ends:
                end.close(reset=self._reset)
            over = over or self._reset or self._done == len(Side)
            self._note(What.CLOSED, Side.CLIENT, by_trace=not over)

    async def _pass_both(self, client: End, ends: list[End]) -> None:
        """Pass the bytes of both directions; add the broker's end to `ends`."""
        flows = [Flow(Side.CLIENT, client)]
        try:
            async with asyncio.TaskGroup() as tasks:
                started = tasks.create_task(self._start(client, Side.CLIENT))
                passing = [tasks.create_task(self._pass(flows[0], started))]
                broker = await self._reach(ends)
                await started
                flows[0].target = broker
                flows.append(Flow(Side.BROKER, broker, client))
                flows[1].ready.set()
                for end, side in ((client, Side.CLIENT), (broker, Side.BROKER)):
                    end.on_wait = partial(self._blocked, end, side)
                watch = tasks.create_task(self._watch(flows))
                passing.append(tasks.create_task(self._pass(flows[1], started)))
                await asyncio.gather(tasks.create_task(self._join(flows[0], broker)), *passing)
                watch.cancel()
        except* ConnectionResetError:
            pass
        finally:
            for flow in flows:
                self._report_skipped(flow)

    async def _start(self, end: End, side: Side) -> None:
        try:
            await end.start()
        except OSError as error:
            self._fail(side, error)

    def _fail(self, side: Side, error: OSError) -> NoReturn:
        """Report that the connection to a side failed, and raise ConnectionResetError."""
        self._note(What.FAILED, side, error=text_of(error))
        self._reset = not isinstance(error, ssl.SSLError)  # an alert of TLS must arrive
        raise ConnectionResetError from error

    async def _reach(self, ends: list[End]) -> End:
        """Connect to the broker."""
        try:
            broker = await self._dial()
            ends.append(broker)
            await broker.start()
            where = {  # getpeername fails if the broker has reset the connection already
                "broker": text_of_address(broker.socket.getpeername()),
                "seen_as": text_of_address(broker.socket.getsockname()),
            }
        except OSError as error:
            self._fail(Side.BROKER, error)
        self._note(What.CONNECTED, Side.BROKER, **where, tls_to_broker=bool(self._target.towards_broker))
        return broker

    async def _join(self, flow: Flow, broker: End) -> None:
        """Send the bytes that the client sent while the broker was dialed."""
        with suppress(OSError):  # `_pass` meets and reports this error, too
            await broker.send(bytes(flow.held))
        flow.ready.set()

    async def _dial(self) -> End:
        """Connect to the first of the broker's addresses that can be reached."""
        target = self._target
        failure = OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
        for family, address in target.addresses:
            try:
                connection = await self._connect(family, address)
            except OSError as error:
                failure = error
            else:
                context = target.towards_broker
                return TlsEnd(connection, context, target.server_name) if context else End(connection)
        raise failure

    async def _connect(self, family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
        while True:
            try:
                connection = socket.socket(family, socket.SOCK_STREAM)
                break
            except OSError as error:
                if error.errno not in _FULL:  # otherwise the trace, and not the broker, has the trouble
                    raise
                self._note(What.TROUBLE, Side.BROKER, error=text_of(error))
                await asyncio.sleep(PAUSE)
        try:
            connection.setblocking(False)  # noqa: FBT003 - the method's only parameter
            async with asyncio.timeout(_PATIENCE):
                await asyncio.get_running_loop().sock_connect(connection, address)
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError):  # it has no text
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from error
            raise
        return connection

    # --- Bytes ---------------------------------------------------------------------------------------------------------

    async def _pass(self, flow: Flow, started: asyncio.Task[None]) -> None:
        """
        Pass the bytes of one direction, when the client's end has started.

        Raises:
            ConnectionResetError: The source reset the connection.
        """
        await started
        data = b"-"
        while data:
            try:
                data = await flow.source.receive()
            except OSError as error:
                self._was_reset(flow, flow.side, error)
                raise ConnectionResetError from error
            now = self._clock()
            if data:
                self._copy(flow, now, data)
            else:
                flow.ended = True
                self._report_skipped(flow)
                if not self._reset:
                    self._note(What.ENDED, flow.side)
            if data and flow.target is None and len(flow.held) < CHUNK:
                flow.held += data
                continue
            await flow.ready.wait()
            assert flow.target is not None
            try:
                await (flow.target.send(data) if data else flow.target.finish())
            except OSError as error:
                flow.ended = True
                self._was_reset(flow, flow.side.other, error)
                return
            if data:
                await asyncio.sleep(0)  # the next connection's turn
        self._done += 1

    def _copy(self, flow: Flow, now: float, data: bytes) -> None:
        """Report bytes to the reader; if there is no room for a copy, only count these bytes."""
        if flow.skipped and self._tap.has_room(len(data) + OVERHEAD):
            self._report_skipped(flow)
        if flow.skipped or not self._tap.data(self._number, flow.side, now, data):
            flow.skipped += len(data)

    def _report_skipped(self, flow: Flow) -> None:
        if flow.skipped:
            self._tap.note(What.SKIPPED, self._number, flow.side, self._clock(), size=flow.skipped)
            flow.skipped = 0

    def _was_reset(self, flow: Flow, side: Side, error: OSError) -> None:
        """Report once that a side reset the connection; the reset passes on when the last bytes have passed."""
        if not self._reset:
            self._reset = True
            self._report_skipped(flow)
            plain = not isinstance(error, ssl.SSLError) and error.errno in _GONE
            self._note(What.RESET, side, **({} if plain else {"error": text_of(error)}))

    def _blocked(self, end: End, side: Side, waits: bool) -> bool:  # noqa: FBT001 - one value of `End.on_wait`
        """Report that a side does not read, if the reader has room; return whether this was reported."""
        if waits and not self._tap.has_room(2 * OVERHEAD):
            return False
        self._note(What.BLOCKED, side, blocked=waits, bytes=end.waiting())
        return True

    def _note(self, what: What, side: Side, **facts: Any) -> None:
        self._tap.note(what, self._number, side, self._clock(), **facts)

    async def _watch(self, flows: Sequence[Flow]) -> None:
        """
        Find out whether a side that is not read now has reset the connection.

        Raises:
            ConnectionResetError: It has.
        """
        while True:
            await asyncio.sleep(PAUSE)
            for flow in flows:
                assert flow.target is not None
                if self._tap.has_room(OVERHEAD):
                    self._report_skipped(flow)
                if flow.ended or flow.target.blocked:
                    number = flow.source.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if number:
                        self._was_reset(flow, flow.side, OSError(number, os.strerror(number)))
                        raise ConnectionResetError


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
    return str(error) if error.errno is None else os.strerror(error.errno)


def text_of_mistake(error: BaseException) -> str:
    """Return the kind and the place of an error in the trace's own code, without its text, which can contain bytes."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}"
