"""What a trial's process is told to do: one JSON value, written by the parent, read by the child.

Invariant: everything that changes what the child does stands here, and so in its journal.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Pass(StrEnum):
    """What the child does, in the order of its orders.

    ``preflight`` runs the cycle on fake tensors at each of ``preflight_batches`` and measures
    nothing real. ``checks`` runs the semantic checks. ``memory`` is one cycle with tracking,
    ``time`` is ``timed_cycles`` cycles without, ``soak`` is ``soak_cycles`` with tracking again,
    ``overhead`` is CPU time of one tracked against one untracked cycle, ``flops`` counts.
    """

    PREFLIGHT = "preflight"
    FLOPS = "flops"
    CHECKS = "checks"
    MEMORY = "memory"
    OVERHEAD = "overhead"
    TIME = "time"
    SOAK = "soak"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One trial.

    Attributes:
        family: As `fleetcraft.calibration.family.find_family` takes it, absolute.
        batch: What to try.
        passes: What to do.
        folder: The trial's own folder: its journal, and below it what its cycles write.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        timed_cycles: Cycles of the time pass.
        soak_cycles: Cycles of the soak pass.
        preflight_batches: Batches of the preflight.
        device_budget_bytes: Tracked bytes at which `torch.OutOfMemoryError` is raised; None: no
            emulated limit.
        host_budget_bytes: Limit of the trial's own memory cgroup, or of its data segment.
        pids_limit: Limit of the trial's own pids cgroup.
        fault: The fault that the family is asked to have.
        seed: Of the run; sample i draws from a generator seeded from it and i.
        threads: Threads that torch may use; None leaves them.
        sdpa: Attention backend to pin: ``flash``, ``math``, ``efficient``, ``cudnn``; empty pins
            none.
    """

    family: str
    batch: int
    passes: tuple[Pass, ...]
    folder: str
    device: str = "cpu"
    timed_cycles: int = 3
    soak_cycles: int = 4
    preflight_batches: tuple[int, ...] = ()
    device_budget_bytes: int | None = None
    host_budget_bytes: int | None = None
    pids_limit: int | None = None
    fault: str = ""
    seed: int = 0
    threads: int | None = None
    sdpa: str = ""

    @property
    def journal(self) -> str:
        """The child's journal."""
        return f"{self.folder}/journal.jsonl"

    @property
    def outputs(self) -> str:
        """Where cycles write."""
        return f"{self.folder}/outputs"
