"""
The frames of RocketMQ's remoting protocol, and a connection that sends and receives them.

A frame has four parts, and all numbers are big-endian:

| bytes | part |
|---|---|
| 4 | the length of the rest of the frame |
| 4 | the first byte is the header's serialization type (0 is JSON), the other three are the header's length |
| | the header: code, number of the request, flag (bit 0 marks a reply), remark, fields (texts) |
| | the body |

A server replies in the serialization type of the request (`RemotingCommand`).

The signature is an HMAC-SHA1 over the texts of all fields, in the order of their names, and the body (`AclUtils`).

Servers write JSON with fastjson, which writes numbers as keys without quotes: `{0:"127.0.0.1:10911"}`.
"""

from __future__ import annotations

import base64
import errno
import hmac
import json
import re
import socket
import struct
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from steadyworker.adapter import Clock
from steadyworker.network.errors import Foreign
from steadyworker.network.url import Address

LARGEST_FRAME = 1 << 24
"""The largest frame in bytes: the default limit of RocketMQ's own servers and clients (`com.rocketmq.remoting.frameMaxLength`)."""

_FRAME_WITHIN = 10.0
"""The limit in seconds for the rest of a frame that has begun."""

_JSON, _IS_REPLY = 0, 1
_WORDS, _INT = struct.Struct(">II"), struct.Struct(">I")

_TOKENS = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|(?<=[{,])(\s*+)(-?\d++)(?=\s*+:)',
    re.DOTALL,
)
"""Matches a string, even a string without an end, or a number as a key; `*+` and `++` keep the time linear for any input."""

Kind = TypeVar("Kind", dict[str, Any], list[Any], str, int)


@dataclass(frozen=True, slots=True)
class RemotingReply:
    """A reply: the code, the number of the server's version (`MQVersion`), the remark, the fields and the body."""

    code: int
    version: int
    remark: str
    fields: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def table(self) -> dict[str, Any]:
        """Return the body as a table; raises Foreign if the body is not a table in JSON."""
        return of_kind(parsed(self.body), dict, "a table")

    def number(self, name: str) -> int:
        """Return a field as a number; raises Foreign if the field is not a number."""
        text = self.fields.get(name, "")
        if re.fullmatch(r"-?[0-9]{1,19}", text) is None:
            raise Foreign(f"a reply without a number in {name}")
        return int(text)


def framed(code: int, number: int, fields: Mapping[str, str], body: bytes) -> bytes:
    """Return the frame of a request."""
    header = {
        "code": code,
        "language": "PYTHON",
        "version": 0,
        "opaque": number,
        "flag": 0,
        "extFields": fields,
        "serializeTypeCurrentRPC": "JSON",
    }
    data = json.dumps(header).encode()
    return _WORDS.pack(_INT.size + len(data) + len(body), len(data)) + data + body


def signature(fields: Mapping[str, str], body: bytes, password: str) -> str:
    """Return the signature of a request. The fields must include `AccessKey`."""
    content = "".join(fields[name] for name in sorted(fields)).encode() + body
    return base64.b64encode(hmac.digest(password.encode(), content, "sha1")).decode()


