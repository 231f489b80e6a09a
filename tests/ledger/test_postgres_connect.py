"""A PostgreSQL ledger's first call: what is refused with its remedy, what is waited for, and who can pass for the server."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import LiteralString
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from psycopg import sql

from steadyworker.errors import ConfigError, Finding, LedgerUnavailable
from steadyworker.ledger.postgres.ledger import PostgresLedger
from tests.brokers.postgres import Cluster
from tests.ledger.pgkit import JOB, Admin, Open, claim, prefer
from tests.support.stage import eventually


class TestAtTheFirstCall:
    """What no retry can heal is a ConfigError, with its remedy, and a finding of `check`; all else is waited for."""

    def refused(self, ledger: PostgresLedger, match: str) -> None:
        with pytest.raises(ConfigError, match=match):
            ledger.read(JOB)

        def said() -> list[Finding]:
            with suppress(LedgerUnavailable):  # in its back-off it says that it was not asked
                return [finding for finding in ledger.findings() if finding.level == "error"]
            return []

        (finding,) = eventually(said, "the finding")
        assert ledger.url in finding.what

    def test_a_wrong_password(self, database: str, opened: Open, caplog: pytest.LogCaptureFixture) -> None:
        """It is in no text that anybody may see: no error, none of its causes, no line of psycopg's own log."""
        caplog.set_level(logging.DEBUG)
        caplog.set_level(logging.DEBUG, "psycopg")
        secret = "c4nary/%@:? p"
        parts = urlsplit(database)
        wrong = parts._replace(
            netloc=f"{parts.username}:{quote(secret, safe='')}@{parts.hostname}:{parts.port}"
        ).geturl()
        ledger = opened(wrong)
        with pytest.raises(ConfigError, match="password authentication failed") as raised:
            ledger.read(JOB)
        texts = [ledger.url, repr(ledger._address), caplog.text]
        error: BaseException | None = raised.value
        while error is not None:
            texts += [str(error), repr(error)]
            error = error.__cause__ or error.__context__
        assert "c4nary" not in "\n".join(texts)
        assert "psycopg" in caplog.text

    def test_an_unknown_database(self, database: str, opened: Open) -> None:
        self.refused(opened(f"{database}_elsewhere"), "does not exist")

    def test_no_tls_where_it_is_wanted(self, database: str, opened: Open) -> None:
        self.refused(opened(f"{database}?sslmode=require"), "does not support SSL")

    def test_a_schema_that_is_not_there(self, database: str, opened: Open) -> None:
        self.refused(opened(f"{database}?options=-csearch_path%3Dnowhere"), "CREATE the schema")

    def test_no_right_to_make_tables(self, database: str, opened: Open, admin: Admin) -> None:
        admin.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
        parts = urlsplit(database)
        try:
            guest = parts._replace(netloc=f"guest:guest@{parts.hostname}:{parts.port}").geturl()
            self.refused(opened(guest), "GRANT this user")
        finally:
            admin.execute("DROP ROLE guest")

    @pytest.mark.parametrize(
        ("made", "text"),
        [
            (
                "SET schema = 6; ALTER TABLE steadyworker_meta DROP COLUMN made_by",
                "schema 7 to 8 at .*, got 6: finish its jobs with the version of SteadyWorker that made it",
            ),
            (
                "SET schema = 99, made_by = '7.1'",
                r"schema 8 at .*, got 99, of SteadyWorker 7\.1: install SteadyWorker 7\.1 or newer here; this is ",
            ),
        ],
        ids=["an old one", "a newer one"],
    )
    def test_another_schema(self, opened: Open, admin: Admin, made: LiteralString, text: str) -> None:
        claim(opened())
        admin.execute(f"UPDATE steadyworker_meta {made}")
        self.refused(opened(), text)

    def test_a_database_that_cannot_hold_every_text(self, database: str, opened: Open, admin: Admin) -> None:
        admin.execute("CREATE DATABASE narrow ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        try:
            with closing(opened(urlsplit(database)._replace(path="/narrow").geturl())) as ledger:
                self.refused(ledger, "encoding UTF8, got LATIN1")
        finally:
            admin.execute("DROP DATABASE narrow")

    def test_nobody_there(self, opened: Open) -> None:
        """A port that nobody listens on: waited for, and not asked again at once."""
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            ledger = opened(f"postgresql://127.0.0.1:{nobody.getsockname()[1]}/db")
            for _ in range(3):
                with pytest.raises(LedgerUnavailable, match="check that the server runs"):
                    ledger.read(JOB)

    def test_nobody_speaks(self, opened: Open) -> None:
        """A handshake that nobody answers ends with half a call, or libpq's two seconds."""
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            ledger = opened(f"postgresql://127.0.0.1:{silent.getsockname()[1]}/db")
            began = time.monotonic()
            with pytest.raises(LedgerUnavailable, match="timeout"):
                ledger.read(JOB)
            assert time.monotonic() - began < 10

    def test_a_standby(self, opened: Open, admin: Admin) -> None:
        """A server that only reads is none; the primary may be back any moment."""
        prefer(admin, "default_transaction_read_only", "on")
        with pytest.raises(LedgerUnavailable, match=r"read-only.*primary"):
            opened().read(JOB)

    def test_a_server_that_is_full(self, database: str, opened: Open, admin: Admin) -> None:
        """Others may leave; a person is told what to raise."""
        admin.execute("CREATE ROLE lonely LOGIN PASSWORD 'lonely' CONNECTION LIMIT 0")
        parts = urlsplit(database)
        try:
            lonely = parts._replace(netloc=f"lonely:lonely@{parts.hostname}:{parts.port}").geturl()
            with pytest.raises(LedgerUnavailable, match="raise max_connections"):
                opened(lonely).read(JOB)
        finally:
            admin.execute("DROP ROLE lonely")

    def test_many_that_are_first_make_one_ledger(self, opened: Open) -> None:
        ledgers = [opened() for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(PostgresLedger.ledger_id, ledgers))) == 1


