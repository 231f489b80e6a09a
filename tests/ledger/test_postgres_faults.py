"""What happens to the PostgreSQL ledger's server in use: never a raw error, never a lost row, and back by itself."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psycopg
import pytest

from steadyworker.clock import Times
from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import Claimed, JobId, Moving, Renewal, Row, Verdict
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.outcome import Counters
from tests.brokers.postgres import Cluster, Postgres
from tests.faults.link import Link
from tests.faults.proxy import Proxy
from tests.ledger.pgkit import JOB, QUICK, Admin, Open, claim, prefer, seen
from tests.support.stage import eventually


class TestInUse:
    """Whatever happens later is LedgerUnavailable, until it is put right; then everything is as it was."""

    def back(self, ledger: PostgresLedger, row: Row) -> None:
        """It answers again, by itself, and the lease goes on."""
        deadline = time.monotonic() + 30
        while True:
            try:
                assert ledger.renew([row.token])[0].granted
                assert seen(ledger, row.id).fence == row.fence
            except LedgerUnavailable:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return

    def test_killed_and_started_again(self, postgres_cluster: Cluster, opened: Open) -> None:
        """kill -9 in the middle of the work: nothing is lost, and the lease is renewed."""
        ledger = opened()
        row = claim(ledger)
        assert ledger.checkpoint(row.token, b"17")
        postgres_cluster.kill()
        for call in (lambda: ledger.renew([row.token]), lambda: ledger.done(row.token)) * 2:
            with pytest.raises(LedgerUnavailable):
                call()
        postgres_cluster.start()
        self.back(ledger, row)
        assert seen(ledger).checkpoint == b"17"
        assert ledger.done(row.token)

    def test_frozen(self, postgres_cluster: Cluster, opened: Open) -> None:
        """Its kernel goes on to acknowledge what we send: only our own deadline ends the call."""
        ledger = opened()
        row = claim(ledger)
        assert ledger.renew([row.token])[0].granted
        postgres_cluster.freeze()
        began = time.monotonic()
        for call in (lambda: ledger.renew([row.token]), lambda: ledger.checkpoint(row.token, b"17")):
            with pytest.raises(LedgerUnavailable, match="no answer in time"):
                call()
        assert time.monotonic() - began < 5 * 2 * QUICK.call_timeout
        postgres_cluster.thaw()
        self.back(ledger, row)
        assert ledger.checkpoint(row.token, b"18")
        assert seen(ledger).checkpoint == b"18"

    @pytest.mark.parametrize("count", [1, 100, 200, 400, 800])
    def test_a_cut_in_the_middle_of_an_answer(self, database: str, opened: Open, count: int) -> None:
        """
        Whether the call landed is open; the next who reads the row sees, and a claim that landed is his own.

        A cut in the answer to the draw of the fence comes before the claim itself.
        """
        with Proxy(database) as proxy:
            ledger = opened(proxy.url)
            assert ledger.read(JOB) is None
            proxy.links[0].after(count, "down", Link.cut)
            with pytest.raises(LedgerUnavailable):
                claim(ledger)
            row = opened().read(JOB)
            assert (row is None) == (count < 200)
            row = row or claim(opened())
            assert row.owner == "me"
            self.back(ledger, row)
            assert ledger.done(row.token)

    def test_answers_that_come_byte_by_byte(self, database: str, opened: Open) -> None:
        opened().ledger_id()
        with Proxy(database) as proxy:
            proxy.slice(1)
            ledger = opened(proxy.url, Times())
            row = claim(ledger)
            assert ledger.checkpoint(row.token, bytes(range(256)))
            assert seen(ledger).checkpoint == bytes(range(256))

    def test_a_network_that_swallows_everything(self, database: str, opened: Open) -> None:
        with Proxy(database) as proxy:
            ledger = opened(proxy.url)
            row = claim(ledger)
            proxy.stall()
            began = time.monotonic()
            with pytest.raises(LedgerUnavailable, match="no answer in time"):
                ledger.checkpoint(row.token, b"17")
            assert time.monotonic() - began < 5 * QUICK.call_timeout
            proxy.resume()
            self.back(ledger, row)

    def test_a_fail_over_to_another_server(self, postgres: Postgres, database: str, opened: Open) -> None:
        """An empty one, or one with another ledger, is refused, and left as it is; the old one is welcome back."""
        place = database
        ledger = opened(lambda: place)
        row = claim(ledger)
        other = postgres.add_database()
        try:
            for got in ("a database without a ledger", "the ledger"):
                place = other
                self.cut(database)
                for call in (lambda: ledger.renew([row.token]), lambda: ledger.done(row.token)):
                    self.refuses(call, f"got {got}.*restart every worker process")
                place = database
                self.back(ledger, row)
                opened(other).ledger_id()
        finally:
            postgres.remove_database(other)

    def refuses(self, call: Callable[[], object], match: str) -> None:
        """It says so, as soon as it has found that its connection was cut."""
        deadline = time.monotonic() + 30
        while True:
            with pytest.raises(LedgerUnavailable) as raised:
                call()
            if re.search(match, str(raised.value)):
                return
            assert time.monotonic() < deadline, raised.value
            time.sleep(0.05)

    def cut(self, database: str) -> None:
        """End every connection of the ledger's."""
        with psycopg.connect(database, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'steadyworker/%'"
            )

    def test_its_tables_are_gone(self, opened: Open, admin: Admin) -> None:
        ledger = opened()
        row = claim(ledger)
        admin.execute("ALTER TABLE steadyworker_jobs RENAME TO away")
        with pytest.raises(LedgerUnavailable, match="restore the ledger's tables"):
            ledger.renew([row.token])
        admin.execute("ALTER TABLE away RENAME TO steadyworker_jobs")
        self.back(ledger, row)

    def test_a_session_that_forgets_everything_between_two_calls(self, opened: Open) -> None:
        """A pooler may do this with DISCARD ALL, or give another session to the next call."""
        ledger = opened()
        row = claim(ledger)
        for session in (ledger._renewals, ledger._record) * 3:
            assert ledger.renew([row.token])[0].granted
            assert ledger.checkpoint(row.token, b"17")
            with session.connection() as connection:
                connection.pgconn.exec_(b"DISCARD ALL")
        assert ledger.done(row.token)

    def test_its_tables_were_changed_between_two_calls(self, opened: Open, admin: Admin) -> None:
        """A statement that the server had prepared would fail: its result has another type now."""
        ledger = opened()
        row = claim(ledger)
        assert ledger.renew([row.token])[0].granted
        admin.execute("ALTER TABLE steadyworker_jobs ALTER error_text TYPE varchar")
        assert ledger.renew([row.token])[0].granted
        assert ledger.done(row.token)

    def test_a_row_that_somebody_has_locked_holds_up_nothing_but_its_own_calls(
        self, opened: Open, admin: Admin
    ) -> None:
        ledger = opened()
        locked, free = claim(ledger), claim(ledger, JobId("shop", "exports", "free"))
        with admin.transaction():
            admin.execute("SELECT 1 FROM steadyworker_jobs WHERE uid = %s FOR UPDATE", [locked.uid])
            with pytest.raises(LedgerUnavailable, match="pg_stat_activity"):
                ledger.done(locked.token)
            assert ledger.renew([free.token])[0].granted
            assert ledger.done(free.token)
        assert ledger.done(locked.token)

    def test_a_locked_row_keeps_its_own_lease_from_a_renewal_and_no_other(self, opened: Open, admin: Admin) -> None:
        """The lease of the locked row is neither granted nor refused; when the lock is gone, it is renewed."""
        ledger = opened()
        rows = [claim(ledger, JobId("shop", "exports", f"m-{number}")) for number in range(5)]
        tokens = [row.token for row in rows]
        gone = claim(ledger, JobId("shop", "exports", "gone")).token
        assert ledger.done(gone)
        before = self.leases(admin)
        with admin.transaction():
            admin.execute("SELECT 1 FROM steadyworker_jobs WHERE uid = %s FOR UPDATE", [rows[2].uid])
            began = time.monotonic()
            answers = ledger.renew([*tokens, gone])
            assert time.monotonic() - began < QUICK.call_timeout
        assert [answer.granted for answer in answers] == [True, True, False, True, True, False]
        assert [answer.locked for answer in answers] == [False, False, True, False, False, False]
        after = self.leases(admin)
        assert [after[row.uid] > before[row.uid] for row in rows] == [True, True, False, True, True]
        assert ledger.renew([tokens[2]])[0] == Renewal(granted=True)

    def test_a_table_that_is_locked_costs_a_renewal_less_than_two_calls(self, opened: Open, admin: Admin) -> None:
        ledger = opened()
        tokens = [claim(ledger, JobId("shop", "exports", f"m-{number}")).token for number in range(5)]
        with admin.transaction():
            admin.execute("LOCK TABLE steadyworker_jobs")
            began = time.monotonic()
            assert {answer.locked for answer in ledger.renew(tokens)} == {True}
            assert time.monotonic() - began < 2 * QUICK.call_timeout

    def test_a_table_that_is_locked_costs_a_read_of_the_orders_less_than_a_call(
        self, opened: Open, admin: Admin
    ) -> None:
        """The server ends the wait, so that no session goes on waiting."""
        ledger = opened()
        ledger.orders("me")
        with admin.transaction():
            admin.execute("LOCK TABLE steadyworker_orders")
            with pytest.raises(LedgerUnavailable, match="lock timeout"):
                ledger.orders("me")

    def test_an_end_whose_row_is_locked_spoils_no_other_write_of_its_turn(self, opened: Open, admin: Admin) -> None:
        ledger = opened()
        locked, free = claim(ledger), claim(ledger, JobId("shop", "exports", "free"))
        with admin.transaction():
            admin.execute("SELECT 1 FROM steadyworker_jobs WHERE uid = %s FOR UPDATE", [locked.uid])
            _, (failed, granted) = ledger.record([], [(locked.token, None), (free.token, None)])
            assert isinstance(failed, LedgerUnavailable)
            assert granted is True
        assert ledger.done(locked.token)

    def leases(self, admin: Admin) -> dict[str, float]:
        found = admin.execute("SELECT uid, extract(epoch FROM lease_until)::float8 FROM steadyworker_jobs").fetchall()
        return dict(found)

    @pytest.mark.parametrize("how", ["claim", "take_over", "lose", "first claim"])
    def test_a_claim_that_waits_for_a_locked_row_holds_up_no_other_claim(
        self, opened: Open, admin: Admin, how: str
    ) -> None:
        """Another session has locked the row, or has deleted the row of a job that is claimed for the first time."""
        waiting, other = opened(times=Times(call_timeout=30)), opened()
        row = claim(waiting)
        lost = Verdict(Moving.DEAD, "lost", Counters())
        if how == "take_over":
            assert waiting.moving(row.token, lost)
        seen_ = seen(waiting)
        calls: dict[str, Callable[[], Row | None]] = {
            "claim": lambda: waiting.claim(Claimed(JOB, seen_, "you", 0, b"", Counters())),
            "take_over": lambda: waiting.take_over(seen_, "you"),
            "lose": lambda: waiting.lose(seen_, "you", lost),
            "first claim": lambda: waiting.claim(Claimed(JOB, None, "you", 0, b"", Counters())),
        }
        with ThreadPoolExecutor(1) as pool:
            with admin.transaction():
                if how == "first claim":
                    admin.execute("DELETE FROM steadyworker_jobs")
                else:
                    admin.execute("SELECT 1 FROM steadyworker_jobs FOR UPDATE")
                waits = pool.submit(calls[how])
                with psycopg.connect(admin.info.dsn, password=admin.info.password, autocommit=True) as watch:
                    stuck = (
                        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
                    )
                    eventually(lambda: watch.execute(stuck).fetchall(), "the claim waits")
                    for number in range(3):
                        claim(other, JobId("shop", "exports", f"free-{number}"))
                    assert watch.execute(stuck).fetchall() == [(1,)], "the first one still waits"
            won = waits.result()
        assert won is not None
        assert won.owner == "you"

    def test_a_password_that_is_changed_is_read_at_the_next_connect(
        self, database: str, opened: Open, admin: Admin
    ) -> None:
        admin.execute("CREATE ROLE worker LOGIN PASSWORD 'first'")
        admin.execute("GRANT CREATE ON SCHEMA public TO worker")
        parts = urlsplit(database)
        secret = "first"
        ledger = opened(lambda: parts._replace(netloc=f"worker:{secret}@{parts.hostname}:{parts.port}").geturl())
        try:
            row = claim(ledger)
            admin.execute("ALTER ROLE worker PASSWORD 'second'")
            self.cut(database)
            with pytest.raises(LedgerUnavailable):
                ledger.renew([row.token])
            with pytest.raises(LedgerUnavailable, match="password authentication failed"):
                ledger.renew([row.token])
            secret = "second"
            self.back(ledger, row)
        finally:
            ledger.close()
            admin.execute("DROP OWNED BY worker; DROP ROLE worker")

    def test_closed(self, opened: Open) -> None:
        ledger = opened()
        row = claim(ledger)
        ledger.close()
        with pytest.raises(LedgerUnavailable, match="closed"):
            ledger.done(row.token)

    def test_a_database_that_prefers_another_isolation_refuses_all_the_same(self, opened: Open, admin: Admin) -> None:
        """`serializable` would make an error of what must be a refusal."""
        prefer(admin, "default_transaction_isolation", "serializable")
        ledgers = [opened() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            for number in range(20):
                wanted = Claimed(JobId("shop", "exports", str(number)), None, "me", 0, b"", Counters())
                won = [pool.submit(ledger.claim, wanted) for ledger in ledgers]
                assert len([claimed for claimed in won if claimed.result() is not None]) == 1

    def test_leave_to_commit_is_on_disk_before_it_is_given(self, opened: Open, admin: Admin) -> None:
        """Even where commits are not: the server's log is flushed past the point that it had reached before."""
        prefer(admin, "synchronous_commit", "off")
        ledger = opened()
        (finding,) = ledger.findings()
        assert "synchronous_commit=off" in finding.what
        row = claim(ledger)
        ahead = 0
        for number in range(20):
            assert ledger.checkpoint(row.token, b"%d" % number)
            written, flushed = admin.execute(
                "SELECT pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()"
            ).fetchall()[0]
            ahead += written != flushed
            assert ledger.may_commit(row.token).granted
            assert admin.execute("SELECT pg_current_wal_flush_lsn() > %s", [written]).fetchall() == [(True,)]
        assert ahead > 0, "a checkpoint alone leaves it to later"
