"""Peers that are no good: silent at connect, receipt and disconnect, no STOMP at all, or frames in odd pieces; each wait ends."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import trustme

from steadyworker.adapter import QueueSpec, Settle, Settled
from steadyworker.clock import SystemClock
from steadyworker.errors import BrokerUnavailable, NotPublished, PublishFailed, Unsettled
from steadyworker.network import owed
from steadyworker.network.errors import Foreign
from steadyworker_stomp import hosts, publisher
from steadyworker_stomp.stomp_internals import _Transport
from tests.adapters.stomp_kit import Worker, work

pytestmark = pytest.mark.long

CONNECTED = b"CONNECTED\nversion:1.2\nserver:ActiveMQ-Artemis/2.55.0 test\nheart-beat:0,0\n\n\0"
MESSAGE = b"MESSAGE\nsubscription:%s\nmessage-id:1,2\nack:1,2\ndestination:q\ncontent-length:2\nsw-job-key:k-1\n\n{}\0"

Answer = Callable[[bytes, dict[str, str]], bytes]


class Peer:
    """A server that answers each frame as a test prescribes; without an answer, it stays silent."""

    def __init__(self, answer: Answer, pieces: int = 1 << 16) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"stomp://u:p@127.0.0.1:{self._server.getsockname()[1]}?heartbeat=1"
        self.frames: list[bytes] = []
        self._answer = answer
        self._pieces = pieces
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for end in (self._server, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                end, _ = self._server.accept()
                self._ends.append(end)
                threading.Thread(target=self._serve, args=(end,), daemon=True).start()

    def _serve(self, end: socket.socket) -> None:
        buffer = b""
        with suppress(OSError):
            while data := end.recv(1 << 16):
                buffer += data
                while b"\0" in buffer:
                    frame, _, buffer = buffer.partition(b"\0")
                    self._reply(end, frame.lstrip(b"\n"))

    def _reply(self, end: socket.socket, frame: bytes) -> None:
        command, *lines = frame.partition(b"\n\n")[0].decode().split("\n")
        self.frames.append(command.encode())
        answer = self._answer(command.encode(), dict(line.split(":", 1) for line in lines))
        for begin in range(0, len(answer), self._pieces):
            end.sendall(answer[begin : begin + self._pieces])
            if self._pieces < len(answer):
                time.sleep(0.0005)


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def start(answer: Answer, pieces: int = 1 << 16) -> Peer:
        made.append(Peer(answer, pieces))
        return made[-1]

    yield start
    for each in made:
        each.close()


def receipt(headers: dict[str, str]) -> bytes:
    return f"RECEIPT\nreceipt-id:{headers['receipt']}\n\n\0".encode()


def broker(*silent: bytes) -> Answer:
    """A broker with one message for the first subscription, which never answers these commands."""
    delivered: list[str] = []

    def answer(command: bytes, headers: dict[str, str]) -> bytes:
        if command in silent:
            return b""
        if command in (b"STOMP", b"CONNECT"):
            return CONNECTED
        if command == b"SUBSCRIBE" and headers["id"] != "right" and not delivered:
            delivered.append(headers["id"])
            return receipt(headers) + MESSAGE % headers["id"].encode()
        return receipt(headers) if "receipt" in headers else b""

    return answer


@pytest.fixture
def open_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Worker]]:
    """Workers that wait one second where they would wait thirty."""
    monkeypatch.setattr(owed, "ANSWER_WITHIN", 1.0)
    monkeypatch.setattr(hosts, "_OPEN_WITHIN", 1.0)
    monkeypatch.setattr(hosts, "_CONNECT_WITHIN", 1.0)
    monkeypatch.setattr(publisher, "_PATIENCE", 1.0)
    made: list[Worker] = []

    def another(url: str) -> Worker:
        made.append(Worker(url, "exports"))
        return made[-1]

    yield another
    for each in made:
        each.adapter.stop(5)


OpenWorker = Callable[..., Worker]
StartPeer = Callable[..., Peer]


def test_a_peer_that_never_answers_the_login_is_no_broker(peer: StartPeer, open_worker: OpenWorker) -> None:
    worker = open_worker(peer(broker(b"STOMP")).url).start()
    found = worker.unreachable()
    assert "no reply to the login within 1 s" in found.cause
    assert not found.final


def test_a_receipt_that_never_comes_ends_the_epoch_and_the_settlement_is_unknown(
    peer: StartPeer, open_worker: OpenWorker
) -> None:
    served = peer(broker(b"ACK"))
    worker = open_worker(served.url).start()
    held = worker.delivery()
    with pytest.raises(Unsettled, match="no reply to an acknowledgement within 1 s"):
        worker.adapter.settle(held, Settle.ACK)
    assert worker.lost().epoch == held.epoch
    assert served.frames.count(b"ACK") == 1


def test_a_second_settlement_sends_nothing_and_has_the_same_answer(peer: StartPeer, open_worker: OpenWorker) -> None:
    served = peer(broker())
    worker = open_worker(served.url).start()
    held = worker.delivery()
    assert [worker.adapter.settle(held, Settle.ACK) for _ in range(3)] == [Settled.CONFIRMED] * 3
    assert served.frames.count(b"ACK") == 1
    assert served.frames.count(b"NACK") == 0


def test_a_message_without_a_receipt_may_be_there_and_the_next_one_has_a_new_connection(
    peer: StartPeer, open_worker: OpenWorker
) -> None:
    served = peer(broker(b"SEND"))
    worker = open_worker(served.url)
    for number in range(1, 3):
        with pytest.raises(PublishFailed, match="may have the message all the same") as failed:
            worker.adapter.publish(work())
        assert not isinstance(failed.value, NotPublished)
        assert served.frames.count(b"STOMP") == number


@pytest.mark.parametrize("silent", [b"UNSUBSCRIBE", b"DISCONNECT"])
def test_a_peer_that_never_answers_the_goodbye_is_left_in_time(
    peer: StartPeer, open_worker: OpenWorker, silent: bytes
) -> None:
    worker = open_worker(peer(broker(silent) if silent == b"DISCONNECT" else late_goodbye()).url).start()
    worker.delivery()
    began = time.monotonic()
    worker.adapter.stop(2.0)
    assert time.monotonic() - began < 3.0


def late_goodbye() -> Answer:
    """A broker that answers the first UNSUBSCRIBE, which proves the right to consume, and no later one."""
    usual, seen = broker(), []

    def answer(command: bytes, headers: dict[str, str]) -> bytes:
        seen.append(command)
        return b"" if command == b"UNSUBSCRIBE" and headers["id"] != "right" else usual(command, headers)

    return answer


def test_a_peer_that_does_not_read_stops_no_sender_for_ever(open_worker: OpenWorker) -> None:
    """It answers the login, and never reads again: a body larger than all buffers does not fit."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        worker = open_worker(f"stomp://u:p@127.0.0.1:{server.getsockname()[1]}")
        ends: list[socket.socket] = []

        def serve() -> None:
            end, _ = server.accept()
            ends.append(end)
            end.recv(1 << 10)
            end.sendall(CONNECTED)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(PublishFailed, match="the broker does not read"):
            worker.adapter.publish(work(body=bytes(32 << 20)))
        for end in ends:
            end.close()


