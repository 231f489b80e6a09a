"""Tables of databases, of PostgreSQL for Spark and DuckDB and of others for Spark; the plan of an export has the same class as the user's code."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from steadyworker.errors import ExportRejected
from steadyworker.names import is_loopback
from steadyworker.text.redaction import redact

if TYPE_CHECKING:
    _PathText = str | os.PathLike[str]
else:
    _PathText = str  # what msgspec finds in a plan, because `Jdbc` has made a text of each path

_QUERY = re.compile(r"(select|with|values|table)\b", re.IGNORECASE)
_PART = r'(?:\w[\w$]*|"(?:[^"]|"")+")'
_TABLE = re.compile(rf"{_PART}(?:\.{_PART})?")
# By their names in libpq, but `currentSchema`; other options can make the JDBC driver load classes or write files.
_OPTIONS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout", "currentSchema")
_DRIVERS: Mapping[str, str] = MappingProxyType(
    {
        "mysql": "com.mysql.cj.jdbc.Driver",
        "mariadb": "org.mariadb.jdbc.Driver",
    }
)
# An option such as `pwd`, `trustStorePassword`, `accessToken`, `apiKey` or Teradata's `LOGDATA`; and `user:password@`, or Oracle's `user/password@`.
_SECRET = re.compile(r"(pass|pwd|secret|token|credential|logdata)\w*\s*=|key(_?base64)?\s*=|[^:@]@|/.*@", re.IGNORECASE)
_OPTION = re.compile(
    r"[?;]|[^\w.%\s-][\w.%\s-]*="
)  # where the options of a URL of JDBC begin, whose separator only the driver knows


class _Named(msgspec.Struct, frozen=True):
    url: str
    table: str


class Jdbc(_Named, frozen=True, kw_only=True, tag="jdbc", tag_field="kind"):
    """
    A table, or a query, of PostgreSQL, which needs the extra `postgres`; for `SparkExport`, also of another database.

    All connections of an export see the same snapshot of a table of PostgreSQL.
    All tables of the same database of PostgreSQL in an export share one snapshot.
    Spark reads each range twice in the same snapshot, because a sort first samples its rows.

    Of another database, each read has its own moment, and the manifest's `snapshot` has `none` for the table.
    Rows that change meanwhile can be missing, or twice in the file; so read a table, or rows, that no longer change.
    A database that takes names in Spark's quotes for texts is refused.
    The driver turns the values into Java's; the jar of MariaDB's driver makes NULL of a zero date, and that of MySQL fails.
    A cancel waits for the database's response, at most for `statement_timeout`.

    Args:
        url: `postgresql://user@host:5432/database` (with `?sslmode=…`, `sslrootcert`, `sslcert`, `sslkey`,
            `connect_timeout`, `currentSchema`); never with a password.
            Without `sslmode`, a server on another host must show a certificate for its name (`verify-full`).
            The certificate must be signed by `sslrootcert`, or by an authority that the system and, for Spark, also Java trust.
            For Spark, `sslkey` is a key in PKCS-8 DER, which both libpq and the JDBC driver can read.
            The URL of another database is one of JDBC, like `jdbc:mysql://host/database`.
            Its options are the driver's own, with TLS among them, so only the worker's operator may choose the URL.
            `spark.jars` in `spark_conf` names the jar of its driver.
        table: The table's name, or a query for the database.
            Spark passes filters of the export's query to the database, so this query needs no formatted values.
        driver: The class of the JDBC driver, like `com.example.jdbc.Driver`; known for PostgreSQL, MySQL and MariaDB.
        partition_by: A column of integers, dates or timestamps, preferably with an index, that cuts the read into ranges.
            Spark reads as many ranges at once as it has cores, each range on its own connection.
            Without such a column, a single connection reads all rows.
            Another database than PostgreSQL needs whole numbers in it.
        partitions: The number of ranges; the default is one range for each 250,000 rows.
            PostgreSQL estimates their number, and another database counts them.
        user: The user for the login; a URL of PostgreSQL can have it instead.
        password_env: The worker's environment variable with the password.
        password_file: A file with the password, instead of `password_env`; the host reads the file when the job begins.
            One line end at the end of the file is ignored.
        schema: For PostgreSQL, columns and types that differ from the driver's, as in Spark's DDL: `"amount DECIMAL(20,4)"`.
            The export refuses a value with more digits after the point than its column has, and never rounds it.
            The export refuses an infinite date or timestamp of PostgreSQL, unless its column is read as `STRING`.
            If the database's own types allow such values, Spark's export searches for them in one extra pass.
        fetch_rows: The number of rows that the database returns at a time.
        statement_timeout: The time limit in seconds of one response: the first rows of a range, or its next rows.
            The export counts as stuck, at the earliest, when this time has passed without progress.

    Raises:
        ExportRejected: An argument is invalid; the message never repeats a value in the URL.
    """

    driver: str | None = None
    partition_by: str | None = None
    partitions: int | None = None
    user: str | None = None
    password_env: str | None = None
    password_file: _PathText | None = None
    schema: str | None = None
    fetch_rows: int = 10_000
    statement_timeout: float = 600.0

    def __post_init__(self) -> None:
        if self.url[:5].lower() == "jdbc:":
            self._check_jdbc()
        else:
            self._check_url()
        _ = self.relation
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
        if self.password_file is not None:  # the host can have another working directory
            msgspec.structs.force_setattr(self, "password_file", str(Path(self.password_file).absolute()))

    @property
    def place(self) -> str:
        """`host:port/database`; for another database than PostgreSQL, the URL up to its first option."""
        if self.driver:
            return _OPTION.split(self.url)[0]
        url = urlsplit(self.url)
        host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
        return f"{host}:{url.port or 5432}{url.path}"

    @property
    def options(self) -> dict[str, str]:
        """Options for the connection, such as `sslmode`; `sslrootcert` `system` means the authorities that the system trusts."""
        url = urlsplit(self.url)
        asked = dict(parse_qsl(url.query, keep_blank_values=True))
        if "sslmode" not in asked and not is_loopback(url.hostname or ""):
            asked = {"sslrootcert": "system", **asked, "sslmode": "verify-full"}
        return asked

    @property
    def relation(self) -> str:
        """The SQL text after FROM; raises ExportRejected if `table` is neither a name nor a query."""
        text = self.table.strip().rstrip(";").rstrip()
        if _QUERY.match(text):
            return f"({text}\n) source"  # on a separate line, because a query can end in a comment
        if not _TABLE.fullmatch(text):
            raise ExportRejected(
                f"Expected a table's name, like payments or billing.payments, or a query, got {self.table!r:.200}: "
                "quote a name with other characters, '\"my table\"'."
            )
        return text

    def _check_jdbc(self) -> None:
        """Raise ExportRejected if the URL of another database than PostgreSQL is invalid, or has an argument for PostgreSQL alone; note its driver."""
        scheme, kind = self.url.split(":")[:2]
        known = kind.lower() if kind.lower() in _DRIVERS else ""
        if kind.lower() == "postgresql":
            raise ExportRejected(
                "Expected PostgreSQL as postgresql://user@host:5432/database, got a URL of JDBC "
                "(it is not shown, because it can contain a password): write it in this form, without driver=."
            )
        if scheme != "jdbc" or known not in {"", kind}:
            begin = f"jdbc:{known}:" if known else "jdbc:"
            raise ExportRejected(
                f"Expected a URL of JDBC that begins with {begin}, got capitals there: write it in lower case."
            )
        driver = self.driver or _DRIVERS.get(kind)
        if driver is None:
            raise ExportRejected(
                "Expected driver= with the class of the database's JDBC driver, got none: name it, "
                f'like driver="com.example.jdbc.Driver"; it is known for {" and ".join(f"jdbc:{kind}:" for kind in _DRIVERS)} alone.'
            )
        msgspec.structs.force_setattr(self, "driver", driver)
        plain = unquote(self.url)  # a driver can decode the names of its options
        if _SECRET.search(plain) or redact(plain) != plain:
            raise ExportRejected(
                "Expected a URL without user and password, or another secret, got one with them: "
                "move them to user= and to password_env= or password_file=."
            )
        if self.schema is not None:
            raise ExportRejected(
                'Expected schema= only for PostgreSQL, got it for another database: cast in a query, Jdbc(url, "SELECT …").'
            )

    def _check_url(self) -> None:
        """Raise ExportRejected if the URL of PostgreSQL is invalid, or another driver is named; note its user."""
        if self.driver is not None:
            raise ExportRejected(
                "Expected driver= only for a URL that begins with jdbc:, got it for another: remove it, or write the URL of JDBC."
            )
        if self.url.startswith("sqlite:"):
            raise ExportRejected(
                "Expected postgresql://user@host:5432/database as the URL of a Jdbc table, got a SQLite file: "
                "export it with RowExport, whose rows are a cursor of sqlite3; it needs no Spark."
            )
        try:
            url = urlsplit(self.url)
            _ = url.port
        except ValueError:  # not re-raised, because its text has the URL
            url = urlsplit("")
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
        name = unquote(url.username) if url.username else self.user
        if self.user not in (None, name):
            raise ExportRejected("Expected the user in the URL or in user=, got two: remove one.")
        msgspec.structs.force_setattr(self, "user", name)
