"""The tables of the model: what a server sees of fleets of many sizes, and where this design stops.

Invariant: every number here follows from counted operations, the product's pauses, and the
assumptions that the page spells out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.scale.acts import Found, Subject, idle_poll, markers
from tests.scale.counting import METADATA
from tests.scale.model import (
    NAMES_A_LOOK,
    OF_BASH,
    SERVERS,
    WEIGHTS,
    Costs,
    Fleet,
    by_the_clock,
    idle_rate,
    rate,
    recovery_s,
    shortest_task_s,
    simulate,
    start_s,
    task_cost,
)
from tests.scale.tables import Table

NODES = (1, 100, 1_000, 10_000)
TASKS_S = (1.0, 10.0, 60.0, 600.0)
_LINE = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)
_LARGE = SERVERS[1]
Say = Callable[[str], None]


def count_costs(folder: Path) -> Costs:
    """What the model is fed with, counted here and now on a small spool."""
    subject = Subject(folder / "spool", 1_000)
    found = {one.act: one for one in subject.all(records=False)}

    def a_task(one: Found, *, but: tuple[str, ...] = ()) -> Counter[str]:
        return Counter(
            {kind: round(n / one.tasks) for kind, n in one.counts.items() if kind not in but}
        )

    listed = ("names",)  # as many as the fleet has, which the model knows
    return Costs(
        task=a_task(found["claim, begin and finish, one worker, listings apart"]),
        idle=a_task(idle_poll(folder / "idle"), but=listed),
        markers=a_task(markers(folder / "markers")),
        heartbeat=a_task(found["heartbeat, one task"]),
        recovery=a_task(found["recovery, none dead, next pass"], but=listed),
        promotion=a_task(found["promotion, next look"], but=listed),
        recovered=a_task(found["`recover`, all dead, a claim"], but=("names", "list")),
    )


def measure(
    folder: Path, figure: Path | None, say: Say, nodes: tuple[int, ...] = NODES
) -> list[Table]:
    """The model's tables, and its figure where it is wanted."""
    costs = count_costs(folder)
    say("  simulations")
    simulated = {
        (count, task_s): simulate(Fleet(nodes=count, task_s=task_s), costs, _LARGE)
        for count in nodes
        for task_s in TASKS_S
    }
    if figure is not None:
        from tests.scale.figure import draw

        draw(
            figure,
            _LINE,
            {t: [rate(Fleet(nodes=n, task_s=t), costs, _LARGE) for n in _LINE] for t in TASKS_S},
            {t: {n: simulated[n, t].rate for n in nodes} for t in TASKS_S},
            SERVERS,
        )
    return [
        _assumptions(costs),
        _busy(costs, simulated, nodes),
        _parts(costs, nodes),
        _stops(costs),
        _bursts(costs),
    ]


def _assumptions(costs: Costs) -> Table:
    table = Table(
        title="model: what is assumed",
        how="A metadata server is some threads with one queue before them. Its load is counted in "
        "looks (one `stat`). Operations are those counted above; pauses are the product's own, "
        "asked of it. The rest is assumed, and nothing here was measured on a cluster:",
        columns=["what", "assumed"],
    )
    weights = ", ".join(f"{kind} {WEIGHTS[kind]:g}" for kind in METADATA)
    table.rows = [
        ["what operations cost, in looks", weights],
        ["a listing", f"one look more for each {NAMES_A_LOOK} entries"],
        ["reads and writes of small files", "half a look on NFS, else other servers' work"],
        ["round trip of a call", f"{_LARGE.round_trip_s * 1000:g} ms"],
        ["threads", str(_LARGE.threads)],
        *([server.name, f"{server.per_s:,.0f} looks a second"] for server in SERVERS),
        [
            "a task, from claim to filing",
            f"{_LARGE.load(task_cost(costs)):g} looks, {_LARGE.load(OF_BASH):g} of them by the "
            "bash that runs the record (counted in spool.md)",
        ],
    ]
    return table


