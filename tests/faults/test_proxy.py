"""The fault proxy does to a connection what it says, and nothing else."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.faults.link import Fault, Link, Pipe
from tests.faults.proxy import Proxy
from tests.support.stage import eventually


class Ends:
    """A server, a proxy in front of it, and the two ends of each connection through it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._listener.settimeout(10)
        self.proxy = stack.enter_context(Proxy(f"127.0.0.1:{self._listener.getsockname()[1]}"))

    def client(self) -> socket.socket:
        end = self._stack.enter_context(socket.create_connection(("127.0.0.1", self.proxy.port), timeout=10))
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return end

    def pair(self) -> tuple[socket.socket, socket.socket]:
        client = self.client()
        server, _ = self._listener.accept()
        server.settimeout(10)
        return client, self._stack.enter_context(server)


@pytest.fixture
def ends() -> Iterator[Ends]:
    with ExitStack() as stack:
        yield Ends(stack)


@pytest.fixture
def proxy(ends: Ends) -> Proxy:
    return ends.proxy


def exactly(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := end.recv(count - len(data))):
        data += more
    return data


def hears(end: socket.socket) -> bytes | None:
    """What is there now; None for nothing."""
    end.setblocking(False)
    try:
        return end.recv(1 << 16)
    except BlockingIOError:
        return None
    finally:
        end.settimeout(10)


def test_bytes_pass_both_ways_and_are_counted(ends: Ends, proxy: Proxy) -> None:
    client, server = ends.pair()
    question, answer = b"q" * 3_000_000, b"a" * 17
    client.settimeout(0)
    sent = 0
    received = b""
    while len(received) < len(question):
        with suppress(BlockingIOError):
            sent += client.send(question[sent:])
        received += hears(server) or b""
    client.settimeout(10)
    server.sendall(answer)

    assert received == question
    assert exactly(client, 17) == answer
    proxy.wait_passed(17, "down")  # the client may have them before the proxy has counted them
    assert (proxy.passed("up"), proxy.passed("down"), proxy.connections) == (3_000_000, 17, 1)


def test_an_end_passes_as_an_end_and_the_other_direction_stays_open(ends: Ends, proxy: Proxy) -> None:
    client, server = ends.pair()
    client.shutdown(socket.SHUT_WR)

    assert server.recv(1) == b""
    server.sendall(b"bye")
    server.close()
    assert exactly(client, 4) == b"bye"
    proxy.wait_closed()
    assert proxy.passed("down") == 3


def test_a_reset_passes_as_a_reset(ends: Ends, proxy: Proxy) -> None:
    client, server = ends.pair()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server.close()

    with pytest.raises(ConnectionResetError):
        client.recv(1)
    proxy.wait_closed()


def test_cut_resets_both_ends_of_every_connection(ends: Ends, proxy: Proxy) -> None:
    pairs = [ends.pair(), ends.pair()]
    proxy.cut()

    for end in [end for pair in pairs for end in pair]:
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    assert proxy.links == ()


def test_cut_of_one_link_leaves_the_other(ends: Ends, proxy: Proxy) -> None:
    (first, _), (second, server) = ends.pair(), ends.pair()
    proxy.links[0].cut()

    with pytest.raises(ConnectionResetError):
        first.recv(1)
    second.sendall(b"on")
    assert exactly(server, 2) == b"on"
    assert [link.number for link in proxy.links] == [2]


def test_close_ends_both_ends_in_good_order(ends: Ends, proxy: Proxy) -> None:
    pair = ends.pair()
    proxy.close()

    assert [end.recv(1) for end in pair] == [b"", b""]


def test_stall_holds_both_ways_until_resume(ends: Ends, proxy: Proxy) -> None:
    client, server = ends.pair()
    proxy.stall()
    client.sendall(b"up")
    server.sendall(b"down")
    other, other_server = ends.pair()
    other.sendall(b"too")

    assert not proxy.passed("up")
    assert [hears(end) for end in (client, server, other_server)] == [None, None, None]
    proxy.resume()
    assert (exactly(server, 2), exactly(client, 4), exactly(other_server, 3)) == (b"up", b"down", b"too")


def test_hold_blocks_the_sender(ends: Ends, proxy: Proxy) -> None:
    client, server = ends.pair()
    proxy.hold("up")
    client.settimeout(0.2)

    with pytest.raises(TimeoutError):
        client.sendall(bytes(64 << 20))
    server.sendall(b"answer")
    client.settimeout(10)
    assert exactly(client, 6) == b"answer"


def test_drop_takes_bytes_end_and_reset_of_one_direction(ends: Ends, proxy: Proxy) -> None:
    client, server = ends.pair()
    proxy.drop("up")
    client.sendall(bytes(8 << 20))
    server.sendall(b"still there")
    assert exactly(client, 11) == b"still there"
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    server.sendall(b"anyone?")

    assert hears(server) is None
    assert proxy.passed("up") == 0


def test_slow_passes_so_many_bytes_a_second(ends: Ends, proxy: Proxy) -> None:
    client, server = ends.pair()
    proxy.slow(20_000, "up")
    began = time.monotonic()
    client.sendall(bytes(10_000))

    assert len(exactly(server, 10_000)) == 10_000
    assert time.monotonic() - began >= 0.4


