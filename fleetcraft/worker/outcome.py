"""Judging an ended attempt: the outcome, the evidence for it, and the history line that says so.

A done marker is a claim, and claims are checked: declared outputs must exist, hold something and
be newer than the attempt. Invariant: the line says what was measured; what was not is absent.
"""

from __future__ import annotations

import os
import signal
import time
from enum import StrEnum

import msgspec

from fleetcraft.diagnosis import device_ran_out
from fleetcraft.process import Ended
from fleetcraft.spool.record import Outcome, OutputFact

TRY_AGAIN_EXIT = 75
_HASH_LIMIT_BYTES = 1 << 30
_OTHER_MOUNT_TOLERANCE_S = 2.0


class StopReason(StrEnum):
    """Why the worker itself stopped a task."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    RECOVERED = "recovered"
    KEEPER_GONE = "keeper_gone"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an attempt, with the sentence that explains it where it needs one."""

    outcome: Outcome
    reason: str = ""
    outputs: tuple[OutputFact, ...] = ()


_COMPLETED = Verdict(outcome=Outcome.COMPLETED)


def judge(
    ended: Ended,
    *,
    stopped: StopReason | None,
    stop_detail: str,
    outputs: tuple[str, ...],
    project_dir: str,
    log: str,
    log_facts: os.stat_result | None,
    oom_kills: int | None,
) -> Verdict:
    """Says how an attempt ended.

    Args:
        ended: How its processes ended.
        stopped: Why the worker stopped it; None when it ended by itself.
        stop_detail: A sentence about that.
        outputs: Declared outputs, relative to the project directory.
        project_dir: Where it ran.
        log: Path of its log.
        log_facts: Facts of the log right after it was made: the attempt's start by the clock of
            the file system. Only needed with outputs.
        oom_kills: How far the kernel's out-of-memory count rose meanwhile; None if unknown.
    """
    if stopped is not None and not _beat_the_stop(ended, stopped):
        return Verdict(outcome=OUTCOME_OF_STOP[stopped], reason=stop_detail)
    if ended.exit_code == 0:
        return _check_outputs(outputs, project_dir, log_facts) if outputs else _COMPLETED
    if ended.exit_code == TRY_AGAIN_EXIT:
        return Verdict(outcome=Outcome.INTERRUPTED, reason="the task asked to be tried again later")
    if device_ran_out(log):
        return Verdict(outcome=Outcome.OUT_OF_MEMORY, reason="a device ran out of memory (log)")
    if oom_kills and _was_killed(ended):
        return Verdict(
            outcome=Outcome.OUT_OF_MEMORY, reason="the kernel killed it: host memory (cgroup)"
        )
    return Verdict(outcome=Outcome.FAILED, reason=_signal_text(ended))


OUTCOME_OF_STOP = {
    StopReason.TIMEOUT: Outcome.TIMEOUT,
    StopReason.CANCELLED: Outcome.CANCELLED,
    StopReason.INTERRUPTED: Outcome.INTERRUPTED,
    StopReason.RECOVERED: Outcome.LOST,
    StopReason.KEEPER_GONE: Outcome.LOST,
}


def _beat_the_stop(ended: Ended, stopped: StopReason) -> bool:
    # It exited with 0 although it was being stopped: the work is done, unless it was to be undone.
    return ended.exit_code == 0 and stopped is not StopReason.CANCELLED


def _was_killed(ended: Ended) -> bool:
    return ended.signal == signal.SIGKILL or ended.exit_code == 128 + signal.SIGKILL


def _signal_text(ended: Ended) -> str:
    if ended.signal is None:
        return ""
    try:
        return f"ended by {signal.Signals(ended.signal).name}"
    except ValueError:
        return f"ended by signal {ended.signal}"


def _check_outputs(
    outputs: tuple[str, ...], project_dir: str, log_facts: os.stat_result | None
) -> Verdict:
    facts = tuple(_look_at(path, project_dir, log_facts) for path in outputs)
    problems = [f"{fact.path} {fact.problem}" for fact in facts if fact.problem]
    if problems:
        return Verdict(outcome=Outcome.INCOMPLETE, reason="; ".join(problems), outputs=facts)
    return Verdict(outcome=Outcome.COMPLETED, outputs=facts)


def _look_at(path: str, project_dir: str, log_facts: os.stat_result | None) -> OutputFact:
    full = os.path.join(project_dir or os.sep, path)
    try:
        facts = os.stat(full)
        filled = bool(os.listdir(full)) if os.path.isdir(full) else facts.st_size > 0
    except OSError as error:
        return OutputFact(path=path, problem=f"is missing ({error.strerror})")
    if not filled:
        return OutputFact(path=path, size_bytes=facts.st_size, problem="is empty")
    if log_facts is not None and _is_older(facts, log_facts):
        return OutputFact(
            path=path, size_bytes=facts.st_size, problem="is older than the attempt's start"
        )
    if os.path.isdir(full):
        return OutputFact(path=path)
    return OutputFact(path=path, size_bytes=facts.st_size, sha256=_sha256(full, facts.st_size))


def _is_older(facts: os.stat_result, log_facts: os.stat_result) -> bool:
    if facts.st_dev == log_facts.st_dev:
        return facts.st_mtime_ns < log_facts.st_mtime_ns
    # Two mounts may have two clocks.
    return facts.st_mtime < log_facts.st_mtime - _OTHER_MOUNT_TOLERANCE_S


def _sha256(path: str, size_bytes: int) -> str | None:
    if size_bytes > _HASH_LIMIT_BYTES:
        return None  # hashing would hold the slot; evidence hashes large files when it archives
    import hashlib  # loads OpenSSL: only where there are outputs

    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def seconds_since(started: float) -> float:
    """Wall seconds since a monotonic start, in milliseconds' precision."""
    return round(time.monotonic() - started, 4)
