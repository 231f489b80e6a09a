"""A PostgreSQL ledger of the schema before is migrated in place, while processes of the version before work on it."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
import pytest
from msgspec.structs import replace

from steadyworker.clock import SystemClock
from steadyworker.errors import ConfigError, LedgerUnavailable
from steadyworker.ledger.base import Claimed, KeptMessage, Moving, State, Verdict
from steadyworker.ledger.lease import registered_name
from steadyworker.ledger.postgres import schema
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.ledger.postgres.schema import META, SCHEMA_VERSION
from steadyworker.outcome import Counters
from tests.ledger import postgres_schema_7 as old
from tests.ledger.kit import Actor, line
from tests.ledger.pgkit import JOB, QUICK, Admin, Open, seen
from tests.support.stage import eventually

NAME = registered_name(JOB.namespace, JOB.queue)
COUNTERS = {"attempts": 1, "crashes": 0, "losses": 0, "interruptions": 0, "first_failed_at": None}
PLAN = {
    "due_in": 30.0,
    "delay": 30.0,
    "wake_in": 30.0,
    "reason": "no",
    "error_class": "",
    "error_text": "",
    "keep_checkpoint": True,
}
KEEP = {"keep_done": 60, "keep_dead": 60, "keep_moved": 60, "keep_mark": 60, "absence": 3600}
MESSAGE = KeptMessage(b"17", b"{}")
KEPT = {"body": b64encode(MESSAGE.body).decode(), "facts": MESSAGE.facts}
TABLES: tuple[LiteralString, ...] = ("meta", "jobs", "messages", "attended", "progress", "owners", "bindings")
STRUCTURE: tuple[LiteralString, ...] = (
    """
    SELECT table_name, column_name, data_type, column_default, is_nullable FROM information_schema.columns
    WHERE table_schema = 'public' ORDER BY 1, 2
    """,
    "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
    """
    SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2
    """,
    "SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1",
    """
    SELECT attrelid::regclass::text, attname, attstorage FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND attnum > 0 ORDER BY 1, 2
    """,
)
"""What two ledgers must have in common: columns, indexes, constraints and storage."""


class Before:
    """A worker process of the version before: its session is open, and runs the statements of its version as they were."""

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(
            url, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.ClientCursor[tuple[Any, ...]]
        )

    def close(self) -> None:
        self._db.close()

    def run(self, statement: LiteralString, **values: object) -> psycopg.Cursor[tuple[Any, ...]]:
        limits = {"lock_timeout": 5000, "statement_timeout": 8000, "lease": 60.0, "margin": 30.0, "owner": "me"}
        # This server hides its incarnation.
        statement = old.LIMITED + statement.replace("{now}", "ARRAY[NULL, NULL, NULL, NULL]::text[]")
        cursor = self._db.execute(statement, {**limits, **COUNTERS, **PLAN, **KEEP, **KEPT, **values})
        while cursor.nextset():
            pass
        return cursor

    def create(self) -> None:
        self.run(old.CREATE, ledger_id="7" * 32, schema=old.SCHEMA_VERSION, made_by="before")

    def register(self) -> int:
        """Register as an owner of the queue, and return the number of this registration."""
        owner = {"owner": "old", "host": "host", "boot": "b", "lock_path": "/l", "queues": [NAME], "names": [NAME]}
        ((beat, _, settled, _),) = self.run(old.REGISTER, **owner).fetchall()
        if not settled:
            self.run(old.ATTEND, **owner, went_back=False)
        return int(beat)

    def claim(self, key: str, seen: dict[str, Any] | None = None) -> dict[str, Any]:
        """Claim a job, and return what names its row and its run."""
        ((drawn,),) = self.run(old.DRAW).fetchall()
        id = {"namespace": JOB.namespace, "queue": JOB.queue, "key": key, "round": 0}
        new = {"uid": f"uid-{key}", "body_sha256": b"", "hop": 0, "worker": "before", "drawn": drawn}
        known = {} if seen is None else seen
        assert self.run(old.CLAIM_NEW if seen is None else old.CLAIM_SEEN, **id, **(new | known)).rowcount == 1
        return {**id, "uid": known.get("uid", new["uid"]), "fence": drawn}

    def ends(self, run: dict[str, Any], state: State) -> None:
        """Bring a run into this state."""
        target = "dead" if state is State.DEAD else "retry"
        steps: dict[State, tuple[LiteralString, ...]] = {
            State.INTERRUPTED: (old.INTERRUPTED,),
            State.DONE: (old.DONE,),
            State.MOVING: (old.MOVING,),
            State.MOVED: (old.MOVING, old.MOVED),
            State.DEAD: (old.MOVING, old.MOVED),
        }
        for statement in steps.get(state, ()):
            assert self.run(statement, **run, target=target).rowcount == 1

    def fill(self) -> None:
        """A job in each state, and a mark of a cancel."""
        for state in State:
            self.ends(self.claim(state.value), state)
        id = {"namespace": JOB.namespace, "queue": JOB.queue, "key": "mark", "round": 0}
        self.run(old.CANCEL, **id, uid="uid-mark", reason="in advance")


@pytest.fixture
def before(database: str) -> Iterator[Before]:
    with closing(Before(database)) as before:
        before.create()
        yield before


def id_of(ledger: PostgresLedger) -> str | None:
    """The ledger's id; None while it must wait for a migration."""
    with suppress(LedgerUnavailable):
        return ledger.ledger_id()
    return None


