"""``fleetcraft recover``: claims whose owner is gone are put back, or rolled forward.

Invariant: a claim about whose owner nothing certain is known is left alone, and the output says so.
"""

from __future__ import annotations

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.spool.recovery import AskOwner, RecoveryItem, RecoveryReport, recover
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.view.text import left_out, one_line, plural

_SHOWN = 50
_EXAMPLES = """
fleetcraft recover
fleetcraft recover --dry-run
"""
_EXITS = """
0 done, also when claims of unknown owners were left alone
4 Slurm had to be asked about an owner and gave no answer; that claim was left alone
"""


@click.command(cls=FleetCommand, name="recover", examples=_EXAMPLES, exits=_EXITS)
@click.option("--dry-run", is_flag=True, help="Only say what would be put back.")
@pass_session
def recover_command(session: Session, dry_run: bool) -> int:
    """Put back the tasks of workers that are gone.

    Owners on this machine are looked at; about others Slurm is asked, which takes up to a minute.
    A worker of a job that still runs counts as dead only when its lease has been silent for
    minutes (fleet.lease_silent_s) and Slurm no longer lists its step or node. On the owner's own
    host, processes that its attempt left behind are stopped first. A task that had finished is
    not run again: its finish is carried out.
    """
    from fleetcraft.worker.survivors import stop_survivors

    tree = session.tree()
    report = recover(tree, _judge(session, tree), stop_survivors=stop_survivors, dry_run=dry_run)
    if session.json:
        print_json(_shape(report, dry_run=dry_run))
    else:
        _print(report, dry_run=dry_run)
    return 4 if report.unanswered else 0


def _judge(session: Session, tree: SpoolTree) -> AskOwner:
    """This machine's word, and Slurm's where that does not say."""
    from fleetcraft.fleet.judge import SlurmTruth, ask_slurm, listen_once
    from fleetcraft.slurm.polls import Polls

    limit_s = session.config.seconds("fleet.lease_silent_s")
    return ask_slurm(SlurmTruth(Polls()), listen_once(tree, limit_s))


def _shape(report: RecoveryReport, *, dry_run: bool) -> dict[str, object]:
    items = [
        {
            "task": item.task,
            "owner": item.owner,
            "action": item.action.replace(" ", "_"),
            "to": item.to or None,
            "reason": item.reason,
        }
        for item in report.items[:_SHOWN]
    ]
    return {
        "schema": "fleetcraft.recover/1",
        "dry_run": dry_run,
        "recovered": report.recovered,
        "rolled_forward": report.rolled_forward,
        "unknown": report.unknown,
        "alive": report.alive,
        "unanswered": report.unanswered,
        "would_recover": _would_recover(report),
        "reason": report.reason,
        "items": items,
        "items_left_out": max(0, len(report.items) - _SHOWN),
    }


def _would_recover(report: RecoveryReport) -> int:
    return sum(item.action == "would recover" for item in report.items)


def _print(report: RecoveryReport, *, dry_run: bool) -> None:
    if dry_run:
        print_text(f"would recover {plural(_would_recover(report), 'task')}; nothing was changed")
    else:
        print_text(
            f"recovered {plural(report.recovered, 'task')}, rolled {report.rolled_forward} forward"
        )
    if report.alive:
        print_text(f"{plural(report.alive, 'task runs', 'tasks run')} under living workers")
    if report.unknown:
        print_text(f"left {plural(report.unknown, 'task')} alone: {one_line(report.reason, 400)}")
    for item in report.items[:_SHOWN]:
        print_text(f"  {_line(item)}")
    for line in left_out(len(report.items[_SHOWN:])):
        print_text(line)


def _line(item: RecoveryItem) -> str:
    to = f" to {item.to}" if item.to else ""
    return f"{item.task}: {item.action}{to} ({one_line(item.reason)})"
