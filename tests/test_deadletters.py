"""What is in a dead-letter queue, and that each way out of it loses nothing and repeats nothing."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest

from steadyworker.actions.deadletters import DeadLetterQueue
from steadyworker.adapter import DeadLetters, Delivery, OutgoingMessage, QueueSpec, Target
from steadyworker.clock import Times
from steadyworker.delivery import KEY
from steadyworker.errors import PublishFailed, SteadyWorkerError, Unsettled
from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Moving, Row, State, Verdict
from steadyworker.ledger.rules import AckDuplicate, Claim, HeldBy, action_for
from steadyworker.outcome import Counters
from steadyworker.runner.envelope import Envelope
from steadyworker.runner.planning import message_for
from steadyworker.testing.broker import MemoryBroker
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from steadyworker.testing.queues import QueuedMessage

SPEC = QueueSpec("exports", "exports.dead")
BODY = b'{"merchant": "m-17"}'


def enveloped(id: JobId, body: bytes, headers: dict[str, str] | None = None) -> Envelope:
    """A delivery of this job, as the runner has read it."""
    return Envelope(Delivery(1, "d-1", "exports", body, headers or {}), id, 0, b"", Counters())


class Bench:
    """A broker, a ledger and the dead letters of one queue."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker(self.clock)
        self.adapter = self.broker.adapter(SPEC)
        self.ledger = MemoryLedger(self.clock, Times())
        self.queue = self.over(self.adapter.dead_letters)

    def over(
        self, letters: Callable[[], AbstractContextManager[DeadLetters]], key_header: str | None = None
    ) -> DeadLetterQueue:
        return DeadLetterQueue(letters, self.ledger, "test", SPEC.queue, key_header=key_header)

    def job(self, key: str, round_: int = 0) -> JobId:
        return JobId("test", SPEC.queue, key, round_)

    def row(self, key: str, round_: int = 0) -> Row:
        row = self.ledger.read(self.job(key, round_))
        assert row is not None
        return row

    def run(self, key: str, body: bytes = BODY, round_: int = 0) -> Row:
        """A run that is under way."""
        id_ = self.job(key, round_)
        kept = KeptMessage(body, b'{"headers":{"tenant":"north"}}')
        seen = self.ledger.read(id_)
        claim = Claimed(id_, seen, "owner", 0, hashlib.sha256(body).digest(), Counters(), kept)
        row = self.ledger.claim(claim)
        assert row is not None
        return row

    def die(self, key: str, *, copies: int = 1, checkpoint: bytes | None = b"7", body: bytes = BODY) -> None:
        """A job that failed for good, as the runner hands it over."""
        row = self.run(key, body)
        if checkpoint is not None:
            assert self.ledger.checkpoint(row.token, checkpoint)
        counters = Counters(attempts=5, crashes=1, losses=2, first_failed_at=1_700_000_000.5)
        verdict = Verdict(Moving.DEAD, "exhausted", counters, error_class="ValueError", error_text="no such merchant")
        assert self.ledger.moving(row.token, verdict)
        envelope = enveloped(row.id, body, {"tenant": "north"})
        for _ in range(copies):
            self.adapter.publish(message_for(envelope, 4, verdict, row.uid, "host-1"))
        assert self.ledger.moved(row.token)

    @property
    def work(self) -> list[QueuedMessage]:
        return self.broker.messages("exports")

    @property
    def dead(self) -> list[QueuedMessage]:
        return self.broker.dead("exports")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_list_without_bodies_has_every_other_fact(bench: Bench) -> None:
    bench.die("k-1", copies=2)
    bench.die("k-2", body=b"[]")

    bare, whole = bench.queue.letters(bodies=False), bench.queue.letters()

    assert [letter.body for letter in bare] == [b"", b""]
    assert [replace(letter, body=b"") for letter in whole] == bare
    assert [letter.size for letter in bare] == [len(BODY), 2]
    assert [letter.copies for letter in bare] == [2, 1]


