"""The way into supervision: folders, lock, and what hangs together in one supervisor.

Loads no torch. Invariant: nothing of a run is written or decided before its lock is held.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fleetcraft.caches.scope import CacheSettings
from fleetcraft.errors import ConfigError, DataError, FleetError
from fleetcraft.files import FileSystem
from fleetcraft.identity import process_id, this_host, this_job_run
from fleetcraft.layout import Scratch
from fleetcraft.layout.runs import RunPaths
from fleetcraft.locks import GenerationLock, Held, Holder, Judge, LockHeldError
from fleetcraft.training.checkpoint.claims import declare_end
from fleetcraft.training.launching.graces import check_graces
from fleetcraft.training.launching.steps import nodes_of_step
from fleetcraft.training.plan.ladder import Ladder
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.records import ProcessRecord, Rung, State
from fleetcraft.training.supervision.deciding import Decision, next_launch
from fleetcraft.training.supervision.facts import NO_END
from fleetcraft.training.supervision.history import History
from fleetcraft.training.supervision.journal import Event, Journal, event_of
from fleetcraft.training.supervision.judging import HolderJudge
from fleetcraft.training.supervision.leaving import Ended
from fleetcraft.training.supervision.orders import Orders
from fleetcraft.training.supervision.other_ranks import supervising_rank, wait_until_left
from fleetcraft.training.supervision.rooms import Rooms
from fleetcraft.training.supervision.status_file import StatusFile
from fleetcraft.training.supervision.supervisor import Supervisor
from fleetcraft.training.supervision.telling import Teller

LOCK_INTERVAL_S = 5.0
RESUME_FROM = "FLEET_RESUME_FROM"
"""The checkpoint from which a claimed resume of the run's task goes on; the command sees it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a run is supervised.

    Attributes:
        plan: The run.
        root: The scratch tree.
        nodes: Nodes of its step inside a larger job; None leaves it to the plan.
        detach: Leave the run alive when this process is told to end.
        take_over: Follow a silent supervisor of which nothing is known.
        anew: Count restarts from the beginning, with the knobs as declared.
        lock_interval_s: Seconds between beats of the lock.
        caches: What the project says of caches; None tells the command nothing about them.
    """

    plan: RunPlan
    root: str
    nodes: int | None = None
    detach: bool = False
    take_over: bool = False
    anew: bool = False
    lock_interval_s: float = LOCK_INTERVAL_S
    caches: CacheSettings | None = None


def supervise(
    settings: Settings,
    tell: Callable[[Mapping[str, Any]], None],
    *,
    orders: Orders | None = None,
    judge: Judge | None = None,
    fs: FileSystem | None = None,
) -> Ended:
    """Supervises a run until it is done, given up, or this process is told to end.

    In a step of several ranks one of them does so, and the others wait until it has left.

    Args:
        settings: How.
        tell: Is handed every event.
        orders: Signals; those of this process if None.
        judge: Says whether another holder of the lock lives.
        fs: The seam.

    Returns:
        How it ended, with the exit code.

    Raises:
        ConfigError: The plan contradicts itself; nothing was launched.
        LockHeldError: Another supervises this run, or may.
        LockUnknownError: That cannot be told.
        SpoolError: The run has declared another end.
        FleetError: The run's folder cannot be made.
    """
    plan = settings.plan
    _check(settings)
    fs = fs or FileSystem()
    paths = RunPaths(Scratch(settings.root).run_folder(plan.run))
    make_folders(paths, fs)
    lock = GenerationLock(
        paths.lock,
        purpose=f"run {plan.run}",
        interval_s=settings.lock_interval_s,
        judge=judge or HolderJudge(),
        run=this_job_run(os.environ),
        fs=fs,
    )
    orders = orders or Orders()
    with orders.listening():
        try:
            held = lock.acquire(by_age=settings.take_over)
        except LockHeldError as refused:
            rank = supervising_rank(lock, refused, os.environ)
            if rank is None:
                raise
            return _wait_for(rank, lock, plan.run, orders, tell)
        with held:
            return _supervise(settings, held, orders, tell, fs)


def _supervise(
    settings: Settings,
    held: Held,
    orders: Orders,
    tell: Callable[[Mapping[str, Any]], None],
    fs: FileSystem,
) -> Ended:
    plan = settings.plan
    paths = RunPaths(Scratch(settings.root).run_folder(plan.run))
    if plan.end is not None:
        folder = plan.checkpoints and os.path.abspath(plan.checkpoints)
        declare_end(paths, plan.end, checkpoints=folder, fs=fs)
    rooms = Rooms(
        plan, paths, nodes=settings.nodes, caches=settings.caches, fs=fs, wait=orders.wait
    )
    teller = _teller(plan, paths, held, tell, fs)
    if settings.anew:
        after = max(rooms.epochs.numbers(), default=0)
        teller.event(Event.ANEW, durable=True, after=after, why="an operator says so")
    _tell_resume(rooms, teller)
    return Supervisor(held, rooms, teller, orders, detach=settings.detach).run()


def _wait_for(
    rank: Holder,
    lock: GenerationLock,
    run: str,
    orders: Orders,
    tell: Callable[[Mapping[str, Any]], None],
) -> Ended:
    """The part of a rank beside the one that supervises: waits, and leaves with 0."""

    def say(why: str) -> None:
        tell(event_of(Event.ELSEWHERE, run, rank.generation, None, why=why))

    say(f"{rank} supervises the run for all ranks of this step; this one waits")
    why = wait_until_left(lock, rank, sleep=orders.pause)
    say(f"{why}, and so does this rank")
    return Ended(state=State.IDLE, exit_code=0, why=why)


def _tell_resume(rooms: Rooms, teller: Teller) -> None:
    """Notes a claimed resume once: a second call of the same one is none more.

    What cannot be read notes nothing; the supervisor comes upon it next.
    """
    checkpoint = rooms.environ.get(RESUME_FROM)
    if not checkpoint:
        return
    with contextlib.suppress(OSError, DataError):
        history = rooms.history()
        if history.last is not None and checkpoint not in history.resumes:
            teller.event(
                Event.RESUMED,
                durable=True,
                after=history.last.number,
                checkpoint=checkpoint,
                why=f"this is the resume from {checkpoint}",
            )


def plan_launch(settings: Settings, *, fs: FileSystem | None = None) -> DryRun:
    """What would be launched now, if nothing of the run lives. Writes nothing.

    Raises:
        ConfigError: The plan contradicts itself.
        OSError: What was launched before cannot be read.
        DataError: A record is torn.
    """
    plan = settings.plan
    _check(settings)
    paths = RunPaths(Scratch(settings.root).run_folder(plan.run))
    rooms = Rooms(plan, paths, nodes=settings.nodes, fs=fs)
    begun = rooms.fs.exists(paths.epochs)
    history = rooms.history() if begun else History()
    decision = next_launch(
        plan, history, rooms.series(history) if begun else (), rooms.checkpoints(), rooms.environ
    )
    end, end_why = rooms.end()
    if plan.end is None and history.done and not history.resumed:
        end, end_why = True, NO_END
    return DryRun(
        run=plan.run,
        folder=paths.folder,
        epoch=history.last.number + 1 if history.last else 1,
        unrecorded=history.unrecorded.number if history.unrecorded else None,
        command=plan.command,
        directory=plan.directory,
        nodes=settings.nodes or plan.nodes,
        decision=decision,
        rung=decision.rung,
        end=end,
        end_why=end_why,
        abort=rooms.abort(),
    )


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor would launch.

    Attributes:
        run: Its name.
        folder: Its folder.
        epoch: The number that the launch would have.
        unrecorded: The last attempt, of which no end is written down: it may live, and would be
            adopted then.
        command: Its words.
        directory: Where it runs.
        nodes: On how many nodes.
        decision: Rung, knobs, variables, budgets.
        rung: What it tries; None when it would not be launched.
        end: Whether the declared end is reached.
        end_why: The sentence that goes with it.
        abort: Whether ABORT stands.
    """

    run: str
    folder: str
    epoch: int
    unrecorded: int | None
    command: tuple[str, ...]
    directory: str
    nodes: int
    decision: Decision
    rung: Rung | None
    end: bool | None
    end_why: str
    abort: bool | None


