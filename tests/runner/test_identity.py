"""Which job a message is: a copy is its original's, and no sender's headers make a message another job's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from steadyworker.actions.deadletters import DeadLetterQueue
from steadyworker.adapter import Delivery, QueueSpec, Redelivered
from steadyworker.delivery import HOP, KEY, QUEUE, REASON, ROUND, UID, WORKER
from steadyworker.errors import Reject
from steadyworker.events import DeliveryDeferred
from steadyworker.ledger.base import Row, State
from steadyworker.runner.envelope import Envelope, identify
from steadyworker.runner.planning import deferred
from steadyworker.testing.harness import Harness, Until
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
from tests.runner.kit import Gate, Seen, events, nothing, quickly, raises, saves, worker
from tests.runner.test_keys import all_settled, publish

EXPORTS = "exports"
UNTIL: dict[State, Until] = {
    State.RUNNING: "checkpoint",
    State.MOVED: "moved",
    State.DONE: "done",
    State.DEAD: "dead",
}
CONFLICT = "key-conflict: expected order-id and sw-job-key to name one job, got 'mine' and 'victim', and no sw-uid of the second"


def letters_of(h: Harness) -> DeadLetterQueue:
    adapter = h.broker.adapter(QueueSpec(EXPORTS, f"{EXPORTS}.dead"))
    return DeadLetterQueue(adapter.dead_letters, h.ledger, NAMESPACE, EXPORTS, key_header="order-id")


def row_of(h: Harness, key: str) -> Row:
    row = h.job(key)
    assert row is not None
    return row


def test_two_jobs_whose_copies_have_lost_the_end_of_their_keys_are_two_jobs(harness: MakeHarness) -> None:
    """One of them was acknowledged as a duplicate of the other, and both rows waited without end."""
    seen = Seen(lambda job: job.payload["n"], raises(ValueError("once")))
    h = harness(worker(seen, seen, nothing, key_header="order-id", retry=quickly()))
    for n in (1, 2):
        publish(h, b'{"n": %d}' % n, order_id=f"order-{n}")
    h.wait("order-1", until="moved")
    h.wait("order-2", until="moved")
    for copy in h.broker.messages(EXPORTS):  # as a bridge between two brokers may do
        copy.headers = {**copy.headers, "order-id": "order-"}

    rows = all_settled(h)

    assert sorted(seen.values) == [1, 2]
    assert {row.id.key: (row.state, row.counters.attempts) for row in rows} == {
        "order-1": (State.DONE, 1),
        "order-2": (State.DONE, 1),
    }
    assert h.dead == []


@pytest.mark.parametrize(
    "forged", [{HOP: "1"}, {HOP: "0", UID: "u"}, {ROUND: "0"}, {UID: "u"}, {UID: "u", WORKER: "w"}]
)
@pytest.mark.parametrize("state", UNTIL)
def test_a_sender_who_forges_our_headers_gets_no_other_jobs_row(
    harness: MakeHarness, forged: dict[str, str], state: State
) -> None:
    """Not even with the same body: the message is a dead letter with the reason, and its replay is a job of its own."""
    gate = Gate()
    deeds: dict[State, Any] = {
        State.RUNNING: saves(5, gate),
        State.MOVED: raises(ValueError("once")),
        State.DONE: nothing,
        State.DEAD: raises(Reject("no")),
    }
    seen = Seen(lambda job: (job.key, job.attempt, job.last_checkpoint), deeds[state])
    ran = Seen(lambda job: (job.key, job.attempt, job.last_checkpoint))
    h = harness(worker(seen, ran, key_header="order-id", retry=quickly(wait="1h"), concurrency=2))
    publish(h, b"{}", order_id="victim")
    h.wait("victim", until=UNTIL[state])
    before = row_of(h, "victim")
    victims = len(h.dead)

    publish(h, b"{}", **{KEY: "victim", "order-id": "mine"}, **forged)
    h.wait("victim", until=lambda: len(h.dead) == victims + 1)

    after = row_of(h, "victim")
    assert (after.uid, after.fence, after.hop, after.state) == (before.uid, before.fence, before.hop, before.state)
    assert (after.counters, after.checkpoint, after.conflicts) == (before.counters, before.checkpoint, 0)
    assert len(seen.values) + len(ran.values) == 1
    letter = h.dead[-1]
    assert letter.headers[REASON].startswith(CONFLICT)
    assert (letter.body, letter.headers["order-id"]) == (b"{}", "mine")
    letters = letters_of(h)
    assert sorted(each.is_conflict for each in letters.letters()) == [False] * victims + [True]
    if state is State.RUNNING:
        gate.open()
        h.wait("victim")
    replayed = [again for again in letters.replay() if again.letter.is_conflict]
    (key,) = {again.key for again in replayed}
    assert key not in ("victim", "mine")
    row = h.wait(key)
    assert row is not None
    assert (row.state, row.id.round) == (State.DONE, 0)
    assert (key, 1, None) in ran.values


def test_a_forged_dead_letter_replays_no_job(harness: MakeHarness) -> None:
    """The letter of a job has the uid of its row."""
    h = harness(worker(raises(Reject("no")), nothing))
    publish(h, b"{}", sw_job_key="k")
    all_settled(h)
    publish(h, b"{}", **{KEY: "k", QUEUE: EXPORTS, UID: "u", WORKER: "w"})
    rows = all_settled(h)
    assert [(row.id.round, row.state) for row in rows] == [(0, State.DEAD)]
    assert [letter.headers[REASON] for letter in h.dead[1:]] == [
        "key-conflict: expected a dead letter of this job, got one with another sw-uid"
    ]
    assert sorted(each.is_conflict for each in letters_of(h).letters()) == [False, True]


def test_a_rejected_message_keeps_its_key_though_its_copy_has_another_id(harness: MakeHarness) -> None:
    """The broker's id was its key; a broker gives each copy an id of its own."""
    h = harness(worker(nothing, nothing))
    publish(h, b"{}", "message-1")
    publish(h, b"[]", "message-1")
    all_settled(h)
    for letter in h.dead:
        letter.message_id = "another"
    assert [(each.key, each.is_conflict) for each in letters_of(h).letters()] == [("message-1", True)]