class Wrapped:
    """Dead letters whose reader can be made to fail at a step, to leave out bodies, or to know no ids."""

    def __init__(self, bench: Bench, *, keyless: bool = False) -> None:
        self.bench = bench
        self.fail_at = ""
        self.leave_out = False
        self.keyless = keyless

    @contextmanager
    def letters(self) -> Iterator[DeadLetters]:
        with self.bench.adapter.dead_letters() as held:
            yield Reader(held, self)


class Reader:
    def __init__(self, held: DeadLetters, wrapped: Wrapped) -> None:
        self.held, self.wrapped = held, wrapped

    def __iter__(self) -> Iterator[Delivery]:
        for delivery in self.held:
            seen = replace(delivery, body=b"", size=5 << 20) if self.wrapped.leave_out else delivery
            yield replace(seen, message_id=None) if self.wrapped.keyless else seen

    def publish(self, message: OutgoingMessage) -> None:
        if self.wrapped.fail_at == "publish":
            raise PublishFailed("no confirm")
        self.held.publish(message)

    def drop(self, delivery: Delivery) -> None:
        if self.wrapped.fail_at == "drop":
            raise Unsettled("no answer")
        self.held.drop(delivery)


def test_a_letter_has_the_reason_why_it_is_there(bench: Bench) -> None:
    bench.die("k-1")
    (letter,) = bench.queue.letters()
    assert (letter.key, letter.round, letter.reason) == ("k-1", 0, "exhausted")
    assert (letter.error_class, letter.error) == ("ValueError", "no such merchant")
    assert (letter.attempts, letter.crashes, letter.losses) == (5, 1, 2)
    assert (letter.first_failed_at, letter.worker, letter.uid) == (1_700_000_000.5, "host-1", bench.row("k-1").uid)
    assert letter.body == BODY
    assert letter.ours


def test_listing_changes_nothing(bench: Bench) -> None:
    bench.die("k-1")
    for _ in range(3):
        assert len(bench.queue.letters()) == 1
    assert len(bench.dead) == 1
    assert bench.work == []


def test_copies_of_one_job_are_one_letter(bench: Bench) -> None:
    bench.die("k-1", copies=3)
    bench.die("k-2")
    assert [(letter.key, letter.copies) for letter in bench.queue.letters()] == [("k-1", 3), ("k-2", 1)]


def test_equal_bodies_without_a_key_are_two_letters(bench: Bench) -> None:
    """Equal bodies are two jobs, so that to replay one of them is not to lose the other."""
    for _ in range(2):
        bench.adapter.publish(OutgoingMessage(Target.DEAD, b"same", {}))
    queue = bench.over(Wrapped(bench, keyless=True).letters)
    letters = queue.letters()
    assert [(letter.copies, letter.keyed) for letter in letters] == [(1, False), (1, False)]
    assert len({letter.key for letter in letters}) == 2
    queue.replay()
    assert len({message.headers["sw-job-key"] for message in bench.work}) == 2
    assert bench.dead == []


def test_replay_is_a_fresh_job_of_the_next_round(bench: Bench) -> None:
    bench.die("k-1", copies=2)
    (replayed,) = bench.queue.replay(["k-1"])
    assert (replayed.key, replayed.round) == ("k-1", 1)
    assert bench.dead == []
    (message,) = bench.work
    assert message.body == BODY
    assert message.headers == {"tenant": "north", "sw-job-key": "k-1", "sw-queue": "exports", "sw-round": "1"}


def test_the_replayed_round_begins_at_the_checkpoint(bench: Bench) -> None:
    bench.die("k-1")
    bench.queue.replay(["k-1"])
    assert bench.run("k-1", round_=1).checkpoint == b"7"


def test_from_start_forgets_the_checkpoint(bench: Bench) -> None:
    bench.die("k-1")
    bench.queue.replay(["k-1"], from_start=True)
    assert bench.run("k-1", round_=1).checkpoint is None


def test_replay_publishes_before_it_removes(bench: Bench) -> None:
    bench.die("k-1", copies=2)
    wrapped = Wrapped(bench)
    wrapped.fail_at = "publish"
    with pytest.raises(PublishFailed):
        bench.over(wrapped.letters).replay()
    assert len(bench.dead) == 2
    assert bench.work == []