def make_folders(paths: RunPaths, fs: FileSystem) -> None:
    """Makes a run's folders where they are not there.

    Raises:
        ConfigError: There is no scratch tree.
        FleetError: They cannot be made.
    """
    tree = os.path.dirname(os.path.dirname(paths.folder))
    try:
        if not fs.exists(tree):
            raise ConfigError(
                f"there is no scratch tree at {tree}; nothing was launched",
                hint=f"fleetcraft --root {tree} init",
                root=tree,
            )
        for folder in (os.path.dirname(paths.folder), *paths.folders()):
            with contextlib.suppress(FileExistsError):
                fs.make_folder(folder)
    except OSError as error:
        raise FleetError(
            f"cannot make the folder of run {paths.name!r}: {error.strerror or error} "
            f"({error.filename or paths.folder}); nothing was launched",
            hint="check the mount, its quota and permissions",
            path=paths.folder,
        ) from error


def _check(settings: Settings) -> None:
    """Refuses what could never be launched, before anything is written.

    Raises:
        ConfigError: The plan contradicts itself, or wants several nodes outside a Slurm job, or
            more than this process's step of several ranks has.
        SchedulerError: The nodes of that step could not be named.
    """
    plan = settings.plan
    check_graces(plan)
    Ladder(plan)
    nodes = settings.nodes or plan.nodes
    if nodes > 1 and "SLURM_JOB_ID" not in os.environ:
        raise ConfigError(
            f"run {plan.run!r} wants {nodes} nodes, and this is no Slurm job; nothing was launched",
            hint="call it inside an allocation, as a task of a fleet or after salloc",
            nodes=nodes,
        )
    nodes_of_step(plan.run, nodes, os.environ)


def _teller(
    plan: RunPlan,
    paths: RunPaths,
    held: Held,
    tell: Callable[[Mapping[str, Any]], None],
    fs: FileSystem,
) -> Teller:
    me = process_id(os.getpid())
    nonce = held.holder.nonce
    record = ProcessRecord(place=this_host(), process=me, nonce=nonce) if me else None
    return Teller(
        Journal(paths.events, run=plan.run, fs=fs, tell=tell),
        StatusFile(paths.status, nonce=nonce, fs=fs),
        plan=plan,
        supervisor=record,
        generation=held.generation,
    )
