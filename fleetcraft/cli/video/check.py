"""``fleetcraft video check``: whether files are whole, comparable, and their encoder repeats.

Invariant: exit 0 means that every check that was asked for was made and none said no.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.video.check import Checked
    from fleetcraft.video.comparison import Compared
    from fleetcraft.video.repeats import Repeatability
    from fleetcraft.view.video import CheckProgress

_EXAMPLES = """
fleetcraft video check clips/*.mp4
fleetcraft video check arm-b/seed-3.mp4 --against arm-a/seed-3.mp4
fleetcraft video check --encoder h264-sdr-v1
fleetcraft video check --encoder all --runs 6 --json
"""
_EXITS = """
0 whole, comparable, and one bitstream each time
1 a check said no: damage, a record of another file, other encoders, several bitstreams
2 usage; 7 a file or its record could not be read
"""


@click.command(cls=FleetCommand, name="check", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("files", metavar="[FILE...]", nargs=-1)
@click.option("--against", metavar="FILE", help="Compare encoder record and pictures with it.")
@click.option(
    "--encoder",
    "profiles",
    metavar="PROFILE",
    multiple=True,
    help="Encode a clip several times with this profile, or all, and compare the bytes.",
)
@click.option("--runs", type=click.IntRange(2, 100), default=2, help="Encodings for that (2).")
@click.option("--limit", type=click.IntRange(0), default=20, help="Files that text lists (20).")
@pass_session
def check_command(
    session: Session,
    *,
    files: tuple[str, ...],
    against: str | None,
    profiles: tuple[str, ...],
    runs: int,
    limit: int,
) -> int:
    """Decode files whole, and try out whether an encoder repeats.

    Counts frames against what the container promises, finds truncation and damage, says whether
    a clip is black, and compares the encoder record beside a file with what its bitstream says.
    With --against, files of different encoder records are refused, and PSNR is shown where sizes
    agree.
    """
    if not files and (against or not profiles):
        raise UsageError(
            "no file to check", hint="fleetcraft video check FILE, or --encoder h264-sdr-v1"
        )
    from fleetcraft.view.video import CheckProgress, check_shape, render_check

    encoders = _tried(profiles, runs)
    progress = CheckProgress(sys.stderr.isatty())
    try:
        found, compared = _examined(files, against, progress)
    finally:
        progress.close()
    if session.json:
        print_json(check_shape(found, compared, encoders, against=against))
    else:
        paint = Paint.for_stream(sys.stdout)
        text = render_check(found, compared, encoders, limit=limit, paint=paint, width=columns())
        print_text(text)
    return _exit_code(found, compared, encoders)


def _tried(profiles: tuple[str, ...], runs: int) -> list[tuple[str, Repeatability]]:
    from fleetcraft.video.profiles import PROFILES, encoder_profile

    names = list(dict.fromkeys(PROFILES if "all" in profiles else profiles))
    settings = [encoder_profile(name) for name in names]
    if not names:
        return []
    from fleetcraft.video.repeats import repeatability

    return [(n, repeatability(s, runs=runs)) for n, s in zip(names, settings, strict=True)]


def _examined(
    files: tuple[str, ...], against: str | None, progress: CheckProgress
) -> tuple[list[Checked], list[Compared]]:
    if not files:
        return [], []
    from fleetcraft.video.check import check_video
    from fleetcraft.video.comparison import compare_videos

    found, compared = [], []
    for file in files:
        found.append(check_video(file, progress=progress.of(file)))
        if against is not None:
            compared.append(compare_videos(file, against))
    return found, compared


def _exit_code(
    found: list[Checked], compared: list[Compared], encoders: list[tuple[str, Repeatability]]
) -> int:
    verdicts = [item.verdict.value for item in found]
    agreements = [item.encoders.value for item in compared]
    if "unreadable" in verdicts or "unknown" in agreements:
        return 7
    says_no = "broken" in verdicts or "different" in agreements
    return int(says_no or not all(tried.repeats for _, tried in encoders))
