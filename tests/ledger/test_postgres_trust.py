"""What shows a PostgreSQL ledger that it went back in time, on real servers: dumps, stand-bys, and servers that hide things."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from steadyworker.clock import Times
from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import Began, Claimed, Ending, Hindrance, JobId, KeptMessage, Need, NeedsOf
from steadyworker.ledger.lease import registered_name
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from tests.brokers.install import postgres_programs
from tests.brokers.postgres import Cluster, Postgres
from tests.faults.link import Link
from tests.faults.proxy import Proxy
from tests.ledger import pgkit
from tests.ledger.pgkit import JOB, Admin, Open, Schemas
from tests.support.stage import eventually

NAME = registered_name(JOB.namespace, JOB.queue)
MESSAGE = KeptMessage(b"17", b"{}")
HIDDEN = """
    CREATE SCHEMA managed;
    CREATE FUNCTION managed.pg_current_wal_lsn() RETURNS pg_lsn LANGUAGE plpgsql AS
        $$ BEGIN RAISE feature_not_supported USING MESSAGE = 'not supported by this service'; END $$;
    REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC;
"""
"""A server that lacks one function and hides another, as services that manage servers do."""


@pytest.fixture
def guest(database: str, admin: Admin) -> Iterator[str]:
    """The database's URL for a user with no rights but those that the ledger needs."""
    admin.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    admin.execute("GRANT CREATE ON SCHEMA public TO guest")
    parts = urlsplit(database)
    yield parts._replace(netloc=f"guest:guest@{parts.hostname}:{parts.port}").geturl()
    admin.execute("DROP OWNED BY guest CASCADE")
    admin.execute("DROP ROLE guest")


def orphaned(ledger: PostgresLedger, job: JobId = JOB) -> None:
    """Claim a job with a message, and interrupt it: it is an orphan at once."""
    row = ledger.claim(Claimed(job, None, "me", 0, b"", Counters(), MESSAGE))
    assert row is not None
    assert ledger.interrupted(row.token, Counters())


def orphans(ledger: PostgresLedger, *, stranded: bool = False) -> list[tuple[str, Hindrance | None]]:
    found = ledger.orphans(JOB.namespace, JOB.queue, 0.0, 10, stranded=stranded)
    return [(orphan.row.id.key, orphan.hindrance) for orphan in found]


def both_lists(ledger: PostgresLedger) -> list[list[tuple[str, Hindrance | None]]] | None:
    """The orphans without and with a hindrance; None while the ledger is away."""
    with suppress(LedgerUnavailable):
        return [orphans(ledger), orphans(ledger, stranded=True)]
    return None


def incarnation(admin: Admin) -> list[str | None]:
    found: list[str | None] = admin.execute("SELECT incarnation FROM steadyworker_meta").fetchall()[0][0]
    return found


def test_an_ordinary_user_can_read_the_whole_incarnation(guest: str, opened: Open, admin: Admin) -> None:
    """The system identifier, the timeline, the database and the table; the first registration records them."""
    ledger = opened(guest)
    assert ledger.register("me", "host", [NAME])
    expected = """
        SELECT (SELECT system_identifier FROM pg_control_system())::text, '00000001',
            (SELECT oid FROM pg_database WHERE datname = current_database())::text, 'steadyworker_meta'::regclass::oid::text
    """
    assert incarnation(admin) == list(admin.execute(expected).fetchall()[0])


def test_what_a_server_hides_is_left_out(guest: str, opened: Open, admin: Admin) -> None:
    """The ledger works without it, and a part that is shown later, or only to another user, is no step back in time."""
    admin.execute(HIDDEN)
    admin.execute("GRANT USAGE ON SCHEMA managed TO guest")
    admin.execute("ALTER ROLE guest SET search_path = public, managed, pg_catalog")
    hiding = opened(guest)
    assert hiding.register("me", "host", [NAME])
    assert [part is None for part in incarnation(admin)] == [True, True, False, False]
    orphaned(hiding)
    assert orphans(hiding) == [(JOB.key, None)]
    assert opened().register("other", "host", [NAME])
    assert [part is None for part in incarnation(admin)] == [False] * 4
    assert hiding.register("me", "host", [NAME])
    assert orphans(hiding) == [(JOB.key, None)]
    assert [part is None for part in incarnation(admin)] == [False] * 4
    admin.execute("DROP SCHEMA managed CASCADE")


