"""
One member of a consumer group. It receives messages from queues that it has locked. The calls block, and are for one thread at a time.

A broker keeps one number for each queue and group, the *place*: the offset up to which the group has consumed the queue.
So a member receives only the first message that is not consumed, and only while the member has the queue's lock.

| step | request | by |
|---|---|---|
| join the group | heartbeat | `beat` |
| find queues in which messages wait | statistics of the group | `receive` |
| lock a queue, so that no other member receives from it | lock | `receive`, `keep` |
| receive the queue's first message | pull | `receive` |
| acknowledge | the new place, and then the end of the lock | `finish` |
| release | the end of the lock | `free` |

**A lock** ends after `LOCKED_FOR` seconds, unless the member renews it (`keep`).
So the messages of a killed worker come again after that time. The messages of a stopped worker come again at once.
Brokers keep locks in memory, so a restart ends all locks. After a restart, members that hold deliveries have the first chance to lock.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from steadyworker.adapter import Clock
from steadyworker.network.errors import Foreign, Silent
from steadyworker_rocketmq.direct.places import Places, places_of
from steadyworker_rocketmq.errors import is_refused_login
from steadyworker_rocketmq.frames import RemotingReply
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.remoting import Remoting, RemotingError, RocketmqBroker, TopicQueue
from steadyworker_rocketmq.stored import Stored

LOCKED_FOR = 60.0
"""Seconds after which a broker lets another member lock a queue whose lock was not renewed (`REBALANCE_LOCK_MAX_LIVE_TIME`)."""

_MOMENT = 1.0
"""Seconds in which no broker can restart. So after a shorter gap the broker still has its locks."""

_ROUTE_EVERY = 30.0
"""Seconds between two questions to a name server for the topic's queues."""

_SILENT_FOR = 15.0
"""Seconds in which the member does not ask a broker that did not reply, if there are other brokers. Each question to a frozen broker takes 10 s."""

HOLDERS_FIRST = 6.0
"""
Seconds after a broker is there again, in which a member receives no message from the broker.

A restarted broker has lost all locks. In the pause, members that hold messages can first lock their queues again.
"""

_MOST_GAPS = 20
"""The largest number of offsets of deleted messages that one step skips."""

# RocketMQ's RequestCode and ResponseCode.
_HEARTBEAT, _LEAVE, _LOCK, _UNLOCK, _STATISTICS = 34, 35, 41, 42, 208
_NO_TOPIC = 17

_FAILURES = (OSError, Foreign, Silent, RemotingError)


class NoTopicError(RemotingError):
    """A topic that no name server knows."""


@dataclass(frozen=True, slots=True, eq=False)
class LockedMessage:
    """
    A message that a member has received; the queue stays locked until `finish` or `free`.

    Attributes:
        queue: The queue.
        message: The message.
        at: The time (monotonic clock) at which the queue was locked.
        run: The number of earlier messages that the member received from the queue under the same lock.
    """

    queue: TopicQueue
    message: Stored
    at: float
    run: int = 0


class LockState(Enum):
    """The state of a message that a member holds: unchanged, or consumed, or another member has the queue."""

    OURS = "ours"
    CONSUMED = "consumed"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class Finished:
    """
    The result of an acknowledgement.

    Attributes:
        done: False if another member has the queue, and the message is not consumed.
        following: The queue's next message, if the acknowledgement also received it.
    """

    done: bool
    following: LockedMessage | None = None


