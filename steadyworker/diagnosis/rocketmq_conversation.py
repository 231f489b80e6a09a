"""The conversation of a RocketMQ connection; it makes events and flags from the frames of both sides."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from steadyworker.diagnosis.frames import Flaw, Item, RemotingFrame
from steadyworker.diagnosis.line import Line, spelled
from steadyworker.diagnosis.protocols import spell_length
from steadyworker.diagnosis.remoting import FIELDS, RemotingReader, version_of
from steadyworker.diagnosis.tap import Side
from steadyworker.diagnosis.wire import text

LONGEST_TOPIC = 127
"""The largest number of characters of a topic that a broker stores; since 5.1, a retry topic may have 255."""

RETRY = "%RETRY%"
"""The beginning of a retry topic's name; the name of the consumer group follows."""

REQUESTS: Mapping[int, str] = {
    10: "SEND_MESSAGE", 11: "PULL_MESSAGE", 14: "QUERY_CONSUMER_OFFSET", 15: "UPDATE_CONSUMER_OFFSET",
    17: "UPDATE_AND_CREATE_TOPIC", 29: "SEARCH_OFFSET_BY_TIMESTAMP", 30: "GET_MAX_OFFSET", 31: "GET_MIN_OFFSET",
    34: "HEART_BEAT", 35: "UNREGISTER_CLIENT", 36: "CONSUMER_SEND_MSG_BACK", 37: "END_TRANSACTION",
    38: "GET_CONSUMER_LIST_BY_GROUP", 39: "CHECK_TRANSACTION_STATE", 40: "NOTIFY_CONSUMER_IDS_CHANGED",
    41: "LOCK_BATCH_MQ", 42: "UNLOCK_BATCH_MQ", 103: "REGISTER_BROKER", 105: "GET_ROUTEINFO_BY_TOPIC",
    106: "GET_BROKER_CLUSTER_INFO", 309: "CONSUME_MESSAGE_DIRECTLY", 310: "SEND_MESSAGE_V2",
    320: "SEND_BATCH_MESSAGE", 324: "SEND_REPLY_MESSAGE", 325: "SEND_REPLY_MESSAGE_V2",
    326: "PUSH_REPLY_MESSAGE_TO_CLIENT", 361: "LITE_PULL_MESSAGE", 200050: "POP_MESSAGE", 200051: "ACK_MESSAGE",
    200053: "CHANGE_MESSAGE_INVISIBLETIME", 200054: "NOTIFICATION", 200055: "POLLING_INFO",
    200151: "BATCH_ACK_MESSAGE",
}  # fmt: skip
"""The names of requests, as `RequestCode` has them."""

RESULTS: Mapping[int, str] = {
    0: "SUCCESS", 1: "SYSTEM_ERROR", 2: "SYSTEM_BUSY", 3: "REQUEST_CODE_NOT_SUPPORTED", 4: "TRANSACTION_FAILED",
    10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT", 13: "MESSAGE_ILLEGAL",
    14: "SERVICE_NOT_AVAILABLE", 15: "VERSION_NOT_SUPPORTED", 16: "NO_PERMISSION", 17: "TOPIC_NOT_EXIST",
    19: "PULL_NOT_FOUND", 20: "PULL_RETRY_IMMEDIATELY", 21: "PULL_OFFSET_MOVED", 22: "QUERY_NOT_FOUND",
    23: "SUBSCRIPTION_PARSE_FAILED", 24: "SUBSCRIPTION_NOT_EXIST", 25: "SUBSCRIPTION_NOT_LATEST",
    26: "SUBSCRIPTION_GROUP_NOT_EXIST", 206: "CONSUMER_NOT_ONLINE", 209: "POLLING_FULL", 210: "POLLING_TIMEOUT",
}  # fmt: skip
"""The names of results, as `ResponseCode` has them."""

