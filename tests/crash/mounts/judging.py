"""What must hold after any trouble, read from the backing folder by a process that saw none of it.

Nothing of fleetcraft is used: folders and the lines of records are read as `docs/spool-format.md`
describes them. Invariant: what a task noted of its runs, off the mount, is compared with what its
history says, so that a run that no history knows of is seen.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_MARK = "#FLEET-RUN "
_PLACES = ("waiting", "pending", "pending/first", "pending/last", "running", "done", "failed")


@dataclass(kw_only=True)
class Judgement:
    """What was found.

    Attributes:
        enqueued: Tasks whose enqueue was reported as done.
        completed: Of those, the ones in ``done``.
        runs: Runs that the tasks noted themselves.
        lost: Promised tasks that are in no folder, or have no name.
        doubled: Tasks that are in two folders.
        twice: Runs that no history knows of, two runs with one number, runs after completion.
        stuck: Tasks that are neither done nor cancelled.
        strangers: Identities that nobody was promised; they are whole tasks, only unpromised.
    """

    enqueued: int = 0
    completed: int = 0
    runs: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    strangers: int = 0

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.doubled or self.twice or self.stuck)


def judge(spool: Path, ran: Path, promised: set[str]) -> Judgement:
    """Compares what was promised and what ran with what lies in a spool."""
    found: defaultdict[str, list[tuple[str, Path]]] = defaultdict(list)
    for place in _PLACES:
        for file in (spool / place).iterdir():
            if file.is_file() and not file.name.startswith("."):
                found[_task(file.name, place)].append((place, file))
    names = {file.name for file in (spool / "names").iterdir() if not file.name.startswith(".")}
    judged = Judgement(enqueued=len(promised), strangers=len(names - promised))
    for name in sorted(promised):
        _judge_place(judged, name, found[name], names)
    runs = _runs(ran)
    judged.runs = sum(map(len, runs.values()))
    for name, noted in sorted(runs.items()):
        for place, file in found[name][:1]:
            _judge_runs(judged, name, noted, place, _history(file))
    return judged


def _task(file: str, place: str) -> str:
    stem = file.rsplit(".", 4)[0] if place == "running" else file
    return stem.removesuffix(".sh")


def _judge_place(
    judged: Judgement, name: str, places: list[tuple[str, Path]], names: set[str]
) -> None:
    if not places or name not in names:
        where = "in no folder" if not places else "without a name"
        judged.lost.append(f"{name} is {where}")
        return
    if len(places) > 1:
        judged.doubled.append(f"{name} is in {', '.join(place for place, _ in places)}")
    if places[0][0] == "done":
        judged.completed += 1
    else:
        last = (_history(places[0][1]) or [{}])[-1]
        judged.stuck.append(f"{name} is in {places[0][0]}, last {last.get('outcome', 'not run')}")


def _judge_runs(
    judged: Judgement,
    name: str,
    noted: list[tuple[int, str]],
    place: str,
    history: list[dict[str, Any]],
) -> None:
    numbers = [number for number, _ in noted]
    if len(set(numbers)) != len(numbers):
        judged.twice.append(f"{name} ran more than once under one number: {sorted(numbers)}")
    closing: dict[str, dict[str, Any]] = {}
    for line in history:
        closing.setdefault(line["claim"], line)
    unknown = [token for _, token in noted if token not in closing]
    # A completed task on a full disk is committed by the rename alone; it is then the last run.
    if len(unknown) > (place == "done"):
        judged.twice.append(f"{name} ran under claims that its history lacks: {unknown}")
    done = [line["attempt"] for line in closing.values() if line["outcome"] == "completed"]
    if done and max(numbers, default=0) > min(done):
        judged.twice.append(f"{name} ran as {max(numbers)} after it was completed as {min(done)}")


def _history(file: Path) -> list[dict[str, Any]]:
    lines = []
    for line in file.read_text(errors="replace").splitlines():
        if line.startswith(_MARK):
            try:
                lines.append(json.loads(line[len(_MARK) :]))
            except ValueError:
                continue  # torn
    return lines


def _runs(ran: Path) -> dict[str, list[tuple[int, str]]]:
    runs: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    if ran.exists():
        for line in ran.read_text().splitlines():
            name, number, owner = line.split()
            runs[name].append((int(number), owner.rpartition(".")[2]))
    return runs


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    judgement = judge(Path(asked["spool"]), Path(asked["ran"]), set(asked["promised"]))
    json.dump(asdict(judgement), sys.stdout)
