"""Why a trial failed: a pure function of what was seen, the first rule that fits.

Gathering the evidence is `run`'s. Invariant: a kill counts as out of memory only by a counter of
the kernel or Slurm's word, never by guess; and every answer has its evidence as plain JSON values.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import msgspec

from fleetcraft.calibration.records import Failure
from fleetcraft.calibration.trial.stall import Stall
from fleetcraft.diagnosis import process_limit_words
from fleetcraft.diagnosis.device_oom import DeviceOom, judge_device_oom, parse_device_oom

_TAIL_LINES = 40
_DEVICE_OOM_KINDS = frozenset({"OutOfMemoryError", "CUDAOutOfMemoryError"})
_DEVICE_OOM_WORDS = (
    "CUDA out of memory", "HIP out of memory", "XPU out of memory", "CUDA error: out of memory",
    "torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError",
)  # fmt: skip
_HOST_ALLOC_WORDS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "std::bad_alloc",
    "Cannot allocate memory",
)
Facts = dict[str, Any]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of how a trial ended; None and empty where nothing is.

    Attributes:
        exit_code: Of its first process; None when a signal ended it.
        signal: The signal's number.
        finished: Whether its journal has its end.
        phase: The phase that ran, or ran last.
        oom_kills: How far the kernel's count of kills for memory rose meanwhile.
        pids_refused: How far its count of refused processes rose.
        own_group: Whether the count of kills is of a group of the trial's own; otherwise others
            share it.
        own_pids_group: The same of refused processes.
        memory_limit_bytes: Of the group.
        memory_peak_bytes: Of the group.
        host_budget_bytes: Limit that was asked for.
        pids_limit: Limit that was asked for.
        slurm_state: What Slurm says of the step or job.
        kind: Class of the exception that the journal tells of.
        message: What it said.
        found: What the trial's process itself found wrong, a value of `Failure`.
        log_tail: The end of what it printed.
        device_budget_bytes: Emulated limit of device memory.
        neighbour_bytes: What other processes held on the device.
        stall: The silence for which it was stopped.
        participants: Last status of each.
    """

    exit_code: int | None = None
    signal: int | None = None
    finished: bool = False
    phase: str = ""
    oom_kills: int | None = None
    pids_refused: int | None = None
    own_group: bool = False
    own_pids_group: bool = False
    memory_limit_bytes: int | None = None
    memory_peak_bytes: int | None = None
    host_budget_bytes: int | None = None
    pids_limit: int | None = None
    slurm_state: str = ""
    kind: str = ""
    message: str = ""
    found: str = ""
    log_tail: str = ""
    device_budget_bytes: int | None = None
    neighbour_bytes: int | None = None
    stall: Stall | None = None
    participants: dict[str, str] = {}

    @property
    def was_killed(self) -> bool:
        """Whether KILL ended it that did not come from us; a shell says 137 for that."""
        return self.stall is None and (self.signal == signal.SIGKILL or self.exit_code == 137)

    @property
    def said(self) -> str:
        """The exception as Python prints it."""
        return (
            f"{self.kind}: {self.message}"
            if self.kind and self.message
            else (self.kind or self.message)
        )


def ended_well(evidence: Evidence) -> bool:
    """Whether nothing speaks against the trial; a refused process does, whatever it ended with.

    A program that was refused a thread or a child may go on without a word and leave an empty file.
    """
    refused = evidence.own_pids_group and evidence.pids_refused
    killed = evidence.own_group and evidence.oom_kills
    return (
        evidence.exit_code == 0
        and evidence.finished
        and not evidence.kind
        and not evidence.found
        and evidence.stall is None
        and not refused
        and not killed
        and not _dead(evidence)
    )


def classify(evidence: Evidence) -> tuple[Failure, Facts]:
    """Why a trial that did not end well failed.

    Returns:
        The class, and what it was decided from: plain JSON values.
    """
    for failure, rule in _RULES:
        facts = rule(evidence)
        if facts is not None:
            chosen = Failure(facts.pop("class")) if failure is None else failure
            return chosen, {**_ending(evidence), **facts}
    return Failure.ERROR, {**_ending(evidence), **_error(evidence)}


# ------------------------------------------------------------------------------ the rules


def _host_oom(evidence: Evidence) -> Facts | None:
    killed = evidence.was_killed or any("SIGKILL" in how for how in _dead(evidence).values())
    # In a group of its own every such kill was one of the trial's processes, first or not.
    counted = bool(evidence.oom_kills) and (killed or evidence.own_group)
    slurm = evidence.slurm_state.upper().startswith("OUT_OF_ME")
    if not counted and not (killed and slurm):
        return None
    return _known(
        oom_kills=evidence.oom_kills,
        own_group=evidence.own_group,
        memory_limit_bytes=evidence.memory_limit_bytes,
        memory_peak_bytes=evidence.memory_peak_bytes,
        slurm_state=evidence.slurm_state or None,
        participants=_dead(evidence) or None,
    )


def _pids_counter(evidence: Evidence) -> Facts | None:
    if not evidence.pids_refused or not evidence.own_pids_group:
        return None
    return _known(
        pids_refused=evidence.pids_refused,
        pids_limit=evidence.pids_limit,
        words=process_limit_words(f"{evidence.said}\n{evidence.log_tail}") or None,
        said=evidence.said or None,
    )


