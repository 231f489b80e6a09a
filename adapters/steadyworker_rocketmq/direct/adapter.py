"""
The adapter for RocketMQ's brokers. It implements `steadyworker.adapter.Adapter` with one I/O thread.

The adapter implements RocketMQ's remoting protocol itself, because the client library for brokers does not work for long jobs.
This was tried with rocketmq-client-python 0.5.0rc2 on 4.9.7:

- In orderly mode, the library asks for the queue's next message while a message runs. The broker replies after 15 s that there is no such message.
  The library then moves the group's offset past the running message, as if that message were consumed.
  If the consumer is killed or stopped, the running message is lost (rocketmq-client-cpp#322).
- In concurrent mode, which is the default, the offset stays at the running message.
- In both modes, a new member starts a running message again after about 11 s, if the message's queue moved to this member.
- The library has the same import name as the library for proxies. Its native library is for x86-64 only.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

from typing_extensions import override

from steadyworker.adapter import Browsed, Capabilities, Delays, Depth, QueueSpec, Settings, Unbrowsed
from steadyworker.network.preparation import Preparation
from steadyworker_rocketmq.adapter import LATE, SILENT, RocketmqAdapter
from steadyworker_rocketmq.browse import delayed_ones, ready_ones
from steadyworker_rocketmq.depth import depth_of_locked
from steadyworker_rocketmq.direct.consumer import DirectConsumer
from steadyworker_rocketmq.direct.member import LOCKED_FOR
from steadyworker_rocketmq.direct.publisher import DirectPublisher
from steadyworker_rocketmq.errors import translated
from steadyworker_rocketmq.topology import PreparedTopics, delay_levels, prepare_at, remoting_of


class DirectAdapter(RocketmqAdapter[DirectConsumer, DirectPublisher]):
    """
    The adapter that one worker process uses for one queue of a cluster of brokers. The adapter connects at its first use.

    It keeps the same promises as the other adapters, with these differences:

    - The broker has `?queues=` queues for a topic. It delivers a message only after all earlier messages of the same queue.
      So a long job delays the later messages of its queue, and at most one job of each queue runs at a time.
    - A message of a killed worker comes again after up to 60 s, when the lock of its queue ends.
    - A delivery outlives a cut connection: over the next connection, the adapter renews the lock, and acknowledges the message.
      While no broker runs, no other worker can receive the message.
      If another worker locks the queue first when a broker runs again, the delivery is `Lost`.
    - A delay is rounded up to one of the broker's levels.
    - A broker writes the offsets of groups to its disk every 5 s.
      So after a broker's crash, messages that were acknowledged shortly before come again.
      The ledger knows their jobs, so a worker process acknowledges these messages and runs nothing.
    """

    def __init__(self, url: str, spec: QueueSpec, settings: Settings) -> None:
        super().__init__(url, spec, settings)
        self._levels = self._first.delay_levels
        self._preparation = Preparation(self._prepare)
        self._publisher = DirectPublisher(self._url, self._names, self._preparation, settings)
        id_ = f"{settings.consumer}@{secrets.token_hex(6)}"
        self._consumer = DirectConsumer(self._io, self._url, self._names, self._preparation, id_, spec, settings)

    @property
    @override
    def capabilities(self) -> Capabilities:
        """The abilities of a broker: a count of members, and delays by levels. After the first question, the levels are the broker's own."""
        return Capabilities(
            system="rocketmq",
            delays=Delays.LEVELS,
            levels=tuple(sorted(self._levels)),
            counts_consumers=True,
            counts_holders=True,
            reports_name=False,
            forgets_consumers_within=SILENT,
            redelivers_within=LATE * LOCKED_FOR,
            holds_dead_letters=False,
            loses_unacked=False,
            max_body=self._settings.max_body,
        )

    @override
    def exists(self) -> bool:
        """Return whether a name server knows the work topic."""
        return self._at_name_server()

    @override
    def consumers(self) -> int:
        """Return the number of members of the consumer group."""
        url = self._url()
        with translated(str(url)), remoting_of(url, self._settings.clock) as remoting:
            return len(remoting.members(self._names.group))

    @override
    def depth(self) -> Depth:
        """
        Return the numbers of messages and consumers.

        While other members are in the group and messages wait, no broker reports which of these messages are held.
        """
        url, clock = self._url(), self._settings.clock
        with translated(str(url)), remoting_of(url, clock) as remoting:
            return depth_of_locked(remoting, self._names, url.delay_levels, clock, self._consumer.held_by)

    @override
    def browse(self, limit: int) -> Iterator[Browsed | Unbrowsed]:
        """Yield messages, including messages that members hold; then yield the delayed messages, if they are few enough to read."""
        url = self._url()
        with translated(str(url)), remoting_of(url, self._settings.clock) as remoting:
            shown = 0
            for found in ready_ones(remoting, [(self._names.work, self._names.group)], limit):
                yield found
                shown += 1
            if shown < limit:
                yield from delayed_ones(remoting, self._names.work, url.delay_levels, limit - shown)

    def _prepare(self) -> PreparedTopics:
        """Make topics and the group, and read the brokers' delay levels; raises BrokerUnavailable or ConfigError."""
        url = self._url()
        prepared = prepare_at(url, self._names, self._settings.topology, self._settings.clock)
        with translated(str(url)), remoting_of(url, self._settings.clock) as remoting:
            self._levels = delay_levels(remoting, remoting.brokers(), url)
        return replace(prepared, levels=self._levels)
