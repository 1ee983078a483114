"""``fleetcraft config show``: every setting, its value and where that came from.

Needs no scratch tree: it is what one calls to find out why there is none.
"""

from __future__ import annotations

import sys

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session, write_sections
from fleetcraft.config import BY_NAME, Value
from fleetcraft.view.text import Paint, table

_EXAMPLES = """
fleetcraft config show
fleetcraft --root /scratch/me/fleet config show --json
"""


class _ConfigGroup(click.Group):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, Examples=_EXAMPLES)


@click.command(cls=FleetCommand, name="show", examples=_EXAMPLES, spool=False)
@pass_session
def show_settings(session: Session) -> None:
    """Show the settings and where they come from.

    Precedence: option, environment, fleet.yaml in the project directory, site profile, default.
    """
    values = session.config.values
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.config/1",
                "settings": [_shape(name, value) for name, value in values.items()],
            }
        )
        return
    paint = Paint.for_stream(sys.stdout)
    rows = [
        [name, "" if value.value is None else _plain(value.value), value.source]
        for name, value in values.items()
    ]
    print_text(paint("strong", "name, value, source"))
    print_text(table(rows, indent="", width=columns()))


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()  # as fleet.yaml has it
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shape(name: str, value: Value) -> dict[str, object]:
    setting = BY_NAME[name]
    return {
        "name": name,
        "value": value.value,
        "source": value.source,
        "environment": list(setting.variables),
        "doc": setting.doc,
    }


config_command = _ConfigGroup(
    "config",
    help="Show the settings and where they come from.",
    commands=[show_settings],
    context_settings={"help_option_names": ["-h", "--help"]},
)
