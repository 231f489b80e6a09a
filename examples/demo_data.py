"""
Three million payments, the same in every run, as Parquet files with a folder for each month of 2025.

Merchants differ in size, as in reality: the biggest has two million payments, most have some hundreds.
Most payments are in euros, refunds are negative, and the notes contain text that breaks careless CSV writers.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset as pa_dataset

PAYMENTS = 3_000_000
BIGGEST, MIDDLE, SMALL, TINY = "grand-bazaar", "harbour-books", "villa-rosa", "atelier-ines"
SIZES = {BIGGEST: 2_000_000, MIDDLE: 60_000, SMALL: 2_400, TINY: 37}

pc: Any = pyarrow.compute  # its functions are created at import, so that no type checker sees them

_OTHERS = 800
_NEW_YEAR, _YEAR = 1_735_689_600, 365 * 86_400  # 2025, in UTC
_CURRENCIES = ("EUR", "EUR", "EUR", "EUR", "EUR", "EUR", "USD", "USD", "GBP", "CHF")
_METHODS = ("card", "card", "card", "wallet", "transfer")
_NOTES = ("", "", "thanks!", "table 4, two people", 'for "Ada"', "=1+1", "übrig & mehr", "two\nlines", "0017", "gift")
_REFUNDED, _FAILED = 0.04, 0.06  # of all payments; the second one includes the first


def make_payments(folder: Path) -> None:
    """Write the payments into this folder."""
    merchant = _merchants()
    count = len(merchant)
    number = pa.array(range(count), pa.int64())
    luck = _random(count, seed=1)
    refunded, failed = pc.less(luck, _REFUNDED), pc.less(luck, _FAILED)
    second = pc.add(_NEW_YEAR, pc.divide(pc.multiply(number, _YEAR), count))
    # Skewed like real amounts: from cents to four digits, with a middle of about 35.
    cents = pc.cast(pc.round(pc.exp(pc.add(5.0, pc.multiply(6.3, _random(count, seed=2))))), pa.int64())
    signed = pc.if_else(refunded, pc.negate(cents), cents)
    month = pc.strftime(pc.cast(second, pa.timestamp("s")), format="%Y-%m")
    payments = pa.table(
        {
            "id": pc.add(number, 1),
            "merchant": merchant,
            "paid_at": pc.cast(pc.cast(second, pa.timestamp("s", tz="UTC")), pa.timestamp("us", tz="UTC")),
            "amount": _money(signed),
            "currency": _drawn(_CURRENCIES, count, seed=3),
            "status": pc.if_else(refunded, "refunded", pc.if_else(failed, "failed", "captured")),
            "method": _drawn(_METHODS, count, seed=4),
            "note": _drawn(_NOTES, count, seed=5),
            "month": month,
        }
    )
    pa_dataset.write_dataset(
        payments,
        folder,
        format="parquet",
        partitioning=pa_dataset.partitioning(pa.schema([("month", pa.string())]), flavor="hive"),
        existing_data_behavior="delete_matching",
    )


def _merchants() -> Any:
    """
    Return the merchant of each payment, shuffled.

    Named merchants have their own sizes; the sizes of the others follow Zipf's law.
    """
    left = PAYMENTS - sum(SIZES.values())
    harmonic = sum(1 / rank for rank in range(1, _OTHERS + 1))
    others = {f"shop-{rank:03}": int(left / rank / harmonic) for rank in range(1, _OTHERS + 1)}
    others["shop-001"] += left - sum(others.values())
    names = pa.concat_arrays([pa.repeat(name, size) for name, size in {**SIZES, **others}.items()])
    return names.take(pc.sort_indices(_random(len(names), seed=0)))


def _money(cents: Any) -> Any:
    return pc.cast(pc.multiply(pc.cast(cents, pa.decimal128(19, 0)), pa.scalar(Decimal("0.01"))), pa.decimal128(12, 2))


def _drawn(values: tuple[str, ...], count: int, seed: int) -> Any:
    places = pc.cast(pc.floor(pc.multiply(_random(count, seed), len(values))), pa.int8())
    return pa.array(values).take(places)


def _random(count: int, seed: int) -> Any:
    return pc.random(count, initializer=seed)
