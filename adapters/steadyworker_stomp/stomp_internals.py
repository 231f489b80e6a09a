"""
One STOMP connection over stomp.py, and every use of stomp.py's inner parts, each with the reason.

stomp.py builds and parses frames, and reads them in its own thread. This module does the rest, because version 9 of stomp.py

- hides why a connection failed, takes no `SSLContext`, and waits without limit for the broker's CONNECTED;
- on TLS, spins when the peer is dead, and returns from `ack` although nothing was sent;
- sends each heart-beat at the end of the agreed interval, so a broker without tolerance drops the connection after some hours.

The socket never blocks.
The reading thread waits for bytes, and each writing thread waits for space, with a limit.
OpenSSL allows only one call at a time for each connection. So a thread holds a lock during each call, but not while it waits.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from steadyworker.adapter import Clock
from steadyworker.errors import ConfigError
from steadyworker.network.errors import Foreign, Silent
from steadyworker_stomp.dialects import Dialect, DialectName, dialect_of
from steadyworker_stomp.errors import BrokerError
from steadyworker_stomp.sockets import confirm_at_once


def _skip_hostname_scan() -> None:
    """Keep stomp.py from asking the name service for this host's name while it is imported."""
    os.environ.setdefault("STOMP_SKIP_HOSTNAME_SCAN", "1")


_skip_hostname_scan()

from stomp.connect import BaseConnection  # type: ignore[import-untyped]  # noqa: E402
from stomp.listener import ConnectionListener  # type: ignore[import-untyped]  # noqa: E402
from stomp.protocol import Protocol12  # type: ignore[import-untyped]  # noqa: E402
from stomp.transport import BaseTransport  # type: ignore[import-untyped]  # noqa: E402
from stomp.utils import convert_frame  # type: ignore[import-untyped]  # noqa: E402

_CHUNK = 256 << 10
"""The size of one read in bytes; it is large, because stomp.py copies an incomplete frame at each read that contains a NUL."""

_FIRST = {b"C", b"E"}
"""How a broker's first frame begins: CONNECTED or ERROR."""

_CONTROL = {chr(code) for code in range(0x20)}

OnMessage = Callable[[Mapping[str, str], bytes], None]
OnEnd = Callable[["StompConnection", Exception], None]