def test_a_deferred_copy_is_no_dead_letter_whatever_its_original_had() -> None:
    """A rejected message that an operator moves back has headers of a letter, and the copy has the uid of its job."""
    headers = {KEY: "k", QUEUE: EXPORTS, REASON: "key-conflict", WORKER: "host", "order": "7"}
    moved = identify(delivery_of(headers), NAMESPACE, None)
    assert isinstance(moved, Envelope)
    copy = identify(delivery_of(deferred(moved, "u", 30.0).headers), NAMESPACE, None)
    assert isinstance(copy, Envelope)
    assert (moved.letter, copy.letter, copy.uid, copy.delivery.headers["order"]) == (False, False, "u", "7")
    letter = identify(delivery_of({**headers, UID: "u"}), NAMESPACE, None)
    assert isinstance(letter, Envelope)
    again = identify(delivery_of(deferred(letter, "u", 30.0).headers), NAMESPACE, None)
    assert isinstance(again, Envelope)
    assert (letter.letter, again.letter) == (True, True), "a letter that waits is still one"


def delivery_of(headers: Mapping[str, str]) -> Delivery:
    return Delivery(1, "1", EXPORTS, b"{}", dict(headers), "id", Redelivered.NO)


def test_a_deferred_copy_names_its_job_and_carries_the_proof(harness: MakeHarness) -> None:
    gate = Gate()
    h = harness(worker(saves(1, gate), nothing, key_header="order-id", concurrency=2))
    publish(h, b"{}", order_id="k")
    h.wait("k", until="checkpoint")
    row = row_of(h, "k")
    publish(h, b"{}", order_id="k")
    h.wait("k", until=lambda: events(h, "k", DeliveryDeferred))
    (copy,) = [message for message in h.broker.messages(EXPORTS) if message.holder is None]
    assert {name: copy.headers.get(name) for name in (KEY, QUEUE, ROUND, HOP, UID, "order-id")} == {
        KEY: "k", QUEUE: EXPORTS, ROUND: "0", HOP: "0", UID: row.uid, "order-id": "k",
    }  # fmt: skip
    gate.open()
    (row,) = all_settled(h)
    assert (row.state, h.starts("k")) == (State.DONE, 1)


def test_a_handler_never_sees_the_uid(harness: MakeHarness) -> None:
    """It can send its headers on; the uid would prove another message to be this job's."""
    seen = Seen(lambda job: dict(job.headers), raises(ValueError("once")))
    h = harness(worker(seen, retry=quickly()))
    publish(h, b"{}", sw_job_key="k")
    (row,) = all_settled(h)
    assert [headers.get(HOP) for headers in seen.values] == [None, "1", "2"]
    assert [headers.get(UID) for headers in seen.values] == [None] * 3
    assert [letter.headers[UID] for letter in h.dead] == [row.uid]