@pytest.mark.parametrize(
    "spoken",
    [
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
        b"\x15\x03\x03\x00\x02\x02\x46",
        b"MESSAGE\n\n\0",
        b"CONNECTED\nheart-beat:often\n\n\0",
    ],
)
def test_a_peer_that_speaks_something_else_is_named_so(peer: StartPeer, open_worker: OpenWorker, spoken: bytes) -> None:
    found = open_worker(peer(lambda *_: spoken).url).start().unreachable()
    assert "not STOMP 1.2" in found.cause
    assert found.final


def test_frames_in_any_slices_are_the_same_frames(peer: StartPeer, open_worker: OpenWorker) -> None:
    for pieces in (1, 2, 3, 7, 50):
        worker = open_worker(peer(broker(), pieces).url).start()
        held = worker.delivery()
        assert (held.body, held.headers["sw-job-key"]) == (b"{}", "k-1")
        assert worker.adapter.settle(held, Settle.ACK) is Settled.CONFIRMED
        worker.adapter.stop(5)


@pytest.mark.parametrize(
    ("server", "part"),
    [("RabbitMQ/4.3.0", "amqp:// URL"), ("Apollo/1.7", "dialect=classic"), ("", "dialect=classic")],
)
def test_another_broker_is_refused_by_name(peer: StartPeer, open_worker: OpenWorker, server: str, part: str) -> None:
    found = open_worker(peer(lambda *_: CONNECTED.replace(b"ActiveMQ-Artemis/2.55.0 test", server.encode())).url)
    refused: Any = found.start().unreachable()
    assert part in refused.cause
    assert refused.final


def test_a_refused_right_has_one_remedy_which_is_not_another_broker(peer: StartPeer, open_worker: OpenWorker) -> None:
    refused = b"ERROR\nmessage:User u is not authorized to create: topic://ActiveMQ.Advisory.TempQueue\n\n\0"

    def answer(command: bytes, _: dict[str, str]) -> bytes:
        return CONNECTED.replace(b"ActiveMQ-Artemis/2.55.0", b"ActiveMQ/5.18.3") if command == b"STOMP" else refused

    (finding,) = open_worker(peer(answer).url).adapter.findings(QueueSpec("exports", "exports.dead"))
    assert "grant the user read, write and admin for the topics ActiveMQ.Advisory.>" in finding.what
    assert finding.remedy == "correct what this message names; until then `run` exits with code 78."


