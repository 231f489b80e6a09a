"""
The Workers, queues and keys that the command line names.

If the import of a Worker fails, the error names the line of the user's code.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import click

from steadyworker.cli.completion import complete_key, complete_target, complete_worker
from steadyworker.cli.flags import Function
from steadyworker.errors import ConfigError, SteadyWorkerError, delay_in_seconds
from steadyworker.names import checked_key
from steadyworker.worker import WORKER, Worker, load_worker

_PACKAGE = Path(__file__).parents[1]


def ledger_key(_ctx: click.Context, _argument: click.Parameter, key: str | None) -> str | None:
    """Return a key as the ledger stores it; raise click.UsageError for a key that no job can have."""
    try:
        return None if key is None else checked_key(key)
    except ValueError as error:
        raise click.UsageError(f"{error} `steadyworker jobs` shows the keys.") from error


def _keys(ctx: click.Context, argument: click.Parameter, keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(found for key in keys if (found := ledger_key(ctx, argument, key)) is not None)


def _delay(_ctx: click.Context, _option: click.Parameter, text: str | None) -> float:
    try:
        return delay_in_seconds(text or 0)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def delay_option(help_: str, *, required: bool = False) -> Callable[[Function], Function]:
    """Return the option `--delay`, whose value is a number of seconds; 0 without the option."""
    return click.option("--delay", callback=_delay, required=required, metavar="D", help=help_)


worker_arguments = click.argument(
    "targets", metavar="MODULE:CLASS...", nargs=-1, required=True, shell_complete=complete_worker
)
queue_argument = click.argument("target", metavar="MODULE:CLASS|QUEUE", shell_complete=complete_target)
keys_argument = click.argument("keys", metavar="[KEY]...", nargs=-1, callback=_keys, shell_complete=complete_key)
key_argument = click.argument("key", callback=ledger_key, shell_complete=complete_key)


def find_worker(target: str) -> type[Worker[Any, Any]]:
    """
    Return the Worker that "module:Class" names.

    Raises ConfigError if the import fails; the message names the file and the line of the user's code.
    Raises FileNotFoundError if the working directory was deleted.
    """
    Path.cwd()
    try:
        with redirect_stdout(sys.stderr):  # the module's own prints must not mix with the command's output
            return load_worker(target)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        place = _place(error)
        if place is None and isinstance(error, SteadyWorkerError):
            raise  # the target itself is wrong, and the message explains how
        module = target.partition(":")[0]
        raise ConfigError(
            f"Expected to import {module!r}, but {place or 'its import'} raised {type(error).__name__}: {_text(error)}\n"
            "Correct the module; `steadyworker --debug …` shows the whole traceback."
        ) from error


def worker_or_queue(target: str) -> type[Worker[Any, Any]] | str:
    """
    Return the Worker that "module:Class" names, or the target itself if the target names a queue.

    The name of a queue can also have a colon.
    A target with a colon is a Worker in three cases:

    - The part after the only colon is the name of a class that begins with a capital letter.
    - A module exists whose name is the part before the first colon or point.
    - The target begins with a colon or a point.

    Raises ConfigError as `find_worker` does.
    """
    module, colon, _ = target.partition(":")
    top = module.partition(".")[0]
    path = [str(Path.cwd()), *sys.path]
    if colon and (WORKER.fullmatch(target) or not top or PathFinder.find_spec(top, path) is not None):
        return find_worker(target)
    return target


def _text(error: BaseException) -> str:
    if isinstance(error, SyntaxError):  # the str() of the error repeats file and line
        return f"{error.msg}: {error.text.strip()}" if error.text else error.msg
    if isinstance(error, SystemExit):
        return f"{error.code}. A module that is imported must not end the program: guard its last lines by `if __name__ == '__main__':`."
    return str(error)


def _place(error: BaseException) -> str | None:
    """
    Return file:line of the user's code that failed, or None if the import failed before any user code ran.

    Frames of installed libraries count only if there are no other frames, because the user's module can itself be installed.
    """
    if isinstance(error, SyntaxError) and error.filename is not None and Path(error.filename).is_file():
        return f"{error.filename}:{error.lineno}"
    foreign = [frame for frame in _frames(error) if not Path(frame.filename).is_relative_to(_PACKAGE)]
    own = [frame for frame in foreign if not any(Path(frame.filename).is_relative_to(home) for home in _libraries())]
    frames = own or foreign
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _frames(error: BaseException) -> Iterator[traceback.FrameSummary]:
    """Yield the frames whose code is in a file, without the frames of the import system and of generated code."""
    importing = ("<", str(Path(sysconfig.get_path("stdlib"), "importlib")))
    return (frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(importing))


def _libraries() -> set[str]:
    return {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
