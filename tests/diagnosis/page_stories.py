"""The five stories that began this wing, as the events of a trace: what `steadyworker trace` writes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

Event = dict[str, object]

STARTED = "2026-11-25T10:02:03.250000+00:00"


class Teller:
    """Writes events with a running clock."""

    def __init__(self, to: str = "127.0.0.1:5672") -> None:
        self.t = 0.0
        self.events: list[Event] = [
            {"kind": "trace", "version": 1, "started": STARTED, "listen": "127.0.0.1:5673", "to": to}
        ]

    def add(self, kind: str, side: str, conn: int = 1, /, *, after: float = 0.0004, **detail: object) -> None:
        self.t += after
        self.events.append({"t": round(self.t, 6), "conn": conn, "from": side, "kind": kind, **detail})

    def method(
        self,
        side: str,
        name: str,
        conn: int = 1,
        /,
        *,
        channel: int = 1,
        size: int = 24,
        after: float = 0.0004,
        **detail: object,
    ) -> None:
        self.add("method", side, conn, after=after, name=name, channel=channel, size=size, **detail)

    def message(
        self,
        side: str,
        name: str,
        conn: int = 1,
        /,
        *,
        body: int = 2048,
        channel: int = 1,
        after: float = 0.0004,
        **detail: object,
    ) -> None:
        self.method(side, name, conn, channel=channel, size=61, after=after, **detail)
        self.add(
            "content", side, conn, after=0, channel=channel, size=38, body_size=body, properties={"delivery_mode": 2}
        )
        self.add("body", side, conn, after=0, channel=channel, size=body + 8)

    def beat(self, side: str, conn: int = 1, *, after: float = 0.0) -> None:
        self.add("heartbeat", side, conn, after=after, channel=0, size=8)

    def amqp(
        self,
        conn: int = 1,
        *,
        port: int = 51234,
        heartbeat: int = 60,
        client: str = "php-amqplib",
        queue: str = "payments",
        prefetch: int = 10,
    ) -> None:
        """A client connects, and consumes."""
        self.add("open", "trace", conn, after=0.002, client=f"10.0.3.17:{port}", broker="127.0.0.1:5672", tls=False)
        self.add("header", "client", conn, name="AMQP 0-9-1", size=8)
        self.method(
            "broker",
            "Connection.Start",
            conn,
            channel=0,
            size=508,
            server_properties={"product": "RabbitMQ", "version": "4.3.6"},
            mechanisms="PLAIN AMQPLAIN",
        )
        self.method(
            "client",
            "Connection.StartOk",
            conn,
            channel=0,
            size=351,
            after=0.003,
            client_properties={"product": client, "version": "3.5"},
            mechanism="PLAIN",
        )
        self.method(
            "broker", "Connection.Tune", conn, channel=0, size=20, channel_max=2047, frame_max=131072, heartbeat=60
        )
        self.method(
            "client",
            "Connection.TuneOk",
            conn,
            channel=0,
            size=20,
            channel_max=2047,
            frame_max=131072,
            heartbeat=heartbeat,
        )
        self.add("tuned", "trace", conn, after=0, heartbeat=heartbeat, channel_max=2047, frame_max=131072)
        self.method("client", "Connection.Open", conn, channel=0, size=16, virtual_host="/")
        self.method("broker", "Connection.OpenOk", conn, channel=0, size=13)
        self.method("client", "Channel.Open", conn, size=13)
        self.method("broker", "Channel.OpenOk", conn, size=16)
        self.method("client", "Basic.Qos", conn, size=19, prefetch_count=prefetch)
        self.method("broker", "Basic.QosOk", conn, size=12)
        self.method("client", "Basic.Consume", conn, size=33, queue=queue)
        self.method("broker", "Basic.ConsumeOk", conn, size=44, consumer_tag="ctag1.9f2c")


BYTES = [
    {"field": "type", "number": 65, "hex": "41", "characters": "A"},
    {"field": "channel", "number": 19793, "hex": "4D 51", "characters": "MQ"},
    {"field": "size", "number": 1342177289, "hex": "50 00 00 09", "characters": "P\\0\\0\\t"},
]


def second_header() -> list[Event]:
    """A client connects again over a socket that is in use."""
    to = Teller()
    to.amqp()
    tag = count(1)
    for n in range(1240):
        number = next(tag)
        to.message(
            "broker",
            "Basic.Deliver",
            body=1800 + n % 700,
            after=0.021,
            consumer_tag="ctag1.9f2c",
            delivery_tag=number,
            exchange="",
            routing_key="payments",
        )
        to.method("client", "Basic.Ack", size=21, after=0.009, delivery_tag=number)
        if n % 400 == 399:
            to.beat("client", after=0.004)
            to.beat("broker", after=0.002)
    to.message(
        "broker",
        "Basic.Deliver",
        after=0.031,
        consumer_tag="ctag1.9f2c",
        delivery_tag=1241,
        exchange="",
        routing_key="payments",
    )
    to.add("header", "client", after=0.8, name="AMQP 0-9-1", size=8, second=True)
    to.add(
        "flag", "trace", after=0, id="amqp.second-header", level="error",
        what="The client sent a second protocol header on an open connection",
        evidence=BYTES,
        remedy="Open a new socket for each connection attempt, and let one thread or process own it: connect after the fork, not before",
    )  # fmt: skip
    to.method(
        "broker", "Connection.Close", channel=0, size=97, after=0.4, reply_code=501,
        reply_text="FRAME_ERROR - type 65, all octets = <<>>: {frame_too_large,1342177289,131064}", class_id=0, method_id=0,
    )  # fmt: skip
    to.add("close", "broker", after=0.002, who="broker", how="fin", in_frame=False)
    return to.events


def missed_heartbeat() -> list[Event]:
    """A handler blocks the thread that would send the heartbeats."""
    to = Teller()
    to.amqp(heartbeat=10, client="pika 1.4.4", queue="exports", prefetch=1)
    for n in range(1, 9):
        to.message(
            "broker",
            "Basic.Deliver",
            body=420,
            after=0.6,
            consumer_tag="ctag1.9f2c",
            delivery_tag=n,
            exchange="",
            routing_key="exports",
        )
        for _ in range(3):
            to.beat("client", after=5.0)
            to.beat("broker", after=0.02)
        to.method("client", "Basic.Ack", size=21, after=0.2, delivery_tag=n)
    to.message(
        "broker",
        "Basic.Deliver",
        body=420,
        after=0.6,
        consumer_tag="ctag1.9f2c",
        delivery_tag=9,
        redelivered=True,
        exchange="",
        routing_key="exports",
    )
    for _ in range(5):
        to.beat("broker", after=5.0)
    to.add("gap", "client", after=0.01, seconds=20.6, allowed=20.0)
    to.add(
        "flag", "trace", after=0, id="amqp.late-heartbeat", level="error",
        what="The client sent nothing for 20.6 s, although it agreed to a heartbeat of 10 s",
        evidence=[{"agreed heartbeat": "10 s", "last byte of the client": "122.9 s", "silent for": "20.6 s", "allowed": "20 s"}],
        remedy="Run the job outside the thread that reads the connection, so that heartbeats are sent while it computes; do not switch the heartbeat off",
    )  # fmt: skip
    to.beat("broker", after=4.99)
    to.add("close", "broker", after=4.4, who="broker", how="reset", in_frame=False)
    return to.events


def two_threads() -> list[Event]:
    """Two threads publish on one connection, and their frames mix."""
    to = Teller()
    to.amqp(client="py-amqp", prefetch=0)
    for n in range(310):
        to.message("client", "Basic.Publish", body=640, after=0.012, exchange="billing", routing_key=f"invoice.{n % 7}")
    to.method("client", "Basic.Publish", size=44, after=0.012, exchange="billing", routing_key="invoice.3")
    to.method("client", "Basic.Publish", size=44, after=0.00005, exchange="billing", routing_key="invoice.5")
    to.add(
        "flag", "trace", after=0, id="amqp.interleaved-frames", level="error",
        what="The client mixed the frames of two messages on channel 1: a method came where a message header was due",
        evidence=["byte 248,930: Basic.Publish, size 44", "byte 248,974: Basic.Publish, size 44, where a content header was expected"],
        remedy="Give each thread a channel of its own, or put a lock around each publish; pika's connection belongs to one thread",
    )  # fmt: skip
    to.add("content", "client", after=0.0001, channel=1, size=38, body_size=640)
    to.add("content", "client", after=0.00003, channel=1, size=38, body_size=912)
    to.method(
        "broker",
        "Connection.Close",
        channel=0,
        size=120,
        after=0.004,
        reply_code=505,
        reply_text="UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
        class_id=60,
        method_id=40,
    )
    to.method("client", "Connection.CloseOk", channel=0, size=12, after=0.001)
    to.add("close", "broker", after=0.001, who="broker", how="fin", in_frame=False)
    return to.events


def full_queue() -> list[Event]:
    """A client without a prefetch stops reading, and the broker's writes fill the TCP queues."""
    to = Teller()
    to.amqp(client="php-amqplib", prefetch=0)
    tag = count(1)
    for _ in range(420):
        to.message(
            "broker",
            "Basic.Deliver",
            body=5200,
            after=0.0006,
            consumer_tag="ctag1.9f2c",
            delivery_tag=next(tag),
            exchange="",
            routing_key="payments",
        )
    to.add(
        "flag", "trace", after=0.002, id="amqp.unlimited-prefetch", level="warning",
        what="The consumer has no prefetch limit, and 420 deliveries wait for an ack",
        evidence=[{"consumer": "ctag1.9f2c", "prefetch": "none", "waiting": 420}],
        remedy="Set a prefetch (basic.qos) before basic.consume: 1 for long jobs",
    )  # fmt: skip
    for n in range(24):
        to.message(
            "broker",
            "Basic.Deliver",
            body=5200,
            after=0.6,
            consumer_tag="ctag1.9f2c",
            delivery_tag=next(tag),
            exchange="",
            routing_key="payments",
        )
        to.add(
            "queue",
            "trace",
            after=0.3,
            side="client",
            bytes=[41_000, 180_000, 655_360, 1_310_720, 2_359_296][min(n, 4)] + n * 1000,
            since=round(0.9 * n, 1),
        )
        if n % 8 == 0:
            to.method("client", "Basic.Ack", size=21, after=0.1, delivery_tag=n // 8 + 1)
    to.add(
        "flag", "trace", after=1.0, id="amqp.peer-not-reading", level="error",
        what="The client has read nothing for 21 s, and 2.3 MiB wait for it in the kernel",
        evidence=[
            {"queue": "to the client (SIOCOUTQ)", "bytes": 2_382_296, "since": "21 s"},
            {"queue": "to the broker (SIOCOUTQ)", "bytes": 0, "since": "–"},
        ],
        remedy="Let the client read while it works, and set a prefetch so that only what it can do is on the way to it",
    )  # fmt: skip
    to.add("gap", "client", after=4.0, seconds=18.4, allowed=120.0)
    to.add(
        "flag",
        "trace",
        after=2.0,
        id="amqp.frame-cut",
        level="error",
        what="The client's connection ended in the middle of a frame: 4 of 94 bytes were written",
        evidence=[{"written": 4, "frame": 94}],
        remedy="Look at what came before: the frame was cut because the connection ended",
    )
    to.add("close", "client", after=0.01, who="client", how="reset", in_frame=True)
    return to.events


def client_id_taken() -> list[Event]:
    """A worker connects again while the broker still knows its old connection, which is half open."""
    to = Teller(to="127.0.0.1:61613")

    def connect(conn: int, port: int) -> None:
        to.add("open", "trace", conn, after=0.01, client=f"10.0.3.22:{port}", broker="127.0.0.1:61613", tls=False)
        to.add(
            "frame",
            "client",
            conn,
            name="CONNECT",
            size=118,
            headers={"accept-version": "1.2", "client-id": "worker-1", "heart-beat": "10000,10000"},
        )

    connect(1, 41770)
    to.add(
        "frame",
        "broker",
        name="CONNECTED",
        size=96,
        after=0.01,
        headers={"version": "1.2", "server": "ActiveMQ/6.1.8", "heart-beat": "10000,10000"},
    )
    to.add("tuned", "trace", after=0, heartbeat_client=10, heartbeat_broker=10)
    to.add(
        "frame",
        "client",
        name="SUBSCRIBE",
        size=90,
        headers={"id": "1", "destination": "/queue/exports", "ack": "client-individual"},
    )
    for n in range(14):
        to.add(
            "frame",
            "broker",
            name="MESSAGE",
            size=410,
            after=0.7,
            headers={"subscription": "1", "message-id": f"ID:b1-{n}", "ack": f"a{n}", "destination": "/queue/exports"},
        )
        if n < 13:
            to.add("frame", "client", name="ACK", size=40, after=0.4, headers={"id": f"a{n}"})
    for _ in range(2):
        to.beat("broker", after=10.0)
    for conn, port in enumerate((41788, 41794, 41802), start=2):
        connect(conn, port)
        to.add(
            "frame",
            "broker",
            conn,
            name="ERROR",
            size=640,
            after=0.008,
            headers={"message": "Broker: b1 - Client: worker-1 already connected from tcp://127.0.0.1:41770"},
        )
        to.add(
            "flag", "trace", conn, after=0, id="stomp.client-id-taken", level="error",
            what="The broker refused the client id worker-1, because connection 1 still holds it",
            evidence=[{"client id": "worker-1", "held by": "connection 1, 10.0.3.22:41770", "silent for": f"{round(to.t - 15.4, 1)} s"}],
            remedy="Leave the client id out (queues need none), or make it different for each process and each connection",
        )  # fmt: skip
        to.add("close", "broker", conn, after=0.002, who="broker", how="fin", in_frame=False)
        to.t += 2.0
    to.add("gap", "client", 1, after=1.0, seconds=27.5, allowed=20.0)
    to.add(
        "flag",
        "trace",
        1,
        after=0,
        id="stomp.late-heartbeat",
        level="error",
        what="The client sent nothing for 27.5 s, although it agreed to a heart-beat of 10 s",
        evidence=[{"agreed heart-beat": "10 s", "silent for": "27.5 s", "allowed": "20 s"}],
        remedy="Look at the network and at the machine of the client: it is gone, or its connection is half open",
    )
    to.add("close", "broker", 1, after=0.002, who="broker", how="fin", in_frame=False)
    connect(5, 41816)
    to.add(
        "frame",
        "broker",
        5,
        name="CONNECTED",
        size=96,
        after=0.01,
        headers={"version": "1.2", "server": "ActiveMQ/6.1.8", "heart-beat": "10000,10000"},
    )
    return to.events


STORIES: dict[str, Callable[[], list[Event]]] = {
    story.__name__: story for story in (second_header, missed_heartbeat, two_threads, full_queue, client_id_taken)
}


def long_trace(events: int, connections: int = 1) -> Iterable[Event]:
    """Yield a trace of so many events, one at a time: deliveries with acks in any order, heartbeats, gaps and flags."""
    yield from Teller().events
    tags = dict.fromkeys(range(1, connections + 1), 0)
    yield from _traffic(events, tags)


def _traffic(events: int, tags: dict[int, int]) -> Iterator[Event]:
    t = 0.0
    for n in range(events):
        t += 0.004
        conn = n // 4 % len(tags) + 1
        head = {"t": t, "conn": conn}
        match n % 4:
            case 0:
                tags[conn] += 1
                yield {
                    **head,
                    "from": "broker",
                    "kind": "method",
                    "name": "Basic.Deliver",
                    "channel": 1,
                    "size": 61,
                    "delivery_tag": tags[conn],
                    "consumer_tag": "c",
                    "exchange": "",
                    "routing_key": "q",
                }
            case 1:
                yield {
                    **head,
                    "from": "broker",
                    "kind": "content",
                    "channel": 1,
                    "size": 38,
                    "body_size": 2000,
                    "properties": {"delivery_mode": 2},
                }
            case 2:
                yield {**head, "from": "broker", "kind": "body", "channel": 1, "size": 2008}
            case _ if n % 40_003 == 3:
                yield {
                    **head,
                    "from": "trace",
                    "kind": "flag",
                    "id": "amqp.double-ack",
                    "level": "error",
                    "what": "An ack was sent twice",
                    "evidence": [{"tag": tags[conn]}],
                    "remedy": "Ack once",
                }
            case _ if n % 5_003 == 3:
                yield {**head, "from": "client", "kind": "gap", "seconds": 3.0, "allowed": 2.0}
            case _:
                tag = tags[conn] if n % 3 else max(1, tags[conn] - 50)
                yield {
                    **head,
                    "from": "client",
                    "kind": "method",
                    "name": "Basic.Ack",
                    "channel": 1,
                    "size": 21,
                    "delivery_tag": tag,
                }


def greedy_trace(connections: int) -> Iterator[Event]:
    """Yield what takes the most memory: many connections, long texts, many names, a flag for every few frames."""
    long = "\N{SNOWMAN}" * 4_000
    for conn in range(connections):
        head = {"conn": conn, "from": "broker"}
        yield {**head, "kind": "open", "t": conn * 0.001, "client": long, "broker": long}
        yield {**head, "kind": "frame", "name": "SUBSCRIBE", "headers": {"id": "1", "ack": "client-individual"}}
        for n in range(100):
            yield {
                **head,
                "kind": "method",
                "name": f"name {n}",
                "channel": n,
                "size": 9,
                "text": long,
                "x": [long] * 9,
            }
            yield {
                **head,
                "kind": "method",
                "name": "Basic.Deliver",
                "channel": n,
                "size": 9,
                "delivery_tag": 2 * n + 2,
                "x": long,
            }
            yield {
                **head,
                "kind": "frame",
                "name": "MESSAGE",
                "headers": {"subscription": "1", "message-id": f"{n}{long}"},
            }
            if n % 4 == 0:
                yield {
                    **head,
                    "kind": "flag",
                    "id": f"id {n}",
                    "level": "error",
                    "what": long,
                    "remedy": long,
                    "evidence": [{"x": long}] * 20,
                }
