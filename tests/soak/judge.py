"""Judges what a soak left behind: is anything lost, run twice unknowingly, stuck, or left over?

    python -m tests.soak.judge FOLDER

Not here: reading it, and memory (`flatness`). Invariant: each verdict can fail, which
`test_judge.py` shows for every one of them; what was not looked at is no verdict that holds.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.soak.evidence import Evidence, Run, Task, read, seconds
from tests.soak.flatness import descriptors_flat, memory_flat
from tests.soak.verdict import Verdict, verdict

SPENDING = frozenset({"failed", "timeout", "out_of_memory", "incomplete", "launch_failed"})
CUT_SHORT = frozenset({"lost", "interrupted", "timeout", "cancelled"})
CLOCK_TOLERANCE_S = 0.05


@dataclass(kw_only=True)
class Judgement:
    """All verdicts, and what the page counts."""

    verdicts: list[Verdict]
    states: dict[str, dict[str, int]] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    tallies: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return all(verdict.holds is not False for verdict in self.verdicts)


def judge(found: Evidence) -> Judgement:
    """Looks at everything."""
    checks: list[tuple[str, Callable[[Evidence], Iterator[str]], int]] = [
        ("each enqueued task is in exactly one state, and no other is there", lost, 0),
        ("each end is what the task did", outcomes, 0),
        ("no task ran twice unknowingly", twice, 0),
        ("retries were granted, and no more", retries, 0),
        ("nothing is stuck", stuck, 0),
        ("no process is left", left_over, 0),
        ("check is clean", check_clean, 0),
        ("each attempt has its own log", logs, 0),
        ("journals can be read, and tell each claim once", journals, 0),
        ("timed tasks ran alone on their node", alone, 0),
        ("no call and no log shows a traceback or a strange exit code", strange, 0),
    ]
    verdicts = [verdict(name, list(check(found))) for name, check, _ in checks]
    verdicts += [memory_flat(found.samples), descriptors_flat(found.samples)]
    lines = [line for task in found.all_tasks() for line in task.lines]
    return Judgement(
        verdicts=verdicts,
        states=_states(found),
        outcomes=dict(Counter(line["outcome"] for line in lines)),
        tallies=_tallies(found, lines),
        asked=_asked(found),
    )


# -- the verdicts, each the sentences about what does not hold


def lost(found: Evidence) -> Iterator[str]:
    """Tasks that are nowhere, in two places, or in another spool; and strangers."""
    for name, (spool, _) in found.enqueued.items():
        places = found.tasks.get(name, [])
        if not places:
            yield f"{name} was enqueued and is nowhere"
        elif len(places) > 1:
            yield f"{name} is in {' and '.join(task.state for task in places)}"
        elif places[0].spool != spool:
            yield f"{name} was enqueued into {spool} and is in {places[0].spool}"
    for name in found.tasks.keys() - found.enqueued.keys():
        yield f"{name} is there and nobody enqueued it"
    if found.bad_notes:
        yield f"{found.bad_notes} notes of tasks cannot be read"


def outcomes(found: Evidence) -> Iterator[str]:
    """Final states that their history does not tell; ends that are not what the task noted."""
    for task in found.all_tasks():
        runs = {run.token: run for run in found.runs.get(task.name, [])}
        if task.damaged:
            yield f"{task.name} has {task.damaged} lines that cannot be read"
        last = task.lines[-1] if task.lines else None
        if task.state == "done" and (last is None or last["outcome"] != "completed"):
            yield f"{task.name} is done, and its history ends with {last and last['outcome']}"
        if task.state == "failed" and (last is None or last["to"] != "failed"):
            yield f"{task.name} has failed, and its history ends with {last and last['outcome']}"
        for line in task.lines:
            if why := _mismatch(task, line, runs.get(line["claim"])):
                yield f"{task.name} attempt {line.get('attempt', 0)}: {why}"


def _mismatch(task: Task, line: dict[str, Any], run: Run | None) -> str:
    outcome, attempt = line["outcome"], line.get("attempt", 0)
    if run is None:
        ended_by_itself = outcome in ("completed", "failed", "incomplete")
        return f"{outcome}, and the task noted no start" if ended_by_itself else ""
    if not attempt:
        return f"{outcome} without an attempt, and the task noted a start"
    if attempt != run.attempt:
        return f"the task was told that it is attempt {run.attempt}"
    expected = {None: set(), 0: {"completed", "incomplete"}, 75: {"interrupted"}}
    allowed = expected.get(run.end, {"failed"}) | CUT_SHORT
    if outcome not in allowed:
        did = "noted no end" if run.end is None else f"ended with {run.end}"
        return f"{outcome}, and the task {did}"
    if outcome == "incomplete" and "outputs" not in task.directives:
        return "incomplete, and it declares no outputs"
    return ""


def twice(found: Evidence) -> Iterator[str]:
    """Runs that no line of the history covers, and runs after the end."""
    for name, runs in found.runs.items():
        places = found.tasks.get(name, [])
        lines = {line["claim"]: line for task in places for line in task.lines}
        ordered = sorted(runs, key=lambda run: run.began)
        for run in ordered:
            if run.starts > 1:
                yield f"{name}: claim {run.token} was started {run.starts} times"
            if run.token not in lines:
                yield f"{name}: it ran as claim {run.token}, of which its history says nothing"
        for before, after in pairwise(ordered):
            line = lines.get(before.token)
            if line is None:
                continue
            if line["outcome"] == "completed":
                yield f"{name}: it was completed by {before.token} and ran again as {after.token}"
            closed_at = seconds(line.get("ended_at"))
            if closed_at is not None and after.began < closed_at - CLOCK_TOLERANCE_S:
                yield f"{name}: {after.token} began before {before.token} was closed"
    for task in found.all_tasks():
        numbers = [line["attempt"] for line in task.lines if line.get("attempt")]
        if numbers != sorted(set(numbers)):
            yield f"{task.name}: its attempts are numbered {numbers}"
        if sum(line["outcome"] == "completed" for line in task.lines) > 1:
            yield f"{task.name}: it was completed twice"


def retries(found: Evidence) -> Iterator[str]:
    """Tasks that were given up too early, or tried more often than they asked for."""
    for task in found.all_tasks():
        granted = int(task.directives.get("retries", 0)) + 1
        spent = 0
        for line in task.lines:
            if line["outcome"] not in SPENDING:
                continue
            spent += 1
            cancelled = "cancelled instead" in line.get("reason", "")
            if line["to"] == "failed" and spent < granted and not cancelled:
                yield f"{task.name}: it failed for good after {spent} of {granted} failures"
            if line["to"] == "pending" and spent >= granted:
                yield f"{task.name}: it was tried again after {spent} of {granted} failures"
            if line["to"] == "failed":
                granted = max(granted, spent) + 1  # a retry by hand grants one more


def stuck(found: Evidence) -> Iterator[str]:
    """Tasks that are left in running or pending, or wait for what is there."""
    if not found.facts.get("drained"):
        yield "the spools were not drained in time"
    states = {name: places[0].state for name, places in found.tasks.items()}
    for task in found.all_tasks():
        if task.state in ("running", "pending"):
            yield f"{task.name} is left in {task.state}"
        if task.state == "waiting" and not _waits_rightly(task, states, found.ready):
            yield f"{task.name} waits, and what it waits for is there"


def _waits_rightly(task: Task, states: dict[str, str], ready: set[str]) -> bool:
    from fnmatch import fnmatchcase

    for file in task.directives.get("after-file", "").split():
        if file not in ready:
            return True
    for pattern in task.directives.get("after", "").split():
        matches = [name for name in states if fnmatchcase(name, pattern) and name != task.name]
        if not matches or any(states[name] != "done" for name in matches):
            return True
    return False


def left_over(found: Evidence) -> Iterator[str]:
    """Processes that were there after the last fleet."""
    yield from found.facts.get("left_processes", ["nobody looked"])


def check_clean(found: Evidence) -> Iterator[str]:
    """What fleetcraft check itself found."""
    for spool, report in found.facts.get("checks", {"": {"faults": ["nobody asked"]}}).items():
        for fault in report.get("faults", ["no report"]):
            yield f"{spool}: {fault}"


def logs(found: Evidence) -> Iterator[str]:
    """Attempts without a log, or with the log of another."""
    for task in found.all_tasks():
        for line in task.lines:
            if not line.get("attempt"):
                continue
            key = f"{task.spool}/{task.name}.{line['attempt']}"
            first = found.logs.get(key)
            if first is None:
                yield f"{key} has no log"
            elif first and first != line.get("owner", first):
                yield f"the log of {key} is of {first}"


def journals(found: Evidence) -> Iterator[str]:
    """Torn lines within a journal, and claims that were started or ended twice."""
    for name, count in found.torn_inside.items():
        yield f"{name}: {count} lines before the last cannot be read"
    for kind in ("start", "end"):
        events = Counter(
            event.get("claim")
            for journal in found.journals.values()
            for event in journal
            if event.get("event") == kind
        )
        for claim, count in events.items():
            if count > 1:
                yield f"claim {claim} has {count} events {kind!r}"


def alone(found: Evidence) -> Iterator[str]:
    """Timed tasks beside which another task of the same node ran."""
    timed = {task.name for task in found.all_tasks() if task.directives.get("timed") == "true"}
    by_node: dict[str, list[Run]] = {}
    for runs in found.runs.values():
        for run in runs:
            if run.ended is not None and not run.task.startswith("pack-"):
                by_node.setdefault(run.node, []).append(run)
    for node, runs in by_node.items():
        for run in (run for run in runs if run.task in timed):
            for other in runs:
                if other is not run and other.began < run.ended and run.began < other.ended:  # type: ignore[operator]
                    yield f"{run.task} ran beside {other.task} on {node}"


def strange(found: Evidence) -> Iterator[str]:
    """Calls from outside that ended as they should not, and logs with a traceback."""
    yield from found.facts.get("strange_calls", ["nobody looked"])
    for name in found.tracebacks:
        yield f"a traceback in {name}"


# -- counts for the page


def _states(found: Evidence) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for task in found.all_tasks():
        counts.setdefault(task.spool, Counter())[task.state] += 1
    return {spool: dict(counter) for spool, counter in counts.items()}


def _tallies(found: Evidence, lines: list[dict[str, Any]]) -> dict[str, int]:
    runs = [run for task_runs in found.runs.values() for run in task_runs]
    beside = 0
    for task_runs in found.runs.values():
        ordered = sorted(task_runs, key=lambda run: run.began)
        for before, after in pairwise(ordered):
            beside += before.ended is not None and before.ended > after.began
    return {
        "tasks enqueued": len(found.enqueued),
        "runs that tasks noted": len(runs),
        "claims closed": len(lines),
        "claims that never became an attempt": sum(not line.get("attempt") for line in lines),
        "tasks that ran more than once": sum(len(r) > 1 for r in found.runs.values()),
        "runs that went on beside their own next attempt": beside,
        "workers' lives": len(found.journals),
        "journals whose last line is torn": len(found.torn),
    }


def _asked(found: Evidence) -> dict[str, int]:
    """Calls of Slurm's programs by fleetcraft; what asks nobody is left out."""
    counts: Counter[str] = Counter()
    for words in found.scheduler_calls:
        if words[:1] == ["scontrol"] and "hostnames" in words:
            continue  # it expands a list, and asks no controller
        counts[words[0]] += 1
    return dict(counts)


def main() -> int:
    """Judges a folder; writes ``judgement.json`` into it, and exits with 1 if not all holds."""
    base = Path(sys.argv[1])
    judgement = judge(read(base))
    text = json.dumps({**asdict(judgement), "holds": judgement.holds}, indent=1)
    (base / "judgement.json").write_text(text + "\n")
    for one in judgement.verdicts:
        print(one.line())
    return 0 if judgement.holds else 1


if __name__ == "__main__":
    sys.exit(main())
