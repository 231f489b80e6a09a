"""
The deliveries of a connection that wait for their acknowledgement.

AMQP numbers the deliveries of a channel, so the tags that wait are a few runs of numbers, even if many tags wait.
STOMP's ids are texts; if more than `MOST_IDS` messages wait, the further messages are only counted.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import ClassVar

from steadyworker.diagnosis.picture.event_fields import Event, count_of, field, text_of
from steadyworker.diagnosis.tags import Tags

MOST_IDS = 20_000
MOST_PLACES = 2_048
"""The largest number of channels, subscriptions and consumers that are counted separately."""


class Ids:
    """The messages of a subscription that wait, by their ids."""

    __slots__ = ("_others", "_waiting", "cumulative")

    def __init__(self, *, cumulative: bool) -> None:
        self.cumulative = cumulative
        self._waiting: dict[str, None] = {}
        self._others = 0

    @property
    def count(self) -> int:
        """The number of messages that wait."""
        return len(self._waiting) + self._others

    def add(self, id_: str) -> None:
        """Note a delivery."""
        if len(self._waiting) < MOST_IDS:
            self._waiting[id_] = None
        else:
            self._others += 1

    def remove(self, id_: str) -> bool:
        """Note an acknowledgement; return False if no such message waits here."""
        if id_ not in self._waiting:
            return False
        if self.cumulative:
            for earlier in list(takewhile(lambda waiting: waiting != id_, self._waiting)):
                del self._waiting[earlier]
        del self._waiting[id_]
        return True

    def forget_one(self) -> bool:
        """Note an acknowledgement of a message that was only counted; return False if there is no such message."""
        known = self._others > 0
        self._others -= known
        return known


class Pending:
    """The deliveries of a connection that wait; `count` is their number."""

    def __init__(self) -> None:
        self._channels: dict[object, Tags] = {}
        self._subscriptions: dict[str, Ids] = {}
        self._automatic: set[object] = set()
        self.count = 0

    def see(self, name: str, event: Event) -> bool:
        """Count a frame; return whether the frame can have changed the number of waiting deliveries."""
        handle = self._handlers.get(name)
        if handle is None:
            return False
        handle(self, event)
        return True

    def _consume(self, event: Event) -> None:
        if field(event, "no_ack") is True:
            self._automatic.add((event.get("channel"), text_of(field(event, "consumer_tag"))))
            if len(self._automatic) > MOST_PLACES:
                self._automatic.clear()

    def _consume_ok(self, event: Event) -> None:
        """Name a consumer by the tag that the broker gave it, if the client gave it no tag."""
        unnamed = (event.get("channel"), "")
        if unnamed in self._automatic:
            self._automatic.discard(unnamed)
            self._automatic.add((event.get("channel"), text_of(field(event, "consumer_tag"))))

    def _get(self, event: Event) -> None:
        place = (event.get("channel"), None)
        self._automatic.discard(place)
        if field(event, "no_ack") is True:
            self._automatic.add(place)

    def _get_ok(self, event: Event) -> None:
        if (event.get("channel"), None) not in self._automatic:
            self._delivered(event)

    def _deliver(self, event: Event) -> None:
        tag = field(event, "consumer_tag") if self._automatic else None
        if tag is None or (event.get("channel"), text_of(tag)) not in self._automatic:
            self._delivered(event)

    def _delivered(self, event: Event) -> None:
        channel = event.get("channel")
        if not isinstance(channel, int):
            return
        tags = self._channels.get(channel)
        if tags is None:
            if len(self._channels) >= MOST_PLACES:
                return
            tags = self._channels[channel] = Tags()
        before = tags.waiting
        tags.delivered(count_of(event.get("delivery_tag") or field(event, "delivery_tag")), needs_ack=True)
        self.count += tags.waiting - before

    def _settled(self, event: Event) -> None:
        channel = event.get("channel")
        tags = self._channels.get(channel) if isinstance(channel, int) else None
        if tags is not None and event.get("from") == "client":
            before = tags.waiting
            tag = count_of(event.get("delivery_tag") or field(event, "delivery_tag"))
            tags.settle(tag, multiple=field(event, "multiple") is True)
            self.count += tags.waiting - before

    def _channel_ended(self, event: Event) -> None:
        channel = event.get("channel")
        tags = self._channels.pop(channel, None) if isinstance(channel, int) else None
        self.count -= tags.waiting if tags else 0

    def _subscribe(self, event: Event) -> None:
        mode = field(event, "ack")
        if mode in ("client", "client-individual") and len(self._subscriptions) < MOST_PLACES:
            self._subscriptions.setdefault(text_of(field(event, "id")), Ids(cumulative=mode == "client"))

    def _unsubscribe(self, event: Event) -> None:
        ids = self._subscriptions.pop(text_of(field(event, "id")), None)
        self.count -= ids.count if ids else 0

    def _message(self, event: Event) -> None:
        ids = self._subscriptions.get(text_of(field(event, "subscription")))
        if ids is not None:
            before = ids.count
            ids.add(text_of(field(event, "ack") or field(event, "message-id")))
            self.count += ids.count - before

    def _acknowledged(self, event: Event) -> None:
        id_ = text_of(field(event, "id", "message-id"))
        places = list(self._subscriptions.values())
        for ids in places:
            before = ids.count
            if ids.remove(id_):
                self.count += ids.count - before
                return
        for ids in places:
            if ids.forget_one():
                self.count -= 1
                return

    _handlers: ClassVar[dict[str, Callable[[Pending, Event], None]]] = {
        "Basic.Consume": _consume,
        "Basic.ConsumeOk": _consume_ok,
        "Basic.Get": _get,
        "Basic.GetOk": _get_ok,
        "Basic.Deliver": _deliver,
        "Basic.Ack": _settled,
        "Basic.Nack": _settled,
        "Basic.Reject": _settled,
        "Basic.Recover": _channel_ended,
        "Channel.Close": _channel_ended,
        "Channel.Open": _channel_ended,
        "SUBSCRIBE": _subscribe,
        "UNSUBSCRIBE": _unsubscribe,
        "MESSAGE": _message,
        "ACK": _acknowledged,
        "NACK": _acknowledged,
    }
