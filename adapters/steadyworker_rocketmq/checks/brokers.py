"""The checks of one broker: its version, its settings, and transactions without a decision."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from steadyworker.adapter import Settings
from steadyworker.errors import Finding, Level
from steadyworker.findings import FindingTexts
from steadyworker_rocketmq.checks.topics import waiting_in
from steadyworker_rocketmq.checks.versions import LOSES_BY_REVIVAL, Version, version_findings, version_of
from steadyworker_rocketmq.errors import is_lacking_right
from steadyworker_rocketmq.remoting import Remoting, RemotingError, RocketmqBroker
from steadyworker_rocketmq.url import RocketmqUrl

_finding = FindingTexts("steadyworker_rocketmq")

SHORT_RETENTION = 24
"""Hours of retention below which a weekend's dead letters, or a backlog of long jobs, can vanish."""

HALF, UNDECIDED = "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
"""The system topics of transactions. The first is for transactions that wait for a decision, the second for transactions that the broker has given up."""

_DECIDER = "CID_RMQ_SYS_TRANS"
"""The broker's own group in the topic `HALF`. The broker moves the group's offset past each decided transaction."""

SAME_TIME = 30.0
"""Seconds by which two clocks may differ. A broker reports its clock in whole seconds, and may need some seconds to reply."""

MANY_UNDECIDED = 1000
"""The number of undecided transactions above which a producer seems not to decide. A busy producer has some undecided transactions at any time."""


def broker_findings(
    remoting: Remoting, broker: RocketmqBroker, url: RocketmqUrl, settings: Settings
) -> Iterator[Finding]:
    """Yield the findings of one broker; raises the errors of `Remoting`."""
    version, found = remoting.version(broker), remoting.settings(broker)
    yield from version_findings(version, url.driver, broker.name)
    yield from setting_findings(found, broker.name, url, settings)
    if url.driver == "grpc":
        yield from revival_findings(version_of(version), found, broker.name)
        yield from clock_findings(remoting.runtime(broker), broker.name, settings.clock.wall())
    try:
        yield from _transactions(remoting, broker)
    except RemotingError as error:
        if not is_lacking_right(error):
            raise
        yield _finding("rocketmq.transactions-unseen", broker=broker.name, user=url.user)


def setting_findings(found: Mapping[str, str], broker: str, url: RocketmqUrl, settings: Settings) -> Iterator[Finding]:
    """Yield the findings about a broker's settings."""
    hours = found.get("fileReservedTime", "")
    if hours.isdecimal():
        level: Level = "warning" if int(hours) < SHORT_RETENTION else "note"
        yield _finding("rocketmq.retention", level=level, loses="jobs", broker=broker, hours=hours)
    if found.get("flushDiskType") == "ASYNC_FLUSH" and not _waits_for_another(found):
        role = found.get("brokerRole", "unknown")
        yield _finding("rocketmq.async-flush", loses="jobs", broker=broker, role=role)
    size = found.get("maxMessageSize", "")
    if size.isdecimal() and int(size) < settings.max_body:
        yield _finding("rocketmq.max-message-size", broker=broker, size=size, limit=settings.max_body)
    if url.driver == "grpc" and found.get("timerWheelEnable") == "false":
        yield _finding("rocketmq.timer-wheel-off", broker=broker)


def _waits_for_another(found: Mapping[str, str]) -> bool:
    """Return whether a broker with these settings confirms a message only when another broker has the message, too."""
    return found.get("brokerRole") == "SYNC_MASTER" or found.get("enableDLegerCommitLog") == "true"


def revival_findings(version: Version, found: Mapping[str, str], broker: str) -> Iterator[Finding]:
    """Yield a note if the broker can lose a message when it delivers the message again; `found` are the broker's settings."""
    if version >= LOSES_BY_REVIVAL and found.get("popConsumerKVServiceEnable") != "true":
        text = ".".join(map(str, version))
        yield _finding("rocketmq.loses-by-revival", loses="jobs", broker=broker, version=text)


def clock_findings(runtime: Mapping[str, object], broker: str, now: float) -> Iterator[Finding]:
    """
    Yield a warning if the broker's clock differs from this host's clock.

    The clocks must agree, because a message to a proxy contains the time at which the message is due, not the delay.
    A broker reports the time of its start, `bootTimestamp`, and the time since its start, `runtime` (5.4.0). The sum is its clock.
    """
    booted = str(runtime.get("bootTimestamp"))
    since = re.fullmatch(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]", str(runtime.get("runtime")))
    if since is None or not booted.isdecimal():
        return
    days, hours, minutes, seconds = map(int, since.groups())
    ahead = int(booted) / 1000 + ((days * 24 + hours) * 60 + minutes) * 60 + seconds - now
    if abs(ahead) > SAME_TIME:
        apart, follows = (
            ("ahead of", "so a worker process gets delayed messages early, and holds each back until its time")
            if ahead > 0
            else ("behind", "so retries and delayed jobs begin late by as much")
        )
        yield _finding("rocketmq.clocks-differ", broker=broker, seconds=abs(ahead), apart=apart, follows=follows)


def _transactions(remoting: Remoting, broker: RocketmqBroker) -> Iterator[Finding]:
    """Yield a warning for transactions that wait for a decision, or that ended without a decision."""
    undecided = given_up = 0
    for queue in (queue for queue in remoting.route(HALF) or [] if queue.broker == broker):
        undecided += waiting_in(remoting, queue, HALF, _DECIDER)
    for queue in (queue for queue in remoting.route(UNDECIDED) or [] if queue.broker == broker):
        given_up += remoting.end(queue, UNDECIDED) - remoting.first(queue, UNDECIDED)
    if undecided > MANY_UNDECIDED:
        yield _finding("rocketmq.undecided-transactions", broker=broker.name, count=undecided, topic=HALF)
    if given_up > 0:
        yield _finding("rocketmq.given-up-transactions", broker=broker.name, count=given_up, topic=UNDECIDED)
