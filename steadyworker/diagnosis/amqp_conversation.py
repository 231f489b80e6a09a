"""The conversation of an AMQP 0-9-1 connection; it makes events and flags from the frames of both sides."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from steadyworker.diagnosis.amqp import AmqpReader
from steadyworker.diagnosis.amqp_channel import Channel, ChannelState, PartialMessage
from steadyworker.diagnosis.amqp_flaws import ends_with_channel, judge
from steadyworker.diagnosis.frames import BodyFrame, ContentHeader, Flaw, Heartbeat, Item, Method, ProtocolHeader
from steadyworker.diagnosis.line import Line, spelled
from steadyworker.diagnosis.protocols import spell
from steadyworker.diagnosis.tags import AckResult
from steadyworker.diagnosis.tap import Side
from steadyworker.diagnosis.wire import shortened, text

_SETTLES = {"Basic.Ack", "Basic.Nack", "Basic.Reject"}
_ANSWERS_CLOSE = {"Channel.Close", "Channel.CloseOk"}
_HIDDEN = {"response", "challenge", "new_secret", "ticket", "capabilities", "out_of_band", "insist", "known_hosts"}
_PEER = ("product", "version", "platform", "connection_name", "cluster_name")
_PROPERTIES = (*("delivery_mode", "content_type", "priority", "expiration", "reply_to", "message_type", "app_id"),)
_IDS = ("message_id", "correlation_id")
_COUNTS = ("x-delivery-count", "x-acquired-count")
_MOST_ENTRIES = 16
_LONGEST_KNOWN = 64
_MOST_KNOWN = 2_000
_FRAME_ERROR = re.compile(
    r"type (?P<type>\d+), all octets = <<.*>>:\s*(?:\{(?P<why>\w+),\s*(?P<size>\d+)|unknown_frame)", re.DOTALL
)
_CODES: Mapping[int, str] = {
    320: "amqp.connection-forced",
    504: "amqp.dead-channel",
    505: "amqp.interleaved-frames",
    541: "rabbitmq.internal-error",
}
_REFUSED, _FRAME_ERROR_CODE = 403, 501
_NEARLY = 0.95
_SLACK = 0.25  # seconds for a delivery to arrive here on a busy machine; the broker's time limit already runs


class AmqpConversation:
    """The state of one connection, which the frames of both sides change."""

    family: Final = "amqp"

    def __init__(self, line: Line) -> None:
        self._line = line
        self.readers = {Side.CLIENT: AmqpReader(opening=True), Side.BROKER: AmqpReader(opening=False)}
        self._channels: dict[int, Channel] = {}
        self._sure = True
        self._missed: set[Side] = set()  # sides with unread bytes, until a whole message has come
        self._text = lru_cache(_MOST_KNOWN)(text)
        self._proposed: dict[str, int] = {}
        self._closing: Side | None = None
        self._logged_in: bool | None = None  # False between the login and the broker's reply
        self.blocked = ""
        """The broker's reason to stop reading from the client; empty if the broker reads."""
        self._methods: dict[tuple[Side, str], Callable[[float, Channel, Mapping[str, Any]], object]] = {
            (Side.CLIENT, "Connection.StartOk"): self._login,
            (Side.BROKER, "Connection.Tune"): self._tune,
            (Side.CLIENT, "Connection.TuneOk"): self._tune_ok,
            (Side.CLIENT, "Connection.Close"): self._client_closes,
            (Side.BROKER, "Connection.Close"): self._broker_closes,
            (Side.BROKER, "Connection.Blocked"): self._is_blocked,
            (Side.BROKER, "Connection.Unblocked"): self._is_unblocked,
            (Side.CLIENT, "Channel.Open"): self._open,
            (Side.CLIENT, "Channel.Close"): lambda t, channel, _: self._closes(t, channel, Side.CLIENT),
            (Side.BROKER, "Channel.Close"): self._broker_closes_channel,
            (Side.CLIENT, "Channel.CloseOk"): lambda _, channel, __: channel.end(),
            (Side.BROKER, "Channel.CloseOk"): lambda _, channel, __: channel.end(),
            (Side.CLIENT, "Tx.Select"): self._transacted,
            (Side.CLIENT, "Basic.Qos"): self._qos,
            (Side.CLIENT, "Basic.Consume"): lambda _, channel, fields: channel.consume(fields),
            (Side.BROKER, "Basic.ConsumeOk"): lambda _, channel, fields: channel.consumes(
                fields.get("consumer_tag", "")
            ),
            (Side.BROKER, "Basic.Cancel"): self._broker_cancels,
            (Side.BROKER, "Basic.CancelOk"): lambda _, channel, fields: channel.consumers.pop(
                fields.get("consumer_tag", ""), None
            ),
            (Side.BROKER, "Basic.Deliver"): self._delivered,
            (Side.CLIENT, "Basic.Get"): lambda _, channel, fields: channel.gets.append(bool(fields.get("no_ack"))),
            (Side.BROKER, "Basic.GetOk"): lambda t, channel, fields: channel.got(t, fields.get("delivery_tag", 0)),
            (Side.BROKER, "Basic.GetEmpty"): lambda _, channel, __: channel.gets and channel.gets.popleft(),
            (Side.CLIENT, "Basic.Ack"): self._ack,
            (Side.CLIENT, "Basic.Nack"): self._ack,
            (Side.CLIENT, "Basic.Reject"): self._ack,
            (Side.BROKER, "Basic.RecoverOk"): lambda _, channel, __: channel.tags.requeued(),
        }

    def missed(self, side: Side) -> None:
        """Note that bytes of a side were not read, and begin to read its next bytes."""
        self._sure = False
        self._missed.add(side)
        for channel in self._channels.values():
            channel.sure = False
            channel.messages.pop(side, None)
        self.readers[side] = AmqpReader(frame_max=self.readers[side].frame_max, opening=False)

    def receive(self, t: float, side: Side, item: Item, recent: Callable[[int], bytes]) -> None:
        """Receive the next item of a side; `recent` returns the side's last bytes from an offset on."""
        match item:
            case Method():
                self._method(t, side, item)
            case BodyFrame():
                self._body(t, side, item)
            case ContentHeader():
                self._content(t, side, item)
            case Heartbeat():
                self._line.frame(t, side, "heartbeat", size=item.size)
            case ProtocolHeader():
                self._header(t, side, item)
            case Flaw() if item.kind == "interleaved" and (side in self._missed or ends_with_channel(item)):
                pass  # the message began in bytes that were not read, or ended when its channel was closed
            case Flaw():
                judge(self._line, t, side, item, recent, self.readers[side])

    # --- Frames ----------------------------------------------------------------------------------------------------------

    def _header(self, t: float, side: Side, item: ProtocolHeader) -> None:
        version = ".".join(str(octet) for octet in item.raw[4:]).removeprefix("0.").replace(".", "-")
        second = item.second or None
        self._line.frame(t, side, "header", name=f"AMQP {version}", size=item.size, second=second)
        if item.second and side is Side.CLIENT:
            what = f"The client sent a second protocol header, {item.offset} bytes behind the first: it connects again over a connection that is open."
            self._line.flag(t, "amqp.second-header", what, spelled(item.raw))
        elif side is Side.BROKER:
            what = f"The broker answered with the protocol header AMQP {version}: it did not accept the client's, and closes."
            self._line.flag(t, "amqp.wrong-version", what, spelled(item.raw), unless_flagged=True)

    def _method(self, t: float, side: Side, item: Method) -> None:
        name, channel = item.name, self._channels.get(item.channel)
        self._line.frame(t, side, "method", name=name, channel=item.channel, size=item.size, **self._shown(item.fields))
        if side in self._missed and name in {"Basic.Publish", "Basic.Deliver"}:
            self._missed.discard(side)
        if item.channel and side is Side.CLIENT and not self._usable(t, channel, item):
            return
        if channel is None:
            channel = self._channels[item.channel] = Channel(item.channel, sure=self._sure)
        if react := self._methods.get((side, name)):
            react(t, channel, item.fields)

    def _content(self, t: float, side: Side, item: ContentHeader) -> None:
        properties = {name: self._value(item.properties[name]) for name in _PROPERTIES if name in item.properties}
        properties |= {name: shortened(item.properties[name]) for name in _IDS if name in item.properties}
        headers = item.properties.get("headers")
        if isinstance(headers, Mapping):
            properties.update({name: headers[name] for name in _COUNTS if isinstance(headers.get(name), int)})
        self._line.frame(
            t,
            side,
            "content",
            channel=item.channel,
            size=item.size,
            body_size=item.body_size,
            properties=properties or None,
        )
        if channel := self._channels.get(item.channel):
            channel.messages[side] = PartialMessage(item.body_size)

    def _body(self, t: float, side: Side, item: BodyFrame) -> None:
        channel = self._channels.get(item.channel)
        message = channel and channel.messages.get(side)
        if not channel or not message:
            self._line.frame(t, side, "body", channel=item.channel, size=item.size)
            return
        self._line.count(side)
        message.left -= item.length
        message.size += item.size
        message.frames += 1
        if message.left <= 0:
            frames = message.frames if message.frames > 1 else None
            self._line.event(t, side, "body", channel=item.channel, size=message.size, frames=frames)
            del channel.messages[side]

    def _shown(self, fields: Mapping[str, object]) -> dict[str, object]:
        shown: dict[str, object] = {}
        for key, value in fields.items():
            if value and key not in _HIDDEN:
                if key in {"client_properties", "server_properties"} and isinstance(value, Mapping):
                    value = {each: value[each] for each in _PEER if each in value}  # noqa: PLW2901 - the rest may hold secrets
                shown[key.removesuffix("_") if key == "global_" else key] = self._value(value)
        return shown

    def _value(self, value: object, depth: int = 0) -> object:
        """Return a value in the form for JSON; texts are without secrets."""
        if isinstance(value, (bool, int)):
            return value
        if isinstance(value, str):
            return self._text(value) if len(value) <= _LONGEST_KNOWN else text(value)
        if isinstance(value, Mapping) and not depth:
            return {text(key): self._value(each, 1) for key, each in list(value.items())[:_MOST_ENTRIES]}
        return text(value)

    # --- The connection --------------------------------------------------------------------------------------------------

    def _login(self, _: float, __: Channel, ___: Mapping[str, Any]) -> None:
        self._logged_in = False

    def closed(self, t: float) -> None:
        """Flag a broker that closes after the login without a reply, as for a client that cannot read `Connection.Close`."""
        if self._logged_in is False and self._closing is None and self._line.closed_by is Side.BROKER:
            what = "The broker closed the connection after the client's login, without a reply: it refused the login."
            self._line.flag(t, "rabbitmq.login-refused", what, unless_flagged=True)

    def _tune(self, _: float, __: Channel, fields: Mapping[str, Any]) -> None:
        self._logged_in = True
        self._proposed = dict(fields)

    def _tune_ok(self, t: float, _: Channel, fields: Mapping[str, Any]) -> None:
        heartbeat = fields.get("heartbeat", 0)
        frame_max = fields.get("frame_max", 0)
        for reader in self.readers.values():
            reader.frame_max = frame_max
        self._line.event(
            t,
            None,
            "tuned",
            heartbeat=heartbeat,
            proposed=self._proposed.get("heartbeat"),
            channel_max=fields.get("channel_max", 0),
            frame_max=frame_max,
        )
        for silence in self._line.silences.values():
            silence.agree(heartbeat, t)

    def _client_closes(self, _: float, __: Channel, ___: Mapping[str, Any]) -> None:
        self._closing = Side.CLIENT

    def _broker_closes(self, t: float, _: Channel, fields: Mapping[str, Any]) -> None:
        self._closing = Side.BROKER
        code, reason = fields.get("reply_code", 0), text(fields.get("reply_text", ""))
        flag, evidence = _CODES.get(code, "amqp.connection-error"), []
        if code == _REFUSED and self._logged_in is False:
            flag = "rabbitmq.login-refused"
        if code == _FRAME_ERROR_CODE and (found := _FRAME_ERROR.search(reason)):
            numbers = {"type": int(found["type"])}
            if found["why"] == "frame_too_large":
                numbers["size"] = int(found["size"])
            bytes_ = spell(numbers)
            evidence = spelled(bytes_) if bytes_ else []
            too_large = "amqp.second-header" if bytes_ and bytes_.kind == "amqp" else "amqp.frame-too-large"
            flag = too_large if found["why"] == "frame_too_large" else "amqp.invalid-frame-end"
        if code != 200:  # noqa: PLR2004 - success
            what = f"The broker closed the connection: {code} {reason}"
            self._line.flag(t, flag, what, evidence, unless_flagged=True)

    def _is_blocked(self, _: float, __: Channel, fields: Mapping[str, Any]) -> None:
        self.blocked = text(fields.get("reason", "")) or "no reason"

    def _is_unblocked(self, _: float, __: Channel, ___: Mapping[str, Any]) -> None:
        self.blocked = ""

    # --- Channels --------------------------------------------------------------------------------------------------------

    def _usable(self, t: float, channel: Channel | None, item: Method) -> bool:
        """Return whether a client's method has an effect; flag a method on a dead channel."""
        if self._closing is not None:
            return True
        if item.name == "Channel.Open":
            if channel is not None and channel.sure and channel.state is ChannelState.OPEN:
                what = f"The client opened channel {item.channel}, which is open already."
                self._line.flag(t, "amqp.channel-opened-twice", what, [{"channel": item.channel}])
            return True
        if channel is None:
            if self._sure and item.name not in _ANSWERS_CLOSE:
                what = f"The client sent {item.name} on channel {item.channel}, which it has never opened."
                self._line.flag(t, "amqp.dead-channel", what, [{"channel": item.channel, "frame": item.name}])
            return True
        if channel.closed_by is None or item.name in _ANSWERS_CLOSE:
            return True  # a Channel.CloseOk whose Channel.Close was not read comes too early in a capture
        self._dead(t, channel, item, channel.closed_by)
        return False

    def _dead(self, t: float, channel: Channel, item: Method, closed_by: Side) -> None:
        kind = "ack" if item.name in _SETTLES else item.name
        if not channel.once(f"{channel.state} {kind}"):
            return
        who = f"the {closed_by.label}"
        since = t - channel.closed_at
        effect = (
            "the acknowledgement has no effect, and the message comes again"
            if item.name in _SETTLES
            else "the frame has no effect"
        )
        if channel.state is ChannelState.CLOSED:
            effect = "the broker closes the connection for it"
        tag = item.fields.get("delivery_tag")
        sent = f"{item.name} of delivery {tag}" if tag else item.name
        what = f"The client sent {sent} on channel {channel.number}, {since:.3f} s after {who} had closed it: {effect}."
        rows: list[dict[str, object]] = [
            {"channel": channel.number, "frame": item.name, "closed by": who, "after": f"{since:.3f} s"}
        ]
        self._line.flag(t, "amqp.dead-channel", what, rows)

    def _open(self, _: float, channel: Channel, __: Mapping[str, Any]) -> None:
        """Begin the channel's life with the request, because some clients do not wait for the reply."""
        self._channels[channel.number] = Channel(channel.number)

    def _broker_closes_channel(self, t: float, channel: Channel, fields: Mapping[str, Any]) -> None:
        self._closes(t, channel, Side.BROKER)
        code, reason = fields.get("reply_code", 0), text(fields.get("reply_text", ""))
        flag = "amqp.channel-error"
        if "delivery acknowledgement on channel" in reason:
            flag = "amqp.delivery-timeout"
        elif "unknown delivery tag" in reason:
            if channel.flagged & {"tag", "ack"}:
                return
            flag = "amqp.unknown-delivery-tag"
        what = f"The broker closed channel {channel.number}: {code} {reason}"
        rows: list[dict[str, object]] = [{"channel": channel.number, "waiting deliveries": channel.tags.waiting}]
        self._line.flag(t, flag, what, rows)

    def _closes(self, t: float, channel: Channel, side: Side) -> None:
        if channel.state is ChannelState.OPEN:
            channel.state, channel.closed_by, channel.closed_at = ChannelState.CLOSING, side, t

    # --- Deliveries ------------------------------------------------------------------------------------------------------

    def _qos(self, _: float, channel: Channel, fields: Mapping[str, Any]) -> None:
        count = fields.get("prefetch_count", 0)
        if fields.get("global_"):
            channel.prefetch_of_all = count
        else:
            channel.prefetch = count

    def _transacted(self, _: float, channel: Channel, __: Mapping[str, Any]) -> None:
        channel.transacted = True

    def _broker_cancels(self, t: float, channel: Channel, fields: Mapping[str, Any]) -> None:
        """
        Flag a delivery that timed out.

        RabbitMQ 4.3 then cancels the consumer without a reason. RabbitMQ also does so if the queue was deleted.
        """
        tag = fields.get("consumer_tag", "")
        consumer, oldest = channel.consumers.pop(tag, None), channel.tags.oldest
        if consumer is None or oldest is None or t - oldest[1] < consumer.timeout * _NEARLY - _SLACK:
            return
        what = f"The broker cancelled the consumer {text(tag)} of the queue {text(consumer.queue)}: delivery {oldest[0]} had waited {t - oldest[1]:.1f} s for its acknowledgement, and the limit is {consumer.timeout:g} s."
        rows: list[dict[str, object]] = [
            {
                "consumer": text(tag),
                "queue": text(consumer.queue),
                "delivery": oldest[0],
                "waited": f"{t - oldest[1]:.1f} s",
            }
        ]
        self._line.flag(t, "amqp.delivery-timeout", what, rows)

    def _delivered(self, t: float, channel: Channel, fields: Mapping[str, Any]) -> None:
        channel.delivered(t, fields.get("delivery_tag", 0), fields.get("consumer_tag", ""))
        if channel.sure and (found := channel.pile()):
            channel.flagged.add("pile")
            tag, consumer = found
            waiting = channel.tags.waiting
            what = f"{waiting} deliveries of the queue {text(consumer.queue)} wait for an acknowledgement: its consumer has no prefetch, so the broker sends all that the queue has."
            rows: list[dict[str, object]] = [
                {"consumer": text(tag), "queue": text(consumer.queue), "prefetch": "none", "waiting": waiting}
            ]
            self._line.flag(t, "amqp.unlimited-prefetch", what, rows)

    def _ack(self, t: float, channel: Channel, fields: Mapping[str, Any]) -> None:
        tag = fields.get("delivery_tag", 0)
        highest = channel.tags.highest
        settled = channel.tags.settle(tag, multiple=bool(fields.get("multiple")))
        if settled is AckResult.NOW or not channel.sure or (settled is AckResult.BEFORE and channel.transacted):
            return
        channel.flagged.add("tag")
        rows: list[dict[str, object]] = [
            {"channel": channel.number, "delivery": tag, "last delivery": highest, "waiting": channel.tags.waiting}
        ]
        if settled is AckResult.UNKNOWN:
            last = f"the last one was {highest}" if highest else "none was delivered"
            what = f"The client acknowledged delivery {tag} on channel {channel.number}, which had no such delivery: {last}."
            self._line.flag(t, "amqp.unknown-delivery-tag", what, rows)
            return
        if any(consumer.no_ack for consumer in channel.consumers.values()):
            what = f"The client acknowledged delivery {tag} on channel {channel.number}, whose consumer asked for deliveries without acknowledgement (no_ack)."
            self._line.flag(t, "amqp.unknown-delivery-tag", what, rows)
            return
        what = f"The client acknowledged delivery {tag} on channel {channel.number} a second time."
        self._line.flag(t, "amqp.double-ack", what, rows)
