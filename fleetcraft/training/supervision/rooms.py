"""What a supervisor does to the world: finds, launches, watches, stops, reads checkpoints.

Each method is one act or one look of another room of `training`; which one is due is the
supervisor's. Invariant: what could not be found out is said to be unknown, here already.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from fleetcraft.caches.scope import CacheSettings, shared_exports
from fleetcraft.clock import timestamp
from fleetcraft.errors import DataError
from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import AttemptPaths, RunPaths
from fleetcraft.locks import put_if_absent
from fleetcraft.training.checkpoint.claims import check_end
from fleetcraft.training.checkpoint.records import CheckpointUnknownError
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.training.diagnosing.changes import changes
from fleetcraft.training.launching.adoption import Adoption, find_live
from fleetcraft.training.launching.epochs import Epochs
from fleetcraft.training.launching.gpu_memory import read_used_bytes
from fleetcraft.training.launching.looking import AskSteps, Launch
from fleetcraft.training.launching.sights import Answer
from fleetcraft.training.launching.start import launch
from fleetcraft.training.launching.stop import stop
from fleetcraft.training.plan.built import read_built
from fleetcraft.training.plan.preflight import Answer as PreflightAnswer
from fleetcraft.training.plan.preflight import compare
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.plan.verification import Comparison, Pending, Verified
from fleetcraft.training.records import (
    Epoch,
    EpochKind,
    LogFence,
    NodeEnd,
    Stopped,
)
from fleetcraft.training.supervision.comparing import compare_epochs, facts_to_note
from fleetcraft.training.supervision.deciding import Checkpoints, Decision
from fleetcraft.training.supervision.history import History, read_history
from fleetcraft.training.supervision.journal import read_events
from fleetcraft.training.supervision.judging import ask_step_end, ask_steps
from fleetcraft.training.supervision.machine import Live
from fleetcraft.training.supervision.moving import Moved, has_ended_meanwhile, is_stuck
from fleetcraft.training.supervision.observing import Observer, error_files
from fleetcraft.training.supervision.opening import Opening, launched_epoch
from fleetcraft.training.supervision.overview import abort_stands
from fleetcraft.training.supervision.post_mortem import PostMortem, look_at_the_dead
from fleetcraft.training.supervision.slurm_word import AskStepEnd, SlurmWord, ask_slurm

ABORT_FILE = "FLEET_ABORT_FILE"
"""Where the trainer looks whether it is asked to finish its step, save and leave with 3."""
CHECKPOINTS = "FLEET_CHECKPOINTS"
"""The folder of the run's checkpoints."""
GENERATION = "FLEET_GENERATION"
"""The lock's generation under which the run was launched, for its checkpoints."""

