"""A SQLite ledger of the version before is migrated in place, whole or not at all, while that version's processes go on."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from steadyworker.clock import Times
from steadyworker.errors import ConfigError, LedgerUnavailable, OlderLedger
from steadyworker.ledger.base import (
    RATE_OVER,
    Began,
    Claimed,
    Ending,
    JobId,
    KeptMessage,
    Moving,
    Orphan,
    Progress,
    Row,
    State,
    Verdict,
)
from steadyworker.ledger.sqlite import schema as sql
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from tests.ledger.kit import ROOT, Actor, line, request
from tests.ledger.test_sqlite_faults import in_own_mounts
from tests.support import schema_8
from tests.support.schema_8 import version_before

JOB = JobId("shop", "exports", "job")
MESSAGE = KeptMessage(b'{"month": 10}', b'{"headers":{"trace":"1"}}')
RETRY = Verdict(Moving.RETRY, "no", Counters(attempts=1), delay=600.0, error_class="E")
LETTER = replace(RETRY, target=Moving.DEAD)
NAMES = ("running", "interrupted", "moving", "moved", "done", "dead")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def old(path: Path, clock: FakeClock) -> Iterator[SqliteLedger]:
    """A process of the version before, which has made the ledger; each key has the name of its row's state."""
    with closing(SqliteLedger(path, clock=clock, times=Times(), worker="old")) as ledger:
        with version_before():
            ledger.register("old", "host", ["shop/exports"])
            ledger.bind("shop", "exports", "broker-1")
            for name in NAMES:
                bring(ledger, name)
            ledger.cancel(replace(JOB, key="marked"), "wrong month")
        yield ledger


@pytest.fixture
def new(path: Path, clock: FakeClock, old: SqliteLedger) -> Iterator[SqliteLedger]:
    """A worker process of this version, which has migrated the ledger."""
    with closing(SqliteLedger(path, clock=clock, times=Times(), worker="new")) as ledger:
        ledger.register("new", "host", ["shop/exports"])
        yield ledger


def begin(ledger: SqliteLedger, key: str, message: KeptMessage | None = None) -> Row:
    """Claim this job for the ledger's own worker process."""
    id = replace(JOB, key=key)
    row = ledger.claim(Claimed(id, ledger.read(id), ledger._worker, 0, b"\x01" * 32, Counters(), message))
    assert row is not None
    return row


def end(ledger: SqliteLedger, row: Row, state: str) -> None:
    """Bring a running job to this state."""
    token = row.token
    if state == "done":
        assert ledger.done(token)
    elif state == "interrupted":
        assert ledger.interrupted(token, Counters(interruptions=1))
    elif state != "running":
        assert ledger.moving(token, LETTER if state == "dead" else RETRY)
        assert state == "moving" or ledger.moved(token, 600.0)


def bring(ledger: SqliteLedger, name: str) -> None:
    row = begin(ledger, name, MESSAGE)
    assert ledger.checkpoint(row.token, name.encode())
    ledger.progress(row.token, Progress(1, 2, name, 0.0))
    end(ledger, row, name)


def state_of(ledger: SqliteLedger, key: str) -> State:
    row = ledger.read(replace(JOB, key=key))
    assert row is not None
    return row.state


def orphans(ledger: SqliteLedger, *, stranded: bool = False) -> list[Orphan]:
    return list(ledger.orphans("shop", "exports", 100.0, 100, stranded=stranded))


def keys(found: list[Orphan]) -> set[str]:
    return {orphan.row.id.key for orphan in found}


