"""What every GPU does, as JSON, and the one sentence that sums it up.

Invariant: what is not known is null or named with its reason; every GPU that is held is in exactly
one state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetcraft.gpu.states import GpuState, count_states
from fleetcraft.telemetry.journals import seconds
from fleetcraft.telemetry.live.journals import eta
from fleetcraft.telemetry.live.newest import Reading
from fleetcraft.telemetry.live.spool import NOT_THERE, Running, SpoolLook
from fleetcraft.telemetry.live.state import GpuNow, NodeNow, Picture
from fleetcraft.view.text import plural

_LEFT = ("waiting", "pending", "running")


def sentence(picture: Picture) -> str:
    """What the GPUs do, and how much work there is for them."""
    return f"{_gpu_words(picture)}; {_spool_words(picture.spools)}"


def _gpu_words(picture: Picture) -> str:
    allocated = sum(picture.states.values())
    if allocated:
        return f"{plural(allocated, 'GPU')} allocated, {state_words(picture.states)}"
    words = ["no GPU is known to be allocated"]
    if workers := sum(node.workers for node in picture.nodes):
        nodes = sum(bool(node.workers) for node in picture.nodes)
        words.append(f"{plural(workers, 'worker')} on {plural(nodes, 'node')}")
    return ", ".join(words)


def state_words(states: dict[GpuState, int]) -> str:
    """``12 working, 35 free idle``: the states that occur."""
    return ", ".join(f"{count} {word(state)}" for state, count in states.items() if count)


def word(state: GpuState) -> str:
    """A state as people write it."""
    return state.value.replace("_", " ")


def _spool_words(spools: Iterable[SpoolLook]) -> str:
    words = {spool.name: _depth_words(spool) for spool in spools}
    same = set(words.values())
    if len(words) == 2 and len(same) == 1 and same <= {"drained", NOT_THERE}:
        return f"both spools {same.pop()}"
    return "; ".join(f"{name} spool {text}" for name, text in words.items())


def _depth_words(spool: SpoolLook) -> str:
    if spool.problem:
        return spool.problem if spool.problem == NOT_THERE else "not read"
    counts = [spool.counts.get(state, 0) for state in _LEFT]
    if not any(counts):
        return "drained"
    named = [f"{count} {state}" for count, state in zip(counts, _LEFT, strict=True)]
    return ", ".join(named if counts[0] else named[1:])


def reporting(gpus: Iterable[GpuNow]) -> list[Reading]:
    """What was told of those GPUs about which something is told now."""
    return [gpu.reading for gpu in gpus if gpu.reading and gpu.state is not GpuState.SILENT]


def mean_util(readings: Iterable[Reading]) -> tuple[float | None, int]:
    """The mean utilization of the GPUs that have one, in percent, and how many these are."""
    known = [one.seen.util_pct for one in readings if one.seen.util_pct is not None]
    return (sum(known) / len(known) if known else None), len(known)


def total(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def running_s(task: Running, taken_at: str) -> float | None:
    """For how long a task runs, by the clock of this host; None when its start is not known."""
    began_s, now_s = seconds(task.started_at), seconds(taken_at)
    return None if began_s is None or now_s is None else max(0.0, now_s - began_s)


def top_shape(picture: Picture, *, root: str, telemetry_dir: str, taken_at: str) -> dict[str, Any]:
    """The JSON value of ``top``, whole.

    ``states`` add up to ``allocated``. Means and sums are of the GPUs that report now, silent ones
    left out; how many stand behind ``util_mean_pct`` is ``util_gpus``. A sum of nothing is null.
    """
    gpus = picture.gpus
    readings = reporting(gpus)
    util_pct, util_gpus = mean_util(readings)
    return {
        "schema": "fleetcraft.top/1",
        "taken_at": taken_at,
        "root": root,
        "sentence": sentence(picture),
        "allocated": len(gpus),
        "states": {state.value: count for state, count in picture.states.items()},
        "util_mean_pct": util_pct,
        "util_gpus": util_gpus,
        "power_w": total(one.power_w for one in readings),
        "nodes": [_node(node) for node in picture.nodes],
        "gpus": [_gpu(gpu) for gpu in gpus],
        "spools": {spool.name: _spool(spool) for spool in picture.spools},
        "rates": {spool.name: _rates(spool) for spool in picture.spools},
        "running": _running(picture, taken_at),
        "telemetry": {
            "folder": telemetry_dir,
            "problem": picture.look.problem or None,
            "files": picture.look.files,
            "bytes_read": picture.look.bytes_read,
            "rows_rejected": picture.look.rows_rejected,
            "rows_waiting": picture.look.rows_waiting,
            "refused": picture.look.refused,
            "ended": picture.ended,
        },
        "forgotten": {
            "after_s": picture.forget_s,
            "loggers": picture.silent_loggers,
            "workers": picture.silent_workers,
        },
        "slurm": _slurm(picture),
    }


def _node(node: NodeNow) -> dict[str, Any]:
    readings = reporting(node.gpus)
    util_pct, util_gpus = mean_util(readings)
    return {
        "name": node.name,
        "jobs": node.jobs,
        "gpus": len(node.gpus),
        "states": {
            state.value: count for state, count in count_states(g.state for g in node.gpus).items()
        },
        "util_mean_pct": util_pct,
        "util_gpus": util_gpus,
        "mem_used_mib": total(one.seen.mem_used_mib for one in readings),
        "mem_total_mib": total(one.seen.mem_total_mib for one in readings),
        "power_w": total(one.power_w for one in readings),
        "temp_max_c": max((one.temp_c for one in readings if one.temp_c is not None), default=None),
        "age_s": node.age_s,
        "workers": node.workers,
        "tasks": [task.task for task in node.tasks],
        "notes": node.notes,
    }


def _gpu(gpu: GpuNow) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "node": gpu.node,
        "jobs": gpu.jobs,
        "index": gpu.index,
        "uuid": gpu.uuid or None,
        "name": gpu.name or None,
        "state": gpu.state.value,
        "reason": gpu.reason,
        "tasks": [task.task for task in gpu.tasks],
    }
    reading = gpu.reading
    seen = reading.seen if reading else None
    shape |= {
        "util_pct": seen.util_pct if seen else None,
        "util_max_pct": reading.util_max_pct if reading else None,
        "util_source": (reading.util_source or None) if reading else None,
        "mem_used_mib": seen.mem_used_mib if seen else None,
        "mem_total_mib": seen.mem_total_mib if seen else None,
        "power_w": reading.power_w if reading else None,
        "temp_c": reading.temp_c if reading else None,
        "status": (seen.status or None) if seen else None,
        "detail": reading.detail if reading else "",
        "age_s": seen.age_s if seen else None,
        "interval_s": seen.interval_s if seen else None,
    }
    return shape


def _spool(spool: SpoolLook) -> dict[str, Any]:
    return {
        "folder": spool.folder,
        "problem": spool.problem or None,
        "counts": None if spool.problem else spool.counts,
        "workers": None if spool.problem else len(spool.workers),
        "damaged_lines": spool.damaged_lines,
    }


def _rates(spool: SpoolLook) -> dict[str, Any] | None:
    if spool.problem:
        return None
    found = spool.rates
    seconds, reason = eta(spool.counts, found)
    return {
        "window_s": found.window_s if found else None,
        "ended": found.ended if found else None,
        "done_per_min": found.done_per_min if found else None,
        "failed_per_min": found.failed_per_min if found else None,
        "put_back_per_min": found.put_back_per_min if found else None,
        "eta_estimate_s": seconds,
        "eta_reason": reason,
    }


def _running(picture: Picture, taken_at: str) -> list[dict[str, Any]]:
    of_gpu = [(task, gpu.uuid) for gpu in picture.gpus for task in gpu.tasks]
    others = [(task, "") for node in picture.nodes for task in node.tasks]
    others += [(task, "") for task in picture.unplaced]
    return [
        {
            "task": task.task,
            "spool": task.spool,
            "owner": task.owner,
            "node": task.host or None,
            "job": task.job,
            "slot": task.slot,
            "gpu": uuid or task.gpu or None,
            "started_at": task.started_at or None,
            "since": task.since or None,
            "running_s": running_s(task, taken_at),
            "worker_is_silent": task.worker_is_silent,
        }
        for task, uuid in (*of_gpu, *others)
    ]


def _slurm(picture: Picture) -> dict[str, Any] | None:
    held = picture.held
    if held is None:
        return None
    return {"problem": held.problem or None, "age_s": held.age_s, "places": len(held.counts)}