_CHECKPOINTS_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What there is of an earlier epoch, or of one that was just launched.

    Attributes:
        live: Whether it lives.
        why: One sentence.
        launch: To look at it; None where there is nothing.
        paths: Its attempt.
        epoch: The epoch that launched it.
        fences: Where its logs stood when it was found.
        ends: How its nodes ended, for one that is dead.
        logs: Its logs, where they lie now, for one that is dead.
    """

    live: Live
    why: str = ""
    launch: Launch | None = None
    paths: AttemptPaths | None = None
    epoch: Epoch | None = None
    fences: tuple[LogFence, ...] = ()
    ends: tuple[NodeEnd, ...] = ()
    logs: tuple[str, ...] = ()


class Rooms:
    """The real ones.

    Args:
        plan: The run.
        paths: Its folder.
        nodes: Nodes of its step, where the call says so; None leaves it to the plan.
        caches: What the project says of caches; None tells the command nothing about them.
        environ: The environment to which the command's variables are added.
        steps: Asks Slurm for this user's steps.
        step_end: Asks Slurm how a step ended.
        fs: The seam.
        clock: Monotonic seconds.
        wait: Waits so many seconds, at most until this process is told to end.
    """

    def __init__(
        self,
        plan: RunPlan,
        paths: RunPaths,
        *,
        nodes: int | None = None,
        caches: CacheSettings | None = None,
        environ: Mapping[str, str] | None = None,
        steps: AskSteps | None = None,
        step_end: AskStepEnd | None = None,
        fs: FileSystem | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.plan = plan
        self.paths = paths
        self.fs = fs or FileSystem()
        self.epochs = Epochs(paths, self.fs)
        self.environ = {**(os.environ if environ is None else environ), **plan.environment}
        self._nodes = nodes
        self._caches = caches
        in_job = "SLURM_JOB_ID" in self.environ
        self._steps = steps or (ask_steps if in_job else None)
        self._step_end = step_end or (ask_step_end if in_job else None)
        self._clock = clock
        self._wait = wait
        self._gpu_before: dict[str, int] | None = None
        self._checkpoints = Checkpoints(known=False)
        self._checkpoints_at_s: float | None = None
        self._store = CheckpointStore(plan.checkpoints or paths.checkpoints, fs=self.fs)

    # -- reading

    def history(self) -> History:
        """The attempts of the present series.

        Raises:
            OSError: They cannot be read.
            DataError: A record is torn.
        """
        events = read_events(self.paths.events, fs=self.fs)
        return read_history(self.epochs.all(), events.events)

    def series(self, history: History) -> list[Epoch]:
        """The epochs whose settings stay: those of the present series."""
        attempts = {past.attempt for past in history.past}
        return [epoch for epoch in self.epochs.all() if epoch.number in attempts]

    def abort(self) -> bool | None:
        """Whether the ABORT marker stands; None for unknown."""
        return abort_stands(self.paths, fs=self.fs)

    def end(self) -> tuple[bool | None, str]:
        """Whether the declared end is reached, and the sentence; None where none is declared."""
        if self.plan.end is None:
            return None, "the run declares no end"
        found = check_end(self.plan.end, self._store, self.paths)
        return found.answer, found.reason

    def checkpoints(self) -> Checkpoints:
        """The newest validated checkpoint, as far as it can be told."""
        try:
            return Checkpoints(step=self._store.newest_validated_step())
        except (CheckpointUnknownError, OSError) as error:
            return Checkpoints(known=False, why=str(error))

    def recent_checkpoints(self) -> Checkpoints:
        """The same, read at most every few seconds."""
        now_s = self._clock()
        every_s = max(self.plan.look_s, min(_CHECKPOINTS_EVERY_S, self.plan.warmup_s))
        if self._checkpoints_at_s is None or now_s - self._checkpoints_at_s >= every_s:
            self._checkpoints_at_s = now_s
            self._checkpoints = self.checkpoints()
        return self._checkpoints

    def changes(self, epoch: Epoch | None) -> tuple[str, ...]:
        """What is different from the last healthy epoch, one sentence each; none if unknown."""
        try:
            healthy = self.epochs.last_healthy()
        except (OSError, DataError):
            return ()
        if healthy is None or epoch is None or healthy.number == epoch.number:
            return ()
        return tuple(change.text for change in changes(healthy, epoch))

    # -- before a launch

    def find(self, history: History, generation: int) -> Found:
        """What there is of earlier launches; waits until a counter moves, as long as an alarm does.

        Args:
            history: Of it the last epoch and its fences.
            generation: Of the lock.
        """
        if history.last is None:
            return Found(live=Live.NONE, why="nothing was launched before")
        live, found = self._look_for(history.last, generation)
        if live is not Live.LIVE and has_ended_meanwhile(found):
            live, found = self._look_for(history.last, generation)
        epoch = found.epoch or history.last
        own = os.path.basename(self.paths.attempt(epoch.attempt).folder)
        return Found(
            live=live,
            why=found.why,
            launch=found.launch,
            paths=self.paths.attempt(epoch.attempt),
            epoch=epoch,
            fences=found.fences or _moved_fences(history.last, found),
            ends=found.ends,
            logs=tuple(one.archive for one in found.archived if own in one.log),
        )

    def _look_for(self, last: Epoch, generation: int) -> tuple[Live, Adoption]:
        moved = Moved(self.plan, self.paths.attempt(last.attempt), fs=self.fs)
        try:
            found = find_live(
                self.paths,
                moved=moved,
                steps=self._steps,
                generation=generation,
                patience_s=moved.patience_s,
                fs=self.fs,
                wait=self._wait,
            )
            live = {Answer.LIVE: Live.LIVE, Answer.DEAD: Live.DEAD}.get(found.answer, Live.UNKNOWN)
            if live is Live.UNKNOWN and is_stuck(found, moved):
                live = Live.STUCK
        finally:
            moved.close()
        return live, found

    def post_mortem(self, found: Found, why: str) -> PostMortem:
        """How a launch died that nobody has seen die.

        Args:
            found: What is left of it.
            why: The sentence for an end that nothing explains.
        """
        assert found.paths is not None
        return look_at_the_dead(
            found.ends,
            found.logs,
            found.fences,
            error_files(found.paths, self.fs),
            end_declared=self.plan.end is not None,
            why=why,
            slurm=self.slurm_word(found.paths),
        )

    def slurm_word(self, paths: AttemptPaths) -> SlurmWord:
        """What Slurm itself says of the end of an attempt that was a step."""
        return ask_slurm(paths, self._step_end, fs=self.fs, wait=self._wait, clock=self._clock)

    def new_epoch(self, decision: Decision, generation: int, why: str) -> Epoch:
        """The record of a launch that is due.

        Raises:
            OSError: The numbers of epochs cannot be listed.
        """
        opening = Opening(
            number=self.epochs.next_number(),
            generation=generation,
            why=why,
            given=self._given(decision, generation),
            nodes=self._nodes or self.plan.nodes,
        )
        shared = shared_exports(self.environ, self._caches) if self._caches else {}
        return launched_epoch(self.plan, decision, opening, {**self.environ, **shared})

    def adopted_epoch(self, found: Found, generation: int) -> Epoch:
        """The record of a live run that is adopted: what it was launched with, and new fences.

        Raises:
            OSError: The numbers of epochs cannot be listed.
        """
        assert found.epoch is not None
        return msgspec.structs.replace(
            found.epoch,
            number=self.epochs.next_number(),
            generation=generation,
            kind=EpochKind.ADOPTED,
            at=timestamp(),
            why=found.why,
            fences=found.fences,
        )

    def launch(self, epoch: Epoch, decision: Decision) -> Launch:
        """Starts a published epoch. Raises what `launching.start.launch` raises."""
        self._gpu_before = read_used_bytes()
        return launch(
            self.paths.attempt(epoch.number),
            self.plan,
            epoch,
            environment=self._given(decision, epoch.generation),
            nodes=self._nodes,
            steps=self._steps,
            caches=self._caches,
            fs=self.fs,
        )

    def _given(self, decision: Decision, generation: int) -> dict[str, str]:
        """The variables that the supervisor gives: whatever is not in this process's own."""
        return {
            **self.plan.environment,
            **decision.environment,
            ABORT_FILE: self.paths.abort_marker,
            CHECKPOINTS: self.plan.checkpoints or self.paths.checkpoints,
            GENERATION: str(generation),
        }

    # -- while it runs, and after

    def observe(self, epoch: Epoch, found: Found) -> Observer:
        """Begins to watch an epoch."""
        assert found.launch is not None
        return Observer(
            self.plan,
            found.paths or self.paths.attempt(epoch.attempt),
            found.launch,
            fences=found.fences,
            fs=self.fs,
            clock=self._clock,
        )

    def stop(self, observer: Observer) -> Stopped:
        """Stops a launch whole and in bounded time, its GPU memory on this machine included."""
        return stop(
            observer.launch,
            grace_s=self.plan.grace_s,
            why="its supervisor stops it",
            gpu_memory=self._gpu_grown if self._gpu_before is not None else None,
        )

    def _gpu_grown(self) -> dict[str, int] | None:
        """What each GPU has in use beyond what others had before the launch."""
        used, before = read_used_bytes(), self._gpu_before or {}
        return used and {gpu: max(0, size - before.get(gpu, 0)) for gpu, size in used.items()}

    def built(self, epoch: Epoch) -> tuple[str, ...]:
        """What was built otherwise than declared, as far as its ranks have told; one line each."""
        built = read_built(self.paths.attempt(epoch.attempt), fs=self.fs)
        if not built.reports:
            return ()
        found = (one for one in compare(built, self.plan) if one.answer is PreflightAnswer.NO)
        return tuple(
            f"{one.subject}{f' of {one.module}' if one.module else ''}: declared "
            f"{one.declared or 'nothing'}, found {one.found}"
            f"{f'; {one.detail}' if one.detail else ''}"
            for one in found
        )

    def report(self, epoch: Epoch, verified: Verified | Pending, generation: int) -> Comparison:
        """Publishes what became better or worse, and marks the epoch as healthy.

        Raises:
            OSError: Whether that was published is not known.
            DataError: What the last healthy epoch left is torn.
        """
        assert isinstance(verified, Verified)
        report = compare_epochs(epoch, verified, self.epochs, self.history)
        put_if_absent(self.fs, self.paths.report(epoch.number), msgspec.json.encode(report) + b"\n")
        self.epochs.mark_healthy(epoch.number, generation=generation, facts=facts_to_note(verified))
        return report


def _moved_fences(last: Epoch, found: Adoption) -> tuple[LogFence, ...]:
    """The fences of an adopted epoch, for logs that now lie in the archive."""
    now = {one.log: one.archive for one in found.archived if one.moved}
    return tuple(
        msgspec.structs.replace(fence, path=now[fence.path])
        for fence in last.fences
        if fence.path in now
    )
