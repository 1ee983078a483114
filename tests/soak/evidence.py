"""What a soak left behind, read by a process that had no part in it.

Not here: what is right. Invariant: nothing of fleetcraft reads its own files here: records,
journals and notes are parsed by these few lines alone, and what cannot be read is kept as such.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

STATES = ("waiting", "pending", "running", "done", "failed")
SPOOLS = {"outer": "taskq", "gpu": "taskq_gpu"}
HISTORY = b"#FLEET-RUN "


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a task as the task itself noted it.

    ``end`` is the exit code that it was about to end with; None where it noted no end.
    """

    task: str
    attempt: int
    owner: str
    node: str
    began: float
    end: int | None = None
    ended: float | None = None
    starts: int = 1

    @property
    def token(self) -> str:
        return self.owner.rpartition(".")[2]


@dataclass(kw_only=True)
class Task:
    """One record as it lies there.

    ``lines`` are those that count: the first of each claim, in file order.
    """

    name: str
    spool: str
    state: str
    directives: dict[str, str]
    lines: list[dict[str, Any]]
    damaged: int = 0


@dataclass(kw_only=True)
class Evidence:
    """All of it. ``tasks`` has a list for each name, since one may lie in two places."""

    enqueued: dict[str, tuple[str, str]] = field(default_factory=dict)  # name to spool and kind
    tasks: dict[str, list[Task]] = field(default_factory=dict)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)  # SPOOL/NAME.ATTEMPT to its first line
    journals: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    torn: dict[str, int] = field(default_factory=dict)  # journal to its lines that are no JSON
    torn_inside: dict[str, int] = field(default_factory=dict)  # those before the last one
    samples: list[dict[str, Any]] = field(default_factory=list)
    ready: set[str] = field(default_factory=set)
    scheduler_calls: list[list[str]] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    bad_notes: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    def all_tasks(self) -> list[Task]:
        return [task for places in self.tasks.values() for task in places]


def read(base: Path) -> Evidence:
    """Reads everything under a soak's folder."""
    found = Evidence()
    for line in _lines(base / "enqueued"):
        spool, kind, name = line.split()
        found.enqueued[name] = (spool, kind)
    for spool, folder in SPOOLS.items():
        _read_spool(found, spool, base / "root" / folder)
    for file in sorted((base / "notes").iterdir()):
        _read_notes(found, file)
    found.samples = [json.loads(line) for line in _lines(base / "samples.jsonl")]
    ready = base / "project" / "ready"
    found.ready = {f"ready/{name}" for name in os.listdir(ready)} if ready.is_dir() else set()
    found.scheduler_calls = [line.split() for line in _lines(base / "scheduler-calls")]
    logs = [*(base / "root" / "logs").glob("*.log")]
    found.tracebacks = [str(f.name) for f in logs if "Traceback" in f.read_text(errors="replace")]
    found.facts = json.loads((base / "facts.json").read_text())
    return found


def _lines(file: Path) -> list[str]:
    return file.read_text(errors="replace").splitlines() if file.exists() else []


def _read_spool(found: Evidence, spool: str, folder: Path) -> None:
    for state in STATES:
        for where in (folder / state, folder / state / "first", folder / state / "last"):
            for name in sorted(os.listdir(where)) if where.is_dir() else []:
                if ".sh" in name and (where / name).is_file():
                    task = read_record((where / name).read_bytes(), spool=spool, state=state)
                    task.name = name.partition(".sh")[0]
                    found.tasks.setdefault(task.name, []).append(task)
    for log in (folder / "logs").iterdir() if (folder / "logs").is_dir() else []:
        with log.open("rb") as file:
            first = file.readline(200).decode("utf-8", "replace").strip()
        found.logs[f"{spool}/{log.name.removesuffix('.log')}"] = first
    for journal in (folder / "workers").glob("*.jsonl"):
        _read_journal(found, f"{spool}/{journal.stem}", journal.read_bytes())


def read_record(data: bytes, *, spool: str, state: str) -> Task:
    """Reads directives and history of one record."""
    directives: dict[str, str] = {}
    lines: dict[str, dict[str, Any]] = {}
    damaged = 0
    for line in data.split(b"\n"):
        if line.startswith(b"#FLEET "):
            key, _, value = line[7:].decode("utf-8", "replace").partition(":")
            directives[key] = value.strip()
        elif line.startswith(HISTORY):
            try:
                told = json.loads(line[len(HISTORY) :])
                lines.setdefault(told["claim"], told)
            except (ValueError, KeyError):
                damaged += 1
    name = directives.get("name", "")
    history = list(lines.values())
    return Task(
        name=name, spool=spool, state=state, directives=directives, lines=history, damaged=damaged
    )


def _read_notes(found: Evidence, file: Path) -> None:
    runs: dict[str, Run] = {}
    for line in _lines(file):
        words = line.split()
        if len(words) != 6:
            found.bad_notes += 1
            continue
        task, attempt, owner, _, at, what = words
        before = runs.get(owner)
        if what == "start" and before is not None:
            runs[owner] = _changed(before, starts=before.starts + 1)
        elif what == "start":
            began = float(at)
            runs[owner] = Run(
                task=task, attempt=int(attempt), owner=owner, node=file.name, began=began
            )
        elif before is None:
            found.bad_notes += 1
        else:
            runs[owner] = _changed(before, end=int(what), ended=float(at))
    for run in runs.values():
        found.runs.setdefault(run.task, []).append(run)


def _changed(run: Run, **changes: Any) -> Run:
    from dataclasses import replace

    return replace(run, **changes)


def _read_journal(found: Evidence, name: str, data: bytes) -> None:
    events = []
    texts = data.split(b"\n")
    for number, text in enumerate(texts):
        if not text:
            continue
        try:
            events.append(json.loads(text))
        except ValueError:
            found.torn[name] = found.torn.get(name, 0) + 1
            if number < len(texts) - 1:
                found.torn_inside[name] = found.torn_inside.get(name, 0) + 1
    found.journals[name] = events


def seconds(text: str | None) -> float | None:
    """A history line's time in seconds since 1970."""
    return datetime.fromisoformat(text).timestamp() if text else None


def by_kind(samples: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Samples by kind of process and life, in order of time."""
    lives: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for sample in samples:
        lives[sample["kind"], sample["life"]].append(sample)
    return dict(lives)
