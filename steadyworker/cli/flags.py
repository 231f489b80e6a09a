"""
The settings as options of verbs.

The options come from the table of settings, so each setting has the same name, help text and default everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from steadyworker.cli.group import Setting
from steadyworker.config.options import OPTIONS, Option
from steadyworker.config.services import all_options, options_for

Function = Callable[..., Any]


class CommandWithSettings(click.Command):
    """
    A verb that has each setting of the core and of the services as an option.

    The settings of services can be declared only after the import of the services' modules.
    Therefore the verb declares these settings only if the command line has an option that is no setting of the core, such as `--help`.
    """

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {name for parameter in self.params for name in parameter.opts}
        options = args[: args.index("--")] if "--" in args else args
        unknown = {each.partition("=")[0] for each in options if each.startswith("-")} - known
        names = [flag.lstrip("-").replace("-", "_") for flag in unknown]
        for option in (all_options() if ctx.resilient_parsing else options_for(names))[len(OPTIONS) :]:
            self.params += [parameter for parameter in _declared(option) if not known & {*parameter.opts}]
        return super().parse_args(ctx, args)


def every_setting(verb: Function) -> Function:
    """
    Add every setting to a verb as an option; the verb's class must be `CommandWithSettings`.

    The verb's first argument is a mapping with the settings on the command line; their values are unparsed text.
    """

    @wraps(verb)
    def called(*arguments: Any, **given: Any) -> Any:
        return verb(*arguments, given_settings(given), **given)

    return with_options(called, OPTIONS)


def with_options(verb: Function, options: Sequence[Option]) -> Function:
    """
    Add these settings and `--config` to a verb as options.

    The verb receives all these settings; a setting that is not on the command line is None.
    """
    config = click.option(
        "--config",
        cls=Setting,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Read this settings file instead of steadyworker.toml in the working directory.",
    )
    verb = config(verb)
    for option in reversed(options):
        for names, attributes in reversed(list(_declarations(option))):
            verb = click.option(*names, cls=Setting, **attributes)(verb)
    return verb


def given_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings from a verb's arguments, and return the settings that are on the command line."""
    parameters = click.get_current_context().command.params
    values = {each.name: given.pop(each.name) for each in parameters if isinstance(each, Setting) and each.name}
    return {name: value for name, value in values.items() if value is not None}


def _declared(option: Option) -> Iterator[Setting]:
    for names, attributes in _declarations(option):
        yield Setting(names, **attributes)


def _declarations(option: Option) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """
    Yield the names and attributes of a setting's two options.

    The first option takes the value, and the second takes the path of a file with the value.
    """
    default = f" [default: {option.default:g}]" if isinstance(option.default, float) else ""
    if isinstance(option.default, str):
        default = f" [default: {option.default}]"
    if isinstance(option.default, tuple):
        default = f" [default: {','.join(f'{step:g}' for step in option.default)}]"
    yield [option.flag, option.name], {"metavar": option.kind.metavar, "help": option.help + default}
    # This option names a file with the value (a secret).
    # It is hidden, because the help would need a second line for each setting.
    yield [f"{option.flag}-file", f"{option.name}_file"], {"hidden": True}
