"""
The relay, which passes bytes between clients and the broker, and gives a copy to the reader (`tap.py`).

The relay does not change, delay, reorder or interpret any byte.
It sends bytes on before the reader receives their record.
It passes a half-close on as a half-close, and a reset as a reset.
While one side does not read, the relay does not read from the other side.
Without a relay, the kernel would stop the other side in the same way.

The relay is one thread with one epoll loop, in a separate process (`tracing.py`), so the reader never delays a byte.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from steadyworker.diagnosis.ends import End, TlsEnd, abort, facts_of, text_of, text_of_address, unconfirmed
from steadyworker.diagnosis.links import Flow, RelayLink
from steadyworker.diagnosis.tap import CHUNK, Side, TapWriter, What

STUCK = 1.0
"""Seconds without progress after which a send queue is reported; also the seconds between two checks of the queue."""

_FAILED_EVENTS = select.EPOLLERR | select.EPOLLHUP


@dataclass(frozen=True, slots=True)
class BrokerTarget:
    """The broker's addresses, and the optional TLS towards the broker and towards the clients."""

    addresses: Sequence[tuple[socket.AddressFamily, tuple[str, int]]]
    towards_broker: ssl.SSLContext | None = None
    server_name: str = ""
    towards_clients: ssl.SSLContext | None = None


