"""
The adapter for RocketMQ. It has two drivers: one for proxies, and one for brokers. `url.py` explains the URLs.

| our word | in RocketMQ |
|---|---|
| identity of a broker | the hosts of the URL, sorted |
| queue | a topic, and a consumer group of the same name |
| dead-letter queue | the topic `<queue>-dead`, and the broker's own `%DLQ%<group>` and `%DLQ%<group>-later` |
| publish | a send that the broker confirmed |
| settle `SENT` | the broker's reply to the acknowledgement; never `CONFIRMED`, because a broker that crashes can forget the acknowledgement |
| headers | properties; headers that properties cannot express travel in `sw-rocketmq` (`messages.py`) |

| | `rocketmq+grpc:` (`grpc/`) | `rocketmq:` (`direct/`) |
|---|---|---|
| client library | rocketmq-python-client | none (`remoting.py`) |
| broker | 5.x with a proxy | 4.9 and 5.x |
| delay | exact to a second, in the topic `<queue>-later` | the broker's levels |
| a message is held by | a handle, which each renewal replaces | the lock of the message's queue |
| release | a copy to the work topic, and then an acknowledgement | the end of the lock |
| redelivery after a kill | when the invisibility ends (60 s) | when the lock ends (60 s) |
| a message that arrives while a connection is cut | a proxy gives it to the lost poll, and delivers it again after 3 s | comes with the next search |
| calls to the broker | several at once | one at a time, so a prefetch above 1 helps only jobs that are longer than two round trips |
"""

from __future__ import annotations

from steadyworker.adapter import QueueSpec, Settings
from steadyworker_rocketmq.direct.adapter import DirectAdapter

__all__ = ["DirectAdapter", "open_adapter"]


def open_adapter(url: str, spec: QueueSpec, settings: Settings) -> DirectAdapter:
    """
    Return an adapter for one queue of the brokers behind the name servers at `url`. The adapter connects at its first use.

    Raises:
        ConfigError: The URL or a name is invalid for RocketMQ.
    """
    return DirectAdapter(url, spec, settings)
