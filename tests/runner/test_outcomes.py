"""Contract §3, row by row: how a run ends, what it counts, and what follows for its message."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta
from typing import Any

import pytest

from steadyworker.delivery import ATTEMPTS, ERROR_CLASS, ERROR_TEXT, FIRST_FAILED_AT, KEY, REASON, UID, WORKER
from steadyworker.errors import Reject, Retry, Snooze
from steadyworker.events import JobSettled
from steadyworker.ledger.base import Claimed, JobId, State, Token
from steadyworker.outcome import Counters
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
from steadyworker.worker import Worker
from tests.runner.kit import QUEUE, Deed, Obedient, Seen, counted, events, nothing, quickly, raises, settled, worker


def generates(job: Any) -> Any:
    yield "never"


async def generates_async(job: Any) -> Any:
    yield "never"


def awaits(job: Any) -> object:
    return asyncio.sleep(0)


ROWS: list[Any] = [
    pytest.param(nothing, "done", "ack", "", (0, 0), id="returns"),
    pytest.param(lambda job: 42, "done", "ack", "", (0, 0), id="returns a value"),
    pytest.param(generates, "failed", "later", "nothing ran: ", (1, 5), id="returns a generator"),
    pytest.param(
        generates_async,
        "failed",
        "later",
        "nothing ran: handle returned an async_",
        (1, 5),
        id="returns an async generator",
    ),
    pytest.param(awaits, "failed", "later", "nothing ran: ", (1, 5), id="returns an awaitable"),
    pytest.param(raises(Retry("busy", delay=7)), "retry", "later", "busy", (1, 7), id="Retry(delay)"),
    pytest.param(raises(Retry(delay=timedelta(hours=1))), "retry", "later", "Retry", (1, 3600), id="Retry(timedelta)"),
    pytest.param(
        raises(Reject("no such merchant")), "rejected", "dead-letter", "no such merchant", (0, 0), id="Reject"
    ),
    pytest.param(raises(KeyError("m-17")), "rejected", "dead-letter", "KeyError: 'm-17'", (0, 0), id="dont_retry_on"),
    pytest.param(raises(Snooze(60)), "snoozed", "later", "snoozed for 60 s", (0, 60), id="Snooze"),
    pytest.param(raises(ValueError("odd")), "failed", "later", "ValueError: odd", (1, 5), id="an exception"),
    pytest.param(raises(SystemExit(3)), "failed", "later", "SystemExit: 3", (1, 5), id="SystemExit"),
    pytest.param(raises(KeyboardInterrupt()), "failed", "later", "KeyboardInterrupt", (1, 5), id="KeyboardInterrupt"),
]


@pytest.mark.parametrize(("deed", "outcome", "settlement", "reason", "counted_and_delay"), ROWS)
def test_each_ending_has_its_settlement_and_its_count(
    harness: MakeHarness, deed: Deed, outcome: str, settlement: str, reason: str, counted_and_delay: tuple[int, float]
) -> None:
    exports = worker(deed, nothing, retry=quickly(dont_retry_on=(KeyError,)))
    h = harness(exports)
    key = h.send(exports, {})

    row = h.wait(key, until=lambda: events(h, key, JobSettled))

    (event,) = events(h, key, JobSettled)
    attempts, delay = counted_and_delay
    assert (event.outcome, event.settlement) == (outcome, settlement)
    assert event.reason.startswith(reason)
    assert counted(h, key) == (attempts, 0, 0, 0)
    assert row is not None
    assert row.delay == delay
    assert h.starts(key) == 1


@pytest.mark.parametrize("deed", [raises(ValueError("odd")), raises(Retry(delay=2)), generates])
def test_past_max_attempts_it_is_a_dead_letter(harness: MakeHarness, deed: Deed) -> None:
    exports = worker(deed, retry=quickly(max_attempts=3))
    h = harness(exports)
    key = h.send(exports, {})

    h.wait(key, until="dead")
    h.wait(key)

    assert h.starts(key) == 3
    assert settled(h, key) == ["later", "later", "dead-letter"]
    assert [letter.headers[REASON] for letter in h.dead] == ["exhausted"]


def test_a_dead_letter_carries_why(harness: MakeHarness) -> None:
    exports = worker(raises(ValueError("odd amount")), retry=quickly(max_attempts=2))
    h = harness(exports)
    key = h.send(exports, {"merchant": "m-17"}, headers={"tenant": "t-1"})

    row = h.wait(key)

    (letter,) = h.dead
    assert row is not None
    assert letter.body == b'{"merchant":"m-17"}'
    expected = {
        KEY: key,
        "tenant": "t-1",
        REASON: "exhausted",
        ERROR_CLASS: "ValueError",
        ERROR_TEXT: "odd amount",
        ATTEMPTS: "2",
        FIRST_FAILED_AT: f"{row.counters.first_failed_at:.3f}",
        WORKER: "harness/1",
        UID: row.uid,
    }
    assert expected.items() <= dict(letter.headers).items()


def test_a_snooze_counts_nothing_however_often(harness: MakeHarness) -> None:
    exports = worker(*[raises(Snooze(60))] * 12, nothing, retry=quickly(max_attempts=1))
    h = harness(exports)
    key = h.send(exports, {})

    h.wait(key, until="done")

    assert h.starts(key) == 13
    assert counted(h, key) == (0, 0, 0, 0)


def test_a_run_that_outlives_its_time_limit_is_interrupted_and_failed(harness: MakeHarness) -> None:
    """Interrupt 10 s before the limit, in the handler's next call; an attempt is counted."""
    obedient = Obedient(interrupted_at=lambda job: job.progress())
    exports = worker(obedient, nothing, time_limit=3600)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="started")

    h.advance(3595)
    h.wait(key, until="moved")

    row = h.job(key)
    assert row is not None
    assert row.reason == "time-limit"
    assert obedient.reasons == ["time-limit"]
    assert counted(h, key) == (1, 0, 0, 0)


