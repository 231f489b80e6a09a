"""A turn with several deliveries of new jobs, or several jobs that are done: one commit, and every effect comes after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from steadyworker.adapter import Delivered, Lost
from steadyworker.delivery import KEY, Delivery, Redelivered, Settle
from steadyworker.events import Event, JobEnded, JobStarted
from steadyworker.ledger.base import Ending, JobId, Moving, State, Token, Verdict
from steadyworker.lifecycle import Stage
from steadyworker.outcome import Counters, Done, Failed
from steadyworker.runner.runner import RunnerEvent
from steadyworker.runner.state import Quota, Staged
from steadyworker.slots.base import Ended
from tests.runner.bench import NAMESPACE, Bench
from tests.runner.kit import QUEUE


class TurnBench(Bench):
    """Several slots; every call of the ledger, every job that begins and ends, and every settlement is noted in order."""

    def __init__(self, slots: int = 3, **more: Any) -> None:
        self.notes: list[str] = []
        super().__init__(slots=slots, emit=self._emitted, **more)
        for name in ("claim", "done", "record", "read"):
            setattr(self.real, name, self._noted(name, getattr(self.real, name)))
        settle = self.adapter.settle

        def settled(delivery: Delivery, how: Settle) -> Any:
            self.notes.append(f"{how.value} {delivery.headers[KEY]}")
            return settle(delivery, how)

        self.adapter.settle = settled  # type: ignore[method-assign]

    def _noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            self.notes.append(name)
            return call(*arguments)

        return noted

    def _emitted(self, event: Event) -> None:
        if isinstance(event, JobStarted | JobEnded):
            self.notes.append(f"{type(event).__name__} {event.key}")

    def turn(self, *events: RunnerEvent) -> list[str]:
        """Let the runner handle these events in one turn; return what it did."""
        self.notes.clear()
        for event in events:
            if isinstance(event, Ended):
                self.slots[event.slot].task = None
            self.runner._receive(event)
        self.runner.tick()
        self.runner.drain_inbox()
        return list(self.notes)

    def new(self, *keys: str, body: bytes = b"{}") -> list[RunnerEvent]:
        return [
            Delivered(Delivery(1, f"d{next(self._ids)}", QUEUE, body, {KEY: key}, redelivered=Redelivered.NO))
            for key in keys
        ]

    def over(self, *keys: str, result: bytes | None = None) -> list[RunnerEvent]:
        """The runs of these jobs are done, each with this result."""
        tasks = {slot.task.key: (slot.id, slot.task.fence) for slot in self.slots if slot.task is not None}
        return [Ended(*tasks[key], Done(result=result)) for key in keys]

    def running(self) -> list[str]:
        return sorted(slot.task.key for slot in self.slots if slot.task is not None)


def test_the_events_of_a_turn_are_recorded_in_one_commit_before_any_effect() -> None:
    bench = TurnBench()
    assert bench.turn(*bench.new("a", "b")) == ["record", "JobStarted a", "JobStarted b"]
    assert bench.running() == ["a", "b"]
    both = bench.turn(*bench.over("a", "b"), *bench.new("c", "d", "e"))
    assert both[0] == "record"
    assert sorted(both[1:]) == sorted(
        ["ack a", "ack b", "JobEnded a", "JobEnded b", "JobStarted c", "JobStarted d", "JobStarted e"]
    )
    assert bench.running() == ["c", "d", "e"]
    assert [bench.state(key) for key in "abc"] == [State.DONE, State.DONE, State.RUNNING]


def test_a_turn_with_one_event_calls_the_ledger_as_ever() -> None:
    bench = TurnBench()
    assert bench.turn(*bench.new("a")) == ["claim", "JobStarted a"]
    assert bench.turn(*bench.over("a")) == ["done", "ack a", "JobEnded a"]


@pytest.mark.parametrize("answer", ["away", "lost"])
def test_a_turn_that_the_ledger_does_not_answer_is_decided_anew(answer: str) -> None:
    """Nothing begins, and nothing is acknowledged; when the ledger is back, each run and each delivery is decided on."""
    bench = TurnBench()
    bench.turn(*bench.new("a", "b"))
    if answer == "away":
        bench.line.cut()
    else:
        bench.line.lose_answer("record")
    notes = bench.turn(*bench.over("a", "b"), *bench.new("c", "d"))
    assert [note for note in notes if not note.startswith("JobEnded")] == ([] if answer == "away" else ["record"])
    assert bench.running() == []
    assert bench.runner.reading().ledger_up is False
    bench.line.mend()
    bench.runner.renewed(bench.clock.boottime(), [])
    bench.runner.drain_inbox()
    assert [bench.state(key) for key in "abcd"] == [State.DONE, State.DONE, State.RUNNING, State.RUNNING]
    assert bench.running() == ["c", "d"]
    assert sorted(note for note in bench.notes if note.startswith("ack")) == ["ack a", "ack b"]


def test_an_event_that_raises_loses_no_end_of_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = TurnBench()
    bench.turn(*bench.new("a", "b"))
    for event in [*bench.over("a", "b"), *bench.new("c")]:
        bench.runner.post(event)

    def broken() -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(bench.runner.orphans, "delivered", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        bench.runner.turn(0.0)
    assert [bench.state(key) for key in "ab"] == [State.DONE, State.DONE]


def test_of_two_messages_of_one_job_in_a_turn_one_begins_it() -> None:
    bench = TurnBench()
    notes = bench.turn(*bench.new("a", "a", "b"))
    assert notes == ["record", "JobStarted a", "read", "ack a", "JobStarted b"]
    assert len(bench.adapter.published) == 1, "the second message comes later"
    assert bench.running() == ["a", "b"]


def test_a_job_that_another_process_has_is_not_begun_and_keeps_no_slot() -> None:
    bench = TurnBench(slots=2)
    bench.elsewhere("a")
    bench.turn(*bench.new("a", "b"))
    assert bench.running() == ["b"]
    bench.turn(*bench.new("c"))
    assert bench.running() == ["b", "c"]


def test_a_run_that_lost_its_job_is_dropped_and_the_rest_of_the_turn_is_recorded() -> None:
    bench = TurnBench()
    bench.turn(*bench.new("a", "b"))
    row = bench.real.read(JobId(NAMESPACE, QUEUE, "a"))
    assert row is not None
    assert bench.real.lose(row, "another", Verdict(Moving.DEAD, "owner lost", Counters())) is not None
    notes = bench.turn(*bench.over("a", "b"), *bench.new("c"))
    assert "ack b" in notes
    assert "ack a" not in notes[: notes.index("JobStarted c")]
    assert bench.state("b") is State.DONE
    assert bench.running() == ["c"]


def test_no_turn_claims_more_jobs_than_there_are_slots_or_than_the_quota_has() -> None:
    bench = TurnBench(slots=2)
    bench.turn(*bench.new("a", "b", "c"))
    assert bench.running() == ["a", "b"]
    assert bench.state("c") is None
    few = TurnBench(slots=3, quota=Quota(2))
    few.turn(*few.new("a", "b", "c"))
    assert few.running() == ["a", "b"]
    assert few.state("c") is None


@pytest.mark.parametrize("event", [Staged(Stage.DRAINING), Lost(1, "cut")], ids=["a stop", "a lost connection"])
def test_what_changes_the_ground_of_a_claim_comes_after_its_commit(event: RunnerEvent) -> None:
    """The jobs begin, as they would have begun in a turn of their own; a message that comes after a stop begins nothing."""
    bench = TurnBench()
    notes = bench.turn(*bench.new("a", "b"), event, *bench.new("c"))
    assert notes[:3] == ["record", "JobStarted a", "JobStarted b"]
    assert bench.running() == ["a", "b"] if isinstance(event, Staged) else ["a", "b", "c"]


def test_a_failure_is_recorded_by_itself() -> None:
    bench = TurnBench()
    bench.turn(*bench.new("a", "b"))
    ends = bench.over("a", "b")
    assert isinstance(ends[0], Ended)
    notes = bench.turn(Ended(ends[0].slot, ends[0].fence, Failed("odd")), ends[1], *bench.new("c"))
    assert notes[-1] != "record"
    assert notes.count("record") == 1
    assert [bench.state(key) for key in "abc"] == [State.MOVED, State.DONE, State.RUNNING]


def sizes_of_commits(bench: TurnBench) -> list[int]:
    """The number of writes in each commit of a turn, from now on."""
    sizes: list[int] = []
    record = bench.real.record

    def sized(claims: Sequence[Any], ended: Sequence[tuple[Token, Ending | None]]) -> Any:
        sizes.append(len(claims) + len(ended))
        return record(claims, ended)

    bench.real.record = sized  # type: ignore[method-assign]
    return sizes


def test_a_commit_has_at_most_64_writes() -> None:
    bench = TurnBench(slots=70)
    sizes = sizes_of_commits(bench)
    bench.turn(*bench.new(*(f"k-{number}" for number in range(70))))
    assert sizes == [64, 6]
    assert len(bench.running()) == 70


def test_a_commit_has_no_more_writes_once_its_bodies_and_results_have_256_kib() -> None:
    """Otherwise one statement could have 64 bodies of a megabyte, and other processes would wait for it."""
    bench = TurnBench(slots=9)
    sizes = sizes_of_commits(bench)
    keys = [f"k-{number}" for number in range(9)]
    bench.turn(*bench.new(*keys, body=b'"' + b"x" * (100 << 10) + b'"'))
    assert sizes == [3, 3, 3]
    assert bench.running() == keys
    bench.turn(*bench.over(*keys, result=b'"' + b"x" * ((64 << 10) - 2) + b'"'))
    assert sizes == [3, 3, 3, 4, 4]
    assert [bench.state(key) for key in keys] == [State.DONE] * 9