def structure(admin: Admin) -> list[list[tuple[Any, ...]]]:
    return [admin.execute(statement).fetchall() for statement in STRUCTURE]


def schema_of(admin: Admin) -> int:
    return int(admin.execute("SELECT schema FROM steadyworker_meta").fetchall()[0][0])


def test_a_migrated_ledger_is_like_a_new_one_and_has_its_rows(before: Before, opened: Open, admin: Admin) -> None:
    before.register()
    before.fill()
    same: tuple[LiteralString, ...] = ("jobs", "messages", "attended", "bindings")
    columns: list[LiteralString] = [
        f"SELECT to_jsonb(each) FROM steadyworker_{table} AS each ORDER BY 1" for table in same
    ]
    rows = [admin.execute(each).fetchall() for each in columns]
    ledger = opened()
    assert ledger.ledger_id() == "7" * 32
    assert admin.execute(META).fetchall() == [("7" * 32, SCHEMA_VERSION, version("steadyworker"))]
    assert [admin.execute(each).fetchall() for each in columns] == rows
    migrated = structure(admin)
    admin.execute("DROP SCHEMA public CASCADE")
    admin.execute("CREATE SCHEMA public")
    with closing(opened()) as fresh:
        fresh.ledger_id()
    assert structure(admin) == migrated


def test_a_checkout_that_is_not_installed_has_no_version(
    opened: Open, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_distribution: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert opened().ledger_id()
    assert admin.execute("SELECT made_by FROM steadyworker_meta").fetchall() == [("unknown",)]


def test_jobs_of_before_can_be_run_with_their_messages(before: Before, opened: Open) -> None:
    """The registrations of the version before count, so its rows are no old records."""
    before.register()
    before.fill()
    ledger = opened()
    assert ledger.register("me", "host", [NAME])
    (orphan,) = ledger.orphans(JOB.namespace, JOB.queue, 0.0, 10)
    assert (orphan.row.id.key, orphan.hindrance) == ("interrupted", None)
    assert ledger.orphans(JOB.namespace, JOB.queue, 0.0, 10, stranded=True) == []
    assert ledger.claim(Claimed(orphan.row.id, orphan.row, "me", 0, b"", Counters()))
    assert ledger.message(orphan.row.id) == MESSAGE


def test_processes_that_open_it_at_once_migrate_it_once(
    before: Before,
    actor: Actor,
    database: str,
    admin: Admin,
) -> None:
    """Real processes, one of which claims a row of before; none fails, and no claim is lost."""
    before.fill()
    racers = [actor("race", database, name) for name in ("a", "b", "c")]
    for racer in racers:
        assert line(racer) == "ready"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    assert all(line(racer) for racer in racers), "each of them claimed"
    assert schema_of(admin) == SCHEMA_VERSION
    assert admin.execute("SELECT count(*) FROM steadyworker_jobs").fetchall() == [(len(State) + 2,)]


def test_many_threads_that_open_it_at_once_migrate_it_once(before: Before, opened: Open, admin: Admin) -> None:
    """A ledger that must wait too long for the migration says so, and has it at the next call."""
    before.fill()
    ledgers = [opened() for _ in range(8)]

    def first_call(ledger: PostgresLedger) -> str | None:
        found: str | None = eventually(lambda: id_of(ledger), "the id")
        return found

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(first_call, ledgers)) == {"7" * 32}
    assert schema_of(admin) == SCHEMA_VERSION


