"""
The adapter for RocketMQ's brokers (remoting): it implements `steadyworker.adapter.Adapter` with one I/O thread.

It speaks RocketMQ's protocol itself, because the client library for brokers is no good for long jobs.
What was tried with rocketmq-client-python 0.5.0rc2 on 4.9.7:

- In orderly mode, it asks for the next message of a queue while one runs; the broker replies after 15 s that there is none.
  The library then moves the queue's place behind the running message, and a killed or stopped consumer loses it (rocketmq-client-cpp#322).
- In concurrent mode, which is the default, the place stays at the running message.
- In both modes, a member that joins starts a running message again after about 11 s, if its queue moved.
- Its import name is that of the library for proxies, and it has a native library for x86-64 only.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from typing_extensions import override

from steadyworker.adapter import Capabilities, Delays, QueueSpec, Settings
from steadyworker.network.preparation import Preparation
from steadyworker_rocketmq.adapter import LATE, SILENT, RocketmqAdapter
from steadyworker_rocketmq.direct.consumer import DirectConsumer
from steadyworker_rocketmq.direct.member import LOCKED_FOR
from steadyworker_rocketmq.direct.publisher import DirectPublisher
from steadyworker_rocketmq.errors import translated
from steadyworker_rocketmq.topology import PreparedTopics, delay_levels, prepare_at, remoting_of


class DirectAdapter(RocketmqAdapter[DirectConsumer, DirectPublisher]):
    """
    The adapter for one queue at some brokers and one worker process; it connects at its first use.

    It promises what the other adapters do, with these differences:

    - The broker has `?queues=` queues for a topic, and a message is delivered only after all earlier ones of its queue.
      So one long job delays the messages behind it in its queue, and a topic's jobs run at most one for each queue.
    - A message of a killed worker comes again after up to 60 s, when its queue's lock ends.
    - A delivery outlives a cut connection: the next connection renews the lock, and acknowledges.
      While no broker runs, no other worker can receive its message; if another one locks the queue first afterwards, the delivery is `Lost`.
    - A delay is rounded up to one of the broker's levels.
    - A broker writes places to its disk every 5 s.
      So after its crash, messages that were acknowledged shortly before come again; the ledger answers them from its record.
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
        """The abilities of a broker: delays by levels, which are the brokers' own once it was asked, and a count of members."""
        return Capabilities(
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

    def _prepare(self) -> PreparedTopics:
        """Make topics and group, and read the brokers' delay levels; raises BrokerUnavailable or ConfigError."""
        url = self._url()
        prepared = prepare_at(url, self._names, self._settings.topology, self._settings.clock)
        with translated(str(url)), remoting_of(url, self._settings.clock) as remoting:
            self._levels = delay_levels(remoting, remoting.brokers(), url)
        return replace(prepared, levels=self._levels)
