"""The driver for RocketMQ's proxies, over rocketmq-python-client. Its schemes are `rocketmq+grpc` and, with TLS, `rocketmq+grpcs`."""

from __future__ import annotations

from steadyworker.adapter import QueueSpec, Settings
from steadyworker_rocketmq.grpc.adapter import GrpcAdapter

__all__ = ["GrpcAdapter", "open_adapter"]


def open_adapter(url: str, spec: QueueSpec, settings: Settings) -> GrpcAdapter:
    """
    Return an adapter for one queue of the broker at `url`. The adapter connects at its first use.

    Raises:
        ConfigError: The URL or a name is invalid for RocketMQ, or the client library is not installed.
    """
    return GrpcAdapter(url, spec, settings)