def test_the_jobs_of_another_incarnation_are_stranded_before_a_worker_process_registers(
    opened: Open, admin: Admin
) -> None:
    """As the list of orphans has them, so that both name one reason."""
    ledger = opened()
    assert ledger.register("me", "host", [NAME])
    orphaned(ledger)
    reader = opened()
    needs = NeedsOf(None, None, overdue=0.0, lost=2, stalled=3600.0, dead=3600.0)
    assert [need for _, _, need in reader.needing(needs, 0, 10).jobs] == []
    admin.execute("UPDATE steadyworker_meta SET incarnation[1] = 'another server'")
    assert orphans(reader, stranded=True) == [(JOB.key, Hindrance.OLD_RECORD)]
    assert [need for _, _, need in reader.needing(needs, 0, 10).jobs] == [Need.STRANDED]


def test_a_restored_dump_is_another_incarnation(postgres: Postgres, database: str, opened: Open) -> None:
    """A process that never saw the old ledger finds out at its first registration, and strands what the dump has."""
    ledger = opened()
    assert ledger.register("me", "host", [NAME])
    orphaned(ledger)
    assert orphans(ledger) == [(JOB.key, None)]
    restored = postgres.add_database()
    try:
        programs = postgres_programs()
        dump = subprocess.run([programs / "pg_dump", database], check=True, capture_output=True)
        subprocess.run([programs / "psql", "-q", restored], input=dump.stdout, check=True, capture_output=True)
        with closing(opened(restored)) as copy:
            assert both_lists(copy) == [[], [(JOB.key, Hindrance.OLD_RECORD)]], "what a command lists"
            assert not copy.register("another process", "host", [NAME])
            assert both_lists(copy) == [[], [(JOB.key, Hindrance.OLD_RECORD)]]
            assert copy.message(JOB) == MESSAGE
            assert copy.register("another process", "host", [NAME])
            with closing(opened(restored)) as third:
                assert third.register("a third one", "host", [NAME])
    finally:
        postgres.remove_database(restored)
    assert ledger.register("me", "host", [NAME])
    assert orphans(ledger) == [(JOB.key, None)], "the old ledger is as it was"


def test_a_promoted_standby_is_another_incarnation(pair: tuple[Cluster, Cluster], opened: Open) -> None:
    """The stand-by may lack the last commits, even if it has this owner's last registration."""
    primary, standby = pair
    url = primary.add_database()
    both = url.replace(f":{primary.port}/", f":{primary.port},127.0.0.1:{standby.port}/")
    ledger = opened(both)
    assert ledger.register("me", "host", [NAME])
    orphaned(ledger)
    primary.kill()
    standby.promote()
    stranded = [[], [(JOB.key, Hindrance.OLD_RECORD)]]
    assert eventually(lambda: both_lists(ledger), "an answer of the stand-by") == stranded
    assert not eventually(lambda: registered(ledger), "a registration")[0]
    assert both_lists(ledger) == stranded
    assert ledger.register("me", "host", [NAME])


def registered(ledger: PostgresLedger) -> list[bool]:
    """The reply to a registration, or nothing while the ledger is away."""
    with suppress(LedgerUnavailable):
        return [ledger.register("me", "host", [NAME])]
    return []


def test_a_server_that_was_killed_and_recovered_is_the_same(postgres_cluster: Cluster, opened: Open) -> None:
    ledger = opened()
    assert ledger.register("me", "host", [NAME])
    orphaned(ledger)
    postgres_cluster.kill()
    postgres_cluster.start()
    assert eventually(lambda: registered(ledger), "a registration") == [True]
    assert eventually(lambda: both_lists(ledger), "an answer") == [[(JOB.key, None)], []]


@pytest.mark.parametrize("landed", [True, False])
def test_a_registration_whose_reply_is_lost_is_no_step_back(database: str, opened: Open, *, landed: bool) -> None:
    """Whether the ledger has it or not, the next one continues."""
    with Proxy(database) as proxy:
        ledger = opened(proxy.url)
        for _ in range(2):
            assert ledger.register("me", "host", [NAME])
        orphaned(ledger)
        if landed:
            proxy.links[0].after(1, "down", Link.cut)
        else:
            proxy.links[0].after(1, "up", Link.cut)
        with pytest.raises(LedgerUnavailable):
            ledger.register("me", "host", [NAME])
        assert eventually(lambda: registered(ledger), "a registration") == [True]
        assert orphans(ledger) == [(JOB.key, None)]


