"""
The verbs of other packages, which the command line finds by the entry-point group `steadyworker.commands`.

An entry point of this group has the verb's name, and names a `Verb`.
`steadyworker --help` imports the module that has the `Verb`, so that module should import little.
The command is in another module, which `Verb.module` names.
The verbs of `steadyworker` itself have precedence.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import click

from steadyworker.errors import ConfigError
from steadyworker.system.entry_points import Extension, broken, installed, load

GROUP = "steadyworker.commands"


@dataclass(frozen=True, slots=True)
class Verb:
    """
    One verb.

    Attributes:
        help: The verb's line in `steadyworker --help`.
        module: The module whose `command`, a `click.Command`, is the verb. The module is imported when the verb is called.
    """

    help: str
    module: str


def names() -> list[str]:
    """Return the sorted names of the verbs of other packages, without importing these packages."""
    return list(installed(GROUP))


def lines_of_help() -> dict[str, str]:
    """
    Return the line of help of each verb.

    If a verb is broken, its line shows the error, and the other lines stay readable.
    """
    lines: dict[str, str] = {}
    for name, extension in installed(GROUP).items():
        try:
            lines[name] = _verb(extension).help
        except ConfigError as error:
            lines[name] = str(error)
    return lines


def command_of(name: str) -> click.Command | None:
    """
    Import a verb's command; return None if no package has this verb.

    Raises:
        ConfigError: The entry point is broken.
    """
    extension = installed(GROUP).get(name)
    if extension is None:
        return None
    verb = _verb(extension)
    try:
        command = import_module(verb.module).command
    except Exception as error:  # any code can run in an import
        raise broken(extension, error) from error
    if not isinstance(command, click.Command):
        raise broken(extension, f"no click.Command as {verb.module}.command")
    return command


def _verb(extension: Extension) -> Verb:
    verb = load(extension)
    if not isinstance(verb, Verb):
        raise broken(extension, f"{type(verb).__name__} instead of a steadyworker.cli.other_verbs.Verb")
    return verb
