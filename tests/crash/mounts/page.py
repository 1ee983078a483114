"""The results as tables, and as a page of Markdown.

Not here: any work. Invariant: every number comes from the results that are handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.crash.mounts.full_disk import Answer, FullOutcome
from tests.crash.mounts.greeting import Greeting
from tests.crash.mounts.others import Work
from tests.crash.mounts.trial import Outcome

_INTRODUCTION = """# Mounts in trouble

Real work on real second mounts, from outside: a FUSE file system of our own (`tests/crash/mounts`)
that passes everything on to a backing folder, late or wrongly as its rules say, and a small tmpfs
that is full. Real kernel calls, real processes, real `SIGKILL`. What is counted is read from the
backing folder by another process, past the mount and without fleetcraft's code. Times are told for
the reader who wants to run it again; nothing is concluded from them.
"""
_FLEETS = """## A fleet on the mount

Two processes enqueue tasks in small batches, with retries, and each a last task that waits for all
of its own; four workers run them, and some are killed by `SIGKILL`; three tasks are cancelled and
put back. Of every ten tasks one fails once and one takes a moment. Each notes that it runs in a
file off the mount. What was refused is asked again, as the errors advise. When the trouble is over
(or to the end, where it is the mount's own) one recovers, repairs and runs the rest.

*lost*: a task whose enqueue was reported as done and that is in no folder. *twice*: a run that its
history does not know of, two runs with one number, or a run after completion. *stuck*: anything
that is not done in the end. *refused*: commands that said no and were given again.
"""
_OTHERS = """## Locks, rollouts, archives, the logger

At the same time, on one mount in trouble to the end: three processes take a lock in turns, which
an exclusive file off the mount proves; two producers and a trainer move trajectories, which
`rollouts audit` proves on the backing folder; twelve files are archived and verified there; a
telemetry logger writes.
"""
_GREETINGS = """## What `init` and `doctor` say

`doctor` lists only what it finds amiss with the scratch tree.
"""
_TMPFS = """## A tmpfs that is full

Every command on a mount without a byte or without an inode left, and the same command once there
is room. 0: it needed nothing of what is missing. A retry that worked is not due again (5), and
what was retried fails again in the run (1).
"""
_FULL = """## Full in the middle of a fleet

Two workers run; while tasks run, the mount is filled; the workers leave; there is room again and
two others go on; three times. Records are as long as a page, so that no line of history fits.
"""
_MATRIX = """## The crash matrix on the mount

A sample of the trials of the crash matrix, made on the passthrough in place of memory.
"""


@dataclass
class Results:
    """Everything that was found."""

    fleets: list[Outcome] = field(default_factory=list)
    others: list[tuple[str, int, list[Work]]] = field(default_factory=list)
    greetings: list[Greeting] = field(default_factory=list)
    matrix: list[Any] = field(default_factory=list)
    answers: list[tuple[str, list[Answer], list[str]]] = field(default_factory=list)
    full: list[tuple[str, FullOutcome]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    def faults(self) -> list[str]:
        """Everything that did not hold, in sentences."""
        faults = [f"{row.trouble.name}: {fault}" for row in self.fleets for fault in row.faults]
        for name, _, works in self.others:
            faults += [f"{name}, {work.what}: {work.fault}" for work in works if work.fault]
        faults += [f"{said.kind.name}: {said.fault}" for said in self.greetings if said.fault]
        for kind, _, wrong in self.answers:
            faults += [f"tmpfs without {kind}: {fault}" for fault in wrong]
        for kind, outcome in self.full:
            faults += [f"tmpfs without {kind}, fleet: {fault}" for fault in outcome.faults]
        for row in self.matrix:
            if not row.holds:
                why = row.broken or f"{len(row.troubles)} trials did not hold: {row.troubles[:1]}"
                faults.append(f"crash matrix, {row.protocol}: {why}")
        return faults


def whole(results: Results, facts: dict[str, str]) -> str:
    """The page."""
    head = _table(["", ""], [[key, fact] for key, fact in facts.items()])
    return f"{_INTRODUCTION}\n{head}\n\n{tables(results, headings=True)}\n"


def tables(results: Results, *, headings: bool = False) -> str:
    """All tables, with words around them on the page."""
    parts = [totals(results)]
    for words, text in (
        (_FLEETS, _fleets(results.fleets)),
        (_OTHERS, _others(results.others)),
        (_GREETINGS, _greetings(results.greetings)),
        (_MATRIX, _matrix(results.matrix)),
        (_TMPFS, _answers(results.answers)),
        (_FULL, _full(results.full)),
    ):
        if text:
            parts.append(f"{words}\n{text}" if headings else text)
    return "\n\n".join(parts)


def totals(results: Results) -> str:
    """The sums, in a few sentences."""
    judged = [row.judgement for row in results.fleets] + [o.judgement for _, o in results.full]
    operations = sum(row.operations for row in results.fleets)
    fired = sum(row.fired for row in results.fleets) + sum(by for _, by, _ in results.others)
    counts = (
        f"{sum(j.enqueued for j in judged):,} tasks enqueued, "
        f"{sum(j.completed for j in judged):,} completed, "
        f"{sum(len(j.lost) for j in judged)} lost, {sum(len(j.twice) for j in judged)} run twice "
        f"unknowingly, {sum(len(j.stuck) for j in judged)} stuck; "
        f"{sum(row.kills for row in results.fleets)} workers killed, {operations:,} operations on "
        f"FUSE mounts, {fired:,} times a rule fired."
    )
    trials = sum(row.points for row in results.matrix)
    matrix = f" {trials:,} trials of the crash matrix on the mount." if trials else ""
    skipped = "".join(f"\n\nNot done: {why}." for why in results.skipped)
    bad = len(results.faults())
    return f"{counts}{matrix} {bad} did not hold. {results.wall_s:,.0f} s.{skipped}"


def _fleets(rows: Sequence[Outcome]) -> str:
    head = ["trouble", "stands for", "operations", "fired", "killed", "refused", "enqueued",
            "completed", "runs", "lost", "twice", "stuck", "by hand", "s"]  # fmt: skip
    return _table(head, [
        [
            row.trouble.name, row.trouble.means, row.operations, row.fired, row.kills,
            sum(row.said.refusals.values()), row.judgement.enqueued, row.judgement.completed,
            row.judgement.runs, len(row.judgement.lost), len(row.judgement.twice),
            len(row.judgement.stuck), row.by_hand, f"{row.wall_s:.0f}",
        ]
        for row in rows
    ])  # fmt: skip


def _others(rows: Sequence[tuple[str, int, list[Work]]]) -> str:
    head = ["trouble", "fired", "work", "done", "tried again", "holds"]
    return _table(head, [
        [name, fired, work.what, work.done, work.refused, "no" if work.fault else "yes"]
        for name, fired, works in rows
        for work in works
    ])  # fmt: skip


def _greetings(rows: Sequence[Greeting]) -> str:
    head = ["mount", "init", "doctor", "as it should be"]
    return _table(head, [
        [
            said.kind.name,
            "0" if said.init == 0 and not said.kind.says else f"{said.init}: {_short(said)}",
            "not asked" if said.kind.doctor is None else
            "; ".join(f"{name}: {verdict}" for name, verdict in said.doctor.items()) or "all ok",
            "no" if said.fault else "yes",
        ]
        for said in rows
    ])  # fmt: skip


def _short(said: Greeting) -> str:
    text = said.said.removeprefix("error: ")
    if said.init == 0:
        return f"... {said.kind.says} ..."
    return text if len(text) <= 90 else f"{text[:87]}..."


def _matrix(rows: Sequence[Any]) -> str:
    head = ["protocol", "operations", "trials", "did not hold"]
    return _table(head, [
        [row.protocol, len(row.operations), row.points, len(row.troubles) or row.broken or 0]
        for row in rows
    ])  # fmt: skip


def _answers(rows: Sequence[tuple[str, list[Answer], list[str]]]) -> str:
    head = ["missing", "command", "exit code", "says", "with room"]
    return _table(head, [
        [kind, answer.command, answer.code, answer.sentence if answer.code else "", answer.later]
        for kind, answers, _ in rows
        for answer in answers
    ])  # fmt: skip


def _full(rows: Sequence[tuple[str, FullOutcome]]) -> str:
    head = ["missing", "times", "workers left with", "enqueued", "completed", "runs", "lost",
            "twice", "stuck"]  # fmt: skip
    return _table(head, [
        [
            kind, row.full, " ".join(map(str, row.worker_codes)), row.judgement.enqueued,
            row.judgement.completed, row.judgement.runs, len(row.judgement.lost),
            len(row.judgement.twice), len(row.judgement.stuck),
        ]
        for kind, row in rows
    ])  # fmt: skip


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    if not lines:
        return ""
    numeric = [all(line[at].replace(",", "").isdigit() for line in lines)
               for at in range(len(head))]  # fmt: skip
    marks = ["---:" if right else "---" for right in numeric]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, marks, *lines))
