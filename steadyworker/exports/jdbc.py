"""Tables of PostgreSQL, for Spark and for DuckDB: `Jdbc` is the class for users, and `Database` its checked form."""

from __future__ import annotations

import os
import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from steadyworker.errors import ExportRejected
from steadyworker.names import is_loopback

_QUERY = re.compile(r"(select|with|values|table)\b", re.IGNORECASE)
_PART = r'(?:\w[\w$]*|"(?:[^"]|"")+")'
_TABLE = re.compile(rf"{_PART}(?:\.{_PART})?")
# By their names in libpq, but `currentSchema`; other options can make the JDBC driver load classes or write files.
_OPTIONS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout", "currentSchema")


class Database(msgspec.Struct, frozen=True, kw_only=True, tag="database", tag_field="kind"):
    """
    A table of PostgreSQL (`Jdbc` explains), with the place of its password, but never with the password.

    Attributes:
        place: `host:port/database`.
        user: The user for the login; None means libpq's default.
        password_env: The environment variable with the password, or None.
        password_file: The file with the password, or None.
        options: Options of the URL, such as `sslmode`; the `sslrootcert` `system` means the authorities that the system trusts.
        relation: The SQL text after FROM.
        partition_by: The column whose values divide the read into ranges.
        partitions: The number of ranges; None means that the expected number of rows decides.
        schema: Columns with other types than the reader's own.
        fetch_rows: The number of rows in one response.
        statement_timeout: The time limit of one response, in seconds.
    """

    place: str
    user: str | None = None
    password_env: str | None = None
    password_file: str | None = None
    options: dict[str, str] = {}
    relation: str
    partition_by: str | None = None
    partitions: int | None = None
    schema: str | None = None
    fetch_rows: int
    statement_timeout: float


@dataclass(frozen=True, slots=True)
class Jdbc:
    """
    A table, or a query, of PostgreSQL, which needs the extra `postgres`.

    All connections of an export see the same snapshot of the table.
    All tables of the same database in an export share one snapshot.
    Spark reads each range twice in the same snapshot, because a sort first samples its rows.

    Args:
        url: `postgresql://user@host:5432/database` (with `?sslmode=…`, `sslrootcert`, `sslcert`, `sslkey`,
            `connect_timeout`, `currentSchema`); never with a password.
            Without `sslmode`, a server on another host must show a certificate for its name (`verify-full`).
            The certificate must be signed by `sslrootcert`, or by an authority that the system and, for Spark, also Java trust.
            For Spark, `sslkey` is a key in PKCS-8 DER, which both libpq and the JDBC driver can read.
        table: The table's name, or a query for the database.
            Spark passes filters of the export's query to the database, so this query needs no formatted values.
        partition_by: A column of integers, dates or timestamps, preferably with an index, that cuts the read into ranges.
            Spark reads as many ranges at once as it has cores, each range on its own connection.
            Without such a column, a single connection reads all rows.
        partitions: The number of ranges; the default is one range for each 250,000 rows that the database expects.
        password_env: The worker's environment variable with the password.
        password_file: A file with the password, instead of `password_env`; the host reads the file when the job begins.
            One line end at the end of the file is ignored.
        schema: Columns and types that differ from the driver's, as in Spark's DDL: `"amount DECIMAL(20,4)"`.
            The export refuses a value with more digits after the point than its column has, and never rounds it.
            The export refuses an infinite date or timestamp of PostgreSQL, unless its column is read as `STRING`.
            If the database's own types allow such values, Spark's export searches for them in one extra pass.
        fetch_rows: The number of rows that the database returns at a time.
        statement_timeout: The time limit in seconds of one response: the first rows of a range, or its next rows.
            The export counts as stuck, at the earliest, when this time has passed without progress.

    Raises:
        ExportRejected: An argument is invalid; the message never repeats a value in the URL.
    """

    url: str
    table: str
    _: KW_ONLY
    partition_by: str | None = None
    partitions: int | None = None
    password_env: str | None = None
    password_file: str | os.PathLike[str] | None = None
    schema: str | None = None
    fetch_rows: int = 10_000
    statement_timeout: float = 600.0

    def __post_init__(self) -> None:
        self.database()
        if self.partitions is not None and self.partitions < 1:
            raise ExportRejected(f"Expected at least one partition, got partitions={self.partitions}: set 1 or more.")
        if self.partitions is not None and self.partitions > 1 and not self.partition_by:
            raise ExportRejected(
                f"Expected partition_by for {self.partitions} partitions, got none: name a column of integers, dates or timestamps."
            )
        if self.fetch_rows < 1 or self.statement_timeout <= 0:
            raise ExportRejected(
                f"Expected fetch_rows and statement_timeout above 0, got {self.fetch_rows} and "
                f"{self.statement_timeout:g}: correct them."
            )
        if self.password_env and self.password_file:
            raise ExportRejected("Expected password_env or password_file, got both: remove one.")

    def database(self) -> Database:
        """
        Return the table in its checked form.

        Raises:
            ExportRejected: The URL or the table is invalid.
        """
        if self.url.startswith("sqlite:"):
            raise ExportRejected(
                "Expected postgresql://user@host:5432/database as the URL of a Jdbc table, got a SQLite file: "
                "export it with RowExport, whose rows are a cursor of sqlite3; it needs no Spark."
            )
        try:
            url = urlsplit(self.url)
            port = url.port or 5432
        except ValueError:  # not re-raised, because its text has the URL
            url, port = urlsplit(""), 0
        if url.scheme not in {"postgresql", "postgres"} or not url.hostname or not url.path.strip("/"):
            raise ExportRejected(
                "Expected postgresql://user@host:5432/database as the URL of a Jdbc table, got another "
                "(it is not shown, because it can contain a password): name one host and one database."
            )
        asked = dict(parse_qsl(url.query, keep_blank_values=True))
        if url.password is not None or any("passw" in name.lower() for name in asked):
            raise ExportRejected(
                "Expected a URL without a password, got one with a password: move it to password_env= or password_file=."
            )
        unknown = sorted(asked.keys() - set(_OPTIONS))
        if unknown:
            raise ExportRejected(
                f"Expected only the options {', '.join(_OPTIONS)} in the URL, got {', '.join(unknown)}: remove it."
            )
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        if "sslmode" not in asked and not is_loopback(url.hostname):
            asked = {"sslrootcert": "system", **asked, "sslmode": "verify-full"}
        user = unquote(url.username) if url.username else None
        return Database(
            place=f"{host}:{port}{url.path}",
            user=user,
            password_env=self.password_env,
            password_file=None if self.password_file is None else str(Path(self.password_file).absolute()),
            options=asked,
            relation=_relation(self.table),
            partition_by=self.partition_by,
            partitions=self.partitions,
            schema=self.schema,
            fetch_rows=self.fetch_rows,
            statement_timeout=self.statement_timeout,
        )


def _relation(table: str) -> str:
    """Return the SQL text after FROM."""
    text = table.strip().rstrip(";").rstrip()
    if _QUERY.match(text):
        return f"({text}\n) AS source"  # on a separate line, because a query can end in a comment
    if not _TABLE.fullmatch(text):
        raise ExportRejected(
            f"Expected a table's name, like payments or billing.payments, or a query, got {table!r:.200}: "
            "quote a name with other characters, '\"my table\"'."
        )
    return text
