"""
The five stories that began this wing, as the events of a trace.

The bytes of both ends are made here, with their times; the trace's own conversations read them and write the events.
So the page is shown what `steadyworker trace` really writes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from pamqp import body, commands, frame, header, heartbeat

from steadyworker.diagnosis.conversation import Conversation, Known
from steadyworker.diagnosis.tap import Side
from steadyworker.diagnosis.wire import Wire

Event = dict[str, Any]

STARTED = "2026-11-25T10:02:03.250000+00:00"
BEGIN: Event = {"kind": "trace", "started": STARTED, "listen": "127.0.0.1:5673", "to": "127.0.0.1:5672"}
HEADER = b"AMQP\0\0\x09\x01"
BEAT = frame.marshal(heartbeat.Heartbeat(), 0)


def method(value: Any, channel: int = 1) -> bytes:
    """A method on the wire."""
    return frame.marshal(value, channel)


def content(size: int, channel: int = 1, **properties: Any) -> bytes:
    """The header of a message on the wire."""
    return frame.marshal(header.ContentHeader(0, size, commands.Basic.Properties(**properties)), channel)


def message(value: Any, size: int, channel: int = 1) -> bytes:
    """A method with its message on the wire."""
    return (
        method(value, channel)
        + content(size, channel, delivery_mode=2)
        + frame.marshal(body.ContentBody(b"x" * size), channel)
    )


def stomp(command: str, text: str = "", **headers: str) -> bytes:
    """A STOMP frame on the wire; `_` stands for `-` in the names of headers."""
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n{text}\0".encode()


class Stage:
    """Connections of clients to a broker, with a clock that the story moves."""

    def __init__(self, port: int = 5672) -> None:
        self.t = 0.0
        self.events: list[Event] = []
        self._wire = Wire(0.0, [self.events.append])
        self._wire.begin(STARTED, listen="127.0.0.1:5673", to=f"127.0.0.1:{port}")
        self._known = Known.at(port)
        self._port = port
        self._connections: dict[int, Conversation] = {}

    def after(self, seconds: float) -> None:
        """Let time pass, in steps as the trace looks at silences."""
        until = self.t + seconds
        while self.t < until:
            self.t = min(self.t + 0.25, until)
            for connection in self._connections.values():
                if connection.due() <= self.t:
                    connection.tick(self.t)

    def open(self, client: str, number: int = 1) -> None:
        """A client connects."""
        connection = self._connections[number] = Conversation(self._wire, number, self._known)
        connection.opened(self.t, {"client": client})
        connection.connected(
            self.t + 0.001, {"broker": f"127.0.0.1:{self._port}", "seen_as": f"127.0.0.1:{40_000 + number}"}
        )
        self.t += 0.002

    def client(self, data: bytes, number: int = 1, *, after: float = 0.0004) -> None:
        """The client sends bytes."""
        self.t += after
        self._connections[number].data(self.t, Side.CLIENT, data)

    def broker(self, data: bytes, number: int = 1, *, after: float = 0.0004) -> None:
        """The broker sends bytes."""
        self.t += after
        self._connections[number].data(self.t, Side.BROKER, data)

    def queue(self, waiting: int, since: float, number: int = 1, *, stuck: bool = True) -> None:
        """Bytes wait for the client."""
        self._connections[number].queue(self.t, Side.CLIENT, waiting=waiting, since=since, stuck=stuck)

    def end(self, side: Side, number: int = 1, *, how: str = "fin", after: float = 0.002) -> None:
        """One end closes, and the other one follows."""
        self.t += after
        connection = self._connections.pop(number)
        connection.ended(self.t, side, how)
        if how == "fin":
            connection.ended(self.t + 0.0006, side.other, how)
        connection.closed(self.t + 0.0008)
        self.t += 0.001

    def amqp(
        self,
        number: int = 1,
        *,
        agreed: int = 60,
        client: str = "php-amqplib 3.5.4",
        queue: str = "payments",
        prefetch: int = 10,
    ) -> None:
        """A client logs in to RabbitMQ, and consumes a queue."""
        product, _, version = client.partition(" ")
        self.open(f"10.0.3.17:{51_233 + number}", number)
        self.client(HEADER, number)
        self.broker(
            method(
                commands.Connection.Start(
                    server_properties={"product": "RabbitMQ", "version": "4.3.6"}, mechanisms="PLAIN AMQPLAIN"
                ),
                0,
            ),
            number,
            after=0.002,
        )
        self.client(
            method(
                commands.Connection.StartOk(
                    {"product": product, "version": version}, "PLAIN", "\0app\0secret", "en_US"
                ),
                0,
            ),
            number,
            after=0.003,
        )
        self.broker(method(commands.Connection.Tune(2047, 131_072, 60), 0), number, after=0.002)
        self.client(
            method(commands.Connection.TuneOk(2047, 131_072, agreed), 0) + method(commands.Connection.Open("/"), 0),
            number,
        )
        self.broker(method(commands.Connection.OpenOk(), 0), number)
        self.client(method(commands.Channel.Open()), number)
        self.broker(method(commands.Channel.OpenOk()), number)
        if prefetch:
            self.client(method(commands.Basic.Qos(0, prefetch)), number)
            self.broker(method(commands.Basic.QosOk()), number)
        if queue:
            self.client(method(commands.Basic.Consume(0, queue, "")), number)
            self.broker(method(commands.Basic.ConsumeOk("ctag1.9f2c")), number)

    def finish(self) -> list[Event]:
        """The trace ends; connections that are open are closed by it."""
        for connection in self._connections.values():
            connection.closed(self.t, by_trace=True)
        self._wire.end(self.t)
        return self.events


def deliver(tag: int, size: int = 2048, *, queue: str = "payments", redelivered: bool = False) -> bytes:
    return message(commands.Basic.Deliver("ctag1.9f2c", tag, redelivered, "", queue), size)


def ack(tag: int) -> bytes:
    return method(commands.Basic.Ack(tag))


def second_header() -> list[Event]:
    """A client connects again over a socket that is in use."""
    stage = Stage()
    stage.amqp()
    for tag in range(1, 1241):
        stage.broker(deliver(tag, 1800 + tag % 700), after=0.021)
        stage.client(ack(tag), after=0.009)
        if tag % 400 == 0:
            stage.client(BEAT, after=0.004)
            stage.broker(BEAT, after=0.002)
    stage.broker(deliver(1241), after=0.031)
    stage.client(HEADER, after=0.8)
    reason = "FRAME_ERROR - type 65, all octets = <<>>: {frame_too_large,1342177289,131064}"
    stage.broker(method(commands.Connection.Close(501, reason, 0, 0), 0), after=0.4)
    stage.end(Side.BROKER)
    return stage.finish()


def missed_heartbeat() -> list[Event]:
    """A handler blocks the thread that would send the heartbeats."""
    stage = Stage()
    stage.amqp(agreed=10, client="pika 1.4.4", queue="exports", prefetch=1)
    for tag in range(1, 9):
        stage.broker(deliver(tag, 420, queue="exports"), after=0.6)
        for _ in range(3):
            stage.client(BEAT, after=5.0)
            stage.broker(BEAT, after=0.02)
        stage.client(ack(tag), after=0.2)
    stage.broker(deliver(9, 420, queue="exports", redelivered=True), after=0.6)
    for _ in range(5):
        stage.after(5.0)
        stage.broker(BEAT)
    stage.after(3.3)
    stage.end(Side.BROKER, how="reset")
    return stage.finish()


def two_threads() -> list[Event]:
    """Two threads publish on one connection, and their frames mix."""
    stage = Stage()
    stage.amqp(client="py-amqp 5.3.1", prefetch=0, queue="")
    for n in range(310):
        stage.client(message(commands.Basic.Publish(0, "billing", f"invoice.{n % 7}"), 640), after=0.012)
    stage.client(method(commands.Basic.Publish(0, "billing", "invoice.3")), after=0.012)
    stage.client(method(commands.Basic.Publish(0, "billing", "invoice.5")), after=0.00005)
    stage.client(content(640), after=0.0001)
    stage.client(content(912), after=0.00003)
    reason = "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead"
    stage.broker(method(commands.Connection.Close(505, reason, 60, 40), 0), after=0.004)
    stage.client(method(commands.Connection.CloseOk(), 0), after=0.001)
    stage.end(Side.BROKER)
    return stage.finish()


def full_queue() -> list[Event]:
    """A client without a prefetch stops reading, and the broker's writes fill the TCP queues."""
    stage = Stage()
    stage.amqp(prefetch=0)
    tags = count(1)
    for _ in range(420):
        stage.broker(deliver(next(tags), 5200), after=0.0006)
    for n in range(24):
        stage.broker(deliver(next(tags), 5200), after=0.6)
        stage.after(0.3)
        if n in (4, 8, 11):
            stage.client(ack({4: 1, 8: 2, 11: 3}[n]))
        if n > 11:
            waiting = (41_000, 180_000, 655_360, 1_310_720, 2_359_296)[min(n - 12, 4)] + n * 1000
            stage.queue(waiting, round(0.9 * (n - 11), 1))
    stage.after(1.0)
    whole = deliver(next(tags), 94)
    stage.broker(whole[:4])
    stage.after(4.0)
    stage.end(Side.BROKER, how="reset")
    return stage.finish()


