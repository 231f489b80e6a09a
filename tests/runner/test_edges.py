"""The conditions of the runner that decide only in rare orders of events; a mutation of the code showed each of them untested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from steadyworker.adapter import Capabilities, Connected, Delays, Delivered, Lost
from steadyworker.delivery import ATTEMPTS, HOP, KEY, LOSSES, UID, Delivery, Redelivered, Settle, Settled, Target
from steadyworker.events import DuplicateAcked, Event, Fenced
from steadyworker.ledger.base import JobId, Moving, Renewal, Row, State, Verdict
from steadyworker.link import CallService, SaveExportState
from steadyworker.outcome import Counters, Done, Failed, Interrupted
from steadyworker.runner.state import Cancelled, LedgerLost, Phase, Quota, Renewed, ServiceEvent
from steadyworker.slots.base import Asked, Ended
from tests.runner.bench import NAMESPACE, Bench, PlayedAdapter
from tests.runner.kit import QUEUE

REFUSED = Renewal(granted=False)
LOCKED = Renewal(granted=False, locked=True)


def row_of(bench: Bench, key: str = "k") -> Row:
    row = bench.real.read(JobId(NAMESPACE, QUEUE, key))
    assert row is not None
    return row


def notes(bench: Bench, call: str, fences: list[int]) -> None:
    """Let the first slot note the fence of each such call."""
    setattr(bench.slots[0], call, lambda fence, *_, **__: fences.append(fence))


def renewed(bench: Bench, reply: Renewal, key: str = "k", began: float | None = None) -> None:
    began = bench.clock.boottime() if began is None else began
    bench.handle(Renewed(began, [(row_of(bench, key).token, reply)]))


def again(key: str = "k", id_: str = "again") -> Delivery:
    """The message of a lost delivery, in the next epoch."""
    return Delivery(2, id_, QUEUE, b"{}", {KEY: key}, redelivered=Redelivered.YES)


def test_a_quota_ends_and_takes_back() -> None:
    quota = Quota(1)
    assert [quota.spend(), quota.spend(), quota.spent] == [True, False, True]
    quota.give_back()
    assert [quota.spent, quota.spend()] == [False, True]


def test_a_call_of_a_service_is_over_with_its_last_event() -> None:
    class Service:
        def open(self, *_: Any) -> Any:
            return None

    bench = Bench(services={"sums": Service()})
    bench.deliver("k")
    fence = row_of(bench).fence
    bench.handle(Asked(0, fence, 7, CallService("sums", {})))
    bench.handle(ServiceEvent(fence, 7, {"end": True}), ServiceEvent(fence, 7, {"late": 1}))
    assert bench.slots[0].replies == [(7, {"end": True})]


def test_a_dropped_run_holds_its_job_until_its_slot_is_free_and_its_lease_is_not_renewed() -> None:
    bench = Bench(slots=2)
    bench.deliver("k")
    fence = row_of(bench).fence
    assert [token.fence for token in bench.runner.tokens()] == [fence]
    renewed(bench, REFUSED)
    assert bench.slots[1].task is None, "the old run still computes"
    assert bench.runner.tokens() == ()
    bench.handle(Ended(0, fence, Interrupted(), killed=True))
    (task,) = [slot.task for slot in bench.slots if slot.task is not None]
    assert task.fence > fence


def test_a_cancelled_run_whose_handler_has_returned_is_done() -> None:
    bench = Bench()
    bench.deliver("k")
    bench.handle(Cancelled({row_of(bench).uid: "wrong month"}))
    bench.ended(0, Done())
    assert row_of(bench).state is State.DONE


def test_a_second_cancel_changes_nothing() -> None:
    bench = Bench()
    bench.deliver("k")
    interrupted: list[int] = []
    notes(bench, "interrupt", interrupted)
    uid = row_of(bench).uid
    bench.handle(Cancelled({uid: "first"}), Cancelled({uid: "second"}))
    (run,) = bench.runner.state.by_fence.values()
    assert (interrupted, run.cancel_reason) == ([run.token.fence], "first")


def test_an_outcome_that_waited_for_the_ledger_is_not_recorded_by_a_run_without_trust() -> None:
    bench = Bench()
    bench.deliver("k")
    bench.line.cut()
    bench.ended(0, Done())
    bench.line.mend()
    bench.clock.advance(60)
    renewed(bench, LOCKED)
    assert row_of(bench).state is State.RUNNING
    renewed(bench, Renewal(granted=True))
    assert row_of(bench).state is State.DONE


def test_trust_counts_from_the_start_of_the_renewal() -> None:
    """A slow reply makes no lease longer."""
    bench = Bench()
    bench.deliver("k")
    bench.clock.advance(40)
    renewed(bench, Renewal(granted=True), began=bench.clock.boottime() - 30)
    (run,) = bench.runner.state.by_fence.values()
    bench.clock.advance(19)
    assert bench.runner.state.trusted(run)
    bench.clock.advance(2)
    assert not bench.runner.state.trusted(run)


def test_a_refused_renewal_drops_a_run_that_has_ended_but_none_that_settles() -> None:
    events: list[Event] = []
    pending: list[Callable[[], None]] = []
    bench = Bench(slots=2, emit=events.append, submit=pending.append)
    bench.deliver("ended")
    bench.clock.advance(60)  # without trust, its outcome waits
    bench.ended(0, Done())
    renewed(bench, REFUSED, "ended")
    assert [event.key for event in events if isinstance(event, Fenced)] == ["ended"]

    bench.deliver("settles")
    (slot,) = [slot.id for slot in bench.slots if slot.task is not None and slot.task.key == "settles"]
    bench.ended(slot, Failed("odd"))
    (run,) = [run for run in bench.runner.state.by_fence.values() if run.token.id.key == "settles"]
    assert run.phase is Phase.SETTLING
    renewed(bench, REFUSED, "settles")  # sent before the settlement, and answered after it
    assert [event.key for event in events if isinstance(event, Fenced)] == ["ended"]
    while pending:
        pending.pop(0)()
        bench.runner.drain_inbox()
    assert row_of(bench, "settles").state is State.MOVED


def test_a_settlement_that_waits_settles_no_delivery_that_was_lost() -> None:
    bench = Bench()
    bench.deliver("k")
    bench.line.cut()
    bench.ended(0, Done())
    bench.handle(Lost(1, "cut"))
    bench.line.mend()
    renewed(bench, Renewal(granted=True))
    assert (row_of(bench).state, bench.adapter.settled) == (State.DONE, [])


def test_a_settlement_that_waits_settles_the_redelivery_that_its_run_has_adopted() -> None:
    events: list[Event] = []
    bench = Bench(emit=events.append)
    bench.deliver("k")
    bench.adapter.missing = {Target.LATER}
    bench.ended(0, Failed("odd"))
    bench.handle(Lost(1, "cut"), Connected(2), Delivered(again()))
    assert row_of(bench).state is State.MOVING
    bench.adapter.missing = set()
    bench.tick(31)
    assert row_of(bench).state is State.MOVED
    assert bench.adapter.settled == [("again", Settle.ACK)]
    assert [event for event in events if isinstance(event, DuplicateAcked)] == [], "its own run has settled it"


def test_a_delivery_that_is_adopted_while_the_old_one_is_settled_is_decided_again() -> None:
    class Racing(PlayedAdapter):
        def settle(self, delivery: Delivery, how: Settle) -> Settled:
            if delivery.id == "d1":
                (run,) = bench.runner.state.by_fence.values()
                late = again()
                bench.runner.state.lose(delivery)
                bench.runner.state.receive(late)
                bench.runner.runs.adopt(run, late)
            return super().settle(delivery, how)

    bench = Bench(adapter=Racing(Capabilities(delays=Delays.EXACT)))
    bench.deliver("k")
    bench.ended(0, Done())
    assert bench.adapter.settled == [("d1", Settle.ACK), ("again", Settle.ACK)]


def test_a_run_without_a_renewal_is_stopped_when_its_lease_is_over_and_no_earlier() -> None:
    hurried: list[None] = []
    bench = Bench(stop_on_ledger_loss=True, hurry=lambda: hurried.append(None))
    bench.deliver("k")
    killed: list[int] = []
    notes(bench, "kill", killed)
    hurried.clear()
    bench.clock.advance(55)
    bench.handle(LedgerLost("away"))
    assert (killed, len(hurried)) == ([], 1)
    bench.clock.advance(6)
    bench.handle(LedgerLost("away"))
    assert (killed, len(hurried)) == ([row_of(bench).fence], 1)


def test_a_renewal_counts_even_if_the_ledger_fails_after_it() -> None:
    bench = Bench(stop_on_ledger_loss=True)
    bench.deliver("k")
    killed: list[int] = []
    notes(bench, "kill", killed)
    bench.clock.advance(61)
    bench.handle(LedgerLost("away", bench.clock.boottime(), [(row_of(bench).token, Renewal(granted=True))]))
    assert killed == []
    assert bench.runner.reading().ledger_up is False


def test_a_released_message_does_not_count_as_settled() -> None:
    """Its row has to stay: the broker delivers the message again."""
    bench = Bench()
    bench.deliver("k")
    bench.ended(0, Interrupted())
    assert (row_of(bench).state, row_of(bench).settled) == (State.INTERRUPTED, "unknown")
    assert bench.adapter.settled == [("d1", Settle.RELEASE)]


def test_a_run_whose_row_stays_locked_is_stopped_when_its_lease_is_over() -> None:
    bench = Bench(stop_on_ledger_loss=True)
    bench.deliver("k")
    killed: list[int] = []
    notes(bench, "kill", killed)
    bench.clock.advance(55)
    renewed(bench, LOCKED)
    assert killed == []
    bench.clock.advance(6)
    renewed(bench, LOCKED)
    assert killed == [row_of(bench).fence]


def test_a_claim_that_the_ledger_refuses_uses_no_quota() -> None:
    quota = Quota(1)
    bench = Bench(quota=quota)
    bench.elsewhere("k")
    bench.deliver("k")
    assert (bench.slots[0].task, quota.spent) == (None, False)


def test_a_delivery_of_an_earlier_epoch_is_no_delivery() -> None:
    bench = Bench()
    bench.handle(Lost(1, "cut"), Connected(2))
    bench.deliver("k", epoch=1)
    assert (bench.slots[0].task, bench.adapter.settled) == (None, [])


def test_a_letter_of_a_job_that_is_done_is_a_duplicate_and_no_replay() -> None:
    bench = Bench()
    bench.deliver("k")
    bench.ended(0, Done())
    letter = Delivery(1, "letter", QUEUE, b"{}", {KEY: "k", UID: row_of(bench).uid}, redelivered=Redelivered.NO)
    bench.handle(Delivered(letter))
    assert bench.slots[0].task is None
    assert bench.adapter.settled[-1] == (letter.id, Settle.ACK)


def test_a_retry_with_the_next_hop_is_no_lost_history(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.deliver("k")
    bench.ended(0, Failed("odd", delay=0.0))
    bench.deliver("k", sw_hop="1")
    assert bench.slots[0].task is not None
    assert "ledger_lost_history" not in caplog.text


def test_a_settlement_that_another_process_left_waits_only_for_the_rest_of_its_delay() -> None:
    bench = Bench()
    token = bench.elsewhere("k")
    assert bench.real.moving(token, Verdict(Moving.RETRY, "odd", Counters(attempts=1), 600.0))
    bench.clock.advance(100)  # lease and margin are over
    bench.deliver("k")
    (copy,) = bench.adapter.published
    assert (copy.to, copy.delay, copy.headers[HOP]) == (Target.LATER, 500.0, "1")


def test_a_retry_after_a_take_over_carries_the_count_of_losses() -> None:
    bench = Bench()
    bench.elsewhere("k")
    bench.clock.advance(100)
    bench.deliver("k")
    bench.ended(0, Failed("odd"))
    (copy,) = bench.adapter.published
    assert (copy.headers[LOSSES], copy.headers[ATTEMPTS]) == ("1", "1")


def test_an_exports_state_is_there_for_the_next_run() -> None:
    bench = Bench()
    bench.deliver("k")
    bench.handle(Asked(0, row_of(bench).fence, 1, SaveExportState(b"row 7")))
    bench.ended(0, Interrupted())
    bench.deliver("k")
    task = bench.slots[0].task
    assert task is not None
    assert task.export_state == b"row 7"


def test_a_plan_that_has_lost_its_unkeyed_message_settles_no_other_one() -> None:
    """The other message would be acknowledged without a job."""
    pending: list[Callable[[], None]] = []
    bench = Bench(submit=pending.append)
    bench.deliver(None, b'"one"')
    bench.handle(Lost(1, "cut"), Connected(2))
    for number, body in enumerate([b'"other"', b'"one"']):
        bench.handle(Delivered(Delivery(2, f"again-{number}", QUEUE, body, redelivered=Redelivered.YES)))
    while pending:
        pending.pop(0)()
        bench.runner.drain_inbox()
    assert sorted(copy.body for copy in bench.adapter.published) == [b'"one"', b'"other"']
    assert sorted(id_ for id_, how in bench.adapter.settled if how is Settle.ACK) == ["again-0", "again-1"]
