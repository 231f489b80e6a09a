"""
The embedded broker: a durable queue in one SQLite file, shared by any number of processes of one host.

The embedded broker needs no server.
This package is the reference adapter: to write an adapter for another broker, start from a copy of these files.

| file | subject | copy it |
|---|---|---|
| `adapter.py` | the adapter, and its reader of dead letters | yes |
| `connection.py` | the I/O thread, which consumes | yes |
| `session.py` | one epoch | yes, without the eviction of other consumers |
| `publisher.py` | the publishing connection | yes |
| `topology.py` | the rules for URLs and names, and the checks | yes |
| `errors.py` | the translation of the client library's errors | yes |
| `store.py` | the tables and SQL statements | no: use a client library in its place |
| `presence.py` | the locks and bells of the processes that share the file | no: only for a file on one host |

The texts of the checks are in `findings.toml` (`steadyworker/findings.py`).

| our word | in this broker |
|---|---|
| broker, its identity | a file; a random id, generated when the file is created |
| queue, dead-letter queue | a name in `queues`; its messages are rows of `messages`, ordered by due time |
| Delivery | a row of `deliveries`: the n-th delivery of a message, to one consumer |
| epoch | a row of `consumers`, and a locked file in a folder next to the broker file (`presence.py`) |
| `Lost` | the file failed or was replaced; or another process evicted this consumer, which had been silent for 30 s |
| redelivery | another process releases a dead consumer's deliveries at once, and a frozen consumer's deliveries after 30 s |
| publish | the commit is on disk (`synchronous=FULL`) |
| settle `CONFIRMED` | the commit is on disk (ack), or visible to every process (release) |
| delay | exact: `due` is a time by CLOCK_BOOTTIME; across a reboot, the wall clock counts |
| depth, browse | one statement over the index of due times; the messages of a dead consumer are ready |
| prefetch | the number of deliveries that a consumer may hold; the statement that receives messages has this limit |

The author of an adapter has eight duties:

1. Make a package whose `__init__.py` has `open_adapter`.
   Register the package in the entry-point group `steadyworker.adapters`, under its URL scheme.
   Register the texts of its findings in the group `steadyworker.findings`.
   Import only from `steadyworker.adapter`, `.errors`, `.findings` and `.names`.
   An adapter for a file also imports `.system.mounts` and `.system.private`.
   An adapter for a broker on a network also imports `.network`, which does parts of duties 2, 5 and 6.
2. Use one I/O thread; no other thread may use the client library's consuming connection.
   Send every signal from that thread, in order: Connected, deliveries, Lost, Connected…
3. Publish on another connection, and return only when the broker has the message.
   If it is uncertain whether the broker has the message, raise PublishFailed: a duplicate message is better than a lost message.
4. Settle a delivery only in its own epoch.
   For a delivery of an earlier epoch, raise StaleDelivery, and send nothing to the broker.
   If the result of a settlement is unknown, raise Unsettled and end the epoch.
5. Reconnect without limit, with back-off (tenacity), and send Unreachable once for each cause.
   Set `final` only if the cause stays, however long the adapter waits.
6. Translate the client library's errors in one place (`translated`).
   Each error names what was expected, what was got, and what to do.
   Log nothing, and hide no error.
7. Decide nothing about retries, attempts or dead letters: publish each message unchanged.
   Declare in `Capabilities` the features that the broker does not have.
   In `depth`, name the reason for each number that the broker does not report, and never receive a message to count it.
8. Subclass `steadyworker.testing.conformance.AdapterSuite`; the adapter is complete when all its tests pass.
"""

from __future__ import annotations

from steadyworker.adapter import QueueSpec, Settings
from steadyworker_sqlite.adapter import SqliteAdapter
from steadyworker_sqlite.topology import check_names, path_of

__all__ = ["SqliteAdapter", "open_adapter"]


def open_adapter(url: str, spec: QueueSpec, settings: Settings) -> SqliteAdapter:
    """
    Return an adapter for one queue of the broker file in `url` (`sqlite:PATH`); the adapter opens the file at its first use.

    Raises:
        ConfigError: The URL or a name is invalid for this broker.
    """
    check_names(spec)
    return SqliteAdapter(path_of(url), spec, settings)