class TestTls:
    """A server elsewhere must show a certificate for its name, signed by an authority that the system trusts."""

    @pytest.fixture
    def far(self, postgres_cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Callable[[str], str]]:
        """The URL of the server under another name, which is no loopback; its certificate is for `db.example`."""
        parts = urlsplit(database)
        login, _, place = parts.netloc.rpartition("@")
        port = place.rpartition(":")[2]
        with postgres_cluster.tls("db.example", tmp_path / "roots.pem"):
            yield lambda name: parts._replace(netloc=f"{login}@{name}:{port}", query="hostaddr=127.0.0.1").geturl()

    def test_who_shows_it_is_welcome(
        self, far: Callable[[str], str], opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "roots.pem"))
        ledger = opened(far("db.example"))
        assert ledger._fetch("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", {}) == [(True,)]
        assert list(ledger.findings()) == []

    def test_who_does_not_is_refused(
        self, far: Callable[[str], str], opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another name, or an authority that nobody trusts; a URL that says so talks to him all the same, and is warned."""
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "roots.pem"))
        with pytest.raises(ConfigError, match="does not match host name"):
            opened(far("other.example")).read(JOB)
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(ConfigError, match="certificate verify failed"):
            opened(far("db.example")).read(JOB)
        trusting = opened(far("other.example") + "&sslmode=require")
        claim(trusting)
        (finding,) = trusting.findings()
        assert "TLS does not verify" in finding.what


SHIFTED = """
    CREATE SCHEMA shifted;
    CREATE FUNCTION shifted.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
        'SELECT pg_catalog.clock_timestamp() + CASE WHEN pg_is_in_recovery() THEN interval ''1 minute'' ELSE interval ''0'' END'
"""
"""A clock that is ahead at the stand-by only; both servers of the test are on one machine, so that their real clocks agree."""


def test_check_compares_the_clocks_of_primary_and_standby(pair: tuple[Cluster, Cluster], opened: Open) -> None:
    primary, standby = pair
    url = primary.add_database()
    both = url.replace(f":{primary.port}/", f":{primary.port},127.0.0.1:{standby.port}/")
    assert opened(both).findings() == []
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(SHIFTED)
        name = sql.Identifier(urlsplit(url).path.removeprefix("/"))
        admin.execute(sql.SQL("ALTER DATABASE {} SET search_path = public, shifted, pg_catalog").format(name))
    (finding,) = opened(both).findings()
    assert (finding.level, finding.id) == ("warning", "ledger.clocks")
    assert f"got 127.0.0.1:{standby.port} 60 s ahead of 127.0.0.1:{primary.port}" in finding.what
    assert opened(url).findings() == [], "one host has one clock"
    standby.kill()
    assert opened(both).findings() == [], "a host that does not respond is left out"