def test_replaying_again_after_a_crash_runs_the_job_once(bench: Bench) -> None:
    """A crash between publish and removal: the second replay is the same key, round and body, so the record answers."""
    bench.die("k-1")
    wrapped = Wrapped(bench)
    wrapped.fail_at = "drop"
    with pytest.raises(Unsettled):
        bench.over(wrapped.letters).replay()
    wrapped.fail_at = ""
    bench.over(wrapped.letters).replay()
    first, second = bench.work
    assert (first.headers, first.body) == (second.headers, second.body)
    digest = hashlib.sha256(BODY).digest()
    assert isinstance(action_for(None, 0, digest, HeldBy.GONE, Counters(), 5), Claim)
    assert bench.ledger.done(bench.run("k-1", round_=1).token)
    assert action_for(bench.row("k-1", 1), 0, digest, HeldBy.GONE, Counters(), 5) == AckDuplicate(State.DONE)


def test_a_letter_cannot_be_replayed_twice(bench: Bench) -> None:
    bench.die("k-1")
    bench.queue.replay(["k-1"])
    with pytest.raises(SteadyWorkerError, match="k-1"):
        bench.queue.replay(["k-1"])
    assert len(bench.work) == 1


def test_a_dead_second_round_becomes_a_third(bench: Bench) -> None:
    bench.die("k-1")
    bench.queue.replay()
    row = bench.run("k-1", round_=1)
    verdict = Verdict(Moving.DEAD, "exhausted", Counters(attempts=5))
    assert bench.ledger.moving(row.token, verdict)
    bench.adapter.publish(message_for(enveloped(row.id, BODY), 0, verdict, row.uid, "host-1"))
    assert bench.ledger.moved(row.token)
    (replayed,) = bench.queue.replay()
    assert replayed.round == 2


def test_a_conflict_becomes_a_job_with_a_key_of_its_own(bench: Bench) -> None:
    """It must not begin at the checkpoint of the stranger whose key it has."""
    bench.run("k-1")
    other = enveloped(bench.job("k-1"), b'{"merchant": "m-18"}')
    bench.adapter.publish(message_for(other, 0, Verdict(Moving.DEAD, "key-conflict", Counters()), "", ""))
    (replayed,) = bench.queue.replay()
    assert replayed.key.startswith("k-1.")
    assert replayed.round == 0
    assert bench.work[0].headers == {"sw-job-key": replayed.key}


def test_replaying_a_conflict_from_the_start_leaves_the_other_jobs_checkpoint(bench: Bench) -> None:
    bench.die("k-1")
    bench.queue.drop(["k-1"])
    row = bench.run("k-1")
    assert bench.ledger.checkpoint(row.token, b"9")
    assert bench.ledger.interrupted(row.token, Counters(interruptions=1))
    other = enveloped(bench.job("k-1"), b'{"merchant": "m-18"}')
    bench.adapter.publish(message_for(other, 0, Verdict(Moving.DEAD, "key-conflict", Counters()), "", ""))
    bench.queue.replay(from_start=True)
    assert bench.row("k-1").checkpoint == b"9"


def test_dropping_a_conflict_leaves_the_other_job_alone(bench: Bench) -> None:
    bench.die("k-1")
    bench.queue.replay(["k-1"])
    other = enveloped(bench.job("k-1"), b'{"merchant": "m-18"}')
    bench.adapter.publish(message_for(other, 0, Verdict(Moving.DEAD, "key-conflict", Counters()), "", ""))
    bench.queue.drop()
    assert bench.row("k-1").state is State.DEAD


