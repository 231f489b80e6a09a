"""
The reasons why a runner accepts no message.

Readiness, the text about it, and the catalogue's entry all come from these reasons.

| part | not ready from | until |
|---|---|---|
| `broker` | the start, or the loss of the connection | the next connection |
| `broker alarm` | an alarm of the broker, which then accepts no message | the end of the alarm |
| `ledger` | a call without a response | the next reply to a renewal |
| `host` | a run's report that this host cannot run the jobs | the end of the process |
| `consumers` | an audit that found a cause | an audit that found no cause |
| `setup` | the start, or the failure of a slot | the slot is ready |
| `stage` | the stage `quiet`, or a stop | the stage `running` |
| `work queue`, `later queue`, `dead queue` | a message that the broker does not accept for this target | no plan waits to publish there |

A pause of the queue (`Facts.pause`) is no such reason: the runner accepts no message, but the process is ready.
A person has ordered the pause, and the process can accept messages as soon as the pause ends.
So an operator can deploy a new version while a queue is paused, although a rolling deploy waits until each new process is ready.
`/readyz` then responds with 200, and names the pause in the body.
"""

from __future__ import annotations

from dataclasses import dataclass

BROKER = "broker"
ALARM = "broker alarm"
LEDGER = "ledger"
HOST = "host"
CONSUMERS = "consumers"
SETUP = "setup"
STAGE = "stage"
PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Cause:
    """
    The reason why one part is not ready.

    Attributes:
        why: The reason, for people.
        explain: The id of the catalogue's entry that explains the reason; empty if the catalogue has none.
    """

    why: str
    explain: str = ""