def _found(evidence: Evidence) -> Facts | None:
    if evidence.found not in {failure.value for failure in Failure}:
        return None
    oom = parse_device_oom(evidence.message)
    return {
        "class": evidence.found,
        **_known(
            said=evidence.message or None,
            participants=evidence.participants or None,
            device_oom=_numbers(oom) if oom else None,
        ),
    }


def _process_words(evidence: Evidence) -> Facts | None:
    words = process_limit_words(evidence.said) or process_limit_words(evidence.log_tail)
    if not words:
        return None
    return _known(words=words, pids_refused=evidence.pids_refused, pids_limit=evidence.pids_limit)


def _device_oom(evidence: Evidence) -> Facts | None:
    in_journal = evidence.kind in _DEVICE_OOM_KINDS or _has(evidence.said, _DEVICE_OOM_WORDS)
    # A process that died by itself leaves only what it printed.
    in_log = not evidence.kind and _has(evidence.log_tail, _DEVICE_OOM_WORDS)
    if not in_journal and not in_log:
        return None
    text = evidence.message if in_journal else evidence.log_tail
    oom = parse_device_oom(text) or DeviceOom()
    cause = judge_device_oom(oom, neighbour_bytes=evidence.neighbour_bytes)
    return {
        "class": f"device_oom.{cause}",
        **_known(
            device_oom=_numbers(oom),
            device_budget_bytes=evidence.device_budget_bytes,
            neighbour_bytes=evidence.neighbour_bytes,
            said=_first_line(text if in_journal else _line_with(text, _DEVICE_OOM_WORDS)),
        ),
    }


def _host_alloc(evidence: Evidence) -> Facts | None:
    in_journal = evidence.kind == "MemoryError" or _has(evidence.said, _HOST_ALLOC_WORDS)
    if not in_journal and (evidence.kind or not _has(evidence.log_tail, _HOST_ALLOC_WORDS)):
        return None
    said = evidence.said if in_journal else _line_with(evidence.log_tail, _HOST_ALLOC_WORDS)
    return _known(said=_first_line(said), host_budget_bytes=evidence.host_budget_bytes)


def _killed(evidence: Evidence) -> Facts | None:
    if not evidence.was_killed:
        return None
    return {"oom_kills": evidence.oom_kills, "own_group": evidence.own_group}


def _partial(evidence: Evidence) -> Facts | None:
    dead = _dead(evidence)
    if not dead or len(dead) == len(evidence.participants):
        return None
    return _known(
        participants=evidence.participants,
        stall=_silence(evidence.stall) if evidence.stall else None,
    )


def _stalled(evidence: Evidence) -> Facts | None:
    return _silence(evidence.stall) if evidence.stall else None


def _error(evidence: Evidence) -> Facts:
    return _known(
        kind=evidence.kind or None,
        said=evidence.message or None,
        participants=evidence.participants or None,
        log_tail="\n".join(evidence.log_tail.splitlines()[-_TAIL_LINES:]) or None,
    )


_RULES: tuple[tuple[Failure | None, Callable[[Evidence], Facts | None]], ...] = (
    (Failure.HOST_OOM, _host_oom),
    (Failure.PROCESS_EXHAUSTION, _pids_counter),
    (None, _found),
    (Failure.PROCESS_EXHAUSTION, _process_words),
    (None, _device_oom),
    (Failure.HOST_ALLOC, _host_alloc),
    (Failure.KILLED_UNKNOWN, _killed),
    (Failure.PARTIAL, _partial),
    (Failure.STALLED, _stalled),
)
"""In the order of the table in docs/calibration.md; what the trial's own process found comes right
after what only the kernel can know. None: the rule itself names the class."""


# ------------------------------------------------------------------------------ facts


def _ending(evidence: Evidence) -> Facts:
    """How the process ended, which every answer tells."""
    return _known(
        exit_code=evidence.exit_code,
        signal=signal_name(evidence.signal) or None,
        journal_finished=evidence.finished,
        phase=evidence.phase or None,
    )


def signal_name(number: int | None) -> str:
    """``SIGKILL``, ``signal 64``; empty for None."""
    if number is None:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _numbers(oom: DeviceOom) -> Facts:
    return _known(
        **msgspec.structs.asdict(oom),
        reclaimable_bytes=oom.reclaimable_bytes,
        shortfall_bytes=oom.shortfall_bytes,
    )


def _silence(stall: Stall) -> Facts:
    return _known(
        expected_s=_rounded(stall.expected_s),
        silent_s=_rounded(stall.silent_s),
        limit_s=_rounded(stall.limit_s),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _dead(evidence: Evidence) -> dict[str, str]:
    return {name: how for name, how in evidence.participants.items() if how.startswith("dead")}


def _known(**facts: Any) -> Facts:
    """Without what is None: what was not measured is left out."""
    return {name: value for name, value in facts.items() if value is not None}


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def _line_with(text: str, words: tuple[str, ...]) -> str:
    return next((line for line in reversed(text.splitlines()) if _has(line, words)), "")


def _first_line(text: str) -> str | None:
    return next((line.strip()[:600] for line in text.splitlines() if line.strip()), None)
