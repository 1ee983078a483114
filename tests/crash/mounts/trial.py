"""One trouble from beginning to end: mount, work, weather, calm, and what another process finds.

Not here: which troubles there are (`troubles`), what is printed (`__main__`). Invariant: the
weather is over when the last commands are given, unless it is a property of the mount.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.crash.mounts import fleet_work
from tests.crash.mounts.belief import Quota
from tests.crash.mounts.fleet_work import Fleet, Said
from tests.crash.mounts.judging import Judgement
from tests.crash.mounts.mounting import REPO, Mount, mounted
from tests.crash.mounts.troubles import HANG, QUOTA, Trouble

_POLL_S = 0.1
_HANG_S = 3.0
_QUOTA_ROOM_BYTES = 1 << 10
_QUOTA_EVERY_S = 0.3  # on a fast machine the whole fleet is done within three seconds
_HANG_EVERY_S = 1.5


@dataclass(kw_only=True)
class Outcome:
    """One row.

    Attributes:
        judgement: What the other process found.
        operations: What the mounts were asked.
        fired: How often a rule fired.
        by_hand: Tasks that failed for good and were put back by hand.
        faults: What must not be, in sentences; empty when all holds.
    """

    trouble: Trouble
    judgement: Judgement
    said: Said
    operations: int
    fired: int
    kills: int
    by_hand: int
    wall_s: float
    faults: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def put_through(
    trouble: Trouble, base: Path, *, tasks: int, weather_s: float, seed: int = 0, kills: int = 2
) -> Outcome:
    """Puts a fleet through one trouble.

    Args:
        trouble: Which.
        base: An empty folder, on a file system of its own kind.
        tasks: How many each of two processes enqueues.
        weather_s: When the trouble is over at the latest, unless it is the mount's own.
        seed: Of rules and kills.
        kills: Workers that are killed.
    """
    notes = base / "notes"
    notes.mkdir()
    began_s = time.monotonic()
    with ExitStack() as stack:
        mounts = [
            stack.enter_context(mounted(base, seed=seed + client, name=f"client{client}"))
            for client in range(trouble.clients)
        ]
        fleet = Fleet([mount.folder / "tree" for mount in mounts], notes, seed)
        if trouble.always:
            _give(mounts, trouble)
        fleet.insist(0, "init")
        if not trouble.always:
            _give(mounts, trouble)
        wanted = 2 * tasks + 2
        _work(
            fleet, mounts, trouble, lambda: _done(base) >= wanted,
            tasks=tasks, weather_s=weather_s, kills=kills,
        )  # fmt: skip
        if not trouble.always:
            for mount in mounts:
                mount.give()
        by_hand = _calm(fleet, base, wanted)
        operations = sum(sum(mount.operations().values()) for mount in mounts)
        fired = sum(sum(sum(by.values()) for by in mount.fired().values()) for mount in mounts)
        left = sorted(fleet_work.processes_of(str(base)))
    outcome = Outcome(
        trouble=trouble, judgement=_judge(base, fleet), said=fleet.said, operations=operations,
        fired=fired, kills=fleet.kills, by_hand=by_hand, wall_s=time.monotonic() - began_s,
    )  # fmt: skip
    outcome.faults = _faults(outcome, left)
    if kills and not outcome.kills:
        outcome.faults.append("no worker was killed")
    return outcome


def _give(mounts: list[Mount], trouble: Trouble) -> None:
    for mount in mounts:
        mount.give(*trouble.rules)


def _done(base: Path) -> int:
    done = base / "backing/tree/taskq/done"
    return len(list(done.iterdir())) if done.exists() else 0


def _work(
    fleet: Fleet,
    mounts: list[Mount],
    trouble: Trouble,
    all_done: Callable[[], bool],
    *,
    tasks: int,
    weather_s: float,
    kills: int,
) -> None:
    """Everything at the same time, until it is done or the weather has lasted long enough."""
    over_at = time.monotonic() + weather_s
    ended = threading.Event()

    def until() -> bool:
        return ended.is_set() or all_done() or time.monotonic() > over_at

    def enqueue(client: int, prefix: str, last: str) -> None:
        fleet.enqueue(client, prefix, tasks)
        fleet.enqueue_one(client, last, "--after", f"{prefix}-*")

    def steer() -> None:
        for number in (5, 17, 9):
            if not until():
                fleet.cancel_and_retry(0, f"a-{number:04d}")

    share = max(1, 4 // len(mounts))
    jobs = [
        threading.Thread(target=enqueue, args=(0, "a", "last-a")),
        threading.Thread(target=enqueue, args=(1, "b", "last-b")),
        threading.Thread(target=steer),
        threading.Thread(target=fleet.kill_workers, args=(until, kills)),
        *(
            threading.Thread(target=fleet.run, args=(client, share, until))
            for client in range(len(mounts))
        ),
    ]
    weather = threading.Thread(target=_weather, args=(mounts, trouble, until))
    for thread in (weather, *jobs):
        thread.start()
    weather.join()
    if not trouble.always:
        for mount in mounts:
            mount.give()
    for thread in jobs:
        thread.join()


def _weather(mounts: list[Mount], trouble: Trouble, until: Callable[[], bool]) -> None:
    """What rules alone cannot do: a quota that is raised and lowered, and what hangs."""
    turn = 0
    next_s = time.monotonic() + (_QUOTA_EVERY_S if trouble.name == "quota" else _HANG_EVERY_S)
    while not until():
        time.sleep(_POLL_S)
        if time.monotonic() < next_s:
            continue
        turn += 1
        if trouble.name == "quota":
            next_s += _QUOTA_EVERY_S
            room = _used(mounts[0]) + _QUOTA_ROOM_BYTES
            limited = msgspec.structs.replace(QUOTA, most_bytes=room)
            mounts[0].give(*([limited] if turn % 2 else []))
        elif trouble.name == "hangs" and turn <= 2:
            mounts[0].give(HANG)
            time.sleep(_HANG_S)
            mounts[0].give()
            mounts[0].release(stay_open=False)
            next_s = time.monotonic() + _HANG_EVERY_S


def _used(mount: Mount) -> int:
    return Quota(str(mount.backing)).used


def _calm(fleet: Fleet, base: Path, wanted: int) -> int:
    """The recovery pass that a person makes; returns how many tasks were put back by hand."""
    by_hand = 0
    fleet.give(0, "recover")
    fleet.give(0, "check", "--repair")
    for _ in range(6):
        failed = base / "backing/tree/taskq/failed"
        for file in sorted(failed.iterdir()):
            by_hand += '"outcome":"cancelled"' not in file.read_text(errors="replace")
            fleet.insist(0, "retry", file.name.removesuffix(".sh"), tries=20)
        if _done(base) >= wanted:
            break
        fleet.give(0, "run", "--workers", "4")
        fleet.give(0, "recover")
    return by_hand


def _judge(base: Path, fleet: Fleet) -> Judgement:
    asked = {
        "spool": str(base / "backing/tree/taskq"),
        "ran": str(fleet.notes / "ran"),
        "promised": sorted(fleet.promised),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.mounts.judging"], input=json.dumps(asked), cwd=REPO,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise AssertionError(f"the judging process failed: {done.stderr}")
    return Judgement(**json.loads(done.stdout))


def _faults(outcome: Outcome, left: list[int]) -> list[str]:
    judged = outcome.judgement
    faults = [*outcome.said.faults, *judged.lost, *judged.doubled, *judged.twice, *judged.stuck]
    if outcome.fired < outcome.trouble.least:
        faults.append(f"the rules fired only {outcome.fired} times")
    if left:
        faults.append(f"workers are left: {left}")
    return faults
