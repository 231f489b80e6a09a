"""
The adapter for RabbitMQ 3.10 and newer. It uses AMQP 0-9-1 through pika; the README explains the URLs.

| our word | in RabbitMQ |
|---|---|
| identity of a broker | the cluster's name and the virtual host |
| queue, dead-letter queue, delays | quorum queues, and one retry queue for each delay level (`topology.py`) |
| Delivery | a `basic.deliver`; its id is the delivery tag |
| epoch | one channel of the consuming connection (`epoch.py`) |
| `Lost` | the connection, the channel or the consumer ended, for example by a cut, a delivery timeout, a deleted queue or a shutdown |
| redelivery | at once if the broker noticed the end of the connection; otherwise after two to three heartbeats |
| publish | a mandatory, persistent message with a publisher confirm, on a connection of its own (`publisher.py`) |
| settle `CONFIRMED` | the broker replied to a `basic.qos` that followed the ack on the same channel |
| release | `basic.nack` with requeue, which does not count towards a delivery limit, unlike `basic.reject` (RabbitMQ 4.3) |
| reject | `basic.reject` without requeue, if the work queue's own arguments move the message to the Worker's dead-letter queue with the strategy `at-least-once` |
| prefetch | the prefetch count of one consumer; a prefetch of 0 cancels the consumer, but the connection stays open |
| depth | passive declares of all queues, and the management API for un-acked messages (`depth.py`); there is no browse |
| headers | text only; values of other types, and the message's properties, survive a retry (`messages.py`) |

One I/O thread (`iothread.py`) runs pika's loop, and no other thread touches pika's asynchronous connections.
Blocking work (creating and checking queues, reading dead letters) uses connections of its own, outside that thread.
"""

from __future__ import annotations

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.errors import ConfigError

try:
    from steadyworker_rabbitmq.adapter import RabbitmqAdapter
except ModuleNotFoundError as error:
    if error.name != "pika":
        raise
    raise ConfigError(
        "Expected the client library pika for amqp: and amqps: URLs, but it is not installed: "
        "pip install 'steadyworker[rabbitmq]'.",
        id="config.no-adapter",
    ) from error

__all__ = ["RabbitmqAdapter", "open_adapter"]


def open_adapter(url: str, spec: QueueSpec, settings: Settings) -> RabbitmqAdapter:
    """
    Return an adapter for one queue of the broker at `url`; the adapter connects at its first use.

    Raises:
        ConfigError: The URL or a name is invalid for RabbitMQ.
    """
    return RabbitmqAdapter(url, spec, settings)