class GroupMember:
    """
    One member of a consumer group.

    The methods raise OSError, Foreign, Silent and RemotingError.
    A method leaves out brokers that fail. It raises only if all brokers have failed, or if a broker refuses the login or a right.

    Args:
        remoting: The client of the brokers, which is open, and which no other object uses.
        names: The names of topics and groups.
        id_: The member's id. No other member has the same id.
        clock: The clock.
        queues: The topic's queues from an earlier member; used while no name server replies.
        places: The places from an earlier member.
    """

    def __init__(
        self,
        remoting: Remoting,
        names: QueueNames,
        id_: str,
        clock: Clock,
        queues: Sequence[TopicQueue] = (),
        places: Places | None = None,
    ) -> None:
        self._remoting = remoting
        self._topic = names.work
        self._group = names.group
        self._id = id_
        self._clock = clock
        self._places = places or Places()
        self.queues = list(queues)
        self._masters = {queue.broker.name: queue.broker for queue in queues}
        self._routed_at = 0.0
        self._failed: set[RocketmqBroker] = set()
        self._silent_until: dict[RocketmqBroker, float] = {}
        self._back_at: dict[RocketmqBroker, float] = {}

    def open(self) -> None:
        """Ask a name server for the queues, and check that brokers reply; raises NoTopicError if there is no topic."""
        try:
            self._route()
        except NoTopicError:
            raise
        except _FAILURES:
            if not self.queues:
                raise
        self.beat(joined=False)

    @property
    def brokers(self) -> list[RocketmqBroker]:
        """The brokers that have a part of the topic."""
        return list(dict.fromkeys(queue.broker for queue in self.queues))

    def beat(self, *, joined: bool) -> None:
        """Send a heartbeat to each broker. If `joined`, the broker then counts this client as a member of the group."""
        if self._clock.monotonic() - self._routed_at > _ROUTE_EVERY:
            with suppress(*_FAILURES):  # The brokers work without a name server.
                self._route()
        groups = [_membership(self._group, self._topic)] if joined else []
        body = {"clientID": self._id, "consumerDataSet": groups, "producerDataSet": []}
        self._at_each(self.brokers, lambda broker: self._ask(broker, _HEARTBEAT, body=body))

    def leave(self) -> None:
        """Leave the group."""
        fields = {"clientID": self._id, "producerGroup": "", "consumerGroup": self._group}
        self._at_each(self.brokers, lambda broker: self._ask(broker, _LEAVE, fields))

    def receive(self, most: int, but: Collection[TopicQueue]) -> list[LockedMessage]:
        """
        Lock queues, and return at most `most` messages.

        Each message is the first message of its queue. Queues in `but` are left out.
        """
        found, made_again = self._waiting()
        waiting = [queue for queue in found if queue not in but]
        random.shuffle(waiting)  # The order is random, so that two members rarely try the same queue.
        received: list[LockedMessage] = []
        spare: list[TopicQueue] = []
        # Most tries succeed at once. If other members were faster, a second try asks all other queues.
        for part in (waiting[:most], waiting[most:]):
            if len(received) == most or not part:
                break
            at = self._clock.monotonic()
            for queue in self._locked(part):
                first = None
                if len(received) < most:
                    with self._failures_of(queue.broker):
                        first = self._first(queue, made_again=queue in made_again)
                if first is None:
                    spare.append(queue)
                else:
                    received.append(LockedMessage(queue, first, at))
        if spare:
            self.free(spare)
        return received

    def keep(self, held: Iterable[LockedMessage]) -> dict[LockedMessage, LockState]:
        """Renew the locks of these messages, and return each message's state. Leave out messages whose broker did not reply."""
        found: dict[LockedMessage, LockState] = {}
        by_broker: dict[RocketmqBroker, list[LockedMessage]] = {}
        for each in held:
            by_broker.setdefault(self._now(each.queue).broker, []).append(each)

        def renew(broker: RocketmqBroker) -> None:
            queues = self._lock_at(broker, [each.queue for each in by_broker[broker]])
            for each in by_broker[broker]:
                if self._place(self._now(each.queue)) > each.message.offset:
                    found[each] = LockState.CONSUMED
                else:
                    found[each] = LockState.OURS if each.queue in queues else LockState.ELSEWHERE

        self._at_each(by_broker, renew)
        return found

    def finish(self, locked: LockedMessage, *, in_doubt: bool, go_on: bool) -> Finished | None:
        """
        Acknowledge a message.

        Return None if the broker failed, or if the member does not ask this broker for now; the message can be consumed or not.
        If `Finished.done` is true, the message is consumed, or the broker no longer has it.

        Args:
            locked: The message.
            in_doubt: The lock may have ended.
            go_on: Receive the next message of the queue.
                If this is false, if there is no message, or if the message was consumed or gone before, the queue is unlocked.
        """
        if locked.queue.broker not in self._silent():
            with self._failures_of(locked.queue.broker):
                return self._finish(locked, in_doubt=in_doubt, go_on=go_on)
        return None

    def free(self, queues: Iterable[TopicQueue]) -> None:
        """Unlock queues, so that the brokers deliver their first messages again."""
        by_broker = _by_broker(map(self._now, queues))
        self._at_each(by_broker, lambda broker: self._ask(broker, _UNLOCK, body=self._batch(by_broker[broker])))

    def close(self) -> None:
        """Close the connections."""
        self._remoting.close()

    # ---------------------------------------------------------------------------------------------------------------

    def _finish(self, locked: LockedMessage, *, in_doubt: bool, go_on: bool) -> Finished:
        queue, following = self._now(locked.queue), locked.message.offset + 1
        # `_MOMENT` is too short for a broker to end, start again and let another member consume, or for a topic to be made again.
        sure = not in_doubt and self._clock.monotonic() - locked.at < _MOMENT
        if not sure and not self._lock_at(queue.broker, [queue]):
            return Finished(done=self._place(queue) >= following)
        # This member has the lock. The message may already be consumed, by an earlier try or by another member.
        # Another message may also have the offset.
        if sure or (self._place(queue) < following and not self._is_gone(queue, locked.message)):
            self._remoting.set_consumed(queue, self._topic, self._group, following)
            if go_on and (found := self._remoting.pull(queue, self._topic, self._group, following, 1)[0]):
                return Finished(done=True, following=LockedMessage(queue, found[0], locked.at, locked.run + 1))
        with suppress(*_FAILURES):  # the lock ends by itself
            self.free([queue])
        return Finished(done=True)

    def _route(self) -> None:
        try:
            queues = self._remoting.route(self._topic)
            if queues is None:
                raise NoTopicError(f"no topic {self._topic!r}", _NO_TOPIC)
            masters = {broker.name: broker for broker in self._remoting.brokers()}
        finally:  # A failure counts, too. A silent name server takes 10 s, in which this member renews no lock.
            self._routed_at = self._clock.monotonic()
        self._masters |= masters
        found = [
            self._now(queue) for queue in queues if queue.broker.name in masters
        ]  # a slave has locks and places of its own
        if not found:
            raise RemotingError(f"no broker that has the topic {self._topic!r} is there", 0)
        self.queues = found

    def _now(self, queue: TopicQueue) -> TopicQueue:
        """Return the queue at its broker's newest address, because a broker can move between receiving and settling."""
        return TopicQueue(self._masters.get(queue.broker.name, queue.broker), queue.number)

    def _waiting(self) -> tuple[list[TopicQueue], set[TopicQueue]]:
        """
        Return the queues in which messages wait, and the queues that were made again since the last question.

        Messages wait in a queue if the queue's end differs from the group's offset.
        """
        recently = self._clock.monotonic() - HOLDERS_FIRST
        away = self._failed | {broker for broker, at in self._back_at.items() if at > recently}
        by_broker = _by_broker(queue for queue in self.queues if queue.broker not in away)
        fields = {"consumerGroup": self._group, "topic": self._topic}
        waiting: list[TopicQueue] = []
        made_again: set[TopicQueue] = set()

        def ask(broker: RocketmqBroker) -> None:
            places = places_of(self._ask(broker, _STATISTICS, fields))
            for queue in by_broker[broker]:
                if (place := places.get(queue.number)) is not None:
                    if self._places.is_of_another_log(queue, place):
                        made_again.add(queue)
                    if queue in made_again or place.end != place.consumed:
                        waiting.append(queue)

        self._at_each(by_broker, ask)
        return waiting, made_again

    def _locked(self, queues: Iterable[TopicQueue]) -> list[TopicQueue]:
        """Lock queues, and return the queues that are now locked."""
        by_broker = _by_broker(queues)
        locked: list[TopicQueue] = []
        self._at_each(by_broker, lambda broker: locked.extend(self._lock_at(broker, by_broker[broker])))
        return locked

    def _lock_at(self, broker: RocketmqBroker, queues: Sequence[TopicQueue]) -> list[TopicQueue]:
        table = self._ask(broker, _LOCK, body=self._batch(queues)).table()
        numbers = {each.get("queueId") for each in table.get("lockOKMQSet") or () if isinstance(each, dict)}
        return [queue for queue in queues if queue.number in numbers]

    def _batch(self, queues: Iterable[TopicQueue]) -> dict[str, Any]:
        """Return the body of a request for locks."""
        return {
            "consumerGroup": self._group,
            "clientId": self._id,
            "mqSet": [
                {"topic": self._topic, "brokerName": queue.broker.name, "queueId": queue.number} for queue in queues
            ],
        }

    def _place(self, queue: TopicQueue) -> int:
        """Return the offset of the first message that the group has not consumed."""
        place = self._remoting.consumed(queue, self._topic, self._group)
        return self._remoting.first(queue, self._topic) if place is None else place

    def _first(self, queue: TopicQueue, *, made_again: bool) -> Stored | None:
        """Return the first message that the group has not consumed; None if there is none."""
        place = self._place(queue)
        if made_again:
            place = self._begin_again(queue)
        for _ in range(_MOST_GAPS):
            found, following = self._remoting.pull(queue, self._topic, self._group, place, 1)
            if message := next((stored for stored in found if stored.offset >= place), None):
                return message
            if following == place:
                break
            # Either the broker has deleted the message, and returns the offset that follows; or the log is shorter than the consumed log.
            following = min(following, self._remoting.end(queue, self._topic))
            if following < place:
                place = self._begin_again(queue)
            else:
                place = following
                self._remoting.set_consumed(queue, self._topic, self._group, place)
        return None

    def _begin_again(self, queue: TopicQueue) -> int:
        """
        Set the group's offset to the first message, and return the offset.

        The old offset belongs to an earlier log, or to messages that the broker has lost.
        The brokers do not know which messages were consumed.
        The ledger knows their jobs, so a worker process acknowledges these messages and runs nothing.
        """
        first = self._remoting.first(queue, self._topic)
        self._remoting.set_consumed(queue, self._topic, self._group, first)
        return first

    def _is_gone(self, queue: TopicQueue, message: Stored) -> bool:
        """
        Return whether the broker no longer has this message, because the topic was deleted, or the broker has lost the message.

        Then another message has the same offset, or no message has this offset yet.
        """
        try:
            found, following = self._remoting.pull(queue, self._topic, self._group, message.offset, 1)
        except RemotingError as error:  # An operator can have stopped the group, for example.
            return error.code == _NO_TOPIC
        if found and found[0].offset == message.offset:
            return (found[0].id, found[0].stored_at) != (message.id, message.stored_at)
        return following <= message.offset  # Otherwise the broker has deleted the message after its retention time.

    def _ask(
        self,
        broker: RocketmqBroker,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> RemotingReply:
        return self._remoting.ask(broker.address, code, fields, json.dumps(body).encode() if body else b"")

    def _at_each(self, brokers: Iterable[RocketmqBroker], work: Callable[[RocketmqBroker], object]) -> None:
        """Call `work` for each broker. Leave out brokers that fail. For a while, also leave out brokers that did not reply."""
        silent = self._silent()
        for broker in brokers:
            if broker in silent:
                continue
            with self._failures_of(broker):
                work(broker)
                if broker in self._failed:
                    self._failed.discard(broker)
                    self._back_at[broker] = self._clock.monotonic()

    def _silent(self) -> set[RocketmqBroker]:
        """Return the brokers that are not asked for now; empty if no broker would be left to ask."""
        now = self._clock.monotonic()
        silent = {broker for broker, until in self._silent_until.items() if now < until}
        return set() if silent.issuperset(self.brokers) else silent

    @contextmanager
    def _failures_of(self, broker: RocketmqBroker) -> Iterator[None]:
        """
        Suppress the failure of a broker, as long as another broker has not failed.

        A refused login or right is never suppressed, because the messages of this broker would wait, and no error would show this.
        """
        began = self._clock.monotonic()
        try:
            yield
        except _FAILURES as error:
            if is_refused_login(error):
                raise
            self._failed.add(broker)
            now = self._clock.monotonic()
            if now - began > _MOMENT:
                self._silent_until[broker] = now + _SILENT_FOR
            if self._failed >= set(self.brokers):
                raise


def _by_broker(queues: Iterable[TopicQueue]) -> dict[RocketmqBroker, list[TopicQueue]]:
    found: dict[RocketmqBroker, list[TopicQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker, []).append(queue)
    return found


def _membership(group: str, topic: str) -> dict[str, Any]:
    """Return one group of a heartbeat, as RocketMQ's own clients write it."""
    subscription = {"topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 0}
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription | {"classFilterMode": False, "expressionType": "TAG"}],
        "unitMode": False,
    }
