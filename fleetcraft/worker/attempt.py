"""One attempt: from a fresh claim to a running process, and from its end to a closed claim.

The order of the steps is the contract's: log first, one more look that the claim is there, then
the process. Invariant: a task whose claim is closed or gone is not started, and each attempt has
a log of its own that nothing overwrites.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import DataError, UnsafeSpoolError
from fleetcraft.layout import forwards_file
from fleetcraft.process import Ended, find_bash
from fleetcraft.spool.claims import Claim, Closed, close_for, close_own, put_back, read_again
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.record import HistoryLine, Outcome, destination
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.worker.batch_order import NO_BATCH, BatchOrder, refuse_batch_by_hand
from fleetcraft.worker.caches import TaskCaches
from fleetcraft.worker.environment import as_bytes, read_env_file
from fleetcraft.worker.outcome import OUTCOME_OF_STOP, StopReason, Verdict, judge, seconds_since
from fleetcraft.worker.settings import WorkerSettings
from fleetcraft.worker.slots import KeeperGone, Slot, bash_argv

_MAX_LOGS_PASSED = 1000


class LogUnwritable(Exception):
    """The attempt's log could not be made; the claim was put back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a worker runs its attempts: what every history line says of it.

    ``telemetry_dir`` is empty where tasks cannot report their forward calls.
    """

    host: str
    job: str
    step: str
    bash: str
    grace_s: float
    telemetry_dir: str = ""

    @classmethod
    def of(cls, settings: WorkerSettings, lease: Lease, telemetry_dir: str) -> Place:
        """That of the worker with this lease."""
        return cls(
            host=lease.host,
            job=lease.job,
            step=settings.run.step,
            bash=find_bash(),
            grace_s=settings.grace_s,
            telemetry_dir=telemetry_dir,
        )

    def variables(self, held: Claim, attempt: int) -> dict[bytes, bytes]:
        """What tells a task which one it is."""
        owner = str(held.owner)
        variables = {
            b"FLEET_TASK": held.name.encode(),
            b"FLEET_ATTEMPT": str(attempt).encode(),
            b"FLEET_OWNER": owner.encode(),
        }
        if held.record.spec.family:
            variables[b"FLEET_FAMILY"] = held.record.spec.family.encode()
        if self.telemetry_dir:
            variables[b"FLEET_FORWARDS"] = os.fsencode(forwards_file(self.telemetry_dir, owner))
        return variables


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A task that runs in a slot.

    ``stopped`` is why the worker stops it; ``deadline`` is monotonic, None without a timeout.
    ``ended_at`` and ``wall_s`` are taken by `ended` while its gate is still held, so that by the
    records nothing ran beside a timed task.
    """

    held: Claim
    number: int
    log: str
    log_facts: os.stat_result | None
    pid: int
    started_at: str
    started: float
    deadline: float | None
    oom_before: int | None
    stopped: StopReason | None = None
    stop_detail: str = ""
    ended_at: str = ""
    wall_s: float = 0.0

    def ended(self) -> None:
        """Notes that its processes are gone, now."""
        self.ended_at = timestamp()
        self.wall_s = seconds_since(self.started)


def settle_without_running(tree: SpoolTree, held: Claim, place: Place) -> Closed | None:
    """Closes a claim that must not run; None when it may.

    That is: it was closed already (recovered from this owner), the task is to be cancelled, or
    its record cannot be run as it stands.
    """
    line = held.record.closing_line(held.owner.token)
    if line is not None:
        return close_for(tree, held.name, held.owner, lambda record: line)
    if tree.fs.exists(tree.paths.cancel_marker(held.name)):
        verdict = Verdict(outcome=Outcome.CANCELLED, reason="cancelled before it ran")
        return close_own(tree, held, _line(held, place, verdict, to="failed"))
    if held.problem:
        reason = f"bad record: {held.problem}" + (f" ({held.hint})" if held.hint else "")
        verdict = Verdict(outcome=Outcome.LAUNCH_FAILED, reason=reason)
        return close_own(tree, held, _line(held, place, verdict, to="failed"))
    return None


