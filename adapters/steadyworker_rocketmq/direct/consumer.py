"""
The consumer of one queue at the brokers. A delivery outlives its connection, so the adapter has one epoch for its whole life.

::

    topics made? ──→ a broker replies ──→ Connected ──→ a call fails ──→ Unreachable
       ↑                   │                                                │
       └────── wait ───────┴────────────────────────────────────────────────┘   Connected again has the same epoch

**A member** of the consumer group exists while the prefetch is above 0 or a delivery is held.
**A beat** every few seconds shows that the brokers reply, and renews the locks of the held deliveries.
**A search** receives as many messages as the prefetch allows. If a search finds no message, the next search begins after a pause of up to 1 s.

`direct.connection.py` has the connection, `direct.member.py` has the calls, and `direct.held.py` has the held deliveries.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from steadyworker.adapter import Clock, QueueSpec, Settings
from steadyworker.errors import BrokerUnavailable
from steadyworker.network import consumer
from steadyworker.network.backoff import USEFUL_AFTER
from steadyworker.network.iothread import IoThread, Timer
from steadyworker.network.preparation import Preparation
from steadyworker.network.settlement import Settlement
from steadyworker_rocketmq.direct.connection import DirectLink, ignore
from steadyworker_rocketmq.direct.held import DirectHeld
from steadyworker_rocketmq.direct.member import HOLDERS_FIRST, GroupMember, LockedMessage, NoTopicError
from steadyworker_rocketmq.direct.places import Places
from steadyworker_rocketmq.held import EPOCH
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.remoting import TopicQueue
from steadyworker_rocketmq.topology import PreparedTopics, remoting_of
from steadyworker_rocketmq.url import RocketmqUrl

_BEAT_EVERY = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two searches that find nothing: each pause is twice as long as the one before it."""

_HURRY = (1.0, 4.0)
"""The shortest and the longest wait before a reconnect while deliveries are held; both are short, because locks expire."""


class DirectEpoch:
    """
    The one epoch of an adapter: membership, searches and deliveries. Only the I/O thread may call the methods.

    Args:
        link: The connection.
        io: The I/O thread.
        held: The deliveries that are held.
        clock: The clock.
        window: Returns the current prefetch.
    """

    number = EPOCH

    def __init__(
        self, link: DirectLink, io: IoThread, held: DirectHeld, clock: Clock, window: Callable[[], int]
    ) -> None:
        self._link = link
        self._io = io
        self._held = held
        self._clock = clock
        self._window = window
        self._joined = False
        self._searching = False
        self._beating = False
        self._over = False
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0
        self._next_search: Timer | None = None
        self._next_beat: Timer | None = None
        self._since = math.inf

    def begin(self, *, again: bool) -> None:
        """Record that a connection has begun; `again` is true if an earlier connection was lost."""
        self._since = self._clock.monotonic()
        self._held.has_settled = False
        self._not_before = self._since + HOLDERS_FIRST if again else self._since
        self._joined = False
        self._searching = False
        self._beating = False
        self._pause = _FIRST_PAUSE
        if again:
            self._held.doubt()

    def useful(self, after: float) -> bool:
        """Return whether there is a connection that has settled a delivery, or has lasted for `after` seconds."""
        if self._since == math.inf:
            return False
        return self._held.has_settled or self._clock.monotonic() - self._since >= after

    def adjust(self) -> None:
        """Join or leave the group, and search, as the prefetch requires."""
        if self._over or not self._link.is_open:
            return
        wanted = self._window() > 0 or bool(self._held)
        if self._next_beat is None or wanted != self._joined:
            self._set_joined(joined=wanted)
        if self._window() > len(self._held):
            self._pause = _FIRST_PAUSE
            self._search()

    def settle(self, settlement: Settlement) -> None:
        """Settle one delivery."""
        self._held.settle(settlement)

    def leave(self) -> None:
        """Release every delivery, and leave the group, because the adapter stops."""
        self._over = True
        self.pause()
        self._held.release_all()
        if self._joined and self._link.is_open:
            self._link.run(GroupMember.leave, ignore)

    def pause(self) -> None:
        """Stop all timers, because the connection is lost."""
        self._since = math.inf
        for timer in (self._next_search, self._next_beat):
            if timer is not None:
                timer.cancel()
        self._next_search = self._next_beat = None

    # ---------------------------------------------------------------------------------------------------------------

    def _set_joined(self, *, joined: bool) -> None:
        if self._joined and not joined:
            self._link.run(GroupMember.leave, ignore)
        self._joined = joined
        self._beat()

    def _beat(self) -> None:
        """Renew the locks of this member, and send heartbeats."""
        if self._next_beat is not None:
            self._next_beat.cancel()
        self._next_beat = self._io.after(_BEAT_EVERY, self._beat)
        self._held.renew()
        if not self._beating:  # If servers do not reply, a beat takes long, and many beats would delay the renewals.
            self._beating = True
            joined = self._joined
            self._link.run(lambda member: member.beat(joined=joined), lambda _: self._beaten(joined=joined))

    def _beaten(self, *, joined: bool) -> None:
        self._beating = False
        if joined != self._joined and self._link.is_open and not self._over:
            self._beat()

    def _search(self) -> None:
        """Ask for messages, unless a search is under way."""
        if self._next_search is not None:
            self._next_search.cancel()
            self._next_search = None
        free = self._window() - len(self._held)
        if self._searching or self._over or free <= 0 or not self._link.is_open:
            return
        if (wait := self._not_before - self._clock.monotonic()) > 0:
            self._next_search = self._io.after(wait, self._search)
            return
        self._searching = True
        but = self._held.queues
        self._link.run(lambda member: member.receive(free, but), self._found)

    def _found(self, answer: Future[list[LockedMessage]]) -> None:
        self._searching = False
        if answer.exception() is not None:
            return  # the connection is lost
        found = answer.result()
        spare = []
        for locked in found:
            if not self._over and len(self._held) < self._window():
                self._held.add(locked)
            else:
                spare.append(locked.queue)
        if spare:
            self._link.run(lambda member: member.free(spare), ignore)
        if found:
            self._pause = _FIRST_PAUSE
            self._search()
        elif not self._over:
            self._next_search = self._io.after(self._pause, self._search)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)


