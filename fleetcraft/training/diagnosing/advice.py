"""What to do after a diagnosis: one sentence each, the most useful first.

Words only; nothing is done or decided. Invariant: a number in a sentence is one of the evidence,
and where nothing was measured the sentence has none.
"""

from __future__ import annotations

from fleetcraft.training.records import (
    NOT_RETRIED_UNCHANGED,
    Crash,
    DeviceOomFacts,
    Diagnosis,
    Source,
)

_GIB = 1 << 30
_KNOB = (
    "Reduce one declared knob, such as the micro-batch; do not change two at once, or neither the "
    "cure nor its cost can be attributed."
)
_WORDS = {
    Crash.HOST_OOM: (
        "Host memory ran out: ask for more of it (--mem), or use fewer data-loader workers, less "
        "prefetching and less pinned memory.",
        "Starting it again unchanged will end in the same way.",
    ),
    Crash.KILLED_UNCONFIRMED: (
        "Something sent SIGKILL, and no counter or scheduler record says that it was for memory.",
        "Look at the step's state (sacct -j JOB --format=State,ExitCode,MaxRSS) and the node's "
        "kernel log; one unchanged retry is sensible.",
    ),
    Crash.RENDEZVOUS: (
        "Ranks did not find one another: check that every node started, that the endpoint's host "
        "and port are the same for all, and that no old agent holds the port.",
        "One unchanged retry is sensible.",
    ),
    Crash.DIST_NETWORK: (
        "A connection between ranks failed: look for the rank that stopped talking first, and for "
        "a port in use or a wrong interface (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME).",
        "One unchanged retry is sensible.",
    ),
    Crash.NCCL_WATCHDOG: (
        "A collective timed out, which is what a rank that died or hangs does to its peers: look "
        "for the rank that did not enter it.",
        "One unchanged retry is sensible; a longer timeout only hides it.",
    ),
    Crash.CHILD_FAILED: (
        "The launcher saw a child fail and does not know why: read that rank's own output.",
        "Decorate its main with torch.distributed.elastic's record, and it leaves an error file.",
    ),
    Crash.TIME_LIMIT: (
        "The time limit ended it, not an error: start it again from the last checkpoint, or ask "
        "for more time.",
    ),
    Crash.PREEMPTED: (
        "Slurm took the nodes for another job: start it again from the last checkpoint.",
    ),
    Crash.CANCELLED: (
        "It was told to stop: find out by whom (scancel, a signal) before starting it again.",
    ),
    Crash.DISK_FULL: (
        "A file system or quota is full: make room where it wrote (checkpoints, caches, /dev/shm), "
        "then start it again.",
        "What was being saved at that moment is not complete; use the newest committed checkpoint.",
    ),
    Crash.PERMISSION: (
        "A file or service refused access: correct that first, since a retry meets it again.",
    ),
    Crash.CHECKPOINT_INVALID: (
        "The checkpoint that it loaded is damaged or does not fit: verify it (fleetcraft train "
        "checkpoints DIR --verify hashes) and start from the newest that verifies.",
    ),
    Crash.NON_FINITE: (
        "The loss or a gradient is not finite: go back to a checkpoint before it, and look at the "
        "learning rate, the loss scale and the batch at that step.",
    ),
    Crash.CODE_ERROR: ("The program itself raised this: correct it first.",),
    Crash.UNKNOWN: (
        "It ended, and nothing says why: look at each rank's own output and at the node's logs.",
    ),
}
_UNCHANGED = "A retry without a change is not made, since it would meet the same."


def advise(found: Diagnosis) -> tuple[str, ...]:
    """Sentences for a diagnosis whose other fields are complete."""
    if found.crash is Crash.NONE:
        return ("Nothing here says that it died.",)
    if not found.episode_open:
        return (
            "Progress followed, so this crash is over: nothing needs to be done.",
            "If the run stands still now, the cause is another one.",
        )
    words = _device_oom(found.oom) if found.crash is Crash.CUDA_OOM else _WORDS[found.crash]
    after = (_UNCHANGED,) if found.crash in NOT_RETRIED_UNCHANGED else ()
    return (*words, *after, *_beside(found))


def _device_oom(oom: DeviceOomFacts | None) -> tuple[str, ...]:
    if oom is None or oom.request_bytes is None:
        return (f"The device's memory ran out; the text has no numbers. {_KNOB}",)
    sizes = _sizes(oom)
    if oom.cause == "fragmentation":
        return (
            f"Free and cached bytes would have sufficed ({sizes}): set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True first, unless it is set already.",
            f"If that does not help: {_KNOB[0].lower()}{_KNOB[1:]}",
        )
    if oom.cause == "neighbour":
        return (
            f"Another process holds memory of that device ({sizes}): find it (nvidia-smi) before "
            "anything is changed.",
        )
    return (f"{_KNOB} The device is full ({sizes}).", *_headroom(oom))


def _sizes(oom: DeviceOomFacts) -> str:
    parts = [f"{_gib(oom.request_bytes)} GiB asked for"]
    if oom.free_bytes is not None:
        parts.append(f"{_gib(oom.free_bytes)} free")
    if oom.shortfall_bytes is not None:
        parts.append(f"shortfall {_gib(oom.shortfall_bytes)} GiB")
    if oom.reserved_unallocated_bytes is not None:
        parts.append(f"{_gib(oom.reserved_unallocated_bytes)} GiB reserved and unallocated")
    if oom.allocated_bytes is not None and oom.capacity_bytes is not None:
        parts.append(f"{_gib(oom.allocated_bytes)} of {_gib(oom.capacity_bytes)} GiB allocated")
    return ", ".join(parts)


def _headroom(oom: DeviceOomFacts) -> tuple[str, ...]:
    if not oom.shortfall_bytes or not oom.allocated_bytes or oom.shortfall_bytes < 0:
        return ()
    percent = 100 * oom.shortfall_bytes / oom.allocated_bytes
    return (
        f"The shortfall is {percent:.1f} percent of what is allocated, so the smallest change of "
        "the knob may do.",
    )


def _beside(found: Diagnosis) -> tuple[str, ...]:
    """What another source says that would lead elsewhere."""
    deciding = found.evidence[0]
    log = next((one for one in found.evidence if one.source is Source.LOG), None)
    if (
        log is None
        or deciding.source is Source.LOG
        or log.crash in (found.crash, Crash.KILLED_UNCONFIRMED)
    ):
        return ()
    if deciding.crash in (Crash.TIME_LIMIT, Crash.PREEMPTED, Crash.HOST_OOM):
        where = "" if log.line is None else f" (line {log.line})"
        return (f"The log also holds {log.crash}{where}, with no progress after it.",)
    return ()


def _gib(count: int | None) -> str:
    return "" if count is None else f"{count / _GIB:.2f}"