class TestWhatTheBrokerPutThere:
    """Expired, delivered too often, rejected by an operator: no reason of ours, and the ledger may know better."""

    def foreign(self, bench: Bench, key: str = "k-1", **headers: str) -> None:
        bench.adapter.publish(OutgoingMessage(Target.DEAD, BODY, headers, message_id=key))

    def test_is_listed_with_what_is_known(self, bench: Bench) -> None:
        self.foreign(bench, **{"x-why": "expired"})
        (letter,) = bench.queue.letters()
        assert (letter.key, letter.reason, letter.ours) == ("k-1", "", False)
        assert letter.headers == {"x-why": "expired"}

    def test_goes_back_as_it_was_while_its_job_runs(self, bench: Bench) -> None:
        """The run that is adrift adopts it: a new round would start the job a second time beside itself."""
        bench.run("k-1")
        self.foreign(bench, **{"sw-hop": "0", "sw-attempts": "0"})
        (replayed,) = bench.queue.replay()
        assert replayed.round == 0
        assert bench.work[0].headers == {"sw-hop": "0", "sw-attempts": "0", "sw-job-key": "k-1"}
        assert bench.dead == []

    def test_goes_back_as_it_was_when_nobody_ever_ran_it(self, bench: Bench) -> None:
        self.foreign(bench)
        (replayed,) = bench.queue.replay()
        assert (replayed.key, replayed.round) == ("k-1", 0)

    def test_is_a_new_round_when_its_job_is_dead(self, bench: Bench) -> None:
        bench.die("k-1")
        bench.queue.letters()
        with bench.adapter.dead_letters() as held:
            for delivery in held:
                held.drop(delivery)
        self.foreign(bench)
        (replayed,) = bench.queue.replay()
        assert replayed.round == 1

    @pytest.mark.parametrize("lease_over", [True, False])
    @pytest.mark.parametrize("way", ["replay", "drop"])
    def test_is_the_proof_of_a_move_that_its_worker_could_not_record(
        self, bench: Bench, way: str, lease_over: bool
    ) -> None:
        """The worker was killed after its rejection; another message with this key proves nothing."""
        row = bench.run("k-1")
        assert bench.ledger.moving(row.token, Verdict(Moving.DEAD, "exhausted", Counters(attempts=1)))
        if lease_over:
            bench.clock.advance(3600)
        bench.adapter.publish(OutgoingMessage(Target.DEAD, b"[]", {}, message_id="k-1"))
        assert bench.queue.replay()[0].round == 0
        assert bench.row("k-1").state is State.MOVING

        self.foreign(bench)
        assert [parked.id.key for parked in bench.queue.parked()] == ["k-1"]
        assert bench.queue.parked(bench.queue.letters(bodies=False)) == []
        if way == "replay":
            (replayed,) = bench.queue.replay()
            assert replayed.round == 1
            assert bench.row("k-1").state is (State.DEAD if lease_over else State.MOVING)
        else:
            bench.queue.drop()
            assert (bench.ledger.read(bench.job("k-1")) is None) is lease_over

    def test_a_retry_copy_that_it_gave_up_is_not_ours(self, bench: Bench) -> None:
        again = Verdict(Moving.RETRY, "ValueError", Counters(attempts=1), 5.0)
        message = message_for(enveloped(bench.job("k-1"), BODY), 0, again, "", "")
        bench.adapter.publish(replace(message, to=Target.DEAD))
        (letter,) = bench.queue.letters()
        assert not letter.ours
        bench.queue.replay()
        assert bench.work[0].headers["sw-hop"] == "1"

    def test_headers_that_make_no_sense_count_as_none(self, bench: Bench) -> None:
        self.foreign(bench, **{"sw-round": "-1", "sw-attempts": "9" * 400, "sw-first-failed-at": "nan"})
        (letter,) = bench.queue.letters()
        assert (letter.round, letter.attempts, letter.first_failed_at) == (0, 0, None)


def test_letters_of_other_queues_are_counted_and_left_alone(bench: Bench) -> None:
    """Two Workers may share a dead-letter queue, and their jobs may have equal keys."""
    bench.die("k-1")
    bench.adapter.publish(OutgoingMessage(Target.DEAD, BODY, {"sw-job-key": "k-1", "sw-queue": "other", "sw-uid": "u"}))
    assert [letter.uid for letter in bench.queue.letters()] == [bench.row("k-1").uid]
    assert bench.queue.others == {"other": 1}
    with pytest.raises(SteadyWorkerError, match="of exports, got 'k-2'"):
        bench.queue.replay(["k-2"])
    for act in (bench.queue.replay, bench.queue.drop):
        act()
        assert bench.queue.others == {"other": 1}
    assert [message.headers["sw-queue"] for message in bench.dead] == ["other"]
    assert [message.headers["sw-round"] for message in bench.work] == ["1"]


