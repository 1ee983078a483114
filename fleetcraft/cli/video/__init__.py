"""``fleetcraft video``: what a video file says, and whether it is whole.

One module a command. Invariant: importing this loads none of them.
"""

from __future__ import annotations

import click

from fleetcraft.cli.lazy import LazyGroup
from fleetcraft.cli.session import write_sections

COMMANDS = {
    "probe": ("probe", "Say what files hold, without decoding them."),
    "check": ("check", "Decode files whole, and try out whether an encoder repeats."),
}
_EXAMPLES = """
fleetcraft video probe clips/seed-3.mp4
fleetcraft video check clips/*.mp4
fleetcraft video check arm-b/seed-3.mp4 --against arm-a/seed-3.mp4
fleetcraft video check --encoder h264-sdr-v1
"""


class _VideoGroup(LazyGroup):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, Examples=_EXAMPLES)


video_command = _VideoGroup(
    "video",
    help="Say what a video file holds, and check that it is whole.\n\n"
    "Needs PyAV: pip install 'fleetcraft[video]'. Files that fleetcraft wrote have their encoder "
    "record beside them, NAME.encoder.json.",
    table=COMMANDS,
    package=__name__,
    path="fleetcraft video",
    context_settings={"help_option_names": ["-h", "--help"]},
)
