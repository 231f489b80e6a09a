"""What libpq is told of a ledger's URL: TLS that verifies, time limits, and no password for anybody else."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from steadyworker.backends.opening import open_ledger
from steadyworker.config import resolve as config
from steadyworker.errors import ConfigError
from steadyworker.ledger.postgres.url import is_remote, server_address, tls_defaults


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """libpq reads its own variables."""
    for name in ("PGHOST", "PGHOSTADDR", "PGSSLMODE", "PGSSLROOTCERT", "PGPASSWORD", "PGSERVICE", "PGOPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGUSER", "you")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "roots.pem"))
    (tmp_path / "roots.pem").touch()


def parameters(url: str) -> dict[str, str]:
    return {name: str(value) for name, value in conninfo_to_dict(server_address(url, 10.0).conninfo).items()}


@pytest.mark.parametrize(
    ("parameters", "mode"),
    [
        ({}, None),
        ({"host": "localhost"}, None),
        ({"host": "127.0.0.2"}, None),
        ({"host": "::1"}, None),
        ({"host": "/run/postgresql"}, None),
        ({"host": "@abstract"}, None),
        ({"host": "db.example"}, "verify-full"),
        ({"host": "10.0.0.1"}, "verify-full"),
        ({"host": "localhost,db.example"}, "verify-full"),
        ({"hostaddr": "10.0.0.1"}, "verify-full"),
        ({"host": "localhost", "hostaddr": "10.0.0.1"}, "verify-full"),
        ({"host": "localhost.example"}, "verify-full"),
        ({"service": "ledger"}, "verify-full"),
        ({"host": "db.example", "sslmode": "disable"}, None),
        ({"service": "ledger", "sslmode": "require"}, None),
    ],
)
def test_tls_verifies_unless_the_server_is_here_or_the_url_asks_for_no_check(
    parameters: dict[str, str], mode: str | None
) -> None:
    assert tls_defaults(parameters).get("sslmode") == mode
    assert is_remote(parameters) == (mode is not None or "sslmode" in parameters)


def test_the_systems_authorities_are_trusted_unless_the_url_names_others(tmp_path: Path) -> None:
    assert parameters("postgresql://db.example/jobs")["sslrootcert"] == str(tmp_path / "roots.pem")
    named = parameters("postgresql://db.example/jobs?sslrootcert=/etc/ours.pem")
    assert (named["sslmode"], named["sslrootcert"]) == ("verify-full", "/etc/ours.pem")
    weaker = parameters("postgresql://db.example/jobs?sslmode=require")
    assert (weaker["sslmode"], "sslrootcert" in weaker) == ("require", False)


def test_libpqs_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.example")
    assert parameters("postgresql:///jobs")["sslmode"] == "verify-full"
    monkeypatch.setenv("PGSSLMODE", "require")
    assert "sslmode" not in parameters("postgresql:///jobs")
    monkeypatch.setenv("PGHOST", "localhost")
    monkeypatch.delenv("PGSSLMODE")
    assert "sslmode" not in parameters("postgresql:///jobs")


def test_a_server_that_anybody_can_pass_for_is_not_verified() -> None:
    assert server_address("postgresql://localhost/jobs", 10.0).verified
    assert server_address("postgresql://db.example/jobs", 10.0).verified
    assert server_address("postgresql://db.example/jobs?sslmode=verify-ca", 10.0).verified
    assert not server_address("postgresql://db.example/jobs?sslmode=require", 10.0).verified


def test_everything_has_a_time_limit_and_a_primary_is_wanted() -> None:
    known = parameters("postgresql://a,b/jobs?options=-csearch_path%3Dours")
    assert (known["connect_timeout"], known["tcp_user_timeout"], known["target_session_attrs"]) == (
        "2",
        "10000",
        "read-write",
    )
    assert known["options"] == "-csearch_path=ours", "a pooler would refuse the worker for any options of our own"
    assert "options" not in parameters("postgresql://a/jobs")
    assert known["application_name"].startswith("steadyworker/")


def test_the_settings_of_the_url_outrank_our_limits() -> None:
    known = parameters("postgresql://a/jobs?connect_timeout=9&application_name=exports&target_session_attrs=any")
    assert (known["connect_timeout"], known["application_name"], known["target_session_attrs"]) == (
        "9",
        "exports",
        "any",
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret@db.example:5433/jobs", "postgresql://me@db.example:5433/jobs"),
        ("postgres://me:s3cret@db.example/jobs?password=s3cret", "postgresql://me@db.example/jobs"),
        ("postgresql://a:1,b:2/jobs?user=me&password=s3cret", "postgresql://me@a:1,b:2/jobs"),
        ("postgresql://[fd00::1]:5433/jobs", "postgresql://you@[fd00::1]:5433/jobs"),
        ("postgresql:///jobs?host=/run/postgresql&sslpassword=s3cret", "postgresql://you@%2Frun%2Fpostgresql/jobs"),
        ("postgresql:///?service=ledger&passfile=s3cret", "postgresql://you@/ledger"),
    ],
)
def test_people_see_where_it_is_and_no_password(url: str, shown: str) -> None:
    target = server_address(url, 10.0)
    assert target.shown == shown
    assert "s3cret" not in repr(target)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret/x@db.example/jobs",
        "postgresql://me:s3cret%zz@db.example/jobs",
        "postgresql://me:5432/s3cret@db.example/jobs",
        "postgresql://me:s3@cret/x@db.example/jobs",
        "postgresql://[s3cret",
        "postgresql://",
    ],
)
def test_a_url_that_cannot_be_read_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="percent-encode") as raised:
        server_address(url, 10.0)
    assert "s3cret" not in "".join(traceback.format_exception(raised.value, chain=True)).replace(url, "")


def test_the_error_without_psycopg_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is imported when a URL names the ledger, and not before."""
    options = config.load({"ledger": "postgresql://db.example/jobs"}, {}, tmp_path)
    for name in ("ledger", "session", "url"):
        monkeypatch.delitem(sys.modules, f"steadyworker.ledger.postgres.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'steadyworker\[postgres\]'"):
        open_ledger(options)


@pytest.mark.parametrize(
    ("ledger", "said", "stops"),
    [
        ("postgresql://db.example/jobs", None, True),
        ("postgres://db.example/jobs", "finish", False),
        ("sqlite:ledger.db", None, False),
        ("sqlite:ledger.db", "stop", True),
    ],
)
def test_a_run_that_lost_its_lease_is_ended_where_another_host_may_take_it_over(
    ledger: str, said: str | None, stops: bool, tmp_path: Path
) -> None:
    options = config.load({"ledger": ledger, "on_ledger_loss": said}, {"HOME": str(tmp_path)}, tmp_path)
    assert options.stops_on_ledger_loss is stops
