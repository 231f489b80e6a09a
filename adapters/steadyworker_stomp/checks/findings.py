"""
Findings: the problems of this broker and a Worker's queues, each with its remedy.

These checks change nothing.
Artemis reports settings and queues to a user with the right `manage`.
Classic reports neither over STOMP: probes show a part, and a note says what they do not show.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from steadyworker.adapter import QueueSpec, Settings, Uncounted
from steadyworker.errors import Finding
from steadyworker.network.errors import Silent
from steadyworker_stomp.checks import probes
from steadyworker_stomp.checks.artemis import Management, MissingError
from steadyworker_stomp.checks.census import census, has_queue
from steadyworker_stomp.checks.risks import QueueState, risks
from steadyworker_stomp.checks.versions import version_findings
from steadyworker_stomp.connection import ASK_WITHIN, Visit, visit
from steadyworker_stomp.declare import brief, scheduler_finding
from steadyworker_stomp.dialects import CLASSIC, Dialect, version_of
from steadyworker_stomp.errors import translated
from steadyworker_stomp.url import BrokerUrl

_HASTY, _RARE = 5, 60
_SILENT = 4
"""Heart-beats after which both brokers have noticed a dead worker."""

_ANONYMOUS = "anonymous"

Answer = TypeVar("Answer")


def find(url: BrokerUrl, spec: QueueSpec, settings: Settings, *, consuming: bool) -> list[Finding]:
    """
    Return all findings, each with its remedy.

    The call blocks, uses its own connections, and creates and changes nothing.
    If the adapter is already `consuming`, it waits by itself for rights and missing queues.
    In this case the call returns only findings about existing queues, and publishes nothing.
    With the topology mode "trust", the call returns only findings about version, heart-beats and the count of consumers.

    Raises:
        BrokerUnavailable: The broker cannot be reached; `Refused` if a later try cannot succeed.
        ConfigError: The broker is neither Classic nor Artemis.
    """
    return [*_Check(url, spec, settings).findings(consuming=consuming)]


class _Check:
    """
    One check of one broker.

    Each question that can be refused has a connection of its own, which a refusal ends.
    A question that gets no reply in time ends the check.
    """

    def __init__(self, url: BrokerUrl, spec: QueueSpec, settings: Settings) -> None:
        self._url = url
        self._spec = spec
        self._settings = settings
        self._user = url.user or _ANONYMOUS

    def findings(self, *, consuming: bool) -> Iterator[Finding]:
        """Yield all findings."""
        dialect, found = self._visit(lambda visited: self._common(visited, consuming=consuming))
        yield from found
        counted = self._visit(lambda visited: census(visited, self._spec.queue))
        if isinstance(counted, Uncounted):
            yield self._uncounted(counted)
        counts = not isinstance(counted, Uncounted)
        if self._settings.topology == "trust":
            return
        existing = {queue: counts and self._visit(_asking(queue)) for queue in self._queues}
        if not consuming:
            yield from self._size(dialect)
            for queue, exists in existing.items():
                if exists:
                    yield from self._rights(dialect, queue)
                elif counts and self._settings.topology == "verify":
                    yield self._missing(dialect, queue)
        if dialect is CLASSIC:
            yield self._unseen()
        elif counts:  # both need the same right
            yield from self._visit(self._reported)

    @property
    def _queues(self) -> tuple[str, str]:
        return self._spec.queue, self._spec.dead_letter_queue

    def _visit(self, question: Callable[[Visit], Answer]) -> Answer:
        """Return the answer to a question on a connection of its own."""
        with visit(brief(self._url), self._settings.clock, ASK_WITHIN) as visited, translated(visited.place):
            return question(visited)

    def _common(self, visited: Visit, *, consuming: bool) -> tuple[Dialect, list[Finding]]:
        """Return the broker's dialect, and the findings that no right hides."""
        found = [*version_findings(visited.dialect, version_of(visited.connection.server))]
        if not consuming:
            found += self._heart_beats(visited)
            if self._settings.topology != "trust":
                found += filter(None, [scheduler_finding(visited), _prefetch_finding(visited)])
        return visited.dialect, found

    def _heart_beats(self, visited: Visit) -> Iterator[Finding]:
        """Yield a warning for a direction without heart-beats, and for an interval that is too short or too long."""
        agree = "let the broker, or the proxy before it, agree to heart-beats in both directions."
        if not visited.connection.beat_every:
            what = "The broker expects no heart-beats from us, so it never notices a vanished worker, and keeps its messages from others."
            yield Finding("warning", what, agree, id="stomp.no-heart-beats")
        if not visited.connection.silent_after:
            what = "The broker sends no heart-beats, so a vanished broker is noticed only after up to 90 s, by TCP."
            yield Finding("warning", what, agree, id="stomp.no-heart-beats")
        interval, remedy = (
            self._url.heartbeat,
            "set the option heartbeat in --broker to a value from 10 to 30, or leave it out.",
        )
        if interval < _HASTY:
            what = f"With a heartbeat of {interval} s, a pause of {2 * interval} s (swapping, a frozen host) ends the connection."
            yield Finding("warning", what, remedy, id="stomp.hasty-heartbeat")
        elif interval > _RARE:
            what = f"With a heartbeat of {interval} s, the jobs of a host that died wait up to {_SILENT * interval} s for another host."
            yield Finding("warning", what, remedy, id="stomp.rare-heartbeat")

    def _size(self, dialect: Dialect) -> Iterator[Finding]:
        """
        Yield an error if the broker refuses the largest body.

        The probe sends as many bytes once, to a temporary queue, because an operator can set any limit.
        Artemis has no such limit.
        """
        size = self._settings.max_body
        if dialect is not CLASSIC:
            return
        try:
            if probes.accepts(brief(self._url), self._settings.clock, size):
                return
        except Silent:
            what = f"The check could not find out whether the broker accepts a body of {size} bytes: it sent no receipt in time."
            yield Finding(
                "warning",
                what,
                "check whether the broker's memory or disk is full, and check again.",
                id="activemq.size-unknown",
            )
            return
        what = f"The broker closes the connection on a message of {size} bytes and its headers, so a retry of such a job would fail."
        yield Finding(
            "error",
            what,
            f"raise wireFormat.maxFrameSize and wireFormat.maxDataLength above {size + (64 << 10)} on the broker's connector.",
            id="activemq.max-frame-size",
        )

    def _rights(self, dialect: Dialect, queue: str) -> Iterator[Finding]:
        """Yield an error for each right to an existing queue that the user lacks."""
        names = {probes.consume: ("consume from", "read", "consume"), probes.send: ("send to", "write", "send")}
        for probe, (doing, classic, artemis) in names.items():
            refused = probes.refusal(brief(self._url), self._settings.clock, partial(probe, queue=queue))
            if refused is None:
                continue
            right = classic if dialect is CLASSIC else artemis
            what = f"User {self._user!r} may not {doing} {queue!r}: {refused}."
            remedy = f"grant the user's group the right {right!r}: {_entry(dialect, queue, right)}"
            yield Finding(
                "error", what, f"{remedy}; if it has this right, see the broker's log.", id="stomp.missing-right"
            )

    def _missing(self, dialect: Dialect, queue: str) -> Finding:
        """Return the finding for a missing queue that the adapter must not create."""
        role = "work queue" if queue == self._spec.queue else "dead-letter queue"
        how = (
            f'<destinations><queue physicalName="{queue}"/></destinations> in activemq.xml'
            if dialect is CLASSIC
            else f'<address name="{queue}"><anycast><queue name="{queue}"/></anycast></address> in broker.xml'
        )
        what = f"Expected the {role} {queue!r} on the broker, got none."
        return Finding(
            "error", what, f"create it: {how}; or run once with --topology declare.", id="stomp.missing-queue"
        )

    def _uncounted(self, found: Uncounted) -> Finding:
        what = (
            f"User {self._user!r} cannot count the consumers of {self._spec.queue!r}, so a consumer without our ledger is not noticed: "
            f"{found.why}."
        )
        return Finding("warning", what, f"{found.remedy}.", id="stomp.consumers-uncounted")

    def _unseen(self) -> Finding:
        what = (
            f"ActiveMQ Classic does not report over STOMP which plugins and policies it has for {self._spec.queue!r}, "
            "so a time-to-live, an abort of slow consumers and the dead-letter strategy, by which messages can be lost, were not checked."
        )
        return Finding(
            "note",
            what,
            "compare activemq.xml with the list on the page of the adapter.",
            id="activemq.policies-unseen",
            loses="jobs",
        )

    def _reported(self, visited: Visit) -> Iterator[Finding]:
        """Return the risks in what Artemis reports about both queues."""
        management = Management(visited)
        found: list[Finding] = []
        for queue in self._queues:
            settings = management.ask_json("broker", "getAddressSettingsAsJSON", queue)
            own = _attributes(management, queue)
            state = QueueState(queue, queue == self._spec.queue, {**settings}, own, *_routing(management, queue))
            address = settings.get("deadLetterAddress")
            kept = _attributes(management, address, "address") is not None if address else None
            found += risks(state, dlq=self._url.moved_to(self._spec.queue), letters_kept=kept)
        return iter(found)


