"""The preparation of a broker for one queue: recognise the broker, and check once that it delays messages."""

from __future__ import annotations

from collections.abc import Callable

from steadyworker.adapter import Clock
from steadyworker.errors import ConfigError, Finding
from steadyworker.findings import FindingTexts
from steadyworker_stomp.connection import Visit, brief, visit
from steadyworker_stomp.dialects import CLASSIC, Dialect
from steadyworker_stomp.errors import translated
from steadyworker_stomp.url import StompUrl

_PROBE = "/temp-queue/steadyworker"

_finding = FindingTexts("steadyworker_stomp")


def prepare_at(url: Callable[[], StompUrl], mode: str, clock: Clock) -> Dialect:
    """
    Return the broker's dialect, after a check that the broker delays messages. The topology mode "trust" skips the check.

    Raises:
        ConfigError: The broker is unknown, or the broker is Classic without its scheduler.
        BrokerUnavailable: The broker cannot be reached; `Refused` if a later try cannot succeed.
    """
    current = brief(url())
    with visit(current, clock) as visited, translated(visited.place):
        if mode != "trust" and (finding := scheduler_finding(visited)) is not None:
            raise ConfigError(str(finding), [finding])
        return visited.dialect


def scheduler_finding(visited: Visit) -> Finding | None:
    """Return an error if the broker delivers a delayed message at once; Artemis always delays."""
    if visited.dialect is not CLASSIC or delays(visited):
        return None
    return _finding("activemq.no-scheduler")


def delays(visited: Visit) -> bool:
    """
    Return whether a delayed message to a temporary queue has the mark of Classic's scheduler when it arrives.

    Classic's scheduler takes up to 0.8 s. Raises Silent if the message does not arrive.
    """
    visited.wait(visited.connection.subscribe(_PROBE, "probe", {}))
    visited.wait(visited.connection.send(_PROBE, b"", {"AMQ_SCHEDULED_DELAY": "1"}))
    headers, _ = visited.message("message of a temporary queue")
    visited.wait(visited.connection.unsubscribe("probe"))
    return "scheduledJobId" in headers
