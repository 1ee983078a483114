"""Metadata calls on the spool, counted by strace: every path call, listing, stat, lock and sync.

Counted are lines that name the spool, failed calls included; read, write, lseek and close are no
metadata calls. Two sizes give the calls a task; what does not grow is shown apart. Invariant: a
process counts as bash from its exec on.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.bench.enqueue import single_call
from tests.bench.measure import DRIVE, Bench, Row, Section, cli_has, timed
from tests.bench.spools import FleetCommand, empty_spool, filled_spool, require_done

GOAL = 10
FEW, MANY = 100, 400
_TRACED = "trace=%file,getdents64,fstat,fsync,fdatasync,syncfs,flock,fchmod,ftruncate,fallocate"
_LINE = re.compile(r"(\d+)\s+(\w+)\((.*)")
Calls = dict[str, Counter[str]]


def measure(bench: Bench) -> Section:
    """Enqueue single and in a batch, drains with one and with two workers."""
    section = Section(
        name="calls",
        title="metadata calls on the spool",
        how="Calls a task that name the spool, failed ones too: path calls, listings, stats, "
        f"locks and syncs; (calls for {MANY} tasks - calls for {FEW}) / {MANY - FEW}. `bash` is "
        "the shell that reads the record, `exec` its start; `fixed` is what does not grow.",
    )
    if shutil.which("strace") is None:
        section.skipped.append("all: strace is not installed")
        return section
    if cli_has("enqueue"):
        _single(bench, section)
    else:
        section.skipped.append("one call: `fleetcraft enqueue` does not work here")
    _compared(bench, section, "enqueue batch", lambda count: _batch(bench, count))
    fleet = FleetCommand()
    for workers in (1, 2):
        _compared(
            bench,
            section,
            f"drain, {workers} worker{'s' * (workers > 1)}",
            lambda count, workers=workers: _drain(bench, fleet, count, workers),
        )
    section.growth = (
        "the calls a task do not depend on the number of tasks; the fixed calls are the safety "
        "check, leases and markers, and grow with time (heartbeats), not with tasks."
    )
    return section


def _single(bench: Bench, section: Section) -> None:
    argv = single_call(bench)
    spool = Path(argv[argv.index("--root") + 1]) / "taskq"
    calls = _trace(bench, [*argv, "traced"], spool)
    section.rows.append(_row("enqueue single, one call", calls, 1.0, None, f"<= {GOAL}"))
    checks = sum(calls["ours"].values()) - _protocol(calls["ours"])
    section.rows[-1].what += f" (of these {checks} look whether the spool's folders are safe)"


def _protocol(calls: Counter[str]) -> int:
    return sum(
        count for call, count in calls.items() if call not in ("lstat", "newfstatat", "stat")
    )


def _batch(bench: Bench, count: int) -> Calls:
    spool = empty_spool(bench, "traced")
    return _trace(bench, [sys.executable, DRIVE, "batch", str(spool), str(count)], spool)


def _drain(bench: Bench, fleet: FleetCommand, count: int, workers: int) -> Calls:
    spool = filled_spool(bench, count)
    calls = _trace(bench, fleet.argv(spool, workers), spool)
    require_done(spool, count)
    return calls


def _compared(bench: Bench, section: Section, what: str, run: Callable[[int], Calls]) -> None:
    bench.say(f"  {what}")
    few, many = run(FEW), run(MANY)
    a_task: Calls = {}
    for who, counts in many.items():
        a_task[who] = Counter({call: n - few[who][call] for call, n in counts.items()})
    fixed = sum(few["ours"].values()) - sum(a_task["ours"].values()) * FEW / (MANY - FEW)
    section.rows.append(_row(what, a_task, MANY - FEW, fixed, f"<= {GOAL}"))


def _row(what: str, calls: Calls, tasks: float, fixed: float | None, goal: str) -> Row:
    ours = sum(calls["ours"].values()) / tasks
    bash = sum(calls["bash"].values()) / tasks
    execs = sum(calls["exec"].values()) / tasks
    failed = sum(calls["failed"].values()) / tasks
    listed = ", ".join(
        f"{call} {n / tasks:.2f}" for call, n in calls["ours"].most_common(9) if n / tasks >= 0.005
    )
    beside = [f"failed {failed:.2f}"]
    beside += [f"bash {bash:.2f}", f"exec {execs:.2f}"] if bash else []
    beside += [] if fixed is None else [f"fixed {fixed:.0f}"]
    return Row(
        what=f"{what}: {listed}",
        measured=f"{ours:.2f}",
        beside=", ".join(beside),
        goal=goal,
        met=ours <= GOAL + 0.05,
        samples={who: dict(counts) for who, counts in calls.items()},
    )


def _trace(bench: Bench, argv: list[str], spool: Path) -> Calls:
    log = bench.new_folder("strace") / "log"
    timed(["strace", "-f", "-y", "-s", "4096", "-e", _TRACED, "-o", str(log), *argv])
    return count_calls(log.read_text("utf-8", "replace").splitlines(), str(spool))


def count_calls(lines: list[str], spool: str) -> Calls:
    """Counts the calls that name the spool, by who made them: ours, bash, exec.

    Args:
        lines: Output of ``strace -f -y``.
        spool: The spool's folder.
    """
    calls: Calls = {who: Counter() for who in ("ours", "bash", "exec", "failed")}
    shells: set[str] = set()
    for line in lines:
        match = _LINE.match(line)
        if match is None:  # a signal, an exit, or the second half of a call already counted
            continue
        pid, call, rest = match.groups()
        if call == "execve":
            program = rest.partition(",")[0].strip('"').rsplit("/", 1)[-1]
            (shells.add if program == "bash" else shells.discard)(pid)
            if program == "bash" and f'"{spool}/' in rest:
                calls["exec"]["execve"] += 1
            continue
        arguments = rest.rpartition(" = ")[0] or rest
        if f"{spool}/" in arguments or f'{spool}"' in arguments or f"{spool}>" in arguments:
            calls["bash" if pid in shells else "ours"][call] += 1
            if " = -1 " in rest and pid not in shells:
                calls["failed"][call] += 1
    return calls
