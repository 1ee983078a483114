"""Rules of the spool, broken one at a time in the process that calls, to see that it shows.

Not here: the protocols whose trials must show it (`spool`). Invariant: each breaks one rule, for
good, and leaves the rest of the protocol as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleetcraft.spool import claims, recovery
from fleetcraft.spool import enqueue as publishing
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.record import HistoryLine
from fleetcraft.spool.tree import SpoolTree


def _explored(name: str) -> tuple[str, Callable[[], None]]:
    """A rule that the exploration breaks too."""

    def break_it() -> None:
        from tests.explore import mutations  # loads much, and every trial would pay for it

        getattr(mutations, name)().__enter__()

    return name, break_it


def _move_by_link_and_unlink() -> None:
    """A transition is two operations: a link to the new name, and the end of the old one."""

    def move(self: SpoolTree, source: str, destination: str) -> bool:
        try:
            self.fs.link(source, destination)
        except FileNotFoundError:
            return False
        self.fs.unlink(source)
        return True

    SpoolTree.move = move  # type: ignore[method-assign]


def _move_before_the_line() -> None:
    """A record leaves running before its history says why."""

    def moved_first(tree: SpoolTree, held: claims.Claim, line: HistoryLine) -> Any:
        target = claims.destination_path(tree, held.name, held.record.spec.lane, line)
        tree.move(held.path, target)
        fd = tree.fs.open_append(target)
        tree.fs.append(fd, claims.write_history(line))
        tree.fs.close(fd)
        return claims.Closed(line, mine=True, moved=True)

    claims.close_own = moved_first  # type: ignore[assignment]


def _recover_by_moving_first() -> None:
    """A recovered record is claimable before its history says that it was lost."""

    def close_for(tree: SpoolTree, name: str, owner: Any, make_line: Any) -> claims.Closed:
        path = tree.paths.claim(name, owner)
        record = tree.read(path)
        line = record.closing_line(owner.token) or make_line(record)
        target = claims.destination_path(tree, name, record.spec.lane, line)
        tree.move(path, target)
        fd = tree.fs.open_append(target)
        tree.fs.append(fd, claims.write_history(line))
        tree.fs.close(fd)
        return claims.Closed(line, mine=True, moved=True)

    recovery.close_for = close_for  # type: ignore[assignment, attr-defined]


def _one_by_one() -> None:
    """A batch is enqueued as so many single tasks."""

    def batch(tree: SpoolTree, specs: list[TaskSpec], *, if_absent: bool = False) -> Any:
        for spec in specs:
            publishing.enqueue(tree, spec, if_absent=if_absent)
        return publishing.BatchReport(enqueued=len(specs))

    publishing.enqueue_batch = batch  # type: ignore[assignment]


BY_COPY = ("move_by_link_and_unlink", _move_by_link_and_unlink)
LINE_LATER = ("move_before_the_line", _move_before_the_line)
MOVED_FIRST = ("recover_by_moving_first", _recover_by_moving_first)
NO_LOOK = _explored("run_without_a_last_look")
NO_LEASE = _explored("withdraw_the_lease_of_an_open_claim")
EARLY = _explored("retry_before_removing_the_marker")

ONE_BY_ONE = ("one_by_one", _one_by_one)
