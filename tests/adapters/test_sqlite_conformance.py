"""The embedded broker keeps the promises of every broker."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from steadyworker.adapter import Adapter, QueueSpec, Settings
from steadyworker.testing.conformance import AdapterSuite
from steadyworker_sqlite import SqliteAdapter


class TestSqliteAdapter(AdapterSuite):
    quiet = 0.1
    delay = 0.5

    def make_adapter(self, place: Path, spec: QueueSpec) -> SqliteAdapter:
        return SqliteAdapter(place / "broker.db", spec, Settings(max_body=1000), silence=3.0)

    def cut(self, adapter: Adapter) -> None:
        """Do what another consumer does to one that was silent too long."""
        assert isinstance(adapter, SqliteAdapter)
        with closing(sqlite3.connect(adapter.path, timeout=5, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE deliveries SET consumer = NULL")
            db.execute("DELETE FROM consumers")
            db.execute("COMMIT")
