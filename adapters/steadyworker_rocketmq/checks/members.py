"""The checks of the proxies' remoting ports. The adapter counts the members of a consumer group at these ports."""

from __future__ import annotations

from collections.abc import Iterator

from steadyworker.adapter import Clock
from steadyworker.errors import BrokerUnavailable, Finding
from steadyworker.findings import FindingTexts
from steadyworker_rocketmq.errors import translated
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.remoting import Remoting
from steadyworker_rocketmq.topology import login_of
from steadyworker_rocketmq.url import RocketmqUrl

_finding = FindingTexts("steadyworker_rocketmq")

MEMBERS_REMEDY = (
    "name the proxies' remoting ports (remotingListenPort in rmq-proxy.json, 8080 by default) "
    "with ?members=host:8080;host2 in --broker"
)


def member_findings(url: RocketmqUrl, names: QueueNames, clock: Clock) -> Iterator[Finding]:
    """Yield a warning for each proxy whose remoting port does not count members."""
    with Remoting(url.namesrv or (), login_of(url), clock) as remoting:
        for proxy in url.members or ():
            try:
                with translated(str(proxy)):
                    remoting.members(names.group, proxy)
            except BrokerUnavailable as error:
                yield _finding("rocketmq.members-uncounted", group=names.group, error=error, remedy=MEMBERS_REMEDY)
