"""Words for readers who do not know the protocols: the meaning of a frame, durations, and numbers of frames."""

from __future__ import annotations

import math

from steadyworker.units import count_text

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
NO_BREAK = "\N{NO-BREAK SPACE}"
_BRIEF = 10.0
"""The seconds below which a time is shown with its first decimal."""

MEANING = {
    "Connection.Start": "introduces itself and lists the ways to log in",
    "Connection.StartOk": "introduces itself and logs in",
    "Connection.Secure": "asks for more of the login",
    "Connection.SecureOk": "answers with more of the login",
    "Connection.Tune": "proposes limits and a heartbeat",
    "Connection.TuneOk": "agrees to limits and a heartbeat",
    "Connection.Open": "asks for a virtual host",
    "Connection.OpenOk": "grants the virtual host",
    "Connection.Close": "ends the connection and gives the reason",
    "Connection.CloseOk": "confirms the end of the connection",
    "Connection.Blocked": "asks for no more messages: an alarm is raised",
    "Connection.Unblocked": "accepts messages again",
    "Connection.UpdateSecret": "renews its credentials",
    "Channel.Open": "opens a channel",
    "Channel.OpenOk": "confirms the channel",
    "Channel.Close": "ends the channel and gives the reason",
    "Channel.CloseOk": "confirms the end of the channel",
    "Channel.Flow": "asks to stop or to resume messages",
    "Exchange.Declare": "declares an exchange",
    "Queue.Declare": "declares a queue",
    "Queue.DeclareOk": "confirms the queue and counts its messages",
    "Queue.Bind": "binds a queue to an exchange",
    "Queue.Purge": "empties a queue",
    "Queue.Delete": "deletes a queue",
    "Basic.Qos": "sets the prefetch",
    "Basic.Consume": "starts a consumer",
    "Basic.ConsumeOk": "confirms the consumer",
    "Basic.Cancel": "cancels a consumer",
    "Basic.CancelOk": "confirms the end of the consumer",
    "Basic.Publish": "sends a message",
    "Basic.Return": "returns a message that no queue took",
    "Basic.Deliver": "delivers a message",
    "Basic.Get": "asks for one message",
    "Basic.GetOk": "delivers the message that was asked for",
    "Basic.GetEmpty": "has no message",
    "Basic.Ack": "acknowledges",
    "Basic.Nack": "refuses",
    "Basic.Reject": "refuses a message",
    "Basic.Recover": "asks for all unacknowledged messages again",
    "Confirm.Select": "asks for publisher confirms",
    "Tx.Select": "starts to use transactions",
    "Tx.Commit": "commits",
    "Tx.Rollback": "rolls back",
    "CONNECT": "asks for a session",
    "STOMP": "asks for a session",
    "CONNECTED": "grants the session",
    "SUBSCRIBE": "starts a subscription",
    "UNSUBSCRIBE": "ends a subscription",
    "SEND": "sends a message",
    "MESSAGE": "delivers a message",
    "ACK": "acknowledges a message",
    "NACK": "refuses a message",
    "BEGIN": "begins a transaction",
    "COMMIT": "commits",
    "ABORT": "rolls back",
    "RECEIPT": "confirms a frame",
    "DISCONNECT": "ends the session",
    "ERROR": "reports an error, and ends the connection",
    "SEND_MESSAGE": "sends a message",
    "SEND_MESSAGE_V2": "sends a message",
    "SEND_BATCH_MESSAGE": "sends several messages",
    "PULL_MESSAGE": "asks for messages of a queue, and waits for them",
    "POP_MESSAGE": "asks for messages, and waits for them",
    "ACK_MESSAGE": "acknowledges a message",
    "CHANGE_MESSAGE_INVISIBLETIME": "keeps a message for longer",
    "QUERY_CONSUMER_OFFSET": "asks how far the group has consumed a queue",
    "UPDATE_CONSUMER_OFFSET": "reports how far the group has consumed a queue",
    "HEART_BEAT": "reports that it is there, with its groups and subscriptions",
    "UNREGISTER_CLIENT": "leaves its groups",
    "CONSUMER_SEND_MSG_BACK": "gives a message back, to be retried later",
    "END_TRANSACTION": "commits or rolls back a transaction",
    "CHECK_TRANSACTION_STATE": "asks what became of a transaction",
    "GET_CONSUMER_LIST_BY_GROUP": "asks for the members of a group",
    "NOTIFY_CONSUMER_IDS_CHANGED": "reports that the members of a group have changed",
    "LOCK_BATCH_MQ": "locks queues for itself",
    "UNLOCK_BATCH_MQ": "gives locked queues back",
    "GET_ROUTEINFO_BY_TOPIC": "asks which brokers have a topic",
    "SUCCESS": "has done what was asked",
    "PULL_NOT_FOUND": "has no message",
    "PULL_RETRY_IMMEDIATELY": "has no message that fits",
    "QUERY_NOT_FOUND": "knows no offset of the group",
    "MESSAGE_ILLEGAL": "refuses a message as illegal",
    "SYSTEM_ERROR": "reports an error",
    "SYSTEM_BUSY": "is too busy",
    "NO_PERMISSION": "refuses: a right is missing",
    "TOPIC_NOT_EXIST": "does not know the topic",
}
"""For each frame, the action of its sender."""

