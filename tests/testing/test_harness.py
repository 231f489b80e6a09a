"""The Harness does what its docstring says, and says what is wrong when a test asks for what never comes."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from steadyworker.clock import SystemClock
from steadyworker.delivery import REASON
from steadyworker.errors import BadPayload, Interrupt
from steadyworker.events import Adopted, JobEnded, JobStarted, TakenOver
from steadyworker.ledger.base import State
from steadyworker.outcome import Counters
from steadyworker.retry import RetryPolicy
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from steadyworker.worker import Worker
from tests.testing.workers import Exports as ChildExports


@dataclass
class Request:
    merchant: str


class Exports(Worker[Request, int]):
    """Does as its payload says."""

    queue = "exports"
    time_limit = 600
    concurrency = 2
    retry = RetryPolicy(max_attempts=2)

    def handle(self, job: Any) -> None:
        if job.payload.merchant == "broken":
            raise ValueError("odd amount")
        if job.payload.merchant == "endless" and job.last_checkpoint is None:
            job.checkpoint(1)
            while True:
                job.check()
                threading.Event().wait(0.002)


class Mails(Worker[bytes]):
    """Another queue."""

    queue = "mails"
    time_limit = 60

    def handle(self, job: Any) -> None: ...


def test_a_job_is_sent_run_and_settled(harness: MakeHarness) -> None:
    h = harness(Exports, Mails)

    export, mail = h.send(Exports, Request("m-17")), h.send(Mails, b"\0raw")

    for key in (export, mail):
        row = h.wait(key)
        assert row is not None
        assert row.state is State.DONE
        assert h.starts(key) == 1
    assert h.not_ready == {}
    assert h.dead == []


def test_an_hour_of_retries_takes_no_time(harness: MakeHarness) -> None:
    class Patient(Exports):
        retry = RetryPolicy(max_attempts=5, wait=lambda state: 900.0)

    h = harness(Patient)
    real, fake = SystemClock().monotonic(), h.clock.monotonic()
    key = h.send(Patient, Request("broken"))

    row = h.wait(key)

    assert row is not None
    assert row.state is State.DEAD
    assert h.starts(key) == 5
    assert h.clock.monotonic() - fake == pytest.approx(3600)
    assert SystemClock().monotonic() - real < 5
    assert [letter.headers[REASON] for letter in h.dead] == ["exhausted"]


def test_a_delayed_job_starts_when_it_is_due(harness: MakeHarness) -> None:
    h = harness(Exports)
    key = h.send(Exports, Request("m-17"), delay=3600)

    h.advance(3599)
    assert h.starts(key) == 0
    h.advance(1)
    h.wait(key)

    assert h.starts(key) == 1


def test_a_payload_is_checked_when_it_is_sent(harness: MakeHarness) -> None:
    h = harness(Exports)

    mistake: Any = {"merchant": 17}
    with pytest.raises(BadPayload, match=r"\$\.merchant"):
        h.send(Exports, mistake)


@pytest.mark.parametrize("adoption", [True, False])
def test_a_dropped_connection_does_not_start_the_job_again(harness: MakeHarness, adoption: bool) -> None:
    h = harness(Exports, adoption=adoption)
    key = h.send(Exports, Request("endless"))
    h.wait(key, until="checkpoint")

    h.drop_connection()
    h.advance(60)

    assert h.starts(key) == 1
    assert bool([event for event in h.of(key) if isinstance(event, Adopted)]) is adoption
    row = h.job(key)
    assert row is not None
    assert row.state is State.RUNNING


def test_a_message_can_be_taken_back(harness: MakeHarness) -> None:
    h = harness(Exports)
    key = h.send(Exports, Request("endless"))
    h.wait(key, until="checkpoint")

    h.redeliver(key)
    h.advance(1)

    assert h.starts(key) == 1
    assert any(isinstance(event, Adopted) for event in h.of(key))


def test_a_lease_that_expires_is_a_take_over(harness: MakeHarness) -> None:
    h = harness(Exports)
    key = h.send(Exports, Request("endless"))
    h.wait(key, until="checkpoint")

    h.expire_lease(key)
    row = h.wait(key)

    assert row is not None
    assert (row.state, row.counters) == (State.DONE, Counters(losses=1))
    assert [type(event) for event in h.of(key) if isinstance(event, TakenOver | JobStarted)] == [
        JobStarted,
        TakenOver,
        JobStarted,
    ]


def test_a_killed_worker_process_is_replaced_and_the_job_goes_on_from_its_checkpoint(harness: MakeHarness) -> None:
    h = harness(Exports)
    key = h.send(Exports, Request("endless"))
    h.wait(key, until="checkpoint")

    h.kill(key)
    row = h.wait(key)

    assert row is not None
    assert (row.state, row.counters) == (State.DONE, Counters(losses=1))
    assert h.starts(key) == 2
    assert [process.stopped for process in h.processes] == [True, False]
    assert h.dead == []


def test_a_killed_worker_process_leaves_its_jobs_to_the_others_without_a_wait_for_the_lease(
    harness: MakeHarness,
) -> None:
    h = harness(Exports)
    key = h.send(Exports, Request("endless"))
    h.wait(key, until="checkpoint")
    h.start()
    before = h.clock.monotonic()

    h.kill(key)
    h.wait(key, until=lambda: h.starts(key) == 2)

    assert len(h.processes) == 2
    assert h.clock.monotonic() - before < 30


def test_in_real_children_a_killed_worker_process_takes_its_child_along(harness: MakeHarness) -> None:
    h = harness(ChildExports, processes=True)
    key = h.send(ChildExports, {})
    row = h.wait(key, until="checkpoint", timeout=30)
    assert row is not None
    assert row.checkpoint is not None

    h.kill(key)
    ended = h.wait(key, timeout=30)

    assert not Path(f"/proc/{int(row.checkpoint)}").exists()
    assert ended is not None
    assert (ended.state, ended.counters) == (State.DONE, Counters(losses=1))


def test_a_delay_until_a_time_is_by_the_fake_clock(harness: MakeHarness) -> None:
    h = harness(Exports)
    key = h.send(Exports, Request("m-17"), delay=datetime.fromtimestamp(h.clock.wall() + 3600, UTC))
    h.advance(3500)
    assert h.starts(key) == 0
    h.advance(200)
    assert h.starts(key) == 1


def test_stop_is_a_deploy(harness: MakeHarness) -> None:
    """The job is told, keeps its checkpoint, and goes back; the next worker process goes on."""
    h = harness(Exports)
    key = h.send(Exports, Request("endless"))
    h.wait(key, until="checkpoint")

    h.stop()
    h.stop()
    row = h.job(key)
    assert row is not None
    assert (row.state, row.checkpoint) == (State.INTERRUPTED, b"1")
    assert h.broker.messages("exports")[0].holder is None
    h.start()
    h.wait(key, until="done")

    assert h.starts(key) == 2


@pytest.mark.long
def test_a_handler_that_does_not_end_is_left_behind(harness: MakeHarness) -> None:
    """`stop` is bounded, whatever a test's handler waits for."""
    release = threading.Event()

    class Deaf(Exports):
        def handle(self, job: Any) -> None:
            release.wait(20)

    h = harness(Deaf)
    key = h.send(Deaf, Request("m-17"))
    h.wait(key, until="started")

    h.stop()
    release.set()

    row = h.job(key)
    assert row is not None
    assert row.state is State.INTERRUPTED


