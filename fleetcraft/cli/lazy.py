"""A group of commands that imports one when it is asked for.

Invariant: its help imports no command at all, so the table has the first lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from fleetcraft.errors import UsageError


class LazyGroup(click.Group):
    """A group over a table.

    Args:
        table: Command to its module in ``package`` and the first line of its help.
        package: Where the modules are; each has a ``<command>_command``.
        path: How the group is called, for messages.
    """

    def __init__(
        self,
        *args: Any,
        table: Mapping[str, tuple[str, str]],
        package: str,
        path: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._table = table
        self._package = package
        self._path = path

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports one command."""
        if cmd_name not in self._table:
            return None
        module = import_module(f"{self._package}.{self._table[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command, or names those with near names."""
        word = args[0]
        if word not in self._table and not word.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(word, self._table, n=2)
            hint = (
                f"did you mean {' or '.join(near)}?" if near else f"{self._path} --help lists them"
            )
            raise UsageError(
                f"no command {word!r}{self._where()}", hint=hint, command=word, near=near
            )
        return super().resolve_command(ctx, args)

    def _where(self) -> str:
        _, _, group = self._path.partition(" ")
        return f" in {group}" if group else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in self._table.items()])
