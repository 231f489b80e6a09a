"""
The adapter for ActiveMQ Classic 5.18 and newer, and Artemis 2.55 and newer.

The adapter uses STOMP 1.2 through stomp.py. The README explains the broker's URL.

| our word | in STOMP |
|---|---|
| identity of a broker | the hosts of the URL, sorted |
| queue, dead-letter queue | queues; the broker creates a queue at the first use |
| delay | the broker's scheduler (`AMQ_SCHEDULED_DELAY`), exact to a second |
| Delivery | a MESSAGE frame; the delivery's id is the header `ack` |
| epoch | one consuming connection (`epoch.py`) |
| `Lost` | the connection ended: a cut, an ERROR, a late receipt, or a broker that was silent for three heart-beats |
| redelivery | at once if the broker notices the end of the connection, otherwise after two to four heart-beats |
| publish | a persistent SEND with a receipt, on a connection of its own (`publisher.py`) |
| settle `CONFIRMED` | the broker's receipt for the ACK |
| release | the end of the subscription that holds the delivery; never a NACK, which would lose the message |
| prefetch | the number of subscriptions; each receives one message, and the next message after the ACK |
| headers | text, as in STOMP; a header with a reserved name travels in `sw-stomp` (`messages.py`) |

One I/O thread (`steadyworker.network.iothread`) decides everything; stomp.py's reading threads only pass frames to it.
Blocking work (connecting, checking, reading dead letters) uses other threads or other connections.
"""

from __future__ import annotations

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.errors import ConfigError

try:
    from steadyworker_stomp.adapter import StompAdapter
except ModuleNotFoundError as error:
    if error.name != "stomp":
        raise
    raise ConfigError(
        "Expected the client library stomp.py for stomp: and stomp+ssl: URLs, but it is not installed: "
        "pip install 'steadyworker[stomp]'.",
        id="config.no-adapter",
    ) from error

__all__ = ["StompAdapter", "open_adapter"]


def open_adapter(url: str, spec: QueueSpec, settings: Settings) -> StompAdapter:
    """
    Return an adapter for one queue of the broker at `url`; the adapter connects at its first use.

    Raises:
        ConfigError: The URL or a name is invalid for this broker.
    """
    return StompAdapter(url, spec, settings)