class DirectConsumer(consumer.Consumer[DirectLink, DirectEpoch]):
    """
    The consumer of one queue (`steadyworker.network.consumer`).

    Args:
        io: The I/O thread.
        url: Returns the current URL.
        names: The names of topics and groups.
        preparation: Makes topics and groups.
        id_: The id of this member.
        spec: The queue to consume.
        settings: The operator's settings.
    """

    def __init__(
        self,
        io: IoThread,
        url: Callable[[], RocketmqUrl],
        names: QueueNames,
        preparation: Preparation[PreparedTopics],
        id_: str,
        spec: QueueSpec,
        settings: Settings,
    ) -> None:
        super().__init__(io)
        self._url = url
        self._names = names
        self._preparation = preparation
        self._id = id_
        self._clock = settings.clock
        self._queues: list[TopicQueue] = []
        self._places = Places()
        self.link = DirectLink(io, self._connect, lambda: str(url()), self._up, self._down, self._ended)
        self._held = DirectHeld(self.link, spec, self._clock, self.signal, lambda: self._window, self._adjust)
        self._only = DirectEpoch(self.link, io, self._held, self._clock, lambda: self._window)

    def held_by(self, members: Sequence[str]) -> Mapping[TopicQueue, int] | None:
        """Return the offsets of the messages that these members of the group hold; None if other members than this one can hold some."""
        return self._held.offsets if {*members} <= {self._id} else None

    def _connect(self) -> GroupMember:
        """Return an open member; blocks."""
        self._preparation.prepared()
        remoting = remoting_of(self._url(), self._clock)
        member = GroupMember(remoting, self._names, self._id, self._clock, self._queues, self._places)
        try:
            member.open()
            self._queues = member.queues
        except NoTopicError:
            self._preparation.forget()
            member.close()
            raise
        except BaseException:
            member.close()
            raise
        return member

    def _ended(self) -> None:
        self._held.abandon()

    def _go(self) -> None:
        """Take the next step towards Connected."""
        if not self._io.stopping and not self.link.is_open:
            self.link.open()

    def _up(self) -> None:
        self._only.begin(again=self._epochs > 0)
        self._begin(self._only)

    def _down(self, error: BrokerUnavailable) -> None:
        useful = self._only.useful(USEFUL_AFTER)
        self._only.pause()
        self._gone(error)
        if self._held:
            self._again(random.uniform(*_HURRY))  # noqa: S311 - so that not all workers ask at once
        elif useful:
            self._again(self._backoff.cut(useful=True))
