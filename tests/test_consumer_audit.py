"""A queue that others consume too, as the broker's count and the ledger's owners show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from steadyworker.adapter import Capabilities, Uncounted
from steadyworker.clock import Times
from steadyworker.errors import BrokerUnavailable, LedgerUnavailable
from steadyworker.ledger.base import OwnerSeen
from steadyworker.ledger.lease import QUIET, Keeper, registered_name
from steadyworker.runner.consumer_audit import AUDIT_EVERY, AuditResult, ConsumerAudit
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger

NAME = registered_name("cluster/vhost", "exports")
HEARTBEATS = 180.0
REFUSED = Uncounted("amqp://joe:SECRET@host refused", "grant the right")


@dataclass
class Broker:
    """Reports the count that the test sets."""

    count: int | Uncounted = 1
    away: bool = False
    capabilities: Capabilities = field(default=Capabilities(forgets_consumers_within=HEARTBEATS))

    def consumers(self) -> int | Uncounted:
        if self.away:
            raise BrokerUnavailable("away")
        return self.count


@dataclass
class Owners:
    """Lists the owners that the test sets."""

    seen: list[OwnerSeen] = field(default_factory=lambda: [owner("me")])
    away: bool = False

    def owners(self) -> list[OwnerSeen]:
        if self.away:
            raise LedgerUnavailable("away")
        return self.seen


def owner(name: str, *, seen_ago: float = 5.0, dead: bool = False, queue: str = NAME) -> OwnerSeen:
    return OwnerSeen(name, "host", (queue,), seen_ago, dead)


class Watched:
    """A reach with everything that it sees, and what it reports of its own place in the queue."""

    def __init__(self, *, local_ledger: bool = False) -> None:
        self.broker, self.ledger, self.clock = Broker(), Owners(), FakeClock()
        self.left: list[tuple[str, bool]] = []
        self.holding = False
        adapter: Any = self.broker
        ledger: Any = self.ledger
        self.audit = ConsumerAudit(
            NAME,
            "me",
            adapter,
            ledger,
            self.clock,
            lambda *left: self.left.append(left),
            lambda: self.holding,
            local_ledger=local_ledger,
        )

    def audits(self, times: int) -> list[tuple[bool, bool]]:
        """Audit once a minute, and return (not ready, lasting) of each audit."""
        found = []
        for _ in range(times):
            result = self.audit.check()
            found.append((result.cause is not None, result.lasting))
            self.clock.advance(AUDIT_EVERY)
        return found


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_queue_whose_consumers_all_registered_is_in_reach(watched: Watched) -> None:
    watched.ledger.seen.append(owner("peer", seen_ago=85))
    watched.broker.count = 2
    assert watched.audits(10) == [(False, False)] * 10


def test_a_surplus_is_tolerated_for_three_heartbeats_and_a_minute_then_not_ready_then_for_good(
    watched: Watched,
) -> None:
    watched.broker.count = 2
    tolerated = int((HEARTBEATS + 60) / AUDIT_EVERY) + 1
    assert watched.audits(tolerated + 3) == [(False, False)] * tolerated + [(True, False), (True, True), (True, True)]
    assert "2 consumers, but the ledger lists only 1" in (cause := watched.audit.check().cause or "")
    assert "--ledger postgresql://" in cause
    assert "--ledger-reach host" in cause


def test_who_is_not_ready_has_left_the_queue_and_is_not_counted(watched: Watched) -> None:
    """Else the end of our own consumer would count as the end of the surplus, and bring it back."""
    watched.broker.count = 2
    assert watched.audits(6)[-1] == (True, False)
    watched.broker.count = 1  # the foreign one, without ours
    assert watched.audits(1) == [(True, True)]


class Queue:
    """
    A queue with a foreign consumer, and worker processes that each audit it once a minute.

    The broker counts who holds a delivery, too; whose number is in `holders` holds one until the test takes it away.
    """

    def __init__(self, owners: int, *, foreign: int = 1, holders: int = 0) -> None:
        self.clock, self.foreign = FakeClock(), foreign
        self.consuming = {f"owner-{number}": True for number in range(owners)}
        self.holding = set(list(self.consuming)[:holders])
        self.ended: dict[str, int] = {}
        self.capabilities = Capabilities(forgets_consumers_within=HEARTBEATS)
        self.ledger = MemoryLedger(self.clock, Times())
        self.keepers = {name: self._keeper(name) for name in self.consuming}
        self.reaches = {
            name: ConsumerAudit(
                NAME,
                name,
                self,  # type: ignore[arg-type]
                self.ledger,
                self.clock,
                lambda queue, left, keeper=keeper: keeper.left(queue, left=left),  # type: ignore[misc]
                partial(self._holds, name),
            )
            for name, keeper in self.keepers.items()
        }

    def _keeper(self, name: str) -> Keeper:
        holds = lambda _: self._holds(name)  # noqa: E731 - what the assembly gives it
        return Keeper(self.ledger, name, "host", [NAME], [], self.clock, Times(), holds=holds)

    def _holds(self, name: str) -> bool:
        return name in self.holding

    def consumers(self) -> int:
        return self.foreign + sum(here or name in self.holding for name, here in self.consuming.items())

    def registered(self) -> int:
        """How many the ledger knows as consumers."""
        self._turn()
        return sum(NAME in seen.queues for seen in self.ledger.owners())

    def _turn(self) -> None:
        for keeper in self.keepers.values():
            keeper.turn()

    def minutes(self, count: int, apart: float) -> None:
        """All audit once a minute, so many seconds after one another; with none, all see the same before any does a thing."""
        for _ in range(count):
            names = list(self.reaches)
            rounds = [[name] for name in names] if apart else [names]
            for group in rounds:
                self._turn()
                for name, result in [(name, self.reaches[name].check()) for name in group]:
                    self._act(name, result)
                self.clock.advance(apart)
            self.clock.advance(AUDIT_EVERY - apart * len(rounds))

    def _act(self, name: str, result: AuditResult) -> None:
        """What a worker process does with the result of its audit."""
        self.consuming[name] = result.cause is None
        if result.lasting:
            del self.consuming[name], self.keepers[name], self.reaches[name]
            self.holding.discard(name)
            self.ledger.unregister(name)
            self.ended[name] = 78


@pytest.mark.parametrize("apart", [0.0, 1.0, 20.0])
@pytest.mark.parametrize(("owners", "holders"), [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (3, 3)])
def test_a_foreign_consumer_ends_all_who_count_whenever_they_audit(owners: int, holders: int, apart: float) -> None:
    """Two that leave the queue together must not take the foreign one for each other, and come back."""
    queue = Queue(owners, holders=holders)
    queue.minutes(7 * owners, apart)
    assert queue.ended == dict.fromkeys((f"owner-{number}" for number in range(owners)), 78)
    assert queue.consumers() == 1


@pytest.mark.parametrize("apart", [0.0, 1.0, 20.0])
@pytest.mark.parametrize("holders", [0, 1, 2])
def test_a_foreign_consumer_that_leaves_with_them_ends_nobody(holders: int, apart: float) -> None:
    """Where the broker counts a holder, a job in hand must not count as the foreign consumer."""
    queue = Queue(2, holders=holders)
    while all(queue.consuming.values()):
        queue.minutes(1, apart)
    queue.foreign = 0
    queue.minutes(10, apart)
    assert queue.ended == {}
    assert queue.consumers() == queue.registered() == 2


@pytest.mark.parametrize("apart", [0.0, 1.0, 20.0])
def test_a_holder_that_is_quiet_for_hours_stops_no_peer_and_hides_no_foreign_consumer(apart: float) -> None:
    """A stop that waits for a long job: its process takes nothing more, and the broker counts it until the job is settled."""
    queue = Queue(2, foreign=0, holders=1)
    queue.consuming["owner-0"] = False
    queue.keepers["owner-0"].left(NAME, left=True)  # as a runner that is quiet does it
    del queue.reaches["owner-0"]  # it is on its way out, and no word of its audit matters
    queue.minutes(60, apart)
    assert queue.ended == {}
    assert queue.consumers() == queue.registered() == 2
    queue.holding.clear()
    queue.minutes(1, apart)
    assert queue.consumers() == queue.registered() == 1
    queue.foreign = 1
    queue.minutes(7, apart)
    assert queue.ended == {"owner-1": 78}


def test_a_process_reports_that_it_leaves_the_queue_and_that_it_comes_back(watched: Watched) -> None:
    watched.broker.count = 2
    watched.audits(5)
    assert watched.left == []
    watched.audits(1)
    assert watched.left == [(NAME, True)]
    watched.broker.count = 0
    watched.audits(1)
    assert watched.left == [(NAME, True), (NAME, False)]


def test_a_queue_that_was_left_is_registered_as_quiet_until_it_is_not(watched: Watched) -> None:
    ledger = MemoryLedger(watched.clock, Times())
    keeper = Keeper(ledger, "me", "host", [NAME, "other"], [], watched.clock, Times())
    registered = []
    for left in (False, True, True, False):
        keeper.left(NAME, left=left)
        keeper.turn()
        registered.append([seen.queues for seen in ledger.owners()])
    quiet = (f"{NAME}{QUIET}", "other")
    assert registered == [[(NAME, "other")], [quiet], [quiet], [(NAME, "other")]]


def test_a_surplus_that_ends_just_in_time_stops_nobody(watched: Watched) -> None:
    watched.broker.count = 2
    assert watched.audits(6)[-1] == (True, False)
    watched.broker.count = 0
    assert watched.audits(1) == [(False, False)]
    watched.broker.count = 1
    assert watched.audits(5) == [(False, False)] * 5


def test_what_died_or_froze_is_forgotten_in_time_and_stops_nobody(watched: Watched) -> None:
    watched.ledger.seen.append(owner("peer", dead=True))
    watched.broker.count = 2
    assert watched.audits(3) == [(False, False)] * 3
    watched.broker.count = 1  # its heartbeats were missed
    assert watched.audits(1) == [(False, False)]
    watched.broker.count = 2  # the next one dies: its time is its own
    assert watched.audits(4) == [(False, False)] * 4


def test_owners_of_another_brokers_queue_of_that_name_are_not_counted(watched: Watched) -> None:
    watched.ledger.seen.append(owner("peer", queue=registered_name("elsewhere", "exports")))
    watched.broker.count = 2
    assert watched.audits(6)[-1] == (True, False)


def test_an_owner_whose_lease_and_margin_are_over_is_not_counted(watched: Watched) -> None:
    watched.ledger.seen.append(owner("peer", seen_ago=91))
    watched.broker.count = 2
    assert watched.audits(6)[-1] == (True, False)


def test_an_owner_that_is_quiet_hides_no_foreign_consumer(watched: Watched) -> None:
    """SIGUSR1, a stop that takes hours, or a `setup` that fails: it lives and renews its jobs, and is no consumer."""
    watched.ledger.seen.append(owner("peer", queue=f"{NAME}{QUIET}"))
    watched.broker.count = 2
    assert watched.audits(6)[-1] == (True, False)


@pytest.mark.parametrize("part", ["broker", "ledger"])
def test_a_part_that_is_away_changes_nothing(watched: Watched, part: str) -> None:
    getattr(watched, part).away = True
    watched.broker.count = 2
    assert watched.audits(10) == [(False, False)] * 10
    getattr(watched, part).away = False
    watched.audits(6)
    assert watched.audit.check().cause is not None
    getattr(watched, part).away = True
    assert watched.audit.check().cause is not None


# --- who holds a delivery, and is counted for it


def test_who_is_counted_for_what_it_holds_counts_itself(watched: Watched) -> None:
    """It has left the queue and runs a job of hours: the one consumer that is left is itself."""
    watched.broker.count, watched.holding = 2, True
    assert watched.audits(6)[-1] == (True, False)
    watched.broker.count = 1
    assert watched.audits(5) == [(False, False)] * 5


def test_who_counts_itself_still_sees_a_foreign_consumer(watched: Watched) -> None:
    watched.broker.count, watched.holding = 2, True
    assert watched.audits(7)[-1] == (True, True)


@pytest.mark.parametrize(("count", "then"), [(1, (True, True)), (0, (False, False))])
def test_right_after_the_last_settlement_the_next_audit_decides(
    watched: Watched, count: int, then: tuple[bool, bool]
) -> None:
    """The one consumer may be the foreign one, or this process, whose end the broker has not noticed yet."""
    watched.broker.count, watched.holding = 2, True
    assert watched.audits(6)[-1] == (True, False)
    watched.broker.count, watched.holding = 1, False
    assert watched.audits(1) == [(True, False)]
    watched.broker.count = count
    assert watched.audits(1) == [then]


def test_a_delivery_that_is_settled_while_the_broker_counts_decides_nothing(watched: Watched) -> None:
    """The answer may be from before the settlement or from after it."""
    watched.broker.count, watched.holding = 2, True
    assert watched.audits(6)[-1] == (True, False)
    answers = iter([True, False])
    watched.audit._holds = lambda: next(answers)
    watched.broker.count = 1
    assert watched.audits(1) == [(True, False)]


# --- a broker that counts one worker process several times


def test_a_worker_process_may_be_as_many_consumers_as_its_broker_can_count(watched: Watched) -> None:
    """Its peer registered that number, too; one consumer more is foreign."""
    watched.broker.capabilities = Capabilities(forgets_consumers_within=HEARTBEATS, most_consumers=2)
    watched.ledger.seen.append(OwnerSeen("peer", "host", (NAME, "other", NAME, NAME), 5.0, dead=False))
    watched.broker.count = 5
    assert watched.audits(10) == [(False, False)] * 10
    watched.broker.count = 6
    assert watched.audits(6)[-1] == (True, False)
    assert "6 consumers, but the ledger lists only 5" in (watched.audit.check().cause or "")


@pytest.mark.parametrize(("count", "then"), [(2, (False, False)), (3, (True, True))])
def test_a_holder_that_has_left_the_queue_may_be_several_consumers(
    watched: Watched, count: int, then: tuple[bool, bool]
) -> None:
    watched.broker.capabilities = Capabilities(forgets_consumers_within=HEARTBEATS, most_consumers=2)
    watched.broker.count, watched.holding = 3, True
    assert watched.audits(6)[-1] == (True, False)
    watched.broker.count = count
    assert watched.audits(1) == [then]


def test_a_queue_is_registered_once_for_each_consumer_that_the_process_can_be(watched: Watched) -> None:
    """The number can change when the adapter first connects; a quiet process is no consumer."""
    ledger, most = MemoryLedger(watched.clock, Times()), iter([3, 1])
    keeper = Keeper(ledger, "me", "host", [NAME], [], watched.clock, Times(), consumers=lambda _: next(most))
    registered: list[tuple[str, ...]] = []
    for left in (False, False, True):
        keeper.left(NAME, left=left)
        keeper.turn()
        registered.extend(seen.queues for seen in ledger.owners())
    assert registered == [(NAME,) * 3, (NAME,), (f"{NAME}{QUIET}",)]


# --- a broker that refuses to count


@pytest.fixture
def alone() -> Watched:
    """A worker process whose ledger serves this host only."""
    return Watched(local_ledger=True)


def test_a_broker_that_stops_counting_is_no_reason_to_end_a_job(alone: Watched) -> None:
    """Suspect, then not ready, then lasting: but only once the jobs are over, as nothing shows a foreign consumer."""
    assert alone.audits(3) == [(False, False)] * 3
    alone.broker.count = REFUSED
    assert alone.audits(4) == [(False, False), (True, False), (True, True), (True, True)]
    assert alone.left[0] == (NAME, True)
    result = alone.audit.check()
    assert result.after_jobs
    assert "unknown how many consumers the queue has (amqp://" in (cause := result.cause or "")
    assert "SECRET" not in cause
    for remedy in ("Grant the right;", "--ledger postgresql://", "--ledger-reach host"):
        assert remedy in cause


def test_a_surplus_ends_the_worker_process_without_waiting_for_its_jobs(alone: Watched) -> None:
    alone.broker.count = 2
    assert alone.audits(7)[-1] == (True, True)
    assert not alone.audit.check().after_jobs


def test_a_broker_that_counts_again_ends_it(alone: Watched) -> None:
    """At any time; and a surplus that it then counts has its whole time."""
    alone.broker.count = REFUSED
    assert alone.audits(3)[-1] == (True, True)
    alone.broker.count = 1
    assert alone.audits(1) == [(False, False)]
    assert alone.left[-1] == (NAME, False)
    alone.broker.count = REFUSED
    assert alone.audits(2) == [(False, False), (True, False)]
    alone.broker.count = 2
    assert alone.audits(7) == [(False, False)] * 6 + [(True, False)]
    assert not alone.audit.check().after_jobs


def test_one_audit_without_a_number_changes_nothing(alone: Watched) -> None:
    for count in (REFUSED, 1, REFUSED, 1, REFUSED):
        alone.broker.count = count
        assert alone.audits(1) == [(False, False)]
    assert alone.left == []


def test_an_outage_between_two_audits_without_a_number_begins_again(alone: Watched) -> None:
    """A broker that restarts can refuse for a moment."""
    for away in (False, True, False, True):
        alone.broker.count, alone.broker.away = REFUSED, away
        assert alone.audits(1) == [(False, False)]
    alone.broker.away = False
    assert alone.audits(2) == [(False, False), (True, False)]


def test_a_surplus_that_the_broker_no_longer_counts_is_no_longer_a_surplus(alone: Watched) -> None:
    """It was suspected before; and it does not become ready because the number is missing."""
    alone.broker.count = 2
    assert alone.audits(4) == [(False, False)] * 4
    alone.broker.count = REFUSED
    assert alone.audits(1) == [(False, False)]
    alone.broker.count = 2
    assert alone.audits(6)[-1] == (True, False)
    alone.broker.count = REFUSED
    assert alone.audits(3) == [(True, False), (True, False), (True, True)]
    assert alone.audit.check().after_jobs


def test_a_ledger_that_all_hosts_share_needs_no_number(watched: Watched) -> None:
    """As with a broker that cannot count at all; an earlier result stays."""
    watched.broker.count = REFUSED
    assert watched.audits(10) == [(False, False)] * 10
    watched.broker.count = 2
    assert watched.audits(6)[-1] == (True, False)
    watched.broker.count = REFUSED
    assert watched.audits(10) == [(True, False)] * 10
    watched.broker.count = 0
    assert watched.audits(1) == [(False, False)]


def test_a_surplus_is_tolerated_from_the_start_again_after_an_outage(watched: Watched) -> None:
    """Right after an outage the broker still counts consumers that are gone."""
    watched.broker.count = 2
    tolerated = int((HEARTBEATS + 60) / AUDIT_EVERY) + 1
    assert watched.audits(tolerated) == [(False, False)] * tolerated
    watched.broker.away = True
    assert watched.audits(1) == [(False, False)]
    watched.broker.away = False
    assert watched.audits(tolerated + 1) == [(False, False)] * tolerated + [(True, False)]
