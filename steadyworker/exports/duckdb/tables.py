"""
Parquet, CSV and JSON Lines as tables of DuckDB.

DuckDB reads Parquet files itself.
A text file is a `ArrowStream` of Arrow batches from pyarrow, which refuses each value that does not fit its column exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.duckdb.ddl import ReadColumn, columns_of, quoted
from steadyworker.exports.duckdb.session import literal
from steadyworker.exports.sources import arrow, check_columns
from steadyworker.exports.tables import FileSource, data_files

_BLOCK = 4 << 20  # bytes; no line of a text file may be longer
_MOST_DIGITS = 38
_WHOLE = re.compile(r"-?\d{1,18}")
_OPTIONS = ("sep", "quote", "escape", "header", "nullValue", "encoding")


class ArrowStream:
    """
    A table that DuckDB can read any number of times.

    Args:
        schema: The Arrow schema of the batches.
        batches: A function that begins to read the table from its start.
        failures: Receives the error that ends a read, because DuckDB reports only the error's text.
    """

    def __init__(self, schema: Any, batches: Callable[[], Iterator[Any]], failures: list[Exception]) -> None:
        self.schema, self._batches, self._failures = schema, batches, failures

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return a new stream; DuckDB calls this for each scan of the table."""
        reader = arrow().RecordBatchReader.from_batches(self.schema, self._kept())
        return reader.__arrow_c_stream__(requested_schema)

    def _kept(self) -> Iterator[Any]:
        try:
            yield from self._batches()
        except Exception as error:
            self._failures.append(error)
            raise


def add_stream(connection: Any, name: str, columns: Sequence[ReadColumn], stream: ArrowStream) -> None:
    """Make a view of a stream; its columns have the types of the schema."""
    read = f"{name} as it is read"
    connection.register(read, stream)
    chosen = ", ".join(f"{column.sql.format(quoted(column.name))} AS {quoted(column.name)}" for column in columns)
    connection.execute(f"CREATE VIEW {quoted(name)} AS SELECT {chosen} FROM {quoted(read)}")  # noqa: S608 - quoted


def add_files(connection: Any, name: str, source: FileSource, failures: list[Exception]) -> list[str]:
    """
    Make a table of files, and return the paths that DuckDB itself has to read.

    Raises:
        ExportRejected: The files cannot be read exactly, or an option is unknown.
        ExportError: There is no file.
    """
    if "://" in source.path:
        raise ExportRejected(
            f"Expected local files for table {name!r}, got {source.path}: copy them here, or use SparkExport."
        )
    files = [str(file) for file in data_files(Path(source.path)) if file.stat().st_size]
    if not files:
        raise ExportError(
            f"Expected a file or a folder of files for table {name!r}, got {source.path}: correct the path."
        )
    if source.format == "parquet":
        _add_parquet(connection, name, source, files)
        return files
    columns, batches = (_csv if source.format == "csv" else _json)(name, source, files)
    parts = _Partitions(source.path, files)
    schema = arrow().schema([(column.name, column.read) for column in columns] + parts.fields)
    check_columns(schema.names)
    stream = ArrowStream(schema, lambda: _read(schema, batches, files, parts), failures)
    add_stream(connection, name, [*columns, *(ReadColumn(key, None) for key, _ in parts.fields)], stream)
    return []


