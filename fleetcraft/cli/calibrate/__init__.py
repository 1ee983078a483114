"""``fleetcraft calibrate``: trials of whole cycles, and the frozen table that workers obey.

One module a command. Invariant: importing this loads none of them, and no command loads torch into
its own process.
"""

from __future__ import annotations

import click

from fleetcraft.cli.lazy import LazyGroup
from fleetcraft.cli.session import write_sections

COMMANDS = {
    "run": ("run", "Run whole cycles at rising batches, and choose a batch for a reason."),
    "show": ("show", "Show the frozen table, or what is known of one family."),
    "freeze": ("freeze", "Write what the newest runs chose into the frozen table."),
    "diff": ("diff", "Say what differs between two frozen tables."),
    "check": ("check", "Check table, device, stack, masks and noise of this machine."),
}
_EXAMPLES = """
fleetcraft calibrate run demo --batches 1,2,4
fleetcraft calibrate run my_family.py:cycle
fleetcraft calibrate show
fleetcraft calibrate freeze demo --dry-run
fleetcraft calibrate diff before.yaml
fleetcraft calibrate check
"""


class _CalibrateGroup(LazyGroup):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, Examples=_EXAMPLES)


calibrate_command = _CalibrateGroup(
    "calibrate",
    help="Measure whole cycles, choose a batch, freeze it, check it.\n\n"
    "A family is demo, which is built in, or FILE.py:NAME: a function under "
    "@fleetcraft.calibration.family. Its rows in the table are found by its key. Needs torch: "
    "pip install 'fleetcraft[torch]'.",
    table=COMMANDS,
    package=__name__,
    path="fleetcraft calibrate",
    context_settings={"help_option_names": ["-h", "--help"]},
)
