"""
The embedded broker: a durable queue in one SQLite file, shared by any number of processes of one host.

It needs no server.
It is the reference adapter: to write an adapter for another broker, start from a copy of this package.

| our word | in this broker |
|---|---|
| broker, its identity | a file; a random id, generated when the file is created |
| queue, dead-letter queue | a name in `queues`; its messages are rows of `messages`, ordered by due time |
| Delivery | a row of `deliveries`: this message, to this consumer, for the n-th time |
| epoch | a row of `consumers`, and a locked file in a folder next to the broker file (`presence.py`) |
| `Lost` | the file failed or was replaced, or another process evicted us because we were silent for 30 s |
| redelivery | a dead consumer's deliveries are released at once, a frozen consumer's after 30 s |
| publish | the commit is on disk (`synchronous=FULL`) |
| settle `CONFIRMED` | the commit is on disk (ack), or visible to every process (release) |
| delay | `due`, exact, by CLOCK_BOOTTIME; across a reboot by the wall clock |
| prefetch | how many deliveries we may hold: the LIMIT of the statement that takes messages |

An adapter of your own must do eight things:

1. Make a package with these files: `__init__` (`open_adapter`), `adapter`, `connection`, `topology`, `errors`.
   Register it in the entry-point group `steadyworker.adapters` under its URL scheme.
   Import only from `steadyworker.adapter`, `.errors`, `.names`, `.system.mounts` and `.system.private`.
2. Give the client library one I/O thread; no other thread may touch the client that consumes.
   Send every signal from that thread, in order: Connected, deliveries, Lost, Connected…
3. Publish on a connection of its own, and return only when the broker has the message.
   If that is uncertain, raise PublishFailed: a duplicate message is better than a lost one.
4. A settlement belongs to its epoch.
   Refuse an older one (StaleDelivery) without sending anything to the broker.
   If its result is unknown, raise Unsettled and end the epoch.
5. Reconnect without limit, with back-off (tenacity), and send Unreachable once for each cause.
   Set `final` only for a cause that waiting cannot remove.
6. Translate the client's errors in one place (`translated`): what was expected, what was got, what to do.
   Log nothing, swallow nothing.
7. Decide nothing about retries, attempts or dead letters: publish each message as given.
   Declare in `Capabilities` what the broker cannot do.
8. Subclass `steadyworker.testing.conformance.AdapterSuite`; the adapter is done when all its tests pass.
"""

from __future__ import annotations

from steadyworker.adapter import QueueSpec, Settings
from steadyworker_sqlite.adapter import SqliteAdapter
from steadyworker_sqlite.topology import check_names, path_of

__all__ = ["SqliteAdapter", "open_adapter"]


def open_adapter(url: str, spec: QueueSpec, settings: Settings) -> SqliteAdapter:
    """
    Return an adapter for one queue of the broker file in `url` (`sqlite:PATH`); it opens the file when it is first used.

    Raises:
        ConfigError: The URL or a name is invalid for this broker.
    """
    check_names(spec)
    return SqliteAdapter(path_of(url), spec, settings)
