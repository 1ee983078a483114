"""``fleetcraft grid``: which frozen list of tasks lane ``last`` of a spool is bound to.

The list itself is made by ``enqueue --freeze-grid``, from the same words that would enqueue it.
Invariant: what admits a task is decided in `spool.grid`.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session, write_sections
from fleetcraft.layout import Lane
from fleetcraft.spool import grid
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.view.text import left_out, plural

_SHOWN = 20
_FREEZE = "fleetcraft enqueue --spool gpu --lane last --from panels.jsonl --freeze-grid"
_BIND_EXAMPLES = f"""
{_FREEZE}
fleetcraft grid bind --spool gpu DIGEST
fleetcraft grid bind --spool gpu NEW --instead-of OLD
"""
_SHOW_EXAMPLES = """
fleetcraft grid show --spool gpu
fleetcraft grid show --spool gpu --json
"""
_EXITS = """
3 not a sha256; 5 no such grid, or the lane is bound to another one; 7 the grid was changed
"""


@click.command(cls=FleetCommand, name="bind", examples=_BIND_EXAMPLES, exits=_EXITS)
@click.argument("digest")
@click.option("--instead-of", default="", metavar="DIGEST", help="The grid that binds it now.")
@pass_session
def bind_grid(session: Session, digest: str, instead_of: str) -> None:
    """Let only the tasks of a frozen grid into lane last, and let workers run no other from it.

    The binding lies in the spool, so that it holds for every enqueuer and worker.
    """
    grid.check_digest(digest, "DIGEST")
    tree = session.tree()
    fresh = grid.bind(tree, digest, instead_of=instead_of)
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.grid_bind/1",
                "digest": digest,
                "result": "bound" if fresh else "already_bound",
                "spool": tree.paths.root,
            }
        )
    else:
        print_text(f"{'bound' if fresh else 'bound already'}: lane last to {digest}")


@click.command(cls=FleetCommand, name="show", examples=_SHOW_EXAMPLES, exits=_EXITS)
@pass_session
def show_grid(session: Session) -> None:
    """Show which tasks may enter lane last.

    The grid's bytes are compared with its digest first.
    """
    tree = session.tree()
    digest = grid.law_of(tree, configured_grid(session))
    bound = bool(digest) and grid.law_of(tree) == digest
    tasks = sorted(grid.read_grid(tree, digest).tasks) if digest else []
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.grid/1",
                "digest": digest or None,
                "bound": bound,
                "tasks": len(tasks),
                "names": tasks[:_SHOWN],
                "names_left_out": max(0, len(tasks) - _SHOWN),
                "spool": tree.paths.root,
            }
        )
        return
    if not digest:
        print_text("lane last is open to any task")
        return
    how = "bound to" if bound else f"not bound yet; {grid.SETTING} is"
    print_text(f"lane last is {how} {digest} ({plural(len(tasks), 'task')})")
    for name in tasks[:_SHOWN]:
        print_text(f"  {name}")
    for line in left_out(len(tasks[_SHOWN:])):
        print_text(line)


class _GridGroup(click.Group):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, Examples=_BIND_EXAMPLES)


grid_command = _GridGroup(
    "grid",
    help="Bind lane last to a frozen list of tasks.",
    commands=[bind_grid, show_grid],
    context_settings={"help_option_names": ["-h", "--help"]},
)


# -- for enqueue


def configured_grid(session: Session, spool_dir: str = "") -> str:
    """The project's ``pack.last_grid`` where it counts: for the spool that packs drain.

    Args:
        session: This call.
        spool_dir: The spool in question; the one that was asked for if empty.

    Raises:
        ConfigError: It is no sha256.
    """
    text = session.config.text(grid.SETTING)
    if not text or (spool_dir or session.spool_dir) != session.config.spool_dir("gpu"):
        return ""
    return grid.check_digest(text, grid.SETTING)


def bind_as_configured(session: Session, tree: SpoolTree) -> None:
    """Binds the inner spool to the project's grid, where the project has one.

    Raises:
        SpoolError: The spool does not have that grid, or is bound to another one.
    """
    digest = configured_grid(session, tree.paths.root)
    if digest and grid.law_of(tree, digest):
        grid.bind(tree, digest)


def hold_to_the_grid(session: Session, tree: SpoolTree, specs: Sequence[TaskSpec]) -> None:
    """Refuses tasks that the project's grid does not declare, then binds the spool to that grid.

    Raises:
        SpoolError: A task is not declared, or the spool is bound to another grid.
    """
    if any(spec.lane is Lane.LAST for spec in specs):
        grid.refuse_undeclared(tree, specs, configured=configured_grid(session))
        bind_as_configured(session, tree)


def freeze_and_say(session: Session, specs: Sequence[TaskSpec]) -> None:
    """Freezes tasks instead of enqueueing them.

    Raises:
        UsageError: A task is wrong or of another lane.
        SpoolError: The grid could not be written.
    """
    tree = session.tree()
    frozen = grid.freeze(tree, specs)
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.grid_freeze/1",
                "digest": frozen.digest,
                "tasks": len(frozen.tasks),
                "path": tree.paths.grid(frozen.digest),
                "spool": tree.paths.root,
            }
        )
        return
    print_text(frozen.digest)
