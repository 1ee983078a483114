"""What a run file declares, as one frozen record.

Reading the file is `run_file`'s. Invariant: every default is here, and what a run did not declare
is None or empty, so nothing is checked against a guess.
"""

from __future__ import annotations

import msgspec

from fleetcraft.training.records import Knob

PHASES_S = {"load": 1800.0, "save": 900.0, "probe": 900.0, "eval": 1800.0}
"""Phases that every run may declare, and how long each may last, in seconds."""


class ProgressPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the run should advance.

    Attributes:
        tokens_per_step: Tokens (or samples) of one micro step over all ranks.
        accumulation: Micro steps of one optimizer step.
        tokens_per_s: Throughput when it is healthy; None takes what was measured.
        stall_factor: Alarm after so many expected steps without one,
        stall_least_s: but not before so many seconds. Source: TRAINING.md, max(5 x expected, 120).
        queues: Names of its queues from the first stage to the last; the last feeds the step loop.
    """

    tokens_per_step: int | None = None
    accumulation: int = 1
    tokens_per_s: float | None = None
    stall_factor: float = 5.0
    stall_least_s: float = 120.0
    queues: tuple[str, ...] = ()


class LadderPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What may be changed after an out-of-memory error, in this order.

    Attributes:
        expandable_segments: Whether that allocator setting may be tried.
        shares_device_memory: CUDA IPC or RDMA registers device memory, which that setting breaks.
        knobs: In the order in which they are lowered, each to its floor.
        factor: By which a knob is multiplied.
        combined: The setting and the first knob at once, which is reported as confounded.
    """

    expandable_segments: bool = True
    shares_device_memory: bool = False
    knobs: tuple[Knob, ...] = ()
    factor: float = 0.75
    combined: bool = False


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """At most ``restarts`` restarts within ``within_s`` seconds; None: ever."""

    restarts: int
    within_s: float | None = None


class BudgetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How often a run is started again. Only a newer validated checkpoint resets it.

    Attributes:
        total: Over all classes, within a window.
        classes: Most restarts by class; a class that is not named has ``each``.
        each: For the others.
        backoff_s: Pauses before the first, second, … restart in a row; the last repeats.
    """

    total: Budget = Budget(restarts=8, within_s=3600.0)
    classes: dict[str, int] = {}
    each: int = 3
    backoff_s: tuple[float, ...] = (5.0, 15.0, 60.0)


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher should have built; what is None or empty is not compared.

    Attributes:
        shard_group_size: Ranks over which parameters are sharded.
        activation_checkpointing: Module (its name in the training script, such as ``policy``) to
            whether its activations are checkpointed.
    """

    shard_group_size: int | None = None
    activation_checkpointing: dict[str, bool] = {}


class End(msgspec.Struct, frozen=True, kw_only=True):
    """What must be there when the run is done.

    Attributes:
        task: The spool task whose being done is the claim; the run's name if empty.
        step: The step (or policy version) of the last checkpoint.
        kind: Whether that must be EXACT, or WEIGHTS is enough.
        payload: Files that must be there and not empty; relative to the run's folder.
    """

    task: str = ""
    step: int | None = None
    kind: str = "EXACT"
    payload: tuple[str, ...] = ()


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run file.

    Attributes:
        run: The run's name; its folder in the scratch tree.
        command: Words; no shell.
        environment: Further variables of the command.
        directory: Where it runs; that of the run file if empty.
        nodes: Nodes of its step; 1 without Slurm.
        gpus_per_node: For srun; None leaves it to what the job has.
        world_size: Ranks, as validated; None when not declared.
        grace_s: Between TERM and KILL. The command's own inner grace must be shorter.
        inner_grace_s: What the command itself gives its children (torchrun: 30 s).
        warmup_s: Neither alarms nor throughput count before. Source: TRAINING.md, 180 s.
        verify_steps: Steps that an epoch must complete to be verified.
        verify_save: Whether a checkpoint must be committed for that too.
        look_s: Seconds between two looks.
        phases: Declared phases and how long each may last, in seconds.
        progress: How fast it should advance.
        ladder: What may be changed.
        protected: Names of settings that no rung may touch.
        budgets: How often it is started again.
        data: Facts about its data.
        packages: Packages whose versions an epoch records, beside torch.
        built: What the launcher should have built.
        checkpoints: Folder of its checkpoints; that of the run if empty.
        end: What must be there when it is done.
    """

    run: str
    command: tuple[str, ...]
    environment: dict[str, str] = {}
    directory: str = ""
    nodes: int = 1
    gpus_per_node: int | None = None
    world_size: int | None = None
    grace_s: float = 60.0
    inner_grace_s: float = 30.0
    warmup_s: float = 180.0
    verify_steps: int = 5
    verify_save: bool = False
    look_s: float = 1.0
    phases: dict[str, float] = msgspec.field(default_factory=lambda: dict(PHASES_S))
    progress: ProgressPlan = ProgressPlan()
    ladder: LadderPlan = LadderPlan()
    protected: tuple[str, ...] = ("world_size", "global_batch", "token_budget")
    budgets: BudgetPlan = BudgetPlan()
    data: dict[str, str | int | float] = {}
    packages: tuple[str, ...] = ()
    built: Built = Built()
    checkpoints: str = ""
    end: End | None = None
