"""The conversation of a STOMP connection; it makes events and flags from the frames of both sides."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Final

from steadyworker.diagnosis.frames import Flaw, Heartbeat, Item, StompFrame
from steadyworker.diagnosis.line import Line, spelled
from steadyworker.diagnosis.protocols import STOMP_COMMANDS
from steadyworker.diagnosis.stomp import StompReader
from steadyworker.diagnosis.tags import AckResult, Tags
from steadyworker.diagnosis.tap import Side
from steadyworker.diagnosis.wire import shortened, text

_SHOWN = (
    *("accept-version", "version", "server", "heart-beat", "client-id", "host", "destination", "id", "subscription"),
    *("message-id", "ack", "receipt", "receipt-id", "transaction", "content-type", "content-length", "redelivered"),
    *("message", "persistent", "durable-subscription-name", "activemq.prefetchSize", "prefetch-count", "selector"),
    *("reply-to", "correlation-id", "expires", "priority"),
)
"""The headers that events show; all other headers belong to an application, or are secret."""

_FLAWS = {
    "http": "stomp.http-on-port",
    "tls": "stomp.tls-on-port",
    "frame-too-large": "stomp.frame-too-large",
    "bad-escape": "stomp.undefined-escape",
}
_SPELLED = {"http", "tls", "amqp", "amqp-1.0"}
_ID_IN_USE = re.compile(r"[Cc]lient:? (?P<id>.*?) already connected from (?P<where>\S+)|InvalidClientID")
_CONNECTS = {"CONNECT", "STOMP"}
_IDS = {"correlation-id"}  # of an application; a broker gives `message-id`
_MOST_MESSAGES = 20_000
_TOGETHER = 0.05  # seconds; a line end that comes later is a heartbeat
_LOGIN = re.compile(
    r"(?i)passw|credential|authenti|authoriz|login|access refused|security|bad connect|user name|denied"
)
_NEXT_FRAME = re.compile(rb"\0[\r\n]*(?:" + "|".join(STOMP_COMMANDS).encode() + rb")\r?\n")


@dataclass(slots=True)
class TracedSubscription:
    """A subscription, and its messages: `numbers` has the number of each by the id that its ACK must name."""

    ack: str
    numbers: dict[str, int] = field(default_factory=dict)
    tags: Tags = field(default_factory=Tags)


class StompConversation:
    """The state of one connection, which the frames of both sides change."""

    family: Final = "stomp"

    def __init__(self, line: Line, client_ids: MutableMapping[str, Line]) -> None:
        self._line = line
        self._client_ids = client_ids
        self.readers = {Side.CLIENT: StompReader(), Side.BROKER: StompReader()}
        self._sure = True
        self._asked = (0.0, 0.0)  # the client's header heart-beat, in seconds
        self._ends: dict[Side, tuple[int, float]] = dict.fromkeys(
            Side, (-1, 0.0)
        )  # where and when the last frame ended; a line end may follow
        self._subscriptions: dict[str, TracedSubscription] = {}
        self._begun = False
        self._connected = False

    def missed(self, side: Side) -> None:
        """Note that bytes of a side were not read, and begin to read its next bytes."""
        self._sure = False
        version = self.readers[side].version
        self.readers[side] = StompReader()
        self.readers[side].version = version

    def forget(self) -> None:
        """Note that the connection is closed, so its client id is free."""
        for client_id in [each for each, line in self._client_ids.items() if line is self._line]:
            del self._client_ids[client_id]

    def receive(self, t: float, side: Side, item: Item, recent: Callable[[int], bytes]) -> None:
        """Receive the next item of a side."""
        match item:
            case StompFrame():
                self._frame(t, side, item)
                self._ends[side] = (item.offset + item.size, t)
            case Heartbeat():
                self._heartbeat(t, side, item)
            case Flaw():
                self._flaw(t, side, item, recent(item.offset))

    # --- Frames ----------------------------------------------------------------------------------------------------------

    def _frame(self, t: float, side: Side, frame: StompFrame) -> None:
        headers = {
            name: (shortened if name in _IDS else text)(frame.headers[name]) for name in _SHOWN if name in frame.headers
        }
        self._line.frame(
            t,
            side,
            "frame",
            name=frame.command,
            size=frame.size,
            body_size=frame.body_size or None,
            headers=headers or None,
        )
        if frame.command not in STOMP_COMMANDS and side is Side.CLIENT:
            what = f"The client sent the command {frame.command}, which STOMP does not have."
            self._line.flag(t, "stomp.unknown-command", what)
        elif self._sure and not self._begun and side is Side.CLIENT and frame.command not in _CONNECTS:
            what = f"The client began with {frame.command} instead of CONNECT."
            self._line.flag(t, "stomp.no-connect", what)
        self._begun |= side is Side.CLIENT
        match side, frame.command:
            case Side.CLIENT, "CONNECT" | "STOMP":
                self._connect(t, frame)
            case Side.BROKER, "CONNECTED":
                self._tuned(t, frame)
            case Side.CLIENT, "SUBSCRIBE":
                self._subscribe(t, frame)
            case Side.CLIENT, "UNSUBSCRIBE":
                self._unsubscribe(t, frame)
            case Side.BROKER, "MESSAGE":
                self._message(frame)
            case Side.CLIENT, "ACK" | "NACK":
                self._ack(t, frame)
            case Side.BROKER, "ERROR":
                self._error(t, frame)

    def _connect(self, t: float, frame: StompFrame) -> None:
        if self._connected:
            what = f"The client sent {frame.command} a second time on this connection."
            self._line.flag(t, "stomp.second-connect", what)
        self._asked = _beats(frame.headers)
        if client_id := frame.headers.get("client-id"):
            self._client_id(client_id)

    def _client_id(self, client_id: str) -> None:
        holder = self._client_ids.get(client_id)
        if holder is None or holder.closed_by is not None:
            self._client_ids[client_id] = self._line

    def _heartbeat(self, t: float, side: Side, item: Heartbeat) -> None:
        end, at = self._ends[side]
        if item.offset == end and item.size == 1 and t - at < _TOGETHER:
            return  # brokers write a line end after each frame
        self._line.frame(t, side, "heartbeat", size=item.size)

    def _tuned(self, t: float, frame: StompFrame) -> None:
        version = frame.headers.get("version", "1.0")
        for reader in self.readers.values():
            reader.version = version
        sends, wants = self._asked
        broker_sends, broker_wants = _beats(frame.headers)
        of_client = max(sends, broker_wants) if sends and broker_wants else 0.0
        of_broker = max(broker_sends, wants) if broker_sends and wants else 0.0
        self._connected = True
        self._line.event(
            t, None, "tuned", heartbeat_client=of_client, heartbeat_broker=of_broker, version=text(version)
        )
        self._line.silences[Side.CLIENT].agree(of_client, t)
        self._line.silences[Side.BROKER].agree(of_broker, t)

    # --- Subscriptions ---------------------------------------------------------------------------------------------------

    def _subscribe(self, t: float, frame: StompFrame) -> None:
        destination = frame.headers.get("destination", "")
        name = frame.headers.get("id", destination)
        if self._sure and name in self._subscriptions:
            what = f"The client subscribed to {text(destination)} with the id {text(name)!r}, which another subscription of this connection has."
            self._line.flag(t, "stomp.duplicate-subscription", what, [{"subscription": text(name)}])
        self._subscriptions[name] = TracedSubscription(frame.headers.get("ack", "auto"))

    def _unsubscribe(self, t: float, frame: StompFrame) -> None:
        name = frame.headers.get("id", frame.headers.get("destination", ""))
        if self._subscriptions.pop(name, None) is None:
            self._unknown(t, frame.command, name)

    def _message(self, frame: StompFrame) -> None:
        subscription = self._subscriptions.get(frame.headers.get("subscription", ""))
        if subscription is None or subscription.ack == "auto":
            return
        name = frame.headers.get("ack", frame.headers.get("message-id", ""))
        subscription.numbers[name] = number = subscription.tags.highest + 1
        subscription.tags.delivered(number, needs_ack=True)
        if len(subscription.numbers) > _MOST_MESSAGES:
            del subscription.numbers[next(iter(subscription.numbers))]

    def _ack(self, t: float, frame: StompFrame) -> None:
        named = frame.headers.get("subscription")
        if self._sure and named is not None and named not in self._subscriptions:
            self._unknown(t, frame.command, named)
            return
        name = frame.headers.get("id", frame.headers.get("message-id", ""))
        of = (each for key, each in self._subscriptions.items() if named in {None, key})
        subscription = next((each for each in of if name in each.numbers), None)
        if subscription is None:
            return
        settled = subscription.tags.settle(subscription.numbers[name], multiple=subscription.ack == "client")
        if settled is AckResult.BEFORE and self._sure and "transaction" not in frame.headers:  # ABORT undoes the first
            what = f"The client sent {frame.command} for the message {text(name)} a second time."
            self._line.flag(t, "stomp.double-ack", what, [{"frame": frame.command, "message": text(name)}])

    def _unknown(self, t: float, command: str, name: str) -> None:
        if self._sure:
            known = ", ".join(map(text, list(self._subscriptions)[:8])) or "none"
            what = (
                f"The client sent {command} for the subscription {text(name)!r}, which this connection does not have."
            )
            self._line.flag(t, "stomp.unknown-subscription", what, [{"subscription": text(name), "known": known}])

    # --- Errors ----------------------------------------------------------------------------------------------------------

    def _error(self, t: float, frame: StompFrame) -> None:
        reason = text(frame.headers.get("message", "without a message"))
        found = _ID_IN_USE.search(reason)
        if not found:
            if not self._connected and _LOGIN.search(reason):
                self._line.flag(t, "stomp.login-refused", f"The broker refused the login, and sent ERROR: {reason}")
            else:
                self._line.flag(t, "stomp.error-frame", f"The broker sent ERROR: {reason}", unless_flagged=True)
            return
        client_id = found["id"] or ""
        holder = self._client_ids.get(client_id)
        rows: list[dict[str, object]] = [{"client id": client_id, "held by": found["where"] or "unknown"}]
        by = f"a connection from {found['where']}" if found["where"] else "another connection"
        if holder is not None and holder is not self._line:
            silent = t - holder.silences[Side.CLIENT].last
            rows[0]["connection"] = holder.number
            rows[0]["silent for"] = f"{silent:.1f} s"
            by = f"connection {holder.number} of this trace ({holder.client_address}), silent for {silent:.1f} s,"
        what = f"The broker refused the client id {client_id!r}: {by} still holds it."
        self._line.flag(t, "stomp.client-id-taken", what, rows)

    def _flaw(self, t: float, side: Side, flaw: Flaw, data: bytes) -> None:
        what = f"From the {side.label}: {text(flaw.what)} (byte {flaw.offset} of its direction)."
        if flaw.kind == "bad-frame" and "a command " in flaw.what:
            return  # the frame follows this flaw, and is flagged itself
        swallowed = flaw.kind == "cut" and "in its body" in flaw.what and _NEXT_FRAME.search(data)
        if flaw.kind == "frame-end" or swallowed or (flaw.kind == "bad-frame" and "content-length" in flaw.what):
            where = ", and another frame begins inside of this body" if swallowed else ""
            what = f"The {side.label} sent a wrong content-length: {text(flaw.what)}{where} (byte {flaw.offset} of its direction)."
            self._line.flag(t, "stomp.content-length", what)
            return
        if flaw.kind == "cut":
            self._line.flag(t, "stomp.frame-cut", self._line.cut(side, text(flaw.what)))
            return
        flag = _FLAWS.get(flaw.kind, "trace.unparsable")
        if side is Side.BROKER and flaw.kind == "tls":
            flag = "stomp.plain-on-tls-port"
            what = "The client sent STOMP without TLS, and the broker answered with TLS: it expects TLS on this port."
        if side is Side.BROKER and flaw.kind.startswith("amqp"):
            flag = "amqp.stomp-on-port"
            what = "The client speaks STOMP, and the broker answered with a protocol header of AMQP."
        evidence = spelled(flaw.raw) if flaw.kind in _SPELLED else ()
        self._line.flag(t, flag, what, evidence, unless_flagged=flag == "trace.unparsable")


def _beats(headers: Mapping[str, str]) -> tuple[float, float]:
    """Return the header heart-beat in seconds: the interval that the sender offers, and the interval it requests."""
    parts = [part.strip(" \t") for part in headers.get("heart-beat", "0,0").split(",")]
    numbers = [int(part) / 1000 if part.isascii() and part.isdigit() and len(part) < 16 else 0.0 for part in parts]  # noqa: PLR2004 - no such time
    return (numbers[0], numbers[1]) if len(numbers) > 1 else (0.0, 0.0)
