"""The rows of the recipes: one merchant's payments in the SQLite file `shop.db`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from steadyworker.exports import RowExport


@dataclass
class PaymentRequest:
    merchant: str


def payments(merchant: str) -> RowExport:
    def rows(start: int) -> Iterator[tuple[object, ...]]:
        query = "SELECT id, currency, cents FROM payments WHERE merchant = ? ORDER BY id LIMIT -1 OFFSET ?"
        with closing(sqlite3.connect("shop.db")) as shop:
            yield from shop.execute(query, (merchant, start))

    return RowExport(rows, columns=("id", "currency", "cents"), parameters={"merchant": merchant})
