"""
The producer of a process at the proxies. It is replaced after each failure.

The client library's own producer does not reconnect soon after an outage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from steadyworker.errors import BrokerUnavailable
from steadyworker_rocketmq.errors import ProxyError, unavailable
from steadyworker_rocketmq.grpc.client import Sender

AnySender = TypeVar("AnySender", bound=Sender)


class Senders(Generic[AnySender]):
    """
    The holder of at most one open sender; every method may be called from any thread.

    Args:
        open_one: Opens a sender; raises ProxyError.
    """

    def __init__(self, open_one: Callable[[], AnySender]) -> None:
        self._open_one = open_one
        self._lock = threading.Lock()
        self._sender: AnySender | None = None
        self._stopped = False

    def opened(self) -> AnySender:
        """Return the sender; raises BrokerUnavailable if no sender can be opened, or after `close`."""
        with self._lock:
            if self._stopped:
                raise BrokerUnavailable("Expected an open adapter, got one that was stopped: open another.")
            if self._sender is None:
                try:
                    self._sender = self._open_one()
                except ProxyError as error:
                    raise unavailable(error, "a proxy") from error
            return self._sender

    def replace(self, sender: AnySender, failure: ProxyError) -> None:
        """Close a sender whose call failed. The next call opens another sender."""
        with self._lock:
            if self._sender is not sender:
                return
            self._sender = None
            sender.failure = failure
        _close(sender, 0.0)

    def close(self, within: float | None = None) -> None:
        """Close the sender, and wait for at most `within` seconds. Later calls fail."""
        with self._lock:
            self._stopped = True
            sender, self._sender = self._sender, None
        if sender is not None:
            _close(sender, within)


def _close(sender: Sender, within: float | None) -> None:
    """Close a sender on another thread, because the close waits for a proxy that may be gone."""
    thread = threading.Thread(target=sender.close, name="rocketmq, close", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no other thread can be started
        sender.close()
    else:
        thread.join(within)
