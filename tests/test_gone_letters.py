"""The ledger's part in dead letters: a replay that depends on no message, letters that are gone, and what a drop leaves."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from steadyworker.actions.deadletters import DeadLetterQueue
from steadyworker.adapter import DeadLetters, Delivery, OutgoingMessage, Target
from steadyworker.clock import Times
from steadyworker.delivery import REASON, WORKER
from steadyworker.errors import LedgerUnavailable, PublishFailed, SteadyWorkerError, Unsettled
from steadyworker.ledger.base import REPLAYED, Claimed, JobId, Ledger, Moving, State, Verdict
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.runner.envelope import delivery_of
from steadyworker.runner.planning import message_for
from steadyworker.testing.clock import FakeClock
from tests.test_deadletters import BODY, SPEC, Bench, Wrapped, enveloped


@pytest.fixture
def bench() -> Bench:
    return Bench()


def kept_of(bench: Bench, key: str, round_: int) -> Delivery:
    """The message that the ledger keeps of a round."""
    message = bench.ledger.message(bench.job(key, round_))
    assert message is not None
    return delivery_of(message, SPEC.queue)


def purge_letters(bench: Bench) -> None:
    """What an operator's tool does that drops the letters."""
    with bench.adapter.dead_letters() as held:
        for delivery in held:
            held.drop(delivery)
    assert bench.dead == []


def settled(bench: Bench, key: str) -> None:
    """The broker has confirmed the settlement of the first message."""
    bench.ledger.settled(replace(bench.row(key).token, owner="owner"), known=True)


def test_a_replay_writes_the_next_round_with_the_message_that_it_publishes(bench: Bench) -> None:
    bench.die("k-1")
    seen: list[tuple[State, int, int]] = []

    def before_publish(message: OutgoingMessage) -> None:
        row = bench.row("k-1", 1)
        seen.append((row.state, row.hop, len(bench.work)))

    bench.over(watched(bench, before_publish)).replay(["k-1"])
    assert seen == [(State.MOVED, -1, 0)]
    row, (message,) = bench.row("k-1", 1), bench.work
    assert (row.reason, row.due_in, row.checkpoint) == (REPLAYED, 0.0, b"7")
    kept = kept_of(bench, "k-1", 1)
    assert (kept.body, kept.headers, kept.message_id) == (message.body, message.headers, "k-1")
    assert kept.sent_at is not None


def watched(
    bench: Bench, before_publish: Callable[[OutgoingMessage], None]
) -> Callable[[], AbstractContextManager[DeadLetters]]:
    """The dead letters, with a look at each message before it is published."""

    class Reader:
        def __init__(self, held: DeadLetters) -> None:
            self.held, self.drop = held, held.drop

        def __iter__(self) -> Iterator[Delivery]:
            return iter(self.held)

        def publish(self, message: OutgoingMessage) -> None:
            before_publish(message)
            self.held.publish(message)

    @contextmanager
    def letters() -> Iterator[DeadLetters]:
        with bench.adapter.dead_letters() as held:
            yield Reader(held)

    return letters


def test_the_old_row_goes_once_no_message_of_its_round_can_come(bench: Bench) -> None:
    """As long as the broker could deliver that message again, the row must answer it: without the row, the job would run twice."""
    bench.die("k-1")
    bench.die("k-2")
    settled(bench, "k-1")
    bench.queue.replay()
    assert bench.ledger.read(bench.job("k-1")) is None
    assert bench.row("k-2").state is State.DEAD
    assert list(bench.queue.kept()) == []


def test_the_kept_row_of_a_replayed_job_is_no_letter_that_is_gone(bench: Bench) -> None:
    bench.die("k-1")
    bench.queue.replay()
    assert bench.queue.letters(bodies=False) == []
    assert bench.queue.gone == []


@pytest.mark.parametrize("fails", ["replay", "publish", "drop", "forget"])
def test_a_replay_that_was_cut_off_at_any_step_is_repeated_without_harm(bench: Bench, fails: str) -> None:
    bench.die("k-1", copies=2)
    settled(bench, "k-1")
    wrapped = Wrapped(bench)
    wrapped.fail_at = fails
    real = bench.ledger.replay, bench.ledger.forget

    def refuse(*_: object, **__: object) -> bool:
        raise LedgerUnavailable("away")

    if fails in {"replay", "forget"}:
        setattr(bench.ledger, fails, refuse)
    with pytest.raises((PublishFailed, Unsettled, LedgerUnavailable)):
        DeadLetterQueue(wrapped.letters, bench.ledger, "test", SPEC.queue).replay(["k-1"])
    bench.ledger.replay, bench.ledger.forget = real  # type: ignore[method-assign]

    if fails == "forget":  # all else is done
        with pytest.raises(SteadyWorkerError, match="steadyworker retry exports k-1"):
            bench.queue.replay(["k-1"])
    else:
        bench.queue.replay(["k-1"])
        assert bench.ledger.read(bench.job("k-1")) is None
    assert bench.dead == []
    assert len({(message.body, *sorted(message.headers.items())) for message in bench.work}) == 1
    assert bench.run("k-1", round_=1).checkpoint == b"7"