def _busy(costs: Costs, simulated: dict, nodes: tuple[int, ...]) -> Table:  # type: ignore[type-arg]
    table = Table(
        title="model: a busy fleet",
        how=f"100,000 tasks pending, all nodes begin at once, one task at a time on each; "
        f"{_LARGE.name}. Asked for: by the formula. The rest is simulated, once every worker has "
        "begun.",
        columns=[
            "nodes", "task", "asked for, looks/s", "answered", "used", "claim, mean", "claim, 99 %",
            "efficiency",
        ],
    )  # fmt: skip
    for count in nodes:
        for task_s in TASKS_S:
            seen = simulated[count, task_s]
            asked = rate(Fleet(nodes=count, task_s=task_s), costs, _LARGE)
            table.rows.append(
                [
                    f"{count:,}", f"{task_s:g} s", f"{asked:,.0f}", f"{seen.rate:,.0f}",
                    f"{seen.used:.1%}", f"{seen.claim_s * 1000:,.1f} ms",
                    f"{seen.claim_99_s * 1000:,.1f} ms", f"{seen.efficiency:.1%}",
                ]
            )  # fmt: skip
    table.data = {f"{n}x{t:g}": vars(seen) for (n, t), seen in simulated.items()}
    table.after.append(
        "Efficiency is the share of slot time in which tasks ran. What bash and the task's own "
        "start take is not in it."
    )
    return table


def _parts(costs: Costs, nodes: tuple[int, ...]) -> Table:
    table = Table(
        title="model: what the load is made of",
        how=f"Looks a second with tasks of 60 s, 100,000 pending; {_LARGE.name}.",
        columns=["what", *(f"{count:,} nodes" for count in nodes)],
    )
    fleets = [Fleet(nodes=count, task_s=60.0) for count in nodes]
    parts = [by_the_clock(fleet, costs, _LARGE) for fleet in fleets]
    tasks = [fleet.nodes * _LARGE.load(task_cost(costs)) / fleet.task_s for fleet in fleets]
    table.rows.append(["tasks", *(f"{value:,.1f}" for value in tasks)])
    for what in parts[0]:
        table.rows.append([what, *(f"{part[what]:,.1f}" for part in parts)])
    idle = [idle_rate(fleet, costs, _LARGE) for fleet in fleets]
    table.rows.append(["nothing to claim: all of it", *(f"{value:,.1f}" for value in idle)])
    return table


def _stops(costs: Costs) -> Table:
    table = Table(
        title="model: where this design stops",
        how="The shortest task with which a busy fleet uses 70 % of the server, 100,000 pending. "
        "Eight a node: eight single-GPU slots a node whose inner spool lies on the same server. "
        "Four spools: nodes and tasks spread over four spools on servers of their own.",
        columns=["nodes", "server", "one a node", "eight a node", "four spools, one a node"],
    )
    for count in (100, 1_000, 10_000, 30_000):
        for server in SERVERS:
            fleet = Fleet(nodes=count, task_s=1.0)
            four = Fleet(nodes=max(1, count // 4), task_s=1.0, pending=25_000)
            row = [
                shortest_task_s(one, costs, server)
                for one in (fleet, replace(fleet, a_node=8), four)
            ]
            table.rows.append([f"{count:,}", server.name, *map(_seconds, row)])
    table.after.append(
        "One listing of n names gives each of w workers n/w of them, so a task costs as many "
        "listed names as there are workers: above some thousands of nodes that is most of its "
        "cost. What helps, in this order: longer tasks (several steps in one), several spools "
        "with their own nodes, packs (one outer task a node, whose inner spool may lie on another "
        "server), and a server that spreads folders over several machines."
    )
    return table


def _seconds(value: float | None) -> str:
    if value is None:
        return "none: what goes on by the clock is more"
    return f"{value:.2g} s" if value < 100 else f"{value:,.0f} s"


def _bursts(costs: Costs) -> Table:
    table = Table(
        title="model: bursts",
        how="Start: all workers list at once; seconds until the last has its list. Recovery: one "
        "`fleetcraft recover` puts back the claims of a whole fleet that is dead, one after the "
        "other.",
        columns=["nodes", "server", "start, 10,000 pending", "100,000", "1,000,000", "recovery"],
    )
    for count in NODES[1:]:
        for server in SERVERS:
            fleet = Fleet(nodes=count, task_s=60.0)
            starts = [start_s(replace(fleet, pending=n), server) for n in (10**4, 10**5, 10**6)]
            recovered = recovery_s(fleet, costs, server)
            table.rows.append([f"{count:,}", server.name, *map(_seconds, [*starts, recovered])])
    table.after.append(
        "A start is the worst moment: a fleet of ten thousand nodes before a million pending tasks "
        "keeps a server busy for minutes. Enqueue in waves, let dependencies hold back what is not "
        "needed yet (`waiting/` is listed by few), or split the work over several spools."
    )
    return table
