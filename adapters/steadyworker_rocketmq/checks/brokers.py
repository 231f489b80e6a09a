"""The checks of one broker: version, settings, and transactions without a decision."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from steadyworker.adapter import Settings
from steadyworker.errors import Finding, Level
from steadyworker_rocketmq.checks.topics import waiting_in
from steadyworker_rocketmq.checks.versions import LOSES_BY_REVIVAL, Version, version_findings, version_of
from steadyworker_rocketmq.errors import is_lacking_right
from steadyworker_rocketmq.remoting import Broker, Remoting, RemotingError
from steadyworker_rocketmq.url import BrokerUrl

SHORT_RETENTION = 24
"""Hours of retention below which a weekend's dead letters, or a backlog of long jobs, can vanish."""

HALF, UNDECIDED = "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
"""The system topics of transactions: those that wait for a decision, and those that the broker has given up."""

_DECIDER = "CID_RMQ_SYS_TRANS"
"""The group whose place in the half topic the broker moves behind decided transactions."""

SAME_TIME = 30.0
"""Seconds by which two clocks may differ; a broker tells its own in whole seconds, and may take some to reply."""

MANY_UNDECIDED = 1000
"""Undecided transactions above which a producer, or its checker, does not decide; a busy producer has some at any time."""


def broker_findings(remoting: Remoting, broker: Broker, url: BrokerUrl, settings: Settings) -> Iterator[Finding]:
    """Yield the findings of one broker; raises what `Remoting` raises."""
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
        what = f"The transactions of broker {broker.name} were not counted, because user {url.user!r} has no right to their topics."
        yield Finding(
            "note",
            what,
            "if producers use transactions, check as a user who has all rights.",
            id="rocketmq.transactions-unseen",
        )


def setting_findings(found: Mapping[str, str], broker: str, url: BrokerUrl, settings: Settings) -> Iterator[Finding]:
    """Yield the findings about a broker's settings."""
    hours = found.get("fileReservedTime", "")
    if hours.isdecimal():
        what = f"Broker {broker} deletes every message after {hours} h, read or not: jobs that wait, and dead letters, too."
        level: Level = "warning" if int(hours) < SHORT_RETENTION else "note"
        yield Finding(
            level,
            what,
            "set fileReservedTime in broker.conf to the longest time that a message may wait.",
            id="rocketmq.retention",
            loses="jobs",
        )
    if found.get("flushDiskType") == "ASYNC_FLUSH" and not _waits_for_another(found):
        what = (
            f"Broker {broker} confirms a message before it is on a disk or at another broker (flushDiskType=ASYNC_FLUSH, "
            f"brokerRole={found.get('brokerRole', 'unknown')}), so the last messages are lost with its host."
        )
        remedy = "set flushDiskType=SYNC_FLUSH in broker.conf, or add a slave and set brokerRole=SYNC_MASTER."
        yield Finding("note", what, remedy, id="rocketmq.async-flush", loses="jobs")
    size = found.get("maxMessageSize", "")
    if size.isdecimal() and int(size) < settings.max_body:
        what = (
            f"Broker {broker} accepts bodies of at most {size} bytes, and the limit of senders is {settings.max_body}."
        )
        yield Finding(
            "warning",
            what,
            f"set maxMessageSize={settings.max_body} in broker.conf, or send smaller bodies.",
            id="rocketmq.max-message-size",
        )
    if url.driver == "grpc" and found.get("timerWheelEnable") == "false":
        what = f"Broker {broker} has timerWheelEnable=false, so it refuses every receive of a proxy."
        yield Finding(
            "error",
            what,
            "remove timerWheelEnable from broker.conf, and restart the broker.",
            id="rocketmq.timer-wheel-off",
        )


def _waits_for_another(found: Mapping[str, str]) -> bool:
    """Return whether a broker with these settings confirms a message only when another broker has it, too."""
    return found.get("brokerRole") == "SYNC_MASTER" or found.get("enableDLegerCommitLog") == "true"


def revival_findings(version: Version, found: Mapping[str, str], broker: str) -> Iterator[Finding]:
    """Yield a note if the broker's revival of messages can lose one; `found` are the broker's settings."""
    if version < LOSES_BY_REVIVAL or found.get("popConsumerKVServiceEnable") == "true":
        return
    what = (
        f"Broker {broker} ({'.'.join(map(str, version))}) can lose a message that a killed worker held: if its PopReviveService "
        "is busy for more than 30 s, it records a time instead of the message's place."
    )
    remedy = (
        "from 5.3.2 on, set popConsumerKVServiceInit=true and popConsumerKVServiceEnable=true in broker.conf, and restart the broker; "
        "or use a rocketmq: URL. Both do without that service."
    )
    yield Finding("note", what, remedy, id="rocketmq.loses-by-revival", loses="jobs")


def clock_findings(runtime: Mapping[str, object], broker: str, now: float) -> Iterator[Finding]:
    """
    Yield a warning if the broker's clock differs from ours: a proxy takes the time of a delayed message, and no delay.

    A broker tells its clock as the time of its start, `bootTimestamp`, and the time since, `runtime` (5.4.0).
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
        what = f"The clock of broker {broker} is {abs(ahead):.0f} s {apart} the clock of this machine, {follows}."
        remedy = "set both clocks right, and keep them right with NTP."
        yield Finding("warning", what, remedy, id="rocketmq.clocks-differ")


def _transactions(remoting: Remoting, broker: Broker) -> Iterator[Finding]:
    """Yield a warning for transactions that wait for a decision, or got none."""
    undecided = given_up = 0
    for queue in (queue for queue in remoting.route(HALF) or [] if queue.broker == broker):
        undecided += waiting_in(remoting, queue, HALF, _DECIDER)
    for queue in (queue for queue in remoting.route(UNDECIDED) or [] if queue.broker == broker):
        given_up += remoting.end(queue, UNDECIDED) - remoting.first(queue, UNDECIDED)
    remedy = "see the producers' logs: a transaction checker is missing, raises, or answers UNKNOWN."
    if undecided > MANY_UNDECIDED:
        what = f"Broker {broker.name} has {undecided} messages of transactions that are not decided ({HALF})."
        yield Finding("warning", what, remedy, id="rocketmq.undecided-transactions")
    if given_up > 0:
        what = (
            f"Broker {broker.name} has given up {given_up} messages of transactions without a decision ({UNDECIDED})."
        )
        yield Finding(
            "warning",
            what,
            f"{remedy} The messages stay until the broker's retention ends.",
            id="rocketmq.given-up-transactions",
        )