def _asking(queue: str) -> Callable[[Visit], bool]:
    return lambda visited: has_queue(visited, queue)


def _prefetch_finding(visited: Visit) -> Finding | None:
    """Return an error if Classic, or a proxy before it, sends more messages than we ask for; Artemis has no queue for a probe."""
    if visited.dialect is not CLASSIC or probes.honours_prefetch(visited) is not False:
        return None
    what = "The broker sends a consumer more messages than it asks for, so jobs wait behind a long job although other workers are free."
    return Finding(
        "error",
        what,
        "connect to the broker without the proxy that removes activemq.prefetchSize from frames.",
        id="activemq.prefetch-ignored",
    )


def _attributes(management: Management, name: str, by: str = "name") -> dict[str, str] | None:
    """Return the attributes of the queue that has this name, or whose address has it; None if there is none."""
    wanted = json.dumps({"field": by, "operation": "EQUALS", "value": name})
    queues = management.ask_json("broker", "listQueues", wanted, 1, 1)["data"]
    return queues[0] if queues else None


def _routing(management: Management, address: str) -> tuple[Sequence[str], int]:
    """Return the routing types of an address, and the number of its messages that no queue took; none if there is no address."""
    try:
        types = management.ask(f"address.{address}", "getRoutingTypes")
        return types, management.ask(f"address.{address}", "getUnRoutedMessageCount")
    except MissingError:
        return (), 0


def _entry(dialect: Dialect, queue: str, right: str) -> str:
    if dialect is CLASSIC:
        return f'<authorizationEntry queue="{queue}" {right}="GROUP"/> in activemq.xml'
    return f'<permission type="{right}" roles="ROLE"/> in the security-setting of broker.xml that matches {queue!r}'
