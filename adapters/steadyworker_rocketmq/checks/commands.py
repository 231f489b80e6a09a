"""
The commands of `mqadmin` in the remedies. Each command is complete, so that an operator can copy it.

If the command omits a setting, `updateTopic` resets it to its default (8 queues), and `updateSubGroup` does so, too (16 deliveries).
If a topic loses queues, it loses their messages. So each command names every setting that matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from steadyworker.network.url import Address
from steadyworker_rocketmq.remoting import RocketmqBroker


class Commands:
    """
    The commands for one or more clusters.

    Args:
        servers: The name servers.
        brokers: The brokers that the commands change.
    """

    def __init__(self, servers: Sequence[Address], brokers: Iterable[RocketmqBroker]) -> None:
        text = ";".join(map(str, servers))
        self._servers = f"-n '{text}'" if len(servers) > 1 else f"-n {text}"
        self._clusters = sorted({broker.cluster for broker in brokers if broker.cluster}) or ["CLUSTER"]

    def topic(self, name: str, queues: int, kind: str | None) -> str:
        """Return the command that makes or changes a topic, with this number of queues at each broker."""
        attribute = f" -a +message.type={kind}" if kind else ""
        return self._each(f"updateTopic {self._servers} -c {{}} -t {name} -r {queues} -w {queues}{attribute}")

    def group(self, name: str, attempts: int) -> str:
        """Return the command that makes or changes a consumer group."""
        return self._each(f"updateSubGroup {self._servers} -c {{}} -g {name} -r {attempts} -s true")

    def _each(self, command: str) -> str:
        return " && ".join(f"mqadmin {command.format(cluster)}" for cluster in self._clusters)
