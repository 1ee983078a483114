"""``fleetcraft rollouts replenish``: one pass that enqueues at most one producer task.

The task waits in a spool, where ``fleetcraft renew`` and every worker see it as any other demand.
Invariant: what is not known enqueues nothing, and says that watching longer may tell.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fleetcraft.cli.output import note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError

if TYPE_CHECKING:
    from fleetcraft.rollouts.replenish import Advice, Outstanding, Workers
    from fleetcraft.rollouts.status import QueueStatus, Rates
    from fleetcraft.spool.directives import TaskSpec
    from fleetcraft.spool.tree import SpoolTree

_EXAMPLES = """
fleetcraft rollouts replenish rollouts/wan --workers-per-node 3 'bash produce_node.sh {n}'
fleetcraft rollouts replenish rollouts/wan --dry-run 'python produce.py'
fleetcraft rollouts replenish rollouts/wan --produced-per-hour 154 --consumed-per-hour 96 \
--workers-per-node 3 --time 12h -- python produce.py --stream node{n}
"""
_EXITS = """
0 a task was enqueued, or none is needed
2 no queue there, or no command; 5 the spool or the queue cannot be read or written
75 whether one is needed is not known: call again, or watch for longer
"""


@click.command(cls=FleetCommand, name="replenish", examples=_EXAMPLES, exits=_EXITS)
@click.argument("queue", metavar="DIR")
@click.argument("command", nargs=-1, metavar="COMMAND")
@click.option("--shape", default="", help="Workers of another shape suppress nothing.")
@click.option(
    "--workers-per-node",
    type=click.IntRange(1),
    default=1,
    help="Workers that COMMAND starts (1).",
)
@click.option("--produced-per-hour", type=float, help="Records of one such node; else measured.")
@click.option("--consumed-per-hour", type=float, help="Records of the trainer; else measured.")
@click.option("--for", "for_", metavar="DURATION", help="Watch at most so long (3 min by default).")
@click.option(
    "--starting",
    default="15m",
    metavar="DURATION",
    help="For so long a task may run before its workers beat (15m).",
)
@click.option("--time", "time_", metavar="HH:MM:SS", help="Walltime that the task needs.")
@click.option("--timeout", metavar="HH:MM:SS", help="The task is stopped after this.")
@click.option("--retries", type=int, default=0, help="Failures that are tried again (0).")
@click.option("--family", default="", metavar="NAME", help="The workload shape it belongs to.")
@click.option("--slot", default="", metavar="KIND", help="The kind of slot it needs.")
@click.option("--env-file", default="", metavar="FILE", help="NAME=value lines for it.")
@click.option("--dry-run", is_flag=True, help="Only say what would be enqueued.")
@pass_session
def replenish_command(session: Session, /, queue: str, **given: Any) -> int:
    """Enqueue one producer task when the queue runs low.

    DIR is the queue's folder; COMMAND is shell text, where {n} becomes the pass's number. Nothing
    is enqueued without a live trainer, above the low water, under ABORT, while an earlier task
    waits or starts, or while fresh workers make more than the trainer consumes.
    """
    from fleetcraft.rollouts.queue import RolloutQueue
    from fleetcraft.rollouts.status import Watcher

    spec = _spec(session, given)
    tree = session.tree()
    watcher = Watcher(RolloutQueue.open(queue))
    if sys.stderr.isatty():
        note("looking at the queue; workers of other machines are watched until they beat")
    pass_ = _Pass(tree, given)
    status = watcher.watch(
        _watch_s(given, watcher.queue.settings.fresh_s),
        enough=lambda status: pass_.judge(status).settled,
    )
    advice = pass_.judge(status)
    if advice.nodes:
        pass_.enqueue(session, spec, status.settings.run)
    _say(session, pass_, status, advice)
    return 0 if advice.settled else 75


class _Pass:
    """What one pass asks, and what it has found out by now."""

    def __init__(self, tree: SpoolTree, given: dict[str, Any]) -> None:
        from fleetcraft.units import parse_duration_s

        self._tree = tree
        self._given = given
        self._starting_s = parse_duration_s(given["starting"])
        self.workers: Workers
        self.rates: Rates
        self.outstanding: Outstanding
        self.action = ""
        self.task = ""

    def judge(self, status: QueueStatus) -> Advice:
        """The advice on what is known now."""
        from fleetcraft.rollouts.replenish import advise, find_outstanding, workers_of

        per_node = self._given["workers_per_node"]
        self.workers = workers_of(status, self._given["shape"])
        self.rates = self._rates(status.rates, per_node)
        self.outstanding = find_outstanding(
            self._tree,
            status.settings.run,
            fresh_workers=len(self.workers.fresh),
            workers_per_node=per_node,
            starting_s=self._starting_s,
        )
        advice = advise(
            status,
            self.workers,
            rates=self.rates,
            workers_per_node=per_node,
            outstanding=self.outstanding,
        )
        self.action = "not_needed" if advice.settled else "unknown"
        return advice

    def enqueue(self, session: Session, spec: TaskSpec, run: str) -> None:
        """Enqueues the one task of this pass, unless that is only to be said."""
        from fleetcraft.rollouts.replenish import enqueue_producer, task_name

        self.task = task_name(run, self.outstanding.last + 1)
        if self._given["dry_run"]:
            self.action = "would_enqueue"
            return
        if spec.family or spec.env_file:
            from fleetcraft.cli.family import hold_to_the_batch_table

            hold_to_the_batch_table(session, [msgspec.structs.replace(spec, name=self.task)])
        self.action = enqueue_producer(self._tree, run, spec, after=self.outstanding.last).value

    def _rates(self, measured: Rates, per_node: int) -> Rates:
        produced, consumed = self._given["produced_per_hour"], self._given["consumed_per_hour"]
        if produced is not None:
            measured = msgspec.structs.replace(measured, produced_per_worker_h=produced / per_node)
        if consumed is not None:
            measured = msgspec.structs.replace(measured, consumed_per_h=consumed)
        return measured


def _say(session: Session, pass_: _Pass, status: QueueStatus, advice: Advice) -> None:
    from fleetcraft.view.rollouts import render_replenish, replenish_shape

    if session.json:
        shape = replenish_shape(
            status,
            advice,
            action=pass_.action,
            task=pass_.task,
            workers=pass_.workers,
            outstanding=pass_.outstanding,
            rates=pass_.rates,
        )
        print_json(shape)
    else:
        print_text(render_replenish(pass_.action, pass_.task, advice))


def _watch_s(given: dict[str, Any], fresh_s: float) -> float:
    from fleetcraft.units import parse_duration_s

    # A little longer than it takes to see that a worker is not fresh.
    return parse_duration_s(given["for_"]) if given["for_"] else fresh_s + 1


def _spec(session: Session, given: dict[str, Any]) -> TaskSpec:
    import shlex

    from fleetcraft.spool.directives import TaskSpec
    from fleetcraft.units import parse_duration_s

    words: tuple[str, ...] = given["command"]
    if not words:
        hint = "fleetcraft rollouts replenish DIR 'COMMAND'"
        raise UsageError("no command was given; nothing was enqueued", hint=hint)
    return TaskSpec(
        name="x",
        command=words[0] if len(words) == 1 else shlex.join(words),
        project_dir=session.config.project_dir,
        family=given["family"],
        time_s=parse_duration_s(given["time_"]) if given["time_"] else None,
        timeout_s=parse_duration_s(given["timeout"]) if given["timeout"] else None,
        retries=given["retries"],
        slot=given["slot"],
        env_file=given["env_file"],
    )