def test_what_cannot_come_any_more_is_reported_at_once(harness: MakeHarness) -> None:
    h = harness(Exports)
    key = h.send(Exports, Request("m-17"))
    h.wait(key)
    real = SystemClock().monotonic()

    with pytest.raises(AssertionError) as raised:
        h.wait(key, until="dead")

    assert SystemClock().monotonic() - real < 1
    assert f"Expected job {key!r} to be dead, but it is done" in str(raised.value)
    assert "after 1 start, with 0 messages in the queue; not ready: nothing." in str(raised.value)


def test_what_does_not_come_is_reported_after_the_timeout(harness: MakeHarness) -> None:
    h = harness(Exports)
    key = h.send(Exports, Request("endless"))

    with pytest.raises(AssertionError, match="but it is running"):
        h.wait(key, until="done", timeout=0.2)


@pytest.mark.parametrize("verb", [Harness.expire_lease, Harness.kill_child, Harness.kill])
def test_a_verb_for_a_job_that_runs_reports_when_none_does(harness: MakeHarness, verb: Any) -> None:
    h = harness(Exports)
    key = h.send(Exports, Request("m-17"))
    h.wait(key)

    with pytest.raises(LookupError, match="wait until it is started"):
        verb(h, key)


def test_nobody_can_kill_a_thread(harness: MakeHarness) -> None:
    h = harness(Exports)
    key = h.send(Exports, Request("endless"))
    h.wait(key, until="checkpoint")

    with pytest.raises(TypeError, match="use processes=True"):
        h.kill_child(key)