def _add_parquet(connection: Any, name: str, source: FileSource, files: list[str]) -> None:
    if source.schema or source.options:
        raise ExportRejected(
            f"Expected no schema and no options for the Parquet files of table {name!r}, got some: "
            "remove them, because the files have types, and cast in the query."
        )
    import pyarrow.parquet  # `arrow()` has checked that it is installed

    listed = f"[{', '.join(map(literal, files))}]"
    kinds = connection.execute(
        f"""SELECT min(file_name) FROM (
              SELECT file_name, list_sort(list((name, type, converted_type, scale))) AS kinds
              FROM parquet_schema({listed}) WHERE num_children IS NULL GROUP BY file_name)
            GROUP BY kinds LIMIT 2"""  # noqa: S608 - literals
    ).fetchall()
    if len(kinds) > 1:
        (one,), (other,) = kinds
        raise ExportRejected(
            f"Expected Parquet files with the same columns and types in table {name!r}, got others in {one} than in {other}: "
            "name the files as tables of their own, and cast and unite them in the query."
        )
    wide = connection.execute(f"SELECT name FROM parquet_schema({listed}) WHERE precision > {_MOST_DIGITS}").fetchone()  # noqa: S608
    if wide:
        raise ExportRejected(
            f"Expected decimals of at most {_MOST_DIGITS} digits in table {name!r}, got more in {wide[0]!r}: "
            "DuckDB would read binary floats; use RowExport, which writes each digit."
        )
    leaves = pyarrow.parquet.ParquetFile(files[0]).schema
    moments = []
    for leaf in map(leaves.column, range(len(leaves.names))):
        if leaf.physical_type == "INT96":  # Spark's older form of a moment with a zone, without a mark of it
            if leaf.path != leaf.name:
                raise ExportRejected(
                    f"Expected no INT96 moments inside of lists and structs in table {name!r}, got {leaf.path!r}: "
                    'write the files with spark.sql.parquet.outputTimestampType = "TIMESTAMP_MICROS".'
                )
            moments.append(f"timezone('UTC', {quoted(leaf.name)}) AS {quoted(leaf.name)}")
    inside = _Partitions(source.path, files).fields
    named = {part.partition("=")[0] for part in Path(files[0]).parts if "=" in part} if inside else set()
    chosen = f"* EXCLUDE ({', '.join(map(quoted, sorted(named)))})" if named else "*"
    chosen += f" REPLACE ({', '.join(moments)})" if moments else ""
    for key, kind in inside:
        chosen += f", CAST({quoted(key)} AS {'BIGINT' if kind == 'int64' else 'VARCHAR'}) AS {quoted(key)}"
    hive = f"hive_partitioning = {bool(inside)}, hive_types_autocast = false"
    connection.execute(f"CREATE VIEW {quoted(name)} AS SELECT {chosen} FROM read_parquet({listed}, {hive})")  # noqa: S608


Batches = Callable[[str], Any]
"""Returns a reader of a file's batches, with a method `close`."""


def _csv(name: str, source: FileSource, files: list[str]) -> tuple[list[ReadColumn], Batches]:
    import pyarrow.csv

    given = _options(name, source, _OPTIONS)
    header, escape = given.get("header", "true").lower() != "false", given.get("escape", '"')
    encoding = given.get("encoding", "utf-8")
    parse = pyarrow.csv.ParseOptions(
        delimiter=given.get("sep", ","),
        quote_char=given.get("quote", '"') or False,
        double_quote=escape == '"',
        escape_char=False if escape == '"' else escape,
        newlines_in_values=True,
    )

    def opened(file: str, names: list[str] | None, types: Mapping[str, Any]) -> Any:
        read = pyarrow.csv.ReadOptions(
            block_size=_BLOCK,
            encoding=encoding,
            autogenerate_column_names=not header and names is None,
            **({} if header or names is None else {"column_names": names}),
        )
        convert = pyarrow.csv.ConvertOptions(
            column_types=types,
            null_values=[given.get("nullvalue", "")],
            strings_can_be_null=True,
            quoted_strings_can_be_null=source.schema is not None,
            true_values=["true"],
            false_values=["false"],
        )
        return pyarrow.csv.open_csv(_input(file), read, parse, convert)

    def names_in(file: str) -> list[str]:
        with _named(file), closing(opened(file, None, {})) as reader:
            names: list[str] = reader.schema.names
        return names if header else [f"_c{number}" for number in range(len(names))]

    columns = columns_of(source.schema) if source.schema else []
    names = [column.name for column in columns]
    for file in files:
        found = names_in(file) if header or not names else names
        names = names or found
        if found != names:
            raise ExportRejected(
                f"Expected the columns {', '.join(names)} in {file} of table {name!r}, got {', '.join(found)}: "
                "give each file the same columns in the same order, as in its schema=."
            )
    columns = columns or [ReadColumn(each, arrow().string()) for each in names]
    types = {column.name: column.read for column in columns}
    return columns, lambda file: opened(file, names, types)


