"""A key names one piece of work: stamped, made plain, never run twice, and never mistaken for another's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from steadyworker.actions.deadletters import DeadLetterQueue
from steadyworker.adapter import DeadLetters, Delivered, QueueSpec
from steadyworker.delivery import DEAD_HEADERS, HOP, KEY, REASON, ROUND, Delivery, OutgoingMessage, Target
from steadyworker.errors import Reject, Snooze
from steadyworker.events import DeliveryRejected, DuplicateAcked, JobSettled
from steadyworker.ledger.base import Claimed, JobFilter, JobId, KeptMessage, Row, State
from steadyworker.outcome import Counters
from steadyworker.runner.envelope import identify
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
from tests.runner.kit import QUEUE, Gate, Seen, counted, events, nothing, quickly, raises, saves, worker


def publish(h: Harness, body: bytes, message_id: str | None = None, **headers: str) -> None:
    """A message of somebody who does not use our Client."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    h.broker.adapter(QueueSpec(QUEUE, f"{QUEUE}.dead")).publish(
        OutgoingMessage(Target.WORK, body, named, message_id=message_id)
    )
    if message_id is None and KEY not in named:
        h.broker.messages(QUEUE)[-1].message_id = ""


def all_settled(h: Harness) -> list[Row]:
    """Wait until no message is left, and answer every row."""
    h.wait("anything", until=lambda: h.broker.depth(QUEUE) == 0)
    return [row for row, _ in h.ledger.jobs(JobFilter(NAMESPACE, QUEUE))]


def test_a_message_without_any_key_is_stamped(harness: MakeHarness) -> None:
    """A copy with a fresh key, confirmed, then the original is acknowledged: equal bodies are two jobs."""
    seen = Seen(lambda job: job.key)
    h = harness(worker(seen))
    publish(h, b"{}")
    publish(h, b"{}")

    rows = all_settled(h)

    assert len(set(seen.values)) == 2
    assert sorted(row.id.key for row in rows) == sorted(map(str, seen.values))
    assert {row.state for row in rows} == {State.DONE}


def test_headers_of_another_queues_job_do_not_apply_to_a_job_here(harness: MakeHarness) -> None:
    """An operator moved a dead letter of another Worker here: a new job, in its first round, with all of its attempts."""
    seen = Seen(lambda job: (job.name, job.attempt), raises(ValueError("once")))
    h = harness(worker(seen))
    cause = {"sw_uid": "u", "sw_error": "theirs", "sw_hop": "x", "sw_attempts": "4", "sw_reason": "exhausted"}
    publish(h, b"{}", sw_job_key="k", sw_queue="other", sw_round="7", tenant="north", **cause)

    (row,) = all_settled(h)

    assert seen.values == [("k", attempt) for attempt in range(1, 6)]
    assert (row.id.round, row.state) == (0, State.DEAD)
    (letter,) = h.dead
    assert (letter.headers["sw-queue"], letter.headers["tenant"]) == (QUEUE, "north")
    assert letter.headers["sw-error"] == "once"