def test_a_setup_that_fails_makes_it_not_ready_and_is_tried_again(harness: MakeHarness) -> None:
    failures = iter([True, True, False])

    class Picky(Exports):
        concurrency = 1

        def setup(self) -> None:
            if next(failures):
                raise ConnectionError("no database")

    h = harness(Picky)
    key = h.send(Picky, Request("m-17"))
    assert h.not_ready == {"setup": "setup raised ConnectionError: no database"}
    assert h.starts(key) == 0

    h.wait(key)

    assert h.not_ready == {}
    assert h.starts(key) == 1


def test_a_handler_may_be_a_coroutine(harness: MakeHarness) -> None:
    class Async(Worker[Request]):
        queue = "exports"
        time_limit = 600

        async def handle(self, job: Any) -> None:
            job.checkpoint(1)

    h = harness(Async)

    h.wait(h.send(Async, Request("m-17")), until="done")


def test_events_and_log_lines_show_the_story(harness: MakeHarness, caplog: pytest.LogCaptureFixture) -> None:
    h = harness(Exports)
    key = h.send(Exports, Request("broken"))

    h.wait(key)

    assert [event.outcome for event in h.of(key) if isinstance(event, JobEnded)] == ["failed", "failed"]
    assert any("job_settled" in record.getMessage() for record in caplog.records)


def test_in_real_children_a_kill_is_a_crash_and_the_job_goes_on(harness: MakeHarness) -> None:
    h = harness(ChildExports, processes=True)
    key = h.send(ChildExports, {})
    row = h.wait(key, until="checkpoint", timeout=30)
    assert row is not None
    assert row.checkpoint is not None
    assert int(row.checkpoint) != os.getpid()

    h.kill_child(key)
    row = h.wait(key, timeout=30)

    assert row is not None
    assert (row.state, row.counters.crashes, row.counters.attempts) == (State.DONE, 1, 0)
    assert h.starts(key) == 2


def test_in_real_children_a_job_that_kills_its_process_is_out_of_the_way(harness: MakeHarness) -> None:
    h = harness(ChildExports, processes=True)
    key = h.send(ChildExports, {"what": "always"})
    for starts in (1, 2):
        h.wait(key, until=lambda starts=starts: h.starts(key) == starts, timeout=30)  # type: ignore[misc]
        h.kill_child(key)

    h.wait(key, until="dead", timeout=30)

    assert [letter.headers[REASON] for letter in h.dead] == ["crash-loop: SIGKILL"]


def test_in_real_children_a_deploy_interrupts(harness: MakeHarness) -> None:
    h = harness(ChildExports, processes=True)
    key = h.send(ChildExports, {})
    h.wait(key, until="checkpoint", timeout=30)

    h.stop()

    row = h.job(key)
    assert row is not None
    assert (row.state, row.counters) == (State.INTERRUPTED, Counters(interruptions=1))


def test_interrupt_reaches_a_handler_as_itself(harness: MakeHarness) -> None:
    reasons = []
    begun = threading.Event()

    class Careful(Exports):
        def handle(self, job: Any) -> None:
            begun.set()
            try:
                while True:
                    job.check()
            except Interrupt as interrupt:
                reasons.append(interrupt.reason)
                raise

    h = harness(Careful)
    key = h.send(Careful, Request("m-17"))
    h.wait(key, until=begun.is_set)

    h.stop()

    assert reasons == ["shutdown"]


def test_a_delay_may_be_a_text_as_for_a_client(harness: MakeHarness) -> None:
    h = harness(Mails)
    began = h.clock.monotonic()
    h.wait(h.send(Mails, b"later", delay="1h"), until="done")
    assert h.clock.monotonic() - began >= 3600
    assert h.starts("job-1") == 1
