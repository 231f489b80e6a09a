"""The adapter's own reader of the protocol, at a node of the tests: for tests of which it is the subject, and never a witness."""

from __future__ import annotations

from steadyworker.clock import SystemClock
from steadyworker_rocketmq.remoting import Login, Remoting
from tests.brokers.rocketmq import RocketMQ


def remoting_at(node: RocketMQ, within: float = 10.0) -> Remoting:
    """Return a client of this node, which is logged in."""
    login = Login(*node.login) if node.login.user else None
    return Remoting(node.name_servers, login, SystemClock(), within)
