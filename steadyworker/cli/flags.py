"""
The settings as options of verbs.

The options come from the table of settings, so each setting has the same name, help text and default everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

from steadyworker.config.options import OPTIONS, Option

Function = Callable[..., Any]


def every_setting(verb: Function) -> Function:
    """
    Add every setting to a verb as an option.

    The verb's first argument is a mapping of the settings from the command line, unparsed.
    """

    @wraps(verb)
    def called(*arguments: Any, **given: Any) -> Any:
        return verb(*arguments, taken(given, OPTIONS), **given)

    return with_options(called, OPTIONS)


def with_options(verb: Function, options: Sequence[Option]) -> Function:
    """
    Add these settings and `--config` to a verb as options.

    The verb receives all these settings; a setting that is not on the command line is None.
    """
    config = click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Read this settings file instead of steadyworker.toml in the working directory.",
    )
    verb = config(verb)
    for option in reversed(options):
        default = f" [default: {option.default:g}]" if isinstance(option.default, float) else ""
        if isinstance(option.default, str):
            default = f" [default: {option.default}]"
        if isinstance(option.default, tuple):
            default = f" [default: {','.join(f'{step:g}' for step in option.default)}]"
        shown = click.option(option.flag, option.name, metavar=option.kind.metavar, help=option.help + default)
        # This option names a file with the value (a secret).
        # It is hidden, because the help would need a second line for each setting.
        hidden = click.option(f"{option.flag}-file", f"{option.name}_file", hidden=True)
        verb = shown(hidden(verb))
    return verb


def taken(given: dict[str, Any], options: Sequence[Option]) -> dict[str, Any]:
    """Remove the settings from a verb's arguments, and return the settings that are on the command line."""
    names = [name for option in options for name in (option.name, f"{option.name}_file")] + ["config"]
    values = {name: given.pop(name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
