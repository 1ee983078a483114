"""``fleetcraft train``: supervise a run, say how it stands, and how one died.

One module a command. Invariant: importing this loads none of them.
"""

from __future__ import annotations

import click

from fleetcraft.cli.lazy import LazyGroup
from fleetcraft.cli.session import write_sections

COMMANDS = {
    "supervise": ("supervise", "Launch a training run, watch it, and heal it."),
    "status": ("status", "Show how runs stand: step, throughput, queues, memory, ETA."),
    "abort": ("abort", "Ask a run to finish its step, save and leave."),
    "diagnose": ("diagnose", "Say from its logs how a run died, whoever launched it."),
    "preflight": ("preflight", "Compare what the launcher built with what was declared."),
    "checkpoints": ("checkpoints", "List checkpoints, verify them, and retire old ones."),
    "claims": ("claims", "Check that done tasks reached their end, and resume once if not."),
}
_EXAMPLES = """
fleetcraft train supervise run.yaml
fleetcraft train supervise --nodes 6 run.yaml
fleetcraft train status --watch
fleetcraft train diagnose logs/*.log
fleetcraft train checkpoints runs/distill/checkpoints --verify hashes
"""


class _TrainGroup(LazyGroup):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, Examples=_EXAMPLES)


train_command = _TrainGroup(
    "train",
    help="Supervise a training run, say how it stands, and how one died.\n\n"
    "A run has a folder in the scratch tree, where everything decided about it is a record.",
    table=COMMANDS,
    package=__name__,
    path="fleetcraft train",
    context_settings={"help_option_names": ["-h", "--help"]},
)
