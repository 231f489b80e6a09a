"""The checks that need the client library: of the library itself, and of the proxies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from steadyworker.adapter import Settings
from steadyworker.errors import BrokerUnavailable, Finding
from steadyworker.findings import FindingTexts
from steadyworker.network.errors import worst
from steadyworker_rocketmq.checks.findings import of_error
from steadyworker_rocketmq.errors import ProxyError, is_lacking_right, is_missing_topic, unavailable
from steadyworker_rocketmq.grpc.client import Sender
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.topology import kinds_of
from steadyworker_rocketmq.url import RocketmqUrl

_finding = FindingTexts("steadyworker_rocketmq")

_OTHER = "rocketmq-client-python"
_NO_TOPIC = "steadyworker-asks-whether-a-proxy-replies"


def library_findings() -> Iterator[Finding]:
    """Yield a warning if the other client library is also installed, because both have the import name `rocketmq`."""
    try:
        found = version(_OTHER)
    except PackageNotFoundError:
        return
    yield _finding("rocketmq.two-client-libraries", library=_OTHER, version=found)


def proxy_findings(url: RocketmqUrl, names: QueueNames, settings: Settings, *, made: bool) -> Iterator[Finding]:
    """
    Yield the findings about each proxy; raises BrokerUnavailable, or `Refused`, if no proxy replies.

    `made` is true if the work topic exists at the name server.
    Without a name server, `made` is unknown and not used.
    """
    failed: list[BrokerUnavailable] = []
    for number, address in enumerate(url.addresses, 1):
        try:
            one, first = replace(url, addresses=(address,)), number == len(failed) + 1
            yield from _proxy(one, names, settings, first=first, made=made)
        except BrokerUnavailable as error:
            failed.append(error)
    if len(failed) == len(url.addresses):
        raise worst(failed)
    for cause in failed:
        yield of_error(_finding("rocketmq.proxy-unreachable", error=cause), cause)


def _proxy(url: RocketmqUrl, names: QueueNames, settings: Settings, *, first: bool, made: bool) -> Iterator[Finding]:
    """Ask one proxy. Ask for all topics only at the first proxy that replies, and only if there is no name server to ask."""
    try:
        sender = Sender(url)
        try:
            if url.namesrv and not made:
                _any_reply(sender)
                return
            if not first or url.namesrv or settings.topology == "trust":
                _kinds(sender, names.work)
                return
            for topic, kind in kinds_of(url, names).items():
                got = _kinds(sender, topic)
                if got is None:
                    queues = 1 if topic == names.dead else url.queues
                    command = (
                        f"mqadmin updateTopic -c CLUSTER -t {topic} -r {queues} -w {queues} -a +message.type={kind}"
                    )
                    yield _finding("rocketmq.missing-topic", "no name server", topic=topic, command=command)
                elif kind not in got:
                    types = " and ".join(sorted(got))
                    yield _finding("rocketmq.topic-type", "no name server", topic=topic, got=types, wanted=kind)
        finally:
            sender.close()
    except ProxyError as error:
        raise unavailable(error, str(url)) from error


def _any_reply(sender: Sender) -> None:
    """
    Ask for a topic that does not exist; raises ProxyError if the proxy does not reply, or refuses the login.

    A proxy remembers for some 20 s that a topic is missing.
    So a question about the work topic, before a worker makes the topic, would delay the worker's first message by up to 20 s.
    """
    try:
        _kinds(sender, _NO_TOPIC)
    except ProxyError as error:
        if not is_lacking_right(error):
            raise


def _kinds(sender: Sender, topic: str) -> frozenset[str] | None:
    """Return the types of messages that a topic accepts; None if there is no such topic."""
    try:
        return sender.route(topic)
    except ProxyError as error:
        if is_missing_topic(error):
            return None
        raise
