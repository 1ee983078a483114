"""All that is known of one death, side by side, before anything is concluded.

Each source's facts as evidence with the class that it alone would mean. Invariant: a source that
was not asked, or could not answer, adds no evidence for or against anything.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from fleetcraft.diagnosis.device_oom import DeviceOom, judge_device_oom
from fleetcraft.training.diagnosing.episode import Episode
from fleetcraft.training.diagnosing.error_files import ErrorFiles
from fleetcraft.training.diagnosing.hits import evidence_of
from fleetcraft.training.records import Crash, DeviceOomFacts, Evidence, NodeEnd, Role, Source

_SHOWN_HITS = 12
# A shell reports a child's signal N as 128 + N.
_SHELL_SIGNALS = {128 + int(one): int(one) for one in signal.Signals}
_CRASH_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGBUS})
_ORDERS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_SCHEDULER = {
    "OUT_OF_MEMORY": Crash.HOST_OOM, "TIMEOUT": Crash.TIME_LIMIT, "DEADLINE": Crash.TIME_LIMIT,
    "PREEMPTED": Crash.PREEMPTED, "CANCELLED": Crash.CANCELLED, "REVOKED": Crash.CANCELLED,
    "NODE_FAIL": Crash.UNKNOWN, "BOOT_FAIL": Crash.UNKNOWN, "LAUNCH_FAILED": Crash.UNKNOWN,
    "FAILED": Crash.UNKNOWN,
}  # fmt: skip
OOM_EXIT = "0:125"
"""Slurm's exit code of a step whose processes its cgroup killed for memory."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is known; see `classify.diagnose` for the fields."""

    episode: Episode | None
    closed: Episode | None
    ends: tuple[NodeEnd, ...]
    slurm_state: str
    slurm_exit: str
    errors: ErrorFiles
    oom_kills: int | None
    dead_ranks: tuple[int, ...]
    quiet_s: float | None
    step: int | None

    def kills(self) -> int | None:
        """How often the kernel killed for memory meanwhile; None when nobody could read it."""
        if self.oom_kills is not None:
            return self.oom_kills
        told = [end.oom_kills for end in self.ends if end.oom_kills is not None]
        return sum(told) if told else None

    def state(self) -> str:
        """The scheduler's state without what follows it: ``CANCELLED by 1000``."""
        return self.slurm_state.upper().split(" ")[0].rstrip("+")

    def scheduler(self) -> Evidence | None:
        """The scheduler's word; None when there is none, or it says nothing of a death."""
        oom = self.slurm_exit == OOM_EXIT
        crash = Crash.HOST_OOM if oom else _SCHEDULER.get(self.state())
        if crash is None:
            return None
        exit_words = f", exit {self.slurm_exit}" if self.slurm_exit else ""
        text = f"Slurm says {self.slurm_state or 'nothing of its state'}{exit_words}"
        return Evidence(source=Source.SCHEDULER, crash=crash, text=text)

    def kernel(self) -> Evidence | None:
        """The kernel's counter, if it was read."""
        kills = self.kills()
        if kills is None:
            return None
        crash = Crash.HOST_OOM if kills > 0 else Crash.NONE
        return Evidence(
            source=Source.KERNEL, crash=crash, text=f"the kernel's oom_kill counter rose by {kills}"
        )

    def waits(self) -> tuple[Evidence | None, ...]:
        """How the first process of each node ended, in the order of ``ends``."""
        return tuple(_wait(end, self.kills()) for end in self.ends)

    def silence(self) -> tuple[Evidence, ...]:
        """Dead ranks, and that nothing came."""
        found = []
        if self.dead_ranks:
            ranks = ", ".join(str(rank) for rank in self.dead_ranks)
            text = f"gone without a word: rank {ranks}"
            found.append(_silent(text, self.dead_ranks[0]))
        if self.quiet_s is not None:
            found.append(_silent(f"nothing completed in {self.quiet_s:.0f} s", None))
        return tuple(found)

    def logs(self) -> tuple[Evidence, ...]:
        """The lines of the open episode, or of the last that was passed."""
        episode = self.episode or self.closed
        if episode is None:
            return ()
        deciding = episode.deciding
        first = [deciding, *(hit for hit in episode.hits if hit is not deciding)]
        return tuple(evidence_of(hit, episode.step) for hit in first[:_SHOWN_HITS])

    def evidence(self) -> tuple[Evidence, ...]:
        """Everything, strongest source first."""
        parts = (
            self.waits(), (self.scheduler(),), self.errors.evidence, (self.kernel(),),
            self.logs(), self.silence(),
        )  # fmt: skip
        return tuple(one for part in parts for one in part if one is not None)

    def device_oom(self) -> DeviceOom | None:
        """The numbers of the device's out-of-memory error that was first."""
        hits = self.episode.hits if self.episode else ()
        return next((hit.oom for hit in hits if hit.oom), self.errors.oom)

    def last_step(self) -> int | None:
        """The last completed step: as reported, else as the open episode's lines knew it."""
        if self.step is not None or self.episode is None:
            return self.step
        return self.episode.deciding.step

    def ranks(self, deciding: Evidence) -> tuple[int, ...]:
        """Ranks that died first, as far as the deciding source tells."""
        log = self.episode.deciding.crash if self.episode else None
        if (
            self.episode
            and log in (deciding.crash, Crash.KILLED_UNCONFIRMED)
            and self.episode.ranks
        ):
            return self.episode.ranks
        if deciding.source is Source.ERROR_FILE and deciding.rank is not None:
            return (deciding.rank,)
        return self.dead_ranks