def test_a_process_of_the_version_before_works_on(before: Before, opened: Open, admin: Admin) -> None:
    """Every statement of its open session is valid after the migration; what it wrote is read by the new version."""
    running = before.claim("running")
    ledger = opened()
    ledger.register("new", "host", [NAME])
    assert before.run(old.RENEW, uids=[running["uid"]], fences=[running["fence"]], owners=["me"]).fetchall() == [
        (1, None)
    ]
    assert before.run(old.CHECKPOINT, **running, value=b"17").rowcount == 1
    assert before.run(old.EXPORT_STATE, **running, value=b"app-1").rowcount == 1
    assert before.run(old.MAY_COMMIT, **running).fetchall() == [(None,)]
    assert before.run(old.PROGRESS, **running, done=1, total=2, note="", at=17.0).rowcount == 1
    assert [before.register() for _ in range(2)] == [1, 2]
    assert {owner.owner for owner in ledger.owners()} == {"old", "new"}
    assert ledger.register("new", "host", [NAME]), "the old version does not move the ledger back in time"
    assert before.run(old.BIND, namespace="shop", queue="exports", identity="broker").fetchall() == [("broker",)]
    for state in State:
        if state is not State.RUNNING:
            before.ends(before.claim(state.value), state)
        assert seen(ledger, replace(JOB, key=state.value)).state is state
    # The old version claims a job of the new one, whose message is kept, and ends it.
    kept = ledger.claim(Claimed(JOB, None, "new", 0, b"", Counters(), MESSAGE))
    assert kept is not None
    assert ledger.moving(kept.token, Verdict(Moving.RETRY, "no", Counters()))
    assert ledger.moved(kept.token)
    taken = before.claim(JOB.key, {"uid": kept.uid, "fence": kept.fence, "state": "moved"})
    before.ends(taken, State.DONE)
    assert seen(ledger).state is State.DONE
    found = [ledger.orphans(JOB.namespace, JOB.queue, 0.0, 10, stranded=stranded) for stranded in (False, True)]
    assert [[orphan.row.id.key for orphan in orphans] for orphans in found] == [["interrupted"], []], (
        "a job that is done is no orphan, even if the old version ended it"
    )
    settled = {"settled_uids": [taken["uid"]], "settled_fences": [taken["fence"]], "settled_known": [True]}
    assert before.run(old.FLUSH, **settled, keep_confirmed=60).rowcount == 1
    admin.execute("UPDATE steadyworker_jobs SET keep_until = now() WHERE keep_until IS NOT NULL")
    assert before.run(old.PURGE, rows=500).rowcount == 4
    assert ledger.read(JOB) is None
    left = admin.execute("SELECT key FROM steadyworker_messages JOIN steadyworker_jobs USING (number) ORDER BY key")
    assert left.fetchall() == [("interrupted",), ("moving",), ("running",)]


def test_a_job_that_the_version_before_gives_up_waits_for_its_message(before: Before, opened: Open) -> None:
    """A rolling upgrade stops the old processes, which interrupt the jobs of new ones that they have taken over."""
    ledger = opened()
    ledger.register("new", "host", [NAME])
    jobs = {state: replace(JOB, key=state.value) for state in (State.INTERRUPTED, State.MOVED, State.DONE)}
    for state, job in jobs.items():
        row = ledger.claim(Claimed(job, None, "gone", 0, b"", Counters(), MESSAGE))
        assert row is not None
        before.ends(before.claim(job.key, {"uid": row.uid, "fence": row.fence, "state": "running"}), state)

    def found(after: float) -> list[tuple[str, float]]:
        orphans = ledger.orphans(JOB.namespace, JOB.queue, after, 10)
        return sorted((orphan.row.id.key, round(orphan.unseen_for, -1)) for orphan in orphans)

    assert found(-100.0) == [("interrupted", 0.0), ("moved", -30.0)]
    assert found(0.0) == [("interrupted", 0.0)]


def test_a_process_of_the_version_before_is_refused_when_it_connects(before: Before, opened: Open) -> None:
    """Its own check compares the version of the tables with the one that it knows."""
    opened().ledger_id()
    ((_, found, _),) = before.run(old.META).fetchall()
    assert found != old.SCHEMA_VERSION