def test_from_the_start_also_holds_for_a_round_that_an_earlier_replay_has_begun(bench: Bench) -> None:
    bench.die("k-1")
    wrapped = Wrapped(bench)
    wrapped.fail_at = "publish"
    with pytest.raises(PublishFailed):
        bench.over(wrapped.letters).replay()
    assert bench.row("k-1", 1).checkpoint == b"7"
    bench.queue.replay(from_start=True)
    assert bench.run("k-1", round_=1).checkpoint is None


def test_a_letter_without_a_run_gets_no_row(bench: Bench) -> None:
    """Its message is refused again before the ledger is asked, and a row of it would wait for ever."""
    bench.adapter.publish(OutgoingMessage(Target.DEAD, BODY, {REASON: "bad-payload: …", WORKER: "w"}, message_id="k-1"))
    (replayed,) = bench.queue.replay()
    assert (replayed.key, replayed.round) == ("k-1", 1)
    assert bench.ledger.read(bench.job("k-1", 1)) is None


def test_a_body_over_the_limit_is_replayed_and_not_kept(bench: Bench) -> None:
    bench.die("k-1")
    DeadLetterQueue(bench.adapter.dead_letters, bench.ledger, "test", SPEC.queue, max_body=len(BODY) - 1).replay()
    assert bench.ledger.read(bench.job("k-1", 1)) is None
    assert [message.body for message in bench.work] == [BODY]


@pytest.mark.parametrize(("keep_message", "is_kept"), [(None, False), (False, False), (True, True)])
def test_a_replay_keeps_no_message_of_a_worker_that_keeps_none(
    bench: Bench, keep_message: bool | None, is_kept: bool
) -> None:
    """Its bodies must not be in the ledger; who names only the queue goes by what the ledger has."""
    row = bench.ledger.claim(Claimed(bench.job("k-1"), None, "owner", 0, sha256(BODY).digest(), Counters()))
    assert row is not None
    verdict = Verdict(Moving.DEAD, "exhausted", Counters())
    assert bench.ledger.moving(row.token, verdict)
    bench.adapter.publish(message_for(enveloped(row.id, BODY), 0, verdict, row.uid, "host-1"))
    assert bench.ledger.moved(row.token)
    letters = bench.adapter.dead_letters
    DeadLetterQueue(letters, bench.ledger, "test", SPEC.queue, keep_message=keep_message).replay()
    assert (bench.ledger.message(bench.job("k-1", 1)) is not None) is is_kept
    assert [message.body for message in bench.work] == [BODY]


class Read(list[Delivery]):
    """Dead letters that were read earlier."""

    def publish(self, message: OutgoingMessage) -> None:
        raise AssertionError(message)

    def drop(self, delivery: Delivery) -> None:
        raise AssertionError(delivery)


