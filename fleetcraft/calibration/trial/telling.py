"""One sentence for people about a trial that failed, with the numbers of its evidence.

Words only; the class is `classify`'s. Invariant: a number that the evidence lacks is not mentioned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleetcraft.calibration.records import MIB, Failure

Facts = dict[str, Any]
_MOST_CHARACTERS = 500


def tell(failure: Failure, facts: Facts, phase: str) -> str:
    """The sentence.

    Args:
        failure: The class.
        facts: As `classify` gave them.
        phase: Where; empty when it is not known.
    """
    where = f" in phase {phase}" if phase else " before its first phase"
    said = _SENTENCES.get(failure, _found)(facts, where)
    return said if len(said) <= _MOST_CHARACTERS else f"{said[: _MOST_CHARACTERS - 3]}..."


def _host_oom(facts: Facts, where: str) -> str:
    of = [
        f"limit {_mib(facts['memory_limit_bytes'])}" if "memory_limit_bytes" in facts else "",
        f"peak {_mib(facts['memory_peak_bytes'])}" if "memory_peak_bytes" in facts else "",
        f"oom_kill rose by {facts['oom_kills']}" if facts.get("oom_kills") else "",
        f"Slurm says {facts['slurm_state']}" if "slurm_state" in facts else "",
    ]
    whose = "its cgroup" if facts.get("own_group") else "the cgroup that it shares"
    return f"the kernel killed it for host memory{where}; {whose}: {_joined(of)}"


def _process_exhaustion(facts: Facts, where: str) -> str:
    of = [
        f"{facts['pids_refused']} refused" if facts.get("pids_refused") else "",
        f"limit {facts['pids_limit']}" if "pids_limit" in facts else "",
        f"it said {facts['words']!r}" if "words" in facts else "",
    ]
    return f"it was refused a process or thread{where}: {_joined(of)}"


def _device_oom(facts: Facts, where: str) -> str:
    numbers = facts.get("device_oom", {})
    if "request_bytes" not in numbers or "free_bytes" not in numbers:
        return f"the device ran out of memory{where}; the error gives no numbers"
    of = f"free {_mib(numbers['free_bytes'])}"
    if "reserved_unallocated_bytes" in numbers:
        of += f" + cached {_mib(numbers['reserved_unallocated_bytes'])}"
    elif "reclaimable_bytes" in numbers:
        of += f" + cached at most {_mib(numbers['reclaimable_bytes'] - numbers['free_bytes'])}"
    enough = numbers.get("shortfall_bytes", 1) <= 0
    told = f"{of} {'>=' if enough else '<'} request {_mib(numbers['request_bytes'])}"
    if "allocated_bytes" in numbers:
        told += f", allocated {_mib(numbers['allocated_bytes'])}"
    if "capacity_bytes" in numbers:
        emulated = "device_budget_bytes" in facts
        told += f" of {_mib(numbers['capacity_bytes'])}{' (emulated)' if emulated else ''}"
    return f"the device ran out of memory{where}: {told}"


def _neighbour(facts: Facts, where: str) -> str:
    others = facts.get("neighbour_bytes", facts.get("device_oom", {}).get("others_bytes"))
    held = f"; other processes held {_mib(others)}" if others else ""
    return f"{_device_oom(facts, where)}{held}"


def _host_alloc(facts: Facts, where: str) -> str:
    return f"the host refused memory{where}: {facts.get('said', 'no word')}"


def _killed_unknown(facts: Facts, where: str) -> str:
    kills = facts.get("oom_kills")
    counter = (
        "no counter of kills for memory could be read"
        if kills is None
        else ("the kernel's count of kills for memory did not move")
    )
    return f"something killed it with KILL{where}; {counter}"


def _partial(facts: Facts, where: str) -> str:
    if "said" in facts:
        return str(facts["said"])
    of = [f"{name} {how}" for name, how in facts.get("participants", {}).items()]
    return f"some participants died while others went on{where}: {_joined(of)}"


def _stalled(facts: Facts, where: str) -> str:
    if "silent_s" not in facts:
        return _found(facts, where)
    silent = f"silent for {facts['silent_s']:.1f} s"
    if "expected_s" not in facts:
        return f"stopped: {silent}{where}, allowed were {facts['limit_s']:g} s"
    return (
        f"stopped: expected {facts['expected_s']:.1f} s, {silent}{where}; "
        f"allowed were {facts['limit_s']:.1f} s"
    )


def _error(facts: Facts, where: str) -> str:
    if "said" in facts or "kind" in facts:
        return f"{facts.get('kind', 'error')}{where}: {_first_line(facts.get('said', ''))}"
    how = (
        f"ended by {facts['signal']}"
        if "signal" in facts
        else (f"ended with exit code {facts['exit_code']}" if "exit_code" in facts else "ended")
    )
    last = _telling_line(facts.get("log_tail", ""))
    said = f"; it printed: {last}" if last else ""
    journal = "" if facts.get("journal_finished") else " before its journal's end"
    return f"{how}{where}{journal}{said}"


def _found(facts: Facts, where: str) -> str:
    return _first_line(facts.get("said", "")) or f"it failed{where}"


_SENTENCES: dict[Failure, Callable[[Facts, str], str]] = {
    Failure.HOST_OOM: _host_oom,
    Failure.PROCESS_EXHAUSTION: _process_exhaustion,
    Failure.FRAGMENTATION: _device_oom,
    Failure.CAPACITY: _device_oom,
    Failure.NEIGHBOUR: _neighbour,
    Failure.HOST_ALLOC: _host_alloc,
    Failure.KILLED_UNKNOWN: _killed_unknown,
    Failure.PARTIAL: _partial,
    Failure.STALLED: _stalled,
    Failure.ERROR: _error,
}


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"


def _joined(parts: list[str]) -> str:
    return ", ".join(part for part in parts if part) or "no numbers"


def _telling_line(text: str) -> str:
    """The last line that speaks of an error, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return next(reversed(errors or lines), "")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
