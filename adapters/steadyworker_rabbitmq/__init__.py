"""
RabbitMQ over AMQP 0-9-1, with pika: 3.10 and newer, `amqp://` and `amqps://` (`url.py` has the URL).

| our word | here |
|---|---|
| broker, its identity | a cluster's name and a virtual host |
| queue, dead-letter queue, delays | quorum queues, and one retry queue for each level (`topology.py`) |
| Delivery | a `basic.deliver`; its id is the delivery tag |
| epoch | one channel of the consuming connection (`epoch.py`) |
| connection lost | the connection, the channel or the consumer ended: a cut, a delivery timeout, a deleted queue, a shutdown |
| redelivery | at once when the broker saw the end; after two to three heartbeats when it did not |
| publish confirmed | a publisher confirm of a mandatory, persistent message, on a connection of its own (`publisher.py`) |
| settle `known` | a `basic.qos` behind the ack was answered on the same channel |
| release | `basic.nack` with requeue: unlike `basic.reject` it does not count towards a delivery limit (4.3) |
| credits | the prefetch of one consumer; none is cancelled by closing anything |
| headers | text; other types and the message's properties survive a retry (`messages.py`) |

One thread does all of it (`iothread.py`): it turns pika's loop, and nothing else touches pika's asynchronous connections.
What blocks (making queues, looking at them, reading dead letters) uses connections of its own, outside that thread.
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
        "Expected the client library pika for amqp: and amqps:, got none: pip install 'steadyworker[rabbitmq]'."
    ) from error

__all__ = ["RabbitmqAdapter", "open_adapter"]


def open_adapter(url: str, spec: QueueSpec, settings: Settings) -> RabbitmqAdapter:
    """
    An adapter for one queue of the broker that `url` names; touches nothing until it is used.

    Raises:
        ConfigError: A URL or a name that RabbitMQ does not take.
    """
    return RabbitmqAdapter(url, spec, settings)
