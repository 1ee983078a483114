"""``fleetcraft bridge``: publishes packs for GPUs that are seen free while single-GPU work waits.

One pass. Invariant: what it saw, and why it added no more, is printed with what it did.
"""

from __future__ import annotations

import os
import sys

import click

from fleetcraft.cli.grid import bind_as_configured
from fleetcraft.cli.output import note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.fleet import bridges
from fleetcraft.fleet.bridges import BridgePlan
from fleetcraft.spool.tree import SpoolTree, unreadable
from fleetcraft.view.text import left_out, one_line, plural

_SHOWN = 50
_EXAMPLES = """
fleetcraft bridge --dry-run
fleetcraft bridge --json
"""
_EXITS = """
0 done, also when none was added; 5 the spool refuses, or it is not bound as pack.last_grid says
"""


@click.command(cls=FleetCommand, name="bridge", examples=_EXAMPLES, exits=_EXITS, spool=False)
@click.option("--dry-run", is_flag=True, help="Only say how many would be published.")
@pass_session
def bridge_command(session: Session, dry_run: bool) -> None:
    """Publish packs for GPUs that nobody uses.

    A pack is an outer task that has a node alone and runs single-GPU tasks in a slot for each of
    its GPUs. So many are added: the smallest of GPUs seen free less packs that live, of
    single-GPU tasks that are pending and untimed, and of pack.bridges less packs that live. A
    pack that finds no work leaves after pack.idle_s.
    """
    config = session.config
    outer = SpoolTree(config.spool_dir("outer")).check_safe()
    inner = SpoolTree(config.spool_dir("gpu")).check_safe()
    if not dry_run:
        # Before the first pack can take anything from lane last.
        bind_as_configured(session, inner)
    command = bridges.pack_command(
        _own_program(), config.root, inner.paths.root, idle_s=config.seconds("pack.idle_s")
    )
    task = bridges.pack_task(outer, command, config.project_dir)
    cap = config.count("pack.bridges")
    try:
        plan = bridges.plan_bridges(
            bridges=bridges.find_bridges(outer, bridges.kind_of(task)),
            nodes=bridges.observe_workers(outer),
            pending=bridges.count_packable(inner, cap),
            cap=cap,
            stopped=bridges.what_forbids(outer, inner),
        )
    except OSError as error:
        raise unreadable(outer.paths.root, error) from error
    names: list[str] = []
    published = 0
    if not dry_run:
        names, report = bridges.publish_bridges(outer, task, plan)
        published = report.enqueued
    if session.json:
        print_json(_shape(plan, names, published, dry_run=dry_run))
    else:
        _print(plan, names, published, dry_run=dry_run)


def _own_program() -> list[str]:
    """The words that start this very fleetcraft on another node."""
    script = os.path.join(os.path.dirname(sys.executable), "fleetcraft")
    if os.access(script, os.X_OK):
        return [script]
    return [sys.executable, "-P", "-m", "fleetcraft"]


def _shape(
    plan: BridgePlan, names: list[str], published: int, *, dry_run: bool
) -> dict[str, object]:
    return {
        "schema": "fleetcraft.bridge/1",
        "dry_run": dry_run,
        "add": plan.add,
        "published": published,
        "names": names,
        "reason": plan.reason,
        "free_gpus": plan.free_gpus,
        "unknown": plan.unknown,
        "pending": plan.pending,
        "pending_at_most": plan.cap,
        "cap": plan.cap,
        "running": list(plan.bridges.running),
        "waiting": list(plan.bridges.waiting),
        "failed_in_a_row": plan.bridges.failed_in_a_row,
        "nodes": [
            {
                "host": node.host,
                "gpus": node.gpus,
                "state": node.use.value,
                "age_s": None if node.age_s is None else round(node.age_s, 1),
                "reason": node.reason,
            }
            for node in plan.nodes[:_SHOWN]
        ],
        "nodes_left_out": max(0, len(plan.nodes) - _SHOWN),
    }


def _print(plan: BridgePlan, names: list[str], published: int, *, dry_run: bool) -> None:
    for node in plan.nodes[:_SHOWN]:
        count = "GPUs not known" if node.gpus is None else plural(node.gpus, "GPU")
        print_text(f"  {node.host}: {count} {node.use.value} ({one_line(node.reason)})")
    for line in left_out(len(plan.nodes[_SHOWN:])):
        print_text(line)
    live = plan.bridges
    print_text(
        f"{plural(plan.free_gpus, 'GPU')} free, {plural(live.live, 'pack')} "
        f"({len(live.running)} running, {len(live.waiting)} waiting), "
        f"{'at least ' if plan.pending >= plan.cap else ''}"
        f"{plural(plan.pending, 'single-GPU task')} pending"
    )
    if dry_run:
        print_text(f"would publish {plural(plan.add, 'pack')}; {one_line(plan.reason)}")
        note("nothing was published (--dry-run)")
        return
    print_text(f"published {plural(published, 'pack')}; {one_line(plan.reason)}")
    for name in names:
        print_text(f"  {name}")
