"""Conversations that a test tells what passes, with a clock that is told, too: no broker and no bytes on a wire."""

from __future__ import annotations

from typing import Any

from pamqp import base, commands, frame, heartbeat

from steadyworker.diagnosis.conversation import Conversation, Known
from steadyworker.diagnosis.tap import Side
from steadyworker.diagnosis.wire import Event, Wire
from tests.diagnosis.amqp_client import OPENING
from tests.diagnosis.raw_stomp import frame as stomp

__all__ = ["BEAT", "STARTED", "Told", "stomp"]

BEAT = frame.marshal(heartbeat.Heartbeat(), 0)
STARTED = "2026-11-25T10:02:03.250000+00:00"
SERVER: dict[str, Any] = {"product": "RabbitMQ", "version": "4.3.6", "cluster_name": "b1"}
START = commands.Connection.Start(server_properties=SERVER)


class Told:
    """Connections of clients to a broker's port; the first one is open."""

    def __init__(self, port: int = 5672) -> None:
        self.t = 0.0
        self.events: list[Event] = []
        self.wire = Wire(0.0, [self.events.append])
        self.wire.begin(STARTED, listen="127.0.0.1:5673", to=f"127.0.0.1:{port}")
        self.known = Known.at(port)
        self.connections: dict[int, Conversation] = {}
        self.it = self.open("10.0.0.1:51234")

    def open(self, client: str, number: int = 1) -> Conversation:
        connection = self.connections[number] = Conversation(self.wire, number, self.known)
        connection.opened(self.t, {"client": client, "tls": False})
        connection.connected(self.t, {"broker": "10.0.0.2:5672", "seen_as": f"10.0.0.1:{40_000 + number}"})
        return connection

    def client(self, *what: bytes | base.Frame, channel: int = 1, after: float = 0.0, number: int = 1) -> None:
        self._send(Side.CLIENT, what, channel, after, number)

    def broker(self, *what: bytes | base.Frame, channel: int = 1, after: float = 0.0, number: int = 1) -> None:
        self._send(Side.BROKER, what, channel, after, number)

    def _send(self, side: Side, what: tuple[bytes | base.Frame, ...], channel: int, after: float, number: int) -> None:
        self.wait(after)
        for each in what:
            data = each if isinstance(each, bytes) else frame.marshal(each, 0 if "Connection" in each.name else channel)
            self.connections[number].data(self.t, side, data)

    def wait(self, seconds: float) -> None:
        """Let time pass, with the looks at silences that the command makes."""
        until = self.t + seconds
        for connection in self.connections.values():
            while connection.due() < until:
                connection.tick(connection.due())
        self.t = until

    def amqp(self, beat: int = 0, product: str = "pika", version: str = "1.4.4") -> None:
        """The client logs in, and opens channel 1."""
        self.client(OPENING)
        self.broker(START)
        self.client(commands.Connection.StartOk({"product": product, "version": version}, response="\0guest\0hunter2"))
        self.broker(commands.Connection.Tune(2047, 131072, 60))
        self.client(commands.Connection.TuneOk(2047, 131072, beat), commands.Connection.Open())
        self.broker(commands.Connection.OpenOk())
        self.client(commands.Channel.Open())
        self.broker(commands.Channel.OpenOk())

    def consume(self, prefetch: int = 0, queue: str = "jobs") -> None:
        if prefetch:
            self.client(commands.Basic.Qos(prefetch_count=prefetch))
            self.broker(commands.Basic.QosOk())
        self.client(commands.Basic.Consume(queue=queue, consumer_tag="ctag"))
        self.broker(commands.Basic.ConsumeOk("ctag"))

    def stomp(self, asked: str = "0,0", given: str = "0,0") -> None:
        self.client(stomp("CONNECT", {"accept-version": "1.2", "heart-beat": asked, "passcode": "hunter2"}))
        self.broker(stomp("CONNECTED", {"version": "1.2", "heart-beat": given}) + b"\n")

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def flags(self) -> list[str]:
        return [event["id"] for event in self.of("flag")]
