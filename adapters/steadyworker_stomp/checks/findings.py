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
from steadyworker.errors import BrokerUnavailable, Finding
from steadyworker.network.errors import Refused
from steadyworker_stomp.checks import probes
from steadyworker_stomp.checks.artemis import Management, MissingError
from steadyworker_stomp.checks.census import census, seen
from steadyworker_stomp.checks.risks import QueueState, risks
from steadyworker_stomp.checks.versions import version_findings
from steadyworker_stomp.connection import Visit, ask
from steadyworker_stomp.declare import brief, scheduler_finding
from steadyworker_stomp.dialects import CLASSIC, Dialect, version_of
from steadyworker_stomp.url import BrokerUrl

_HASTY, _RARE = 5, 60
_SILENT = 4
"""Heart-beats after which both brokers have noticed a dead worker."""

_ANONYMOUS = "anonymous"

_IN_A_ROW = 2
"""Questions in a row without an answer after which the broker is asked no more, because a person waits."""

_UNTOLD = "untold"
"""In the place of whether a queue exists: the broker does not tell this user."""

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

    Each question has a connection of its own, which a refusal ends, and a limit in seconds.
    A question without an answer is a finding, and the next one is asked, until `_IN_A_ROW` in a row got none.
    """

    def __init__(self, url: BrokerUrl, spec: QueueSpec, settings: Settings) -> None:
        self._url = url
        self._spec = spec
        self._settings = settings
        self._user = url.user or _ANONYMOUS
        self._unanswered: list[Finding] = []
        self._unasked: list[str] = []
        self._silent = 0

    def findings(self, *, consuming: bool) -> Iterator[Finding]:
        """Yield all findings."""
        dialect, found = self._visit(lambda visited: self._common(visited, consuming=consuming))
        yield from found
        work = self._spec.queue
        if self._settings.topology != "trust" and not consuming and dialect is CLASSIC:
            yield from filter(None, [self._ask("whether the broker delays messages", scheduler_finding)])
            yield from filter(None, [self._ask("whether the broker honours the prefetch", _prefetch_finding)])
        counted = self._ask(f"how many consumers {work!r} has", lambda visited: census(visited, work))
        if isinstance(counted, Uncounted):
            yield self._uncounted(counted)
        if self._settings.topology != "trust":
            tells = not isinstance(counted, Uncounted)
            yield from self._of_queues(dialect, tells=tells, consuming=consuming)
        yield from self._unanswered
        if self._unasked:
            yield self._not_asked()

    def _of_queues(self, dialect: Dialect, *, tells: bool, consuming: bool) -> Iterator[Finding]:
        """Yield the findings about the queues; `tells` is False if the broker does not tell this user whether they exist."""
        existing = {
            queue: self._ask(f"whether {queue!r} exists", _asking(queue)) if tells else _UNTOLD
            for queue in self._queues
        }
        if not consuming:
            yield from self._size(dialect)
            for queue, exists in existing.items():
                if exists is True:
                    yield from self._rights(dialect, queue)
                elif exists is False and self._settings.topology == "verify":
                    yield self._missing(dialect, queue)
                elif exists is None:  # a probe would create a missing queue
                    self._unasked.append(f"which rights the user has on {queue!r}")
        if dialect is CLASSIC:
            yield self._unseen()
        elif _UNTOLD not in existing.values():  # both need the same right
            for queue in self._queues:
                yield from self._ask(f"which settings {queue!r} has", partial(self._reported, queue=queue)) or ()

    @property
    def _queues(self) -> tuple[str, str]:
        return self._spec.queue, self._spec.dead_letter_queue

    def _ask(self, what: str, question: Callable[[Visit], Answer]) -> Answer | None:
        """Return the answer to a question, which `what` names; None if there is none, and note that."""
        if self._silent >= _IN_A_ROW:
            self._unasked.append(what)
            return None
        try:
            answer = self._visit(question)
        except Refused:
            raise
        except BrokerUnavailable as error:
            self._silent += 1
            told = f"The check could not find out {what}: {error}"
            remedy = "check whether the broker is overloaded, or its memory or disk is full, and check again."
            self._unanswered.append(Finding("warning", told, remedy, id="stomp.unanswered"))
            return None
        self._silent = 0
        return answer

    def _not_asked(self) -> Finding:
        what = f"As questions got no answer, the check did not ask {'; '.join(self._unasked)}."
        return Finding("warning", what, "check again when the broker answers.", id="stomp.unanswered")

    def _visit(self, question: Callable[[Visit], Answer]) -> Answer:
        """Return the answer to a question on a connection of its own."""
        with ask(brief(self._url), self._settings.clock) as visited:
            return question(visited)

    def _common(self, visited: Visit, *, consuming: bool) -> tuple[Dialect, list[Finding]]:
        """Return the broker's dialect, and the findings that the login shows."""
        found = [*version_findings(visited.dialect, version_of(visited.connection.server))]
        if not consuming:
            found += self._heart_beats(visited)
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
        accepted = self._ask(
            f"whether the broker accepts a body of {size} bytes", lambda visited: probes.accepts(visited, size)
        )
        if accepted is not False:
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
            request = partial(probes.refusal, request=partial(probe, queue=queue))
            refused = self._ask(f"whether the user may {doing} {queue!r}", request)
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

    def _reported(self, visited: Visit, queue: str) -> list[Finding]:
        """Return the risks in what Artemis reports about one queue."""
        management = Management(visited)
        settings = management.ask_json("broker", "getAddressSettingsAsJSON", queue)
        own = _attributes(management, queue)
        state = QueueState(queue, queue == self._spec.queue, {**settings}, own, *_routing(management, queue))
        address = settings.get("deadLetterAddress")
        kept = _attributes(management, address, "address") is not None if address else None
        return [*risks(state, dlq=self._url.moved_to(self._spec.queue), letters_kept=kept)]


def _asking(queue: str) -> Callable[[Visit], bool | str]:
    def asked(visited: Visit) -> bool | str:
        found = seen(visited, queue)
        return _UNTOLD if found is None else found

    return asked


def _prefetch_finding(visited: Visit) -> Finding | None:
    """Return an error if Classic, or a proxy before it, sends more messages than we ask for; Artemis has no queue for a probe."""
    if probes.honours_prefetch(visited):
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
