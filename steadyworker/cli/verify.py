"""`steadyworker verify`: exported files against their manifests, and what dead runs left beside them."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from steadyworker.cli.output import json_line, printable
from steadyworker.cli.settings import open_ledger, settings
from steadyworker.config import Options
from steadyworker.errors import ExportError
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.stage import reap
from steadyworker.exports.verifying import verify


@click.command(
    "verify",
    epilog="""\b
Examples:
  steadyworker verify out/m-17.csv
  steadyworker verify out/*.csv --json | jq .rows
  steadyworker verify --reap out/        # remove what interrupted exports left, once their jobs have ended""",
)
@click.argument("files", metavar="FILE...", nargs=-1, type=click.Path(path_type=Path))
@settings("ledger", "state_dir")
@click.option(
    "--reap",
    "folders",
    multiple=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Remove the stages in DIR whose jobs the ledger says are done or dead; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per file and line: its manifest, if it is true.")
@click.pass_context
def command(
    ctx: click.Context, options: Options, *, files: tuple[Path, ...], folders: tuple[Path, ...], as_json: bool
) -> None:
    """
    Re-read exported FILEs: size, SHA-256, rows and totals have to be what the manifest beside each says.

    Exit code 1 says that one of them is not.
    """
    if not files and not folders:
        raise click.UsageError("Expected FILEs, or --reap DIR.")
    if folders:
        with open_ledger(options) as ledger:
            for folder in folders:
                removed = reap(folder, ledger.ended)
                click.echo(f"{folder}: {len(removed)} jobs' stages removed.", err=True)
    true = [_told(file, as_json=as_json) for file in files]
    ctx.exit(0 if all(true) else 1)


def _told(file: Path, *, as_json: bool) -> bool:
    try:
        manifest = verify(file)
    except ExportError as error:
        if as_json:
            json_line({"file": str(file), "ok": False, "error": str(error)})
        else:
            click.echo(f"{click.style('failed', fg='red')}  {printable(str(file))}: {error}")
        return False
    if as_json:
        json_line({"file": str(file), "ok": True, **msgspec.to_builtins(manifest)})
    else:
        click.echo(f"{click.style('ok', fg='green')}  {printable(str(file))}: {_summary(manifest)}")
    return True


def _summary(manifest: Manifest) -> str:
    job = f"job {printable(manifest.key)}, run {manifest.fence}"
    return f"{manifest.rows:,} rows, {manifest.bytes:,} bytes, sha256 {manifest.sha256[:12]}…, {job}"
