"""
The embedded broker: a durable queue in one SQLite file, shared by any number of processes of one host.

It needs no server, and it is the reference adapter: whoever writes one for another broker copies this package.

| our word | here |
|---|---|
| broker, its identity | a file; the random id that it was given when it was made |
| queue, dead-letter queue | a name in `queues`; its messages are rows of `messages`, first due first |
| Delivery | a row of `deliveries`: this message, to this consumer, for the n-th time |
| epoch | a row of `consumers`, and a locked file beside the broker's (`presence.py`) |
| connection lost | the file failed or was replaced, or another process evicted us because we were silent for 30 s |
| redelivery | a gone consumer's hand-overs are freed: at once when its lock is free, after 30 s when it is frozen |
| publish confirmed | the commit is on disk (`synchronous=FULL`) |
| settle `known` | the commit is on disk (ack), or is there for every process (release) |
| delay | `due`, exact, by CLOCK_BOOTTIME; across a reboot by the wall clock |
| credits | how many hand-overs we may hold: the LIMIT of the statement that takes messages |

How to write an adapter, in eight points:

1. Make a package with these files: `__init__` (`open_adapter`), `adapter`, `connection`, `topology`, `errors`.
   Register it in the entry-point group `steadyworker.adapters` under its URL scheme.
   Import from `steadyworker.adapter`, `steadyworker.errors` and `steadyworker.names`, and from nothing else of ours.
2. Give the client library one I/O thread, and let nothing else touch the client that consumes.
   Every signal comes from that thread, in order: Connected, deliveries, Lost, Connected…
3. Publish on a connection of its own, and return only when the broker has the message.
   When you cannot know, raise PublishFailed: a message twice is better than none.
4. A settlement belongs to its epoch.
   Refuse an older one (StaleDelivery) without a word to the broker; when its fate is unknown, raise Unsettled and end the epoch.
5. Reconnect for ever, with back-off (tenacity), and say Gone once for each cause.
   Only what no waiting heals is `final`.
6. Translate the client's errors in one place (`translated`): what was expected, what was got, what to do.
   Log nothing, swallow nothing.
7. Decide nothing about retries, attempts or dead letters: publish what you are given, and say in `Capabilities` what you cannot do.
8. Subclass `steadyworker.testing.conformance.AdapterSuite`, and be done when it is green.
"""

from __future__ import annotations

from steadyworker.adapter import QueueSpec, Settings
from steadyworker_sqlite.adapter import SqliteAdapter
from steadyworker_sqlite.topology import check_names, path_of

__all__ = ["SqliteAdapter", "open_adapter"]


def open_adapter(url: str, spec: QueueSpec, settings: Settings) -> SqliteAdapter:
    """
    An adapter for one queue of the broker file that `url` names (`sqlite:PATH`); touches nothing until it is used.

    Raises:
        ConfigError: A URL or a name that this broker does not take.
    """
    check_names(spec)
    return SqliteAdapter(path_of(url), spec, settings)
