"""Frames, signatures and stored messages, and peers that are no good: each request ends, and no text has a secret."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.clock import SystemClock
from steadyworker.network.errors import Foreign, Silent
from steadyworker.network.url import Address
from steadyworker_rocketmq.frames import LARGEST_FRAME, parsed, signature
from steadyworker_rocketmq.remoting import Login, Remoting, RemotingError, RocketmqBroker, TopicQueue
from steadyworker_rocketmq.stored import LARGEST_BODY, properties_of, stored_messages, text_of
from tests.brokers.process import free_ports

Answer = Callable[[dict[str, Any]], bytes]


def frame(header: object, body: bytes = b"", kind: int = 0) -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">II", 4 + len(data) + len(body), kind << 24 | len(data)) + data + body


def reply(request: Mapping[str, Any], body: bytes = b"", code: int = 0, **header: object) -> bytes:
    return frame({"code": code, "flag": 1, "opaque": request["opaque"], **header}, body)


class Peer:
    """A server that answers each request as a test sets."""

    def __init__(self, answer: Answer, pieces: int = 1 << 30, pause: float = 0.0, *, one_by_one: bool = False) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._server.getsockname()[1])
        self.requests: list[dict[str, Any]] = []
        self.connections = 0
        self._answer, self._pieces, self._pause, self._one_by_one = answer, pieces, pause, one_by_one
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def client(self, login: Login | None = None, within: float = 10.0) -> Remoting:
        return Remoting((self.address,), login, SystemClock(), within)

    def close(self) -> None:
        for end in (self._server, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                end, _ = self._server.accept()
                self.connections += 1
                self._ends.append(end)
                threading.Thread(target=self._serve, args=(end,), daemon=True).start()

    def _serve(self, end: socket.socket) -> None:
        with suppress(OSError), end, end.makefile("rb") as stream:
            while head := stream.read(8):
                size, header_size = struct.unpack(">II", head)
                data = stream.read(size - 4)
                request = json.loads(data[:header_size])
                self.requests.append(request)
                answer = self._answer(request)
                for begin in range(0, len(answer), self._pieces):
                    end.sendall(answer[begin : begin + self._pieces])
                    time.sleep(self._pause)
                if self._one_by_one:
                    end.shutdown(socket.SHUT_RDWR)


Start = Callable[..., Peer]


@pytest.fixture
def peer() -> Iterator[Start]:
    peers: list[Peer] = []

    def start(answer: Answer, *args: Any, **options: Any) -> Peer:
        peers.append(Peer(answer, *args, **options))
        return peers[-1]

    yield start
    for each in peers:
        each.close()


NO_BROKERS = b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
ONE_BROKER = b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"a"}}}'


# --- Frames --------------------------------------------------------------------------------------------------------------


def test_a_reply_in_single_bytes(peer: Start) -> None:
    found = peer(lambda request: reply(request, ONE_BROKER), pieces=1, pause=0.0002)
    with found.client() as remoting:
        assert remoting.brokers() == [RocketmqBroker("a", Address("h", 1))]


def test_a_connection_serves_many_requests_and_is_opened_again_after_close(peer: Start) -> None:
    found = peer(lambda request: reply(request, NO_BROKERS))
    with found.client() as remoting:
        assert [remoting.brokers() for _ in range(3)] == [[], [], []]
        assert (found.connections, len(found.requests)) == (1, 3)
        remoting.close()
        assert remoting.brokers() == []
        assert found.connections == 2


def test_a_connection_that_the_server_has_closed_is_opened_again(peer: Start) -> None:
    found = peer(lambda request: reply(request, NO_BROKERS), one_by_one=True)
    with found.client() as remoting:
        for number in range(1, 4):
            assert remoting.brokers() == []
            assert found.connections == number
            found._ends[-1].close()  # the end of the connection has arrived here before the next request
            time.sleep(0.05)


def test_requests_of_the_server_and_replies_to_others_are_ignored(peer: Start) -> None:
    def answer(request: dict[str, Any]) -> bytes:
        notice = frame({"code": 40, "flag": 2, "opaque": request["opaque"], "extFields": {"consumerGroup": "g"}})
        late = reply({"opaque": request["opaque"] + 7}, ONE_BROKER)
        return notice + late + reply(request, NO_BROKERS) + notice

    found = peer(answer)
    with found.client() as remoting:
        assert remoting.brokers() == []
        assert remoting.brokers() == []
    assert found.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", id="HTTP"),
        pytest.param(b"AMQP\x00\x00\x09\x01", id="AMQP"),
        pytest.param(b"\x15\x03\x03\x00\x02\x02\x46", id="TLS"),
        pytest.param(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\x00\x04\x00\x40\x00\x00", id="HTTP/2"),
        pytest.param(b"\x00\x00\x00\xf0\x01ActiveMQ\x00\x00\x00", id="OpenWire"),
        pytest.param(b"ERROR\nmessage:Unknown command\n\n\0", id="STOMP"),
        pytest.param(frame({"code": 0, "flag": 1, "opaque": 1}, kind=1), id="binary header"),
        pytest.param(struct.pack(">II", LARGEST_FRAME + 1, 100), id="over 16 MiB"),
        pytest.param(struct.pack(">II", 100, 97), id="header beyond its frame"),
        pytest.param(struct.pack(">II", 0, 0), id="empty"),
        pytest.param(struct.pack(">II", 2, 1), id="shorter than its header"),
        pytest.param(frame(b"not JSON"), id="no JSON"),
        pytest.param(frame([]), id="a list"),
        pytest.param(frame({"flag": 1, "opaque": 1}), id="no code"),
        pytest.param(frame({"code": "0", "flag": 1, "opaque": 1}), id="a text for a code"),
        pytest.param(frame({"code": 0, "flag": 1, "opaque": 1, "extFields": []}), id="fields that are a list"),
        pytest.param(frame({"code": 0, "flag": 1, "opaque": 1}, b"<html>"), id="body without JSON"),
        pytest.param(frame({"code": 0, "flag": 1, "opaque": 1}, b"[1]"), id="body with a list"),
        pytest.param(frame({"code": 0, "flag": 1, "opaque": 1}, b'{"brokerAddrTable":[]}'), id="no table of brokers"),
    ],
)
def test_a_foreign_peer_is_recognised_at_once(peer: Start, answer: bytes) -> None:
    began = time.monotonic()
    with peer(lambda request: answer).client() as remoting, pytest.raises(Foreign):
        remoting.brokers()
    assert time.monotonic() - began < 5


def test_a_tls_server_is_recognised() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    def serve() -> None:
        end, _ = server.accept()
        with suppress(OSError), end:
            context.wrap_socket(end, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        address = Address("127.0.0.1", server.getsockname()[1])
        # OpenSSL answers with an alert, and closes; unread bytes can turn that into a reset.
        with Remoting((address,), None, SystemClock()) as remoting, pytest.raises((Foreign, ConnectionResetError)):
            remoting.brokers()
        thread.join()


@pytest.mark.parametrize("pause", [0.0, 0.1], ids=["silent", "a byte at a time"])
def test_a_silent_peer(peer: Start, pause: float) -> None:
    found = peer(lambda request: reply(request, NO_BROKERS) if pause else b"", pieces=1, pause=pause)
    began = time.monotonic()
    with found.client(within=0.5) as remoting, pytest.raises(Silent, match=r"request 106 within 0\.5 s"):
        remoting.brokers()
    assert 0.4 < time.monotonic() - began < 5


def test_a_request_after_a_silent_one_has_a_connection_of_its_own(peer: Start) -> None:
    answers = iter([b"", NO_BROKERS])

    def answer(request: dict[str, Any]) -> bytes:
        body = next(answers)
        return reply(request, body) if body else b""

    with peer(answer).client(within=0.3) as remoting:
        with pytest.raises(Silent):
            remoting.brokers()
        assert remoting.brokers() == []


def test_a_peer_that_closes_the_connection(peer: Start) -> None:
    with peer(lambda request: b"", one_by_one=True).client() as remoting, pytest.raises(ConnectionResetError):
        remoting.brokers()


def test_name_servers_are_asked_in_turn(peer: Start) -> None:
    (nothing,) = free_ports(1)
    foreign, good = peer(lambda request: b"HTTP/1.1 400"), peer(lambda request: reply(request, NO_BROKERS))
    servers = [Address("127.0.0.1", nothing), foreign.address, good.address]
    with Remoting(servers, None, SystemClock()) as remoting:
        assert remoting.brokers() == []
        assert remoting.brokers() == []
    assert (len(foreign.requests), len(good.requests)) == (1, 2)
    with Remoting(servers[:2], None, SystemClock()) as remoting, pytest.raises(ConnectionRefusedError):
        remoting.brokers()
    with Remoting(servers[1:2], None, SystemClock()) as remoting, pytest.raises(Foreign):
        remoting.brokers()
    with Remoting([], None, SystemClock()) as remoting, pytest.raises(ValueError, match="Expected a name server"):
        remoting.brokers()


# --- Signatures and texts ------------------------------------------------------------------------------------------------


def test_a_signature_is_that_of_rfc_2202() -> None:
    """The texts in the order of their names, and then the body, are the data of the RFC's second case."""
    fields = {"topic": " want", "b": " ya", "AccessKey": "what", "a": " do"}
    expected = "7/zfauXrL6LSdBbV8YTfnCWafHk="  # effcdf6ae5eb2fa2d27416d5f184df9c259a7c79
    assert signature(fields, b" for nothing?", "Jefe") == expected


