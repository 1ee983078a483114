"""Spools of any size: by the product's own enqueue, and the same bytes written directly.

A million tasks by the product take minutes, directly one. Invariant: for the same tasks both give
the same names, folders, modes, links and bytes but for the random id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fleetcraft.identity import Owner
from fleetcraft.layout import Lane, State
from fleetcraft.spool import leases, setup
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.enqueue import enqueue_batch
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.record import HistoryLine, Outcome, compose, write_history
from fleetcraft.spool.tree import SpoolTree
from tests.scale.counting import CountingFS

NAME_DIGITS = 7
_PROJECT = "/project"
_GIVEN_ID = "0" * 12
_NAMES_A_LOG = 50_000  # ext4 allows 65,000 links


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How many tasks of a spool are in which state.

    ``running`` are claims of ``launches`` launches of one other host; ``waiting`` tasks wait for
    the last pending one by name, or, with ``glob``, for all that are pending or done.
    """

    pending: int = 0
    done: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    launches: int = 1
    glob: bool = False

    @property
    def tasks(self) -> int:
        """All of them."""
        return self.pending + self.done + self.failed + self.running + self.waiting


def half_done(tasks: int, *, claims: int = 64) -> Shape:
    """What a spool looks like in the middle of its work: half is done, one in a hundred failed."""
    done, failed, waiting = tasks // 2, tasks // 100, tasks // 100
    running = min(claims, tasks // 10)
    pending = tasks - done - failed - waiting - running
    return Shape(
        pending=pending, done=done, failed=failed, running=running, waiting=waiting, launches=claims
    )


def task_name(number: int, prefix: str = "task") -> str:
    """A name whose order is that of its number."""
    return f"{prefix}-{number:0{NAME_DIGITS}d}"


def spec_of(name: str, **directives: object) -> TaskSpec:
    """What every task here runs."""
    return TaskSpec(name=name, command="true", project_dir=_PROJECT, **directives)  # type: ignore[arg-type]


def empty_spool(folder: Path, fs: CountingFS | None = None) -> SpoolTree:
    """A new spool whose file system is counted."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    tree = SpoolTree(str(folder / "taskq"), fs or CountingFS())
    setup.set_up(tree)
    return tree


def enqueue_truly(tree: SpoolTree, count: int, first: int = 0) -> None:
    """Pending tasks by the product's batch enqueue."""
    numbers = range(first, first + count)
    enqueue_batch(tree, [spec_of(task_name(number)) for number in numbers])


def write_pending(tree: SpoolTree, count: int, first: int = 0) -> None:
    """The same tasks, written directly."""
    _write(tree, tree.paths.lane(Lane.PLAIN), map(task_name, range(first, first + count)), _head())


def fill(
    tree: SpoolTree, shape: Shape, say: Callable[[str], None] = lambda text: None
) -> list[Lease]:
    """Writes a whole spool directly; done tasks come first in name order, as they run so.

    Returns:
        The leases of the launches that hold its claims: of another boot, so those are dead where
        this host is asked, once their host says that it is this one.
    """
    paths = tree.paths
    say(f"    making {shape.tasks:,} tasks")
    numbers = iter(range(shape.tasks))

    def names(count: int) -> list[str]:
        return [task_name(next(numbers)) for _ in range(count)]

    done, failed = names(shape.done), names(shape.failed)
    _write(tree, paths.done, done, _head(), _history(Outcome.COMPLETED, State.DONE), logs=True)
    _write(tree, paths.failed, failed, _head(), _history(Outcome.FAILED, State.FAILED), logs=True)
    held = names(shape.running)
    pending = names(shape.pending)
    _write(tree, paths.lane(Lane.PLAIN), pending, _head())
    after = f"task-[0-{9}]*" if shape.glob else (pending or done or ["nobody"])[-1]
    waiting = [task_name(next(numbers), "wait") for _ in range(shape.waiting)]
    _write(tree, paths.waiting, waiting, _head(after=(after,)))
    return _hold(tree, held, shape.launches)


def _hold(tree: SpoolTree, names: list[str], launches: int) -> list[Lease]:
    """Claims of launches that ended with an earlier boot of this host, and left no word."""
    made = []
    for number in range(min(launches, len(names))):
        lease = leases.new_lease(rank=str(number), interval_s=30.0)
        lease.job, lease.boot_id, lease.launch = "4711", "an-earlier-boot", f"x{number:07d}"
        leases.publish(tree, lease)
        made.append(lease)
    text = _head()
    for number, name in enumerate(names):
        lease = made[number % len(made)]
        owner = Owner(lease.job, lease.rank, "0", f"{lease.launch}-{number}")
        path = tree.paths.claim(name, owner)
        _write_one(path, text.replace(_NAME, name.encode()))
        os.link(path, tree.paths.name(name))
        _touch(tree.paths.log(name, 1))
    return made


_NAME = b"@NAME@"
"""Stands for the name in a text; no directive has it."""


def _head(after: tuple[str, ...] = ()) -> bytes:
    # A name must be one, so a plain word stands for it until the text is made.
    text = compose(spec_of("NAMENAMENAME", after=after), _GIVEN_ID)
    return text.replace(b"NAMENAMENAME", _NAME)


def _history(outcome: Outcome, state: State) -> bytes:
    return write_history(
        HistoryLine(
            claim="claimed0-1", outcome=outcome, to=state.value, attempt=1, host="n0001",  # type: ignore[arg-type]
            owner="4711.0.0.claimed0-1", exit_code=int(state is State.FAILED), wall_s=1.5,
            started_at="2026-01-01T00:00:00.000Z", ended_at="2026-01-01T00:00:01.500Z",
            cpu_s=0.5, max_rss_bytes=1 << 20, job="4711", log="logs/@NAME@.1.log",
        )
    )  # fmt: skip


def _write(
    tree: SpoolTree,
    folder: str,
    names: Iterator[str] | list[str],
    head: bytes,
    history: bytes = b"",
    *,
    logs: bool = False,
) -> None:
    text = head + history
    identities = tree.paths.names
    log = ""
    for number, name in enumerate(names):
        path = f"{folder}/{name}.sh"
        # As in the product each record has an id of its own; here it is the name's number.
        identity = name[-NAME_DIGITS:].rjust(len(_GIVEN_ID), "0").encode()
        data = text.replace(_NAME, name.encode()).replace(_GIVEN_ID.encode(), identity, 1)
        _write_one(path, data)
        os.link(path, f"{identities}/{name}")
        if logs and number % _NAMES_A_LOG:
            os.link(log, f"{tree.paths.logs}/{name}.1.log")
        elif logs:
            # Nobody reads these, so that one empty file has many names and they cost no inodes.
            log = _touch(f"{tree.paths.logs}/{name}.1.log")


def _write_one(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
    os.write(fd, data)
    os.close(fd)


def _touch(path: str) -> str:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return path
