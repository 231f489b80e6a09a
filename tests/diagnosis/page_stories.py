"""
The five stories that began this wing, as the events of a trace.

The bytes of both ends are made here, with their times; the trace's own conversations read them and write the events.
So the page is shown what `steadyworker trace` really writes.
"""

from __future__ import annotations

from collections.abc import Callable

from pamqp import base, body, commands, frame, header
from typing_extensions import override

from steadyworker.diagnosis.tap import Side
from steadyworker.diagnosis.wire import Event
from tests.diagnosis.amqp_client import OPENING
from tests.diagnosis.told import BEAT, STARTED, Told, stomp

BEGIN: Event = {"kind": "trace", "started": STARTED, "listen": "127.0.0.1:5673", "to": "127.0.0.1:5672"}


class Stage(Told):
    """Connections whose bytes need some time."""

    @override
    def _send(self, side: Side, what: tuple[bytes | base.Frame, ...], channel: int, after: float, number: int) -> None:
        super()._send(side, what, channel, after or 0.0004, number)

    def unread(self, waiting: int) -> None:
        self.it.blocked(self.t, Side.CLIENT, blocked=True, waiting=waiting)

    def end(self, number: int = 1, *, how: str = "fin", after: float = 0.002) -> None:
        """The broker closes, and the client follows."""
        self.wait(after)
        connection = self.connections.pop(number)
        connection.ended(self.t, Side.BROKER, how)
        if how == "fin":
            connection.ended(self.t + 0.0006, Side.CLIENT, how)
        connection.closed(self.t + 0.0008)
        self.wait(0.001)

    def finish(self) -> list[Event]:
        """The trace ends; connections that are open are closed by it."""
        for connection in self.connections.values():
            connection.closed(self.t, by_trace=True)
        self.wire.end(self.t)
        return self.events


def content(size: int) -> bytes:
    return frame.marshal(header.ContentHeader(0, size, commands.Basic.Properties(delivery_mode=2)), 1)


def message(value: base.Frame, size: int) -> bytes:
    """A method with its message on the wire."""
    return frame.marshal(value, 1) + content(size) + frame.marshal(body.ContentBody(b"x" * size), 1)


def deliver(tag: int, size: int = 2048, queue: str = "payments") -> bytes:
    return message(commands.Basic.Deliver("ctag", tag, False, "", queue), size)


def second_header() -> list[Event]:
    """A client connects again over a socket that is in use."""
    stage = Stage()
    stage.amqp(60, "php-amqplib", "3.5.4")
    stage.consume(10, "payments")
    for tag in range(1, 1241):
        stage.broker(deliver(tag, 1800 + tag % 700), after=0.021)
        stage.client(commands.Basic.Ack(tag), after=0.009)
    stage.broker(deliver(1241), after=0.031)
    stage.client(OPENING, after=0.8)
    reason = "FRAME_ERROR - type 65, all octets = <<>>: {frame_too_large,1342177289,131064}"
    stage.broker(commands.Connection.Close(501, reason, 0, 0), after=0.4)
    stage.end()
    return stage.finish()


def missed_heartbeat() -> list[Event]:
    """A handler blocks the thread that would send the heartbeats."""
    stage = Stage()
    stage.amqp(10)
    stage.consume(1, "exports")
    for tag in range(1, 9):
        stage.broker(deliver(tag, 420, "exports"), after=0.6)
        for _ in range(3):
            stage.client(BEAT, after=5.0)
            stage.broker(BEAT, after=0.02)
        stage.client(commands.Basic.Ack(tag), after=0.2)
    stage.broker(deliver(9, 420, "exports"), after=0.6)
    for _ in range(5):
        stage.wait(5.0)
        stage.broker(BEAT)
    stage.wait(3.3)
    stage.end(how="reset")
    return stage.finish()


def two_threads() -> list[Event]:
    """Two threads publish on one connection, and their frames mix."""
    stage = Stage()
    stage.amqp(60, "py-amqp", "5.3.1")
    for n in range(310):
        stage.client(message(commands.Basic.Publish(0, "billing", f"invoice.{n % 7}"), 640), after=0.012)
    stage.client(commands.Basic.Publish(0, "billing", "invoice.3"), after=0.012)
    stage.client(commands.Basic.Publish(0, "billing", "invoice.5"), after=0.00005)
    stage.client(content(640), after=0.0001)
    stage.client(content(912), after=0.00003)
    reason = "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead"
    stage.broker(commands.Connection.Close(505, reason, 60, 40), after=0.004)
    stage.client(commands.Connection.CloseOk(), after=0.001)
    stage.end()
    return stage.finish()


def full_queue() -> list[Event]:
    """A client without a prefetch stops reading, and the broker's writes fill the TCP queues."""
    stage = Stage()
    stage.amqp(60)
    stage.consume(queue="payments")
    for tag in range(1, 421):
        stage.broker(deliver(tag, 5200), after=0.0006)
    for n in range(24):
        stage.broker(deliver(421 + n, 5200), after=0.6)
        stage.wait(0.3)
        if n in (4, 8, 11):
            stage.client(commands.Basic.Ack({4: 1, 8: 2, 11: 3}[n]))
    stage.broker(deliver(445, 94)[:4])
    stage.unread(2_359_296)
    stage.wait(15.0)
    stage.end(how="reset")
    return stage.finish()


def client_id_taken() -> list[Event]:
    """A worker connects again while the broker still knows its old connection, which is half open."""
    stage = Stage(61613)
    connect = stomp(
        "CONNECT", {"client-id": "worker-1", "heart-beat": "10000,10000", "login": "app", "passcode": "secret"}
    )
    accepted = stomp("CONNECTED", {"version": "1.2", "server": "ActiveMQ/6.1.8", "heart-beat": "10000,10000"})
    why = "Broker: b1 - Client: worker-1 already connected from tcp://10.0.0.1:51234"
    stage.client(connect)
    stage.broker(accepted, after=0.01)
    stage.client(stomp("SUBSCRIBE", {"id": "1", "destination": "/queue/exports", "ack": "client-individual"}))
    for n in range(14):
        stage.broker(
            stomp("MESSAGE", {"subscription": "1", "message-id": f"ID:b1-{n}", "ack": f"a{n}"}, b"x" * 300), after=0.7
        )
        if n < 13:
            stage.client(stomp("ACK", {"id": f"a{n}"}), after=0.4)
    for _ in range(2):
        stage.broker(b"\n", after=9.9)
    for number, port in enumerate((41788, 41794, 41802), start=2):
        stage.open(f"10.0.3.22:{port}", number)
        stage.client(connect, number=number)
        stage.broker(stomp("ERROR", {"message": why}), number=number, after=0.008)
        stage.end(number)
        stage.wait(2.0)
    stage.wait(1.0)
    stage.end()
    stage.open("10.0.3.22:41816", 5)
    stage.client(connect, number=5)
    stage.broker(accepted, number=5, after=0.01)
    stage.wait(3.0)
    return stage.finish()


STORIES: dict[str, Callable[[], list[Event]]] = {
    story.__name__: story for story in (second_header, missed_heartbeat, two_threads, full_queue, client_id_taken)
}
