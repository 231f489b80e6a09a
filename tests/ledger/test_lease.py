"""The keeper of leases: how often it asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from steadyworker.clock import SystemClock, Times
from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import JobId, Ledger, Orders, Renewal, Token
from steadyworker.ledger.facts import Facts, OwnerCommand, OwnerReport, Pause
from steadyworker.ledger.lease import QUIET, Keeper
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.flaky_ledger import FlakyLedger
from steadyworker.testing.memory_ledger import MemoryLedger
from tests.conftest import Eventually


class Granting:
    """A ledger that renews whatever it is asked for."""

    def renew(self, tokens: Sequence[Token]) -> Sequence[Renewal]:
        return [Renewal(granted=True, cancel_reason=None) for _ in tokens]

    def register(self, *_: Any) -> bool:
        """Noted by nobody."""
        return True

    def orders(self, owner: str) -> Orders:
        return Orders({})

    @property
    def facts(self) -> Facts:
        return MemoryLedger(FakeClock(), Times()).facts


class Impatient:
    """A holder whose other writes fail: whenever it hears that the ledger is there, it wants to hear it again."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.turns: list[float] = []
        self.keeper: Keeper | None = None

    def tokens(self) -> Sequence[Token]:
        return ()

    def renewed(self, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        del began, answers
        assert self.keeper is not None
        self.turns.append(self.clock.monotonic())
        self.keeper.hurry()

    def cancelled(self, marks: Mapping[str, str]) -> None:
        raise AssertionError(marks)

    def paused(self, pauses: Sequence[Pause]) -> None:
        raise AssertionError(pauses)

    def ledger_lost(self, cause: str, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        raise AssertionError(cause)


def test_whoever_hurries_all_the_time_gets_fifteen_turns_for_one(eventually: Eventually) -> None:
    """Renewals land and the record does not, on a server with a full disk: nobody may spin meanwhile."""
    holder, times = Impatient(), Times(renew=3.0)
    keeper = holder.keeper = Keeper(cast(Ledger, Granting()), "me", "host", [], [holder], holder.clock, times)
    thread = threading.Thread(target=keeper.run)
    thread.start()
    try:
        eventually(lambda: len(holder.turns) >= 5)
    finally:
        keeper.end()
        thread.join()
    assert all(later - before >= 0.19 for before, later in zip(holder.turns, holder.turns[1:], strict=False))


def test_a_turn_before_the_thread_is_its_first_turn_and_the_next_one_waits_for_no_other(
    eventually: Eventually,
) -> None:
    """A worker process registers, starts its slots, and is registered as a consumer the moment that the first one is ready."""
    keeper = Keeper(cast(Ledger, Granting()), "me", "host", [], [], SystemClock(), Times().scaled(0.01))
    keeper.turn()
    first = keeper.last_turn
    thread = threading.Thread(target=keeper.run)
    thread.start()
    try:
        assert keeper.last_turn == first
        keeper.hurry()  # a second turn before it would keep this one waiting for 100 s
        eventually(lambda: keeper.last_turn > first)
    finally:
        keeper.end()
        thread.join()


class Marking(Granting):
    """A ledger with a cancel mark; it remembers what it is asked, and fails a look on demand."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.calls: list[str] = []
        self.fail_next = False

    def renew(self, tokens: Sequence[Token]) -> Sequence[Renewal]:
        self.calls.append("renew")
        return super().renew(tokens)

    def orders(self, owner: str) -> Orders:
        self.asked.append(owner)
        if self.fail_next:
            self.fail_next = False
            self.calls.append("failed look")
            raise LedgerUnavailable("no answer")
        self.calls.append("look")
        return Orders({"u-1": "wrong month"})


class Running:
    """A holder with a run of each of these jobs."""

    def __init__(self, *uids: str) -> None:
        self.uids = uids
        self.marks: list[Mapping[str, str]] = []

    def tokens(self) -> Sequence[Token]:
        return [Token(JobId("shop", "exports", uid), uid, 1, "me") for uid in self.uids]

    def renewed(self, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        pass

    def cancelled(self, marks: Mapping[str, str]) -> None:
        self.marks.append(marks)

    def paused(self, pauses: Sequence[Pause]) -> None:
        raise AssertionError(pauses)

    def ledger_lost(self, cause: str, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        raise AssertionError(cause)


def keeper_of(ledger: Marking, *holders: Running, times: Times) -> Keeper:
    return Keeper(cast(Ledger, ledger), "me", "host", [], holders, SystemClock(), times)


def test_one_query_reads_the_orders_for_all_that_runs_here() -> None:
    ledger, first, second = Marking(), Running("u-1", "u-2"), Running("u-3")
    keeper_of(ledger, first, second, times=Times()).read_orders()
    assert ledger.asked == ["me"]
    assert first.marks == second.marks == [{"u-1": "wrong month"}]


def test_marks_are_read_between_renewals_and_a_look_that_fails_brings_the_next_renewal(eventually: Eventually) -> None:
    """At fifteen times the pace: a look every 0.13 s, a renewal every second."""
    ledger, holder = Marking(), Running("u-1")
    keeper = keeper_of(ledger, holder, times=Times().scaled(15))
    thread = threading.Thread(target=keeper.run)
    thread.start()
    try:
        eventually(lambda: ledger.calls.count("renew") >= 2)
        ledger.fail_next = True
        eventually(lambda: ledger.calls[-1] != "failed look" and "failed look" in ledger.calls)
    finally:
        keeper.end()
        thread.join()
    second = ledger.calls.index("renew", 1)
    assert ledger.calls[:second] == ["renew"] + ["look"] * (second - 1)
    assert second > 2
    assert ledger.calls[ledger.calls.index("failed look") + 1] == "renew"


class Slow(Granting):
    """A ledger whose replies take 30 s, and that notes the queues of each registration."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.registered: list[Sequence[str]] = []

    def renew(self, tokens: Sequence[Token]) -> Sequence[Renewal]:
        self.clock.advance(30)
        return super().renew(tokens)

    def register(self, *said: Any) -> bool:
        self.registered.append(said[2])
        return True


def test_a_renewal_counts_from_its_start_however_late_the_reply_is() -> None:
    class Noting(Impatient):
        def renewed(self, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
            self.turns.append(began)

    clock, holder = FakeClock(), Noting()
    keeper = Keeper(cast(Ledger, Slow(clock)), "me", "host", [], [holder], clock, Times())
    before = clock.boottime()
    keeper.turn()
    assert (holder.turns, clock.boottime()) == ([before], before + 30)


def test_an_owner_that_has_left_a_queue_but_holds_a_delivery_registers_as_its_consumer() -> None:
    """The broker counts it, too."""
    clock, held = FakeClock(), {"exports"}
    ledger = Slow(clock)
    keeper = Keeper(
        cast(Ledger, ledger), "me", "host", ["exports"], [], clock, Times(), holds=lambda queue: queue in held
    )
    keeper.left("exports", left=True)
    keeper.turn()
    held.clear()
    keeper.turn()
    assert ledger.registered == [["exports"], [f"exports{QUIET}"]]


def test_an_owner_that_leaves_a_queue_registers_so_soon(eventually: Eventually) -> None:
    ledger = Slow(FakeClock())
    keeper = Keeper(cast(Ledger, ledger), "me", "host", ["exports"], [], SystemClock(), Times().scaled(0.01))
    keeper.turn()
    thread = threading.Thread(target=keeper.run)
    thread.start()
    try:
        keeper.left("exports", left=True)
        eventually(lambda: len(ledger.registered) == 2)
    finally:
        keeper.end()
        thread.join()
    assert ledger.registered == [["exports"], [f"exports{QUIET}"]]


class Obedient:
    """A holder without a run that records, in order, what the keeper reports; it is a sink of commands and facts, too."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.facts_fail = False

    def tokens(self) -> Sequence[Token]:
        return ()

    def renewed(self, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        self.reports.append("renewed")

    def cancelled(self, marks: Mapping[str, str]) -> None:
        raise AssertionError(marks)

    def paused(self, pauses: Sequence[Pause]) -> None:
        self.reports.append([pause.queue for pause in pauses])

    def ledger_lost(self, cause: str, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        self.reports.append("lost")

    def obey(self, commands: Sequence[OwnerCommand]) -> None:
        self.reports += [(command.name, command.who) for command in commands]

    def write(self, facts: Facts) -> None:
        self.reports.append("written")
        if self.facts_fail:
            raise LedgerUnavailable("away again")
        facts.pauses()


def obedient(times: Times | None = None) -> tuple[MemoryLedger, FlakyLedger, Obedient, Keeper]:
    """A keeper whose only holder is obedient, and the line to its ledger."""
    clock = FakeClock()
    real, holder = MemoryLedger(clock, Times()), Obedient()
    line = FlakyLedger(real)
    keeper = Keeper(
        cast(Ledger, line),
        "me",
        "host",
        ["shop/exports"],
        [holder],
        SystemClock() if times else clock,
        times or Times(),
        report=lambda: OwnerReport(pid=17),
        obey=holder.obey,
        write_facts=holder.write,
    )
    return real, line, holder, keeper


def test_a_turn_reports_pauses_before_the_renewal_and_writes_facts_last() -> None:
    """So a process that begins, or whose ledger is back, obeys a pause before it receives a message."""
    ledger, line, holder, keeper = obedient()
    ledger.facts.pause("shop", "exports", "ada", "disk is full")
    line.cut()
    keeper.turn()
    line.mend()
    keeper.turn()
    assert holder.reports == ["lost", ["exports"], "renewed", "written"]
    assert [seen.report for seen in ledger.owners()] == [OwnerReport(pid=17)]


@pytest.mark.parametrize("call", ["register", "orders"])
def test_granted_renewals_are_reported_even_if_a_later_call_of_the_turn_fails(call: str) -> None:
    class Held(Obedient):
        def tokens(self) -> Sequence[Token]:
            return [Token(JobId("shop", "exports", "k"), "u", 1, "me")]

        def ledger_lost(self, cause: str, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
            self.reports.append((began, list(answers)))

    clock, holder = FakeClock(), Held()
    line = FlakyLedger(cast(Ledger, Granting()))
    line.lose_answer(call)
    keeper = Keeper(cast(Ledger, line), "me", "host", [], [holder], clock, Times())
    keeper.turn()
    assert holder.reports == [(clock.boottime(), list(zip(holder.tokens(), [Renewal(granted=True)], strict=True)))]
    assert keeper.away


def test_only_a_change_of_the_pauses_is_reported() -> None:
    ledger, line, holder, keeper = obedient()
    keeper.read_orders()
    ledger.facts.pause("shop", "exports", "ada", "")
    keeper.read_orders()
    keeper.read_orders()
    line.cut()
    keeper.read_orders()
    line.mend()
    ledger.facts.resume("shop", "exports")
    keeper.read_orders()
    assert holder.reports == [["exports"], []]


def test_a_command_is_obeyed_once() -> None:
    """If the read of a command fails, the next read of the orders finds it again."""
    ledger, _, holder, keeper = obedient()
    ledger.facts.command("me", "quiet", "ada")
    ledger.facts.command("me", "resume", "bob")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger.facts, "commands", away)
        keeper.turn()
        keeper.read_orders()
    assert holder.reports == ["renewed", "written"]
    keeper.turn()
    keeper.read_orders()
    assert holder.reports[2:] == [("quiet", "ada"), ("resume", "bob"), "renewed", "written"]


def away(_owner: str) -> Any:
    raise LedgerUnavailable("no reply")


def test_facts_that_cannot_be_written_are_lost_without_harm() -> None:
    _, _, holder, keeper = obedient()
    holder.facts_fail = True
    keeper.turn()
    assert not keeper.away
    holder.facts_fail = False
    keeper.turn()
    assert holder.reports == ["renewed", "written"] * 2


def test_a_slow_renewal_is_not_made_slower_by_facts() -> None:
    """Otherwise the next renewal could be late."""
    clock, holder = FakeClock(), Obedient()
    keeper = Keeper(cast(Ledger, Slow(clock)), "me", "host", [], [holder], clock, Times(), write_facts=holder.write)
    keeper.turn()
    assert holder.reports == ["renewed"]


def test_an_idle_process_reads_its_orders_half_as_often(eventually: Eventually) -> None:
    """At a hundred times the pace; a process with a run reads them each time."""
    times, ledgers = Times().scaled(100), (Marking(), Marking())
    keepers = [
        keeper_of(ledger, holder, times=times)
        for ledger, holder in zip(ledgers, (Running(), Running("u")), strict=True)
    ]
    polls = [0, 0]

    def counted(number: int) -> Callable[[float | None], bool]:
        def wait(_seconds: float | None) -> bool:
            polls[number] += 1
            return keepers[number]._over.wait(0.001)

        return wait

    threads = [threading.Thread(target=keeper.run) for keeper in keepers]
    for number, keeper in enumerate(keepers):
        keeper._begun, keeper.last_turn = True, SystemClock().monotonic() + 100
        keeper._wake.wait = counted(number)  # type: ignore[method-assign, assignment]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: min(polls) >= 20)
    finally:
        for keeper in keepers:
            keeper.end()
        for thread in threads:
            thread.join()
    idle, busy = (ledger.calls.count("look") for ledger in ledgers)
    assert abs(idle - polls[0] / 2) <= 2
    assert abs(busy - polls[1]) <= 2