def begin(
    tree: SpoolTree,
    slot: Slot,
    held: Claim,
    *,
    place: Place,
    env: Mapping[bytes, bytes],
    caches: TaskCaches,
    oom_kills: int | None,
    batch: BatchOrder = NO_BATCH,
) -> Attempt | Closed | None:
    """Starts the task in the slot: log, last look, process.

    Returns:
        The running attempt; how the claim was closed when nothing could be started; None when the
        claim was gone at the last look.

    Raises:
        LogUnwritable: No log could be made, which is no attempt: the claim was put back.
        OSError: The claim could not be looked at; it stays.
        UnsafeSpoolError: Somebody else could have written the record: the claim was put back.
    """
    number, log, log_fd = _make_log(tree, held)
    started_at = timestamp()
    started = time.monotonic()
    try:
        # The last look reads the record again: it shows that the claim is there, that it is not
        # closed, and that what bash is about to read is what was judged. A look that fails says
        # nothing of the task, so it is no failed launch.
        now = _look_again(tree, held)
    except BaseException:
        tree.fs.close(log_fd)
        raise
    try:
        if now is None:
            return None
        if now is not held and (closed := settle_without_running(tree, now, place)) is not None:
            return closed
        held = now
        spec = held.record.spec
        log_facts = os.fstat(log_fd) if spec.outputs else None
        task_env = {**env, **caches.variables(held, number, slot.index)}
        if spec.env_file:
            given = read_env_file(spec)
            refuse_batch_by_hand(given, f"the env-file {spec.env_file}")
            task_env.update(as_bytes(given))
            task_env.update(as_bytes(caches.after_env_file(given, held, number, slot.index)))
        task_env.update(slot.environment)
        task_env.update(place.variables(held, number))
        batch.enter(task_env, spec)
        pid = slot.runner.start(
            bash_argv(place.bash, held.path, login=spec.login),
            task_env,
            log_fd=log_fd,
            gate_fd=slot.gate.room_fd if slot.gate.held else None,
            grace_s=place.grace_s,
        )
    except KeeperGone:
        pid = 0  # it may have started it first: `poll` says so too, and the attempt is lost
    except (OSError, DataError) as error:
        text = error.message if isinstance(error, DataError) else (error.strerror or str(error))
        verdict = Verdict(outcome=Outcome.LAUNCH_FAILED, reason=f"it could not be started: {text}")
        line = _line(held, place, verdict, number=number, log=log, started_at=started_at)
        return close_own(tree, held, line)
    finally:
        tree.fs.close(log_fd)
    return Attempt(
        held=held,
        number=number,
        log=log,
        log_facts=log_facts,
        pid=pid,
        started_at=started_at,
        started=started,
        deadline=None if spec.timeout_s is None else started + spec.timeout_s,
        oom_before=oom_kills,
    )


def _look_again(tree: SpoolTree, held: Claim) -> Claim | None:
    try:
        return read_again(tree, held)
    except UnsafeSpoolError:
        put_back(tree, held)
        raise


def _make_log(tree: SpoolTree, held: Claim) -> tuple[int, str, int]:
    number = held.record.next_attempt
    for _ in range(_MAX_LOGS_PASSED):
        path = tree.paths.log(held.name, number)
        try:
            return number, path, tree.fs.create_log(path)
        except FileExistsError:
            number += 1  # an attempt that left no history has this number
        except OSError as error:
            put_back(tree, held)
            raise LogUnwritable(f"{path}: {error.strerror or error}") from error
    put_back(tree, held)
    raise LogUnwritable(f"{held.name!r} has over {_MAX_LOGS_PASSED} logs without history")


