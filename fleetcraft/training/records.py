"""What is decided and seen about a training run: the records that its rooms hand to one another.

Plain frozen records and closed sets; nothing here reads a file or decides. Invariant: a value that
was not measured is None, and an answer that is not known is None, never False.

Length: these records refer to one another and are read together; half of it is their fields' docs.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from fleetcraft.identity import HostId, ProcessId

EPOCH_SCHEMA = "fleetcraft.train-epoch/1"
EVENT_SCHEMA = "fleetcraft.train-event/1"
STATUS_SCHEMA = "fleetcraft.train-status/1"
DIAGNOSIS_SCHEMA = "fleetcraft.train-diagnosis/1"
ABORTED_EXIT_CODE = 3
"""A trainer's exit code for ABORT; it means that only while the ABORT marker stands."""


class Crash(StrEnum):
    """Why a run died or stands still. NONE: nothing says that it did."""

    CUDA_OOM = "CUDA_OOM"
    HOST_OOM = "HOST_OOM"
    KILLED_UNCONFIRMED = "KILLED_UNCONFIRMED"
    RENDEZVOUS = "RENDEZVOUS"
    DIST_NETWORK = "DIST_NETWORK"
    NCCL_WATCHDOG = "NCCL_WATCHDOG"
    CHILD_FAILED = "CHILD_FAILED"
    TIME_LIMIT = "TIME_LIMIT"
    PREEMPTED = "PREEMPTED"
    CANCELLED = "CANCELLED"
    DISK_FULL = "DISK_FULL"
    PERMISSION = "PERMISSION"
    CHECKPOINT_INVALID = "CHECKPOINT_INVALID"
    NON_FINITE = "NON_FINITE"
    CODE_ERROR = "CODE_ERROR"
    UNKNOWN = "UNKNOWN"
    NONE = "NONE"


TRANSIENT = frozenset(
    {
        Crash.KILLED_UNCONFIRMED, Crash.RENDEZVOUS, Crash.DIST_NETWORK, Crash.NCCL_WATCHDOG,
        Crash.CHILD_FAILED, Crash.PREEMPTED, Crash.UNKNOWN,
    }
)  # fmt: skip
"""Classes after which one unchanged retry is sensible."""
NOT_RETRIED_UNCHANGED = frozenset({Crash.CODE_ERROR, Crash.CHECKPOINT_INVALID})


class Role(StrEnum):
    """What a line is in a crash: its cause, what follows from another's, or the clearing up."""

    ROOT = "root"
    CASCADE = "cascade"
    TEARDOWN = "teardown"


class Source(StrEnum):
    """Where evidence comes from, strongest first: an earlier one outweighs a later one."""

    WAIT_STATUS = "wait_status"
    SCHEDULER = "scheduler"
    ERROR_FILE = "error_file"
    KERNEL = "kernel"
    LOG = "log"
    SILENCE = "silence"


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that says how a run died.

    Attributes:
        source: Where it comes from.
        crash: What it alone would mean.
        role: What it is in this crash.
        text: The line or fact itself, cut to 500 characters.
        path: The file that says so.
        line: Its line there, from 1, counted from the beginning of what was read.
        byte: Where that line begins in the file.
        at: The time that the line or record itself gives, as written there.
        rank: The rank that it speaks of.
        step: The last completed step that was known when it was written.
    """

    source: Source
    crash: Crash
    role: Role = Role.ROOT
    text: str = ""
    path: str = ""
    line: int | None = None
    byte: int | None = None
    at: str = ""
    rank: int | None = None
    step: int | None = None


class DeviceOomFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a device's out-of-memory error and what follows from them."""

    cause: str
    request_bytes: int | None = None
    free_bytes: int | None = None
    capacity_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_unallocated_bytes: int | None = None
    shortfall_bytes: int | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """How a run died, or that it did not.

    Attributes:
        crash: The class; called ``class`` in JSON.
        episode_open: Whether nothing completed since. A crash that progress followed is closed.
        evidence: What says so, the deciding one first.
        advice: What to do next, one sentence each, the first first.
        step: The last completed step that is known.
        oom: The numbers, for CUDA_OOM.
        ranks: Ranks that are known to have died first.
    """

    crash: Crash = msgspec.field(name="class", default=Crash.NONE)
    episode_open: bool = False
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[str, ...] = ()
    step: int | None = None
    oom: DeviceOomFacts | None = None
    ranks: tuple[int, ...] = ()


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One process for good: place, pid, start, and the nonce of its launch in its environment."""

    place: HostId
    process: ProcessId
    nonce: str


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one run of one Slurm job; ids are used again, so it carries when that began."""

    job: str
    step: str
    cluster: str = ""
    job_start_s: int | None = None

    @property
    def id(self) -> str:
        """As scancel takes it: ``JOB.STEP``."""
        return f"{self.job}.{self.step}"


