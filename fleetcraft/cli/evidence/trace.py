"""``fleetcraft evidence trace``: from a figure back to its summary, sources, tasks and logs.

Invariant: exit 0 means that everything on the way was found and stands at the level that is shown.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import ConfigError, UsageError
from fleetcraft.view.text import Paint, plural

if TYPE_CHECKING:
    from fleetcraft.evidence.tracing.rooms import Roots
    from fleetcraft.evidence.tracing.walking import Recompute

_EXAMPLES = """
fleetcraft evidence trace figures/score.png
fleetcraft evidence trace window.json --json
fleetcraft evidence trace clip-0017.mp4
fleetcraft evidence trace figures/score.png --archive /work/me/archive/sweep-1
"""
_EXITS = """
0 verified, down to tasks and logs or to where nothing further is recorded
1 something changed since it was recorded
7 something is missing, unknown, or was never recorded
"""


@click.command(cls=FleetCommand, name="trace", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("file", metavar="FILE")
@click.option(
    "--archive", "archives", multiple=True, metavar="DIR", help="Look in this archive, too."
)
@click.option("--limit", type=click.IntRange(1), default=50, help="Entries of one list (50).")
@click.option(
    "--recompute", is_flag=True, help="Compute frozen windows again, as telemetry verify does."
)
@click.option("--sizes", is_flag=True, help="Do not hash outputs that results name.")
@pass_session
def trace_command(
    session: Session,
    *,
    file: str,
    archives: tuple[str, ...],
    limit: int,
    recompute: bool,
    sizes: bool,
) -> int:
    """Walk from a figure to its summary, its sources, the task and the log.

    Each file on the way is hashed and compared with what was recorded when it was used: by
    FILE.origin.json beside it, by a frozen window, by a result record, or by the task that declared
    it as an output. A source that has only grown since agrees by its prefix. Tasks are found by
    their record and the history line of their claim, logs by their name. Sources are looked for
    where the record says, then in the scratch tree, then in each --archive.
    """
    from fleetcraft.evidence.tracing.nodes import Standing, overall
    from fleetcraft.evidence.tracing.trace import trace
    from fleetcraft.view.evidence_trace import render_trace, trace_shape

    for archive in archives:
        if not os.path.isdir(archive):
            raise UsageError(f"no archive at {archive}: it is no folder; nothing was looked at")
    roots = roots_of(session, archives)
    with Looked() as looked:
        node = trace(
            file,
            roots=roots,
            limit=limit,
            hash_outputs=not sizes,
            recompute=_recompute(roots) if recompute else None,
            progress=looked,
        )
    if session.json:
        print_json(trace_shape(node))
    else:
        print_text(render_trace(node, paint=Paint.for_stream(sys.stdout), width=columns()))
    return {Standing.VERIFIED: 0, Standing.CHANGED: 1}.get(overall(node), 7)


def _recompute(roots: Roots) -> Recompute:
    """What computes a frozen window again, where its telemetry may also be in that of settings."""
    from fleetcraft.evidence.tracing.nodes import Standing
    from fleetcraft.telemetry.windows.verdicts import Verdict
    from fleetcraft.telemetry.windows.verify import verify

    def again(path: str) -> tuple[Standing, str]:
        found = verify(path, elsewhere=(roots.telemetry,) if roots.telemetry else ())
        if found.verdict is Verdict.VERIFIED:
            return Standing.VERIFIED, f"computed again from {plural(found.observations, 'row')}"
        if found.verdict is Verdict.UNVERIFIABLE:
            return Standing.UNKNOWN, found.reason
        return Standing.CHANGED, f"computed again, {found.differences[0].field} differs"

    return again


def roots_of(session: Session, archives: tuple[str, ...] = ()) -> Roots:
    """Where evidence may lie, as settings and options say; a trace needs none of it."""
    from fleetcraft.evidence.tracing.rooms import Roots

    config = session.config
    try:
        scratch = config.root
    except ConfigError:
        scratch = ""
    spools: tuple[str, ...] = ()
    telemetry = ""
    try:
        spools = (config.spool_dir("outer"), config.spool_dir("gpu"))
        telemetry = config.telemetry_dir
    except ConfigError:
        pass
    return Roots(
        scratch=scratch,
        spools=spools,
        telemetry=telemetry,
        archives=tuple(map(os.path.abspath, archives)),
    )


class Looked:
    """How many things were looked at, in one line of a terminal that is wiped at the end."""

    _EVERY = 20

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()

    def __enter__(self) -> Looked:
        return self

    def __call__(self, count: int) -> None:
        """Shows how far it is."""
        if count % self._EVERY == 0:
            self._write(f"\r\x1b[Klooking: {count} things")

    def __exit__(self, *_: object) -> None:
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self._on:
            sys.stderr.write(text)
            sys.stderr.flush()