def test_a_run_without_progress_is_stalled(harness: MakeHarness) -> None:
    exports = worker(Obedient(), nothing, stall_limit=300)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="started")

    h.advance(301)
    row = h.wait(key, until="moved")

    assert row is not None
    assert row.reason == "stalled"
    assert counted(h, key) == (1, 0, 0, 0)


def test_the_handler_gets_the_number_of_its_attempt(harness: MakeHarness) -> None:
    seen = Seen(lambda job: job.attempt, raises(ValueError("odd")))
    exports = worker(seen, retry=quickly(max_attempts=4))
    h = harness(exports)

    h.wait(h.send(exports, {}))

    assert seen.values == [1, 2, 3, 4]


def test_a_bad_payload_never_reaches_the_handler(harness: MakeHarness) -> None:
    calls: list[object] = []

    class Exports(Worker[int]):
        queue = QUEUE
        time_limit = None

        def handle(self, job: Any) -> None:
            calls.append(job)

    h = harness(Exports)
    key = h.send(Exports, 1)
    h.broker.messages(QUEUE)[0].body = b'{"merchant": NaN}'

    row = h.wait(key, until="dead")

    assert row is not None
    assert row.reason.startswith("bad-payload: $")
    assert calls == []
    assert counted(h, key) == (0, 0, 0, 0)


def test_an_oversized_body_never_reaches_a_slot(harness: MakeHarness) -> None:
    seen = Seen(lambda job: job.key)
    exports = worker(seen)
    h = harness(exports)
    key = h.send(exports, {})
    h.broker.messages(QUEUE)[0].body = b'"%s"' % (b"x" * (1 << 20))

    row = h.wait(key, until="dead")

    assert row is not None
    assert row.reason == "bad-payload: expected at most 1048576 bytes, got 1048578"
    assert seen.values == []
    assert h.starts(key) == 0


@pytest.mark.parametrize(("losses", "state"), [(3, State.DONE), (4, State.DEAD)])
def test_an_owner_that_vanishes_too_often_makes_a_dead_letter(harness: MakeHarness, losses: int, state: State) -> None:
    exports = worker(nothing)
    h = harness(exports)
    key = h.send(exports, {})
    _vanished(h, key, losses)

    row = h.wait(key)

    assert row is not None
    assert row.state is state
    assert row.counters.losses == losses + 1
    assert h.starts(key) == (state is State.DONE)
    assert [letter.headers[REASON] for letter in h.dead] == ["owner lost ×5"] * (state is State.DEAD)


def test_a_lost_run_that_had_saved_its_position_counts_from_one_again(harness: MakeHarness) -> None:
    seen = Seen(lambda job: job.last_checkpoint)
    exports = worker(seen)
    h = harness(exports)
    key = h.send(exports, {})
    h.ledger.checkpoint(_vanished(h, key, losses=4), b"17")

    h.wait(key, until="done")

    assert counted(h, key) == (0, 0, 1, 0)
    assert seen.values == [17]


def _vanished(h: Harness, key: str, losses: int) -> Token:
    """Let the job be in the hands of somebody who is no more; his lease has 90 s to go."""
    body = h.broker.messages(QUEUE)[0].body
    claim = Claimed(
        JobId(NAMESPACE, QUEUE, key), None, "gone", 0, hashlib.sha256(body).digest(), Counters(losses=losses)
    )
    row = h.ledger.claim(claim)
    assert row is not None
    return row.token