def client_id_taken() -> list[Event]:
    """A worker connects again while the broker still knows its old connection, which is half open."""
    stage = Stage(61613)

    def connect(number: int, port: int) -> None:
        stage.open(f"10.0.3.22:{port}", number)
        stage.client(
            stomp(
                "CONNECT",
                accept_version="1.2",
                client_id="worker-1",
                heart_beat="10000,10000",
                login="app",
                passcode="secret",
            ),
            number,
        )

    accepted = stomp("CONNECTED", version="1.2", server="ActiveMQ/6.1.8", heart_beat="10000,10000")
    connect(1, 41770)
    stage.broker(accepted, after=0.01)
    stage.client(stomp("SUBSCRIBE", id="1", destination="/queue/exports", ack="client-individual"))
    for n in range(14):
        given = stomp(
            "MESSAGE", "x" * 300, subscription="1", message_id=f"ID:b1-{n}", ack=f"a{n}", destination="/queue/exports"
        )
        stage.broker(given, after=0.7)
        if n < 13:
            stage.client(stomp("ACK", id=f"a{n}"), after=0.4)
    for _ in range(2):
        stage.broker(b"\n", after=9.9)
    for number, port in enumerate((41788, 41794, 41802), start=2):
        connect(number, port)
        refused = stomp(
            "ERROR",
            "jakarta.jms.InvalidClientIDException",
            message="Broker: b1 - Client: worker-1 already connected from tcp://10.0.3.22:41770",
        )
        stage.broker(refused, number, after=0.008)
        stage.end(Side.BROKER, number)
        stage.after(2.0)
    stage.after(1.0)
    stage.end(Side.BROKER)
    stage.after(1.0)
    connect(5, 41816)
    stage.broker(accepted, 5, after=0.01)
    stage.after(3.0)
    return stage.finish()


STORIES: dict[str, Callable[[], list[Event]]] = {
    story.__name__: story for story in (second_header, missed_heartbeat, two_threads, full_queue, client_id_taken)
}
