"""``fleetcraft evidence``: manifests, archives, results, gates, and the way back from a figure.

One module a command. Invariant: importing this loads none of them.
"""

from __future__ import annotations

import click

from fleetcraft.cli.lazy import LazyGroup
from fleetcraft.cli.session import write_sections

COMMANDS = {
    "freeze": (
        "freeze",
        "Write the manifest of a folder: size, hash, kind and producer of every file.",
    ),
    "verify": ("verify", "Compare files with their manifest, at a level that is named."),
    "archive": (
        "archive",
        "Copy what a manifest names, and prove it from the destination's own bytes.",
    ),
    "export": ("export", "Write what a manifest names as a BagIt bag."),
    "grid": ("grid", "Declare the cells of an experiment, freeze them, and lead them to release."),
    "append": ("append", "Append a result record: arm, seed, batch, stack, encoder, outputs."),
    "results": ("results", "List result records by arm, and what is wrong with them."),
    "compare": ("compare", "Compare two arms over the seeds that both have."),
    "gate": ("gate", "Decide from digested inputs whether something may go out."),
    "rerun": ("rerun", "Run a recorded result again, on the stack that made it."),
    "stamp": ("stamp", "Write beside a file what it was made from."),
    "trace": ("trace", "Walk from a figure to its summary, its sources, the task and the log."),
}
_EXAMPLES = """
fleetcraft evidence freeze results/ --name sweep-1
fleetcraft evidence archive sweep-1 /work/me/archive/sweep-1
fleetcraft evidence verify /work/me/archive/sweep-1 --level reread
fleetcraft evidence compare full cached --metric score
fleetcraft evidence trace figures/score.png
"""


class _EvidenceGroup(LazyGroup):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, Examples=_EXAMPLES)


evidence_command = _EvidenceGroup(
    "evidence",
    help="Prove what a result rests on: manifests, archives, grids, gates.\n\n"
    "Every verdict names its level: listed, sized, hashed, or reread from the disk itself.",
    table=COMMANDS,
    package=__name__,
    path="fleetcraft evidence",
    context_settings={"help_option_names": ["-h", "--help"]},
)
