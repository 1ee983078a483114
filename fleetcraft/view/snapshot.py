"""A snapshot of jobs, nodes and GPUs as text; as JSON it is `snapshot_shape`.

Invariant: what is not known is said to be unknown with the reason, each part shows its age, and
what needs a look comes first, since lists are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fleetcraft.fleet.snapshot.gpus import Gpu
from fleetcraft.fleet.snapshot.jobs_and_nodes import JobView, NodeView
from fleetcraft.fleet.snapshot.whole import Part, Snapshot
from fleetcraft.gpu.states import GpuState, Sighting
from fleetcraft.slurm.accounting import Balance, Limits
from fleetcraft.units import format_clock, format_seconds
from fleetcraft.view.snapshot_shape import summary, time_text, unlisted, word
from fleetcraft.view.text import Paint, joined, left_out, one_line, plural, table

_COLOURS = {GpuState.LOST: "bad", GpuState.SILENT: "bad", GpuState.UNKNOWN: "warn"}
_BAD_NODE = frozenset({"down", "drained", "draining", "fail", "failing", "unknown"})
_RANK = {
    state: rank
    for rank, state in enumerate(
        (
            GpuState.LOST, GpuState.SILENT, GpuState.UNKNOWN,
            GpuState.FREE_IDLE, GpuState.RESIDENT_IDLE, GpuState.WORKING,
        )
    )
}  # fmt: skip


def render_snapshot(shot: Snapshot, *, limit: int, paint: Paint, width: int | None) -> str:
    """The text of ``snapshot``.

    Args:
        shot: What was seen.
        limit: Entries a list.
        paint: Colours.
        width: Where the last column is cut; None never cuts.
    """
    where = f" on cluster {one_line(shot.cluster)}" if shot.cluster else ""

    def section(title: str, part: Part[list[Any]], row: Row, notes: Sequence[str] = ()) -> str:
        noted = [f"  {one_line(note)}" for note in notes]
        if part.value is None:
            return "\n".join([_unknown_line(title, part.reason, paint), *noted])
        shown = sorted(map(row, part.value), key=lambda cells: cells[0] != "bad")[:limit]
        text = table([cells for _, *cells in shown], width=width)
        lines = [
            paint(kind, line) if kind else line
            for (kind, *_), line in zip(shown, text.split("\n"), strict=False)
        ]
        lines += left_out(len(part.value) - len(shown))
        if part.reason:
            lines.append(f"  {paint('warn', 'not whole')}: {one_line(part.reason)}")
        head = f"{paint('strong', title)} ({_age(part)})" + ("" if part.value else ": none")
        return "\n".join([head, *lines, *noted])

    gpus = Part(value=_worst_first(shot.gpus.value), age_s=shot.gpus.age_s, reason=shot.gpus.reason)
    return joined(
        [
            f"{one_line(shot.root)}{where}\n{summary(shot)}",
            section("jobs", shot.jobs, _job_row),
            section("nodes", shot.nodes, _node_row, _cluster_notes(shot)),
            section("gpus", gpus, _gpu_row, _gpu_notes(shot)),
            "\n".join(
                [
                    f"{paint('strong', 'limits')}: {_limits_text(shot.limits)}",
                    f"{paint('strong', 'balance')}: {_balance_text(shot.balance)}",
                    *(
                        _unknown_line(f"{name} spool", part.reason, paint)
                        for name, part in shot.spools.items()
                        if part.value is None
                    ),
                ]
            ),
        ]
    )


Row = Callable[[Any], list[str]]
"""A kind of `Paint`, or nothing, and the cells of one entry."""


def _unknown_line(title: str, reason: str, paint: Paint) -> str:
    return f"{paint('strong', title)}: {paint('warn', 'unknown')}: {one_line(reason)}"


def _age(part: Part[Any]) -> str:
    return "age not known" if part.age_s is None else f"{format_seconds(part.age_s)} old"


def _worst_first(gpus: list[Gpu] | None) -> list[list[Gpu]] | None:
    """GPUs one by one, but those of a node that nobody saw, and for one reason, together."""
    if gpus is None:
        return None
    groups: dict[object, list[Gpu]] = {}
    for number, gpu in enumerate(gpus):
        alone = number if gpu.seen is not None else gpu.reason
        groups.setdefault((gpu.job_id, gpu.node, alone), []).append(gpu)
    return sorted(groups.values(), key=lambda group: _RANK[group[0].state])


def _job_row(view: JobView) -> list[str]:
    job = view.job
    nodes = "nodes not known" if job.nodes is None else plural(job.nodes, "node")
    said = [_when(view)]
    if view.mark is not None:
        said.append("fleet of this tree" + (f", lane {view.mark.lane}" if view.mark.lane else ""))
    if view.nodes is None:
        said.append("its nodes are not known by name")
    return [
        "",
        one_line(job.display_id),
        one_line(job.name),
        one_line(job.state),
        nodes if view.waits else one_line(f"{nodes} {job.node_list}"),
        "; ".join(said),
    ]


def _when(view: JobView) -> str:
    job = view.job
    if view.waits:
        start = time_text(job.started_at)
        why = job.reason or "no reason given"
        return f"{why}, " + (f"expected to start {start}" if start else "no start expected yet")
    return (
        "no walltime limit" if job.time_left_s is None else f"{format_clock(job.time_left_s)} left"
    )


def _node_row(view: NodeView) -> list[str]:
    node = view.node
    lost = sorted(set(view.workers_of) - set(view.jobs))
    said = [f"lost by job {', '.join(lost)}, whose worker has not left"] if lost else []
    if node is None:
        said.append("sinfo lists no such node")
    elif node.reason:
        said.append(node.reason)
    flags = f" ({', '.join(sorted(node.flags))})" if node and node.flags else ""
    state = f"{node.state}{flags}" if node else "unknown"
    used = "?" if node is None or node.gpus_used is None else str(node.gpus_used)
    gpus = "" if node is None or not node.gpus else f"{used} of {plural(node.gpus, 'GPU')} used"
    jobs = f"job {', '.join(view.jobs)}" if view.jobs else ""
    kind = "bad" if said or (node and node.state in _BAD_NODE) else ""
    return [kind, one_line(view.name), one_line(state), gpus, jobs, "; ".join(said)]


def _cluster_notes(shot: Snapshot) -> list[str]:
    counts = sorted((shot.node_states or {}).items())
    states = ", ".join(f"{count} {state}" for state, count in counts)
    return [f"whole cluster: {states}"] if states else []


def _gpu_row(group: list[Gpu]) -> list[str]:
    gpu, seen = group[0], group[0].seen
    measured = ""
    if seen is not None:
        age = f"{seen.source}, {format_seconds(seen.age_s)} old"
        measured = f"{_of(seen.util_pct, '%')}, {_memory(seen)} ({age})"
    indexes = [str(one.index) for one in group if one.index is not None]
    return [
        _COLOURS.get(gpu.state, ""),
        f"job {one_line(gpu.job_id)}",
        one_line(gpu.node),
        f"GPU {','.join(indexes)}" if len(indexes) == len(group) else plural(len(group), "GPU"),
        word(gpu.state),
        "; ".join(part for part in (measured, gpu.reason) if part),
    ]


def _of(value: float | None, unit: str) -> str:
    return f"? {unit}" if value is None else f"{value:.0f} {unit}"


def _memory(seen: Sighting) -> str:
    total = "" if seen.mem_total_mib is None else f" of {seen.mem_total_mib:.0f}"
    used = "?" if seen.mem_used_mib is None else f"{seen.mem_used_mib:.0f}"
    return f"{used}{total} MiB"


def _gpu_notes(shot: Snapshot) -> list[str]:
    notes = []
    uncounted = unlisted(shot)
    if uncounted and shot.gpus.value is not None:
        reasons = sorted(set(uncounted.values()))
        notes.append(f"{plural(len(uncounted), 'node')} not counted: {'; '.join(reasons[:3])}")
    tail = shot.telemetry
    if tail.rows_rejected:
        notes.append(
            f"{plural(tail.rows_rejected, 'torn or damaged row')} of telemetry passed over"
        )
    notes += [f"not read: {why}" for why in tail.refused[:3]]
    if len(tail.refused) > 3:
        notes.append(f"not read: {len(tail.refused) - 3} more")
    if shot.probed is not None:
        notes += [f"job {job}: {why}" for job, why in list(shot.probed.failures.items())[:3]]
        notes += [f"may still run: {step}" for step in shot.probed.left]
    elif any(gpu.seen is None for gpu in shot.gpus.value or ()):
        notes.append("--probe asks the nodes of running jobs themselves")
    return notes


def _limits_text(part: Part[Limits]) -> str:
    found = part.value
    if found is None or found.status != "known":
        return _status_text(found.status if found else "unknown", part.reason)
    amounts = [
        f"{value} {what}"
        for value, what in (
            (found.max_jobs, "jobs running"),
            (found.max_submit, "jobs in the queue"),
            (found.max_nodes, "nodes"),
            (found.max_nodes_per_job, "nodes a job"),
        )
        if value is not None
    ]
    if found.max_wall_s is not None:
        amounts.append(f"walltime {format_clock(found.max_wall_s)}")
    whose = f"account {found.account}" + (f", QOS {found.qos}" if found.qos else "")
    note = f" ({found.reason})" if found.reason else ""
    return one_line(f"{', '.join(amounts) or 'none set'}; {whose}{note} ({_age(part)})")


def _balance_text(part: Part[Balance]) -> str:
    found = part.value
    if found is None or found.status != "known" or found.left_h is None:
        return _status_text(found.status if found else "unknown", part.reason)
    limit = "" if found.limit_h is None else f" of {found.limit_h:.1f}"
    running = "" if found.running_h is None else f", {found.running_h:.1f} h are for running jobs"
    text = f"{found.left_h:.1f}{limit} {found.tres} hours left{running}; {found.reason}"
    return one_line(f"{text} ({_age(part)})")


def _status_text(status: str, reason: str) -> str:
    return one_line(f"{status.replace('_', ' ')}: {reason}")
