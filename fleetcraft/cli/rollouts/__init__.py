"""``fleetcraft rollouts``: the trajectory queue of one run.

One module a command. Invariant: importing this loads none of them.
"""

from __future__ import annotations

import click

from fleetcraft.cli.lazy import LazyGroup
from fleetcraft.cli.session import write_sections

COMMANDS = {
    "status": ("status", "Show what waits, who produces, who trains, and what is advised."),
    "audit": ("audit", "Prove that no record was trained on twice, and none was lost."),
    "abort": ("abort", "Ask producers and the trainer to finish and leave."),
    "requeue": ("requeue", "Put records back from quarantine or a dead transaction."),
    "replenish": ("replenish", "Enqueue one producer task when the queue runs low."),
}
_EXAMPLES = """
fleetcraft rollouts status rollouts/wan
fleetcraft rollouts audit rollouts/wan --json
fleetcraft rollouts abort rollouts/wan --reason 'reward model is wrong'
fleetcraft rollouts abort rollouts/wan --clear
fleetcraft rollouts replenish rollouts/wan --dry-run 'python produce.py'
"""


class _RolloutsGroup(LazyGroup):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, Examples=_EXAMPLES)


rollouts_command = _RolloutsGroup(
    "rollouts",
    help="Look at a trajectory queue, prove it, and steer it.\n\nDIR is the queue's folder.",
    table=COMMANDS,
    package=__name__,
    path="fleetcraft rollouts",
    context_settings={"help_option_names": ["-h", "--help"]},
)
