"""What a soak does, drawn from its seed: the tasks, in which order they come, and the disturbances.

Not here: doing any of it. Invariant: the same seed and sizes give the same plan, so that a run can
be repeated; only what meets what depends on the machine.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

OUTER, INNER = "outer", "gpu"
INNER_SHARE = 0.25
HANG_TIMEOUT = "2s"

KINDS: dict[str, int] = {
    "plain": 620,  # ends at once
    "nap": 200,  # some tenths of a second
    "slow": 15,  # some seconds: what kills meet
    "fails": 35,  # its first attempts fail; retries may or may not suffice
    "later": 8,  # exit code 75, once
    "hangs": 6,  # until its timeout
    "stubborn": 4,  # the same, and ignores TERM
    "leaves": 14,  # leaves processes behind, some in other sessions, some with no environment
    "floods": 8,  # writes some megabytes to its log
    "writes": 35,  # declares an output and makes it
    "forgets": 6,  # declares one and does not
    "child": 35,  # comes after another task
    "wave": 4,  # comes after all of a glob
    "marker": 3,  # comes after a file
    "timed": 3,  # alone on its node
}
"""Kind of task to its share in thousandths, nearly."""

BODIES: dict[str, Callable[[random.Random], str]] = {
    "plain": lambda rng: "end 0",
    "nap": lambda rng: f"sleep 0.{rng.randint(1, 9)}; end 0",
    "slow": lambda rng: f"sleep {rng.randint(3, 9)}; end 0",
    "fails": lambda rng: (
        f"[ $FLEET_ATTEMPT -gt {rng.choice((1, 1, 1, 2, 2, 5))} ] || end {rng.randint(1, 9)}; end 0"
    ),
    "later": lambda rng: "[ $FLEET_ATTEMPT -gt 1 ] || end 75; end 0",
    "hangs": lambda rng: "sleep 3600; end 0",
    "stubborn": lambda rng: "trap '' TERM; while :; do sleep 0.5; done",
    "leaves": lambda rng: rng.choice(_LEFT_BEHIND) + "\nend 0",
    "floods": lambda rng: f"head -c {rng.randint(1, 4)}000000 /dev/zero | tr '\\0' x; end 0",
    "writes": lambda rng: 'echo "$FLEET_OWNER" >"out/$FLEET_TASK"; end 0',
    "forgets": lambda rng: "end 0",
    "child": lambda rng: "end 0",
    "wave": lambda rng: "end 0",
    "marker": lambda rng: "end 0",
    "timed": lambda rng: f"sleep 0.{rng.randint(1, 5)}; end 0",
}
_LEFT_BEHIND = (
    "sleep 3001 &",
    "(setsid sleep 3002 &)",
    "(env -i setsid sleep 3003 &)",
    "(trap '' TERM; sleep 3004 & sleep 3005 &)",
)

DISTURBANCES: dict[str, int] = {
    "kill a worker": 6,
    "kill a keeper": 5,
    "kill a pack": 3,
    "kill a logger": 3,
    "kill a launcher": 2,
    "kill a node": 4,
    "restart slurmctld": 2,
    "silence slurmctld": 1,
    "scancel a fleet": 2,
    "requeue a fleet": 1,
    "DRAIN": 1,
    "STOP": 1,
    "freeze a worker": 4,
    "cut a node off": 3,
    "recover": 4,
    "check --repair": 4,
    "promote": 3,
    "cancel": 8,
    "retry": 5,
    "shut the log folder": 2,
    "kill an enqueue": 2,
}
"""Kind of disturbance to how often a whole run has it."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task as it is enqueued: the row of its batch, and where it goes."""

    spool: str
    kind: str
    row: dict[str, object]

    @property
    def name(self) -> str:
        return str(self.row["name"])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One soak.

    ``tasks`` in the order in which they come, ``disturbances`` likewise; ``singles`` are the places
    of tasks that are enqueued by a call of their own.
    """

    seed: int
    tasks: list[Task]
    disturbances: list[str]
    singles: frozenset[int] = field(default_factory=frozenset)


def draw(seed: int, *, tasks: int, prelude: str, disturbances: Sequence[str] | None = None) -> Plan:
    """Draws a plan.

    Args:
        seed: Of the random numbers.
        tasks: How many, packs not counted.
        prelude: Path of the shell text that every task begins with.
        disturbances: These, in this order, instead of a whole run's.
    """
    rng = random.Random(seed)
    drawn: list[Task] = []
    for number in range(tasks):
        drawn.append(_task(rng, number, drawn, prelude))
    chosen = list(disturbances) if disturbances is not None else _shuffled(rng)
    singles = frozenset(rng.sample(range(tasks), min(tasks // 20, 40)))
    return Plan(seed=seed, tasks=drawn, disturbances=chosen, singles=singles)


def _shuffled(rng: random.Random) -> list[str]:
    chosen = [kind for kind, count in DISTURBANCES.items() for _ in range(count)]
    rng.shuffle(chosen)
    return chosen


def _task(rng: random.Random, number: int, before: list[Task], prelude: str) -> Task:
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    spool = INNER if rng.random() < INNER_SHARE and kind not in ("timed", "marker") else OUTER
    # The kind last: workers take names in order, and ten failures in a row make a node unfit.
    prefix = "g" if spool == INNER else "t"
    name = f"{prefix}-{number:05d}-{kind}"
    row: dict[str, object] = {
        "name": name,
        "command": f". {shlex.quote(prelude)}; {BODIES[kind](rng)}",
    }
    if kind in ("hangs", "stubborn"):
        row["timeout"] = HANG_TIMEOUT
        row["retries"] = rng.choice((0, 0, 1))
    if kind in ("fails", "forgets"):
        row["retries"] = rng.randint(0, 2)
    if kind in ("writes", "forgets"):
        row["outputs"] = [f"out/{name}"]
    if kind == "timed":
        row["timed"] = True
    if kind == "marker":
        row["after-file"] = [f"ready/{rng.randint(1, 3)}"]
    if kind == "child":
        row["after"] = _earlier(rng, before, spool)
    if kind == "wave":
        row["after"] = [f"{prefix}-{max(0, number - 1) // 1000:02d}*-writes"]
        if not any(t.spool == spool and t.kind == "writes" for t in before[-500:]):
            row["after"] = _earlier(rng, before, spool)
    if rng.random() < 0.03:
        row["lane"] = rng.choice(("first", "last"))
    return Task(spool=spool, kind=kind, row=row)


def _earlier(rng: random.Random, before: list[Task], spool: str) -> list[str]:
    """One or two tasks that came shortly before, of the same spool."""
    near = [task.name for task in before[-200:] if task.spool == spool]
    return rng.sample(near, min(len(near), rng.choice((1, 1, 2))))
