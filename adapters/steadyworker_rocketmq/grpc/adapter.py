"""The adapter for RocketMQ's proxies (gRPC). It implements `steadyworker.adapter.Adapter` with one I/O thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from typing_extensions import override

from steadyworker.adapter import (
    Browsed,
    Capabilities,
    Delays,
    Depth,
    Finding,
    QueueSpec,
    Settings,
    Unbrowsed,
    Uncounted,
)
from steadyworker.errors import BrokerUnavailable
from steadyworker.findings import FindingTexts
from steadyworker.network.errors import Refused
from steadyworker_rocketmq.adapter import LATE, SILENT, RocketmqAdapter
from steadyworker_rocketmq.browse import IN_TIMERS, ready_ones
from steadyworker_rocketmq.checks.findings import refused
from steadyworker_rocketmq.checks.members import MEMBERS_REMEDY, member_findings
from steadyworker_rocketmq.depth import depth_of_group, topics_of
from steadyworker_rocketmq.errors import ProxyError, is_lacking_right, is_missing_topic, translated, unavailable
from steadyworker_rocketmq.grpc.checks import library_findings, proxy_findings
from steadyworker_rocketmq.grpc.client import POLL_WITHIN
from steadyworker_rocketmq.grpc.consumer import GrpcConsumer
from steadyworker_rocketmq.grpc.publisher import GrpcPublisher
from steadyworker_rocketmq.topology import remoting_of

_finding = FindingTexts("steadyworker_rocketmq")

_NO_NUMBERS = (
    "a proxy reports no numbers and shows no messages; name the name servers with ?namesrv=host:9876 in --broker"
)


class GrpcAdapter(RocketmqAdapter[GrpcConsumer, GrpcPublisher]):
    """
    The adapter that one worker process uses for one queue of a cluster behind proxies. The adapter connects at its first use.

    It keeps the same promises as the other adapters, with these differences:

    - A message of a killed worker comes again after up to `?invisible=` seconds, when the broker no longer hides it from other consumers.
    - A delivery outlives a cut connection: the next connection renews and acknowledges the delivery.
    - A broker that crashes can forget an acknowledgement that it has confirmed. The message then comes again, as a first delivery.
      The ledger knows the message's job, so a worker process acknowledges the message and runs nothing.
    """

    def __init__(self, url: str, spec: QueueSpec, settings: Settings) -> None:
        super().__init__(url, spec, settings)
        self._publisher = GrpcPublisher(self._url, str(self._first), self._names, self._preparation, settings)
        self._consumer = GrpcConsumer(
            self._io, self._url, self._names, self._first.invisible, self._publisher, spec, settings
        )

    @property
    @override
    def capabilities(self) -> Capabilities:
        """The abilities of a broker behind proxies. Dead letters need a name server."""
        return Capabilities(
            system="rocketmq",
            delays=Delays.EXACT,
            counts_consumers=bool(self._first.members),
            counts_holders=True,
            reports_name=False,
            forgets_consumers_within=SILENT,
            redelivers_within=LATE * self._first.invisible,
            answers_within=2.0 * POLL_WITHIN,
            reads_dead_letters=bool(self._first.namesrv),
            holds_dead_letters=False,
            loses_unacked=False,
            max_body=self._settings.max_body,
        )

    @override
    def findings(self, spec: QueueSpec) -> Sequence[Finding]:
        """Return the problems of proxies, brokers, topics and groups; raises BrokerUnavailable if no proxy replies."""
        url = self._url()
        try:
            found = [
                *library_findings(),
                *proxy_findings(url, self._names, self._settings, made=self._is_made()),
            ]
        except Refused as error:
            return [refused(error)]
        found += member_findings(url, self._names, self._settings.clock)
        try:
            found += super().findings(spec)
        except BrokerUnavailable as error:
            found.append(_finding("rocketmq.name-server-unreachable", error=error))
        return found

    def _is_made(self) -> bool:
        """Return whether a name server knows the work topic; False if the URL names no name server, or no name server replies."""
        try:
            return bool(self._first.namesrv) and self._at_name_server()
        except BrokerUnavailable:
            return False

    @override
    def exists(self) -> bool:
        """
        Return whether the work topic exists.

        With `?namesrv=`, the adapter asks a name server, because a proxy would remember that the topic is missing.
        """
        if self._first.namesrv:
            return self._at_name_server()
        try:
            self._publisher.route(self._names.work)
        except ProxyError as error:
            if is_missing_topic(error):
                return False
            raise unavailable(error, str(self._url())) from error
        return True

    @override
    def consumers(self) -> int | Uncounted:
        """
        Return the number of members of the consumer group.

        Return Uncounted with `?members=off`, or if the proxies reply, but not at their remoting ports.
        A remoting port that does not reply can be a lasting fault, and such a fault must not hide other consumers.
        """
        try:
            return self._members()
        except BrokerUnavailable as unanswered:
            try:
                self._publisher.route(self._names.work)
            except ProxyError as error:
                if not is_missing_topic(error):
                    raise unavailable(error, str(self._url())) from error
            remedy = "grant that right" if is_lacking_right(unanswered.__cause__) else MEMBERS_REMEDY
            return Uncounted(f"a proxy's remoting port did not count them: {str(unanswered).rstrip('.')}", remedy)

    @override
    def depth(self) -> Depth:
        """Return the numbers of messages and consumers; without `?namesrv=`, only the consumers are counted."""
        url, consumers = self._url(), self.consumers()
        if not url.namesrv:
            unknown = Depth.unknown(_NO_NUMBERS)
            if isinstance(consumers, Uncounted):
                return replace(unknown, why={**unknown.why, "consumers": f"{consumers.why}; {consumers.remedy}"})
            why = {name: text for name, text in unknown.why.items() if name != "consumers"}
            return replace(unknown, consumers=consumers, why=why)
        with translated(str(url)), remoting_of(url, self._settings.clock) as remoting:
            return depth_of_group(remoting, self._names, self._settings.clock, consumers)

    @override
    def browse(self, limit: int) -> Iterator[Browsed | Unbrowsed]:
        """Yield messages that no consumer holds, and delayed ones that are due; raises Refused without `?namesrv=`."""
        url = self._url()
        if not url.namesrv:
            raise Refused(
                f"Expected name servers in the broker's URL, got none: {_NO_NUMBERS}.", id="rocketmq.no-name-server"
            )
        with translated(str(url)), remoting_of(url, self._settings.clock) as remoting:
            yield from ready_ones(remoting, topics_of(self._names), limit)
        yield IN_TIMERS
