"""
The findings: problems of this broker and a Worker's queues, each with a remedy.

These checks change nothing.
Artemis reports settings and queues to a user with the right `manage`.
Over STOMP, Classic reports no settings and no queues.
Probes find some of Classic's problems, and a note lists what the checks could not examine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from steadyworker.adapter import QueueSpec, Settings, Uncounted
from steadyworker.errors import BrokerUnavailable, Finding
from steadyworker.findings import FindingTexts
from steadyworker.network.errors import Refused
from steadyworker_stomp.checks import probes
from steadyworker_stomp.checks.artemis import ArtemisManagement, MissingError
from steadyworker_stomp.checks.census import census, seen
from steadyworker_stomp.checks.risks import ArtemisQueue, risks
from steadyworker_stomp.checks.versions import version_findings
from steadyworker_stomp.connection import Visit, ask
from steadyworker_stomp.declare import scheduler_finding
from steadyworker_stomp.dialects import CLASSIC, Dialect, version_of
from steadyworker_stomp.url import StompUrl

_HASTY, _RARE = 5, 60
_SILENT = 4
"""Heart-beats after which both brokers have noticed a dead worker."""

_ANONYMOUS = "anonymous"

_IN_A_ROW = 2
"""Questions in a row without an answer. After them, the check asks no more questions, because a person waits."""

_WITHHELD = "withheld"
"""The mark for an unknown answer: this user has no right to ask whether a queue exists."""

_finding = FindingTexts("steadyworker_stomp")

Answer = TypeVar("Answer")


def find(url: StompUrl, spec: QueueSpec, settings: Settings, *, consuming: bool) -> list[Finding]:
    """
    Return all findings, each with a remedy.

    The function blocks, uses its own connections, and creates and changes nothing.
    If the adapter is already `consuming`, the adapter itself waits for rights and missing queues.
    In this case the function returns only findings about existing queues, and publishes nothing.
    With the topology mode "trust", the function returns only findings about version, heart-beats and the count of consumers.

    Raises:
        BrokerUnavailable: The broker cannot be reached; `Refused` if a later try cannot succeed.
        ConfigError: The broker is neither Classic nor Artemis.
    """
    return [*_BrokerCheck(url, spec, settings).findings(consuming=consuming)]


class _BrokerCheck:
    """
    One check of one broker.

    Each question has a limit in seconds, and its own connection, because a refusal ends the connection.
    A question without an answer is a finding. After `_IN_A_ROW` such questions in a row, the check asks no more.
    """

    def __init__(self, url: StompUrl, spec: QueueSpec, settings: Settings) -> None:
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
            yield _finding(
                "stomp.consumers-uncounted", user=self._user, queue=work, reason=counted.why, remedy=counted.remedy
            )
        if self._settings.topology != "trust":
            reports = not isinstance(counted, Uncounted)
            yield from self._of_queues(dialect, reports=reports, consuming=consuming)
        yield from self._unanswered
        if self._unasked:
            yield _finding("stomp.unanswered", "not asked", questions="; ".join(self._unasked))

    def _of_queues(self, dialect: Dialect, *, reports: bool, consuming: bool) -> Iterator[Finding]:
        """Yield the findings about the queues; `reports` is False if the broker does not report to this user whether a queue exists."""
        existing = {
            queue: self._ask(f"whether {queue!r} exists", _asking(queue)) if reports else _WITHHELD
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
            yield _finding("activemq.policies-unseen", loses="jobs", queue=self._spec.queue)
        elif _WITHHELD not in existing.values():  # both need the same right
            for queue in self._queues:
                yield from self._ask(f"which settings {queue!r} has", partial(self._reported, queue=queue)) or ()

    @property
    def _queues(self) -> tuple[str, str]:
        return self._spec.queue, self._spec.dead_letter_queue

    def _ask(self, what: str, question: Callable[[Visit], Answer]) -> Answer | None:
        """Return the answer to a question; without an answer, return None, and record the question's name `what`."""
        if self._silent >= _IN_A_ROW:
            self._unasked.append(what)
            return None
        try:
            answer = self._visit(question)
        except Refused:
            raise
        except BrokerUnavailable as error:
            self._silent += 1
            self._unanswered.append(_finding("stomp.unanswered", question=what, error=error))
            return None
        self._silent = 0
        return answer

    def _visit(self, question: Callable[[Visit], Answer]) -> Answer:
        """Open a connection for one question, and return the answer."""
        with ask(self._url, self._settings.clock) as visited:
            return question(visited)

    def _common(self, visited: Visit, *, consuming: bool) -> tuple[Dialect, list[Finding]]:
        """Return the broker's dialect, and the findings from the broker's answer to the login."""
        found = [*version_findings(visited.dialect, version_of(visited.connection.server))]
        if not consuming:
            found += self._heart_beats(visited)
        return visited.dialect, found

    def _heart_beats(self, visited: Visit) -> Iterator[Finding]:
        """Yield a warning if one side sends no heart-beats, or if an interval is too short or too long."""
        if not visited.connection.beat_every:
            yield _finding("stomp.no-heart-beats", "from us")
        if not visited.connection.silent_after:
            yield _finding("stomp.no-heart-beats", "from the broker")
        interval = self._url.heartbeat
        if interval < _HASTY:
            yield _finding("stomp.hasty-heartbeat", heartbeat=interval, pause=2 * interval)
        elif interval > _RARE:
            yield _finding("stomp.rare-heartbeat", heartbeat=interval, pause=_SILENT * interval)

    def _size(self, dialect: Dialect) -> Iterator[Finding]:
        """
        Yield an error if the broker refuses the largest body.

        The probe sends one message of that size to a temporary queue, because an operator can set any limit.
        Artemis has no such limit.
        """
        size = self._settings.max_body
        if dialect is not CLASSIC:
            return
        accepted = self._ask(
            f"whether the broker accepts a body of {size} bytes", lambda visited: probes.accepts(visited, size)
        )
        if accepted is False:
            yield _finding("activemq.max-frame-size", size=size, limit=size + (64 << 10))

    def _rights(self, dialect: Dialect, queue: str) -> Iterator[Finding]:
        """Yield an error for each right to an existing queue that the user lacks."""
        names = {probes.consume: ("consume from", "read", "consume"), probes.send: ("send to", "write", "send")}
        for probe, (doing, classic, artemis) in names.items():
            request = partial(probes.refusal, request=partial(probe, queue=queue))
            refused = self._ask(f"whether the user may {doing} {queue!r}", request)
            if refused is None:
                continue
            right = classic if dialect is CLASSIC else artemis
            yield _finding(
                "stomp.missing-right",
                "classic" if dialect is CLASSIC else "artemis",
                user=self._user,
                action=doing,
                queue=queue,
                refusal=refused,
                right=right,
            )

    def _missing(self, dialect: Dialect, queue: str) -> Finding:
        """Return the finding for a missing queue that the adapter must not create."""
        role = "work queue" if queue == self._spec.queue else "dead-letter queue"
        return _finding("stomp.missing-queue", "classic" if dialect is CLASSIC else "artemis", role=role, queue=queue)

    def _reported(self, visited: Visit, queue: str) -> list[Finding]:
        """Return the risks of one queue, from Artemis's reports about it."""
        management = ArtemisManagement(visited)
        settings = management.ask_json("broker", "getAddressSettingsAsJSON", queue)
        own = management.attributes(queue)
        state = ArtemisQueue(queue, queue == self._spec.queue, {**settings}, own, *_routing(management, queue))
        address = settings.get("deadLetterAddress")
        kept = management.attributes(address, "address") is not None if address else None
        return [*risks(state, dlq=self._url.moved_to(self._spec.queue), letters_kept=kept)]


def _asking(queue: str) -> Callable[[Visit], bool | str]:
    def asked(visited: Visit) -> bool | str:
        found = seen(visited, queue)
        return _WITHHELD if found is None else found

    return asked


def _prefetch_finding(visited: Visit) -> Finding | None:
    """Return an error if Classic, or a proxy in front of Classic, sends more messages than we ask for. Artemis has no queue for this probe."""
    return None if probes.honours_prefetch(visited) else _finding("activemq.prefetch-ignored")


def _routing(management: ArtemisManagement, address: str) -> tuple[Sequence[str], int]:
    """Return the routing types of an address, and the number of messages that no queue took; no types if there is no such address."""
    try:
        types = management.ask(f"address.{address}", "getRoutingTypes")
        return types, management.ask(f"address.{address}", "getUnRoutedMessageCount")
    except MissingError:
        return (), 0
