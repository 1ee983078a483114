"""``fleetcraft caches``: where models and compilers keep their files, and whether that is safe.

One module a command. Invariant: importing this loads none of them.
"""

from __future__ import annotations

import click

from fleetcraft.cli.lazy import LazyGroup
from fleetcraft.cli.session import write_sections

COMMANDS = {
    "show": ("show", "Show every cache's effective path, what decided it, and where it lies."),
    "check": ("check", "Find conflicts before a launch, and files that are near their purge age."),
    "env": ("env", "Print the exports that a job's wrapper needs before Python starts."),
    "fill": ("fill", "Let one writer fill a cache, verify it, and make it read-only."),
    "mirror": ("mirror", "Copy a model's cache completely, proving every file by its own name."),
    "quarantine": (
        "quarantine",
        "Set a corrupt file of a model aside, and say who must fetch it again.",
    ),
}
_EXAMPLES = """
fleetcraft caches show
fleetcraft caches check --ask
eval "$(fleetcraft caches env --run sweep --attempt 1)"
fleetcraft caches mirror org/model --to /scratch/me/caches/huggingface/hub
fleetcraft caches quarantine org/model model-00005-of-00006.safetensors
"""


class _CachesGroup(LazyGroup):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, Examples=_EXAMPLES)


caches_command = _CachesGroup(
    "caches",
    help="Show, check and set where models and compilers keep their files.\n\n"
    "Paths are the effective ones: what the installed libraries resolve, not what a variable says.",
    table=COMMANDS,
    package=__name__,
    path="fleetcraft caches",
    context_settings={"help_option_names": ["-h", "--help"]},
)
