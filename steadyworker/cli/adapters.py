"""`steadyworker adapters`: lists the brokers that this installation supports."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Any

import click

from steadyworker.backends.registry import adapters
from steadyworker.cli.output import Column, json_line, table

_COLUMNS = (Column("SCHEME"), Column("PACKAGE"), Column("CLIENT LIBRARY", styles={"built in": "green"}))
_PREFIX = "steadyworker_"


@click.command(
    "adapters",
    epilog="""\b
An adapter is any installed package with an entry point in the group steadyworker.adapters;
the entry point's name is the URL scheme. An adapter must pass steadyworker.testing.conformance.""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per scheme.")
def command(*, as_json: bool) -> None:
    """List the brokers that this installation supports: URL scheme, package, and client library."""
    records = [record(scheme, adapter.entry) for scheme, adapter in sorted(adapters().items())]
    if as_json:
        for each in records:
            json_line(each)
        return
    table(_COLUMNS, [[f"{each['scheme']}:", each["package"], _library(each)] for each in records])


def record(scheme: str, entry: EntryPoint) -> dict[str, Any]:
    """
    Return an adapter's record as `--json` prints it.

    `libraries` maps each library that the adapter needs to the installed version, or to None.
    """
    extra, needed = _needs(entry)
    libraries = {name: _installed(name) for name in needed}
    return {
        "scheme": scheme,
        "package": entry.value,
        "distribution": f"{entry.dist.name} {entry.dist.version}" if entry.dist else None,
        "libraries": libraries,
        "usable": None not in libraries.values(),
        "install": f"pip install '{entry.dist.name}[{extra}]'" if entry.dist and extra else None,
    }


def _library(adapter: dict[str, Any]) -> str:
    if not adapter["libraries"]:
        return "built in"
    if not adapter["usable"]:
        return f"missing: {adapter['install']}"
    return ", ".join(f"{name} {version}" for name, version in adapter["libraries"].items())


def _needs(entry: EntryPoint) -> tuple[str | None, list[str]]:
    """
    Return this adapter's extra, and the libraries of that extra.

    The extra of the module `rocketmq.grpc` is `rocketmq-grpc`.
    """
    extra = entry.module.removeprefix(_PREFIX).replace(".", "-")
    distribution: Distribution | None = entry.dist
    if distribution is None or extra not in (distribution.metadata.get_all("Provides-Extra") or []):
        return None, []
    marked = re.compile(rf"^([A-Za-z0-9._-]+)[^;]*;.*extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    return extra, [found[1] for line in distribution.requires or [] if (found := marked.match(line))]


def _installed(name: str) -> str | None:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return None