def test_a_delay_holds_each_byte_for_so_long_and_no_byte_waits_for_another(ends: Ends, proxy: Proxy) -> None:
    client, server = ends.pair()
    proxy.delay(0.3)
    time.sleep(0.4)  # the delay counts from a byte's arrival, not from the loop's last turn
    began = time.monotonic()
    for _ in range(10):
        client.sendall(b"q" * 100_000)
    assert exactly(server, 1_000_000) == b"q" * 1_000_000
    server.sendall(b"a")
    assert exactly(client, 1) == b"a"
    assert 0.6 <= time.monotonic() - began < 3.0, "ten delays one after the other would take 3 s"
    client.close()
    closed = time.monotonic()
    assert server.recv(1) == b""
    assert time.monotonic() - closed >= 0.29, "the end is on its way as long as the bytes"


def test_a_slice_is_a_write_of_its_own() -> None:
    with ExitStack() as stack:
        sender, source = (stack.enter_context(end) for end in socket.socketpair())
        kinds = (socket.AF_UNIX, socket.SOCK_SEQPACKET)  # shows the boundaries of writes, as TCP need not
        sink, receiver = (stack.enter_context(end) for end in socket.socketpair(*kinds))
        pipe = Pipe(source, sink, Fault(slice=2))
        sender.sendall(b"abcde")
        pipe.read(0.0)
        while pipe.writes:
            pipe.write(0.0)

        assert [receiver.recv(100) for _ in range(3)] == [b"ab", b"cd", b"e"]


def test_sliced_bytes_all_arrive(ends: Ends, proxy: Proxy) -> None:
    client, server = ends.pair()
    proxy.slice(1)
    client.sendall(b"m-17" * 1000)

    assert exactly(server, 4000) == b"m-17" * 1000


@pytest.mark.parametrize("count", [1, 5, 70_000])
def test_after_so_many_bytes_a_new_connection_is_cut(ends: Ends, proxy: Proxy, count: int) -> None:
    proxy.after(count, "down", Link.cut)
    client, server = ends.pair()
    server.sendall(bytes(count + 3))

    assert len(exactly(client, count)) == count
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert proxy.passed("down") == count


def test_after_no_byte_a_new_connection_is_cut_at_once(ends: Ends, proxy: Proxy) -> None:
    proxy.after(0, "down", Link.cut)

    with pytest.raises(ConnectionResetError):
        ends.client().recv(1)
    proxy.wait_closed()
    assert proxy.connections == 1


def test_after_counts_from_now_on_an_open_connection(ends: Ends, proxy: Proxy) -> None:
    client, server = ends.pair()
    client.sendall(b"first")
    assert exactly(server, 5) == b"first"
    proxy.after(3, "up", Link.stall)
    client.sendall(b"second")

    proxy.wait_passed(8, "up")
    assert exactly(server, 3) == b"sec"
    assert hears(server) is None
    proxy.resume()
    assert exactly(server, 3) == b"ond"


def test_refuse_refuses_until_accept_and_keeps_what_is_open(ends: Ends, proxy: Proxy) -> None:
    client, server = ends.pair()
    proxy.refuse()

    with pytest.raises(ConnectionRefusedError):
        ends.client()
    client.sendall(b"open")
    assert exactly(server, 4) == b"open"
    proxy.accept()
    ends.pair()
    eventually(lambda: proxy.connections == 2, "the proxy counts a connection after it has opened its other side")


def test_silent_accepts_and_sends_nothing(ends: Ends, proxy: Proxy) -> None:
    proxy.silent()
    client = ends.client()
    client.sendall(b"AMQP\0\0\x09\1")
    proxy.wait_passed(8, "up")

    assert hears(client) is None
    proxy.resume()
    ends.pair()
    assert hears(client) is None


def test_a_server_that_refuses_is_a_reset(ends: Ends, proxy: Proxy) -> None:
    ends._listener.close()

    with pytest.raises(ConnectionResetError):
        ends.client().recv(1)


def test_the_url_leads_through_the_proxy_and_keeps_the_login() -> None:
    with Proxy("amqp://user:secret@127.0.0.1:5672/%2Fv?heartbeat=5") as proxy:
        assert proxy.url == f"amqp://user:secret@127.0.0.1:{proxy.port}/%2Fv?heartbeat=5"
        with pytest.raises(ValueError, match="expected a URL with host and port, got 'broker'") as raised:
            proxy.through("amqp://user:secret@broker")
        assert "secret" not in str(raised.value)


def test_a_wait_names_what_did_not_happen(proxy: Proxy) -> None:
    with pytest.raises(TimeoutError, match=r"within 0\.01 s: 2 connections, not 0"):
        proxy.wait_connections(2, within=0.01)


def test_parts_arrive_twice_or_in_the_wrong_order_as_their_seed_draws() -> None:
    def arrived(seed: int) -> list[bytes]:
        with ExitStack() as stack:
            ends = Ends(stack)
            ends.proxy.scramble(seed, 3, "up")
            client, server = ends.pair()
            parts = []
            for _ in range(60):
                client.sendall(b"ab")
                parts.append(server.recv(4))
            server.sendall(b"cd")
            assert client.recv(4) == b"cd", "the other direction is as it was"
            return parts

    assert arrived(1) == arrived(1) != arrived(2)
    assert {*arrived(1)} == {b"ab", b"ba", b"abab"}
