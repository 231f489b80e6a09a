"""What a query may read out of a database, as a user names it: `Jdbc`, and as the host gets it: `protocol.Database`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import parse_qsl, unquote, urlsplit

from steadyworker.errors import ExportError
from steadyworker.exports.spark.protocol import Database

_QUERY = re.compile(r"(select|with|values|table)\b", re.IGNORECASE)
_PART = r'(?:\w[\w$]*|"(?:[^"]|"")+")'
_TABLE = re.compile(rf"{_PART}(?:\.{_PART})?")
# libpq's name to the driver's: the others of its properties can make it load classes or write files.
_PROPERTIES: Mapping[str, str] = MappingProxyType(
    {
        "sslmode": "sslmode",
        "sslrootcert": "sslrootcert",
        "sslcert": "sslcert",
        "sslkey": "sslkey",
        "connect_timeout": "connectTimeout",
        "currentSchema": "currentSchema",
    }
)
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Jdbc:
    """
    A table, or a query, of PostgreSQL or SQLite.

    However many connections read it, they all see one moment: PostgreSQL's in an exported snapshot, which all tables of
    the same database in an export share; of SQLite's file the host makes a copy beside the export's parts, in one read
    transaction, which keeps no writer waiting longer than the copy takes.
    A sort looks at its rows before it begins, so that each range is asked for twice, in that same moment: first for the sort
    column alone, where that is no text and no float, and nothing but filters and small tables stands between.

    Args:
        url: `postgresql://user@host:5432/database` (with `?sslmode=…`, `sslrootcert`, `sslcert`, `sslkey`,
            `connect_timeout`, `currentSchema`), or `sqlite:PATH`; never with a password.
            Without `sslmode` a server on another host must show a certificate for its name (`verify-full`), signed by
            `sslrootcert` or by one of those that Java trusts.
        table: Its name, or a query for the database.  What the export's own query filters by reaches the database, so no
            value has to be formatted into this one.
        partition_by: A column of integers, dates or timestamps, best one with an index, that cuts the read into ranges;
            as many are read at once as Spark has cores, each by a connection of its own.  Without one a single connection reads.
        partitions: How many ranges; by default one per 250,000 rows that the database expects.
        password_env: The environment variable of the worker that has the password,
        password_file: or the file, whose last line end does not count; read when the job begins.
        schema: Columns and types that are not what the driver says, as in Spark's DDL: `"amount DECIMAL(20,4)"`.
            A value with more digits after the point than a column of it has is refused, never rounded: where the database's own
            types do not rule it out, one pass looks for it.
            An infinite date or timestamp of PostgreSQL can only be read as `STRING`, and is refused else; one pass looks for it.
        fetch_rows: Rows of one answer of the database.
        statement_timeout: Seconds that the database may take for one answer, the first row of a range or the next ones;
            as long may nothing move before the export counts as stuck.

    Raises:
        ExportError: What cannot be; no text of it has what the URL has.
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
        if self.partitions is not None and (self.partitions < 1 or (self.partitions > 1 and not self.partition_by)):
            raise ExportError(
                f"Expected at least one partition, and partition_by for more than one, got {self.partitions}: name the column."
            )
        if self.fetch_rows < 1 or self.statement_timeout <= 0:
            raise ExportError(
                f"Expected fetch_rows and statement_timeout above 0, got {self.fetch_rows} and {self.statement_timeout:g}."
            )
        if self.password_env and self.password_file:
            raise ExportError("Expected password_env or password_file, got both: keep one.")

    def database(self) -> Database:
        """
        As the host gets it.

        Raises:
            ExportError: A URL or a table that cannot be.
        """
        if self.url.startswith("sqlite:"):
            return self._plan("sqlite", _file(self.url), None, {})
        try:
            url = urlsplit(self.url)
            port = url.port or 5432
        except ValueError:  # its text has the URL
            url, port = urlsplit(""), 0
        if url.scheme not in {"postgresql", "postgres"} or not url.hostname or not url.path.strip("/"):
            raise ExportError(
                "Expected postgresql://user@host:5432/database or sqlite:PATH as the URL of a Jdbc table, got another "
                "(it is not shown, because it may hold a password): one host, and a database."
            )
        asked = dict(parse_qsl(url.query, keep_blank_values=True))
        if url.password is not None or any("passw" in name.lower() for name in asked):
            raise ExportError(
                "Expected a URL without a password, got one with it: name where it is found, password_env= or password_file=."
            )
        unknown = sorted(asked.keys() - _PROPERTIES.keys())
        if unknown:
            raise ExportError(f"Expected {', '.join(_PROPERTIES)} in the URL, got {', '.join(unknown)}: remove it.")
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        properties = {_PROPERTIES[name]: value for name, value in asked.items()}
        if "sslmode" not in properties and url.hostname not in _HERE:
            trusted = {} if "sslrootcert" in properties else {"sslfactory": "org.postgresql.ssl.DefaultJavaSSLFactory"}
            properties |= {"sslmode": "verify-full", **trusted}
        user = unquote(url.username) if url.username else None
        return self._plan("postgresql", f"{host}:{port}{url.path}", user, properties)

    def _plan(self, system: str, place: str, user: str | None, properties: dict[str, str]) -> Database:
        return Database(
            system="sqlite" if system == "sqlite" else "postgresql",
            place=place,
            user=user,
            password_env=self.password_env,
            password_file=None if self.password_file is None else str(Path(self.password_file).absolute()),
            properties=properties,
            relation=_relation(self.table),
            partition_by=self.partition_by,
            partitions=self.partitions,
            schema=self.schema,
            fetch_rows=self.fetch_rows,
            statement_timeout=self.statement_timeout,
        )


def _file(url: str) -> str:
    """The file of `sqlite:relative/or/absolute`, `sqlite:~/path`, `sqlite:///absolute`."""
    text = url.removeprefix("sqlite:")
    if not text:
        raise ExportError("Expected sqlite:PATH, got no path: name the file.")
    return str(Path(re.sub(r"^//(?=/)", "", text)).expanduser().absolute())


def _relation(table: str) -> str:
    """What stands after FROM."""
    text = table.strip().rstrip(";").rstrip()
    if _QUERY.match(text):
        return f"({text}\n) AS source"  # on a line of its own: a query may end in a comment
    if not _TABLE.fullmatch(text):
        raise ExportError(
            f"Expected a table's name, like payments or billing.payments, or a query, got {table!r:.200}: "
            "quote a name that has other characters, '\"my table\"'."
        )
    return text