class TestGone:
    def test_is_listed_and_shown_from_the_ledger(self, bench: Bench) -> None:
        bench.die("k-1")
        bench.die("k-2", body=b"[]")
        purge_letters(bench)
        bench.die("k-3")
        assert [letter.key for letter in bench.queue.letters()] == ["k-3"]
        gone = {letter.key: letter for letter in bench.queue.kept()}
        assert sorted(gone) == ["k-1", "k-2"]
        letter = gone["k-1"]
        assert (letter.copies, letter.gone, letter.body, letter.reason) == (0, True, BODY, "exhausted")
        assert (letter.error_class, letter.attempts, letter.uid) == ("ValueError", 5, bench.row("k-1").uid)
        assert [letter.key for letter in bench.queue.read(["k-2"])] == ["k-2"]

    def test_is_replayed_by_its_key(self, bench: Bench) -> None:
        bench.die("k-1")
        settled(bench, "k-1")
        purge_letters(bench)
        (replayed,) = bench.queue.replay(["k-1"])
        assert (replayed.key, replayed.round, replayed.letter.gone) == ("k-1", 1, True)
        (message,) = bench.work
        assert (message.body, message.headers["tenant"], message.headers["sw-round"]) == (BODY, "north", "1")
        assert bench.ledger.read(bench.job("k-1")) is None
        assert bench.run("k-1", round_=1).checkpoint == b"7"

    @pytest.mark.parametrize("way", ["replay", "drop"])
    def test_is_left_alone_by_all_unless_it_is_asked_for(self, bench: Bench, way: str) -> None:
        """Another tool may have dropped the letter on purpose."""
        bench.die("k-1")
        purge_letters(bench)
        bench.die("k-2")
        act = getattr(bench.queue, way)
        assert len(act()) == 1
        assert [letter.key for letter in bench.queue.kept()] == ["k-1"]
        assert len(act(gone=True)) == 1
        assert list(bench.queue.kept()) == []

    def test_is_dropped_with_its_row_and_its_message(self, bench: Bench) -> None:
        bench.die("k-1")
        purge_letters(bench)
        (dropped,) = bench.queue.drop(["k-1"])
        assert (dropped.key, dropped.gone) == ("k-1", True)
        assert bench.ledger.read(bench.job("k-1")) is None
        assert bench.ledger.message(bench.job("k-1")) is None

    def test_is_no_job_that_dies_while_the_letters_are_read(self, bench: Bench) -> None:
        @contextmanager
        def letters() -> Iterator[DeadLetters]:
            with bench.adapter.dead_letters() as held:
                read = list(held)
                bench.die("k-1")
                yield Read(read)

        queue = bench.over(letters)
        assert queue.letters() == []
        assert queue.gone == []

    def test_is_no_job_whose_message_the_ledger_does_not_have(self, bench: Bench) -> None:
        """A Worker with `keep_message = False`: nothing can be replayed, so the key has no dead letter."""
        row = bench.ledger.claim(Claimed(bench.job("k-1"), None, "owner", 0, b"", Counters()))
        assert row is not None
        assert bench.ledger.moving(row.token, Verdict(Moving.DEAD, "exhausted", Counters()))
        assert bench.ledger.moved(row.token)
        assert bench.queue.letters() == []
        assert bench.queue.gone == []
        with pytest.raises(SteadyWorkerError, match="got 'k-1'"):
            bench.queue.replay(["k-1"])

    def test_is_not_taken_for_another_jobs_letter_with_its_key(self, bench: Bench) -> None:
        """A key conflict names the same key and round, and is another job's message."""
        bench.die("k-1")
        purge_letters(bench)
        bench.adapter.publish(
            OutgoingMessage(Target.DEAD, b"[]", {"sw-job-key": "k-1", REASON: "key-conflict", WORKER: "w"})
        )
        assert [letter.is_conflict for letter in bench.queue.letters()] == [True]
        assert [letter.key for letter in bench.queue.kept()] == ["k-1"]

    def test_does_not_keep_the_letters_from_being_listed_while_the_ledger_is_away(self, bench: Bench) -> None:
        bench.die("k-1")

        def refuse(*_: object) -> object:
            raise LedgerUnavailable("away")

        bench.ledger.jobs = refuse  # type: ignore[method-assign, assignment]
        assert [letter.key for letter in bench.queue.letters()] == ["k-1"]


def test_a_drop_leaves_nothing_of_the_body_in_the_ledgers_tables(tmp_path: Path) -> None:
    """Not in the row, not in its message, and not in those of the rounds before it."""
    bench, body, clock = Bench(), b'{"patient": "Ada Example"}', FakeClock()
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as ledger:
        bench.ledger = ledger  # type: ignore[assignment]
        bench.queue = bench.over(bench.adapter.dead_letters)
        bench.die("k-1", body=body)
        bench.queue.replay()
        die_again(bench, ledger, bench.job("k-1", 1), body)
        bench.die("k-2", body=b"[]")
        assert tables_with(tmp_path / "ledger.db", b"Ada Example") == {"jobs", "messages"}
        bench.queue.drop(["k-1"])
        assert tables_with(tmp_path / "ledger.db", b"Ada Example") == set()
        assert ledger.message(bench.job("k-2")) is not None


def die_again(bench: Bench, ledger: Ledger, id_: JobId, body: bytes) -> None:
    row = bench.run(id_.key, body, id_.round)
    assert ledger.checkpoint(row.token, body)
    assert ledger.moving(row.token, Verdict(Moving.DEAD, "exhausted", Counters(attempts=5)))
    assert ledger.moved(row.token)


def tables_with(path: Path, text: bytes) -> set[str]:
    """The tables in which any value has these bytes, as another program reads them."""
    with closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in names}
    raw = {name: b" ".join(_bytes(value) for row in found for value in row) for name, found in rows.items()}
    return {name for name, values in raw.items() if text in values}


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