def test_a_request_with_a_login_is_signed(peer: Start) -> None:
    found = peer(lambda request: reply(request, code=17))
    with found.client(Login("who", "seven")) as remoting:
        assert remoting.route("t") is None
    fields = found.requests[0]["extFields"]
    given_signature = fields.pop("Signature")
    assert fields == {"topic": "t", "AccessKey": "who"}
    assert given_signature == signature(fields, b"", "seven")


def test_a_request_without_a_login_is_not_signed(peer: Start) -> None:
    found = peer(lambda request: reply(request, code=17))
    with found.client() as remoting:
        remoting.route("t")
    assert found.requests[0]["extFields"] == {"topic": "t"}


@pytest.mark.parametrize(
    ("remark", "expected"),
    [
        (
            "o.a.r.AclException: Check signature failed for accessKey=who, o.a.r.Manager.validate(Manager.java:650)",
            "o.a.r.AclException: Check signature failed for accessKey=who (1)",
        ),
        ("java.util.NoSuchElementException, java.base/java.util.List.getLast(List.java:1)", "java.util.NoSuchElementException (1)"),
        ("java.lang.NullPointerException\n\tat a.b.C$D.run(C.java:1)\n\tat e.F.g(F.java:2)", "java.lang.NullPointerException (1)"),
        ("no topic\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.", "no topic (1)"),
        ("the secret seven is wrong", "the secret *** is wrong (1)"),
        ("\ud800", "? (1)"),
        ("", "a refusal without a reason (1)"),
        ("x" * 1_000_000, "x" * 199 + "… (1)"),
    ],
    ids=["place", "module", "trace", "advice", "secret", "surrogate", "empty", "long"],
)  # fmt: skip
def test_the_text_of_a_refusal(peer: Start, remark: str, expected: str) -> None:
    found = peer(lambda request: reply(request, code=1, remark=remark))
    with found.client(Login("who", "seven")) as remoting, pytest.raises(RemotingError) as refused:
        remoting.brokers()
    assert str(refused.value) == expected
    assert refused.value.code == 1


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (211, ""),
        (213, "4.0.0"),
        (407, "4.9.7"),
        (412, "5.0.0-SNAPSHOT"),
        (493, "5.4.0"),
        (495, "5.4.1"),
        (611, "5.9.9"),
    ],
)
def test_the_number_of_a_version(peer: Start, number: int, expected: str) -> None:
    """The numbers are those of `MQVersion` in 4.9.7 and 5.4.0."""
    with peer(lambda request: reply(request, version=number)).client() as remoting:
        assert remoting.version(RocketmqBroker("a", remoting._name_servers[0])) == expected


