"""A launch that is only to show what is built: started, waited for, and stopped again.

The script exits by itself once it has told (`inspection.report_built`); one that does not is
stopped. Not here: what is told, and what follows from it. Invariant: it runs under the run's lock
and beside no other launch of the run, and nothing of it is left, or that is said.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from fleetcraft.caches.scope import CacheSettings
from fleetcraft.clock import timestamp
from fleetcraft.errors import ConfigError, TryAgainLaterError
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_launch_token, sha256_hex, this_job_run
from fleetcraft.layout.runs import AttemptPaths, RunPaths
from fleetcraft.locks import GenerationLock
from fleetcraft.training.launching.adoption import find_live
from fleetcraft.training.launching.looking import Launch
from fleetcraft.training.launching.sights import Answer, LaunchSight, Whole
from fleetcraft.training.launching.start import launch
from fleetcraft.training.launching.stop import stop
from fleetcraft.training.plan.built import Built, read_built
from fleetcraft.training.plan.inspection import PREFLIGHT
from fleetcraft.training.plan.ladder import environment_of
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.records import (
    EPOCH_SCHEMA,
    Epoch,
    EpochKind,
    Rung,
    RungKind,
    Stopped,
    StopResult,
)

_LOOK_S = 0.25


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """How it went.

    Attributes:
        built: What the ranks have told.
        folder: Its attempt's folder, with the logs.
        log_paths: What the command has printed, one a node.
        seconds: How long it was waited for.
        why: Why not every rank has told; empty if all have.
        stopped: What the stop at the end did; None when everything had ended by itself.
    """

    built: Built
    folder: str
    log_paths: tuple[str, ...] = ()
    seconds: float = 0.0
    why: str = ""
    stopped: Stopped | None = None

    @property
    def is_clean(self) -> bool:
        """Whether nothing of it is left."""
        return self.stopped is None or self.stopped.result is StopResult.REAPED


def rehearse(
    run: RunPaths,
    plan: RunPlan,
    *,
    within_s: float,
    nodes: int | None = None,
    caches: CacheSettings | None = None,
    environ: Mapping[str, str] | None = None,
    fs: FileSystem | None = None,
    tick: Callable[[float], None] = lambda seconds: None,
) -> Rehearsal:
    """Starts the run's command with ``FLEET_PREFLIGHT`` set, until every rank has told.

    Args:
        run: The run; its folder is made if it is not there. The rehearsal lies in its archive.
        plan: What it declares; its command is started as in the first epoch.
        within_s: The longest that it is waited for.
        nodes: Nodes of its step; see `launching.start.launch`.
        caches: What the project says of caches; as there.
        environ: This process's environment.
        fs: The seam.
        tick: Called at each look with the seconds so far.

    Raises:
        LockHeldError: A supervisor owns the run.
        TryAgainLaterError: A launch of it lives or may live.
        ConfigError: There is no scratch tree; or several nodes without a Slurm job.
        OSError: It could not be begun; nothing was started.
    """
    fs = fs or FileSystem()
    environ = os.environ if environ is None else environ
    _make_folders(run, fs)
    lock = GenerationLock(
        run.lock, purpose=f"preflight of run {run.name}", run=this_job_run(environ), fs=fs
    )
    with lock.acquire():
        _refuse_beside_another(run, fs)
        nonce = new_launch_token()
        # Named by the launch, so a rehearsal never meets an earlier one.
        paths = run.preflight(nonce)
        fs.make_folder(os.path.dirname(paths.folder))
        began_s = time.monotonic()
        launched = launch(
            paths,
            plan,
            _epoch(plan, nonce),
            environment=_environment(plan, environ),
            nodes=nodes,
            caches=caches,
            environ=environ,
            fs=fs,
        )
        why = "it was interrupted"
        stopped: Stopped | None = None
        try:
            why = _wait(launched, began_s + within_s, tick)
        finally:
            if launched.look().whole is not Whole.ENDED:
                stopped = stop(launched, grace_s=plan.grace_s, why="the preflight is over")
        return Rehearsal(
            built=read_built(paths, fs=fs),
            folder=paths.folder,
            log_paths=launched.log_paths(),
            seconds=time.monotonic() - began_s,
            why=why,
            stopped=stopped,
        )


def await_built(
    paths: AttemptPaths,
    *,
    within_s: float,
    fs: FileSystem | None = None,
    tick: Callable[[float], None] = lambda seconds: None,
) -> Built:
    """Reads what an attempt has built, and waits, bounded, until every rank has told."""
    began_s = time.monotonic()
    while True:
        built = read_built(paths, fs=fs)
        passed_s = time.monotonic() - began_s
        if built.is_whole or passed_s >= within_s:
            return built
        tick(passed_s)
        time.sleep(_LOOK_S)


def _wait(launched: Launch, until_s: float, tick: Callable[[float], None]) -> str:
    """Why not every rank has told by then; empty once all have."""
    began_s = time.monotonic()
    while True:
        sight = launched.look()  # before the files: what ended has written all that it will
        if read_built(launched.paths, fs=launched.fs).is_whole:
            _leave_to_exit(launched, until_s)
            return ""
        if sight.whole in (Whole.ENDED, Whole.LOST):
            return _ended(sight)
        now_s = time.monotonic()
        if now_s >= until_s:
            return f"not every rank told within {now_s - began_s:.0f} s"
        tick(now_s - began_s)
        time.sleep(_LOOK_S)


def _leave_to_exit(launched: Launch, until_s: float) -> None:
    """A script that has told exits by itself, in order; for a while it is let."""
    until_s = min(until_s, time.monotonic() + 10.0)
    while time.monotonic() < until_s and launched.look().whole is not Whole.ENDED:
        time.sleep(_LOOK_S)


def _ended(sight: LaunchSight) -> str:
    if sight.whole is Whole.LOST:
        return f"what kept the command is gone: {sight.why}"
    how = [
        end.why or (f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}")
        for end in sight.ends
    ]
    return f"the command ended before every rank had told ({', '.join(dict.fromkeys(how))})"


def _refuse_beside_another(run: RunPaths, fs: FileSystem) -> None:
    found = find_live(run, moved=lambda: False, patience_s=0.0, fs=fs)
    if found.answer is not Answer.DEAD:
        raise TryAgainLaterError(
            f"run {run.name!r} has a launch that lives or may live ({found.why}); a preflight "
            "beside it would take its GPUs, so nothing was started",
            hint="name an attempt of it to compare what that has built",
            run=run.name,
        )


def _epoch(plan: RunPlan, nonce: str) -> Epoch:
    """What the launch needs of an epoch; none is published, since nothing is decided by it."""
    return Epoch(
        schema=EPOCH_SCHEMA,
        number=0,
        generation=0,
        run=plan.run,
        kind=EpochKind.LAUNCHED,
        attempt=0,
        nonce=nonce,
        at=timestamp(),
        why="preflight",
        command=plan.command,
        command_sha256=_sha256(plan.command),
        environment_sha256="",
        nodes=plan.nodes,
    )


def _sha256(words: Sequence[str]) -> str:
    return sha256_hex(msgspec.json.encode(list(words)))


def _environment(plan: RunPlan, environ: Mapping[str, str]) -> dict[str, str]:
    first = Rung(kind=RungKind.FIRST)
    knobs = environment_of(first, plan.ladder.knobs, {**environ, **plan.environment})
    return {**plan.environment, **knobs, PREFLIGHT: "1"}


def _make_folders(run: RunPaths, fs: FileSystem) -> None:
    runs = os.path.dirname(run.folder)
    tree = os.path.dirname(runs)
    if not fs.exists(tree):
        raise ConfigError(
            f"there is no scratch tree at {tree}; nothing was started",
            hint=f"fleetcraft --root {tree} init",
            root=tree,
        )
    for folder in (runs, *run.folders()):
        with contextlib.suppress(FileExistsError):
            fs.make_folder(folder)