def test_a_jump_of_the_servers_clock_makes_no_orphan_before_each_owner_has_renewed(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All leases seem to have ended long ago; a process that asks at that moment must not take a job from a living owner."""
    with closing(Schemas(database)) as schemas:
        clock = FakeClock()
        owner, other = (schemas.ledger(tmp_path, clock=clock) for _ in range(2))
        assert other.register("other", "host", [NAME])
        lives = owner.claim(Claimed(JOB, None, "me", 0, b"", Counters(), MESSAGE))
        assert lives is not None
        assert owner.claim(Claimed(replace(JOB, key="left"), None, "gone", 0, b"", Counters(), MESSAGE))

        def renewed(seconds: float) -> list[str]:
            """Let the owners renew meanwhile; return the orphans that the other process then finds."""
            for _ in range(int(seconds / 15)):
                clock.advance(15)
                owner.renew([lives.token])
                owner.register("me", "host", [NAME])
                other.register("other", "host", [NAME])
            return found()

        def found() -> list[str]:
            return [orphan.row.id.key for orphan in other.orphans(JOB.namespace, JOB.queue, 90.0, 10)]

        assert renewed(60) == []
        monkeypatch.setattr(pgkit, "FIRST_BOOT", pgkit.FIRST_BOOT + 1800)
        clock.advance(1)
        assert found() == []
        assert other.register("other", "host", [NAME])
        assert found() == [], "it knows its own registration, not those of the others"
        assert renewed(75) == ["left"]
        for ledger in (owner, other):
            ledger.close()


def test_owners_that_register_two_queues_in_any_order_never_wait_for_each_other_in_vain(opened: Open) -> None:
    """No deadlock, no step back, and one row for each queue."""
    ledgers = [opened(times=Times()) for _ in range(8)]
    names = [NAME, registered_name(JOB.namespace, "refunds")]

    def work(number: int) -> set[bool]:
        return {ledgers[number].register(f"me-{number}", "host", names[:: number % 2 * 2 - 1]) for _ in range(10)}

    with ThreadPoolExecutor(8) as pool:
        assert set().union(*pool.map(work, range(8))) == {True}


def test_many_owners_of_a_queue_renew_its_row_once_a_minute(database: str, tmp_path: Path) -> None:
    """Each would wait for the other's commit, if each registration wrote to the row."""
    with closing(Schemas(database)) as schemas:
        clock = FakeClock()
        ledgers = [schemas.ledger(tmp_path, clock=clock) for _ in range(3)]
        written = set()
        for _ in range(16):  # four minutes
            for number, ledger in enumerate(ledgers):
                assert ledger.register(f"me-{number}", "host", [NAME])
            ((at,),) = ledgers[0]._fetch("SELECT xmin::text FROM steadyworker_attended", {})
            written.add(at)
            clock.advance(15)
        assert len(written) == 4
        for ledger in ledgers:
            ledger.close()


def test_renewals_touch_no_index(opened: Open, admin: Admin) -> None:
    """
    No index has a column that a renewal writes, so renewals are HOT updates, also of a job whose message was deferred.

    Otherwise a fleet's renewals would bloat every index; a few are no HOT update if another session keeps old rows in a full page.
    """
    ledger = opened(times=Times())
    rows = [
        ledger.claim(Claimed(replace(JOB, key=str(number)), None, "me", 0, b"", Counters(), MESSAGE))
        for number in range(10)
    ]
    tokens = [row.token for row in rows if row]
    ledger.deferred(tokens[0].id, 60.0)
    for _ in range(20):
        for token in tokens:
            assert ledger.renew([token])[0].granted
    ledger.close()  # the server counts what a session did when it ends
    count = "SELECT n_tup_upd, n_tup_upd - n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'steadyworker_jobs'"
    counted = eventually(lambda: [found for found in admin.execute(count).fetchall() if found[0] >= 201], "the counts")
    ((updates, others),) = counted
    assert (updates, others < 101) == (201, True), counted
    indexes = admin.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'steadyworker_jobs'").fetchall()
    assert len(indexes) > 4
    assert [index for (index,) in indexes if "lease_until" in index] == []


def test_the_end_of_an_attempt_touches_no_index(opened: Open, admin: Admin) -> None:
    """Its only index is the primary key, and each page has room for the ends of its attempts."""
    ledger = opened(times=Times())
    for number in range(200):
        id = replace(JOB, key=str(number))
        row = ledger.claim(Claimed(id, None, "me", 0, b"", Counters(), MESSAGE, Began(0, "new", 1)))
        assert row is not None
        assert ledger.done(row.token, Ending("done", peak_memory=40 << 20))
    ledger.close()  # the server counts what a session did when it ends
    count = (
        "SELECT n_tup_upd, n_tup_upd - n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'steadyworker_attempts'"
    )
    counted = eventually(lambda: [found for found in admin.execute(count).fetchall() if found[0] >= 200], "the counts")
    ((updates, others),) = counted
    assert (updates, others < 20) == (200, True), counted
    indexes = admin.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'steadyworker_attempts'").fetchall()
    assert [index.rpartition("USING ")[2] for (index,) in indexes] == ["btree (number, fence)"]
