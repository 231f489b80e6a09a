"""`steadyworker verify`: compares exported files with their manifests, and removes the staging folders of dead runs."""

from __future__ import annotations

import re
import signal
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import msgspec

from steadyworker.cli.output import json_line
from steadyworker.cli.settings import open_ledger, settings
from steadyworker.config.resolve import Options
from steadyworker.errors import ConfigError, ExportError, SourceUnavailable
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.stage import STAGES, reap
from steadyworker.exports.stores.opening import open_store, store_address
from steadyworker.exports.stores.reaping import reap_store
from steadyworker.exports.stores.trial import tried
from steadyworker.exports.verifying import verify
from steadyworker.text.plain_text import printable
from steadyworker.text.redaction import redact
from steadyworker.units import count_text

_REFUSED = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|does not exist|permission denied"
)
"""The errors of libpq for a connect that would fail in the same way at each later attempt."""


@click.command(
    "verify",
    epilog="""\b
Examples:
  steadyworker verify out/m-17.csv
  steadyworker verify out/*.csv --json | jq .rows
  steadyworker verify s3://reports/m-17.csv     # copied to this host for the check
  steadyworker verify out/m-17.csv --source sqlite:shop.db \\
      --query "SELECT currency, count(*), sum(cents) FROM payments WHERE merchant = 17 GROUP BY currency"
  steadyworker verify --target gs://reports/daily/   # before a deploy: what does this store promise?
  steadyworker verify --reap out/        # remove the staging folders of jobs that have ended""",
)
@click.argument("files", metavar="FILE...", nargs=-1, type=click.Path())
@settings("ledger", "state_dir")
@click.option(
    "--reap",
    "folders",
    multiple=True,
    metavar="DIR",
    type=click.Path(),
    help="Remove the staging folders in DIR, or in s3://bucket/folder (or gs://, abfs://), whose jobs are done or dead in the ledger; can be repeated.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="URL",
    help="Before a deploy: list, put, read and remove a small object beside this target in a store, and print what exports there do not promise; a folder ends in /; can be repeated.",
)
@click.option(
    "--source",
    metavar="URL",
    help="Also compare with the source database: sqlite:PATH, or postgresql://user@host/database (password: PGPASSWORD, or ~/.pgpass).",
)
@click.option(
    "--query",
    metavar="SQL",
    help="The query for --source: one row per group of the totals, with the group's values, row count and sums.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one line of JSON per file, with the manifest of each file that matches it.",
)
@click.pass_context
def command(
    ctx: click.Context,
    options: Options,
    *,
    files: tuple[str, ...],
    folders: tuple[str, ...],
    targets: tuple[str, ...],
    source: str | None,
    query: str | None,
    as_json: bool,
) -> None:
    """
    Re-read each exported FILE, folder of files or address (s3://, gs://, abfs://), and compare size, SHA-256, rows and totals with the manifest.

    Exit code 1 means that at least one file does not match, or that a target cannot be used.
    If the source database cannot be reached, the exit code is 69; if it refuses the login or the query, 78.
    """
    if not files and not folders and not targets:
        raise click.UsageError("Expected FILEs, --reap DIR or --target URL, got none of them.")
    if (source is None) != (query is None) or (source is not None and len(files) != 1):
        raise click.UsageError("Expected --source and --query together, with exactly one FILE.")
    if folders:
        with open_ledger(options) as ledger:
            for folder in folders:
                removed = _reap(folder, ledger.ended)
                click.echo(
                    f"{printable(redact(folder))}: removed the staging folders of {count_text(len(removed), 'job')}.",
                    err=True,
                )
    rows = _source_rows(source, query) if source is not None and query is not None else None
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no copy of an object stays
    try:
        matches = [_tried(target, as_json=as_json) for target in targets]
        matches += [_verified(file, rows, as_json=as_json) for file in files]
    finally:
        signal.signal(signal.SIGTERM, before)
    ctx.exit(0 if all(matches) else 1)