def test_a_login_hides_its_secret() -> None:
    assert "seven" not in repr(Login("who", "seven"))


# --- JSON ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a:1", -1 :"b",\n 12\t:{3:[4,5,{6:7}]}}', {"0": "a:1", "-1": "b", "12": {"3": [4, 5, {"6": 7}]}}),
        (r'{"{0:":"\",1:", 1:"\\"}', {"{0:": '",1:', "1": "\\"}),
        ("[1,2,3]", [1, 2, 3]),
        ('{"a":1}', {"a": 1}),
        ('"{0:1}"', "{0:1}"),
        ('{"a":-0.5e3,1:null}', {"a": -500.0, "1": None}),
    ],
)
def test_numbers_may_be_keys(text: str, value: object) -> None:
    assert parsed(text.encode()) == value


HOSTILE = {
    **{repr(text): text.encode() for text in ("", "{", "{0}", "{0:}", "{a:1}", "{0:1,}", '{"a":1,,}', '"\\', '"')},
    "NaN": b"NaN",
    "infinity": b"[Infinity]",
    "no UTF-8": b'"\xff"',
    "lists in lists": b"[" * 100_000,
    "tables in tables": b'{"a":' * 100_000,
    "a long number": b"9" * 5000,
    "a string without an end": b'{"' + b'\\"' * 1_000_000,
    "many strings": b'"' * 1_000_001,
    "a long key": b"{" + b"1" * 1_000_000,
    "blanks before a key": b"{" + b" " * 1_000_000,
    "blanks behind a key": b"{1" + b" " * 1_000_000,
    "many keys": b",1 " * 500_000,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_json_is_refused_at_once(data: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(Foreign):
        parsed(data)
    assert time.monotonic() - began < 5


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values, st.sampled_from([None, 2]))
def test_other_json_is_parsed_as_it_is(value: object, indent: int | None) -> None:
    assert parsed(json.dumps(value, indent=indent).encode()) == value
    assert parsed(json.dumps({"strings": repr(value)}, ensure_ascii=False).encode()) == {"strings": repr(value)}


def queues_of(**data: object) -> dict[str, object]:
    return {"queueDatas": [{"brokerName": "a", **data}]}


def broker_at(addresses: object) -> dict[str, object]:
    return {"brokerDatas": [{"brokerName": "a", "brokerAddrs": addresses}]}


@pytest.mark.parametrize(
    "body",
    [
        {"brokerDatas": {}},
        {"brokerDatas": [1]},
        *(broker_at(addresses) for addresses in (["h:1"], {"0": 1}, {"0": "h"}, {"0": ":1"}, {"0": "h:0"}, {"x": "h:1"})),
        *(broker_at(addresses) for addresses in ({"0": "h:65536"}, {"0": "h:" + "1" * 5000}, {"9" * 5000: "h:1"})),
        {"queueDatas": ["a"]},
        *(queues_of(**data) for data in ({"brokerName": 1}, {"readQueueNums": True}, {"readQueueNums": 10**9})),
    ],
    ids=str,
)  # fmt: skip
def test_hostile_routes_are_refused(peer: Start, body: object) -> None:
    with peer(lambda request: reply(request, json.dumps(body).encode())).client() as remoting, pytest.raises(Foreign):
        remoting.route("t")


def test_a_route_with_a_slave_an_unreadable_broker_and_one_without_an_address(peer: Start) -> None:
    route = {
        "brokerDatas": [
            {"brokerName": "b", "brokerAddrs": {"0": "h:1", "1": "h:2"}},
            {"brokerName": "a", "brokerAddrs": {"3": "h:4", "2": "[::1]:3"}},
            {"brokerName": "c", "brokerAddrs": {"0": "h:5"}},
            {"brokerName": "gone", "brokerAddrs": {}},
        ],
        "queueDatas": [
            {"brokerName": "b", "readQueueNums": 2, "writeQueueNums": 4, "perm": 6},
            {"brokerName": "a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 4},
            {"brokerName": "c", "readQueueNums": 1, "writeQueueNums": 1, "perm": 2},
            {"brokerName": "gone", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6},
        ],
    }
    with peer(lambda request: reply(request, json.dumps(route).encode())).client() as remoting:
        a, b = RocketmqBroker("a", Address("::1", 3)), RocketmqBroker("b", Address("h", 1))
        assert remoting.route("t") == [TopicQueue(a, 0), TopicQueue(b, 0), TopicQueue(b, 1)]


def test_a_name_server_without_brokers_makes_nothing(peer: Start) -> None:
    """Otherwise a topic would seem to be made, and a group to have no member."""
    with peer(lambda request: reply(request, NO_BROKERS)).client() as remoting:
        for ask in (
            lambda: remoting.make_topic("t"),
            lambda: remoting.make_group("g", 1),
            lambda: remoting.members("g"),
        ):
            with pytest.raises(RemotingError, match="the name server knows no broker"):
                ask()


# --- Stored messages -----------------------------------------------------------------------------------------------------


def stored(
    body: bytes = b"secret",
    *,
    flags: int = 0,
    topic: bytes = b"t",
    properties: bytes = b"UNIQ_KEY\x01ID\x02a\x01secret\x02",
    v2: bool = False,
) -> bytes:
    born = socket.inet_pton(socket.AF_INET6, "::1") if flags & 0x10 else socket.inet_aton("10.0.0.1")
    store = socket.inet_pton(socket.AF_INET6, "::2") if flags & 0x20 else socket.inet_aton("10.0.0.2")
    rest = struct.pack(">IIiiqqiq", 0xDAA320AB if v2 else 0xDAA320A7, 0, 3, 0, 7, 0x1234, flags, 1_000_500)
    rest += born + struct.pack(">i", 4711) + struct.pack(">q", 1_001_000) + store + struct.pack(">i", 10911)
    rest += struct.pack(">iqi", 2, 0, len(body)) + body
    rest += struct.pack(">H" if v2 else ">B", len(topic)) + topic + struct.pack(">H", len(properties)) + properties
    return struct.pack(">I", 4 + len(rest)) + rest


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize(("flags", "host"), [(0, "10.0.0.1:4711"), (0x30, "[::1]:4711")])
def test_a_stored_message(flags: int, host: str, *, v2: bool) -> None:
    (message,) = stored_messages(stored(b"\0 secret", flags=flags, v2=v2))
    assert (message.id, message.topic, message.queue, message.offset) == ("ID", "t", 3, 7)
    assert (message.body, message.compression) == (b"\0 secret", "")
    assert (message.born_at, message.stored_at, message.reconsume_times) == (1000.5, 1001.0, 2)
    assert message.born_host == host
    assert message.properties == {"UNIQ_KEY": "ID", "a": "secret"}
    assert "secret" not in repr(message)


def test_a_message_without_an_id_has_that_of_its_place() -> None:
    """And the time: another broker at the same address begins its store at the first place."""
    (message,) = stored_messages(stored(properties=b""))
    assert message.id == "0A000002" + "00002A9F" + "0000000000001234" + "-1001000"


def test_several_messages() -> None:
    assert [each.body for each in stored_messages(stored(b"1") + stored(b"2") + stored(b""))] == [b"1", b"2", b""]
    assert stored_messages(b"") == []


@pytest.mark.parametrize(
    ("flags", "body", "expected"),
    [
        (0x001, zlib.compress(b"plain"), (b"plain", "")),
        (0x301, zlib.compress(b"plain"), (b"plain", "")),
        (0x001, zlib.compress(b"plain")[:-6], (zlib.compress(b"plain")[:-6], "zlib")),
        (0x001, b"no zlib", (b"no zlib", "zlib")),
        (0x101, b"lz4", (b"lz4", "lz4")),
        (0x201, b"zstd", (b"zstd", "zstd")),
        (0x701, b"new", (b"new", "an unknown compression")),
        (0x300, b"plain", (b"plain", "")),
    ],
    ids=str,
)
def test_compressed_bodies(flags: int, body: bytes, expected: tuple[bytes, str]) -> None:
    (message,) = stored_messages(stored(body, flags=flags))
    assert (message.body, message.compression) == expected


def test_a_small_message_cannot_fill_the_memory() -> None:
    bomb = zlib.compress(bytes(LARGEST_BODY + 1))
    (message,) = stored_messages(stored(bomb, flags=1))
    assert (message.body, message.compression) == (bomb, "zlib")


def test_a_message_that_is_cut_off_is_refused() -> None:
    whole = stored(b"one") + stored(b"two")
    for size in range(1, len(whole)):
        if size != len(stored(b"one")):
            with pytest.raises(Foreign):
                stored_messages(whole[:size])


@given(st.data())
def test_a_damaged_message_is_refused_or_decoded(data: st.DataObject) -> None:
    damaged = bytearray(stored() + stored(flags=0x30, v2=True))
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    with suppress(Foreign):
        stored_messages(bytes(damaged))


def test_properties_as_text() -> None:
    properties = {"a": "b", "empty": "", "blank ": " ä=\n"}
    assert properties_of(text_of(properties)) == properties
    assert properties_of("a\x01b\x02broken\x02\x02c\x01d") == {"a": "b", "c": "d"}
    for bad in ({"a": "\x01"}, {"a\x02": "b"}, {"": "b"}):
        with pytest.raises(ValueError, match="Expected a property"):
            text_of(bad)