def device_oom_facts(oom: DeviceOom) -> DeviceOomFacts:
    """The numbers as a diagnosis shows them.

    The shortfall is request less free, as people compute it; cached bytes belong to the cause:
    fragmentation when they would have covered the shortfall. Source: TRAINING.md, OOM diagnosis.
    """
    known = oom.request_bytes is not None and oom.free_bytes is not None
    return DeviceOomFacts(
        cause=judge_device_oom(oom),
        request_bytes=oom.request_bytes,
        free_bytes=oom.free_bytes,
        capacity_bytes=oom.capacity_bytes,
        allocated_bytes=oom.allocated_bytes,
        reserved_unallocated_bytes=oom.reserved_unallocated_bytes,
        shortfall_bytes=(oom.request_bytes or 0) - (oom.free_bytes or 0) if known else None,
    )


def signal_of(end: NodeEnd) -> int | None:
    """The signal that ended a node's first process, also as a shell passes it on (137)."""
    if end.signal is not None:
        return end.signal
    return _SHELL_SIGNALS.get(end.exit_code) if end.exit_code is not None else None


def _wait(end: NodeEnd, kills: int | None) -> Evidence | None:
    if end.why:
        crash = Crash.PERMISSION if "ermission denied" in end.why else Crash.CODE_ERROR
        return _waited(end, crash, f"could not be started: {end.why}")
    number = signal_of(end)
    words = _ended_words(end, number)
    if not words:
        return None
    if end.told_to_stop:
        return _waited(end, Crash.NONE, f"{words}, on order", Role.TEARDOWN)
    if number is None:
        return _waited(end, _by_exit_code(end.exit_code), words)
    return _waited(end, _by_signal(number, kills), words)


def _by_exit_code(code: int | None) -> Crash:
    # 126 and 127 are the shell's: found but not executable, not found.
    return {0: Crash.NONE, 126: Crash.PERMISSION, 127: Crash.CODE_ERROR}.get(
        1 if code is None else code, Crash.UNKNOWN
    )


def _by_signal(number: int, kills: int | None) -> Crash:
    if number == signal.SIGKILL:
        return Crash.HOST_OOM if kills else Crash.KILLED_UNCONFIRMED
    if number in _CRASH_SIGNALS:
        return Crash.CODE_ERROR
    return Crash.CANCELLED if number in _ORDERS else Crash.UNKNOWN


def _ended_words(end: NodeEnd, number: int | None) -> str:
    if number is not None:
        how = "" if end.signal is not None else f" (exit code {end.exit_code})"
        return f"signal {number}{how}"
    return "" if end.exit_code is None else f"exit code {end.exit_code}"


def _waited(end: NodeEnd, crash: Crash, text: str, role: Role = Role.ROOT) -> Evidence:
    return Evidence(source=Source.WAIT_STATUS, crash=crash, role=role, text=f"{end.node}: {text}")


def _silent(text: str, rank: int | None) -> Evidence:
    return Evidence(source=Source.SILENCE, crash=Crash.UNKNOWN, text=text, rank=rank)
