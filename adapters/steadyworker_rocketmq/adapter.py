"""The base of both drivers' adapters: names, identity, dead letters, and questions to the brokers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from typing_extensions import override

from steadyworker.adapter import Browses, Finding, QueueSpec, Renamable, Settings, Uncounted
from steadyworker.network.adapter import AConsumer, NetworkAdapter
from steadyworker.network.errors import Refused
from steadyworker.network.iothread import IoThread
from steadyworker.network.loop import PlainLoop
from steadyworker.network.preparation import Preparation
from steadyworker.network.url import has_host_of, identity_of, unencrypted
from steadyworker_rocketmq.checks.findings import find, refused, unseen
from steadyworker_rocketmq.checks.members import MEMBERS_REMEDY
from steadyworker_rocketmq.deadletters import RocketmqDeadLetters
from steadyworker_rocketmq.errors import translated
from steadyworker_rocketmq.names import names_of
from steadyworker_rocketmq.publisher import RocketmqPublisher
from steadyworker_rocketmq.remoting import Remoting
from steadyworker_rocketmq.topology import login_of, prepare_at, remoting_of
from steadyworker_rocketmq.url import RocketmqUrl, parse_url

LATE = 3.0
"""
The number of periods after which a message counts as late. A period is the invisibility, or the life of a lock.

A message of a killed worker comes again after one period. A broker that is restarted meanwhile, or is busy, needs longer.
"""

SILENT = 120.0
"""Seconds after which a broker or a proxy has forgotten a member that sends no heartbeats (its channel's expiry)."""

_TLS = "rocketmq+grpcs:// in --broker, for proxies with TLS"

APublisher = TypeVar("APublisher", bound=RocketmqPublisher)


class RocketmqAdapter(NetworkAdapter[RocketmqUrl, AConsumer, APublisher], Renamable, Browses):
    """
    The base of both drivers' adapters. An adapter connects at its first use.

    Args:
        url: The broker's URL (`url.py`).
        spec: The queue, and its dead-letter queue.
        settings: The operator's settings.

    Raises:
        ConfigError: The URL or a name is invalid for RocketMQ.
    """

    def __init__(self, url: str, spec: QueueSpec, settings: Settings) -> None:
        super().__init__(url, parse_url, settings)
        self._names = names_of(spec, self._first.group, has_later=self._first.driver == "grpc")
        self._spec = spec
        self._io = IoThread(f"rocketmq {spec.queue}", settings.clock, PlainLoop)
        self._preparation = Preparation(lambda: prepare_at(self._url(), self._names, settings.topology, settings.clock))

    @override
    def stop(self, within: float) -> None:
        end = self._settings.clock.monotonic() + within
        super().stop(within)
        self._publisher.close(max(0.0, end - self._settings.clock.monotonic()))

    @override
    def identity(self) -> str:
        """Return the hosts of the URL, because by default each cluster has the same name (`DefaultCluster`)."""
        return identity_of(self._first.addresses)

    @override
    def may_have_been(self, identity: str) -> bool:
        return has_host_of(self._first.addresses, identity)

    @contextmanager
    @override
    def dead_letters(self) -> Iterator[RocketmqDeadLetters]:
        publisher = self._publisher
        url = self._url()
        with remoting_of(url, self._settings.clock) as remoting:
            letters = RocketmqDeadLetters(
                remoting, str(url), self._names, self._spec, publisher.publish, publisher.send, self._settings.clock
            )
            letters.begin()
            yield letters

    @override
    def findings(self, spec: QueueSpec) -> Sequence[Finding]:
        url = self._url()
        open_to_all = [] if url.tls else unencrypted(url.addresses, _TLS)
        if url.driver == "grpc" and not url.namesrv:
            return [*open_to_all, unseen()]
        try:
            with translated(str(url)), remoting_of(url, self._settings.clock) as remoting:
                return [*open_to_all, *find(remoting, url, self._names, spec, self._settings)]
        except Refused as error:
            return [refused(error)]

    def _at_name_server(self) -> bool:
        """Return whether a name server knows the work topic."""
        url = self._url()
        with translated(str(url)), remoting_of(url, self._settings.clock) as remoting:
            return remoting.route(self._names.work) is not None

    def _members(self) -> int | Uncounted:
        """Return the number of the group's members; Uncounted with `?members=off`."""
        url = self._url()
        if not url.members:
            return Uncounted("with ?members=off, no proxy is asked", MEMBERS_REMEDY)
        found: set[str] = set()
        with (
            translated(",".join(map(str, url.members))),
            Remoting(url.namesrv or (), login_of(url), self._settings.clock) as remoting,
        ):
            for proxy in url.members:
                found.update(remoting.members(self._names.group, proxy))
        return len(found)