def asked(path: Path, statement: str) -> list[Any]:
    """What a reader that is no ledger finds in the file."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute(statement).fetchall()


def wakes(path: Path) -> dict[str, float | None]:
    return dict(asked(path, "SELECT key, wake_at FROM jobs"))


def shape(path: Path) -> dict[str, Any]:
    """Every table with its columns, and the names of indexes and triggers."""
    tables = [name for (name,) in asked(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")]
    columns = {name: asked(path, f"PRAGMA table_info({name})") for name in tables}
    return columns | {"others": sorted(asked(path, "SELECT name FROM sqlite_schema WHERE type != 'table'"))}


def reply_to(process: subprocess.Popen[str], words: str) -> str:
    """Tell an actor something, and return what it says then."""
    request(process, words)
    return line(process)


def rows_of(path: Path) -> list[list[Any]]:
    """The rows of each table that the version before has, except `meta`."""
    tables = ("jobs", "messages", "attended", "progress", "owners", "bindings")
    return [asked(path, f"SELECT * FROM {table}") for table in tables]


class TestTheFirstOpen:
    def test_a_worker_migrates_the_file_and_changes_no_row(
        self, path: Path, old: SqliteLedger, clock: FakeClock, tmp_path: Path
    ) -> None:
        rows, ledger_id = rows_of(path), old.ledger_id()
        with closing(SqliteLedger(path, clock=clock, times=Times())) as new:
            assert new.ledger_id() == ledger_id
            assert [state_of(new, name) for name in NAMES] == list(NAMES)
            assert new.message(replace(JOB, key="running")) == MESSAGE
        assert rows_of(path) == rows
        assert asked(path, "SELECT schema, made_by FROM meta") == [(9, version("steadyworker"))]
        with closing(SqliteLedger(tmp_path / "made.db", clock=clock, times=Times())) as made:
            made.ledger_id()
        assert shape(path) == shape(tmp_path / "made.db")
        assert asked(path, "PRAGMA journal_mode") == [("wal",)]
        assert asked(path, "PRAGMA auto_vacuum") == [(2,)]
        assert asked(path, "PRAGMA integrity_check") == [("ok",)]

    def test_a_command_leaves_it_as_it_is_and_says_who_migrates_it(
        self, path: Path, old: SqliteLedger, clock: FakeClock
    ) -> None:
        before = shape(path)
        text = f"to have schema 9, got schema 8, of an earlier version: start a worker of SteadyWorker {version('steadyworker')}"
        with closing(SqliteLedger(path, clock=clock, times=Times(), create=False)) as command:
            with pytest.raises(OlderLedger, match=text):
                list(command.jobs())
            (finding,) = command.findings()
        assert (finding.level, finding.id) == ("note", "ledger.older")
        assert shape(path) == before

    def test_a_process_of_the_version_before_is_refused_by_name(
        self, path: Path, old: SqliteLedger, new: SqliteLedger, clock: FakeClock
    ) -> None:
        """Started again, or after it has lost its connection; what it held is free when its lease is over."""
        ours = version("steadyworker")
        text = f"Expected a ledger of schema 8 at {path}, got 9, of SteadyWorker {ours}: install SteadyWorker {ours} or newer"
        with version_before(), closing(SqliteLedger(path, clock=clock, times=Times())) as again:
            with pytest.raises(ConfigError, match=text):
                again.ledger_id()
            (finding,) = again.findings()
        assert (finding.level, finding.id) == ("error", "ledger.unusable")
        held = old.read(replace(JOB, key="running"))
        assert held is not None
        away = path.with_name("away.db")
        path.rename(away)
        with version_before(), pytest.raises(LedgerUnavailable, match="put it back"):
            old.renew([held.token])
        away.rename(path)
        for _ in range(2):
            with version_before(), pytest.raises(LedgerUnavailable, match=text):
                old.renew([held.token])
        clock.advance(Times().lease + Times().margin + 1)
        seen = new.read(held.id)
        assert seen is not None
        assert seen.lease_over
        assert begin(new, "running", MESSAGE).fence > held.fence
        assert new.message(held.id) == MESSAGE

    def test_a_copy_of_the_version_before_is_put_back_under_a_living_process(
        self, path: Path, old: SqliteLedger, new: SqliteLedger, clock: FakeClock
    ) -> None:
        """It is migrated again, and what ran since then is unknown to it."""
        with version_before():
            old.close()
        copy = path.with_name("copy.db")
        with closing(sqlite3.connect(copy)) as made:
            for statement in schema_8.CREATE:
                made.execute(statement)
            made.execute(schema_8.FILL, {"ledger_id": new.ledger_id(), "schema": 8, "made_by": "before"})
            made.commit()
            made.execute(f"PRAGMA application_id = {sql.APPLICATION_ID}")
        new.close()
        with closing(SqliteLedger(path, clock=clock, times=Times())) as ledger:
            assert ledger.register("me", "host", ["shop/exports"])
            for log in ("-wal", "-shm"):
                path.with_name(path.name + log).unlink()
            copy.replace(path)
            with pytest.raises(LedgerUnavailable, match="put it back"):
                ledger.register("me", "host", ["shop/exports"])
            assert not ledger.register("me", "host", ["shop/exports"])
            assert asked(path, "SELECT schema FROM meta") == [(9,)]

    def test_a_checkout_that_is_not_installed_has_no_version(
        self, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def missing(_distribution: str) -> str:
            raise PackageNotFoundError

        monkeypatch.setattr("importlib.metadata.version", missing)
        with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as ledger:
            assert ledger.ledger_id()
        assert asked(tmp_path / "ledger.db", "SELECT made_by FROM meta") == [("unknown",)]


class TestTheVersionBeforeGoesOn:
    """A process that has the file open works on, and both versions take over what the other one leaves."""

    def test_each_of_its_statements_is_still_valid(self, old: SqliteLedger, new: SqliteLedger) -> None:
        with version_before():
            row = begin(old, "interrupted")
            (renewal,) = old.renew([row.token])
            assert renewal.granted
            assert old.may_commit(row.token).granted
            assert old.checkpoint(row.token, b"x")
            assert old.export_state(row.token, b"x")
            old.progress(row.token, Progress(1, 2, "sooner", 0.0))
            old.progress(row.token, Progress(2, 2, "later", RATE_OVER))
            old.register("old", "host", ["shop/exports", "shop/refunds"])
            assert old.bind("shop", "refunds", "broker-1") == "broker-1"
            assert old.cancel(row.id, "no") is State.RUNNING
            assert old.cancel(replace(JOB, key="marked too"), "no") is None
            old.conflict(row.id)
            assert old.done(row.token)
            old.settled(row.token, known=True)
            taken = old.read(replace(JOB, key="moving"))
            assert taken is not None
            assert old.take_over(taken, "old") is not None
            lost = old.read(replace(JOB, key="running"))
            assert lost is not None
            assert old.lose(lost, "old", LETTER) is not None
            old.clear_checkpoint(replace(JOB, key="dead"))
            old.forget(replace(JOB, key="dead"))
            assert begin(old, "new").fence > row.fence
            assert old.purge() == 0
            old.unregister("old")
        ended = new.read(row.id)
        assert ended is not None
        assert (ended.state, ended.checkpoint, ended.cancel_reason, ended.conflicts) == (State.DONE, b"x", "no", 1)
        assert ended.settled == "confirmed"
        assert new.last_progress(row.id) == Progress(2, 2, "later", RATE_OVER, (0.0, 1))
        assert new.queues("shop") == ["exports", "refunds"]
        assert new.read(replace(JOB, key="dead")) is None
        assert [state_of(new, key) for key in ("moving", "running", "new")] == ["moving", "moving", "running"]
        assert [seen.owner for seen in new.owners()] == ["new"]

    @pytest.mark.parametrize("kept", [False, True], ids=["no message", "a message"])
    def test_a_row_that_it_gives_up_wakes_as_one_of_this_version(
        self, path: Path, old: SqliteLedger, new: SqliteLedger, clock: FakeClock, kept: bool
    ) -> None:
        """With a message, this version had claimed and interrupted the job before, and has seen its message deferred."""
        names = [f"by old: {name}" for name in NAMES]
        for key in names if kept else ():
            end(new, begin(new, key, MESSAGE), "interrupted")
            new.deferred(replace(JOB, key=key), 5.0)
        with version_before():
            for key, name in zip(names, NAMES, strict=True):
                end(old, begin(old, key), name)
        found, now = wakes(path), clock.wall()
        assert {key: found[key] for key in names if key.endswith(("done", "dead"))} == {
            "by old: done": None,
            "by old: dead": None,
        }
        assert (found["by old: moved"], found["by old: interrupted"]) == (now + 600.0, now)
        messages = {key: new.message(replace(JOB, key=key)) for key in names}
        expected = MESSAGE if kept else None
        assert messages == dict.fromkeys(names, expected) | {"by old: done": None}
        clock.advance(Times().lease + Times().margin + 101.0)
        assert keys(orphans(new, stranded=not kept)) & set(names) == {
            "by old: running", "by old: interrupted", "by old: moving"
        }  # fmt: skip
        clock.advance(600.0)
        assert keys(orphans(new, stranded=not kept)) >= {"by old: moved"}
        assert keys(orphans(new, stranded=kept)) & set(names) == set()

    def test_rows_of_before_the_migration_can_be_run_with_their_messages(
        self, old: SqliteLedger, new: SqliteLedger, clock: FakeClock
    ) -> None:
        """The registrations of the version before count, so its rows are no old records."""
        assert orphans(new) == []
        clock.advance(Times().lease + Times().margin + 101.0)
        found = {orphan.row.id.key: orphan for orphan in orphans(new)}
        assert found.keys() == {"running", "interrupted", "moving"}
        assert found["interrupted"].unseen_for == pytest.approx(Times().lease + Times().margin + 101.0)
        assert found["running"].unseen_for == pytest.approx(101.0)
        clock.advance(600.0)
        assert "moved" in keys(orphans(new))
        assert orphans(new, stranded=True) == []
        assert begin(new, "running").fence > found["running"].row.fence
        assert new.message(replace(JOB, key="running")) == MESSAGE

    def test_each_of_its_statements_finds_the_tables_and_indexes_that_it_names(
        self, path: Path, old: SqliteLedger, new: SqliteLedger
    ) -> None:
        """The statements name the indexes that they use, so an index that is gone would make them fail."""
        others = {"SCHEMA_VERSION", "APPLICATION_ID", "UNFINISHED", "CREATE", "FILL"}
        named = {name: value for name, value in vars(schema_8).items() if name.isupper() and name[0] != "_"}
        with closing(sqlite3.connect(path)) as db:
            for statement in [value for name, value in named.items() if name not in others]:
                by_place = [None] * statement.count("?")
                by_name = dict.fromkeys(re.findall(r":(\w+)", statement))
                assert db.execute(f"EXPLAIN {statement}", by_place or by_name).fetchall()

    def test_the_fences_of_both_versions_rise_in_the_order_of_their_draws(
        self, path: Path, old: SqliteLedger, new: SqliteLedger, clock: FakeClock
    ) -> None:
        """In the same millisecond, after the wall clock was set back, and after the row of the last fence was deleted."""
        fences = [fence for (fence,) in asked(path, "SELECT max(fence) FROM jobs")]
        for number in range(12):
            if number == 4:
                assert fences[-1] - clock.wall() * 1000 < 200, "a new ledger begins at the wall clock"
                clock.step_wall(-3600)
            for name in ("new", "old", "again"):
                ledger = old if name == "old" else new
                with version_before() if name == "old" else nullcontext():
                    key = f"{name}-{number}"
                    row = begin(ledger, key, MESSAGE)
                    fences.append(row.fence)
                    end(ledger, row, "interrupted")
                    fences.append(begin(ledger, key).fence)
                    assert ledger.cancel(replace(JOB, key=f"{key}-marked"), "no") is None
                    assert ledger.replay(replace(JOB, key=key, round=1), MESSAGE, b"")
                    replayed = ledger.read(replace(JOB, key=key, round=1))
                    assert replayed is not None
                    fences.append(replayed.fence)
                    last = begin(ledger, f"{key}-last")
                    end(ledger, last, "dead")
                    fences.append(last.fence)
                    ledger.forget(last.id)
        assert fences == sorted(set(fences))

    def test_after_the_last_claim_every_older_row_is_an_old_record(
        self, old: SqliteLedger, new: SqliteLedger, clock: FakeClock
    ) -> None:
        """Whichever version finds that the ledger went back in time; a later claim is trusted when this version found it."""
        for finder in (old, new):
            before = f"before {finder._worker}"
            end(new, begin(new, before, MESSAGE), "interrupted")
            with version_before() if finder is old else nullcontext():
                finder.distrust()
            assert before in {orphan.row.id.key for orphan in new.orphans("shop", "exports", -1.0, 100, stranded=True)}
        end(new, begin(new, "after", MESSAGE), "interrupted")
        assert {orphan.row.id.key for orphan in new.orphans("shop", "exports", -1.0, 100)} == {"after"}

    def test_a_job_of_the_version_before_is_settled_cancelled_and_found_by_its_uid(
        self, old: SqliteLedger, new: SqliteLedger
    ) -> None:
        with version_before():
            rows = [begin(old, key, MESSAGE) for key in ("a", "b")]
        new.cancel(rows[0].id, "no")
        assert new.orders("old").cancels == {rows[0].uid: "no"}
        assert new.done(rows[1].token)
        new.settled(rows[1].token, known=True)
        settled = new.read(rows[1].id)
        assert settled is not None
        assert (settled.state, settled.settled) == (State.DONE, "confirmed")
        ours = begin(new, "ours")
        end(new, ours, "done")
        assert new.ended([row.uid for row in rows]) == {rows[1].uid}
        assert new.ended([rows[0].uid, ours.uid]) == new.ended([ours.uid]) == {ours.uid}


class TestRunsOfTheVersionBefore:
    """That version has no table of the runs of a job."""

    def test_its_runs_are_no_attempts_and_those_of_this_version_end_as_lost(
        self, old: SqliteLedger, new: SqliteLedger
    ) -> None:
        """Old and new processes take each other's jobs over while the old ones are stopped."""
        id = replace(JOB, key="mixed")
        first = new.claim(Claimed(id, None, "new", 0, b"\x01" * 32, Counters(), MESSAGE, Began(0, "new", 1)))
        assert first is not None
        with version_before():
            taken = begin(old, "mixed")
            assert old.moving(taken.token, RETRY)
            assert old.moved(taken.token)
        last = new.claim(Claimed(id, new.read(id), "new", 1, b"\x01" * 32, Counters(), None, Began(0, "retry", 1)))
        assert last is not None
        assert new.done(last.token, Ending("done"))
        attempts = new.facts.attempts(id)
        assert [(each.fence, each.outcome) for each in attempts] == [(first.fence, "lost"), (last.fence, "done")]

    def test_a_run_whose_job_its_process_took_over_has_ended_as_lost(
        self, old: SqliteLedger, new: SqliteLedger, clock: FakeClock
    ) -> None:
        """The old process does not write the end, so the row of the job shows it: the later claim."""
        id = replace(JOB, key="taken")
        first = new.claim(Claimed(id, None, "new", 0, b"\x01" * 32, Counters(), MESSAGE, Began(0, "new", 1)))
        assert first is not None
        (attempt,) = new.facts.attempts(id)
        assert (attempt.outcome, attempt.ended_at) == ("", None)
        clock.advance(7.0)
        with version_before():
            taken = begin(old, "taken")
            clock.advance(5.0)
            assert old.done(taken.token)
        (attempt,) = new.facts.attempts(id)
        assert (attempt.outcome, attempt.ended_at) == ("lost", attempt.started_at + 7.0)

    def test_a_job_of_before_the_migration_has_no_attempts_and_gets_its_first_at_its_next_claim(
        self, old: SqliteLedger, new: SqliteLedger
    ) -> None:
        id = replace(JOB, key="interrupted")
        assert list(new.facts.attempts(id)) == []
        row = new.claim(Claimed(id, new.read(id), "new", 0, b"\x01" * 32, Counters(), None, Began(1, "interrupted")))
        assert row is not None
        (attempt,) = new.facts.attempts(id)
        assert (attempt.fence, attempt.checkpoint_before) == (row.fence, "interrupted")


