"""
The findings: problems of brokers, topics and groups, each with a remedy.

These checks ask the name servers and the brokers, and change nothing.
Without `?namesrv=`, the checks ask only the proxies, and a note lists what was not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.errors import BrokerUnavailable, ConfigError, Finding
from steadyworker.findings import FindingTexts
from steadyworker.network.errors import Refused
from steadyworker_rocketmq.checks.brokers import broker_findings
from steadyworker_rocketmq.checks.topics import group_findings, topic_findings
from steadyworker_rocketmq.errors import is_lacking_right, translated
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.remoting import Remoting, RocketmqBroker
from steadyworker_rocketmq.topology import delay_levels
from steadyworker_rocketmq.url import RocketmqUrl

_finding = FindingTexts("steadyworker_rocketmq")


def find(
    remoting: Remoting, url: RocketmqUrl, names: QueueNames, spec: QueueSpec, settings: Settings
) -> Iterator[Finding]:
    """Yield all findings of name servers and brokers; raises the errors of `Remoting` if no name server replies."""
    brokers = remoting.brokers()
    if not brokers:
        yield _finding("rocketmq.no-broker")
        return
    alive: list[RocketmqBroker] = []
    for broker in brokers:
        found, replies = _asked(f"Broker {broker.name}", str(url), broker_findings(remoting, broker, url, settings))
        yield from found
        if replies:
            alive.append(broker)
    if not alive:
        return
    if url.driver == "remoting":
        yield from _asked("The delay levels", str(url), _level_findings(remoting, alive, url))[0]
    if settings.topology != "trust":
        topics = topic_findings(remoting, alive, url, names, spec, settings)
        yield from _asked("The topics", str(url), topics)[0]
        yield from _asked("The consumer groups", str(url), group_findings(remoting, alive, url, names, settings))[0]


def _level_findings(remoting: Remoting, brokers: Iterable[RocketmqBroker], url: RocketmqUrl) -> Iterator[Finding]:
    """Yield an error if the brokers' delay levels differ, or have no meaning."""
    try:
        delay_levels(remoting, brokers, url)
    except ConfigError as error:
        yield from error.findings


def unseen() -> Finding:
    """Return a note for a URL without name servers."""
    return _finding("rocketmq.no-name-server")


def refused(error: Refused) -> Finding:
    """Return an error for a refusal that will also refuse every later try."""
    return of_error(_finding("rocketmq.refused", error=error), error)


def of_error(finding: Finding, error: BrokerUnavailable) -> Finding:
    """Return the finding with the id of its cause, if the cause has an id."""
    return replace(finding, id=error.id or finding.id)


def _asked(subject: str, place: str, findings: Iterable[Finding]) -> tuple[list[Finding], bool]:
    """
    Return findings, and whether the broker replies.

    If the broker does not reply, or refuses a question, this is a finding, too. Raises Refused if the broker refuses the login.
    """
    found: list[Finding] = []
    try:
        with translated(place):
            found.extend(findings)
    except Refused as error:
        if not is_lacking_right(error.__cause__):
            raise
        # The finding's texts are here, because the catalogue explains this id by the texts of brokers.
        what = f"{subject} could not be checked as a whole: {error}"
        remedy = "grant it; until then jobs wait, or their retries and dead letters fail."
        return [*found, Finding("error", what, remedy, id=error.id or "rocketmq.not-authorized")], True
    except BrokerUnavailable as error:
        unreachable = _finding("rocketmq.broker-unreachable", subject=subject, error=error)
        return [*found, of_error(unreachable, error)], False
    return found, True
