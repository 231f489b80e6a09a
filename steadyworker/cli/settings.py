"""
What verbs share: settings as options, Workers by their names, the ledger.

Options are made from `config.OPTIONS`, so that a setting has one name, one help text and one default everywhere.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click

from steadyworker import opening
from steadyworker.config import OPTIONS, Option, Options, load
from steadyworker.errors import ConfigError, SteadyWorkerError
from steadyworker.ledger.base import Ledger
from steadyworker.worker import Worker, load_worker

Function = Callable[..., Any]


def settings(*names: str) -> Callable[[Function], Function]:
    """
    Give a verb these settings, as options and `--config`; it is called with the effective `Options` in front.

    Raises ConfigError, when the verb is called, for a value that makes no sense.
    """

    def decorate(verb: Function) -> Function:
        @wraps(verb)
        def called(*arguments: Any, **given: Any) -> Any:
            return verb(*arguments, loaded(_taken(given, _named(names))), **given)

        return _with_options(called, _named(names))

    return decorate


def every_setting(verb: Function) -> Function:
    """Give a verb every setting as an option; it is called with those that were given, as they were, in front."""

    @wraps(verb)
    def called(*arguments: Any, **given: Any) -> Any:
        return verb(*arguments, _taken(given, OPTIONS), **given)

    return _with_options(called, OPTIONS)


def loaded(arguments: dict[str, Any]) -> Options:
    """The effective settings: these arguments, then environment, then file, then defaults."""
    config = arguments.pop("config", None)
    return load(arguments, os.environ, Path.cwd(), config)


def find_worker(target: str) -> type[Worker[Any, Any]]:
    """
    The Worker that "module:Class" names.

    Raises ConfigError, which says where a module that cannot be imported fails.
    """
    try:
        return load_worker(target)
    except SteadyWorkerError:
        raise
    except Exception as error:
        module = target.partition(":")[0]
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"Expected to import {module!r}, but {last.filename}:{last.lineno} raised {type(error).__name__}: {error}\n"
            "Mend the module; `steadyworker --debug …` shows the whole way."
        ) from error


@contextmanager
def open_ledger(options: Options) -> Iterator[Ledger]:
    """The ledger of these settings, closed at the end."""
    ledger = opening.open_ledger(options.ledger)
    try:
        yield ledger
    finally:
        ledger.close()


def _named(names: Sequence[str]) -> list[Option]:
    return [option for option in OPTIONS if option.name in names]


def _with_options(verb: Function, options: Sequence[Option]) -> Function:
    config = click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Settings file, instead of steadyworker.toml in the working directory.",
    )
    verb = config(verb)
    for option in reversed(options):
        default = f" [default: {option.default:g}]" if isinstance(option.default, float) else ""
        if isinstance(option.default, str):
            default = f" [default: {option.default}]"
        shown = click.option(option.flag, option.name, metavar=option.kind.metavar, help=option.help + default)
        # The value from a file (secrets): one line in the verb's help would be one too many for each setting.
        hidden = click.option(f"{option.flag}-file", f"{option.name}_file", hidden=True)
        verb = shown(hidden(verb))
    return verb


def _taken(given: dict[str, Any], options: Sequence[Option]) -> dict[str, Any]:
    """The settings among a verb's arguments, taken out of them."""
    names = [name for option in options for name in (option.name, f"{option.name}_file")] + ["config"]
    taken = {name: given.pop(name) for name in names}
    return {name: value for name, value in taken.items() if value is not None}
