"""``fleetcraft launch --here``: the fleet of the allocation that this process is part of.

What a batch script becomes, and what a person types inside ``salloc``. Not here: watching the
steps (`fleet.allocation`). Invariant: nothing starts outside an allocation, nor while DRAIN or
STOP stands.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fleetcraft.cli.output import note, print_json, print_text
from fleetcraft.cli.session import Session
from fleetcraft.config import FILE_NAME
from fleetcraft.errors import SchedulerError, UsageError
from fleetcraft.fleet.allocation.launcher import Allocation, AllocationReport
from fleetcraft.fleet.allocation.node_worker import NodeWorker
from fleetcraft.fleet.allocation.roster import AllocationPlan
from fleetcraft.fleet.launch.plan import Company
from fleetcraft.fleet.launch.readiness import refuse_strange_setup
from fleetcraft.fleet.recovery import FleetRecovery
from fleetcraft.layout import Scratch
from fleetcraft.process import find_bash
from fleetcraft.slurm import commands
from fleetcraft.slurm.allocated import gpus_by_node, gpus_of_steps
from fleetcraft.slurm.polls import Polls
from fleetcraft.spool import views
from fleetcraft.spool.control import refuse_markers
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.trust import make_folders
from fleetcraft.view.text import plural, printable, table

if TYPE_CHECKING:
    from fleetcraft.config import Config

_RECOVER_AT_LEAST_S = 1.0
_RECOVER_AT_MOST_S = 15.0
_RECOVERY_TAKES_S = 120.0
_SET_UP = "FLEET_SETUP_DONE"


def run_here(session: Session, company: Company) -> int:
    """Runs the fleet of this allocation until all its workers have left.

    Raises:
        UsageError: This is no allocation, or it has too few nodes.
        SpoolError: The spool refuses, or DRAIN or STOP stands.
        SchedulerError: Slurm does not expand the list of nodes, or srun is not here.
    """
    job_id = os.environ.get("SLURM_JOB_ID", "")
    node_list = os.environ.get("SLURM_JOB_NODELIST", "")
    if not job_id or not node_list:
        raise UsageError(
            "this is no allocation: SLURM_JOB_ID and SLURM_JOB_NODELIST are not set; "
            "no worker was started",
            hint="salloc -N 2 fleetcraft launch --here, or fleetcraft launch -N 2 --time 00:30:00",
        )
    config = session.config
    _set_up_first(config)
    tree = SpoolTree(config.spool_dir("outer")).check_safe()
    refuse_markers(tree)
    nodes = tuple(commands.hostnames(node_list))
    if company.nodes > len(nodes):
        raise UsageError(
            f"the command beside the workers wants {company.nodes} nodes, and this allocation has "
            f"{len(nodes)}; nothing was started",
            hint="fewer with --beside-nodes, or a larger allocation",
        )
    _make_logs(config)
    report = _run(session, _plan(session, company, tree, job_id, nodes))
    _say(session, report, tree)
    return report.exit_code


def _set_up_first(config: Config) -> None:
    """Becomes the same command with ``slurm.setup`` sourced, unless the batch script did that."""
    setup = config.text("slurm.setup")
    if not setup or os.environ.get(_SET_UP) == setup:
        return
    refuse_strange_setup(setup)
    words = [sys.executable, "-P", "-m", "fleetcraft", *sys.argv[1:]]
    script = f'. "$1" || exit 3; export {_SET_UP}="$1"; shift; exec "$@"'
    os.execv(find_bash(), ["bash", "-c", script, "bash", setup, *words])


def _make_logs(config: Config) -> None:
    make_folders(Scratch(config.root).logs)


def _plan(
    session: Session, company: Company, tree: SpoolTree, job_id: str, nodes: tuple[str, ...]
) -> AllocationPlan:
    config = session.config
    return AllocationPlan(
        job_id=job_id,
        job_restarts=os.environ.get("SLURM_RESTART_COUNT", ""),
        nodes=nodes,
        gpus=_gpus(job_id),
        worker=tuple(_worker(config, company)),
        tree=tree,
        root=config.root,
        project_dir=config.project_dir,
        restarts=config.count("fleet.restarts"),
        grace_s=config.seconds("worker.grace_s"),
        warning_s=config.seconds("slurm.warning_s"),
        beside=company.command,
        beside_nodes=company.nodes,
        after_marker=company.after_marker,
        until_marker=company.until_marker,
        # Three heartbeats of silence, and what a pass or two of recovery may take after that.
        claims_patience_s=3 * config.seconds("worker.heartbeat_s") + _RECOVERY_TAKES_S,
    )


def _gpus(job_id: str) -> Mapping[str, int]:
    """GPUs that the step on each node is to ask for."""
    try:
        found = gpus_by_node(job_id)
    except SchedulerError as error:
        note(f"GPUs are left to srun: {printable(error.message)}")
        return {}
    asked = gpus_of_steps(found)
    if spare := sum(found.values()) - sum(asked.values()):
        least = min(asked.values())
        note(
            f"{plural(spare, 'GPU stays', 'GPUs stay')} idle: this job's nodes have different "
            f"numbers of GPUs, and Slurm gives none of its steps more than {least}; "
            "a fleet with nodes of one kind uses all of theirs"
        )
    return asked


def _worker(config: Config, company: Company) -> list[str]:
    """The worker's command line. Where everything lies, its environment says."""
    words = [sys.executable, "-P", "-m", "fleetcraft", "--spool", "outer", "worker"]
    words += ["--slots", config.text("worker.slots")]
    for option, setting in (
        ("--idle", "worker.idle_s"),
        ("--heartbeat", "worker.heartbeat_s"),
        ("--grace", "worker.grace_s"),
    ):
        words += [option, f"{config.seconds(setting):g}"]
    for option, path in (
        ("--after-marker", company.after_marker),
        ("--until-marker", company.until_marker),
    ):
        if path:
            words += [option, path]
    return words


