"""A group of commands, which answers a misspelt command with the name of the nearest known command."""

from __future__ import annotations

import difflib

import click
from typing_extensions import override


class Group(click.Group):
    """A command group, in which an unknown command is a usage error that names the nearest known command."""

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