class RemotingConnection:
    """
    A connection to one server. The methods raise OSError and Foreign, and TimeoutError at the deadline.

    Args:
        address: The server.
        deadline: The end of the time to connect, on the clock.
        clock: The clock.
        on_request: Called with each request of the server, which is passed as a `RemotingReply`. By default, such requests are ignored.
    """

    def __init__(
        self,
        address: Address,
        deadline: float,
        clock: Clock,
        on_request: Callable[[RemotingReply], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._on_request = on_request
        self.answered = 0
        """The number of the last request that has a reply."""
        self._socket = socket.create_connection((address.host, address.port), self._left(deadline))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def is_closed(self) -> bool:
        """Return whether the server has closed the connection. A server closes a connection that was idle for two minutes."""
        self._socket.settimeout(0)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def ask(self, number: int, frame: bytes, deadline: float) -> RemotingReply:
        """Send the request with this number, and return the reply."""
        self._socket.settimeout(self._left(deadline))
        self._socket.sendall(frame)
        while True:
            found, reply = self._read(deadline)
            if found == number:
                self.answered = number
                return reply

    def serve(self, until: float) -> None:
        """Wait for requests of the server until this time on the clock."""
        while (left := until - self._clock.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                self._socket.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                return
            self._read(self._clock.monotonic() + _FRAME_WITHIN)

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._socket.close()

    def _read(self, deadline: float) -> tuple[int, RemotingReply]:
        """Read one frame. Return the reply with the number of its request, which is -1 if the frame replies to no request."""
        (size,) = _INT.unpack(self._receive(_INT.size, deadline))
        # Some foreign peers send less than two words, and then nothing.
        (header_size,) = _INT.unpack(self._receive(_INT.size, deadline)) if size <= LARGEST_FRAME else (0,)
        if header_size >> 24 != _JSON or not 0 < header_size <= size - _INT.size:
            raise Foreign("a reply that is not RocketMQ's remoting protocol, or is over 16 MiB")
        data = self._receive(size - _INT.size, deadline)
        header = of_kind(parsed(data[:header_size]), dict, "a header")
        code, number = of_kind(header.get("code"), int, "a code"), of_kind(header.get("opaque"), int, "a number")
        texts = {name: text for name, text in part(header, "extFields", dict).items() if isinstance(text, str)}
        reply = RemotingReply(
            code, part(header, "version", int), part(header, "remark", str), texts, data[header_size:]
        )
        if part(header, "flag", int) & _IS_REPLY:
            return number, reply
        self._on_request(reply)
        return -1, reply

    def _receive(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(self._left(deadline))
            more = self._socket.recv(min(size - len(data), 1 << 16))
            if not more:
                raise ConnectionResetError(errno.ECONNRESET, "the other side closed the connection without a reply")
            data += more
        return bytes(data)

    def _left(self, deadline: float) -> float:
        left = deadline - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


# --- JSON ----------------------------------------------------------------------------------------------------------------


def parsed(data: bytes) -> object:
    """Parse JSON in which numbers may be keys; raises Foreign if the data is something else."""

    def quoted(match: re.Match[str]) -> str:
        return match[0] if match[2] is None else f'{match[1]}"{match[2]}"'

    try:
        found: object = json.loads(_TOKENS.sub(quoted, data.decode()), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Foreign("a reply that is not JSON") from error
    return found


def of_kind(value: object, kind: type[Kind], what: str) -> Kind:
    """Return the value; raises Foreign if the value is not of this kind."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Foreign(f"a reply without {what} in the right place")
    return value


def part(table: Mapping[str, Any], name: str, kind: type[Kind]) -> Kind:
    """Return a part of a table; if it is missing, return an empty part, because fastjson leaves out parts that are null."""
    value = table.get(name)
    return kind() if value is None else of_kind(value, kind, name)


def addresses_of(brokers: Collection[object]) -> dict[str, dict[int, Address]]:
    """Return the addresses of each broker by number, where 0 is the master."""
    found: dict[str, dict[int, Address]] = {}
    for each in brokers:
        data = of_kind(each, dict, "a broker")
        addresses = part(data, "brokerAddrs", dict)
        if addresses:
            found[part(data, "brokerName", str)] = {_number(id_): _address(text) for id_, text in addresses.items()}
    return found


def _number(text: str) -> int:
    if re.fullmatch("[0-9]{1,19}", text) is None:
        raise Foreign("a reply in which a broker's number is not a number")
    return int(text)


def _address(text: object) -> Address:
    host, _, port = of_kind(text, str, "an address").rpartition(":")
    if not host or re.fullmatch("[0-9]{1,5}", port) is None or not 0 < int(port) < 1 << 16:
        raise Foreign("a reply in which a broker's address is not an address")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def _refuse(constant: str) -> None:
    raise ValueError(constant)
