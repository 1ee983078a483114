"""The page of a soak: the machine, the disturbances, what became of the tasks, the verdicts."""

from __future__ import annotations

from typing import Any

from tests.soak.plan import DISTURBANCES

WORDS = {True: "yes", False: "**no**", None: "not looked at"}


def page(
    head: dict[str, str], facts: dict[str, Any], judgement: dict[str, Any], *, nodes: int
) -> str:
    """Markdown, whole.

    Args:
        head: The machine, as the other pages begin.
        facts: What the soak did.
        judgement: What the judge found.
        nodes: How many nodes there were.
    """
    minutes = facts["took_s"] / 60
    asked = sum(judgement["asked"].values())
    parts = [
        "# A soak on a real Slurm",
        table(("", ""), list(head.items())),
        f"{nodes} nodes on one machine, {judgement['tallies']['tasks enqueued']:,} tasks with "
        f"{facts['packs']} packs among them, {facts['launches']} fleets, two at a time; "
        f"seed {facts['seed']}; {minutes:.1f} minutes. Each task noted its own runs outside the "
        "spool, and the judge, a process of its own, compared these notes with the records.",
        "## What holds",
        table(("verdict", "holds", "against it", "measured"), _verdicts(judgement)),
        "## What disturbed it",
        table(("disturbance", "times"), _disturbances(facts)),
        "Disturbances that found nothing to disturb are not counted"
        + (f" ({sum(facts['vain'].values())})" if facts["vain"] else "")
        + ". A node that is cut off has its slurmd and its worker stopped (SIGSTOP) until Slurm "
        "has called it down and its claims were recovered; then both go on.",
        "## What became of the tasks",
        table(("spool", "done", "failed", "waiting", "pending", "running"), _states(judgement)),
        "Those that wait do so for a task that failed or was cancelled, or for a file that never "
        "came: the judge looked at each.",
        table(("how claims ended", "claims"), _sorted(judgement["outcomes"])),
        table(("counted", "number"), _sorted(judgement["tallies"], by_number=False)),
        "## What Slurm was asked",
        f"{asked:,} calls of Slurm's programs by fleetcraft, {asked / minutes:.1f} a minute, "
        "counted by a script before each program on PATH; one is one process, and `scontrol show "
        "hostnames`, which asks nobody, is left out. Calls by the soak itself are not in it.",
        table(("program", "calls"), _sorted(judgement["asked"])),
    ]
    notes = [f"- {note}" for note in facts["notes"]]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])]) + "\n"


def table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """A Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _verdicts(judgement: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (one["name"], WORDS[one["holds"]], one["count"], one["found"])
        for one in judgement["verdicts"]
    ]


def _disturbances(facts: dict[str, Any]) -> list[tuple[object, ...]]:
    return [(kind, facts["done"].get(kind, 0)) for kind in DISTURBANCES]


def _states(judgement: dict[str, Any]) -> list[tuple[object, ...]]:
    states = ("done", "failed", "waiting", "pending", "running")
    return [
        (spool, *(counts.get(state, 0) for state in states))
        for spool, counts in sorted(judgement["states"].items(), reverse=True)
    ]


def _sorted(counts: dict[str, int], *, by_number: bool = True) -> list[tuple[object, ...]]:
    items = list(counts.items())
    return [*sorted(items, key=lambda item: -item[1])] if by_number else [*items]