class StompConnection:
    """
    One connection to one host, from the CONNECT frame to the end; thread-safe.

    A request returns a future. The future ends with the broker's RECEIPT, or with the cause of the connection's end.
    The connection ends after an ERROR frame. Some brokers then close the connection. No broker reports which parts of the connection it keeps.

    Args:
        sock: A connected socket.
        host: The host's name, which the broker receives.
        clock: The clock.
        patience: Seconds in which the socket must accept a frame.
        on_message: Called with the headers and the body of each MESSAGE, in the reading thread.
        on_end: Called once, in the reading thread, when a connection that was CONNECTED has ended; with this connection and the cause.

    Attributes:
        server: The broker's name for itself; empty if the broker sent no name.
        dialect: The broker's dialect, after `connect`.
        beat_every: Seconds after which the broker expects a heart-beat; 0 for never.
        silent_after: Seconds without a byte after which the broker is dead: three heart-beats; 0 for never.
        received_at: The time (monotonic clock) of the last bytes from the broker.
    """

    dialect: Dialect

    def __init__(
        self, sock: socket.socket, host: str, clock: Clock, patience: float, on_message: OnMessage, on_end: OnEnd
    ) -> None:
        self.server = ""
        self.beat_every = 0.0
        self.silent_after = 0.0
        self._clock = clock
        self._on_message = on_message
        self._on_end = on_end
        self._lock = threading.Lock()
        self._receipts: dict[str, Future[None]] = {}
        self._connected: Future[Mapping[str, str]] = Future()
        self._cause: Exception | None = None
        self._over = False
        self._transport = _Transport(sock, host, clock, patience)
        self._protocol: Any = _Protocol(self._transport)
        self._transport.set_listener("steadyworker", _Listener(self))

    @property
    def received_at(self) -> float:
        """The time (monotonic clock) of the last bytes from the broker."""
        return self._transport.received_at

    @property
    def is_open(self) -> bool:
        """True until the connection has ended, or is about to end."""
        return self._cause is None

    @property
    def end(self) -> Exception | None:
        """The cause of the end; None until `on_end` was called or is about to be called."""
        return self._cause if self._over else None

    def connect(
        self, user: str | None, password: str, heartbeat: float, within: float, forced: DialectName | None
    ) -> None:
        """
        Log in, and wait for the broker's answer. `forced` is the dialect that the URL forces.

        Raises BrokerError, Foreign, Silent or OSError, and ConfigError if the dialect is unknown.
        """
        wanted = f"{heartbeat * 1000:.0f}"
        self._transport.start()
        headers = {"heart-beat": f"{wanted},{wanted}"}
        try:
            self._protocol.connect(user, password if user is not None else None, headers=headers)
            answer = self._connected.result(within)
        except TimeoutError:
            error = Silent(f"no reply to the login within {within:.0f} s")
            self.abort(error)
            raise error from None
        except Exception as error:
            self.abort(error)
            raise
        self.server = answer.get("server", "")
        try:
            theirs, wants = _beats(answer.get("heart-beat", "0,0"))
            self.dialect = dialect_of(self.server, forced)
        except (ConfigError, Foreign) as error:
            self.abort(error)
            raise
        self.beat_every = max(heartbeat, wants) if wants else 0.0
        self.silent_after = 3 * max(heartbeat, theirs) if theirs else 0.0

    def send(self, destination: str, body: bytes, headers: Mapping[str, str], *, is_text: bool = False) -> Future[None]:
        """
        Send a message; the calling thread writes the frame.

        A text has no NUL. The frame of a text has no length, so the brokers recognise that the message is a text.
        """
        length = {} if is_text else {"content-length": str(len(body))}
        return self._request(
            lambda receipt: self._protocol.send_frame(
                "SEND", {**headers, **length, "destination": destination, "receipt": receipt}, body
            )
        )

    def listen(self, destination: str, number: str, headers: Mapping[str, str], *, ack: str = "auto") -> None:
        """Subscribe without asking for a receipt. A refusal ends the connection."""
        self._try_write(lambda: self._protocol.subscribe(destination, number, ack=ack, headers=dict(headers)))

    def subscribe(
        self, destination: str, number: str, headers: Mapping[str, str], *, ack: str = "client-individual"
    ) -> Future[None]:
        """Subscribe, by default with an acknowledgement for each message."""
        return self._request(
            lambda receipt: self._protocol.subscribe(
                destination, number, ack=ack, headers={**headers, "receipt": receipt}
            )
        )

    def unsubscribe(self, number: str) -> Future[None]:
        """End a subscription; the broker gives its unacknowledged message to another consumer."""
        return self._request(lambda receipt: self._protocol.unsubscribe(number, headers={"receipt": receipt}))

    def ack(self, ack: str) -> Future[None]:
        """Acknowledge one message."""
        return self._request(lambda receipt: self._protocol.ack(ack, receipt=receipt))

    def nack(self, ack: str) -> Future[None]:
        """Refuse one message. Classic moves the message to its dead letters; Artemis would remove the message."""
        return self._request(lambda receipt: self._protocol.nack(ack, receipt=receipt))

    def transact(self, command: str, transaction: str) -> Future[None]:
        """Begin, commit or abort a transaction."""
        return self._request(
            lambda receipt: self._protocol.send_frame(command, {"transaction": transaction, "receipt": receipt})
        )

    def disconnect(self) -> Future[None]:
        """Announce the end of the connection."""
        return self._request(lambda receipt: self._protocol.send_frame("DISCONNECT", {"receipt": receipt}))

    @property
    def pending(self) -> list[Future[None]]:
        """The requests that the broker has not answered."""
        with self._lock:
            return list(self._receipts.values())

    def beat(self) -> None:
        """Send a heart-beat, unless a frame is being written, or the socket accepts no byte now. Never block."""
        self._transport.beat()

    def abort(self, error: Exception) -> None:
        """End the connection without waiting for the broker. After two calls, the first error is the cause."""
        if self._cause is None:
            self._cause = error
        self._transport.end()

    def _request(self, write: Callable[[str], None]) -> Future[None]:
        receipt = uuid.uuid4().hex
        answer: Future[None] = Future()
        with self._lock:
            if self._cause is not None:
                answer.set_exception(self._cause)
                return answer
            self._receipts[receipt] = answer
        self._try_write(lambda: write(receipt))
        return answer

    def _try_write(self, write: Callable[[], None]) -> None:
        if self._cause is None:
            try:
                write()
            except Exception as error:  # noqa: BLE001 - half a frame may be on the wire, so the connection must end
                self.abort(error)

    # --- for the reading thread ------------------------------------------------------------------------------------

    def received(self, frame: Any) -> None:
        """Handle a frame from the broker."""
        match frame.cmd:
            case "CONNECTED":
                if not self._connected.done():
                    self._connected.set_result(frame.headers)
            case "MESSAGE":
                if self._cause is None:  # One read can bring more frames after an ERROR frame.
                    self._on_message(frame.headers, frame.body)
            case "RECEIPT":
                with self._lock:
                    answer = self._receipts.pop(frame.headers.get("receipt-id", ""), None)
                if answer is not None:
                    answer.set_result(None)
            case "ERROR":
                self._refused(BrokerError.of(frame.headers, frame.body))
            case _:
                self.abort(Foreign())

    def _refused(self, error: BrokerError) -> None:
        """End the connection. Only the refused request ends with the proof that the broker did not execute it."""
        with self._lock:
            answer = self._receipts.pop(error.receipt, None)
        if answer is not None:
            answer.set_exception(error)
        self.abort(error)

    def ended(self) -> None:
        """Fail every pending request, because no more bytes come. stomp.py can call this method twice."""
        if self._over:
            return
        cause = self._cause or self._transport.cause
        self._cause, self._over = cause, True
        with self._lock:
            pending, self._receipts = [*self._receipts.values()], {}
        if not self._connected.done():
            self._connected.set_exception(cause)
        elif self._connected.exception() is None:
            self._on_end(self, cause)
        for answer in pending:
            answer.set_exception(cause if not isinstance(cause, BrokerError) else BrokerError(str(cause)))