_SEND, _SEND_BACK, _MEMBERS, _ROUTE = {10, 310, 320, 324, 325}, 36, 38, 105
_SHORT_NAMES = {310, 320, 325}  # requests in which fields have short names (`SendMessageRequestHeaderV2`)
_NAMES = {"a": "producerGroup", "b": "topic", "e": "queueId", "i": "properties", "j": "reconsumeTimes"}
_WAITING = {11, 361, 200050, 200054, 200055}  # to these requests, a server replies only when there is a message
_ORDINARY = {0, 19, 20, 22, 24, 25, 209, 210}  # 24 and 25: a member pulls before its heartbeat names its topics
_ILLEGAL, _NO_TOPIC = 13, 17
_REPLY, _ONE_WAY = 1, 2
_FLAGS: Mapping[int, str] = {
    2: "rocketmq.broker-busy",
    10: "rocketmq.flush-timeout",
    11: "rocketmq.no-replica",
    12: "rocketmq.flush-timeout",
    13: "rocketmq.message-illegal",
    14: "rocketmq.store-unavailable",
    16: "rocketmq.forbidden",
    17: "rocketmq.topic-missing",
    21: "rocketmq.offset-moved",
    23: "rocketmq.filter-expression",
    26: "rocketmq.group-missing",
}
_TOO_LONG = re.compile(r"MESSAGE_ILLEGAL|longer than topic max length")  # before 4.6, any error has this code
_LOGINS = (
    (re.compile(r"heck signature failed"), "rocketmq.wrong-signature"),
    (
        re.compile(r"No acl config for|No accessKey is configured|User:\S* is not found|username cannot be null"),
        "rocketmq.unknown-key",
    ),
    (re.compile(r"No (?:default )?permission for|has no permission to access"), "rocketmq.not-authorized"),
)
"""The remarks of a server about a login; only these remarks can contain an access key."""

_SHOWN = [name for name in FIELDS if len(name) > 1 and name not in {"properties", "AccessKey"}]
"""The fields that events show; all other fields belong to an application, or are secret."""

_SHOWN_PROPERTIES = ("TRAN_MSG", "DELAY")
_GROUPS = ("group", "consumerGroup", "producerGroup")
_PATIENCE = 1.0
"""The shortest time, in seconds, that a side waits for a reply; if the side closes earlier, it no longer needs the reply."""

_LONGEST_NAME = 60
_KEPT = 1_000  # the characters of a name that are shown; 127 or 255 are allowed
_MOST_REQUESTS = 20_000
_MOST_LISTED = 8
_MOST_GROUPS = 1_000


@dataclass(slots=True)
class Request:
    """A request that waits for its reply."""

    t: float
    code: int
    name: str
    topic: str
    group: str
    access_key: str


