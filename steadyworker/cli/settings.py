"""Helpers that verbs share: effective settings, and the ledger."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from steadyworker.backends import opening
from steadyworker.cli.flags import Function, given_settings, with_options
from steadyworker.config.resolve import OF_A_CLIENT, OPTIONS, Options, load
from steadyworker.ledger.base import Ledger


def settings(*names: str) -> Callable[[Function], Function]:
    """
    Add these settings and `--config` to a verb as options.

    Without names, add every setting; the verb's class must be `CommandWithSettings`.
    The verb receives the effective `Options` as its first argument.
    If a value is invalid, a call of the verb raises ConfigError.
    """

    def decorate(verb: Function) -> Function:
        @wraps(verb)
        def called(*arguments: Any, **given: Any) -> Any:
            return verb(*arguments, loaded(given_settings(given)), **given)

        return with_options(called, [option for option in OPTIONS if not names or option.name in names])

    return decorate


def client_settings(verb: Function) -> Function:
    """Add to a verb the settings that a client needs for its connections to broker and ledger."""
    return settings(*OF_A_CLIENT)(verb)


def loaded(arguments: dict[str, Any]) -> Options:
    """
    Return the effective settings.

    The sources, highest precedence first, are the arguments, the environment, the file and the defaults.
    """
    config = arguments.pop("config", None)
    return load(arguments, os.environ, Path.cwd(), config)


@contextmanager
def open_ledger(options: Options) -> Iterator[Ledger]:
    """Open the ledger of these settings, and close it when the context ends."""
    ledger = opening.open_ledger(options)
    try:
        yield ledger
    finally:
        ledger.close()