class _Listener(ConnectionListener):  # type: ignore[misc]  # stomp.py has no type hints
    """The listener that passes stomp.py's frames to the connection."""

    def __init__(self, connection: StompConnection) -> None:
        self._connection = connection

    def on_message(self, frame: Any) -> None:
        self._connection.received(frame)

    def on_disconnected(self) -> None:
        self._connection.ended()


class _Protocol(BaseConnection, Protocol12):  # type: ignore[misc]
    """The frames of STOMP 1.2 as stomp.py writes them, without stomp.py's heart-beats."""

    def __init__(self, transport: _Transport) -> None:
        BaseConnection.__init__(self, transport)
        Protocol12.__init__(self, transport)
        transport.remove_listener("protocol-listener")  # stomp.py's heart-beats


class _Transport(BaseTransport):  # type: ignore[misc]
    """The socket of one connection."""

    def __init__(self, sock: socket.socket, host: str, clock: Clock, patience: float) -> None:
        super().__init__(auto_decode=False)
        sock.settimeout(0)
        self.error: Exception | None = None
        self.received_at = clock.monotonic()
        self.vhost = None
        self.current_host_and_port = (host, 0)
        self._sock = sock
        self._clock = clock
        self._patience = patience
        self._has_received = False
        self._closed = False
        self._begun = b""
        self._call = threading.Lock()
        self._frame = threading.Lock()
        self.override_threading(self._thread)

    @property
    def cause(self) -> Exception:
        """The reason why no more bytes come."""
        return self.error or ConnectionResetError(0, "the broker closed the connection")

    def _thread(self, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name="stomp reader", daemon=True)
        thread.start()
        return thread

    def process_frame(self, f: Any, frame_str: bytes) -> None:  # noqa: ARG002 - stomp.py's signature
        """Pass a frame to the connection, even an unknown frame. stomp.py's own method would write the body to the log."""
        if f.cmd != "heartbeat":
            self.notify("message", f)

    def transmit(self, frame: Any) -> None:
        """Write a frame. stomp.py's own method would write the frame to the log, with the password."""
        self.send(b"".join(convert_frame(frame)))

    def receive(self) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride] - stomp.py's own has no result
        """Return the next bytes; empty at the end of the connection."""
        while True:
            try:
                with self._call:
                    data = self._sock.recv(_CHUNK)
            except (ssl.SSLWantReadError, BlockingIOError):
                self._wait(select.POLLIN, None)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, None)
            except (OSError, ValueError) as error:
                self.error = self.error or (error if isinstance(error, OSError) else None)
                return b""
            else:
                self.received_at = self._clock.monotonic()
                confirm_at_once(self._sock)
                if not self._has_received and data.strip():
                    self._has_received = True
                    if data.lstrip()[:1] not in _FIRST:
                        self.error = Foreign()
                        return b""
                return data

    def send(self, encoded_frame: bytes) -> None:
        """Write a frame after the frames of other threads; raises Silent if the socket does not accept the frame in time."""
        deadline = self._clock.monotonic() + self._patience
        if not self._frame.acquire(timeout=self._patience):
            raise self._stuck()
        try:
            rest = memoryview(self._begun + encoded_frame)
            self._begun = b""
            while rest:
                rest = rest[self._write(rest, deadline) :]
        finally:
            self._frame.release()

    def _write(self, data: memoryview, deadline: float) -> int:
        while True:
            try:
                with self._call:
                    return self._sock.send(data)
            except (ssl.SSLWantWriteError, BlockingIOError):
                ready = self._wait(select.POLLOUT, deadline)
            except ssl.SSLWantReadError:
                ready = self._wait(select.POLLIN, deadline)
            except OSError as error:
                raise (self.cause if self._closed else error) from None
            if not ready:
                raise self._stuck()

    def beat(self) -> None:
        """
        Write a line end, if this is possible at once.

        If the socket does not accept a write, OpenSSL keeps this write, and the next write must begin with the same bytes.
        Otherwise the first byte of the next write would be lost.
        """
        if self._frame.acquire(blocking=False):
            try:
                with self._call:
                    self._sock.send(b"\n")
                self._begun = b""
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                self._begun = b"\n"
            except OSError:  # a socket without TLS accepts no byte now, or the reading thread sees the end
                pass
            finally:
                self._frame.release()

    def _stuck(self) -> Silent:
        text = f"no space for a frame within {self._patience:g} s, because the broker does not read"
        return Silent(text, id="stomp.peer-not-reading")

    def _wait(self, event: int, deadline: float | None) -> bool:
        """Wait until the socket is ready or ended; return False at the deadline."""
        poll = select.poll()
        try:
            poll.register(self._sock, event)
        except ValueError:  # The socket was closed meanwhile. The next read or write shows this.
            return True
        rest = None if deadline is None else max(0.0, deadline - self._clock.monotonic()) * 1000
        return bool(poll.poll(rest))

    def end(self) -> None:
        """Wake the reading thread, which closes the socket."""
        with suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # The method of TLS would wait for the peer.

    def is_connected(self) -> bool:
        """Return True, so that stomp.py does not check the socket: if the socket is not connected, a write fails."""
        return True

    def disconnect_socket(self) -> None:
        """End the connection. stomp.py calls this method after its own DISCONNECT."""
        self.end()

    def cleanup(self) -> None:
        """
        Close the socket. The reading thread calls this method at its end.

        First wake a writing thread that waits for space.
        Otherwise that thread would wait on the socket's number, which the system can give to another socket.
        """
        self.running = False
        self._closed = True
        self.end()
        with self._frame, self._call:
            self._sock.close()


def _beats(text: str) -> tuple[float, float]:
    """Return, in seconds, the interval of the broker's heart-beats, and the interval that the broker wants from us; raises Foreign."""
    try:
        sends, wants = text.split(",")
        return int(sends) / 1000, int(wants) / 1000
    except ValueError:
        raise Foreign from None


def login_problem(text: str) -> bool:
    """Return whether a login text would break the frame. STOMP cannot escape a character in a CONNECT frame."""
    return any(character in _CONTROL for character in text)
