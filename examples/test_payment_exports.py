"""
Tests of a Worker: `run_one` runs one job in this thread, `harness` runs a whole worker process with a fake clock.

    pytest test_payment_exports.py
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from payment_exports import ExportRequest, PaymentExports

from steadyworker.exports import verify
from steadyworker.outcome import Done, Rejected
from steadyworker.testing import run_one
from steadyworker.testing.plugin import MakeHarness

PAYMENTS = 10


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a small shop's payments to a SQLite file; the exports go to the same folder."""
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute(
            "CREATE TABLE payments (id INTEGER, merchant TEXT, paid_at TEXT, amount TEXT, currency TEXT, status TEXT)"
        )
        db.executemany(
            "INSERT INTO payments VALUES (?, ?, '2025-03-01', ?, 'EUR', 'captured')",
            [(number, "harbour-books", f"{number}.10") for number in range(1, PAYMENTS + 1)],
        )
    db.close()
    monkeypatch.setenv("PAYMENTS_SOURCE", f"sqlite:{tmp_path / 'shop.db'}#payments")
    monkeypatch.setenv("PAYMENTS_OUT", str(tmp_path))
    return tmp_path


def test_a_file_and_its_totals(shop: Path) -> None:
    ran = run_one(PaymentExports, ExportRequest("harbour-books"), key="march")
    assert isinstance(ran.outcome, Done)
    assert ran.result == {"file": str(shop / "march.csv")}
    manifest = verify(shop / "march.csv")
    assert manifest.rows == PAYMENTS
    assert manifest.totals[0].sums == {"amount": "56.00"}


def test_a_merchant_without_payments_is_a_dead_letter_at_once(shop: Path) -> None:
    ran = run_one(PaymentExports, ExportRequest("nobody"))
    assert ran.outcome == Rejected("no payments of 'nobody'")
    assert list(shop.glob("*.csv")) == []


def test_a_dropped_connection_does_not_start_the_export_again(shop: Path, harness: MakeHarness) -> None:
    h = harness(PaymentExports)
    key = h.send(PaymentExports, ExportRequest("harbour-books"))
    h.wait(key, until="started")
    h.drop_connection()
    h.wait(key)
    assert h.starts(key) == 1
    assert verify(shop / f"{key}.csv").rows == PAYMENTS


def test_a_second_message_with_the_same_key_is_answered_from_the_record(shop: Path, harness: MakeHarness) -> None:
    h = harness(PaymentExports)
    for _ in range(2):
        h.send(PaymentExports, ExportRequest("harbour-books"), key="march")
        h.wait("march")
    assert h.starts("march") == 1
    assert len(list(shop.glob("*.csv"))) == 1
