"""`Spool`: the small Python API over one spool.

    from fleetcraft import Spool
    spool = Spool.create("/scratch/me/taskq")
    spool.enqueue("hello", "echo hello", timeout_s=60)

It only ties the protocol modules together; each method is one call below. Invariant: a `Spool`
has passed the safety check of its folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from fleetcraft.errors import UsageError
from fleetcraft.files import FileSystem
from fleetcraft.layout import State
from fleetcraft.spool import control, grid, setup, views
from fleetcraft.spool import enqueue as publishing
from fleetcraft.spool.check import CheckReport, check
from fleetcraft.spool.control import Canceller, CancelResult
from fleetcraft.spool.dependencies import refuse_cycles
from fleetcraft.spool.directives import TaskSpec, check_spec
from fleetcraft.spool.enqueue import BatchReport, Published
from fleetcraft.spool.recovery import (
    AskOwner,
    RecoveryReport,
    StopSurvivors,
    ask_this_machine,
    recover,
)
from fleetcraft.spool.sweep import read_lane
from fleetcraft.spool.tree import SpoolTree


class Spool:
    """A directory tree whose folders are the states of its tasks.

    Args:
        root: The spool's folder, such as ``/scratch/me/taskq``.
        project_dir: Where commands run unless a task says otherwise; the current folder if None.
        fs: The file system seam; for tests.

    Raises:
        SpoolError: There is no spool.
        UnsafeSpoolError: Another user owns or can write it.
    """

    def __init__(
        self, root: str, *, project_dir: str | None = None, fs: FileSystem | None = None
    ) -> None:
        self.tree = SpoolTree(root, fs).check_safe()
        self.project_dir = os.path.abspath(project_dir or os.curdir)

    @classmethod
    def create(cls, root: str, *, project_dir: str | None = None) -> Spool:
        """Makes the spool where it is missing, probes its file system, and opens it.

        Raises:
            SpoolError: It cannot be made, or its file system cannot hold one.
        """
        setup.set_up(SpoolTree(root))
        return cls(root, project_dir=project_dir)

    @property
    def root(self) -> str:
        """The spool's folder, absolute."""
        return self.tree.paths.root

    # -- publishing

    def spec(self, name: str, command: str, **directives: Any) -> TaskSpec:
        """A task with this spool's project directory.

        Args:
            name: Unique in the spool for ever.
            command: Shell text.
            directives: The other fields of `TaskSpec`.
        """
        directives.setdefault("project_dir", self.project_dir)
        if "lane" in directives:
            directives["lane"] = read_lane(directives["lane"])
        try:
            return TaskSpec(name=name, command=command, **directives)
        except TypeError as error:
            known = ", ".join(TaskSpec.__struct_fields__[2:])
            raise UsageError(f"task {name!r}: {error}", hint=f"directives: {known}") from error

    def enqueue(
        self, name: str, command: str, *, if_absent: bool = False, **directives: Any
    ) -> Published:
        """Publishes one task durably; see `TaskSpec` for the directives.

        Raises:
            UsageError: A bad name, time or command, or a cycle of dependencies.
            NameTakenError: The name belongs to another task (or the same, without ``if_absent``).
        """
        spec = check_spec(self.spec(name, command, **directives))
        refuse_cycles(self.tree, [spec])
        return publishing.enqueue(self.tree, spec, if_absent=if_absent)

    def enqueue_many(
        self,
        specs: Sequence[TaskSpec],
        *,
        if_absent: bool = False,
        progress: Callable[[int], None] = lambda count: None,
    ) -> BatchReport:
        """Publishes a batch: all or, on a bad task or a taken name, none of it.

        Raises:
            UsageError: A bad task, a repeated name or a cycle; nothing was enqueued.
            NameTakenError: A name belongs to another task; nothing was enqueued.
        """
        for spec in specs:
            check_spec(spec)
        refuse_cycles(self.tree, specs)
        return publishing.enqueue_batch(self.tree, specs, if_absent=if_absent, progress=progress)

    def freeze_grid(self, specs: Sequence[TaskSpec]) -> str:
        """Writes down exactly these tasks of lane ``last`` as a grid; returns its digest.

        Raises:
            UsageError: A task is wrong or of another lane; nothing was frozen.
        """
        return grid.freeze(self.tree, specs).digest

    def bind_grid(self, digest: str, *, instead_of: str = "") -> bool:
        """Lets only the tasks of a frozen grid into lane ``last``; False when that was so already.

        Raises:
            SpoolError: There is no such grid, or the lane is bound to another one.
        """
        return grid.bind(self.tree, digest, instead_of=instead_of)

    # -- looking

    def counts(self) -> dict[str, int]:
        """Tasks by state."""
        return views.counts(self.tree)

    def status(self, *, limit: int = 20) -> views.StatusView:
        """Counts, workers, who blocks whom, and the newest failures."""
        return views.status(self.tree, limit=limit)

    def show(self, name: str) -> views.TaskView:
        """One task with its attempts.

        Raises:
            NoSuchTaskError: No task has this name.
        """
        return views.show(self.tree, name)

    def check(self, *, repair: bool = False) -> CheckReport:
        """Examines the spool, and repairs what is safe to repair."""
        return check(self.tree, repair=repair)

    # -- steering

    def cancel(self, name: str) -> CancelResult:
        """Ends a task that waits or is pending; asks its worker to end one that runs."""
        with Canceller(self.tree) as canceller:
            return canceller.cancel(name)

    def retry(self, name: str) -> State:
        """Puts a failed task back, granting one more attempt."""
        return control.retry(self.tree, name)

    def promote(self) -> list[str]:
        """Moves waiting tasks that are ready to their lanes."""
        return control.promote(self.tree)

    def recover(
        self,
        ask: AskOwner | None = None,
        *,
        stop_survivors: StopSurvivors | None = None,
        dry_run: bool = False,
    ) -> RecoveryReport:
        """Puts back the claims of owners that are gone; unknown ones are left alone."""
        return recover(
            self.tree, ask or ask_this_machine(), stop_survivors=stop_survivors, dry_run=dry_run
        )

    def drain(self, reason: str = "") -> None:
        """Asks every worker to finish what it runs and leave."""
        control.write_marker(self.tree, self.tree.paths.drain_marker, reason)

    def stop(self, reason: str = "") -> None:
        """Asks every worker to interrupt what it runs, put it back and leave."""
        control.write_marker(self.tree, self.tree.paths.stop_marker, reason)

    def resume(self) -> list[str]:
        """Removes DRAIN and STOP."""
        return control.resume(self.tree)