class LogFence(msgspec.Struct, frozen=True, kw_only=True):
    """Where a log stood when an epoch began: lines that begin before it never count.

    Attributes:
        path: The log.
        size_bytes: Its size then.
        tail_sha256: Of the last bytes before that, 4096 at most: a file that was made anew differs.
    """

    path: str
    size_bytes: int
    tail_sha256: str


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One declared setting that the ladder may lower.

    Attributes:
        name: Its name in the run file and in records.
        value: The value of this epoch.
        floor: It is never lowered below this.
        quantum: Values are multiples of this.
        variable: The environment variable that hands it to the command.
    """

    name: str
    value: int
    floor: int
    quantum: int = 1
    variable: str = ""


class RungKind(StrEnum):
    """What a launch changes against the one before."""

    FIRST = "first"
    UNCHANGED = "unchanged"
    EXPANDABLE_SEGMENTS = "expandable_segments"
    KNOB = "knob"
    COMBINED = "combined"


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One rung of the ladder: what one attempt tries, and only that.

    Attributes:
        kind: Which change.
        knob: The knob that was lowered, for KNOB and COMBINED.
        before: Its value in the epoch before.
        after: Its value now.
        confounded: Two things were changed at once, as declared: no cure can be attributed.
    """

    kind: RungKind
    knob: str = ""
    before: int | None = None
    after: int | None = None
    confounded: bool = False


class EpochKind(StrEnum):
    """How an epoch came to be."""

    LAUNCHED = "launched"
    ADOPTED = "adopted"


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch of a run: what was launched or adopted, by whom, with what. Published once.

    Attributes:
        schema: `EPOCH_SCHEMA`.
        number: From 1; it names the attempt's folder. An adopted epoch has the folder of
            ``attempt``, which another has launched.
        generation: Of the lock that decided it.
        run: The run's name.
        kind: Launched or adopted.
        attempt: The epoch whose launch this is.
        nonce: Of the launch; every process of it has it as ``FLEET_LAUNCH_NONCE``.
        at: Wall clock, for people.
        why: Why it was begun.
        command: The command's words.
        command_sha256: Of them.
        environment_sha256: Of the environment that the supervisor gave, names and values.
        nodes: Nodes that it runs on.
        world_size: As declared; None when it is not.
        rung: What it tries.
        knobs: Every knob with its value of this epoch.
        stack: Versions: python, torch, cuda, driver, and every declared package.
        data: Facts about the data that the run declares: samples, tokens, mean_length, digest.
        cache_roots: Cache variables and where they point.
        fences: Where adopted logs stood.
        log_paths: Logs that count for this epoch.
    """

    schema: str
    number: int
    generation: int
    run: str
    kind: EpochKind
    attempt: int
    nonce: str
    at: str
    why: str
    command: tuple[str, ...]
    command_sha256: str
    environment_sha256: str
    nodes: int = 1
    world_size: int | None = None
    rung: Rung = Rung(kind=RungKind.FIRST)
    knobs: tuple[Knob, ...] = ()
    stack: dict[str, str] = {}
    data: dict[str, str | int | float] = {}
    cache_roots: dict[str, str] = {}
    fences: tuple[LogFence, ...] = ()
    log_paths: tuple[str, ...] = ()


class Keeper(msgspec.Struct, frozen=True, kw_only=True):
    """Who keeps the command on one node: published by that process before it starts anything."""

    node: str
    keeper: ProcessRecord
    step: StepRecord | None = None


class NodeEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How the command ended on one node: published by its keeper when nothing of it is left.

    Attributes:
        node: Which node.
        nonce: Of the launch.
        exit_code: Of its first process; None when a signal ended it, or when it has not ended.
        signal: That signal's number.
        clean: Whether nothing of it is alive any more.
        leftovers: Processes that it left behind and that were stopped.
        oom_kills: How often the kernel's counter rose meanwhile; None when it cannot be read.
        cpu_s: CPU seconds of all that was waited for.
        max_rss_bytes: Largest resident size of one of its processes.
        told_to_stop: Whether it was ended on order.
        why: What could not be started, for a command that never ran.
    """

    node: str
    nonce: str
    exit_code: int | None = None
    signal: int | None = None
    clean: bool = True
    leftovers: int = 0
    oom_kills: int | None = None
    cpu_s: float = 0.0
    max_rss_bytes: int = 0
    told_to_stop: bool = False
    why: str = ""