def _json(name: str, source: FileSource, files: list[str]) -> tuple[list[ReadColumn], Batches]:
    import pyarrow.json

    del files
    _options(name, source, ())
    if not source.schema:
        raise ExportRejected(
            f"Expected a schema for the JSON Lines of table {name!r}, got none: JSON has no exact numbers of its own; "
            'name the columns, Files(path, schema="id BIGINT, amount DECIMAL(12,2)").'
        )
    columns = columns_of(source.schema)
    parse = pyarrow.json.ParseOptions(
        explicit_schema=arrow().schema([(column.name, column.read) for column in columns]),
        newlines_in_values=False,
        unexpected_field_behavior="ignore",
    )
    read = pyarrow.json.ReadOptions(block_size=_BLOCK)
    return columns, lambda file: pyarrow.json.open_json(_input(file), read, parse)


def _options(name: str, source: FileSource, known: Sequence[str]) -> dict[str, str]:
    """Return the options by their names in lower case."""
    given = {option.lower(): value for option, value in source.options.items()}
    unknown = sorted(given.keys() - set(map(str.lower, known)))
    if unknown:
        raise ExportRejected(
            f"Expected only the options {', '.join(known) or '(none)'} for the {source.format} files of table {name!r}, "
            f"got {', '.join(unknown)}: remove it, or use SparkExport."
        )
    return given


def _input(file: str) -> Any:
    """Open a file; `.gz`, `.bz2`, `.lz4` and `.zst` are unpacked."""
    return arrow().input_stream(file, compression="detect")


def _read(schema: Any, batches: Batches, files: Sequence[str], parts: _Partitions) -> Iterator[Any]:
    """Yield the batches of all files, each with the values of its folders' names."""
    pa = arrow()
    names = schema.names[: len(schema.names) - len(parts.fields)]
    for file in files:
        values = parts.of(file)
        with _named(file), closing(batches(file)) as reader:
            for batch in reader:
                columns = [batch.column(name) for name in names]
                columns += [pa.repeat(value, batch.num_rows) for value in values]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def _named(file: str) -> Iterator[None]:
    """Raise ExportRejected with the file's name for an error of pyarrow's."""
    try:
        yield
    except (arrow().ArrowException, UnicodeError) as error:
        raise ExportRejected(
            f"Expected values in {file} that fit their columns exactly, got: {error}: correct the file, its schema= or its options=."
        ) from error


class _Partitions:
    """
    The values in the names of folders, such as `month=2024-03`; folders above the table are not part of it.

    Attributes:
        fields: The name and the Arrow type of each column: integers if all values are integers, otherwise text.
    """

    def __init__(self, root: str, files: Sequence[str]) -> None:
        pa = arrow()
        self._found = {file: dict(_values(Path(file).relative_to(root).parts[:-1])) for file in files}
        self.fields = []
        for key in dict.fromkeys(key for found in self._found.values() for key in found):
            texts = [text for found in self._found.values() if (text := found.get(key)) is not None]
            self.fields.append((key, pa.int64() if all(map(_WHOLE.fullmatch, texts)) else pa.string()))

    def of(self, file: str) -> list[Any]:
        """Return the values for a file, as Arrow scalars."""
        return [arrow().scalar(self._found[file].get(key), "string").cast(kind) for key, kind in self.fields]


def _values(folders: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    for folder in folders:
        key, equals, text = folder.partition("=")
        if equals:
            yield key, None if text == "__HIVE_DEFAULT_PARTITION__" else unquote(text)
