"""Wiring, where it is easily overlooked: nobody to run, and listeners that fail in two runners at once."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from steadyworker import Job, Worker
from steadyworker.backends.opening import open_ledger
from steadyworker.clock import SystemClock
from steadyworker.config import resolve as config
from steadyworker.errors import ConfigError, LedgerUnavailable
from steadyworker.events import Adopted, Event
from steadyworker.exports.stage import STAGES, ExportTarget, new_stage
from steadyworker.ledger.base import Claimed, JobId
from steadyworker.ledger.facts import Facts
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.service import assemble as assembling
from steadyworker.service import broker_recheck
from steadyworker.service.assemble import assemble, plan, specs_of
from steadyworker.service.fact_batch import FactBatch
from steadyworker.service.repeating import Repeating
from steadyworker.telemetry.event_log import fan_out
from steadyworker.testing.conformance.ledger_fixtures import claimed


def test_no_worker_at_all_is_refused(tmp_path: Path) -> None:
    """A process that runs nothing, for ever, is nobody's intention."""
    options = config.load({"state_dir": tmp_path}, os.environ, tmp_path)
    with pytest.raises(ConfigError, match="Expected at least one Worker"):
        specs_of([], options)


@pytest.mark.parametrize("given", ["app:First", object(), ["First"]])
def test_what_is_no_worker_class_is_refused_in_words(tmp_path: Path, given: Any) -> None:
    options = config.load({"state_dir": tmp_path}, os.environ, tmp_path)
    with pytest.raises(ConfigError, match=r"Expected a Worker class, got .*: pass the class itself"):
        specs_of([given], options)


class First(Worker[dict[str, int]]):
    queue = "first"
    time_limit = 60

    def handle(self, job: Job[dict[str, int]]) -> None:
        """Never run here."""


class Second(First):
    queue = "second"


class Third(First):
    queue = "third"
    dead_letter_queue = "first.dead"


class Fourth(First):
    queue = "fourth"
    dead_letter_queue = "second"


def test_one_number_of_slots_is_for_one_worker(tmp_path: Path) -> None:
    """Which of two it is for, the command line cannot name; the file can."""
    options = config.load({"state_dir": tmp_path, "concurrency": 2}, os.environ, tmp_path)
    assert [spec.concurrency for spec in specs_of([First], options)] == [2]
    with pytest.raises(ConfigError, match=r"one Worker .*--concurrency, got First, Second: .*\[workers\.NAME\]"):
        specs_of([First, Second], options)


@pytest.mark.parametrize("workers", [[First, Third], [Third, First], [Second, Fourth], [Fourth, Second]])
def test_two_workers_with_one_dead_letter_queue_are_refused(tmp_path: Path, workers: list[Any]) -> None:
    """A dead letter on another Worker's work queue would be run by that one."""
    options = config.load({"state_dir": tmp_path}, os.environ, tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"a dead-letter queue for .* that no other Worker of this process uses, got '(first.dead|second)'",
    ):
        specs_of(workers, options)


def test_two_workers_on_one_queue_are_refused(tmp_path: Path) -> None:
    options = config.load({"state_dir": tmp_path}, os.environ, tmp_path)
    with pytest.raises(ConfigError, match=r"one Worker for each queue, got .*First and .*First for 'first'"):
        specs_of([First, type("First", (First,), {})], options)


def test_a_purge_removes_the_stages_of_ended_jobs_in_every_folder_that_jobs_exported_to(tmp_path: Path) -> None:
    """A run that was killed left its stage, and no job exports to its folder again."""
    options = config.load({"state_dir": tmp_path / "state"}, os.environ, tmp_path)
    assembly = assemble(plan([First], options))
    try:
        uids = {}
        for key in ("ended", "running"):
            row = assembly.ledger.claim(
                Claimed(JobId("n", "first", key), None, assembly.owner, 0, b"x" * 32, Counters())
            )
            assert row is not None
            uids[key] = row.uid
            new_stage(ExportTarget.of(tmp_path / key / "report.csv"), row.uid, row.fence)
            assembly.runners[0].deps.remember_folder(bytes(tmp_path / key))
            if key == "ended":
                assembly.ledger.done(row.token)
        assembly.purge()
        assert not (tmp_path / "ended" / STAGES).exists()
        assert [path.name for path in (tmp_path / "running" / STAGES).iterdir()] == [uids["running"]]
    finally:
        for pool in assembly.pools:
            pool.stop(5)
        assembly.close()