def test_a_rejected_message_names_the_queue_that_rejected_it(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    publish(h, b"{}", sw_job_key="k", sw_round="x")
    all_settled(h)
    (letter,) = h.dead
    assert (letter.headers["sw-queue"], letter.headers["sw-round"]) == (QUEUE, "x")


def moved_back(h: Harness, copies: int = 1) -> None:
    """An operator moves every dead letter to the work queue as it is."""
    operator = h.broker.adapter(QueueSpec(QUEUE, f"{QUEUE}.dead"))
    with operator.dead_letters() as letters:
        for letter in letters:
            for _ in range(copies):
                operator.publish(
                    OutgoingMessage(Target.WORK, letter.body, letter.headers, message_id=letter.message_id)
                )
            letters.drop(letter)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_letter_that_is_moved_back_is_a_replay_and_two_copies_are_one(harness: MakeHarness, copies: int) -> None:
    """It was acknowledged as the message of a dead job, and so was lost."""
    seen = Seen(
        lambda job: (job.name, job.attempt, job.last_checkpoint, sorted(job.headers)), saves(3, raises(Reject("no")))
    )
    h = harness(worker(seen))
    publish(h, b"{}", sw_job_key="k", tenant="north")
    all_settled(h)
    moved_back(h, copies)

    rows = all_settled(h)

    assert [(row.id.round, row.state) for row in rows] == [(1, State.DEAD), (0, State.DEAD)]
    assert [(name, attempt, checkpoint) for name, attempt, checkpoint, _ in seen.values] == [
        ("k", 1, None),
        ("k.r1", 1, 3),
    ]
    assert not [name for *_, names in seen.values for name in names if name in DEAD_HEADERS]
    (letter,) = h.dead
    assert (letter.headers[ROUND], letter.headers["tenant"]) == ("1", "north")
    assert len(events(h, "k", DuplicateAcked)) == copies - 1

    moved_back(h)
    assert (all_settled(h)[0].id.round, len(h.dead)) == (2, 1)


def test_a_letter_that_is_moved_back_has_all_its_retries(harness: MakeHarness) -> None:
    """The retries of the new round carry nothing of the old one's cause, and the first delivery may come again."""
    gate = Gate()
    fails, names = raises(ValueError("as asked")), lambda job: (job.name, job.attempt)
    runs = [Seen(names, deed) for deed in (fails, fails, fails, gate)]
    h = harness(worker(*runs, retry=quickly(max_attempts=2)))
    publish(h, b"{}", sw_job_key="k")
    all_settled(h)
    moved_back(h)
    h.wait("k", until=lambda: len(runs[3].values) == 1)
    h.drop_connection()
    gate.open()

    rows = all_settled(h)

    assert [(row.id.round, row.state) for row in rows] == [(1, State.DONE), (0, State.DEAD)]
    assert [seen.values for seen in runs] == [[("k", 1)], [("k", 2)], [("k.r1", 1)], [("k.r1", 2)]]
    assert h.dead == []


def test_a_message_that_was_rejected_unread_is_no_replay(harness: MakeHarness) -> None:
    """It never was a job: it is rejected again, with its own reason, and is not lost."""
    h = harness(worker(nothing))
    for body in (b"{}", b"[]"):
        publish(h, body, sw_job_key="k")
        all_settled(h)
    moved_back(h)

    assert [(row.id.round, row.state, row.conflicts) for row in all_settled(h)] == [(0, State.DONE, 2)]
    assert [letter.headers[REASON] for letter in h.dead] == ["key-conflict"]


def test_a_message_without_its_content_is_reported_once_however_often_it_comes(harness: MakeHarness) -> None:
    """A broker that cannot move it delivers it again after each pause; another message is reported, too."""
    h = harness(worker(nothing))
    (runner,) = h.start().runners
    h.wait("the broker", until=lambda: not h.not_ready)
    for number, message in enumerate(["m-1", "m-1", "m-2", "m-1", None, None]):
        runner.post(
            Delivered(Delivery(1, f"{number}", QUEUE, b"", message_id=message, unshown="expected text or bytes"))
        )
    runner.drain_inbox()
    reported = [event for event in h.events if isinstance(event, DeliveryRejected)]
    assert [event.reason for event in reported] == ["unshown: expected text or bytes"] * 4
    assert [event.key for event in reported] == ["m-1", "m-2", "", ""]


def test_a_worker_may_reject_what_has_no_key(harness: MakeHarness) -> None:
    seen = Seen(lambda job: job.key)
    h = harness(worker(seen, unkeyed="reject"))
    publish(h, b"{}")

    assert all_settled(h) == []
    assert seen.values == []
    (letter,) = h.dead
    assert letter.headers[REASON].startswith("no-key: expected")


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("export-2026.07:m_17", "export-2026.07:m_17"),
        ("k" * 200, "k" * 200),
        ("../../etc/passwd", None),
        ("..", None),
        ("k" * 201, None),
        ("Zürich", None),
        ("two words", None),
        ("a\nb", None),
        ("-rf", None),
        ("\u202egnp.exe", None),
        ("🙂", None),
    ],
)
def test_whatever_is_no_plain_key_becomes_its_digest(harness: MakeHarness, given: str, plain: str | None) -> None:
    seen = Seen(lambda job: (job.key, job.name))
    h = harness(worker(seen))
    publish(h, b"{}", **{KEY: given})

    (row,) = all_settled(h)

    assert row.state is State.DONE
    ((key, name),) = seen.values
    assert key == row.id.key
    assert key == plain if plain else (key.startswith("h-") and len(key) == 66)
    assert not {"/", "\n", " "} & set(name)
    assert len(name.encode()) <= 100