class Relay:
    """The relay's loop; the loop ends when `control` can be read, or is closed."""

    def __init__(
        self, listener: socket.socket, target: BrokerTarget, tap: TapWriter, control: int, clock: Callable[[], float]
    ) -> None:
        self._listener: socket.socket | None = listener
        self._target = target
        self._tap = tap
        self._control = control
        self._clock = clock
        self._epoll = select.epoll()
        self._links: dict[int, RelayLink] = {}
        self._ends: dict[int, tuple[RelayLink, End]] = {}
        self._fresh: set[int] = set()
        self._unconfirmed: set[Flow] = set()
        self._scratch = memoryview(bytearray(CHUNK))
        self._next_check = 0.0
        self._count = 0
        listener.setblocking(False)  # noqa: FBT003 - the method's only parameter
        self._listening = listener.fileno()
        self._epoll.register(self._listening, select.EPOLLIN)
        self._epoll.register(control, select.EPOLLIN)
        self._pipe = tap.fileno()
        self._piping = False

    def run(self) -> None:
        """Pass bytes until the end of the relay is requested."""
        try:
            while self._turn():
                pass
        finally:
            now = self._clock()
            for link in tuple(self._links.values()):
                self._close(link, now, by_trace=True)
            if self._listener:
                self._listener.close()
            self._epoll.close()
            self._tap.finish()

    def _turn(self) -> bool:
        wait = max(0.0, self._next_check - self._clock()) if self._unconfirmed else -1
        self._fresh.clear()
        for fd, events in self._epoll.poll(wait):
            if fd in self._fresh:
                continue  # the event belongs to an earlier socket with this number
            if fd in self._ends:
                link, end = self._ends[fd]
                self._serve(link, end, events)
            elif fd == self._listening:
                self._accept()
            elif fd == self._control:
                return False
        if self._unconfirmed and (now := self._clock()) >= self._next_check:
            self._check_queues(now)
        self._write_records()
        return True

    def _write_records(self) -> None:
        """Write the records of this turn; if the pipe is full, watch the pipe."""
        if self._tap.flush():
            if self._piping:
                self._epoll.unregister(self._pipe)
                self._piping = False
        elif not self._piping:
            self._epoll.register(self._pipe, select.EPOLLOUT)
            self._piping = True

    # --- The life of a connection ------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while self._listener:
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                    # The client stays in the backlog until a connection ends.
                    self._tap.note(What.TROUBLE, 0, Side.CLIENT, self._clock(), error=os.strerror(error.errno))
                    self._epoll.modify(self._listening, 0)
                    return
                continue  # the client has gone already
            self._open(connection, address)

    def _open(self, connection: socket.socket, address: tuple[str, int]) -> None:
        target, now = self._target, self._clock()
        self._count += 1
        client: End
        if target.towards_clients:
            client = TlsEnd(connection, target.towards_clients, connected=True, server_name=None)
        else:
            client = End(connection, connected=True)
        link = RelayLink(self._count, client, self._dial(0))
        self._links[link.number] = link
        self._tap.note(
            What.OPENED,
            link.number,
            Side.CLIENT,
            now,
            client=text_of_address(address),
            tls=bool(target.towards_clients),
        )
        for end in (link.client, link.broker):
            self._know(link, end)
        self._watch(link)

    def _dial(self, index: int) -> End:
        target = self._target
        family, address = target.addresses[index]
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)  # noqa: FBT003 - the method's only parameter
        connection.connect_ex(address)  # the error of the connect comes with the first event
        if target.towards_broker:
            return TlsEnd(connection, target.towards_broker, connected=False, server_name=target.server_name)
        return End(connection, connected=False)

    def _serve(self, link: RelayLink, end: End, events: int) -> None:
        if not end.ready:
            self._advance(link, end)
        else:
            out, back = link.of(end)
            if events & select.EPOLLOUT:
                self._write(back)
            if link.number in self._links and events & (select.EPOLLIN | _FAILED_EVENTS):
                if out.reads:
                    self._read(out)
                elif events & _FAILED_EVENTS:
                    self._failed(link, end)
        if link.number in self._links:
            self._watch(link)

    def _advance(self, link: RelayLink, end: End) -> None:
        try:
            end.advance()
        except OSError as error:
            self._not_reached(link, end, error)
            return
        if end.ready:
            if link.client.ready and link.broker.ready:
                broker = link.broker.socket
                self._tap.note(
                    What.CONNECTED,
                    link.number,
                    Side.BROKER,
                    self._clock(),
                    broker=text_of_address(broker.getpeername()),
                    seen_as=text_of_address(broker.getsockname()),
                    tls_to_broker=bool(self._target.towards_broker),
                )
            for flow in link.of(end):
                self._write(flow)
                if link.number in self._links and flow.reads and flow.source.buffered:
                    self._read(flow)

    def _not_reached(self, link: RelayLink, end: End, error: OSError) -> None:
        """Try the broker's next address; if no address is left, reset the client, whose own connect would fail, too."""
        connecting = end is link.broker and not isinstance(error, ssl.SSLError)
        index = link.next_address(len(self._target.addresses)) if connecting else None
        if index is not None:
            self._forget(end)
            end.socket.close()
            link.broker = broker = self._dial(index)
            link.up.target = link.down.source = broker
            self._know(link, broker)
            return
        side = Side.BROKER if end is link.broker else Side.CLIENT
        self._tap.note(What.FAILED, link.number, side, self._clock(), error=text_of(error))
        if isinstance(error, ssl.SSLError):
            self._close(link, self._clock())  # the alert of TLS must arrive
        else:
            self._abort(link)

    def _watch(self, link: RelayLink) -> None:
        """Let epoll watch only the events on which the ends can act now."""
        for end in (link.client, link.broker):
            out, back = link.of(end)
            mask = end.wants()
            if end.ready:
                mask |= (select.EPOLLIN if out.reads else 0) | (select.EPOLLOUT if back.pending else 0)
            if mask == end.mask:
                continue
            if end.mask is not None:
                self._epoll.modify(end.socket, mask)
            elif mask or not end.hung:
                self._epoll.register(end.socket, mask)
            else:
                continue
            end.mask = mask

    # --- Bytes ---------------------------------------------------------------------------------------------------------

    def _read(self, flow: Flow) -> None:
        """Receive bytes, and send them on; do so more than once only if TLS still holds received bytes."""
        while self._pass(flow):
            pass

    def _pass(self, flow: Flow) -> bool:
        room = self._tap.room()
        into = self._scratch if room is None else room
        try:
            size = flow.source.receive(into)
        except BlockingIOError:
            return False
        except OSError as error:
            self._was_reset(flow, error)
            return False
        now = self._clock()
        if not size:
            self._ended(flow, now)
            return False
        try:
            sent = flow.target.send(into[:size])
        except BlockingIOError:
            sent = 0
        except OSError:
            self._broken(flow, now)
            return False
        if sent < size:
            flow.pending = bytes(into[sent:size])
        self._copied(flow, now, size, whole=room is not None)
        return flow.source.buffered and flow.reads

    def _copied(self, flow: Flow, now: float, size: int, *, whole: bool) -> None:
        """Report to the reader the bytes that passed; if there was no room for a copy, only count these bytes."""
        if not whole:
            flow.skipped += size
        else:
            if flow.skipped:
                self._report_skipped(flow, now)
            self._tap.data(flow.link.number, flow.side, now, size)
        if flow not in self._unconfirmed:
            self._expect_progress(flow, now)

    def _write(self, flow: Flow) -> None:
        """Send the bytes that wait, and then the FIN that waits after them."""
        try:
            flow.target.push()
            while flow.pending and not flow.target.owes:
                flow.pending = memoryview(flow.pending)[flow.target.send(flow.pending) :]
        except BlockingIOError:
            pass
        except OSError:
            self._broken(flow, self._clock())
            return
        if flow.ended:
            self._finish(flow)
        elif flow.reads and flow.source.buffered:
            self._read(flow)

    def _report_skipped(self, flow: Flow, now: float) -> None:
        if flow.skipped:
            self._tap.skipped(flow.link.number, flow.side, now, flow.skipped)
            flow.skipped = 0

    # --- Closes --------------------------------------------------------------------------------------------------------

    def _ended(self, flow: Flow, now: float) -> None:
        flow.ended = True
        self._report_skipped(flow, now)
        if not flow.link.reset:
            self._tap.note(What.ENDED, flow.link.number, flow.side, now)
        self._finish(flow)

    def _finish(self, flow: Flow) -> None:
        """Pass the FIN on if all bytes before it have passed."""
        link = flow.link
        if flow.pending or flow.target.owes or flow.done:
            return
        if link.reset:
            self._abort(link)
            return
        try:
            flow.target.finish()
        except OSError:
            self._broken(flow, self._clock())
            return
        flow.done = True
        if link.up.done and link.down.done:
            self._close(link, self._clock())

    def _broken(self, flow: Flow, now: float) -> None:
        """Handle a failed write: the target receives no more, but earlier bytes from the target may still have to pass."""
        link, back = flow.link, flow.link.of(flow.target)[0]
        flow.broken = flow.ended = True
        flow.pending = b""
        if not link.reset:
            link.reset = True
            self._report_skipped(flow, now)
            self._tap.note(What.RESET, link.number, flow.side.other, now)
        if back.ended and not back.pending:
            self._abort(link)
        elif back.reads:
            self._read(back)

    def _was_reset(self, flow: Flow, error: OSError) -> None:
        """Pass a reset on, after the bytes for which there is still room."""
        link, now = flow.link, self._clock()
        self._report_skipped(flow, now)
        if not link.reset:
            link.reset = True
            self._tap.note(What.RESET, link.number, flow.side, now, **facts_of(error))
        if flow.pending and not flow.broken:
            with suppress(OSError):
                flow.target.send(flow.pending)
        self._abort(link)

    def _failed(self, link: RelayLink, end: End) -> None:
        """Handle an event of an end that is not read now; the event is a reset, or only the end of both directions."""
        out, _ = link.of(end)
        number = end.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._was_reset(out, OSError(number, os.strerror(number)))
        elif end.mask is not None:
            # Both directions have ended, and the last bytes of this end wait for the other end.
            end.hung = True
            self._epoll.unregister(end.socket)
            end.mask = None

    def _abort(self, link: RelayLink) -> None:
        for end in (link.client, link.broker):
            self._forget(end)
            abort(end)
        self._gone(link, self._clock(), by_trace=False)

    def _close(self, link: RelayLink, now: float, *, by_trace: bool = False) -> None:
        for end in (link.client, link.broker):
            self._forget(end)
            end.socket.close()
        self._gone(link, now, by_trace=by_trace)

    def _gone(self, link: RelayLink, now: float, *, by_trace: bool) -> None:
        del self._links[link.number]
        for flow in (link.up, link.down):
            self._report_skipped(flow, now)
            self._unconfirmed.discard(flow)
        self._tap.note(What.CLOSED, link.number, Side.CLIENT, now, by_trace=by_trace)
        if self._listener:
            self._epoll.modify(self._listening, select.EPOLLIN)

    def _know(self, link: RelayLink, end: End) -> None:
        number = end.socket.fileno()
        self._ends[number] = (link, end)
        self._fresh.add(number)

    def _forget(self, end: End) -> None:
        del self._ends[end.socket.fileno()]
        if end.mask is not None:
            self._epoll.unregister(end.socket)
            end.mask = None

    # --- Send queues -----------------------------------------------------------------------------------------------------

    def _expect_progress(self, flow: Flow, now: float) -> None:
        if not self._unconfirmed:
            self._next_check = now + STUCK
        self._unconfirmed.add(flow)
        flow.progress = now

    def _check_queues(self, now: float) -> None:
        """Report the send queues that do not shrink: the other side's program no longer reads, or its host is gone."""
        self._next_check = now + STUCK
        for flow in tuple(self._unconfirmed):
            queue = unconfirmed(flow.target)
            waiting = queue + len(flow.pending)
            acked = flow.target.sent - queue
            if not waiting or acked > flow.acked:
                flow.acked = acked
                if flow.reported:
                    flow.reported = 0.0
                    self._report_queue(flow, now, waiting, stuck=False)
                flow.progress = now
                if not waiting:
                    self._unconfirmed.discard(flow)
                continue
            since = now - flow.progress
            # This reports the queue at 1, 2, 4, 8 … seconds.
            if since >= STUCK and (not flow.reported or since >= 2 * (flow.reported - flow.progress)):
                flow.reported = now
                self._report_queue(flow, now, waiting, stuck=True)

    def _report_queue(self, flow: Flow, now: float, waiting: int, *, stuck: bool) -> None:
        since = now - flow.progress
        self._tap.note(What.QUEUE, flow.link.number, flow.side.other, now, bytes=waiting, since=since, stuck=stuck)
