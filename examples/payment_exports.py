"""
A worker that exports one merchant's payments into one CSV file, on a disk or in a bucket: copy it, and adapt it.

::

    pip install '.[spark,postgres]'           # in a clone: Arrow reads Parquet and CSV, Spark runs large exports
    export PAYMENTS_SOURCE=data/payments      # Parquet or CSV, a folder or a file; or sqlite:shop.db#payments;
                                              # or postgresql://reader@db/shop#payments, its password in PGPASSWORD
    steadyworker send   payment_exports:PaymentExports '{"merchant": "harbour-books"}' --key harbour-books-2025
    steadyworker run    payment_exports:PaymentExports
    steadyworker verify exports/harbour-books-2025.csv

The job's own process streams exports of up to 100,000 rows; it saves its position, and continues there after a crash.
Spark runs larger exports.
Either way the file is complete or absent, and a manifest beside it has its totals by currency and status.
The job's result is the file's path; in a bucket it is a link by which a browser reads the object, with the link's end.

| variable | names | default |
|---|---|---|
| PAYMENTS_SOURCE | the source of the payments, unless the job's payload names one | data/payments |
| PAYMENTS_OUT | the folder of the exported files, or `s3://bucket/folder` (`pip install '.[s3]'`) | exports |
| MERCHANT_COLUMN | the column of the merchant | merchant |
| AMOUNT_COLUMN | the column that is summed | amount |
| ORDER_BY | the columns to sort by; together they must be unique | paid_at,id |
| TOTALS_BY | the columns by which totals are grouped | currency,status |
| PARTITION_BY | a column with a number, date or timestamp: Spark reads its ranges from PostgreSQL in parallel | |

A sender may name any source that this worker can read; remove `source` from the payload if you do not want that.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as pa_dataset
from psycopg import sql

from steadyworker import Job, Reject, Worker
from steadyworker.exports import RowExport, SparkExport, check_files, download_link
from steadyworker.exports.spark import Files, Jdbc

SPARK_ABOVE = 100_000
LINK_LASTS = "24h"  # at least as long as `new_exports` in web_exports.py returns the same key
TEXTS = {psycopg.adapters.types[name].oid for name in ("text", "varchar", "bpchar")}


@dataclass
class ExportRequest:
    """The payload of a message."""

    merchant: str
    source: str | None = None


class PaymentExports(Worker[ExportRequest]):
    queue = "payment-exports"
    time_limit = 3 * 3600

    def setup(self) -> None:
        self.names = Names.of(os.environ)
        self.place = os.environ.get("PAYMENTS_SOURCE", "data/payments")
        self.out = os.environ.get("PAYMENTS_OUT", "exports").rstrip("/")

    def handle(self, job: Job[ExportRequest]) -> None:
        merchant = job.payload.merchant
        source = self.source(job.payload.source or self.place)

        count = source.count(merchant)
        if count == 0:
            raise Reject(
                f"no payments of {merchant!r}"
            )  # a dead letter at once, because a retry would find none either
        heavy = source.query(merchant) if count > SPARK_ABOVE else None

        def rows(start: int) -> Iterable[Any]:
            job.log.info("reading", merchant=merchant, first_row=start)
            return source.rows(merchant, start)

        light = RowExport(
            rows,
            columns=source.columns,
            description="a merchant's payments",
            # If the count has changed, the source has changed: a later run then does not use the saved position.
            parameters={"merchant": merchant, "payments": count},
            expected=count,
            save_rows=5_000,
        )
        to = f"{self.out}/{job.name}.csv"
        job.export(heavy or light, to=to, totals={self.names.amount: "sum"}, by=self.names.by)
        if to.startswith("s3://"):
            link = download_link(to, LINK_LASTS)
            job.result({"url": link.url, "ends_at": link.ends_at})
        else:
            job.result({"file": str(Path(to).absolute())})

    def source(self, place: str) -> Source:
        """Return the source at this place; if it does not fit, the job is a dead letter, which can be replayed later."""
        if place.startswith("sqlite:"):
            path, _, table = place.removeprefix("sqlite:").partition("#")
            source: Source = SqliteTable(Path(path), table or "payments", self.names)
        elif place.startswith("postgresql:"):
            url, _, table = place.partition("#")
            if urlsplit(url).password is not None:  # reasons and logs repeat the place
                raise Reject("expected the password of the database in PGPASSWORD, got it in its URL")
            source = PostgresTable(url, table or "payments", self.names)
        else:
            source = PaymentFiles(Path(place), self.names)
        if missing := self.names.needed - set(source.columns):
            raise Reject(
                f"expected columns {', '.join(sorted(missing))} in {place}, got {', '.join(source.columns) or 'none'}"
            )
        return source


# --- sources of payments ---


@dataclass(frozen=True)
class Names:
    """The names of the columns."""

    merchant: str
    amount: str
    order_by: tuple[str, ...]
    by: tuple[str, ...]
    partition_by: str | None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Names:
        return cls(
            environ.get("MERCHANT_COLUMN", "merchant"),
            environ.get("AMOUNT_COLUMN", "amount"),
            tuple(environ.get("ORDER_BY", "paid_at,id").split(",")),
            tuple(environ.get("TOTALS_BY", "currency,status").split(",")),
            environ.get("PARTITION_BY") or None,
        )

    @property
    def needed(self) -> set[str]:
        return {self.merchant, self.amount, *self.order_by, *self.by}


class Source(Protocol):
    """Payments of one merchant at a time, always in the same order, so that a saved position stays valid."""

    columns: tuple[str, ...]

    def count(self, merchant: str) -> int: ...

    def rows(self, merchant: str, start: int) -> Iterable[Any]: ...

    def query(self, merchant: str) -> SparkExport | None: ...


class PaymentFiles:
    """Parquet or CSV: one file, or a folder with folders like `month=2025-03` in it."""

    def __init__(self, path: Path, names: Names) -> None:
        self._path, self._names = path, names
        check_files(path)  # a table of Delta, Iceberg or Hudi would be read with its deleted rows
        first = next((file for file in sorted([path, *path.rglob("*")]) if file.suffix in {".csv", ".parquet"}), None)
        if first is None:
            raise Reject(f"expected .parquet or .csv files, got none at {path}")
        self._schema: str | None = None
        if first.suffix == ".parquet":
            self._data = pa_dataset.dataset(path, format="parquet")
        else:
            # CSV has no types: amounts become decimals, never floats, and text stays as it is ("007" too).
            header = pa_dataset.dataset(first, format="csv").schema.names
            money = {names.amount: pa.decimal128(18, 2)}
            types = {name: money.get(name, pa.string()) for name in header}
            convert = pa_csv.ConvertOptions(
                column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
            )
            form = pa_dataset.CsvFileFormat(convert_options=convert)
            self._data = pa_dataset.dataset(path, schema=pa.schema(types), format=form)
            self._schema = ", ".join(
                f"{quoted(name)} {'DECIMAL(18,2)' if name in money else 'STRING'}" for name in header
            )
        self.columns: tuple[str, ...] = tuple(self._data.schema.names)

    def count(self, merchant: str) -> int:
        return int(self._data.count_rows(filter=self._of(merchant)))  # Parquet's statistics let it skip most files

    def rows(self, merchant: str, start: int) -> Iterator[Any]:
        # At most `SPARK_ABOVE` rows fit into memory, where they are sorted as Spark sorts them: NULL first.
        table = self._data.to_table(filter=self._of(merchant))
        order = [(name, "ascending", "at_start") for name in self._names.order_by]
        yield from table.sort_by(order).slice(start).to_batches(max_chunksize=1_000)

    def query(self, merchant: str) -> SparkExport:
        return by_spark(Files(self._path, schema=self._schema), self.columns, self._names, merchant)

    def _of(self, merchant: str) -> Any:
        return pa_dataset.field(self._names.merchant) == merchant


class SqliteTable:
    """A table in a SQLite file; always streamed, because Spark reads a file on this machine no faster."""

    def __init__(self, path: Path, table: str, names: Names) -> None:
        self._path, self._names = path, names
        self._from = f"FROM {quoted(table)} WHERE {quoted(names.merchant)} = ?"
        with closing(self._connected()) as db:
            self.columns: tuple[str, ...] = tuple(
                name for _, name, *_ in db.execute(f"PRAGMA table_info({quoted(table)})")
            )

    def count(self, merchant: str) -> int:
        with closing(self._connected()) as db:
            return int(db.execute(f"SELECT count(*) {self._from}", (merchant,)).fetchone()[0])

    def rows(self, merchant: str, start: int) -> Iterator[Any]:
        columns = ", ".join(map(quoted, self.columns))
        order = ", ".join(map(quoted, self._names.order_by))
        amount = self.columns.index(self._names.amount)
        sql = f"SELECT {columns} {self._from} ORDER BY {order} LIMIT -1 OFFSET ?"
        with closing(self._connected()) as db:
            for row in db.execute(sql, (merchant, start)):
                # SQLite has no decimals; this conversion keeps totals exact.
                exact = None if row[amount] is None else Decimal(str(row[amount]))
                yield (*row[:amount], exact, *row[amount + 1 :])

    def query(self, merchant: str) -> None:  # noqa: ARG002 - see above
        return None

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{quote(str(self._path.resolve()))}?mode=ro", uri=True)


class PostgresTable:
    """A table in PostgreSQL; streaming and Spark both read its password, if any, from PGPASSWORD."""

    def __init__(self, url: str, table: str, names: Names) -> None:
        self._url, self._table, self._names = url, table, names
        self._from = sql.SQL("FROM {} WHERE {} = %s").format(
            sql.Identifier(*table.split(".")), sql.Identifier(names.merchant)
        )
        with psycopg.connect(url) as db:
            seen = db.execute(sql.SQL("SELECT * {} LIMIT 0").format(self._from), ("",))
            self.columns: tuple[str, ...] = tuple(column.name for column in seen.description or ())
            self._texts = {column.name for column in seen.description or () if column.type_code in TEXTS}

    def count(self, merchant: str) -> int:
        with psycopg.connect(self._url) as db:
            (found,) = db.execute(sql.SQL("SELECT count(*) {}").format(self._from), (merchant,)).fetchall()
            return int(found[0])

    def rows(self, merchant: str, start: int) -> Iterator[Any]:
        columns = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        order = sql.SQL(", ").join(
            sql.SQL("{}{} NULLS FIRST").format(sql.Identifier(name), self._as_bytes(name))
            for name in self._names.order_by
        )
        ordered = sql.SQL("SELECT {} {} ORDER BY {} OFFSET %s").format(columns, self._from, order)
        with (
            psycopg.connect(self._url) as db,
            db.cursor("payments") as cursor,
        ):  # a named cursor: the rows stay on the server
            yield from cursor.execute(ordered, (merchant, start))

    def _as_bytes(self, name: str) -> sql.SQL:
        """Return the collation that sorts text as Spark does, in any language of the database."""
        return sql.SQL(' COLLATE "C"' if name in self._texts else "")

    def query(self, merchant: str) -> SparkExport:
        password_env = "PGPASSWORD" if "PGPASSWORD" in os.environ else None
        table = Jdbc(self._url, self._table, partition_by=self._names.partition_by, password_env=password_env)
        return by_spark(table, self.columns, self._names, merchant)


def by_spark(table: Files | Jdbc, columns: Iterable[str], names: Names, merchant: str) -> SparkExport:
    """Return an export of the same rows in the same order, by Spark."""
    return SparkExport(
        f"SELECT {', '.join(map(quoted, columns))} FROM payments WHERE {quoted(names.merchant)} = :merchant",  # noqa: S608 - names are quoted
        tables={"payments": table},
        params={"merchant": merchant},
        order_by=names.order_by,
    )


def quoted(name: str) -> str:
    """Return a column's name, quoted for a query; Spark and SQLite both accept backticks."""
    return "`" + name.replace("`", "``") + "`"