def test_a_worker_may_take_its_key_from_a_header_of_its_own(harness: MakeHarness) -> None:
    seen = Seen(lambda job: job.key)
    h = harness(worker(seen, key_header="invoice"))
    publish(h, b"{}", "message-1", invoice="i-4711")
    publish(h, b"{}", "message-2", invoice="i-4711")

    (row,) = all_settled(h)

    assert row.id.key == "i-4711"
    assert seen.values == ["i-4711"]


def test_without_a_header_the_brokers_id_is_the_key(harness: MakeHarness) -> None:
    seen = Seen(lambda job: job.key)
    h = harness(worker(seen))
    publish(h, b"{}", "message-1")

    all_settled(h)

    assert seen.values == ["message-1"]


@pytest.mark.parametrize("when", ["during", "after"])
def test_the_same_key_with_another_body_is_a_conflict_and_leaves_the_job_alone(harness: MakeHarness, when: str) -> None:
    gate = Gate()
    exports = worker(saves(1, gate), concurrency=2)
    h = harness(exports)
    key = h.send(exports, {"merchant": "m-1"}, key="k")
    h.wait(key, until="checkpoint")
    if when == "after":
        gate.open()
        h.wait(key)

    h.send(exports, {"merchant": "m-2"}, key="k")
    h.wait(key, until=lambda: h.dead)
    gate.open()
    row = h.wait(key)

    assert row is not None
    assert row.state is State.DONE
    (letter,) = h.dead
    assert (letter.headers[REASON], letter.body) == ("key-conflict", b'{"merchant":"m-2"}')
    assert h.starts(key) == 1
    assert row.conflicts == 1
    assert [(event.reason, event.fence) for event in events(h, key, DeliveryRejected)] == [("key-conflict", row.fence)]


@pytest.mark.parametrize(
    ("headers", "key_header", "explain"),
    [
        ({}, None, "steadyworker.id-conflict"),
        ({"sw_job_key": "k"}, None, "steadyworker.key-conflict"),
        ({"order": "k"}, "order", "steadyworker.key-conflict"),
        ({"order": "k"}, None, "steadyworker.id-conflict"),
    ],
)
def test_a_conflict_is_explained_by_where_the_key_came_from(
    harness: MakeHarness, headers: dict[str, str], key_header: str | None, explain: str
) -> None:
    exports = worker(nothing, key_header=key_header)
    h = harness(exports)
    for body in (b"{}", b"[]"):
        publish(h, body, message_id="id-1", **headers)
        all_settled(h)
    key = "k" if explain == "steadyworker.key-conflict" else "id-1"
    rejected = events(h, key, DeliveryRejected)
    assert [(event.reason, event.explain) for event in rejected] == [("key-conflict", explain)]


@pytest.mark.parametrize(
    ("headers", "key", "reason"),
    [
        ({"sw-job-key": "k", "sw-hop": "far"}, "k", "bad-header: sw-hop: "),
        ({}, "", "no-key: "),
    ],
)
def test_a_message_that_becomes_a_dead_letter_without_a_run_is_an_event_and_an_error_line(
    harness: MakeHarness, caplog: pytest.LogCaptureFixture, headers: dict[str, str], key: str, reason: str
) -> None:
    h = harness(worker(nothing, unkeyed="reject"))

    publish(h, b"{}", None, **headers)
    all_settled(h)

    (letter,) = h.dead
    (event,) = [event for event in h.events if isinstance(event, DeliveryRejected)]
    assert (event.key, event.queue, event.fence) == (key, "exports", 0)
    assert event.reason == letter.headers[REASON]
    assert event.reason.startswith(reason)
    assert [line.levelname for line in caplog.records if "delivery_rejected" in line.getMessage()] == ["ERROR"]


