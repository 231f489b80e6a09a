"""
Shell completion of Workers, queues and keys.

No module is imported, because a module can do anything at its import: print, wait, or send mails.
Workers, and the names of their queues, are found in the source text of the working directory.
Keys come from the ledger of the settings; if the source does not show the queue of a Worker, they are the keys of all queues.
A completion prints nothing else, raises nothing, and ends within `_WITHIN`; if a step fails, it offers nothing.
"""

from __future__ import annotations

import ast
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from itertools import islice
from pathlib import Path

import click

from steadyworker.backends.opening import open_ledger
from steadyworker.config.resolve import Options, load
from steadyworker.ledger.base import JobFilter
from steadyworker.worker import WORKER

_FILES, _BYTES, _OFFERED = 200, 200_000, 50
_READ = 2000
"""The number of jobs that a completion of a key reads at most, so that it returns at once."""

_WITHIN = 1.0
"""The seconds after which a completion offers what it has found; a ledger on a network can wait for longer."""


def complete_worker(_ctx: click.Context, _argument: click.Parameter, incomplete: str) -> list[str]:
    """Return the Workers of the working directory, as `module:Class`."""
    return _found(incomplete, _worker_names)


def complete_target(ctx: click.Context, _argument: click.Parameter, incomplete: str) -> list[str]:
    """Return the Workers of the working directory, and the queues of the ledger."""

    def queues() -> Iterator[str]:
        with closing(open_ledger(_options(ctx))) as ledger:
            yield from sorted({queue for _, queue in ledger.bindings()})

    return _found(incomplete, _worker_names, queues)


def complete_key(ctx: click.Context, _argument: click.Parameter, incomplete: str) -> list[str]:
    """Return the newest keys of the queue that the command line names."""

    def keys() -> Iterator[str]:
        options = _options(ctx)
        which = JobFilter(options.namespace, _queue_of(str(ctx.params["target"]), options), grep=incomplete or None)
        with closing(open_ledger(options)) as ledger:
            rows = islice(ledger.jobs(which), _READ)
            yield from islice((row.id.key for row, _ in rows if row.id.key.startswith(incomplete)), _OFFERED)

    return _found(incomplete, keys)


def _found(incomplete: str, *searches: Callable[[], Iterator[str]]) -> list[str]:
    """Return the names that these searches find in time, and that begin with the incomplete word."""
    found: list[str] = []

    def run() -> None:
        for search in searches:
            with suppress(Exception):
                found.extend(name for name in search() if name.startswith(incomplete) and name.isprintable())

    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
        warnings.catch_warnings(action="ignore"),
    ):
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(_WITHIN)
    return list(dict.fromkeys(found))


def _options(ctx: click.Context) -> Options:
    """Return the settings of this command line, as far as the shell has it."""
    names = ("ledger", "namespace", "state_dir")
    given = {name: ctx.params[name] for name in names if ctx.params.get(name) is not None}
    return load(given, os.environ, Path.cwd(), ctx.params.get("config"))


def _worker_names() -> Iterator[str]:
    return iter(sorted(f"{module}:{each.name}" for module, each in _workers(Path.cwd())))


def _queue_of(target: str, options: Options) -> str | None:
    """Return the queue that a target names; None if it is a Worker whose queue is not a text in its class."""
    if not WORKER.fullmatch(target):
        return target
    name = target.rpartition(":")[2]
    if (given := options.workers.get(name, {}).get("queue")) is not None:
        return str(given)
    classes = [each for module, each in _workers(Path.cwd()) if f"{module}:{each.name}" == target]
    return next((queue for each in classes for queue in _literals(each.body)), None)


def _literals(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the texts that these statements give to the name `queue`."""
    for each in body:
        targets = (
            each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AnnAssign) else []
        )
        value = each.value if isinstance(each, (ast.Assign, ast.AnnAssign)) else None
        named = any(isinstance(target, ast.Name) and target.id == "queue" for target in targets)
        if named and isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def _workers(folder: Path) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the module and the class of each class that names a base class `Worker`, in the modules of this folder and of its packages."""
    files = [*folder.glob("*.py"), *(path for path in folder.glob("*/*.py") if (path.parent / "__init__.py").exists())]
    for path in files[:_FILES]:
        with suppress(Exception):  # any file can be there
            if path.stat().st_size > _BYTES:
                continue
            source = path.read_text(encoding="utf-8")
            if "Worker" not in source:
                continue
            module = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
            for each in ast.parse(source).body:
                if isinstance(each, ast.ClassDef) and any(_is_worker(base) for base in each.bases):
                    yield module, each


def _is_worker(base: ast.expr) -> bool:
    if isinstance(base, ast.Subscript):
        base = base.value
    name = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
    return name.endswith("Worker")