def _source_rows(source: str, query: str) -> Sequence[Sequence[Any]]:
    """
    Run the query on the source, and return its rows.

    Raises:
        SourceUnavailable: The source did not respond, or is locked, so a later try can succeed.
        ConfigError: The source refused the login or the query, or there is no such file.
    """
    kind, _, place = source.partition(":")
    try:
        if kind == "sqlite":
            path = Path(place).resolve(strict=True)
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
                return list(db.execute(query))
        if kind in {"postgresql", "postgres"}:
            import psycopg

            with psycopg.connect(source, connect_timeout=10) as server:
                server.read_only = True
                return list(server.execute(query.encode()))
    except ImportError as error:
        raise ConfigError(
            "Expected psycopg for a PostgreSQL source, got no such module: run pip install 'steadyworker[postgres]'."
        ) from error
    except Exception as error:  # each client library has its own errors
        text = f"Expected rows from the source, got an error ({redact(str(error))})"
        if _is_away(error):
            raise SourceUnavailable(f"{text}: check that the source runs, and can be reached.") from error
        raise ConfigError(f"{text}: correct --source or --query.") from error
    raise click.UsageError("Expected sqlite:PATH or postgresql://user@host/database as --source.")


def _is_away(error: Exception) -> bool:
    """Return whether the source did not respond, or is busy; False if it has refused the login or the query."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
    state = getattr(error, "sqlstate", None) or ""  # the server's error code, which is missing if the connection failed
    failed = "OperationalError" in {kind.__name__ for kind in type(error).__mro__} and not state
    return (failed and not _REFUSED.search(str(error))) or state.startswith(("08", "53", "57"))


def _reap(folder: str, ended: Callable[[Sequence[str]], Iterable[str]]) -> Sequence[str]:
    """
    Remove the stages of ended jobs in a folder of this host or of a store.

    Raises:
        UsageError: There is no such folder, or no client library for the store.
    """
    try:
        address = store_address(f"{folder.rstrip('/')}/{STAGES}")
        if address is not None:
            with closing(open_store(address)) as store:
                done, error = reap_store(store, ended)
            if error is not None:
                raise error
            return done
    except ExportError as error:
        raise click.UsageError(str(error)) from error
    if not Path(folder).is_dir():
        raise click.UsageError(f"Expected a folder for --reap, got {redact(folder)!r}: correct it.")
    return reap(Path(folder), ended)


def _tried(target: str, *, as_json: bool) -> bool:
    """Print whether exports to this target, or to this folder with a slash at its end, are possible, and what they do not promise."""
    try:
        address = store_address(f"{target}object" if target.endswith("/") else target)
        if address is None:
            raise click.UsageError(
                f"Expected an address such as gs://bucket/folder/report.csv for --target, got {redact(target)!r}: correct it."
            )
        limits = tried(address)
    except ExportError as error:
        if as_json:
            json_line({"target": redact(target), "ok": False, "error": str(error)})
        else:
            click.echo(f"{click.style('failed', fg='red')}  {printable(redact(target))}: {printable(str(error))}")
        return False
    if as_json:
        json_line({"target": redact(target), "ok": True, "limits": limits})
    else:
        click.echo(
            f"{click.style('ok', fg='green')}  {printable(redact(target))}: {' '.join(limits) or 'one whole object or none; of two jobs, the first wins'}"
        )
    return True


def _verified(file: str, source: Sequence[Sequence[Any]] | None, *, as_json: bool) -> bool:
    try:
        manifest = verify(file, source=source)
    except ExportError as error:
        if as_json:
            json_line({"file": redact(file), "ok": False, "error": str(error)})
        else:
            click.echo(f"{click.style('failed', fg='red')}  {printable(redact(file))}: {printable(str(error))}")
        return False
    if as_json:
        json_line({"file": redact(file), "ok": True, **msgspec.to_builtins(manifest)})
    else:
        click.echo(f"{click.style('ok', fg='green')}  {printable(redact(file))}: {_summary(manifest)}")
    return True


def _summary(manifest: Manifest) -> str:
    job = f"job {printable(manifest.key)}, run {manifest.fence}"
    files = "" if manifest.files is None else f"{count_text(len(manifest.files), 'file')}, "
    limits = "".join(f" Limit of its store: {limit}" for limit in manifest.limits)
    return f"{files}{count_text(manifest.rows, 'row')}, {count_text(manifest.bytes, 'byte')}, sha256 {manifest.sha256[:12]}…, {job}{limits and f'.{limits}'}"