@pytest.mark.parametrize("when", ["before", "during", "between two attempts", "after"])
def test_a_duplicate_never_starts_the_job_again(harness: MakeHarness, when: str) -> None:
    gate = Gate()
    fails = when == "between two attempts"
    exports = worker(*[raises(ValueError("odd"))] * fails, saves(1, gate), concurrency=2)
    h = harness(exports)
    if when == "before":
        h.processes[0].freeze()
        h.send(exports, {}, key="k")
        h.send(exports, {}, key="k")
        h.processes[0].thaw()
    key = h.send(exports, {}, key="k")
    if fails:
        h.wait(key, until="moved")
        h.send(exports, {}, key="k")
    h.wait(key, until="checkpoint")
    if when == "during":
        h.send(exports, {}, key="k")
        h.advance(40)
    gate.open()
    h.wait(key)
    if when == "after":
        h.send(exports, {}, key="k")
        h.wait(key)
        assert len(events(h, key, DuplicateAcked)) == 1

    assert h.starts(key) == 1 + fails
    assert len([event for event in events(h, key, JobSettled) if event.settlement == "ack"]) == 1
    assert counted(h, key) == (fails, 0, 0, 0)


def test_again_is_a_round_of_its_own(harness: MakeHarness) -> None:
    seen = Seen(lambda job: (job.name, job.last_checkpoint), saves(1))
    exports = worker(seen)
    h = harness(exports)
    key = h.send(exports, {}, key="k")
    h.wait(key)

    for _ in range(2):
        h.send(exports, {}, key="k", again=True)
        h.wait(key)

    assert [name for name, _ in seen.values] == ["k", "k.r1", "k.r2"]
    row = h.job(key)
    assert row is not None
    assert row.id.round == 2


def test_a_replay_is_a_round_of_its_own_and_begins_at_the_checkpoint(harness: MakeHarness) -> None:
    seen = Seen(lambda job: job.last_checkpoint)
    exports = worker(saves(17, raises(Reject("no"))), seen)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key)

    letters(h).replay([key])
    row = h.wait(key)

    assert row is not None
    assert (row.id.round, row.state) == (1, State.DONE)
    assert seen.values == [17]
    assert h.dead == []


def test_a_replay_from_the_start_forgets_the_checkpoint(harness: MakeHarness) -> None:
    seen = Seen(lambda job: job.last_checkpoint)
    exports = worker(saves(17, raises(Reject("no"))), seen)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key)

    letters(h).replay([key], from_start=True)
    h.wait(key)

    assert seen.values == [None]


def test_replayed_twice_it_runs_once(harness: MakeHarness) -> None:
    """A crash between the publish of a replay and the removal of its letter, and the replay again."""
    exports = worker(raises(Reject("no")), nothing)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key)
    (letter,) = h.dead
    publish(h, letter.body, key, **{KEY: key, ROUND: "1"})

    letters(h).replay([key])
    row = h.wait(key)

    assert row is not None
    assert (row.id.round, row.state) == (1, State.DONE)
    assert h.starts(key) == 2
    assert h.dead == []


def test_a_replay_that_was_cut_off_before_its_message_still_runs_and_runs_once(harness: MakeHarness) -> None:
    """The ledger has the next round's message, so a worker process takes it; then the letter is replayed once more."""
    exports = worker(raises(Reject("no")), nothing)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key)
    adapter = h.broker.adapter(QueueSpec(QUEUE, f"{QUEUE}.dead"))

    class Cut(Exception):
        pass

    @contextmanager
    def cut_off() -> Iterator[DeadLetters]:
        with adapter.dead_letters() as held:
            held.publish = raise_cut  # type: ignore[method-assign]
            yield held

    def raise_cut(message: OutgoingMessage) -> None:
        raise Cut

    with pytest.raises(Cut):
        DeadLetterQueue(cut_off, h.ledger, NAMESPACE, QUEUE).replay([key])
    h.advance(600)
    row = h.wait(key)
    assert row is not None
    assert (row.id.round, row.state, h.starts(key), len(h.dead)) == (1, State.DONE, 2, 1)
    letters(h).replay([key])
    h.wait("anything", until=lambda: h.broker.depth(QUEUE) == 0)
    assert (h.starts(key), h.dead) == (2, [])


def test_a_job_that_died_again_is_replayed_to_the_next_round(harness: MakeHarness) -> None:
    exports = worker(raises(Reject("no")), raises(Reject("still no")), nothing)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key)

    letters(h).replay([key])
    h.wait(key)
    assert [(letter.reason, letter.round) for letter in letters(h).letters()] == [("still no", 1)]
    letters(h).replay([key])
    row = h.wait(key)

    assert row is not None
    assert (row.id.round, row.state) == (2, State.DONE)
    assert h.starts(key) == 3