def test_a_table_that_is_locked_is_waited_for_and_half_a_migration_is_none(
    before: Before, database: str, opened: Open, admin: Admin
) -> None:
    """A dump reads the last table that gets columns: the migration ends soon, so that other calls go on, and is tried again."""
    ledger = opened()
    with psycopg.connect(database) as dump:
        dump.execute("SELECT FROM steadyworker_progress")
        with pytest.raises(LedgerUnavailable, match="pg_stat_activity"):
            ledger.ledger_id()
        assert schema_of(admin) == old.SCHEMA_VERSION
        assert admin.execute("SELECT to_regclass('steadyworker_attempts')").fetchall() == [(None,)]
        before.claim("a job of a process that works on")

    assert eventually(lambda: id_of(ledger), "the migration") == "7" * 32
    assert schema_of(admin) == SCHEMA_VERSION


def test_several_steps_are_one_transaction(
    before: Before, opened: Open, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process can meet a ledger that is two versions older."""
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 9)
    monkeypatch.setattr(schema, "MIGRATIONS", {**schema.MIGRATIONS, 8: ("SELECT 1 / 0",)})
    with pytest.raises(psycopg.errors.DivisionByZero):
        opened().ledger_id()
    assert schema_of(admin) == old.SCHEMA_VERSION
    assert admin.execute("SELECT to_regclass('steadyworker_attempts')").fetchall() == [(None,)]
    monkeypatch.setattr(schema, "MIGRATIONS", {**schema.MIGRATIONS, 8: ("CREATE TABLE steadyworker_more ()",)})
    assert opened().ledger_id() == "7" * 32
    assert schema_of(admin) == 9
    found = "SELECT to_regclass('steadyworker_attempts') IS NOT NULL, to_regclass('steadyworker_more') IS NOT NULL"
    assert admin.execute(found).fetchall() == [(True, True)]


def test_a_user_that_may_not_alter_the_tables_is_told_what_to_do(
    before: Before, database: str, opened: Open, admin: Admin
) -> None:
    admin.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    try:
        tables = ", ".join(f"steadyworker_{name}" for name in TABLES)
        admin.execute(f"GRANT ALL ON {tables} TO guest")
        parts = urlsplit(database)
        guest = parts._replace(netloc=f"guest:guest@{parts.hostname}:{parts.port}").geturl()
        for refusal in ("permission denied for schema", "must be owner of table"):
            text = f"schema 8 at .*, got 7, and '{refusal} .*ALTER TABLE … OWNER TO"
            with pytest.raises(ConfigError, match=text):
                opened(guest).ledger_id()
            assert schema_of(admin) == old.SCHEMA_VERSION
            admin.execute("GRANT CREATE ON SCHEMA public TO guest")
        for table in tables.split(", "):
            admin.execute(f"ALTER TABLE {table} OWNER TO guest")
        assert opened(guest).ledger_id() == "7" * 32
    finally:
        admin.execute("DROP OWNED BY guest CASCADE")
        admin.execute("DROP ROLE guest")


def test_only_a_worker_process_migrates(before: Before, database: str, tmp_path: Path, admin: Admin) -> None:
    """A command only says who does it."""
    reader = PostgresLedger(lambda: database, owners_dir=tmp_path, clock=SystemClock(), times=QUICK, create=False)
    with closing(reader), pytest.raises(ConfigError, match=r"got schema 7, .*: start a worker of .*, which migrates"):
        reader.ledger_id()
    assert schema_of(admin) == old.SCHEMA_VERSION


def test_each_statement_of_the_version_before_is_still_valid(before: Before, opened: Open) -> None:
    opened().ledger_id()
    others = {"SCHEMA_VERSION", "LIMITED", "UNFINISHED", "CREATE", "LAST_OF_ITS_KEY", "COLUMNS", "NOW", "NEXT_FENCE"}
    others |= {"FLUSH", "REGISTER", "ATTEND"}  # other tests run them, with their values
    for name, statement in vars(old).items():
        if name.isupper() and name[0] != "_" and name not in others:
            values = dict.fromkeys(re.findall(r"%\((\w+)\)s", statement))
            assert before.run("EXPLAIN " + statement, **values).fetchall()
