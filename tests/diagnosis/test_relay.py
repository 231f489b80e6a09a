"""The relay changes no byte, and passes half-closes, resets and back pressure on as what they were."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import commands, frame, heartbeat

from steadyworker.clock import SystemClock
from steadyworker.diagnosis import conversation, relay
from steadyworker.diagnosis.amqp import AmqpReader
from steadyworker.diagnosis.conversation import Known
from steadyworker.diagnosis.frames import Item
from steadyworker.diagnosis.relay import CHUNK, BrokerTarget, RelayLink
from steadyworker.diagnosis.tap import MOST_WAITING, Side, Tap
from steadyworker.diagnosis.tracing import Conversations, RelayFailed, Tracing
from steadyworker.diagnosis.verdict import FlagKind, verdict_of
from steadyworker.diagnosis.wire import Event, Wire
from tests.diagnosis.amqp_client import OPENING
from tests.diagnosis.traced import Traced
from tests.support.stage import eventually

WITHIN = 30.0
BEAT = frame.marshal(heartbeat.Heartbeat(), 0)


@contextmanager
def ends(most: int = MOST_WAITING) -> Iterator[tuple[Traced, socket.socket, socket.socket]]:
    """A trace, and the two programs that it stands between: the client's socket and the broker's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WITHIN)
        with Traced(f"127.0.0.1:{server.getsockname()[1]}", most=most) as trace:
            client = socket.create_connection(("127.0.0.1", trace.port), timeout=WITHIN)
            broker, _ = server.accept()
            broker.settimeout(WITHIN)
            with closing(client), closing(broker):
                yield trace, client, broker


