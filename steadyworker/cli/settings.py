"""Helpers that verbs share: effective settings, Workers by name, the ledger."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from steadyworker.backends import opening
from steadyworker.cli.flags import Function, taken, with_options
from steadyworker.config.resolve import OPTIONS, Option, Options, load
from steadyworker.errors import ConfigError, SteadyWorkerError
from steadyworker.ledger.base import Ledger
from steadyworker.worker import Worker, load_worker


def settings(*names: str) -> Callable[[Function], Function]:
    """
    Add these settings and `--config` to a verb as options.

    The verb receives the effective `Options` as its first argument.
    Raises ConfigError, when the verb is called, for an invalid value.
    """

    def decorate(verb: Function) -> Function:
        @wraps(verb)
        def called(*arguments: Any, **given: Any) -> Any:
            return verb(*arguments, loaded(taken(given, _named(names))), **given)

        return with_options(called, _named(names))

    return decorate


def loaded(arguments: dict[str, Any]) -> Options:
    """Return the effective settings: arguments win over the environment, then the file, then the defaults."""
    config = arguments.pop("config", None)
    return load(arguments, os.environ, Path.cwd(), config)


def find_worker(target: str) -> type[Worker[Any, Any]]:
    """
    Return the Worker that "module:Class" names.

    Raises ConfigError if the import fails; the message names the file and the line.
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
            "Correct the module; `steadyworker --debug …` shows the whole traceback."
        ) from error


@contextmanager
def open_ledger(options: Options) -> Iterator[Ledger]:
    """Open the ledger of these settings, and close it at the end."""
    ledger = opening.open_ledger(options)
    try:
        yield ledger
    finally:
        ledger.close()


def _named(names: Sequence[str]) -> list[Option]:
    return [option for option in OPTIONS if option.name in names]