def test_a_broker_that_falls_silent_is_given_up_after_three_heartbeats(
    peer: StartPeer, open_worker: OpenWorker
) -> None:
    usual = broker()

    def answer(command: bytes, headers: dict[str, str]) -> bytes:
        return usual(command, headers).replace(b"heart-beat:0,0", b"heart-beat:1000,1000")

    served = peer(answer)
    worker = open_worker(served.url).start()
    worker.connected()
    began = time.monotonic()
    assert "three heart-beats" in worker.lost().cause
    assert 2.5 < time.monotonic() - began < 8.0


def test_a_frame_after_the_brokers_end_fails_with_that_end() -> None:
    """The reading thread closes the socket before the connection knows; "Bad file descriptor" helps nobody."""
    near, far = socket.socketpair()
    with far:
        transport = _Transport(near, "broker", SystemClock(), 1.0)
        transport.cleanup()
        with pytest.raises(ConnectionResetError, match="the broker closed the connection"):
            transport.send(b"x")


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_frame_that_waits_for_space_fails_with_the_end_at_once(tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer reads nothing, and its bytes are no STOMP: the socket is closed while the frame waits for it."""
    near, far = socket.socketpair()
    if tls:
        near, far = secured(near, far)
    with far, ThreadPoolExecutor(1) as pool:
        transport = _Transport(near, "broker", SystemClock(), 30.0)
        waits, wait = threading.Event(), transport._wait

        def noted(event: int, deadline: float | None) -> bool:
            waits.set()
            return wait(event, deadline)

        monkeypatch.setattr(transport, "_wait", noted)
        sent = pool.submit(transport.send, bytes(32 << 20))
        assert waits.wait(10)
        far.sendall(b"HTTP/1.1 400 Bad Request\r\n")
        assert transport.receive() == b""
        began = time.monotonic()
        transport.cleanup()
        with pytest.raises(Foreign):
            sent.result()
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_frame_behind_heart_beats_that_the_socket_did_not_accept_is_whole(tls: bool) -> None:
    """OpenSSL keeps the last of them, and takes the next write for its repetition."""
    near, far = socket.socketpair()
    if tls:
        near, far = secured(near, far)
    frame = b"SEND\ndestination:q\n\n\0"
    with far:
        transport = _Transport(near, "broker", SystemClock(), 10.0)
        for _ in range(5_000):  # far more than the socket takes
            transport.beat()
        received = bytearray()

        def read() -> None:
            while data := far.recv(1 << 16):
                received.extend(data)

        reader = threading.Thread(target=read)
        reader.start()
        transport.send(frame)
        transport.send(frame)
        transport.end()
        reader.join()
        transport.cleanup()
    assert received.lstrip(b"\n") == frame * 2
    assert 0 < len(received) - len(frame * 2) < 5_000


class Counted:
    """A socket with so many reads, which counts the options that are set on it."""

    def __init__(self, *reads: bytes) -> None:
        self._reads = [*reads]
        self.did: list[object] = []

    def settimeout(self, _: float) -> None:
        """Nothing to do."""

    def recv(self, _: int) -> bytes:
        self.did.append("read")
        return self._reads.pop(0)

    def setsockopt(self, *option: int) -> None:
        self.did.append(option)


def test_what_was_received_is_confirmed_at_once_after_each_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux sets the option back by itself; other systems have none."""
    confirm = (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    counted: Any = Counted(CONNECTED, b"\n", b"\n")
    transport = _Transport(counted, "broker", SystemClock(), 1.0)
    for _ in range(2):
        transport.receive()
    assert counted.did == ["read", confirm, "read", confirm]
    monkeypatch.delattr(socket, "TCP_QUICKACK")
    assert transport.receive() == b"\n"
    assert counted.did[4:] == ["read"]


def secured(near: socket.socket, far: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Both ends, with TLS."""
    authority = trustme.CA()
    ours, theirs = ssl.create_default_context(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.configure_trust(ours)
    authority.issue_cert("broker").configure_cert(theirs)
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(theirs.wrap_socket, far, server_side=True)
        return ours.wrap_socket(near, server_hostname="broker"), accepted.result()


def test_nothing_listens_and_the_password_is_in_no_text(open_worker: OpenWorker) -> None:
    worker = open_worker("stomp://u:c4n4ry@127.0.0.1:1").start()
    assert "Connection refused" in worker.unreachable().cause
    with pytest.raises(BrokerUnavailable) as refused:
        worker.adapter.consumers()
    assert "c4n4ry" not in f"{worker.signals}{refused.value!r}{refused.value.__cause__!r}{worker.adapter.__dict__}"
