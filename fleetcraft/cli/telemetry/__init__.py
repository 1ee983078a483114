"""``fleetcraft telemetry``: the logger, and what is made of its files.

One module a command. Invariant: importing this loads none of them.
"""

from __future__ import annotations

import click

from fleetcraft.cli.lazy import LazyGroup
from fleetcraft.cli.session import write_sections

COMMANDS = {
    "log": ("log", "Log this node's GPUs and host until it is stopped."),
    "inspect": ("inspect", "Say what is in telemetry files, and what is wrong with them."),
    "summary": ("summary", "Sum up a window of time, and freeze it with its evidence."),
    "verify": ("verify", "Recompute a frozen window from its evidence."),
    "plot": ("plot", "Draw utilization, memory, power and queue on one time axis."),
    "export": ("export", "Copy traces so that they can be published."),
}
_EXAMPLES = """
fleetcraft telemetry log /scratch/me/fleet/telemetry 30
fleetcraft telemetry inspect
fleetcraft telemetry summary --window 300 --freeze window.json
fleetcraft telemetry verify window.json
fleetcraft telemetry plot --out figures
"""


class _TelemetryGroup(LazyGroup):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, Examples=_EXAMPLES)


telemetry_command = _TelemetryGroup(
    "telemetry",
    help="Log GPUs, and read, verify, plot and export what was logged.\n\n"
    "DIR is a folder of telemetry files; without it, that of the scratch tree.",
    table=COMMANDS,
    package=__name__,
    path="fleetcraft telemetry",
    context_settings={"help_option_names": ["-h", "--help"]},
)
