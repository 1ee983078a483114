"""A small tmpfs that is full, of bytes or of files: what every command says, and what a fleet does.

Not here: lines that fit in part (`tests/crash/test_full_disk.py`). Invariant: what was promised
before the disk was full is done in the end, and nothing that was refused is half there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.mounts.fleet_work import Fleet, last_sentence, usual_command
from tests.crash.mounts.judging import Judgement, judge
from tests.crash.mounts.mounting import small_tmpfs

_WAIT_S = 60.0
_BLOCKS = (65536, 4096, 1)
_ROOM_BYTES = 20


class Filler:
    """What fills a mount, of bytes or of files, and can be taken away again."""

    def __init__(self, mount: Path, kind: str) -> None:
        self._folder = mount / "filler"
        self._folder.mkdir(exist_ok=True)
        self._kind = kind
        self._next = 0

    def fill(self) -> None:
        """Takes everything that is left."""
        if self._kind == "bytes":
            self._fill_bytes()
        else:
            self._fill_files()

    def _fill_bytes(self) -> None:
        fd = os.open(self._folder / "bytes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for size in _BLOCKS:
                try:
                    while os.write(fd, b"x" * size):
                        pass
                except OSError:
                    continue
        finally:
            os.close(fd)

    def _fill_files(self) -> None:
        try:
            while True:
                self._next += 1
                os.close(os.open(self._folder / str(self._next), os.O_CREAT | os.O_WRONLY))
        except OSError:
            return

    def free(self) -> None:
        """Gives it all back."""
        for file in self._folder.iterdir():
            file.unlink()


@dataclass(kw_only=True)
class Answer:
    """What one command said while the disk was full, and whether it worked once there was room."""

    command: str
    code: int
    sentence: str
    later: int


@dataclass(kw_only=True)
class FullOutcome:
    """What came of a fleet on a disk that was full for a while.

    Attributes:
        worker_codes: With which codes workers left while it was full.
        full: How often it was full.
        faults: What must not be; empty when all holds.
    """

    judgement: Judgement
    worker_codes: list[int]
    full: int
    wall_s: float
    faults: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("enqueue", "-n", "new", "true"),
    ("enqueue", "--stdin", "-n", "batch-{n}"),
    ("cancel", "to-cancel"),
    ("retry", "failed-before"),
    ("drain",),
    ("resume",),
    ("recover",),
    ("promote",),
    ("check",),
    ("status",),
    ("show", "done-before"),
    ("run",),
    ("worker", "--idle", "1"),
    ("init",),
)
_REFUSES = {5, 7, 9, 75}


def ask_everything(base: Path, kind: str) -> tuple[list[Answer], list[str]]:
    """Every command on a mount that is full, and again once there is room.

    Args:
        base: An empty folder, off the mount.
        kind: ``bytes`` or ``files``.

    Returns:
        What they said, and what must not be.
    """
    with small_tmpfs(base / "small", size="2m", inodes=400) as mount:
        fleet = _prepared(base, mount)
        filler = Filler(mount, kind)
        answers: list[Answer] = []
        for words in COMMANDS:
            filler.fill()
            code, out, err = fleet.say(0, *words, text="true\ntrue\n")
            filler.free()
            later, _, _ = fleet.say(0, *words, text="true\ntrue\n")
            answers.append(
                Answer(command=" ".join(words[:1]), code=code, later=later,
                       sentence=last_sentence(err or out))
            )  # fmt: skip
        checked, out, err = fleet.say(0, "check")
    faults = [*fleet.said.faults]
    faults += [
        f"{answer.command} left with {answer.code}: {answer.sentence}"
        for answer in answers
        if answer.code not in {0, 1, *_REFUSES}
    ]
    if checked != 0:
        faults.append(f"check: {last_sentence(out + err)}")
    return answers, faults


def _prepared(base: Path, mount: Path) -> Fleet:
    notes = base / "notes"
    notes.mkdir()
    fleet = Fleet([mount / "tree"], notes, seed=0)
    fleet.insist(0, "init")
    fleet.insist(0, "enqueue", "-n", "done-before", "true")
    fleet.insist(0, "enqueue", "-n", "failed-before", "false")
    fleet.give(0, "run")
    fleet.insist(0, "enqueue", "-n", "to-cancel", "--after", "never", "true")
    return fleet


def full_in_the_middle(base: Path, kind: str, *, tasks: int = 60, turns: int = 3) -> FullOutcome:
    """Workers run while the mount fills up, several times; then there is room again.

    Args:
        base: An empty folder, off the mount.
        kind: ``bytes`` or ``files``.
        tasks: How many.
        turns: How often it is full.
    """
    began_s = time.monotonic()
    notes = base / "notes"
    notes.mkdir()
    codes: list[int] = []
    with small_tmpfs(base / "small", size="4m", inodes=2000) as mount:
        fleet = Fleet([mount / "tree"], notes, seed=0)
        fleet.insist(0, "init")
        share = tasks // (turns + 1)
        fleet.enqueue(
            0, "a", tasks, room_bytes=_ROOM_BYTES, command_of=lambda n: _waits(n, (n - 1) // share)
        )
        filler = Filler(mount, kind)
        for turn in range(1, turns + 1):
            workers = [
                fleet.start(0, "worker", "--idle", "2", "--heartbeat", "0.5") for _ in range(2)
            ]
            _await(lambda goal=turn * share: _runs(notes) >= goal)
            filler.fill()
            (notes / f"full-{turn}").touch()
            codes += [fleet.await_end(worker, "worker") for worker in workers]
            if turn < turns:
                filler.free()
        fleet.give(0, "recover")
        filler.free()
        fleet.give(0, "recover")
        fleet.insist(0, "run", "--workers", "2")
        checked, out, err = fleet.say(0, "check")
        judgement = judge(mount / "tree/taskq", notes / "ran", fleet.promised)
    faults = [*fleet.said.faults, *judgement.lost, *judgement.doubled, *judgement.twice,
              *judgement.stuck]  # fmt: skip
    if checked != 0:
        faults.append(f"check: {last_sentence(out + err)}")
    return FullOutcome(
        judgement=judgement, worker_codes=codes, full=turns, wall_s=time.monotonic() - began_s,
        faults=faults,
    )  # fmt: skip


def _waits(number: int, turn: int) -> str:
    """A command that does not end before the disk was full so often."""
    command = usual_command(number)
    if not turn:
        return command
    return f'until [ -e "$NOTES/full-{turn}" ]; do sleep 0.05; done; {command}'


def _runs(notes: Path) -> int:
    ran = notes / "ran"
    return len(ran.read_text().splitlines()) if ran.exists() else 0


def _await(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _WAIT_S
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.02)