_MANY = {
    ("broker", "Basic.Deliver"): ("delivery", "deliveries"),
    ("broker", "Basic.GetOk"): ("delivery on request", "deliveries on request"),
    ("broker", "Basic.Ack"): ("publisher confirm", ""),
    ("broker", "Basic.Nack"): ("refused publish", "refused publishes"),
    ("broker", "Basic.Return"): ("returned message", ""),
    ("broker", "MESSAGE"): ("delivery", "deliveries"),
    ("broker", "RECEIPT"): ("receipt", ""),
    ("client", "Basic.Ack"): ("ack", ""),
    ("client", "Basic.Nack"): ("nack", ""),
    ("client", "Basic.Reject"): ("reject", ""),
    ("client", "Basic.Publish"): ("message sent", "messages sent"),
    ("client", "Basic.Get"): ("request for a message", "requests for a message"),
    ("client", "ACK"): ("ack", ""),
    ("client", "NACK"): ("nack", ""),
    ("client", "SEND"): ("message sent", "messages sent"),
    ("client", "SEND_MESSAGE"): ("message sent", "messages sent"),
    ("client", "SEND_MESSAGE_V2"): ("message sent", "messages sent"),
    ("client", "CONSUMER_SEND_MSG_BACK"): ("message given back", "messages given back"),
    ("client", "HEART_BEAT"): ("heartbeat", ""),
}

_MANY_OF_KIND = {
    "heartbeat": ("heartbeat", ""),
    "bytes": ("piece of unread bytes", "pieces of unread bytes"),
    "gap": ("gap", ""),
    "queue": ("full queue", ""),
    "open": ("opening", ""),
    "close": ("close", ""),
    "header": ("protocol header", ""),
    "skipped": ("note of what is not shown", "notes of what is not shown"),
}

PARTS = frozenset({"content", "body"})
"""The events that are parts of a message; the message is counted by its method."""


def many(side: str, kind: str, name: str, number: int) -> str:
    """Return a number of frames in words: `1,240 deliveries`, `3 Queue.Declare`."""
    if kind in _MANY_OF_KIND:
        return count_text(number, *_MANY_OF_KIND[kind])
    if (side, name) in _MANY:
        return count_text(number, *_MANY[side, name])
    return count_text(
        number, {"content": "message header", "body": "message body"}.get(kind, name or kind), name or kind
    )


def lapse(seconds: float) -> str:
    """Return a duration in words: `0.4 ms`, `12 ms`, `0.4 s`, `29.8 s`, `2 min 05 s`, `3 h 12 min`."""
    return _lapse(abs(seconds)).replace(" ", NO_BREAK) if math.isfinite(seconds) else "–"


def _lapse(seconds: float) -> str:
    if seconds < 0.1:  # noqa: PLR2004 - less than a tenth of a second is read better in milliseconds
        milliseconds = seconds * 1000
        return f"{milliseconds:.1f} ms" if 0 < milliseconds < _BRIEF else f"{milliseconds:.0f} ms"
    if round(seconds, 1) < _MINUTE:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR:02} h"


def listed(parts: list[str]) -> str:
    """Return parts as a list in a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def sentence(text: str) -> str:
    """Return a text with the punctuation of a sentence's end."""
    text = text.strip()
    return text if not text or text[-1] in ".!?…" else f"{text}."