def test_a_purge_deletes_the_ledgers_expired_rows_even_if_no_job_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = config.load({"state_dir": tmp_path / "state"}, os.environ, tmp_path)
    assembly = assemble(plan([First], options))
    try:
        row = assembly.ledger.claim(Claimed(JobId("n", "first", "k"), None, assembly.owner, 0, b"x" * 32, Counters()))
        assert row is not None
        assembly.ledger.done(row.token)
        assembly.purge()
        assert assembly.ledger.read(row.id) is not None, "a fresh record protects its key"
        late = SystemClock().wall() + 15 * 86_400
        monkeypatch.setattr(SystemClock, "wall", lambda _: late)
        assembly.purge()
        assert assembly.ledger.read(row.id) is None
    finally:
        for pool in assembly.pools:
            pool.stop(5)
        assembly.close()


def test_facts_that_cannot_be_written_do_not_delay_the_end_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes take its jobs over as soon as it is unregistered and its lock is free."""
    monkeypatch.setattr(assembling, "_FACTS_WITHIN", 0.01)
    options = config.load({"state_dir": tmp_path / "state"}, os.environ, tmp_path)
    assembly = assemble(plan([First], options))
    written, over = threading.Event(), threading.Event()

    def hang(_batch: FactBatch, _facts: Facts) -> None:
        assert [owner.owner for owner in assembly.ledger.owners()] == []
        written.set()
        over.wait(60)

    monkeypatch.setattr(FactBatch, "write", hang)
    assembly.ledger.register(assembly.owner, "host", ["n/first"])
    token = claimed(assembly.ledger, JobId("n", "first", "k")).token
    assert assembly.ledger.done(token)
    assembly.ledger.settled(token, known=True)
    for pool in assembly.pools:
        pool.stop(5)
    assembly.close()
    assert written.is_set()
    assert not over.is_set()
    with closing(open_ledger(options)) as other:
        assert list(other.owners()) == []
        row = other.read(token.id)
        assert row is not None
        assert row.settled == "confirmed"
    over.set()


def test_a_purge_warns_of_a_ledger_above_its_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A worker process purges once an hour."""
    given = {"state_dir": tmp_path / "state", "ledger_limit": 4096}
    assembly = assemble(plan([First], config.load(given, os.environ, tmp_path)))
    try:
        with caplog.at_level("WARNING"):
            assembly.purge()
        lines: list[Any] = [record.msg for record in caplog.records]
        assert [(line["event"], line["explain"]) for line in lines] == [("check_warning", "ledger.too-large")]
        assert "4.0 KiB" in lines[0]["what"]
    finally:
        for pool in assembly.pools:
            pool.stop(5)
        assembly.close()


def test_a_limit_of_a_postgresql_ledger_is_refused(tmp_path: Path) -> None:
    options = config.load({"ledger": "postgresql://host/db", "ledger_limit": "2 GiB"}, os.environ, tmp_path)
    with pytest.raises(ConfigError, match="only VACUUM gives") as caught:
        open_ledger(options)
    assert caught.value.id == "config.ledger-limit"


def test_a_purge_that_does_not_reach_the_ledger_ends_in_peace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = config.load({"state_dir": tmp_path / "state"}, os.environ, tmp_path)
    assembly = assemble(plan([First], options))

    def away(_ledger: SqliteLedger) -> int:
        raise LedgerUnavailable("away")

    try:
        monkeypatch.setattr(SqliteLedger, "purge", away)
        assembly.purge()
    finally:
        for pool in assembly.pools:
            pool.stop(5)
        assembly.close()


def test_the_brokers_checks_are_repeated_for_the_first_time_a_minute_after_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated: dict[str, tuple[Any, float]] = {}

    class Recorded(Repeating):
        def __init__(self, name: str, work: Any, first_in: float = 0.0) -> None:
            repeated[name] = (work, first_in)
            super().__init__(name, work, first_in)

    monkeypatch.setattr(assembling, "Repeating", Recorded)
    assembly = assemble(plan([First], config.load({"state_dir": tmp_path / "state"}, os.environ, tmp_path)))
    try:
        assert broker_recheck.SOON == 60
        assert repeated["broker recheck"] == (assembly.recheck.check, broker_recheck.SOON)
    finally:
        for pool in assembly.pools:
            pool.stop(5)
        assembly.close()


def test_a_listener_that_fails_twice_at_once_is_silenced_once() -> None:
    """Two runners emit two events at the same time; the second failure must not end the second runner."""
    received: list[Event] = []

    def fails(event: Event) -> None:
        received.append(event)
        if len(received) == 1:
            emit(replace(event, fence=2))  # as another thread would, before the first call is over
        raise ValueError("odd")

    emit = fan_out([fails])
    emit(Adopted(key="k", queue="q", fence=1, at=0.0))
    emit(Adopted(key="k", queue="q", fence=3, at=0.0))

    assert [event.fence for event in received] == [1, 2]
