"""
A secret that jobs, senders, people and URLs bring in: which columns of the ledger have it, and that nothing else shows it.

The ledger keeps what is the user's own data: the message, its result, and the checkpoint.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from steadyworker import Client
from steadyworker.ledger.base import State
from steadyworker.ledger.facts import Action
from tests.brokers.fixtures import NEWEST
from tests.brokers.place import Place
from tests.faults.proxy import Proxy
from tests.fleet.kit import Fleet
from tests.fleet.screens import screen, steadyworker
from tests.support.probes import free_address, probe
from tests.support.stage import eventually

CANARY = "canary-2f6c9a1b"
TEXT = f"token={CANARY} at amqp://ann:{CANARY}@broker/"
KEPT = {
    ("messages", "body"),
    ("messages", "facts"),
    ("results", "value"),
    ("jobs", "checkpoint"),
}
"""The columns that may have a secret, because they keep the user's own data; screens show none of it unredacted."""
ENDS = {
    "done": State.DONE,
    "fails": State.DEAD,
    "rejected": State.DEAD,
    "crashes": State.DEAD,
    "waits": State.MOVED,
    "snoozes": State.MOVED,
    "runs": State.DEAD,
}
"""What jobs do, with the state in which they end; a person cancels the one that runs."""
PLACES = [
    pytest.param(kind, ledger, worker, id=f"{kind}-{ledger}-{worker}", marks=[] if soon else [pytest.mark.slow])
    for kind, ledger, worker, soon in (
        (NEWEST, "postgres", "Leaky", True),
        ("artemis", "sqlite", "LeakyThread", True),
        ("3.10", "sqlite", "Leaky", False),
        ("classic", "postgres", "Leaky", False),
        ("rocketmq4", "sqlite", "Leaky", False),
        ("rocketmq5", "postgres", "Leaky", False),
    )
]


@pytest.mark.parametrize(("place_kind", "ledger_kind", "worker"), PLACES, indirect=["place_kind"])
def test_no_table_metric_log_screen_or_dead_letter_has_a_secret(
    fleet: Fleet, place: Place, database: str, worker: str
) -> None:
    ends = {key: state for key, state in ENDS.items() if key != "crashes" or worker == "Leaky"}
    with Client(**fleet.urls) as client:
        for key in ends:
            client.send(fleet.queue, {"how": key, "password": CANARY}, key=key, headers={"x-api-key": CANARY})
    health = free_address()
    with Proxy(place.address()) as proxy:
        process = fleet.worker(
            f"tests.fleet.leaky_jobs:{worker}",
            broker=place.url(through=proxy),
            health=health,
            concurrency=2,
        )
        for key, state in ends.items():
            if key != "runs":
                fleet.reaches(fleet.queue, state, key)
        fleet.notes("starts", 1)
        if fleet.redelivers_at_once:  # a client of RocketMQ opens a new connection for its next question
            link_breaks(fleet, proxy)
        people(fleet)
        fleet.reaches(fleet.queue, ends["runs"], "runs")
        fleet.notes("dead", len(ends) - 4)
        shown = {
            "metrics": probe(health, "metrics")[1],
            "readyz": probe(health, "readyz")[1],
            **screens(fleet, [*ends]),
        }
        process.terminate()
        process.ended(0)
    shown["log"] = process.log.read_text()
    shown["dead letters"] = repr(
        [{**message.headers, "x-api-key": ""} for message in place.drain() if message.queue != fleet.queue]
    )

    assert "steadyworker_attempts_total{" in shown["metrics"]
    assert shown["dead letters"].count("x-api-key") >= sum(state is State.DEAD for state in ends.values())
    secrets = [CANARY, *passwords(place.url(), database)]
    assert [(what, secret) for what, text in shown.items() for secret in secrets if secret in text] == []
    found = {secret: {column for column, value in cells(database) if secret in value} for secret in secrets}
    assert found == {secret: KEPT if secret == CANARY else set() for secret in secrets}
    for key in ends:
        attempts = [
            each for row, _ in fleet.ledger.jobs() if row.id.key == key for each in fleet.ledger.facts.attempts(row.id)
        ]
        assert attempts
        assert CANARY not in repr(attempts)


def link_breaks(fleet: Fleet, proxy: Proxy) -> None:
    """Cut the connection, and wait until the ledger has the next one."""

    def links() -> list[str]:
        events = fleet.ledger.facts.link_events(0.0)
        return [each.event for each in events if each.event in ("connected", "lost")]

    proxy.cut()
    again = ["connected", "lost", "connected"]
    eventually(lambda: links() == again, "a new link", report=lambda: f"{links()}\n{fleet.logs()}")


def people(fleet: Fleet) -> None:
    """Do what people do, with a secret in each text that they give."""
    assert steadyworker(fleet, "cancel", fleet.queue, "runs", "--reason", TEXT).exit_code == 0
    assert steadyworker(fleet, "pause", fleet.queue, "--reason", TEXT).exit_code == 0
    ((namespace, queue),) = fleet.ledger.bindings()
    fleet.ledger.facts.act(Action(TEXT, "retry", namespace, queue, ("waits",), 1, TEXT))
    fleet.ledger.facts.command("nobody", "quiet", TEXT)


def screens(fleet: Fleet, keys: list[str]) -> dict[str, str]:
    """Return each screen, for people and as JSON."""
    queue = fleet.queue
    verbs = [
        "jobs",
        "queues",
        "workers",
        "actions",
        f"dead list {queue}",
        f"dead show {queue}",
        *(f"show {queue} {key}" for key in keys),
    ]
    plain = {verb: screen(fleet, *verb.split()) for verb in verbs}
    verbose = {
        f"{verb} -v": screen(fleet, *verb.split(), "-v") for verb in verbs if "dead" not in verb and verb != "actions"
    }
    return {**plain, **verbose, **{f"{verb} --json": screen(fleet, *verb.split(), "--json") for verb in verbs}}


def passwords(*urls: str) -> list[str]:
    """Return the passwords in these URLs, but for those that are words, such as a broker's default."""
    found = [urlsplit(url).password for url in urls]
    return [password for password in found if password and len(password) >= 12]


def cells(database: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield each value of each table of the ledger, as text, with the names of its table and column."""
    tables = of_sqlite(database) if database.startswith("sqlite:") else of_postgres(database)
    for table, names, rows in tables:
        for row in rows:
            yield from (((table, name), repr(value)) for name, value in zip(names, row, strict=True))


Table = tuple[str, list[str], list[tuple[Any, ...]]]
"""The name of a table, the names of its columns, and its rows."""


def of_sqlite(database: str) -> Iterator[Table]:
    with closing(sqlite3.connect(database.removeprefix("sqlite:"))) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            cursor = db.execute(f"SELECT * FROM {table}")
            yield table, [column[0] for column in cursor.description], cursor.fetchall()


def of_postgres(database: str) -> Iterator[Table]:
    with psycopg.connect(database) as connection:
        tables = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'steadyworker%'"
        for (table,) in connection.execute(tables).fetchall():
            cursor = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
            names = [column.name for column in cursor.description or ()]
            yield table.removeprefix("steadyworker_"), names, cursor.fetchall()