class RocketmqConversation:
    """The state of one connection, which the frames of both sides change."""

    family: Final = "rocketmq"

    def __init__(self, line: Line) -> None:
        self._line = line
        self.readers = {side: RemotingReader() for side in Side}
        self._sure = True
        self._requests: dict[Side, OrderedDict[int, Request]] = {side: OrderedDict() for side in Side}
        self._refused: OrderedDict[str, None] = OrderedDict()  # retry topics that are too long
        self._software = dict.fromkeys(Side, "")

    def missed(self, side: Side) -> RemotingReader:
        """Note that bytes of a side were not read, and return a new reader for the side's next bytes."""
        self._sure = False
        reader = self.readers[side] = RemotingReader()
        return reader

    def receive(self, t: float, side: Side, item: Item, _: Callable[[int], bytes]) -> None:
        """Receive the next item of a side."""
        match item:
            case RemotingFrame() if item.flag & _REPLY:
                self._reply(t, side, item)
            case RemotingFrame():
                self._request(t, side, item)
            case Flaw():
                self._flaw(t, side, item)

    def closed(self, t: float) -> None:
        """Flag the requests without a reply when a side closes the connection; the other side may close much later."""
        by = self._line.closed_by
        for side in Side if by is not None and self._sure else ():
            patience = _PATIENCE if by is side else 0.0
            left = [
                each for each in self._requests[side].values() if each.code not in _WAITING and t - each.t >= patience
            ]
            if by is not None and left:
                count = f"{len(left)} request{'s' * (len(left) > 1)}"
                what = f"The {by.label} closed the connection, and {count} of the {side.label} had no reply of the {side.other.label}."
                rows: list[dict[str, object]] = [
                    {
                        "request": each.name,
                        "topic": text(each.topic),
                        "group": text(each.group),
                        "waited": f"{t - each.t:.1f} s",
                    }
                    for each in left[:_MOST_LISTED]
                ]
                self._line.flag(t, "rocketmq.reply-timeout", what, rows, unless_flagged=True)

    # --- Frames ----------------------------------------------------------------------------------------------------------

    def _request(self, t: float, side: Side, frame: RemotingFrame) -> None:
        name = REQUESTS.get(frame.code, f"request {frame.code}")
        fields = frame.fields
        if frame.code in _SHORT_NAMES:
            fields = {_NAMES.get(each, each): value for each, value in fields.items()}
        properties = _properties(fields.get("properties", "")) if frame.code in _SEND else {}
        shown = {each: text(fields[each]) for each in _SHOWN if fields.get(each)}
        shown |= {each: text(properties[each]) for each in _SHOWN_PROPERTIES if each in properties}
        self._line.frame(
            t,
            side,
            "frame",
            name=name,
            size=frame.size,
            body_size=frame.body_size or None,
            headers=shown or None,
            **self._introduced(side, frame),
            opaque=frame.opaque,
        )
        group = next((fields[each] for each in _GROUPS if fields.get(each)), "")
        kept = (each[:_KEPT] for each in (fields.get("topic", ""), group, fields.get("AccessKey", "")))
        request = Request(t, frame.code, name, *kept)
        if not frame.flag & _ONE_WAY:
            waiting = self._requests[side]
            waiting[frame.opaque] = request
            if len(waiting) > _MOST_REQUESTS:
                waiting.popitem(last=False)
                self._sure = False
        if request.topic.startswith(RETRY) and properties.get("TRAN_MSG") == "true":
            self._marked(t, side, request, shown)

    def _reply(self, t: float, side: Side, frame: RemotingFrame) -> None:
        request = self._requests[side.other].pop(frame.opaque, None)
        name = RESULTS.get(frame.code, f"result {frame.code}")
        login = next((flag for remark, flag in _LOGINS if remark.search(frame.remark)), None)
        key = request.access_key if request else ""
        remark = "" if login else text(frame.remark.replace(key, "***") if key else frame.remark)
        shown = {each: text(frame.fields[each]) for each in _SHOWN if frame.fields.get(each)}
        self._line.frame(
            t,
            side,
            "frame",
            name=name,
            size=frame.size,
            body_size=frame.body_size or None,
            to=request.name if request else None,
            code=frame.code or None,
            text=remark or None,
            headers=shown or None,
            **self._introduced(side, frame),
            opaque=frame.opaque,
        )
        if frame.code not in _ORDINARY:
            self._refusal(t, side, request, f"{name} (code {frame.code})", frame.code, remark, login)

    def _introduced(self, side: Side, frame: RemotingFrame) -> dict[str, object]:
        """Return the name of a side's program with the side's first frame, and nothing with later frames."""
        if self._software[side]:
            return {}
        version = version_of(frame.version)
        self._software[side] = f"{text(frame.language)} {version}".strip() or "unknown"
        return {"product": f"RocketMQ {text(frame.language)}".strip(), "product_version": version or None}

    # --- Flags -----------------------------------------------------------------------------------------------------------

    def _refusal(
        self, t: float, side: Side, request: Request | None, name: str, code: int, remark: str, login: str | None
    ) -> None:
        """Flag a reply that reports a failure."""
        if request is None:
            request = Request(t, 0, "a request", "", "", "")
        retry = RETRY + request.group if request.code == _SEND_BACK else request.topic
        of = f" of the group {_short(request.group)}" if request.group else ""
        asked = f"{request.name}{of}{f' for {_short(request.topic)}' if request.topic else ''}"
        rows: list[dict[str, object]] = [{"request": request.name, "topic": text(request.topic), "result": name}]
        named = {"topic": request.topic, "group": request.group}
        groups = {each: text(value) for each, value in named.items() if value}
        is_long = retry.startswith(RETRY) and len(retry) > LONGEST_TOPIC
        if login:
            self._line.flag(t, login, f"The {side.label} refused the login of {asked} with {name}.", rows)
        elif is_long and (code == _ILLEGAL or _TOO_LONG.search(remark)):
            self._too_long(t, side, request, retry, "MESSAGE_ILLEGAL" if "MESSAGE_ILLEGAL" in remark else name)
        elif code == _NO_TOPIC and request.code == _ROUTE:
            if not request.topic.startswith(RETRY):  # the broker makes a retry topic for a group's first member
                what = f"The {side.label} knows no route to the topic {_short(request.topic)}."
                self._line.flag(t, "rocketmq.no-route", what, rows, groups=groups)
        elif request.code == _MEMBERS and "no consumer for this group" in remark:
            pass  # the first member of a group sends this request before its first heartbeat
        else:
            what = f"The {side.label} replied {name} to {asked}{f': {remark}' if remark else '.'}"
            self._line.flag(t, _FLAGS.get(code, "rocketmq.error-reply"), what, rows, groups=groups)

    def _too_long(self, t: float, side: Side, request: Request, retry: str, name: str) -> None:
        """Flag a retry that can never be stored, because the group's name is too long."""
        group = retry.removeprefix(RETRY)
        self._refused[retry] = None
        if len(self._refused) > _MOST_GROUPS:
            self._refused.popitem(last=False)
        what = f"The {side.label} refused a retry ({request.name}) with {name}: the name of the retry topic, {RETRY} and the name of the consumer group, has {len(retry)} characters, and the broker stores topics of at most {LONGEST_TOPIC}. No message of this group can be retried."
        rows: list[dict[str, object]] = [
            {"name": text(group), "characters": len(group), "allowed": LONGEST_TOPIC - len(RETRY)},
            {"name": text(retry), "characters": len(retry), "allowed": LONGEST_TOPIC},
        ]
        self._line.flag(t, "rocketmq.illegal-retry-topic", what, rows)

    def _marked(self, t: float, side: Side, request: Request, shown: Mapping[str, str]) -> None:
        """Flag a copy of a message that has the mark of a transaction."""
        what = f"The {side.label} sent a message again to a retry topic, with its transaction mark (TRAN_MSG=true): the broker takes it for a half message, and RMQ_SYS_TRANS_HALF_TOPIC grows."
        if request.topic in self._refused:
            what += f" The client ({self._software[side]}) sends this copy because the broker refused the retry."
        rows: list[dict[str, object]] = [{"topic": text(request.topic), "request": request.name, **shown}]
        rows[0].pop("producerGroup", None)
        self._line.flag(t, "rocketmq.half-topic-grows", what, rows)

    def _flaw(self, t: float, side: Side, flaw: Flaw) -> None:
        if flaw.kind == "cut":
            self._line.flag(t, "rocketmq.frame-cut", self._line.cut(side, text(flaw.what)))
            return
        what = f"From the {side.label}: {text(flaw.what)} (byte {flaw.offset} of its direction)."
        flag = "rocketmq.bad-frame"
        if self.readers[side].blind and flaw.kind != "bad-frame":
            flag = "rocketmq.foreign-bytes" if side is Side.CLIENT else "trace.unparsable"
        if side is Side.BROKER and flaw.kind.startswith("amqp"):
            flag = "amqp.unknown-protocol-on-port"
            what = "The client speaks RocketMQ's remoting protocol, and the broker answered with a protocol header of AMQP."
        number = spell_length(int.from_bytes(flaw.raw[:4], "big")) if flaw.raw else None
        self._line.flag(t, flag, what, spelled(number) if number else ())


def _properties(written: str) -> dict[str, str]:
    """Return the properties of a message; control characters separate them."""
    pairs = (each.partition("\1") for each in written.split("\2"))
    return {name: value for name, _, value in pairs if name}


def _short(name: str) -> str:
    """Return a name, shortened so that the rest of its sentence has room."""
    name = text(name)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
