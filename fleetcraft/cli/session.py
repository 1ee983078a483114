"""What every verb shares: the options before and after it, its help, and the way to the spool.

Loads no more than one enqueue needs, since that is what people call in loops. Invariant: an option
given after the verb wins over the same option before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fleetcraft.config import Config
    from fleetcraft.spool.tree import SpoolTree

_SETTING_OF_OPTION = {"root": "root", "project_dir": "project_dir"}


class Session:
    """One call of the command line.

    Attributes:
        json: Whether output is JSON.
        flags: Settings given as options.
        spool: Which spool was asked for: ``outer``, ``gpu``, or empty.
    """

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.flags: dict[str, str] = {}
        self.spool = ""
        self._config: Config | None = None

    def take(self, option: str, value: Any) -> None:
        """Remembers a shared option."""
        if option == "json":
            self.json = True
        elif option == "spool":
            self.spool = value
        else:
            self.flags[_SETTING_OF_OPTION[option]] = value

    @property
    def config(self) -> Config:
        """Every setting.

        Raises:
            ConfigError: A setting is wrong.
        """
        if self._config is None:
            from fleetcraft.config import load

            self._config = load(self.flags)
        return self._config

    @property
    def spool_dir(self) -> str:
        """The folder of the spool that was asked for."""
        return self.config.spool_dir(self.spool)

    def tree(self) -> SpoolTree:
        """The spool, after its safety check.

        Raises:
            ConfigError: Nothing says where it is.
            SpoolError: It is not there or not safe.
        """
        from fleetcraft.spool.tree import SpoolTree

        return SpoolTree(self.spool_dir).check_safe()

    def reach(self) -> str:
        """``fleetcraft`` with the options that lead a further command to the same spool."""
        words = ["fleetcraft"]
        if "root" in self.flags:
            import shlex

            words.append(f"--root {shlex.quote(self.flags['root'])}")
        if self.spool:
            words.append(f"--spool {self.spool}")
        return " ".join(words)


pass_session = click.make_pass_decorator(Session)


def _take(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value and option.name:
        context.ensure_object(Session).take(option.name, value)


def shared_options(*, spool: bool) -> Iterable[click.Option]:
    """The options that every verb takes."""
    settings: dict[str, Any] = {"expose_value": False, "callback": _take}
    yield click.Option(
        ["--root"],
        metavar="DIR",
        help="The scratch tree; its outer spool is DIR/taskq.",
        **settings,
    )
    yield click.Option(
        ["--project-dir"],
        metavar="DIR",
        help="Where commands run; fleet.yaml is there.",
        **settings,
    )
    if spool:
        yield click.Option(
            ["--spool"],
            type=click.Choice(["outer", "gpu"]),
            help="The outer spool of node tasks, or the inner one of single-GPU tasks.",
            **settings,
        )
    yield click.Option(["--json"], is_flag=True, help="Print JSON.", **settings)
    # Ours instead of click's, whose text goes through gettext: that costs an enqueue 2 ms.
    yield click.Option(
        ["-h", "--help"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_help,
        help="Show this and exit.",
    )


def _print_help(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(context.get_help(), color=context.color)
        context.exit()


class FleetCommand(click.Command):
    """A verb: the shared options, and examples and exit codes after its help.

    Args:
        examples: Command lines, one a line, shown as they stand.
        exits: Exit codes with a special meaning, one a line.
        spool: Whether it works on one spool and so takes ``--spool``.
    """

    def __init__(
        self, *args: Any, examples: str = "", exits: str = "", spool: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(*args, **{**kwargs, "add_help_option": False})
        self.examples = examples
        self.exits = exits
        self.params += shared_options(spool=spool)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes examples and exit codes without wrapping them."""
        write_sections(formatter, Examples=self.examples, **{"Exit codes": self.exits})


def write_sections(formatter: click.HelpFormatter, **sections: str) -> None:
    """Writes titled blocks of lines as they stand."""
    for title, text in sections.items():
        lines = [line.strip() for line in text.strip().splitlines()]
        if lines:
            formatter.write_paragraph()
            formatter.write(f"{title}:\n" + "".join(f"  {line}\n" for line in lines))


class Amount(click.FloatRange):
    """A number within a range; nan, which no comparison finds outside of any, is in none."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """The number."""
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


class Seconds(click.ParamType[float]):
    """Seconds, or a duration such as 90s and 00:30:00."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """The number of seconds."""
        from fleetcraft.units import parse_duration_s

        try:
            return float(value)
        except ValueError:
            return float(parse_duration_s(value))
