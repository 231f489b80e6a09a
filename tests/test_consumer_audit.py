"""A queue that others consume too, as the broker's count and the ledger's owners show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from steadyworker.adapter import Capabilities
from steadyworker.clock import Times
from steadyworker.errors import BrokerUnavailable, LedgerUnavailable
from steadyworker.ledger.base import OwnerSeen
from steadyworker.ledger.lease import QUIET, Keeper
from steadyworker.ledger.memory import MemoryLedger
from steadyworker.runner.consumer_audit import LOOK_EVERY, AuditResult, ConsumerAudit, registered_name
from steadyworker.testing.clock import FakeClock

NAME = registered_name("cluster/vhost", "exports")
HEARTBEATS = 180.0


@dataclass
class Broker:
    """Counts as the test says."""

    count: int = 1
    away: bool = False
    capabilities: Capabilities = field(default=Capabilities(forgets_consumers_within=HEARTBEATS))

    def consumers(self) -> int:
        if self.away:
            raise BrokerUnavailable("away")
        return self.count


@dataclass
class Owners:
    """Knows whom the test says."""

    seen: list[OwnerSeen] = field(default_factory=lambda: [owner("me")])
    away: bool = False

    def owners(self) -> list[OwnerSeen]:
        if self.away:
            raise LedgerUnavailable("away")
        return self.seen


def owner(name: str, *, seen_ago: float = 5.0, dead: bool = False, queue: str = NAME) -> OwnerSeen:
    return OwnerSeen(name, "host", (queue,), seen_ago, dead)


class Watched:
    """A reach with everything that it sees, and what it says of its own place in the queue."""

    def __init__(self) -> None:
        self.broker, self.ledger, self.clock = Broker(), Owners(), FakeClock()
        self.left: list[tuple[str, bool]] = []
        adapter: Any = self.broker
        ledger: Any = self.ledger
        self.audit = ConsumerAudit(NAME, "me", adapter, ledger, self.clock, lambda *said: self.left.append(said))

    def looks(self, times: int) -> list[tuple[bool, bool]]:
        """Look once a minute; answers (not ready, lasting) of each look."""
        found = []
        for _ in range(times):
            said = self.audit.look()
            found.append((said.cause is not None, said.lasting))
            self.clock.advance(LOOK_EVERY)
        return found


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_queue_whose_consumers_all_registered_is_in_reach(watched: Watched) -> None:
    watched.ledger.seen.append(owner("peer", seen_ago=85))
    watched.broker.count = 2
    assert watched.looks(10) == [(False, False)] * 10


def test_a_surplus_is_tolerated_for_three_heartbeats_and_a_minute_then_not_ready_then_for_good(
    watched: Watched,
) -> None:
    watched.broker.count = 2
    tolerated = int((HEARTBEATS + 60) / LOOK_EVERY) + 1
    assert watched.looks(tolerated + 3) == [(False, False)] * tolerated + [(True, False), (True, True), (True, True)]
    assert "2 consumers, but the ledger lists only 1" in (cause := watched.audit.look().cause or "")
    assert "--ledger postgresql://" in cause
    assert "--ledger-reach host" in cause


def test_who_is_not_ready_has_left_the_queue_and_is_not_counted(watched: Watched) -> None:
    """Else the end of our own consumer would look like the end of the surplus, and bring it back."""
    watched.broker.count = 2
    assert watched.looks(6)[-1] == (True, False)
    watched.broker.count = 1  # the foreign one, without ours
    assert watched.looks(1) == [(True, True)]


class Queue:
    """A queue with a foreign consumer, and worker processes that each look at it once a minute."""

    def __init__(self, owners: int, *, foreign: int = 1) -> None:
        self.clock, self.foreign = FakeClock(), foreign
        self.consuming = {f"owner-{number}": True for number in range(owners)}
        self.registered = dict(self.consuming)
        self.ended: dict[str, int] = {}
        self.capabilities = Capabilities(forgets_consumers_within=HEARTBEATS)
        self.reaches = {
            name: ConsumerAudit(NAME, name, self, self, self.clock, self._tell(name))  # type: ignore[arg-type]
            for name in self.consuming
        }

    def _tell(self, name: str) -> Callable[[str, bool], None]:
        def tell_left(_: str, left: bool) -> None:
            self.registered[name] = not left

        return tell_left

    def consumers(self) -> int:
        return self.foreign + sum(self.consuming.values())

    def owners(self) -> list[OwnerSeen]:
        return [OwnerSeen(name, "host", (NAME,) if here else (), 5.0, False) for name, here in self.registered.items()]

    def minutes(self, count: int, apart: float) -> None:
        """All look once a minute, so many seconds after one another; with none, all see the same before any does a thing."""
        for _ in range(count):
            names = list(self.reaches)
            rounds = [[name] for name in names] if apart else [names]
            for looking in rounds:
                for name, said in [(name, self.reaches[name].look()) for name in looking]:
                    self._hear(name, said)
                self.clock.advance(apart)
            self.clock.advance(LOOK_EVERY - apart * len(rounds))

    def _hear(self, name: str, said: AuditResult) -> None:
        """What a worker process does with the word of its lookout."""
        self.consuming[name] = said.cause is None
        if said.lasting:
            del self.consuming[name], self.registered[name], self.reaches[name]
            self.ended[name] = 78


@pytest.mark.parametrize("apart", [0.0, 1.0, 20.0])
@pytest.mark.parametrize("owners", [1, 2, 3])
def test_a_foreign_consumer_ends_all_who_count_whenever_they_look(owners: int, apart: float) -> None:
    """Two that leave the queue together must not take the foreign one for each other, and come back."""
    queue = Queue(owners)
    queue.minutes(7 * owners, apart)
    assert queue.ended == dict.fromkeys((f"owner-{number}" for number in range(owners)), 78)
    assert queue.consumers() == 1


@pytest.mark.parametrize("apart", [0.0, 1.0, 20.0])
def test_a_foreign_consumer_that_leaves_with_them_ends_nobody(apart: float) -> None:
    queue = Queue(2)
    while all(queue.consuming.values()):
        queue.minutes(1, apart)
    queue.foreign = 0
    queue.minutes(10, apart)
    assert queue.ended == {}
    assert queue.consumers() == sum(queue.registered.values()) == 2


def test_who_leaves_the_queue_says_so_and_who_comes_back_too(watched: Watched) -> None:
    watched.broker.count = 2
    watched.looks(5)
    assert watched.left == []
    watched.looks(1)
    assert watched.left == [(NAME, True)]
    watched.broker.count = 0
    watched.looks(1)
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
    assert watched.looks(6)[-1] == (True, False)
    watched.broker.count = 0
    assert watched.looks(1) == [(False, False)]
    watched.broker.count = 1
    assert watched.looks(5) == [(False, False)] * 5


def test_what_died_or_froze_is_forgotten_in_time_and_stops_nobody(watched: Watched) -> None:
    watched.ledger.seen.append(owner("peer", dead=True))
    watched.broker.count = 2
    assert watched.looks(3) == [(False, False)] * 3
    watched.broker.count = 1  # its heartbeats were missed
    assert watched.looks(1) == [(False, False)]
    watched.broker.count = 2  # the next one dies: its time is its own
    assert watched.looks(4) == [(False, False)] * 4


def test_owners_of_another_brokers_queue_of_that_name_are_not_counted(watched: Watched) -> None:
    watched.ledger.seen.append(owner("peer", queue=registered_name("elsewhere", "exports")))
    watched.broker.count = 2
    assert watched.looks(6)[-1] == (True, False)


def test_an_owner_whose_lease_and_margin_are_over_is_not_counted(watched: Watched) -> None:
    watched.ledger.seen.append(owner("peer", seen_ago=91))
    watched.broker.count = 2
    assert watched.looks(6)[-1] == (True, False)


def test_an_owner_that_is_quiet_hides_no_foreign_consumer(watched: Watched) -> None:
    """SIGUSR1, a stop that takes hours, or a `setup` that fails: it lives and renews its jobs, and is no consumer."""
    watched.ledger.seen.append(owner("peer", queue=f"{NAME}{QUIET}"))
    watched.broker.count = 2
    assert watched.looks(6)[-1] == (True, False)


@pytest.mark.parametrize("part", ["broker", "ledger"])
def test_a_part_that_is_away_changes_nothing(watched: Watched, part: str) -> None:
    getattr(watched, part).away = True
    watched.broker.count = 2
    assert watched.looks(10) == [(False, False)] * 10
    getattr(watched, part).away = False
    watched.looks(6)
    assert watched.audit.look().cause is not None
    getattr(watched, part).away = True
    assert watched.audit.look().cause is not None
