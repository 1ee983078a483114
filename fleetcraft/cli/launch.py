"""``fleetcraft launch``: a fleet is submitted, or, with ``--here``, run in this allocation.

Not here: the run itself (`allocation`). Invariant: a dry run submits nothing and writes nothing,
and what it prints is what would be submitted.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from fleetcraft.cli.output import note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.cli.worker import worker_flag
from fleetcraft.errors import UsageError
from fleetcraft.view.text import Paint, plural, printable, table

if TYPE_CHECKING:
    from fleetcraft.fleet.launch.plan import Company, LaunchPlan
    from fleetcraft.fleet.launch.readiness import Check

_EXAMPLES = """
fleetcraft launch -N 4 --time 00:30:00 --dry-run
fleetcraft launch -N 16 --time 12:00:00 --partition gpu --gpus-per-node 3 --slots gpu
fleetcraft launch -N 4 --time 00:30:00 --site a100-three-gpus -- --reservation=course
fleetcraft launch -N 10 --time 08:00:00 --beside 'bash train.sh' --beside-nodes 6 \\
    --after-marker run/ready.json --until-marker run/done
salloc -N 4 --time 01:00:00 fleetcraft launch --here
"""
_EXITS = """
0 submitted, or with --here: all workers left in order whose node was not lost
1 the balance would fall below balance.headroom_h; with --here: not all left in order
2 a bad option; 4 Slurm refused or did not answer; 5 DRAIN or STOP stands, or the spool refuses
75 this login node has no room for a launch; 130 and 143 after a signal (--here)
"""
_SETTINGS = {
    "site": "site",
    "slots": "worker.slots",
    "idle": "worker.idle_s",
    "heartbeat": "worker.heartbeat_s",
    "grace": "worker.grace_s",
    "warning": "slurm.warning_s",
    "partition": "slurm.partition",
    "account": "slurm.account",
    "qos": "slurm.qos",
    "constraint": "slurm.constraint",
    "gpus_per_node": "slurm.gpus_per_node",
}
_STATUS_PAINT = {"ok": "good", "warning": "warn", "not_checked": "quiet"}


@click.command(cls=FleetCommand, name="launch", examples=_EXAMPLES, exits=_EXITS, spool=False)
@click.option("-N", "--nodes", type=click.IntRange(1), help="Nodes of the allocation.")
@click.option("--time", metavar="TIME", help="Walltime as for sbatch; a bare number is minutes.")
@click.option("--idle", metavar="S", help="A worker leaves after so long without work (30m).")
@click.option("--slots", metavar="N|gpu", help="Tasks that a worker runs at a time (1), or gpu.")
@click.option("--site", metavar="NAME", help="Site profile: a name in infra/sites, or a file.")
@click.option("--partition", metavar="NAME", help="Partition.")
@click.option("--account", metavar="NAME", help="Account that is charged.")
@click.option("--qos", metavar="NAME", help="QOS.")
@click.option("--constraint", metavar="FEATURES", help="Features that the nodes must have.")
@click.option("--gpus-per-node", metavar="N", help="GPUs asked for on each node.")
@click.option("--name", metavar="NAME", help="Name of the job (fleet).")
@click.option("--beside", metavar="COMMAND", help="Runs beside the workers, on nodes of its own.")
@click.option("--beside-nodes", type=click.IntRange(1), help="It runs on so many, as one step.")
@click.option("--after-marker", metavar="FILE", help="Workers claim nothing before it is verified.")
@click.option("--until-marker", metavar="FILE", help="Workers leave only after this file exists.")
@click.option("--heartbeat", metavar="S", help="Seconds between heartbeats of a worker.")
@click.option("--grace", metavar="S", help="Seconds between TERM and KILL when a task is stopped.")
@click.option("--warning", metavar="S", help="Workers drain so long before the end (180, or less).")
@click.option("--here", is_flag=True, help="Run the fleet in the allocation that this is part of.")
@click.option("--dry-run", is_flag=True, help="Only print the sbatch line and the checks.")
@click.argument("further", nargs=-1, metavar="[-- SBATCH-OPTION]...")
@pass_session
def launch_command(session: Session, /, **given: Any) -> int:
    """Submit a fleet: one Slurm job with a worker on each of its nodes.

    Checks first whether this login node has room, whether the balance suffices, and whether the
    spool, the project and the scratch tree can be used. --time is Slurm's own syntax: minutes,
    HH:MM:SS or D-HH:MM:SS. Other times are seconds or durations such as 90s and 00:30:00.
    Whatever stands after -- are further options of sbatch.
    """
    for option, setting in _SETTINGS.items():
        worker_flag(session, setting, given[option])
    company = _company(given)
    if given["here"]:
        _refuse_with_here(given)
        from fleetcraft.cli.allocation import run_here

        return run_here(session, company)
    return _submit(session, company, given)


def _refuse_with_here(given: dict[str, Any]) -> None:
    names = {
        "nodes": "-N",
        "time": "--time",
        "dry_run": "--dry-run",
        "further": "options of sbatch",
    }
    for option, shown in names.items():
        if given[option]:
            raise UsageError(
                f"--here runs a fleet in an allocation that is there, and takes no {shown}; "
                "no worker was started",
                hint="fleetcraft launch -N 4 --time 00:30:00 --dry-run shows what it would submit",
            )


def _company(given: dict[str, Any]) -> Company:
    from fleetcraft.fleet.launch.plan import Company

    if bool(given["beside"]) != bool(given["beside_nodes"]):
        raise UsageError(
            "--beside and --beside-nodes go together; nothing was submitted",
            hint="--beside 'COMMAND' --beside-nodes N runs COMMAND on the first N nodes",
        )
    after, until = given["after_marker"], given["until_marker"]
    return Company(
        command=given["beside"] or "",
        nodes=given["beside_nodes"] or 0,
        after_marker=os.path.abspath(after) if after else "",
        until_marker=os.path.abspath(until) if until else "",
    )


def _submit(session: Session, company: Company, given: dict[str, Any]) -> int:
    from fleetcraft.fleet.launch.plan import parse_walltime_s, plan_launch, submit_launch
    from fleetcraft.fleet.launch.readiness import check_launch, refuse
    from fleetcraft.slurm.polls import Polls

    for option, what in (("nodes", "-N NODES"), ("time", "--time TIME")):
        if given[option] is None:
            raise UsageError(
                f"{what} is missing; nothing was submitted",
                hint="fleetcraft launch -N 4 --time 00:30:00, or --here inside an allocation",
            )
    plan = plan_launch(
        session.config,
        nodes=given["nodes"],
        time_s=parse_walltime_s(given["time"]),
        name=given["name"] or "",
        extra=given["further"],
        company=company,
    )
    checks = check_launch(session.config, plan, Polls(), dry_run=given["dry_run"])
    if given["dry_run"]:
        _say(session, plan, checks, job_id=None)
        return next((check.error.exit_code for check in checks if check.error is not None), 0)
    _warn(session, checks)
    refuse(checks)
    _say(session, plan, checks, job_id=submit_launch(plan))
    return 0


def _warn(session: Session, checks: list[Check]) -> None:
    if session.json:
        return
    for check in checks:
        if check.status == "warning":
            note(f"warning: {printable(check.text)}")


def _row(check: Check, paint: Paint) -> list[str]:
    status = paint(_STATUS_PAINT.get(check.status, "bad"), check.status.value)
    return [check.name, status, printable(check.text)]


def _say(session: Session, plan: LaunchPlan, checks: list[Check], *, job_id: str | None) -> None:
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.launch/1",
                "job_id": job_id,
                "sbatch": plan.line,
                "argv": plan.sbatch,
                "dry_run": job_id is None,
                "log": plan.log if job_id is None else plan.log_of(job_id),
                "checks": [
                    {"name": check.name, "status": check.status.value, "text": check.text}
                    for check in checks
                ],
            }
        )
        return
    if job_id is None:
        paint = Paint.for_stream(sys.stdout)
        print_text(table([_row(check, paint) for check in checks], indent=""))
        print_text(f"\n{plan.line}")
        print_text("\nnothing was submitted")
        return
    print_text(f"submitted job {job_id}: {plural(plan.nodes, 'node')}")
    print_text(f"log:  {plan.log_of(job_id)}; of node N: fleet-{job_id}.N.log beside it")
    reach = session.reach()
    print_text(f"next: {reach} status; squeue -j {shlex.quote(job_id)}; scancel {job_id}")
