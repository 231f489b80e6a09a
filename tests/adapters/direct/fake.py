"""
A name server and broker of RocketMQ in this process, as far as the driver for brokers asks them.

It does what 4.9.7 does with locks, places, pulls and delays; a test can cut its connections, restart it, and take a lock from a client.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
SUCCESS, NOT_SUPPORTED, NO_TOPIC, NOT_FOUND, MOVED, NO_PLACE = 0, 3, 17, 19, 21, 22


@dataclass
class Log:
    """One queue: its messages from offset `first` on."""

    messages: list[tuple[bytes, str, int, int]] = field(default_factory=list)
    """Of each one its body, its properties, when it was born in milliseconds, and its place in the broker's log."""
    first: int = 0


class FakeRocketMQ:
    """A server on a loopback port, until `close`; the first one of a cluster is its name server."""

    def __init__(self, name: str = "b") -> None:
        self.name = name
        self.cluster = [self]
        self.levels = "1s 2s 3s 4s 5s"
        self.delays: list[int] = []
        """The levels with which messages came, in turn."""
        self.locked_for = 60.0
        self.topics: dict[str, list[Log]] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.places: dict[tuple[str, str, int], int] = {}
        self.locks: dict[tuple[str, str, int], tuple[str, float]] = {}
        self.refuse: dict[int, tuple[int, str]] = {}
        self.asked: list[int] = []
        self.before: dict[int, Callable[[], None]] = {}
        """What happens at the broker just before the next request with this code."""
        self._members: dict[socket.socket, tuple[str, str]] = {}
        self._delayed: list[tuple[float, str, int, tuple[bytes, str, int]]] = []
        self.scheduled: dict[int, Log] = {}
        """The messages of each delay level, in the topic `SCHEDULE`; they stay there when they are due."""
        self.due: dict[int, int] = {}
        """The offset of the first message of each level that is not due yet."""
        self._places = count(1000)
        self._lock = threading.RLock()
        self._connections: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.port = 0
        self.perms: dict[str, int] = {}
        """The rights of this broker's part of a topic in the route (`PermName`), where they are not 6."""
        self.id = 0
        """0 for a master; else this broker is a slave whose master is away."""
        self.advertised = 0
        """The port that the name server gives for this broker, such as that of a proxy; 0 for its own."""
        self.start()

    @property
    def url(self) -> str:
        return f"rocketmq://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen; after `stop`, on the same port and with the same messages, but without locks and members."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self, *, forget: bool = True) -> None:
        """End all connections, and accept none; forget the locks, as the end of a broker does."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.cut()
        if forget:
            self.locks.clear()

    close = stop

    def cut(self) -> None:
        """End all connections."""
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def move(self) -> None:
        """End as a broker does, and begin again at another port."""
        self.stop()
        self.port = 0
        self.start()

    def remake(self, topic: str) -> None:
        """Delete a topic and make it again, as `mqadmin` does: the offsets begin at 0, and 4.9.7 keeps the places of groups."""
        with self._lock:
            self.topics[topic] = [Log() for _ in self.topics[topic]]

    def put(self, topic: str, number: int, *keys: str) -> None:
        """Store messages in one queue, as any client sends them."""
        with self._lock:
            for key in keys:
                born = int(time.time() * 1000)
                message = (b"{}", f"sw-job-key\x01{key}\x02UNIQ_KEY\x01{key}-{born}\x02", born)
                self.store(self.topics[topic][number], message)

    def members(self, group: str) -> set[str]:
        return {id_ for id_, theirs in list(self._members.values()) if theirs == group}

    def steal(self, topic: str) -> None:
        """Let another client have every lock of this topic."""
        with self._lock:
            for key in self.locks:
                if key[1] == topic:
                    self.locks[key] = ("a thief", time.monotonic())

    # ---------------------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file, suppress(OSError, struct.error):
            while head := file.read(8):
                size, header_size = struct.unpack(">II", head)
                data = file.read(size - 4)
                request = json.loads(data[:header_size])
                with self._lock:
                    self.asked.append(request["code"])
                    self._let_out()
                    self.before.pop(request["code"], lambda: None)()
                    code, fields, body = self._answer(
                        connection, request["code"], request["extFields"], data[header_size:]
                    )
                reply = json.dumps(
                    {
                        "code": code,
                        "flag": 1,
                        "opaque": request["opaque"],
                        "extFields": {name: str(value) for name, value in fields.items()},
                        "remark": self.refuse.get(request["code"], (0, ""))[1],
                    }
                ).encode()
                connection.sendall(struct.pack(">II", 4 + len(reply) + len(body), len(reply)) + reply + body)
        self._connections.discard(connection)
        self._members.pop(connection, None)

    def _let_out(self) -> None:
        """Move what is due to its queue."""
        now = time.monotonic()
        for each in [each for each in self._delayed if each[0] <= now]:
            self._delayed.remove(each)
            self.store(self.topics[each[1]][each[2]], each[3])
            level = int(_properties(each[3][1])["DELAY"])
            self.due[level] = self.due.get(level, 0) + 1

    def _answer(  # noqa: C901, PLR0911, PLR0912, PLR0915
        self, connection: socket.socket, code: int, fields: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, Any], bytes]:
        topic, group = fields.get("topic", ""), fields.get("consumerGroup", "")
        number = int(fields.get("queueId", -1))
        if code in self.refuse:
            return self.refuse[code][0], {}, b""
        match code:
            case 105:
                found = [each for each in self.cluster if topic in each.topics]
                if not found:
                    return NO_TOPIC, {}, b""
                data = [each.part(topic) for each in found]
                route = {"brokerDatas": [each.me for each in found], "queueDatas": data}
                return SUCCESS, {}, json.dumps(route).encode()
            case 106:
                return (
                    SUCCESS,
                    {},
                    json.dumps({"brokerAddrTable": {each.name: each.me for each in self.cluster}}).encode(),
                )
            case 17:
                self.topics.setdefault(topic, [Log() for _ in range(int(fields["readQueueNums"]))])
            case 200:
                settings = json.loads(body)
                self.groups[settings["groupName"]] = settings
            case 201:
                return SUCCESS, {}, json.dumps({"subscriptionGroupTable": self.groups}).encode()
            case 26:
                return SUCCESS, {}, f"messageDelayLevel={self.levels}\n".encode()
            case 28:
                return SUCCESS, {}, json.dumps({"table": {"brokerVersionDesc": "V4_9_7"}}).encode()
            case 34:
                beat = json.loads(body)
                for each in beat["consumerDataSet"]:
                    self._members[connection] = (beat["clientID"], each["groupName"])
            case 35:
                for key, (id_, _) in list(self._members.items()):
                    if id_ == fields["clientID"]:
                        del self._members[key]
            case 38:
                return SUCCESS, {}, json.dumps({"consumerIdList": sorted(self.members(group))}).encode()
            case 41 | 42:
                return SUCCESS, {}, self._locking(json.loads(body), lock=code == 41)
            case 14:
                place = self.places.get((group, topic, number))
                return (NO_PLACE, {}, b"") if place is None else (SUCCESS, {"offset": place}, b"")
            case 15:
                self.places[group, topic, number] = int(fields["commitOffset"])
            case 30 | 31:
                log = self.topics[topic][number]
                return SUCCESS, {"offset": log.first + (len(log.messages) if code == 30 else 0)}, b""
            case 11:
                return self._pull(topic, number, int(fields["queueOffset"]), int(fields["maxMsgNums"]))
            case 10 if topic not in self.topics:
                return NO_TOPIC, {}, b""
            case 10:
                message = (body, fields["properties"], int(fields["bornTimestamp"]))
                if level := int(_properties(fields["properties"]).get("DELAY", 0)):
                    self.delays.append(level)
                    due = time.monotonic() + float(self.levels.split()[level - 1][:-1])
                    self._delayed.append((due, topic, number, message))
                    real = (body, f"{fields['properties']}REAL_TOPIC\x01{topic}\x02", message[2])
                    self.store(self.scheduled.setdefault(level, Log()), real)
                else:
                    self.store(self.topics[topic][number], message)
                return SUCCESS, {"msgId": "0", "queueId": number, "queueOffset": 0}, b""
            case 45:
                offsets = ",".join(f"{level}:{offset}" for level, offset in self.due.items())
                return SUCCESS, {}, f'{{"offsetTable":{{{offsets}}}}}'.encode()
            case 202:
                return SUCCESS, {}, self._scheduled_offsets()
            case 208:
                return SUCCESS, {}, self._statistics(group, topic)
            case 351:
                return NOT_SUPPORTED, {}, b""
            case _:
                raise AssertionError(f"expected a request that the driver sends, got {code}")
        return SUCCESS, {}, b""

    def part(self, topic: str) -> dict[str, Any]:
        count = len(self.topics[topic])
        perm = self.perms.get(topic, 6)
        return {"brokerName": self.name, "perm": perm, "readQueueNums": count, "writeQueueNums": count}

    @property
    def me(self) -> dict[str, Any]:
        return {"brokerName": self.name, "brokerAddrs": {str(self.id): f"127.0.0.1:{self.advertised or self.port}"}}

    def _locking(self, request: dict[str, Any], *, lock: bool) -> bytes:
        now, locked = time.monotonic(), []
        for queue in request["mqSet"]:
            key = (request["consumerGroup"], queue["topic"], queue["queueId"])
            owner, at = self.locks.get(key, ("", 0.0))
            free = not owner or owner == request["clientId"] or now - at > self.locked_for
            if lock and free:
                self.locks[key] = (request["clientId"], now)
                locked.append(queue)
            elif not lock and owner == request["clientId"]:
                del self.locks[key]
        return json.dumps({"lockOKMQSet": locked}).encode()

    def store(self, log: Log, message: tuple[bytes, str, int]) -> None:
        """Put a message at the end of a queue, and of the broker's log."""
        log.messages.append((*message, next(self._places)))

    def _pull(self, topic: str, number: int, offset: int, most: int) -> tuple[int, dict[str, Any], bytes]:
        log = self.scheduled[number + 1] if topic == SCHEDULE else self.topics[topic][number]
        end = log.first + len(log.messages)
        if not log.first <= offset <= end:
            return MOVED, {"nextBeginOffset": log.first if offset < log.first else end}, b""
        found = log.messages[offset - log.first : offset - log.first + most]
        if not found:
            return NOT_FOUND, {"nextBeginOffset": offset}, b""
        raw = b"".join(_stored(topic, number, offset + n, *message) for n, message in enumerate(found))
        return SUCCESS, {"nextBeginOffset": offset + len(found)}, raw

    def _scheduled_offsets(self) -> bytes:
        """The first offset and the end of each level."""
        parts = []
        for level, log in self.scheduled.items():
            key = json.dumps({"brokerName": self.name, "queueId": level - 1, "topic": SCHEDULE})
            parts.append(f"{key}:{json.dumps({'maxOffset': len(log.messages), 'minOffset': log.first})}")
        return f'{{"offsetTable":{{{",".join(parts)}}}}}'.encode()

    def _statistics(self, group: str, topic: str) -> bytes:
        """Without a topic, the statistics of every topic from which the group has consumed."""
        consumed = sorted({named for member, named, _ in self.places if member == group})
        parts = []
        for name in [topic] if topic else consumed:
            for number, log in enumerate(self.topics.get(name, [])):
                key = json.dumps({"brokerName": self.name, "queueId": number, "topic": name})
                place = self.places.get((group, name, number), 0)
                end = log.first + len(log.messages)
                last = log.messages[place - 1 - log.first][2] if log.first < place <= end else 0
                offsets = json.dumps({"brokerOffset": end, "consumerOffset": place, "lastTimestamp": last})
                parts.append(f"{key}:{offsets}")
        return f'{{"consumeTps":0.0,"offsetTable":{{{",".join(parts)}}}}}'.encode()


def _properties(text: str) -> dict[str, str]:
    return dict(pair.split("\x01") for pair in text.split("\x02") if pair)


def _stored(topic: str, number: int, offset: int, body: bytes, properties: str, born: int, place: int) -> bytes:
    """A message as a broker stores it."""
    host = socket.inet_aton("127.0.0.1") + struct.pack(">i", 10911)
    name, pairs = topic.encode(), properties.encode()
    rest = struct.pack(">Iiiqqiq", 0, number, 0, offset, place, 0, born)
    rest += host + struct.pack(">q", born) + host + struct.pack(">iq", 0, 0)
    rest += struct.pack(">i", len(body)) + body + bytes([len(name)]) + name + struct.pack(">H", len(pairs)) + pairs
    return struct.pack(">II", 8 + len(rest), 0xDAA320A7) + rest


@contextmanager
def fake_rocketmq() -> Iterator[FakeRocketMQ]:
    server = FakeRocketMQ()
    try:
        yield server
    finally:
        server.close()