def test_the_workers_own_key_header_names_the_letter(bench: Bench) -> None:
    bench.adapter.publish(
        OutgoingMessage(Target.DEAD, BODY, {"order-id": "o-9", "sw-reason": "exhausted", "sw-worker": "w"})
    )
    queue = bench.over(bench.adapter.dead_letters, key_header="order-id")
    assert [letter.key for letter in queue.letters()] == ["o-9"]
    queue.replay(["o-9"])
    assert bench.work[0].headers == {
        "order-id": "o-9",
        "sw-job-key": "o-9",
        "sw-queue": "exports",
        "sw-round": "1",
    }


def test_an_odd_key_is_found_by_the_name_that_the_user_gave_it(bench: Bench) -> None:
    bench.adapter.publish(OutgoingMessage(Target.DEAD, BODY, {"sw-job-key": "../etc/passwd"}))
    (letter,) = bench.queue.letters(["../etc/passwd"])
    assert letter.key.startswith("h-")


def test_a_body_that_was_left_out_is_never_replayed(bench: Bench) -> None:
    bench.die("k-1")
    wrapped = Wrapped(bench)
    wrapped.leave_out = True
    with pytest.raises(SteadyWorkerError, match="0 of 5242880 bytes"):
        bench.over(wrapped.letters).replay()
    assert len(bench.dead) == 1
    assert bench.work == []


def test_drop_removes_every_copy_and_frees_the_key(bench: Bench) -> None:
    bench.die("k-1", copies=2)
    bench.die("k-2")
    dropped = bench.queue.drop(["k-1"])
    assert [letter.key for letter in dropped] == ["k-1"]
    assert [message.headers["sw-job-key"] for message in bench.dead] == ["k-2"]
    assert bench.ledger.read(bench.job("k-1")) is None
    assert bench.row("k-2").state is State.DEAD


def test_a_wrong_key_does_nothing_at_all_and_names_the_near_one(bench: Bench) -> None:
    bench.die("export-17")
    for act in (bench.queue.replay, bench.queue.drop):
        with pytest.raises(SteadyWorkerError, match="did you mean export-17"):
            act(["export-17", "export-18"])
    assert len(bench.dead) == 1


def test_the_checkpoint_is_the_ledgers_and_may_be_gone(bench: Bench) -> None:
    bench.die("k-1")
    (letter,) = bench.queue.letters()
    assert (row := bench.queue.row(letter)) is not None
    assert row.checkpoint == b"7"
    bench.clock.advance(91 * 86400)
    bench.ledger.purge()
    assert bench.queue.row(letter) is None


def test_each_letter_is_reported_as_soon_as_it_is_safe(bench: Bench) -> None:
    bench.die("k-1")
    bench.die("k-2")
    seen: list[tuple[str, int]] = []
    bench.queue.replay(each=lambda replayed: seen.append((replayed.key, len(bench.dead))))
    assert seen == [("k-1", 1), ("k-2", 0)]


class Large:
    """A dead-letter queue of 40 MB, which makes each body when it is read, and keeps none."""

    count, size = 400, 100_000

    def __init__(self) -> None:
        self.published = 0

    def __iter__(self) -> Iterator[Delivery]:
        for number in range(self.count):
            yield Delivery(1, f"d-{number}", "exports.dead", self.body(number), {KEY: f"k-{number}"}, size=self.size)

    def body(self, number: int) -> bytes:
        return b"%08d" % number + bytes(self.size - 8)

    def publish(self, message: OutgoingMessage) -> None:
        assert message.body == self.body(self.published)
        self.published += 1

    def drop(self, delivery: Delivery) -> None:
        assert delivery.body == b""


def test_a_queue_that_is_larger_than_the_memory_is_shown_and_replayed(bench: Bench) -> None:
    large = Large()

    @contextmanager
    def opened() -> Iterator[DeadLetters]:
        yield large

    queue = bench.over(opened)
    tracemalloc.start()
    try:
        for number, letter in enumerate(queue.read()):
            assert (letter.key, letter.body) == (f"k-{number}", large.body(number))
        assert len(queue.replay()) == large.published == large.count
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < large.count * large.size / 2