@pytest.mark.parametrize(
    ("header", "value"), [(HOP, "-1"), (ROUND, "1e3"), (HOP, "9" * 16), ("sw-attempts", "many"), (ROUND, "²")]
)
def test_a_header_that_makes_no_sense_is_a_dead_letter_that_names_it(
    harness: MakeHarness, header: str, value: str
) -> None:
    seen = Seen(lambda job: job.key)
    h = harness(worker(seen))
    publish(h, b"{}", "m-1", **{header: value})

    assert all_settled(h) == []
    (letter,) = h.dead
    assert letter.headers[REASON].startswith(f"bad-header: {header}: expected a whole number")
    assert seen.values == []


def test_a_body_that_the_adapter_cannot_read_is_a_dead_letter_with_its_reason(
    harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(lambda job: job.key)
    h = harness(worker(seen))

    def compressed(delivery: Delivery, *more: Any) -> Any:
        return identify(replace(delivery, unreadable="expected a plain body, got lz4"), *more)

    monkeypatch.setattr("steadyworker.runner.deliveries.identify", compressed)
    publish(h, b"\x04\x22", "m-1")

    assert all_settled(h) == []
    (letter,) = h.dead
    assert (letter.headers[REASON], letter.body) == ("bad-payload: expected a plain body, got lz4", b"\x04\x22")
    assert seen.values == []


def test_a_job_may_be_snoozed_a_million_times_and_once_more(harness: MakeHarness) -> None:
    h = harness(worker(raises(Snooze(0)), nothing))
    publish(h, b"{}", "m-1", **{HOP: "1000000"})

    (row,) = all_settled(h)

    assert (row.state, row.hop) == (State.DONE, 1_000_001)
    assert h.dead == []


def test_counters_in_the_headers_stand_in_for_a_row_that_is_gone(harness: MakeHarness) -> None:
    seen = Seen(lambda job: job.attempt)
    h = harness(worker(seen))
    publish(h, b"{}", "m-1", **{HOP: "2", "sw-attempts": "2", "sw-crashes": "1", "sw-losses": "3"})

    (row,) = all_settled(h)

    assert seen.values == [3]
    assert (row.hop, row.counters.attempts, row.counters.crashes, row.counters.losses) == (2, 2, 1, 3)


def letters(h: Harness) -> DeadLetterQueue:
    adapter = h.broker.adapter(QueueSpec(QUEUE, f"{QUEUE}.dead"))
    return DeadLetterQueue(adapter.dead_letters, h.ledger, NAMESPACE, QUEUE)


def test_the_ledger_is_asked_before_a_claim_only_of_what_is_not_new(
    harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that expects no row is refused where there is one: then the row is read, and decides."""
    exports = worker(nothing)
    h = harness(exports)
    (process,) = h.processes
    read: Callable[[JobId], Row | None] = process.ledger.read
    asked: list[str] = []

    def listening(id: JobId) -> Row | None:
        asked.append(id.key)
        return read(id)

    monkeypatch.setattr(process.ledger, "read", listening)
    h.send(exports, {}, key="may")
    all_settled(h)
    assert asked == []

    h.send(exports, {}, key="may")
    all_settled(h)
    assert asked == ["may"]
    assert h.starts("may") == 1
    assert len(events(h, "may", DuplicateAcked)) == 1


def test_a_job_whose_message_was_lost_and_that_was_sent_again_runs_once(harness: MakeHarness) -> None:
    """The ledger keeps the lost message, too, but the next round has taken its place."""
    seen = Seen(lambda job: job.key)
    exports = worker(seen)
    h = harness(exports)
    id_, kept = JobId(NAMESPACE, QUEUE, "k-1"), KeptMessage(b"{}", b'{"headers":{"sw-job-key":"k-1"}}')
    lost = Claimed(id_, None, "gone", 0, hashlib.sha256(b"{}").digest(), Counters(), kept)
    assert h.ledger.claim(lost) is not None

    h.send(exports, {}, key="k-1", again=True)
    row = h.wait("k-1")
    h.advance(900)

    assert row is not None
    assert (row.id.round, row.state, seen.values) == (1, State.DONE, ["k-1"])
