"""A snapshot of jobs, nodes and GPUs as JSON, and the one sentence that sums it up.

Invariant: what is not known is null with its reason in ``unknown``, never an empty list or a zero.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from fleetcraft.fleet.snapshot.gpus import Gpu
from fleetcraft.fleet.snapshot.jobs_and_nodes import JobView, NodeView
from fleetcraft.fleet.snapshot.whole import Part, Snapshot
from fleetcraft.gpu.states import GpuState, count_states
from fleetcraft.slurm.accounting import Balance, Limits, Status
from fleetcraft.view.text import plural


def snapshot_shape(shot: Snapshot) -> dict[str, Any]:
    """The JSON value of ``snapshot``, whole.

    ``jobs``, ``nodes`` and ``gpus`` are lists, or null when they are not known; ``limits`` and
    ``balance`` are always objects with a status. ``unknown`` says of each part that is missing or
    not whole why; ``ages_s`` how old each is.
    """
    return {
        "schema": "fleetcraft.snapshot/1",
        "root": shot.root,
        "taken_at": shot.taken_at,
        "cluster": shot.cluster,
        "summary": summary(shot),
        "jobs": _each(shot.jobs, _job),
        "nodes": _each(shot.nodes, _node),
        "node_states": shot.node_states,
        "gpus": _each(shot.gpus, _gpu),
        "gpu_states": _gpu_states(shot),
        "gpus_uncounted": _uncounted(shot),
        "limits": _limits(shot.limits),
        "balance": _balance(shot.balance),
        "spools": {name: part.value for name, part in shot.spools.items()},
        "ages_s": {name: part.age_s for name, part in _parts(shot).items()},
        "unknown": _unknown(shot),
        "telemetry": {
            "files": shot.telemetry.files,
            "rows_rejected": shot.telemetry.rows_rejected,
            "refused": shot.telemetry.refused,
        },
        "probe": _probe(shot),
    }


def _parts(shot: Snapshot) -> dict[str, Part[Any]]:
    return {
        "jobs": shot.jobs,
        "nodes": shot.nodes,
        "gpus": shot.gpus,
        "limits": shot.limits,
        "balance": shot.balance,
        "outer_spool": shot.spools["outer"],
        "inner_spool": shot.spools["inner"],
    }


def _unknown(shot: Snapshot) -> dict[str, str]:
    found = {
        name: part.reason
        for name, part in _parts(shot).items()
        if part.value is None or not part.answered
    }
    for name, part in (("limits", shot.limits), ("balance", shot.balance)):
        if part.value is not None and part.value.status == "unknown":
            found[name] = part.reason
    if shot.probed and shot.probed.failures:
        found["probe"] = "; ".join(f"job {j}: {why}" for j, why in shot.probed.failures.items())
    return found


def _each(part: Part[list[Any]], shape: Callable[[Any], dict[str, Any]]) -> list[Any] | None:
    return None if part.value is None else [shape(item) for item in part.value]


def _job(view: JobView) -> dict[str, Any]:
    job = view.job
    return {
        "job_id": job.job_id,
        "display_id": job.display_id,
        "name": job.name,
        "state": job.state,
        "fleet": view.mark is not None,
        "lane": view.mark.lane or None if view.mark else None,
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "node_count": job.nodes,
        "nodes": None if view.nodes is None else list(view.nodes),
        "tres_per_node": job.tres_per_node,
        "reason": job.reason,
        "restarts": job.restarts,
        "submitted_at": time_text(job.submitted_at),
        "started_at": None if view.waits else time_text(job.started_at),
        "expected_start_at": time_text(job.started_at) if view.waits else None,
        "ends_at": time_text(job.ends_at),
        "time_limit_s": job.time_limit_s,
        "time_left_s": job.time_left_s,
        "elements": job.elements,
    }


def time_text(at: datetime | None) -> str | None:
    """A time as ISO 8601 UTC to the second."""
    return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _node(view: NodeView) -> dict[str, Any]:
    node = view.node
    return {
        "name": view.name,
        "state": node.state if node else None,
        "flags": sorted(node.flags) if node else [],
        "partitions": list(node.partitions) if node else None,
        "cpus": node.cpus if node else None,
        "memory_mib": node.memory_mib if node else None,
        "gpus": node.gpus if node else None,
        "gpus_used": node.gpus_used if node else None,
        "reason": node.reason if node else "sinfo lists no such node",
        "jobs": list(view.jobs),
        "workers_of": list(view.workers_of),
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    seen = gpu.seen
    return {
        "job_id": gpu.job_id,
        "node": gpu.node,
        "index": gpu.index,
        "uuid": (seen.uuid or None) if seen else None,
        "state": gpu.state.value,
        "reason": gpu.reason,
        "util_pct": seen.util_pct if seen else None,
        "mem_used_mib": seen.mem_used_mib if seen else None,
        "mem_total_mib": seen.mem_total_mib if seen else None,
        "source": seen.source if seen else None,
        "age_s": seen.age_s if seen else None,
    }


def _gpu_states(shot: Snapshot) -> dict[str, int] | None:
    if shot.gpus.value is None:
        return None
    gpus = shot.gpus.value
    states = count_states(gpu.state for gpu in gpus)
    return {"allocated": len(gpus), **{state.value: count for state, count in states.items()}}


def _uncounted(shot: Snapshot) -> list[dict[str, Any]] | None:
    """Where Slurm does not say how many GPUs a job has; those that were seen are listed."""
    if shot.gpus.value is None:
        return None
    return [
        {"job_id": share.job_id, "node": share.node, "reason": share.reason}
        for share in shot.shares
        if share.count is None
    ]


def _limits(part: Part[Limits]) -> dict[str, Any]:
    found = part.value or Limits(status=Status.UNKNOWN, reason=part.reason)
    return {
        "status": found.status.value,
        "reason": found.reason,
        "account": found.account,
        "qos": found.qos,
        "max_jobs": found.max_jobs,
        "max_submit": found.max_submit,
        "max_nodes": found.max_nodes,
        "max_nodes_per_job": found.max_nodes_per_job,
        "max_wall_s": found.max_wall_s,
    }


def _balance(part: Part[Balance]) -> dict[str, Any]:
    found = part.value or Balance(status=Status.UNKNOWN, reason=part.reason, tres="")
    return {
        "status": found.status.value,
        "reason": found.reason,
        "tres": found.tres,
        "limit_h": found.limit_h,
        "used_h": found.used_h,
        "left_h": found.left_h,
        "running_h": found.running_h,
    }


def _probe(shot: Snapshot) -> dict[str, Any] | None:
    if shot.probed is None:
        return None
    return {
        "nodes_answered": len(shot.probed.reports),
        "failures": shot.probed.failures,
        "steps_left": shot.probed.left,
    }


def summary(shot: Snapshot) -> str:
    """One sentence: what the GPUs do, and how much work there is for them."""
    parts = [_gpu_sentence(shot)]
    for name, part in shot.spools.items():
        if part.value is None:
            parts.append(f"{name} spool not known")
        else:
            counts = part.value
            parts.append(f"{name} spool {counts['pending']} pending, {counts['running']} running")
    return "; ".join(parts)


def _gpu_sentence(shot: Snapshot) -> str:
    if shot.gpus.value is None:
        return "GPUs not known"
    gpus = shot.gpus.value
    text = f"{plural(len(gpus), 'GPU')} allocated"
    counted = count_states(gpu.state for gpu in gpus)
    states = [f"{count} {word(state)}" for state, count in counted.items() if count]
    if states:
        text += f": {', '.join(states)}"
    uncounted = len(unlisted(shot))
    return text + (f" (and those of {plural(uncounted, 'node')} not counted)" if uncounted else "")


def word(state: GpuState) -> str:
    """A state as people write it."""
    return state.value.replace("_", " ")


def unlisted(shot: Snapshot) -> dict[tuple[str, str], str]:
    """Places of which nobody says how many GPUs they have, each with the reason."""
    listed = {(gpu.job_id, gpu.node) for gpu in shot.gpus.value or ()}
    shares = (share for share in shot.shares if share.count is None)
    return {p: s.reason for s in shares if (p := (s.job_id, s.node)) not in listed}