def finish(
    tree: SpoolTree,
    slot: Slot,
    attempt: Attempt,
    ended: Ended,
    place: Place,
    *,
    oom_kills: int | None,
    before_move: Callable[[HistoryLine], None],
) -> Closed | None:
    """Judges how the attempt ended and closes its claim.

    Args:
        tree: The spool.
        slot: Where it ran.
        attempt: What ran.
        ended: How its processes ended.
        place: This worker's place.
        oom_kills: The kernel's out-of-memory count now.
        before_move: Called with the line once it counts, before the record leaves ``running``.

    Returns:
        None when the claim is gone: the task was recovered from this worker.

    Raises:
        SpoolWriteError: The history line could not be written.
        IntegrityError: Another file is where the record belongs.
    """
    held = attempt.held
    spec = held.record.spec
    rose = None
    if oom_kills is not None and attempt.oom_before is not None:
        rose = oom_kills - attempt.oom_before
    verdict = judge(
        ended,
        stopped=attempt.stopped,
        stop_detail=attempt.stop_detail,
        outputs=spec.outputs,
        project_dir=spec.project_dir,
        log=attempt.log,
        log_facts=attempt.log_facts,
        oom_kills=rose,
    )
    return _close(tree, attempt, verdict, place, before_move=before_move, ended=ended, gpu=slot.gpu)


def lose(
    tree: SpoolTree, attempt: Attempt, place: Place, *, before_move: Callable[[HistoryLine], None]
) -> Closed | None:
    """Closes the claim of an attempt of which nobody can say how it ended.

    As `finish`, from the reason why it was stopped.
    """
    assert attempt.stopped is not None
    verdict = Verdict(outcome=OUTCOME_OF_STOP[attempt.stopped], reason=attempt.stop_detail)
    return _close(tree, attempt, verdict, place, before_move=before_move)


def _close(
    tree: SpoolTree,
    attempt: Attempt,
    verdict: Verdict,
    place: Place,
    *,
    before_move: Callable[[HistoryLine], None],
    ended: Ended | None = None,
    gpu: str = "",
) -> Closed | None:
    held = attempt.held
    line = _line(
        held,
        place,
        verdict,
        number=attempt.number,
        log=attempt.log,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        wall_s=attempt.wall_s,
        ended=ended,
        gpu=gpu,
    )
    if line.to == "pending" and tree.fs.exists(tree.paths.cancel_marker(held.name)):
        reason = f"{line.reason}; " if line.reason else ""
        reason += "cancelled instead of tried again"
        line = msgspec.structs.replace(line, to="failed", reason=reason)
    return close_own(tree, held, line, before_move=before_move)


def _line(
    held: Claim,
    place: Place,
    verdict: Verdict,
    *,
    to: str = "",
    number: int = 0,
    log: str = "",
    started_at: str | None = None,
    ended_at: str = "",
    wall_s: float | None = None,
    ended: Ended | None = None,
    gpu: str = "",
) -> HistoryLine:
    reason = verdict.reason
    if ended is not None and ended.leftovers:
        many = ended.leftovers > 1
        left = f"{ended.leftovers} process{'es' if many else ''} that it left behind "
        left += "were stopped" if many else "was stopped"
        reason = f"{reason}; {left}" if reason else left
    return HistoryLine(
        claim=held.owner.token,
        attempt=number,
        outcome=verdict.outcome,
        to="failed" if to else destination(held.record, verdict.outcome),
        owner=str(held.owner),
        exit_code=ended.exit_code if ended else None,
        signal=ended.signal if ended else None,
        started_at=started_at,
        ended_at=ended_at or timestamp(),
        wall_s=wall_s,
        cpu_s=round(ended.cpu_s, 4) if ended else None,
        max_rss_bytes=ended.max_rss_bytes if ended else None,
        host=place.host,
        job=place.job,
        step=place.step,
        gpus=(gpu,) if gpu else (),
        log=log[log.rfind("/logs/") + 1 :] if log else "",
        outputs=verdict.outputs,
        reason=reason,
    )
