"""The PostgreSQL ledger behind a pooler in transaction mode: no session is ours for longer than one statement."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from msgspec.structs import replace

from steadyworker.errors import ConfigError, LedgerUnavailable
from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Moving, Orders, Progress, Row, State, Verdict
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.outcome import Counters
from tests.brokers.pgbouncer import Pooler
from tests.ledger.pgkit import JOB, QUICK, Admin, Open, claim, prefer, seen

Poolers = Callable[..., Pooler]


class TestInTransactionMode:
    def test_ledgers_that_share_two_sessions_do_all_that_a_job_needs(
        self, pooler: Poolers, database: str, opened: Open
    ) -> None:
        """Eight ledgers at a time, each call often enough to be prepared by a client that prepares."""
        url = pooler(sessions=2).through(database)
        ledgers = [opened(url) for _ in range(8)]

        message = KeptMessage(bytes(range(256)), b'{"it\'s": "% \\ a fact"}')

        def work(number: int) -> int:
            ledger = ledgers[number]
            for turn in range(8):
                job = JobId("shop", "exports", f"{number}-{turn}")
                assert ledger.register(f"me-{number}", "host", ["shop/exports"])
                row = ledger.claim(Claimed(job, None, "me", 0, b"", Counters(), message))
                assert row is not None
                assert ledger.message(job) == message
                ledger.deferred(job, 60.0)
                assert ledger.orphans("shop", "exports", 60.0, 10) == []
                assert ledger.renew([row.token])[0].granted
                assert ledger.checkpoint(row.token, bytes(range(256)))
                ledger.progress(row.token, Progress(1.0, None, "it's % \\ a note", 17.0))
                assert ledger.may_commit(row.token).granted
                assert ledger.orders("me") == Orders({})
                if turn % 2:
                    assert ledger.moving(row.token, Verdict(Moving.DEAD, "no", Counters(attempts=1)))
                    assert ledger.moved(row.token, 60.0)
                    assert ledger.replay(replace(job, round=1), message, b"")
                else:
                    assert ledger.done(row.token)
                ledger.settled(row.token, known=True)
                assert seen(ledger, job).checkpoint == bytes(range(256))
            return ledger.purge()

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(8))) == [0] * 8
        assert len({ledger.ledger_id() for ledger in ledgers}) == 1
        rows = [row for row, _ in opened().jobs()]
        assert len(rows) == len({row.fence for row in rows}) == 8 * 12
        assert {row.state for row in rows} == {State.DONE, State.DEAD, State.MOVED}

    def test_a_locked_row_is_waited_for_by_the_server_and_the_limit_stays_with_its_statement(
        self, pooler: Poolers, database: str, opened: Open, admin: Admin
    ) -> None:
        """The server ends the wait before the client does, and the next client of that session has its own limits."""
        url = pooler(sessions=1).through(database)
        ledger = opened(url)
        row = claim(ledger)
        with admin.transaction():
            admin.execute("SELECT 1 FROM steadyworker_jobs WHERE uid = %s FOR UPDATE", [row.uid])
            with pytest.raises(LedgerUnavailable, match="pg_stat_activity"):
                ledger.done(row.token)
        with psycopg.connect(url, autocommit=True) as other:
            assert other.execute("SHOW lock_timeout").fetchall() == [("0",)]
            assert other.execute("SHOW statement_timeout").fetchall() == [("0",)]
        assert ledger.done(row.token)

    def test_a_slow_statement_is_ended_by_the_server(
        self, pooler: Poolers, database: str, opened: Open, admin: Admin
    ) -> None:
        ledger = opened(pooler(sessions=1).through(database))
        ledger.ledger_id()
        began = time.monotonic()
        with pytest.raises(LedgerUnavailable, match="too slow"):
            ledger._fetch("SELECT pg_sleep(60)", {})
        assert time.monotonic() - began < QUICK.call_timeout
        running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)' AND state = 'active'"
        assert admin.execute(running).fetchall() == [(0,)]

    def test_a_server_that_prefers_another_isolation_refuses_the_second_of_two_claims(
        self, pooler: Poolers, database: str, opened: Open, admin: Admin
    ) -> None:
        prefer(admin, "default_transaction_isolation", "serializable")
        url = pooler(sessions=4).through(database)
        ledgers = [opened(url) for _ in range(4)]
        together = threading.Barrier(4)
        for number in range(20):
            job = JobId("shop", "exports", str(number))
            row = claim(ledgers[0], job)

            def lose(ledger: PostgresLedger, row: Row = row) -> Row | None:
                together.wait()
                return ledger.lose(row, "me", Verdict(Moving.DEAD, "lost", Counters()))

            with ThreadPoolExecutor(4) as pool:
                assert [won is not None for won in pool.map(lose, ledgers)].count(True) == 1

    def test_many_that_are_first_make_one_ledger(self, pooler: Poolers, database: str, opened: Open) -> None:
        url = pooler(sessions=2).through(database)
        ledgers = [opened(url) for _ in range(6)]
        with ThreadPoolExecutor(6) as pool:
            assert len(set(pool.map(PostgresLedger.ledger_id, ledgers))) == 1


class TestOptions:
    """A pooler drops or refuses the URL's `options`; a ledger in another schema than the URL's would be another ledger."""

    OPTIONS = "?options=-csearch_path%3Dapart"

    def test_refused(self, pooler: Poolers, database: str, opened: Open) -> None:
        with pytest.raises(ConfigError, match="ALTER ROLE"):
            opened(pooler().through(database) + self.OPTIONS).read(JOB)

    def test_dropped(self, pooler: Poolers, database: str, opened: Open, admin: Admin) -> None:
        admin.execute("CREATE SCHEMA apart")
        opened(database + self.OPTIONS).ledger_id()
        url = pooler(settings="ignore_startup_parameters = options").through(database)
        with pytest.raises(ConfigError, match="ALTER ROLE"):
            opened(url + self.OPTIONS).read(JOB)
        assert admin.execute("SELECT to_regclass('public.steadyworker_meta')").fetchall() == [(None,)]
        prefer(admin, "search_path", "apart")
        url = pooler().through(database)  # the sessions of the first one have the old search path
        assert opened(url).ledger_id() == opened(database + self.OPTIONS).ledger_id()
