"""
Shell completion of Workers, queues and keys.

Workers are found in the source of the working directory, without an import, because a module can do anything at its import.
Queues and keys come from the ledger of the settings; if a step fails, the completion offers nothing.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from itertools import islice
from pathlib import Path

import click

from steadyworker.backends.connections import job_queue
from steadyworker.backends.opening import open_ledger
from steadyworker.config.resolve import Options, load
from steadyworker.ledger.base import JobFilter
from steadyworker.worker import WORKER, load_worker

_FILES, _BYTES, _OFFERED = 200, 200_000, 50
_READ = 2000
"""The number of jobs that a completion of a key reads at most, so that it returns at once."""


def complete_worker(_ctx: click.Context, _argument: click.Parameter, incomplete: str) -> list[str]:
    """Return the Workers of the working directory, as `module:Class`."""
    return [name for name in sorted(_workers(Path.cwd())) if name.startswith(incomplete)]


def complete_target(ctx: click.Context, argument: click.Parameter, incomplete: str) -> list[str]:
    """Return the Workers of the working directory, and the queues of the ledger."""
    queues: list[str] = []
    with suppress(Exception), closing(open_ledger(_options(ctx))) as ledger:
        queues = sorted({queue for _, queue in ledger.bindings() if queue.startswith(incomplete)})
    return [*complete_worker(ctx, argument, incomplete), *queues]


def complete_key(ctx: click.Context, _argument: click.Parameter, incomplete: str) -> list[str]:
    """Return the newest keys of the queue that the command line names."""
    with suppress(Exception), Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        options, target = _options(ctx), str(ctx.params["target"])
        with redirect_stdout(nowhere), redirect_stderr(nowhere):
            named = load_worker(target) if WORKER.fullmatch(target) else target
        which = JobFilter(options.namespace, job_queue(named, options).name, grep=incomplete or None)
        with closing(open_ledger(options)) as ledger:
            rows = islice(ledger.jobs(which), _READ)
            keys = dict.fromkeys(row.id.key for row, _ in rows if row.id.key.startswith(incomplete))
            return list(islice(keys, _OFFERED))
    return []


def _options(ctx: click.Context) -> Options:
    """Return the settings of this command line, as far as the shell has it."""
    names = ("ledger", "namespace", "state_dir")
    given = {name: ctx.params[name] for name in names if ctx.params.get(name) is not None}
    return load(given, os.environ, Path.cwd(), ctx.params.get("config"))


def _workers(folder: Path) -> Iterator[str]:
    """Yield the classes that name a base class `Worker`, in the modules of this folder and of its packages."""
    files = [*folder.glob("*.py"), *(path for path in folder.glob("*/*.py") if (path.parent / "__init__.py").exists())]
    for path in files[:_FILES]:
        with suppress(OSError, SyntaxError, ValueError):
            if path.stat().st_size > _BYTES:
                continue
            source = path.read_text(encoding="utf-8")
            if "Worker" not in source:
                continue
            module = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
            for each in ast.parse(source).body:
                if isinstance(each, ast.ClassDef) and any(_is_worker(base) for base in each.bases):
                    yield f"{module}:{each.name}"


def _is_worker(base: ast.expr) -> bool:
    if isinstance(base, ast.Subscript):
        base = base.value
    name = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
    return name.endswith("Worker")
