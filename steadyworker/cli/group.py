"""A group of commands: the error for an unknown command names a similar one, and a command's own options come first."""

from __future__ import annotations

import difflib

import click
from typing_extensions import override


class Setting(click.Option):
    """A setting, as an option of a verb; many verbs share it."""


def own_first(command: click.Command) -> click.Command:
    """Order a command's parameters so that `--help` lists the settings that verbs share after the command's own options."""
    command.params.sort(key=lambda each: isinstance(each, Setting))
    return command


class Group(click.Group):
    """
    A command group, in which an unknown command is a usage error that names the nearest known command.

    `--help` of each command lists the command's own options first.
    """

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        return None if command is None else own_first(command)

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]}?" if near else "see --help."
            ctx.fail(f"Expected one of the commands {', '.join(known)}, got {name!r}: {remedy}")
        return super().resolve_command(ctx, args)