def reset(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


def read_all(end: socket.socket) -> bytes:
    """All bytes until the other side closes its direction."""
    return b"".join(iter(lambda: end.recv(65536), b""))


def write(end: socket.socket, chunks: Sequence[bytes]) -> None:
    for chunk in chunks:
        end.sendall(chunk)
    end.shutdown(socket.SHUT_WR)


chunks = st.lists(
    st.one_of(st.binary(max_size=50), st.integers(0, 3 * CHUNK).map(lambda size: bytes(range(256)) * (size // 256))),
    max_size=6,
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(up=chunks, down=chunks)
def test_all_bytes_arrive_as_they_were_in_both_directions(up: list[bytes], down: list[bytes]) -> None:
    with ends() as (trace, client, broker):
        writers = [threading.Thread(target=write, args=pair, daemon=True) for pair in ((client, up), (broker, down))]
        arrived: dict[str, bytes] = {}
        reader = threading.Thread(target=lambda: arrived.update(up=read_all(broker)), daemon=True)
        for thread in (*writers, reader):
            thread.start()
        arrived["down"] = read_all(client)
        for thread in (*writers, reader):
            thread.join(WITHIN)
        trace.stop()
    assert arrived == {"up": b"".join(up), "down": b"".join(down)}
    assert trace.wire.bytes == {"client": len(arrived["up"]), "broker": len(arrived["down"])}
    assert [event["how"] for event in trace.of("close")] == ["fin", "fin"]


def test_a_half_close_leaves_the_other_direction_open() -> None:
    with ends() as (trace, client, broker):
        client.sendall(b"request")
        client.shutdown(socket.SHUT_WR)
        assert read_all(broker) == b"request"
        for part in (b"one", b"two"):
            broker.sendall(part)
            assert client.recv(10) == part
        broker.close()
        assert client.recv(10) == b""
        trace.stop()
    first, second = trace.of("close")
    assert (first["who"], first["how"], first["first"]) == ("client", "fin", True)
    assert (second["who"], second["how"]) == ("broker", "fin")
    assert "first" not in second


@pytest.mark.parametrize("by_client", [True, False])
def test_a_reset_is_passed_on_as_a_reset(*, by_client: bool) -> None:
    with ends() as (trace, client, broker):
        one, other = (client, broker) if by_client else (broker, client)
        one.sendall(b"x")
        assert other.recv(10) == b"x"
        reset(one)
        with pytest.raises(ConnectionResetError):
            other.recv(10)
        trace.stop()
    (close,) = trace.of("close")
    assert (close["who"], close["how"]) == ("client" if by_client else "broker", "reset")


def test_what_was_sent_before_a_reset_arrives_before_it() -> None:
    """A broker answers, and closes with bytes of the client unread: the kernel makes a reset of that."""
    with ends() as (_, client, broker):
        client.sendall(b"wrong")
        while not broker.recv(1, socket.MSG_PEEK):
            pass
        broker.sendall(b"an error")
        broker.close()
        assert client.recv(100) == b"an error"
        with pytest.raises(ConnectionResetError):
            client.recv(100)


def test_a_reset_passes_though_the_other_side_reads_nothing() -> None:
    with ends() as (trace, client, broker):
        fill(client)
        reset(client)
        with pytest.raises(ConnectionResetError):
            read_all(broker)
        trace.stop()
    assert trace.of("close")[0]["how"] == "reset"


@pytest.mark.long
def test_a_side_that_reads_nothing_stops_the_other_one_and_no_byte_is_lost() -> None:
    with ends() as (trace, client, broker):
        sent = fill(client)
        queue = trace.wait_kind("queue", side="broker")
        assert queue["bytes"] > 0
        broker.sendall(b"the other direction still passes")
        assert client.recv(100) == b"the other direction still passes"
        client.settimeout(WITHIN)
        received = threading.Thread(target=lambda: client.shutdown(socket.SHUT_WR), daemon=True)
        received.start()
        assert len(read_all(broker)) == sent
        received.join(WITHIN)


@pytest.mark.parametrize("frozen", [Side.BROKER, Side.CLIENT])
def test_a_side_that_stops_under_load_is_named_and_never_its_peer(
    frozen: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is stopped, each side beats; then its peer writes all the time, until the kernel has no more room."""
    monkeypatch.setattr(conversation, "STUCK", 2.0)
    with ends() as (trace, client, broker):
        tuned = frame.marshal(commands.Connection.TuneOk(2047, 131_072, 1), 0)
        client.sendall(OPENING + tuned)
        assert broker.recv(1000)
        peer = client if frozen is Side.BROKER else broker
        writer = threading.Thread(target=write_without_end, args=(peer,), daemon=True)
        writer.start()
        kind = "broker-not-reading" if frozen is Side.BROKER else "peer-not-reading"
        silent = "amqp.broker-silent" if frozen is Side.BROKER else "amqp.late-heartbeat"
        flag = trace.wait_flag(f"amqp.{kind}")
        trace.wait_flag(silent)
        reset(broker if frozen is Side.BROKER else client)
        writer.join(WITHIN)
        trace.stop()
    label = frozen.label
    assert set(trace.flags()) - {"amqp.frame-cut"} == {f"amqp.{kind}", silent}
    verdict = verdict_of([FlagKind(flag)], {}, 1, trace.events[-1]["t"])
    assert verdict.headline.startswith(f"The {label} has read nothing for ")


def write_without_end(end: socket.socket) -> None:
    with suppress(OSError):
        while True:
            end.sendall(BEAT * 1000)


@pytest.mark.parametrize("by_reset", [True, False])
def test_a_client_that_leaves_while_the_broker_is_dialed_is_seen_then(*, by_reset: bool) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with (
            socket.create_connection(full.getsockname()),  # the backlog is full now
            Traced(f"127.0.0.1:{full.getsockname()[1]}") as trace,
            socket.create_connection(("127.0.0.1", trace.port), timeout=WITHIN) as client,
        ):
            trace.wait_kind("open")
            client.sendall(OPENING[:8])
            eventually(lambda: trace.wire.bytes["client"] == 8, "the client's first bytes")
            reset(client) if by_reset else client.close()
            close = trace.wait_kind("close", who="client")
            assert trace.of("connected") == []
            trace.stop()
    assert close["how"] == ("reset" if by_reset else "fin")
    assert trace.flags() == []


def test_what_a_client_sends_while_the_broker_is_dialed_arrives_first() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WITHIN)
        with (
            Traced(f"127.0.0.1:{server.getsockname()[1]}") as trace,
            socket.create_connection(("127.0.0.1", trace.port), timeout=WITHIN) as client,
        ):
            writer = threading.Thread(target=write, args=(client, [b"first", bytes(3 * CHUNK), b"last"]), daemon=True)
            writer.start()
            with server.accept()[0] as broker:
                assert read_all(broker) == b"first" + bytes(3 * CHUNK) + b"last"
            writer.join(WITHIN)


def fill(end: socket.socket) -> int:
    """Send until nothing more is taken; return how many bytes were."""
    sent, idle = 0, 0
    end.settimeout(0.2)
    while idle < 2:
        try:
            sent += end.send(bytes(1 << 16))
            idle = 0
        except TimeoutError:
            idle += 1
    end.settimeout(WITHIN)
    return sent


def try_to_read(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN) as client:  # the reset can come this early
        client.recv(10)


def test_a_broker_that_is_not_there_is_an_event_and_resets_the_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with Traced(f"127.0.0.1:{port}") as trace:
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                try_to_read(trace.port)
        trace.stop()
    closes = trace.of("close", who="broker", how="refused")
    assert [event["error"] for event in closes] == ["Connection refused"] * 2
    assert trace.wire.unreachable == 2


def dialed(*addresses: tuple[socket.AddressFamily, tuple[str, int]]) -> None:
    """Connect to the first address that can be reached."""

    async def connect() -> None:
        link = RelayLink(1, BrokerTarget(addresses), Tap(), SystemClock().monotonic)
        await link._dial()
        assert list(link._ends) == [Side.BROKER]
        link._ends[Side.BROKER].transport.abort()

    asyncio.run(connect())


def test_an_address_that_does_not_answer_is_left_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):  # the backlog is full now
            hung = (socket.AF_INET, full.getsockname())
            dialed(hung, (socket.AF_INET, server.getsockname()))
            with pytest.raises(TimeoutError, match="Connection timed out"):
                dialed(hung)


def test_a_reader_that_stands_still_stops_no_byte_and_gets_one_record_of_all_skipped_bytes() -> None:
    """As on a machine without a free core."""
    with ends(most=1_000) as (trace, client, broker):
        trace.reading.clear()
        for number in range(500):
            client.sendall(bytes([number % 256]) * 100)
            assert len(broker.recv(100, socket.MSG_WAITALL)) == 100
        assert trace._tracing._tap._records.qsize() < 20
        trace.reading.set()
        client.close()
        broker.close()
        trace.stop()
    assert trace.wire.bytes["client"] == 50_000
    assert trace.of("skipped")
    assert trace.wire.skipped == sum(event["bytes"] for event in trace.of("skipped"))


def test_the_end_of_a_trace_closes_what_is_open() -> None:
    with ends() as (trace, client, broker):
        client.sendall(b"x")
        assert broker.recv(10) == b"x"
        trace.stop()
        assert client.recv(10) == b""
        assert broker.recv(10) == b""
    assert trace.of("close", who="trace")


def test_many_connections_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        server.settimeout(WITHIN)
        with Traced(f"127.0.0.1:{server.getsockname()[1]}") as trace:
            clients = [socket.create_connection(("127.0.0.1", trace.port), timeout=WITHIN) for _ in range(50)]
            brokers = [server.accept()[0] for _ in clients]
            for number, client in enumerate(clients):
                client.sendall(bytes([number]))
            assert sorted(broker.recv(10)[0] for broker in brokers) == list(range(50))
            for end in (*clients, *brokers):
                end.close()
            eventually(lambda: len(trace.of("close", first=True)) == 50, "the end of each connection")
            trace.stop()
    assert trace.wire.connections == 50
    assert len(trace.of("close", first=True)) == 50


@pytest.mark.long
def test_a_reset_by_a_side_that_has_closed_its_direction_is_passed_on() -> None:
    with ends() as (trace, client, broker):
        client.shutdown(socket.SHUT_WR)
        assert broker.recv(10) == b""
        reset(client)
        trace.wait_kind("close", who="client", how="reset")
        trace.stop()
        with pytest.raises(BrokenPipeError):
            broker.send(b"x")
    assert [(event["who"], event["how"]) for event in trace.of("close")] == [("client", "fin"), ("client", "reset")]


def test_a_failure_of_the_relay_is_raised_by_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: RelayLink, connection: socket.socket, __: str) -> None:
        connection.close()
        raise ZeroDivisionError("a mistake in the relay")

    monkeypatch.setattr(RelayLink, "run", fail)
    clock, events = SystemClock(), list[Event]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        conversations = Conversations(Wire(0.0, [events.append]), Known.at(5672))
        tracing = Tracing(listener, BrokerTarget([(socket.AF_INET, server.getsockname())]), conversations, clock)
        with socket.create_connection(("127.0.0.1", port), timeout=WITHIN):
            while tracing.step():
                pass
        with pytest.raises(RelayFailed) as raised:
            tracing.stop()
    assert "a mistake in the relay" in "".join(traceback.format_exception(raised.value))
    assert events == []


def test_a_mistake_in_one_connection_ends_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = RelayLink.received

    def receive(link: RelayLink, side: Side, data: bytes) -> None:
        if data == b"bad":
            raise TypeError("a mistake")
        passed(link, side, data)

    monkeypatch.setattr(RelayLink, "received", receive)
    with ends() as (trace, client, broker), socket.create_connection(("127.0.0.1", trace.port), WITHIN) as bad:
        bad.sendall(b"bad")
        with pytest.raises(ConnectionResetError):
            bad.recv(10)
        client.sendall(b"good")
        assert broker.recv(10) == b"good"
        trouble = trace.wait_kind("trouble")
    assert trouble["conn"] == 2
    assert trouble["error"].startswith("TypeError at test_relay.py:")


def test_a_mistake_while_the_broker_is_dialed_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dial(_: RelayLink) -> None:
        raise TypeError("a mistake")

    monkeypatch.setattr(RelayLink, "_dial", dial)
    with Traced("127.0.0.1:1") as trace:
        with pytest.raises(ConnectionResetError):
            try_to_read(trace.port)
        assert trace.wait_kind("trouble")["error"].startswith("TypeError at test_relay.py:")


def test_a_mistake_in_the_reader_ends_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def feed(_: AmqpReader, data: bytes) -> list[Item]:
        raise ValueError(f"invalid literal: {data!r}")

    monkeypatch.setattr(AmqpReader, "feed", feed)
    with ends() as (trace, client, broker):
        client.sendall(b"AMQP\0\0\x09\x01")
        assert broker.recv(10)
        trouble = trace.wait_kind("trouble")
        broker.sendall(b"reply")
        assert client.recv(10) == b"reply"
        client.close()
        broker.close()
        eventually(lambda: len(trace.of("close")) == 2, "the end of both sides")
        trace.stop()
    assert trouble["conn"] == 1
    assert trouble["error"].startswith("ValueError at test_relay.py:")
    assert trace.wire.bytes == {"client": 8, "broker": 5}
    assert [event["size"] for event in trace.of("bytes")] == [8, 5]
    assert len(trace.of("close")) == 2
