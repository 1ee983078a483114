"""Words for what a calibration found: reasons of a choice, hints for a failure, verdicts in short.

Text and figures share them. Invariant: every class of failure has a hint, and a hint is the next
thing to do.
"""

from __future__ import annotations

from fleetcraft.calibration.records import Calibration, Failure, Trial, Verdict

REASONS = {
    "scales": "throughput rises up to it",
    "compute_saturated": "a larger one is not faster beyond noise",
    "within_noise": "a larger one may be faster, but its times scatter too much to tell",
    "semantics_shared": "samples of a batch share decisions",
    "semantics_unknown": "what a batch does to its samples was not shown",
    "headroom": "a larger one leaves too little device memory",
    "host_bound": "a larger one leaves too little host memory",
    "next_failed": "the next larger one failed",
    "largest_tried": "the largest that was tried",
    "soak_rising": "memory rises from cycle to cycle",
    "smoke": "required phases did not run",
    "not_timed": "a larger one was not timed",
    "first_failed": "the first batch failed",
}
"""What the reasons of `fleetcraft.calibration.records.Choice` mean."""

HINTS = {
    Failure.HOST_OOM: "keep less on the host at once (chunks, no fp32 copies), take a smaller "
    "batch, or ask for more --mem",
    Failure.PROCESS_EXHAUSTION: "start fewer threads and processes (--threads, OMP_NUM_THREADS, "
    "loader workers), or raise the limit of processes",
    Failure.FRAGMENTATION: "cached bytes would have sufficed: "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may cure it",
    Failure.NEIGHBOUR: "another process holds device memory: nvidia-smi names it; try again alone",
    Failure.CAPACITY: "cached bytes would not have sufficed, so no allocator setting cures it: "
    "take a smaller batch, tiles or offload",
    Failure.PREDICTED: "to try it all the same, name it first in --batches: the first is never "
    "skipped",
    Failure.HOST_ALLOC: "the host refused an allocation: a limit of address space, or too large a "
    "batch",
    Failure.KILLED_UNKNOWN: "who sent the signal is not known, and no memory counter moved: look "
    "at dmesg and at the job's accounting",
    Failure.PARTIAL: "part of it died while the rest went on: its journal has each one's status; "
    "no rate of such a run counts",
    Failure.STALLED: "look what the phase waits for; --patience allows a longer silence, and "
    "ctx.progress() ends one",
    Failure.OWNER_OUTLIVED: "drop the last reference within the phase; empty_cache() frees nothing "
    "that is still referenced",
    Failure.AUTOGRAD_RETAINED: "run the phase under torch.inference_mode() or torch.no_grad()",
    Failure.MASK_DROPPED: "hand the padding mask to every attention call; some fallbacks drop it",
    Failure.NOISE_SHARED: "draw with ctx.noise(): one generator for each sample",
    Failure.DECISION_SHARED: "decide for each sample alone, or declare SharedDecision and keep "
    "batch one",
    Failure.SEMANTICS_CHANGED: "a sample comes out otherwise in a batch than alone: keep batch "
    "one, or state a tolerance that you can defend",
    Failure.OUTPUT_EMPTY: "fleetcraft video check FILE says what is wrong with an output; write "
    "with ctx.write_video()",
    Failure.SOAK_RISING: "something is kept from cycle to cycle: its owner is alive at the end of "
    "a phase",
    Failure.SMALLER_FAILED: "cure the smaller batch first",
    Failure.ERROR: "the end of its traceback is in its journal",
}
"""What to do about each class."""


def reason_words(reason: str) -> str:
    """A reason in words; as it stands when it is none of ours."""
    return REASONS.get(reason, reason.replace("_", " "))


def finding(run: Calibration) -> str:
    """The choice and its reason in a sentence."""
    why = f": {reason_words(run.choice.reason)}" if run.choice.reason else ""
    fault = f" (with fault {run.fault})" if run.fault else ""
    if run.choice.batch is None:
        return f"{run.family}{fault}: no batch was chosen{why}"
    return f"{run.family}{fault}: batch {run.choice.batch} was chosen{why}"


def verdict_words(trial: Trial, *, short: bool = False) -> str:
    """``ok``; ``failed: device_oom.capacity in decode (pixels)``, or without where and who."""
    if trial.verdict is Verdict.OK:
        return "ok, only a smoke test" if trial.smoke else "ok"
    words = (
        f"{trial.verdict.value}: {trial.failure.value}" if trial.failure else trial.verdict.value
    )
    if short:
        return words
    where = f" in {trial.phase}" if trial.phase else ""
    who = f" ({trial.owner})" if trial.owner and trial.verdict is Verdict.FAILED else ""
    return f"{words}{where}{who}"


def rate_words(samples_per_s: float) -> str:
    """Three figures: ``4.00``, ``31.2``, ``0.0152``."""
    if samples_per_s >= 99.95:
        return f"{samples_per_s:,.0f}"
    return f"{samples_per_s:#.3g}".removesuffix(".")
