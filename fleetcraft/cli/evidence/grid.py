"""``fleetcraft evidence grid``: the cells of an experiment, from their declaration to release.

Invariant: a state is put once, in order, and never taken back.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from fleetcraft.cli.output import note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session, write_sections
from fleetcraft.layout import Scratch
from fleetcraft.layout.evidence import EvidencePaths
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.evidence.release.cells import Completeness
    from fleetcraft.evidence.release.grid import Grid, Standing

_EXAMPLES = """
fleetcraft evidence grid show grid.yaml
fleetcraft evidence grid freeze grid.yaml
fleetcraft evidence grid start sweep-1
fleetcraft evidence grid complete sweep-1
fleetcraft evidence grid release sweep-1 --gate release-1
"""
_SHAPE = """
name: sweep-1
arms: [full, cached]
seeds: {first: 0, last: 499}
candidates: [panel-1, panel-2]
scripts: [run.py, score.py]
endpoints: [score]
"""
_FREEZE_EXITS = """
0 it is frozen, now or before
1 another grid is frozen under this name
3 the file is wrong; the message has the line
"""
_STATE_EXITS = """
0 it has that state, now or before
1 it is not at the state before, or not complete
7 a record or result cannot be trusted
"""
_LIMIT = click.option("--limit", type=click.IntRange(0), default=20, help="Entries a list (20).")


class _FreezeCommand(FleetCommand):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, **{"GRID.yaml": _SHAPE})
        super().format_epilog(ctx, formatter)


@click.command(
    cls=_FreezeCommand, name="freeze", spool=False, examples=_EXAMPLES, exits=_FREEZE_EXITS
)
@click.argument("file", metavar="GRID.yaml")
@pass_session
def freeze_grid(session: Session, file: str) -> int:
    """Freeze what a file declares, under the name that it gives.

    The file has name, arms and seeds (a list, or {first: 0, last: 499}), and may have candidates,
    scripts (files whose digests are frozen; paths go from the file), endpoints (metrics that every
    result must have) and tasks (the digest of a frozen list of tasks). From then on the result set
    of this name takes only results of its cells.
    """
    from fleetcraft.evidence.release.grid import freeze
    from fleetcraft.evidence.release.grid_file import read_grid_file, require_tasks

    grid = read_grid_file(file)
    if grid.tasks:
        spools = [session.config.spool_dir(name) for name in ("gpu", "outer")]
        require_tasks(grid.tasks, spools)
    folder = os.path.dirname(os.path.abspath(file))
    standing, fresh = freeze(_paths(session), grid, folder)
    return _say(session, standing, fresh=fresh)


@click.command(cls=FleetCommand, name="start", spool=False, examples=_EXAMPLES, exits=_STATE_EXITS)
@click.argument("name")
@pass_session
def start_grid(session: Session, name: str) -> int:
    """Say that a frozen grid runs; its first result says so too."""
    from fleetcraft.evidence.release.grid import GridState, advance

    standing, fresh = advance(_paths(session), name, GridState.RUNNING)
    return _say(session, standing, fresh=fresh)


@click.command(
    cls=FleetCommand, name="complete", spool=False, examples=_EXAMPLES, exits=_STATE_EXITS
)
@click.argument("name")
@_LIMIT
@pass_session
def complete_grid(session: Session, name: str, limit: int) -> int:
    """Close a grid in which every cell has exactly one result.

    Results of another grid digest are not counted, and neither are those without a declared metric.
    A complete grid takes no more results.
    """
    from fleetcraft.evidence.release.cells import complete
    from fleetcraft.evidence.release.grid import GridState

    standing, counted, edited, fresh = complete(_paths(session), name)
    done = GridState.COMPLETE in standing.records
    _say(
        session,
        standing,
        counted=counted,
        edited=edited,
        fresh=fresh if done else None,
        limit=limit,
    )
    if not done:
        note(f"grid {name!r} is not complete; nothing was changed")
    return 0 if done else 1


@click.command(
    cls=FleetCommand, name="release", spool=False, examples=_EXAMPLES, exits=_STATE_EXITS
)
@click.argument("name")
@click.option("--gate", required=True, metavar="NAME", help="The gate that passed.")
@pass_session
def release_grid(session: Session, name: str, gate: str) -> int:
    """Release a complete grid through a gate that passed.

    The gate must have asked for this grid (check grid_complete), and everything that it looked at
    must still have its digest.
    """
    from fleetcraft.cli.evidence.gate import surroundings
    from fleetcraft.evidence.release.gates import release

    standing, fresh = release(surroundings(session, os.curdir), name, gate)
    return _say(session, standing, fresh=fresh)


@click.command(cls=FleetCommand, name="show", spool=False, examples=_EXAMPLES, exits=_STATE_EXITS)
@click.argument("name", metavar="NAME|GRID.yaml")
@_LIMIT
@pass_session
def show_grid(session: Session, name: str, limit: int) -> int:
    """Show how far a grid is, and which cells lack a result; of a file, what it would freeze."""
    from fleetcraft.evidence.release.cells import look
    from fleetcraft.evidence.release.grid import Standing, read_standing
    from fleetcraft.evidence.release.grid_file import read_grid_file

    if name.endswith((".yaml", ".yml")):
        draft = read_grid_file(name)
        return _say(session, Standing(draft.name, {}, ""), draft=draft, limit=limit)
    paths = _paths(session)
    standing = read_standing(paths, name)
    counted, edited = look(paths, standing)
    return _say(session, standing, counted=counted, edited=edited, limit=limit)


def _paths(session: Session) -> EvidencePaths:
    return EvidencePaths(Scratch(session.config.root).evidence)


def _say(
    session: Session,
    standing: Standing,
    *,
    draft: Grid | None = None,
    counted: Completeness | None = None,
    edited: list[str] | None = None,
    fresh: bool | None = None,
    limit: int = 20,
) -> int:
    from fleetcraft.view.evidence_results import grid_shape, render_grid

    edited = edited or []
    if session.json:
        shape = grid_shape(
            standing, draft=draft, counted=counted, edited=edited, fresh=fresh, limit=limit
        )
        print_json(shape)
    else:
        paint = Paint.for_stream(sys.stdout)
        text = render_grid(
            standing, draft=draft, counted=counted, edited=edited, limit=limit, paint=paint
        )
        print_text(text)
    return 0


class _GridGroup(click.Group):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, Examples=_EXAMPLES)


grid_command = _GridGroup(
    "grid",
    help="Declare the cells of an experiment, freeze them, and lead them to release.\n\n"
    "DRAFT is the file; then FROZEN, RUNNING, COMPLETE and RELEASED, each put once, in this order.",
    commands=[freeze_grid, start_grid, complete_grid, release_grid, show_grid],
    context_settings={"help_option_names": ["-h", "--help"]},
)
