"""`steadyworker check`: makes the checks that `run` makes before the first message, and shows every setting with its origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import click

from steadyworker.cli.flags import CommandWithSettings
from steadyworker.cli.output import Column, json_line, table, tries
from steadyworker.cli.settings import settings
from steadyworker.cli.targets import find_worker, worker_arguments
from steadyworker.config.resolve import Options
from steadyworker.config.services import all_options
from steadyworker.errors import Finding, by_level
from steadyworker.retry import RetryPolicy
from steadyworker.service import assemble
from steadyworker.service.job_services import broken_services
from steadyworker.spec import WorkerSpec
from steadyworker.text.plain_text import printable
from steadyworker.text.redaction import redact, without_secrets

_CONFIG = 78
_SETTING_COLUMNS = (Column("SETTING"), Column("VALUE"), Column("FROM"))
_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
_NOT_SHOWN = ("target", "cls")


@click.command(
    "check",
    cls=CommandWithSettings,
    epilog="""\b
Examples:
  steadyworker check exports:PaymentExports
  steadyworker check exports:PaymentExports --strict             # in a pipeline, before a deploy
  steadyworker check exports:PaymentExports --json | jq .findings""",
)
@worker_arguments
@settings()
@click.option(
    "--strict", is_flag=True, help="Also fail on a warning, such as a broker that does not respond; for a pipeline."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: settings, workers, findings.")
@click.pass_context
def command(ctx: click.Context, options: Options, *, targets: tuple[str, ...], strict: bool, as_json: bool) -> None:
    """
    Run the checks that `run` makes before the first message: names, delays, limits, broker, ledger, platform.

    The command also shows every setting, and where its value comes from.
    It consumes no message, and creates no ledger.
    Each finding has a remedy; a note is not a problem.
    `steadyworker explain --id ID` explains a finding.
    Exit code 78 means that `run` would not start, because a finding is an error.
    With --strict, exit code 1 means that `run` would start, but that a finding is a warning.
    """
    with _planned(targets, options) as plan:
        findings = sorted([*plan.findings(), *broken_services(options)], key=by_level)
        shown = _settings(options)
        workers = {spec.target: _attributes(spec, options) for spec in plan.specs}
    if as_json:
        json_line({"settings": shown, "workers": workers, "findings": [_finding(finding) for finding in findings]})
    else:
        _print(shown, workers, findings)
    levels = {finding.level for finding in findings}
    ctx.exit(_CONFIG if "error" in levels else int(strict and "warning" in levels))


@contextmanager
def _planned(targets: Sequence[str], options: Options) -> Iterator[assemble.Plan]:
    plan = assemble.plan([find_worker(target) for target in targets], options, create=False)
    try:
        yield plan
    finally:
        for adapter in plan.adapters:
            adapter.stop(1.0)
        plan.ledger.close()


def _settings(options: Options) -> dict[str, dict[str, str | None]]:
    """Return every setting's effective value and origin, without secrets."""
    return {
        option.name: {
            "value": _text(options.value(option)),
            "origin": options.origins.get(option.name, "default"),
        }
        for option in all_options()
    }


def _attributes(spec: WorkerSpec, options: Options) -> dict[str, dict[str, str | None]]:
    name = spec.cls.__name__
    overridden = options.workers.get(name, {})
    return {
        field.name: {
            "value": _text(getattr(spec, field.name)),
            "origin": f"[workers.{name}]" if field.name in overridden else name,
        }
        for field in fields(WorkerSpec)
        if field.name not in _NOT_SHOWN
    }


def _text(value: Any) -> str | None:
    match value:
        case None:
            return None
        case float():
            return f"{value:.12g}"
        case tuple():
            return ",".join(f"{step:g}" for step in value)
        case Mapping():
            return redact(" ".join(f"{name}={text}" for name, text in without_secrets(value).items())) or None
        case RetryPolicy():
            return f"{tries(value.max_attempts, value.max_crashes, value.max_losses)}, {type(value.wait).__name__}"
        case _:
            return redact(str(value))


def _finding(finding: Finding) -> dict[str, str]:
    return {"level": finding.level, "id": finding.id, "what": finding.what, "remedy": finding.remedy}


def _print(
    shown: dict[str, dict[str, str | None]],
    workers: dict[str, dict[str, dict[str, str | None]]],
    findings: Sequence[Finding],
) -> None:
    table(_SETTING_COLUMNS, [_row(name, entry) for name, entry in shown.items()])
    for target, attributes in workers.items():
        click.echo()
        table((Column(target), *_SETTING_COLUMNS[1:]), [_row(name, entry) for name, entry in attributes.items()])
    click.echo()
    for finding in findings:
        level = click.style(f"{finding.level}:", fg=_COLOURS[finding.level], bold=True)
        id_ = click.style(f"[{finding.id}]", dim=True)
        click.echo(f"{level} {printable(finding.what)} {id_}\n  remedy: {printable(finding.remedy)}")
    if all(finding.level == "note" for finding in findings):
        click.echo("No problems found.")


def _row(name: str, entry: dict[str, str | None]) -> list[str]:
    return [name, entry["value"] if entry["value"] is not None else "–", entry["origin"] or ""]
