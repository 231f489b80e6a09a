"""
The search for a host of the URL that accepts a connection. The hosts are tried in a random order, and the first that accepts wins.

A host can be silent, such as a frozen machine, or a backup behind a firewall.
So each host has only a head start. Then the next host is tried, too, and both tries go on at the same time.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from steadyworker.adapter import Clock
from steadyworker.errors import BrokerUnavailable, ConfigError
from steadyworker.network.errors import Silent, worst
from steadyworker.network.url import Address
from steadyworker_stomp.errors import translated, unavailable
from steadyworker_stomp.sockets import open_socket
from steadyworker_stomp.stomp_internals import OnEnd, OnMessage, StompConnection
from steadyworker_stomp.url import StompUrl

_CONNECT_WITHIN = 10.0
_OPEN_WITHIN = 20.0
"""Limits in seconds: the first is for the socket and TLS, the second is for socket, TLS and login together."""

_HEAD_START = 0.5
"""Seconds in which a host can accept or refuse before the next host is tried, too."""

_SLACK = 0.5
"""Seconds to wait in addition to the limit of a try, because the try's own error names the host."""


def connect_any(
    url: StompUrl, clock: Clock, patience: float, on_message: OnMessage, on_end: OnEnd, within: float = math.inf
) -> tuple[StompConnection, Address]:
    """
    Open a connection to the first host that accepts it.

    Raises:
        BrokerUnavailable: No host accepted the connection within these seconds (at most 20); `Refused` if a later try cannot succeed.
        ConfigError: A file of the URL cannot be used, or the broker's dialect is unknown.
    """
    within = min(within, _OPEN_WITHIN)
    race = _Race(lambda address: _connect(url, address, clock, within, patience, on_message, on_end))
    hosts = random.sample(url.addresses, len(url.addresses))
    deadline = clock.monotonic() + within + _SLACK
    errors: list[BrokerUnavailable] = []
    try:
        for number, address in enumerate(hosts):
            is_last = number == len(hosts) - 1
            race.begin(address, aside=len(hosts) > 1)
            while race.running:
                left = max(0.0, deadline - clock.monotonic())
                match race.result(left if is_last else min(left, _HEAD_START)):
                    case BrokerUnavailable() as error:
                        errors.append(error)
                    case ConfigError() as error:
                        raise error
                    case None:
                        break
                    case won:
                        return won
    finally:
        race.end()
    if race.running:
        errors.append(unavailable(Silent(f"no reply within {within:g} s"), str(url)))
    raise worst(errors)


def _connect(
    url: StompUrl,
    address: Address,
    clock: Clock,
    within: float,
    patience: float,
    on_message: OnMessage,
    on_end: OnEnd,
) -> StompConnection:
    """Open a connection to one host, and log in; raises errors that `translated` translates."""
    began = clock.monotonic()
    tls = None if url.tls is None else url.tls.context()
    name = (url.tls and url.tls.server_name) or address.host
    sock = open_socket(address.host, address.port, tls, name, began + min(within, _CONNECT_WITHIN), clock)
    connection = StompConnection(sock, address.host, clock, patience, on_message, on_end)
    left = max(0.1, began + within - clock.monotonic())
    connection.connect(url.user, url.password, url.heartbeat, left, url.dialect)
    return connection


_Result = tuple[StompConnection, Address] | BrokerUnavailable | ConfigError


class _Race:
    """
    The tries of one `connect_any`. If a connection opens after the end, it is closed at once.

    Args:
        connect: Connects to one host.

    Attributes:
        running: The number of tries without a result.
    """

    def __init__(self, connect: Callable[[Address], StompConnection]) -> None:
        self.running = 0
        self._connect = connect
        self._results: SimpleQueue[_Result] = SimpleQueue()
        self._lock = threading.Lock()
        self._over = False

    def begin(self, address: Address, *, aside: bool) -> None:
        """Try one host; if `aside`, on another thread, because there are several hosts."""
        self.running += 1
        if not aside:
            self._try(address)
            return
        try:
            threading.Thread(target=self._try, args=(address,), name=f"stomp opens {address}", daemon=True).start()
        except RuntimeError as error:  # the limit of threads is reached
            self._results.put(unavailable(error, str(address)))

    def result(self, within: float) -> _Result | None:
        """Return the next result; None if no result comes in time."""
        with suppress(Empty):
            found = self._results.get(timeout=within)
            self.running -= 1
            return found
        return None

    def end(self) -> None:
        """Close every connection that did not win, even if it opens later."""
        with self._lock:
            self._over = True
        with suppress(Empty):
            while True:
                _close(self._results.get_nowait())

    def _try(self, address: Address) -> None:
        try:
            with translated(str(address)):
                found: _Result = (self._connect(address), address)
        except (BrokerUnavailable, ConfigError) as error:
            found = error
        with self._lock:
            if not self._over:
                self._results.put(found)
                return
        _close(found)


def _close(found: _Result) -> None:
    if isinstance(found, tuple):
        found[0].abort(Silent("another host was faster", id=""))
