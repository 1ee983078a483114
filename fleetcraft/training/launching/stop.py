"""Stopping a launch whole and in bounded time: its keepers first, then what they could not do.

In this order: the order to stop on disk and TERM to the keepers of this machine, which stop their
own trees; for a keeper that is gone or silent, the one step of this launch is cancelled, and what
carries its nonce on this machine is signalled. Not here: whether to stop. Invariants: never a name
pattern, never a job, never the step that this process runs in; REAPED is said only of what was seen
to be gone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import FleetError, SchedulerError
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_launch_token
from fleetcraft.layout.runs import AttemptPaths
from fleetcraft.locks import put_if_absent
from fleetcraft.process import KILL_WAIT_S
from fleetcraft.slurm import commands
from fleetcraft.training.launching.gpu_memory import ReadUsed, wait_until_free
from fleetcraft.training.launching.graces import stop_bound_s
from fleetcraft.training.launching.looking import Launch
from fleetcraft.training.launching.nonce_scan import scan
from fleetcraft.training.launching.order import STOP_SCHEMA, StopOrder
from fleetcraft.training.launching.sights import LaunchSight, Whole
from fleetcraft.training.launching.signalling import send
from fleetcraft.training.launching.steps import find_step, this_step, why_not_cancelled
from fleetcraft.training.launching.sweeping import Net, Swept
from fleetcraft.training.records import StepRecord, Stopped, StopResult

CANCEL_WAIT_S = 90.0
"""How long a cancelled step may take to be gone: Slurm's KillWait (30 s by default) and two polls
of the queue. Source: slurm.conf(5), KillWait, UnkillableStepTimeout."""
_LEAVING_S = 3.0
_POLL_S = 0.05
_MOST_S = 0.5


@dataclass(kw_only=True)
class _Stop:
    """One stop under way."""

    launch: Launch
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    began_s: float
    killed: int = 0
    troubles: list[str] = field(default_factory=list)


def order_stop(
    paths: AttemptPaths,
    *,
    by: str,
    why: str = "",
    grace_s: float | None = None,
    fs: FileSystem | None = None,
) -> bool:
    """Puts the order to stop a launch, or never to begin it; a keeper obeys it within a second.

    Returns:
        True when this order stands, False when another was there before.

    Raises:
        OSError: Whether it stands is not known.
    """
    order = StopOrder(
        schema=STOP_SCHEMA,
        by=by,
        at=timestamp(),
        why=why,
        nonce=new_launch_token(),
        grace_s=grace_s,
    )
    return put_if_absent(fs or FileSystem(), paths.stop_order, msgspec.json.encode(order) + b"\n")


def stop(
    launch: Launch,
    *,
    grace_s: float,
    kill_wait_s: float = KILL_WAIT_S,
    own_step: StepRecord | None = None,
    why: str = "",
    cancel_wait_s: float = CANCEL_WAIT_S,
    gpu_memory: ReadUsed | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Stopped:
    """Stops everything of a launch, bounded: TERM, grace, KILL, and looks that nothing is left.

    Args:
        launch: Of this process, or found by `adoption.find_live`.
        grace_s: Between TERM and KILL.
        kill_wait_s: How long it is waited for what was killed.
        own_step: The step that this process runs in; what its environment says counts as well.
        why: For people.
        cancel_wait_s: How long a cancelled step may take to be gone.
        gpu_memory: Tells what each GPU of this machine has in use; it is then waited until that is
            little. Not asked if None.
        clock: Monotonic seconds.
        sleep: Waits by that clock.

    Returns:
        What was done; UNREAPED with the processes or the reason when something may be left. It
        never raises for what the system answers.
    """
    doing = _Stop(launch=launch, clock=clock, sleep=sleep, began_s=clock())
    try:
        order_stop(
            launch.paths, by=f"process {os.getpid()}", why=why, grace_s=grace_s, fs=launch.fs
        )
    except OSError as error:  # keepers of this machine still hear TERM
        doing.troubles.append(f"the order to stop could not be written: {error}")
    asked = _ask_keepers(doing)
    sight = _await_keepers(doing, stop_bound_s(grace_s, kill_wait_s, launch.order.look_s))
    if sight.whole is not Whole.ENDED and launch.order.step_name:
        _cancel(doing, own_step, cancel_wait_s)
        sight = launch.look()
    # A keeper that was never heard gave its command no grace.
    net_grace_s = 0.0 if asked or sight.whole is Whole.ENDED else grace_s
    swept, unread = _sweep(doing, sight, net_grace_s, kill_wait_s)
    if launch.starter is not None:
        launch.starter.poll()
    return _result(doing, sight, swept, unread, gpu_memory)


def _ask_keepers(doing: _Stop) -> bool:
    """TERM to the keepers of this machine; says whether one of them got it."""
    sight = doing.launch.look()
    told = False
    for node in sight.nodes:
        if node.keeper is not None and node.end is None:
            told |= send(node.keeper.keeper, signal.SIGTERM, proc=doing.launch.proc) is True
    return told


def _await_keepers(doing: _Stop, bound_s: float) -> LaunchSight:
    """Waits until the keepers have told their ends, are gone, or have had their time."""
    deadline = doing.clock() + bound_s
    pause = _POLL_S
    while True:
        sight = doing.launch.look()
        if sight.whole is Whole.ENDED or _nobody_is_left(sight) or doing.clock() >= deadline:
            return sight
        doing.sleep(pause)
        pause = min(pause * 1.5, _MOST_S)


def _nobody_is_left(sight: LaunchSight) -> bool:
    """Whether waiting is of no use: no keeper lives that could still stop anything."""
    if sight.whole is Whole.STARTING or not (sight.nodes or sight.whole is Whole.LOST):
        return False
    return all(node.end is not None or node.alive is False for node in sight.nodes)


# -- the step


def _cancel(doing: _Stop, own_step: StepRecord | None, wait_s: float) -> None:
    """Cancels exactly the step of this launch, and waits until it is gone."""
    launch = doing.launch
    try:
        step = launch.step.id if launch.step else _step_in_queue(launch)
    except SchedulerError as error:
        doing.troubles.append(f"which step this launch is could not be asked: {error}")
        return
    if step is None:
        return
    own = [record for record in (own_step, this_step(os.environ)) if record is not None]
    if refused := why_not_cancelled(step, own):
        doing.troubles.append(f"its step was not cancelled: {refused}")
        return
    deadline = doing.clock() + wait_s
    while True:
        try:
            commands.cancel(step)
            break
        except FleetError as error:
            if doing.clock() >= deadline:
                doing.troubles.append(f"its step {step} could not be cancelled: {error}")
                return
        doing.sleep(_MOST_S)
    while not step_is_gone(launch) and doing.clock() < deadline:
        doing.sleep(_MOST_S)


def _step_in_queue(launch: Launch) -> str | None:
    if launch.steps is None:
        return None
    found = find_step(launch.steps(), launch.order.step_name, None)
    return found.step if found else None


def step_is_gone(launch: Launch) -> bool:
    """Whether the step of a launch is positively over.

    All its nodes have told so, its srun has ended in order, or a successful answer of Slurm is
    without it.
    """
    if launch.look().whole is Whole.ENDED:
        return True
    srun = launch.starter.srun if launch.starter else None
    code = srun.poll() if srun is not None else -1
    if code is None or code >= 0:
        return code is not None
    return launch.in_queue(fresh=True) is False


# -- what carries the nonce here


def _sweep(
    doing: _Stop, sight: LaunchSight, grace_s: float, kill_wait_s: float
) -> tuple[Swept, int]:
    """Signals what is left on this machine; what is left then, and how many cannot be read."""
    launch = doing.launch
    net = Net(launch.nonce, proc=launch.proc, clock=doing.clock, sleep=doing.sleep)
    try:
        if sight.whole is Whole.ENDED:
            net.sweep(None, _LEAVING_S)  # keepers that are just leaving
        swept = net.sweep(signal.SIGTERM, grace_s) if grace_s > 0 else net.sweep(None, 0.0)
        if not swept.quiet:
            before = net.signalled
            swept = net.sweep(signal.SIGKILL, kill_wait_s)
            doing.killed = net.signalled - before
        return swept, _unreadable(launch, sight)
    except OSError as error:
        doing.troubles.append(f"the processes of this machine cannot be listed: {error}")
        return Swept(quiet=False), 0


def _unreadable(launch: Launch, sight: LaunchSight) -> int:
    """Processes that may belong to a launch whose keeper here died without telling an end."""
    begun = [
        node.keeper.keeper.process.start_ticks
        for node in sight.nodes
        if node.keeper is not None
        and node.end is None
        and node.keeper.keeper.place.boot_id == launch.here.boot_id
    ]
    if not begun:
        return 0
    found = scan((launch.nonce,), since_ticks=min(begun), proc=launch.proc)
    return len(found.unreadable)


# -- the result


def _result(
    doing: _Stop,
    sight: LaunchSight,
    swept: Swept,
    unread: int,
    gpu_memory: ReadUsed | None,
) -> Stopped:
    reasons = _reasons(doing, sight, swept, unread)
    if not reasons and gpu_memory is not None:
        freed = wait_until_free(gpu_memory, clock=doing.clock, sleep=doing.sleep)
        if freed.free is False:
            reasons.append(freed.why)
    return Stopped(
        result=StopResult.UNREAPED if reasons else StopResult.REAPED,
        seconds=round(doing.clock() - doing.began_s, 3),
        killed=doing.killed,
        left=swept.left,
        why="; ".join([*reasons, *doing.troubles]),
    )


def _reasons(doing: _Stop, sight: LaunchSight, swept: Swept, unread: int) -> list[str]:
    """Why something may be left; empty when nothing is."""
    reasons = []
    if swept.left:
        pids = ", ".join(str(record.process.pid) for record in swept.left[:5])
        reasons.append(f"{len(swept.left)} processes of it are left on this machine (pids {pids})")
    elif not swept.quiet:
        reasons.append("processes of it may still appear on this machine")
    if unread:
        reasons.append(f"{unread} processes of this user cannot be looked at, and it had no keeper")
    away = [node for node in sight.nodes if node.node != doing.launch.here.host]
    unclean = [node.node for node in away if node.end is not None and not node.end.clean]
    if unclean:
        reasons.append(f"processes of it are left on {', '.join(unclean)}")
    if doing.launch.order.step_name and not step_is_gone(doing.launch):
        reasons.append(f"its step {doing.launch.order.step_name} is not known to be gone")
    elif not doing.launch.order.step_name and any(node.end is None for node in away):
        reasons.append("its keeper is on another machine, and it has told no end")
    return reasons
