"""RocketMQ's driver for proxies against the promises of every adapter, on 5.4.0."""

from __future__ import annotations

from steadyworker.testing.conformance import AdapterSuite
from tests.adapters.rocketmq_bench import GrpcBench


class TestGrpc(GrpcBench, AdapterSuite):
    """Every promise."""