def _run(session: Session, plan: AllocationPlan) -> AllocationReport:
    from fleetcraft.worker.survivors import stop_survivors

    config = session.config
    site = config.values["site"]
    if site.value and FILE_NAME not in site.source:
        os.environ["FLEET_SITE"] = str(site.value)
    os.environ["FLEET_ROOT"] = config.root
    os.environ["FLEET_PROJECT_DIR"] = config.project_dir
    os.environ["FLEET_SPOOL_DIR"] = config.spool_dir("outer")
    os.environ["FLEET_SPOOL_GPU_DIR"] = config.spool_dir("gpu")
    os.environ["FLEET_TELEMETRY_DIR"] = config.text("telemetry.dir")
    os.environ["FLEET_TELEMETRY_INTERVAL_S"] = f"{config.seconds('telemetry.interval_s'):g}"
    tell = _teller(session)
    polls = Polls()
    recovery = FleetRecovery(
        [plan.tree, SpoolTree(config.spool_dir("gpu"))],
        polls,
        stop_survivors=stop_survivors,
        note=lambda text: tell({"event": "recovery", "text": text}),
    )
    every_s = config.seconds("worker.heartbeat_s") / 2
    report = Allocation(
        plan,
        polls,
        recover=recovery.run,
        recover_every_s=min(_RECOVER_AT_MOST_S, max(_RECOVER_AT_LEAST_S, every_s)),
        on_event=tell,
    ).run()
    if not all(node.in_order for node in report.nodes):
        recovery.run_here()
    return report


class _Teller:
    """Progress in the batch log: one line an event, or one JSON object."""

    def __init__(self, session: Session) -> None:
        self._json = session.json

    def __call__(self, event: Mapping[str, object]) -> None:
        # A full disk, a quota or a terminal that is gone loses lines, never the fleet.
        with contextlib.suppress(OSError):
            self._say(event)

    def _say(self, event: Mapping[str, object]) -> None:
        if self._json:
            print_json({"schema": "fleetcraft.launch_event/1", **event})
            sys.stdout.flush()
            return
        where = f"{event['node']} (rank {event['rank']})" if "node" in event else "fleet"
        text = printable(str(event["text"]))
        note(f"{time.strftime('%H:%M:%S')} {where}: {event['event']}: {text}")


def _teller(session: Session) -> _Teller:
    return _Teller(session)


def _row(node: NodeWorker) -> list[str]:
    how = "left" if node.in_order else "lost" if node.lost else "failed"
    return [node.name, how, plural(node.starts, "start"), printable(node.over)]


def _say(session: Session, report: AllocationReport, tree: SpoolTree) -> None:
    counts = views.counts(tree)
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.allocation/1",
                "exit_code": report.exit_code,
                "beside": report.beside or None,
                "nodes": [
                    {
                        "node": node.name,
                        "rank": node.rank,
                        "in_order": node.in_order,
                        "starts": node.starts,
                        "reason": node.over,
                    }
                    for node in report.nodes
                ],
                "counts": counts,
            }
        )
        return
    print_text(table([_row(node) for node in report.nodes], indent=""))
    if report.beside:
        print_text(f"the command beside the workers: {report.beside}")
    print_text(", ".join(f"{count} {state}" for state, count in counts.items()))
    if counts["running"] and not all(node.in_order for node in report.nodes):
        print_text(f"{session.reach()} recover puts back what dead workers held")