class StopResult(StrEnum):
    """How a stop ended; UNREAPED means that its nodes are not free."""

    REAPED = "REAPED"
    UNREAPED = "UNREAPED"


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """What a bounded stop did."""

    result: StopResult
    seconds: float
    killed: int = 0
    left: tuple[ProcessRecord, ...] = ()
    why: str = ""


class QueueStanding(StrEnum):
    """What a queue's depth says of the two sides of it."""

    STARVED = "starved"
    BALANCED = "balanced"
    SATURATED = "saturated"
    FROZEN = "frozen"


class QueueDepth(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of the run; capacity None when it was not told."""

    name: str
    depth: int
    capacity: int | None = None
    standing: QueueStanding | None = None


class RankProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank has reported, and how long ago by the reader's own clock.

    Attributes:
        rank: Which rank.
        name: What it calls itself, such as ``drafter-1``; empty if it does not.
        process: Who it is, when it told.
        step: Its last completed optimizer step; None before the first.
        first_step: The first that it reported in this epoch.
        tokens: All that it has processed in this epoch; None when it never told any.
        loss: Of its last line that had one.
        queues: Depth and capacity by name, as last told.
        metrics: The user's own, as last told.
        device_memory_bytes: As last told.
        phase: The phase that it has declared (load, save, probe, eval); empty in the step loop.
        lines: Whole lines read.
        bad_lines: Lines that were no report.
        step_changed_s: The reader's clock when the step was last seen to grow; None before.
        changed_s: The reader's clock when anything new was last seen.
        phase_since_s: The reader's clock when the phase was first seen.
        last_line: The last whole line, cut to 500 characters.
    """

    rank: int
    name: str = ""
    process: ProcessRecord | None = None
    step: int | None = None
    first_step: int | None = None
    tokens: int | None = None
    loss: float | None = None
    queues: dict[str, tuple[int, int | None]] = {}
    metrics: dict[str, float] = {}
    device_memory_bytes: int | None = None
    phase: str = ""
    lines: int = 0
    bad_lines: int = 0
    step_changed_s: float | None = None
    changed_s: float | None = None
    phase_since_s: float | None = None
    last_line: str = ""


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """One rank in a census: alive True, gone False, not known None."""

    rank: int
    name: str = ""
    alive: bool | None = None
    process: ProcessRecord | None = None
    step: int | None = None
    idle_s: float | None = None
    cpu_s: float | None = None
    rss_bytes: int | None = None
    device_memory_bytes: int | None = None
    state: str = ""
    last_line: str = ""


class Standing(StrEnum):
    """What the progress watch says."""

    WARMING = "WARMING"
    PROGRESSING = "PROGRESSING"
    IN_PHASE = "IN_PHASE"
    SLOW = "SLOW"
    STALLED_IO = "STALLED_IO"
    STALLED = "STALLED"
    DEAD_RANK = "DEAD_RANK"
    UNKNOWN = "UNKNOWN"


class State(StrEnum):
    """States of the supervisor."""

    IDLE = "IDLE"
    LOCKED = "LOCKED"
    LAUNCHING = "LAUNCHING"
    ADOPTING = "ADOPTING"
    WARMUP = "WARMUP"
    VERIFYING = "VERIFYING"
    HEALTHY = "HEALTHY"
    SUSPECT = "SUSPECT"
    DIAGNOSING = "DIAGNOSING"
    STOPPING = "STOPPING"
    BACKOFF = "BACKOFF"
    DONE = "DONE"
    EXHAUSTED = "EXHAUSTED"
    ABORTED = "ABORTED"
    LOCK_LOST = "LOCK_LOST"
    BLOCKED = "BLOCKED"


TERMINAL = frozenset({State.DONE, State.EXHAUSTED, State.ABORTED, State.LOCK_LOST, State.BLOCKED})