class TestWholeOrNotAtAll:
    @pytest.mark.processes
    def test_a_sigkill_leaves_the_tables_of_one_version(self, actor: Actor, path: Path, old: SqliteLedger) -> None:
        """Before each statement from BEGIN to COMMIT, and right after that."""
        before, rows = shape(path), rows_of(path)
        process = actor("migrate", path)
        last = sum(map(len, sql.MIGRATIONS.values())) + len(sql.MIGRATIONS) + 4
        for step in range(1, last):
            assert reply_to(process, str(step)) == f"killed {step}"
            assert asked(path, "SELECT schema FROM meta") == [(8,)]
            assert shape(path) == before
        row = old.read(replace(JOB, key="running"))
        assert row is not None
        with version_before():
            assert old.renew([row.token])[0].granted
        assert reply_to(process, str(last)) == f"killed {last}"
        assert asked(path, "SELECT schema FROM meta") == [(9,)]
        assert asked(path, "PRAGMA integrity_check") == [("ok",)]
        assert rows_of(path) == rows

    @pytest.mark.processes
    def test_of_two_processes_at_once_one_migrates(self, actor: Actor, path: Path, old: SqliteLedger) -> None:
        rows = rows_of(path)
        both = [actor("migrate", path) for _ in range(2)]
        assert [reply_to(process, "ready?") for process in both] == ["ready", "ready"]
        for process in both:
            request(process, "0")
        assert sorted(line(process) for process in both) == ["ended False", "ended True"]
        assert asked(path, "SELECT schema FROM meta") == [(9,)]
        assert rows_of(path) == rows

    def test_several_steps_are_one_transaction(
        self, path: Path, old: SqliteLedger, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A process can meet a ledger that is two versions older."""
        before = shape(path)
        monkeypatch.setattr(sql, "SCHEMA_VERSION", 10)
        monkeypatch.setattr(sql, "MIGRATIONS", {**sql.MIGRATIONS, 9: ("no SQL",)})
        with closing(SqliteLedger(path, clock=clock, times=Times())) as new:
            with pytest.raises(LedgerUnavailable, match="syntax error"):
                new.ledger_id()
            assert asked(path, "SELECT schema FROM meta") == [(8,)]
            assert shape(path) == before
            monkeypatch.setattr(sql, "MIGRATIONS", {**sql.MIGRATIONS, 9: ("CREATE TABLE more (number INTEGER)",)})
            assert new.ledger_id()
        assert asked(path, "SELECT schema FROM meta") == [(10,)]
        assert {"attempts", "more"} <= shape(path).keys()

    def test_it_waits_for_a_writer_and_tries_again(self, path: Path, old: SqliteLedger, clock: FakeClock) -> None:
        quick = Times().scaled(100)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with closing(SqliteLedger(path, clock=clock, times=quick)) as new:
                with pytest.raises(LedgerUnavailable, match=r"locked.*fuser"):
                    new.ledger_id()
                other.execute("ROLLBACK")
                assert new.ledger_id()

    @pytest.mark.processes
    def test_without_room_it_says_so_and_goes_on_when_there_is_some(
        self, tmp_path: Path, path: Path, old: SqliteLedger
    ) -> None:
        with version_before():
            old.close()
        around = in_own_mounts(tmp_path, "mount -t tmpfs -o size=1m tmpfs")
        command = [*around, sys.executable, str(Path(__file__).with_name("actors.py")), "migrate_full"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        places = [str(path), str(tmp_path / "room")]
        said = subprocess.run([*command, *places], stdout=subprocess.PIPE, text=True, env=env, check=True, timeout=60)
        first, second, third = said.stdout.splitlines()
        assert first.startswith("LedgerUnavailable")
        assert "its file system is full; free some space." in first
        assert (second, third) == ("schema 8 rows 7", "schema 9 rows 7")
