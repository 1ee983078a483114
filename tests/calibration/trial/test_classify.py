"""Why a trial failed: one rule after another, and the order among them."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.calibration.records import Failure
from fleetcraft.calibration.trial.classify import Evidence, classify, ended_well
from fleetcraft.calibration.trial.stall import Stall
from fleetcraft.calibration.trial.telling import tell

MIB = 1 << 20
KILLED = {"signal": int(signal.SIGKILL), "phase": "decode"}
EXITED = {"exit_code": 1, "finished": True, "phase": "decode"}
STALL = Stall(silent_s=4.9, limit_s=4.8, expected_s=1.2, phase="decode")


def oom(*, free: float, cached: float) -> dict[str, Any]:
    return {
        **EXITED,
        "kind": "OutOfMemoryError",
        "message": f"CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity "
        f"of 1000.00 MiB of which {free:.2f} MiB is free. Of the allocated memory 800.00 MiB is "
        f"allocated by PyTorch, and {cached:.2f} MiB is reserved by PyTorch but unallocated.",
    }


TEXT = oom(free=4, cached=0)["message"]
CASES: dict[str, tuple[dict[str, Any], Failure, str]] = {
    "killed while the group's counter moved": (
        {**KILLED, "oom_kills": 1, "own_group": True, "memory_limit_bytes": 800 * MIB},
        Failure.HOST_OOM,
        "in phase decode; its cgroup: limit 800.0 MiB, oom_kill rose by 1",
    ),
    "137 is what a shell makes of it": (
        {"exit_code": 137, "oom_kills": 2},
        Failure.HOST_OOM,
        "before its first phase; the cgroup that it shares: oom_kill rose by 2",
    ),
    "Slurm says it": (
        {**KILLED, "slurm_state": "OUT_OF_MEMORY"}, Failure.HOST_OOM, "Slurm says OUT_OF_MEMORY"
    ),
    "a worker of it was killed for memory, it raised": (
        {**EXITED, "oom_kills": 1, "own_group": True, "kind": "RuntimeError",
         "message": "DataLoader worker (pid 7) is killed by signal: Killed."},
        Failure.HOST_OOM,
        "oom_kill rose by 1",
    ),
    "a participant was killed for memory": (
        {**EXITED, "oom_kills": 1, "found": "partial", "message": "1 of 2 participants died",
         "participants": {"a": "dead (SIGKILL)", "b": "alive"}},
        Failure.HOST_OOM,
        "oom_kill rose by 1",
    ),
    "the kernel refused a process": (
        {**EXITED, "pids_refused": 3, "own_pids_group": True, "pids_limit": 12,
         "kind": "RuntimeError", "message": "can't start new thread"},
        Failure.PROCESS_EXHAUSTION,
        "3 refused, limit 12, it said \"can't start new thread\"",
    ),
    "nothing complained, but the kernel refused a process": (
        {"exit_code": 0, "finished": True, "pids_refused": 1, "own_pids_group": True},
        Failure.PROCESS_EXHAUSTION,
        "1 refused",
    ),
    "libgomp says so and dies by a segmentation fault": (
        {"signal": int(signal.SIGSEGV), "log_tail": "libgomp: Thread creation failed: Resource\n"},
        Failure.PROCESS_EXHAUSTION,
        "libgomp: Thread creation failed",
    ),
    "OpenBLAS says so and interrupts": (
        {"exit_code": 130, "log_tail": "OpenBLAS blas_thread_init: pthread_create failed for\n"},
        Failure.PROCESS_EXHAUSTION,
        "OpenBLAS",
    ),
    "PyAV says so": (
        {**EXITED, "kind": "BlockingIOError",
         "message": "[Errno 11] Resource temporarily unavailable: 'avcodec_open2'"},
        Failure.PROCESS_EXHAUSTION,
        'it said "BlockingIOError: [Errno 11]',
    ),
    "cached bytes would have sufficed": (
        oom(free=4, cached=60),
        Failure.FRAGMENTATION,
        "free 4.0 MiB + cached 60.0 MiB >= request 64.0 MiB",
    ),
    "they would not": (
        oom(free=4, cached=59), Failure.CAPACITY, "free 4.0 MiB + cached 59.0 MiB < request 64.0"
    ),
    "an emulated budget": (
        {**oom(free=4, cached=0), "device_budget_bytes": 1000 * MIB},
        Failure.CAPACITY,
        "of 1000.0 MiB (emulated)",
    ),
    "others hold what is missing": (
        {**oom(free=4, cached=10), "neighbour_bytes": 100 * MIB},
        Failure.NEIGHBOUR,
        "other processes held 100.0 MiB",
    ),
    "the runtime gives no numbers": (
        {**EXITED, "kind": "AcceleratorError", "message": "CUDA error: out of memory"},
        Failure.CAPACITY,
        "the error gives no numbers",
    ),
    "only its log tells": (
        {"exit_code": 1, "log_tail": f"x\ntorch.OutOfMemoryError: {TEXT}"},
        Failure.CAPACITY,
        "request 64.0 MiB",
    ),
    "the host's allocator refused": (
        {**EXITED, "kind": "RuntimeError", "message": "[enforce fail at alloc_cpu.cpp:118] . "
         "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes."},
        Failure.HOST_ALLOC,
        "DefaultCPUAllocator",
    ),
    "Python's own allocator refused": (
        {**EXITED, "kind": "MemoryError"}, Failure.HOST_ALLOC, "MemoryError"
    ),
    "C++ was refused memory and aborted": (
        {"signal": int(signal.SIGABRT), "log_tail": "terminate\n  what():  std::bad_alloc\n"},
        Failure.HOST_ALLOC,
        "std::bad_alloc",
    ),
    "killed, and the counter did not move": (
        {**KILLED, "oom_kills": 0, "own_group": True},
        Failure.KILLED_UNKNOWN,
        "count of kills for memory did not move",
    ),
    "killed, and there is no counter": (
        {**KILLED}, Failure.KILLED_UNKNOWN, "no counter of kills for memory could be read"
    ),
    "some participants are dead and it was silent": (
        {"signal": int(signal.SIGTERM), "stall": STALL,
         "participants": {"a": "dead (exit 1)", "b": "alive", "c": "dead (exit 1)"}},
        Failure.PARTIAL,
        "a dead (exit 1), b alive, c dead (exit 1)",
    ),
    "it was silent and had to be stopped": (
        {"signal": int(signal.SIGKILL), "stall": STALL, "phase": "decode"},
        Failure.STALLED,
        "expected 1.2 s, silent for 4.9 s in phase decode; allowed were 4.8 s",
    ),
    "silent, and nothing was expected yet": (
        {"signal": int(signal.SIGTERM), "stall": Stall(silent_s=121.0, limit_s=120.0)},
        Failure.STALLED,
        "silent for 121.0 s before its first phase, allowed were 120 s",
    ),
    "its own process found what is wrong": (
        {**EXITED, "kind": "Finding", "found": "owner_outlived",
         "message": "'probe.kv' holds 1 MiB"},
        Failure.OWNER_OUTLIVED,
        "'probe.kv' holds 1 MiB",
    ),
    "an exception": (
        {**EXITED, "kind": "ValueError", "message": "shapes differ"},
        Failure.ERROR,
        "ValueError in phase decode: shapes differ",
    ),
    "a segmentation fault": (
        {"signal": int(signal.SIGSEGV), "phase": "decode", "log_tail":
         "Fatal Python error: Segmentation fault\n\nExtension modules: x\n"},
        Failure.ERROR,
        "ended by SIGSEGV in phase decode before its journal's end; it printed: Fatal Python error",
    ),
    "it left without a word": (
        {"exit_code": 0, "phase": "decode"}, Failure.ERROR, "exit code 0 in phase decode before its"
    ),
    "all participants are dead": (
        {**EXITED, "kind": "RuntimeError", "message": "all 2 participants are dead",
         "participants": {"a": "dead (exit 1)", "b": "dead (exit 1)"}},
        Failure.ERROR,
        "all 2 participants are dead",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_evidence_has_one_class_and_a_sentence_with_its_numbers(case: str) -> None:
    given_evidence, expected, sentence = CASES[case]
    evidence = Evidence(**given_evidence)
    assert not ended_well(evidence)
    failure, facts = classify(evidence)
    assert failure is expected
    assert sentence in tell(failure, facts, evidence.phase)
    assert json.loads(json.dumps(facts)) == facts


def test_every_class_that_evidence_can_show_has_a_case() -> None:
    elsewhere = {
        Failure.PREDICTED, Failure.SMALLER_FAILED,  # of trials that were not tried
        Failure.AUTOGRAD_RETAINED, Failure.MASK_DROPPED, Failure.NOISE_SHARED,
        Failure.DECISION_SHARED, Failure.SEMANTICS_CHANGED, Failure.OUTPUT_EMPTY,
        Failure.SOAK_RISING,  # as OWNER_OUTLIVED: what the trial's own process found
    }  # fmt: skip
    assert {expected for _, expected, _ in CASES.values()} | elsewhere == set(Failure)


def test_a_trial_that_ended_well_has_nothing_against_it() -> None:
    well = Evidence(exit_code=0, finished=True, oom_kills=0, pids_refused=0, own_group=True)
    assert ended_well(well)
    # Words in what it printed, and counts that others may have moved, are nothing against it.
    assert ended_well(Evidence(exit_code=0, finished=True, log_tail="can't start new thread"))
    assert ended_well(Evidence(exit_code=0, finished=True, oom_kills=3, pids_refused=2))
    assert ended_well(Evidence(exit_code=0, finished=True, participants={"a": "done"}))


@pytest.mark.parametrize("count", [None, 0])
def test_a_kill_without_a_counter_is_never_called_out_of_memory(count: int | None) -> None:
    near = Evidence(
        signal=9, oom_kills=count, own_group=True, memory_peak_bytes=799 * MIB,
        memory_limit_bytes=800 * MIB, host_budget_bytes=800 * MIB, log_tail="Killed\n",
    )  # fmt: skip
    assert classify(near)[0] is Failure.KILLED_UNKNOWN


def test_a_shared_count_of_refusals_alone_blames_nobody() -> None:
    evidence = Evidence(**EXITED, pids_refused=5, kind="ValueError", message="shapes differ")
    assert classify(evidence)[0] is Failure.ERROR


def test_the_earlier_rule_wins() -> None:
    everything: dict[str, Any] = {
        **KILLED, "oom_kills": 1, "own_group": True, "pids_refused": 1, "own_pids_group": True,
        "kind": "OutOfMemoryError", "message": oom(free=0, cached=0)["message"],
        "log_tail": "can't start new thread\nDefaultCPUAllocator: can't allocate memory",
        "participants": {"a": "dead (exit 1)", "b": "alive"},
    }  # fmt: skip
    removals: list[tuple[dict[str, Any], Failure]] = [
        ({}, Failure.HOST_OOM),
        ({"oom_kills": 0}, Failure.PROCESS_EXHAUSTION),
        ({"pids_refused": 0}, Failure.PROCESS_EXHAUSTION),  # its words are left
        ({"log_tail": "DefaultCPUAllocator: can't allocate memory"}, Failure.CAPACITY),
        ({"kind": "", "message": ""}, Failure.HOST_ALLOC),
        ({"log_tail": ""}, Failure.KILLED_UNKNOWN),
        ({"stall": STALL}, Failure.PARTIAL),
        ({"participants": {}}, Failure.STALLED),
        ({"stall": None, "signal": 11}, Failure.ERROR),
    ]
    for removal, expected in removals:
        everything.update(removal)
        assert classify(Evidence(**everything))[0] is expected, removal


counts = st.none() | st.integers(-3, 1 << 45)
texts = st.sampled_from([
    "", "Killed", "can't start new thread", "CUDA out of memory. Tried to allocate 1.00 GiB. x",
    "CUDA error: out of memory", "std::bad_alloc", "a\nb",
]) | st.text(max_size=40)  # fmt: skip
stalls = st.none() | st.builds(
    Stall,
    silent_s=st.floats(0, 1e6),
    limit_s=st.floats(0, 1e6),
    expected_s=st.none() | st.floats(0, 1e6),
)
states = st.sampled_from(["alive", "done", "dead (exit 1)", "dead (SIGKILL)"])


@given(
    st.builds(
        Evidence,
        exit_code=st.none() | st.integers(0, 255),
        signal=st.none() | st.integers(1, 70),
        finished=st.booleans(),
        phase=texts,
        oom_kills=counts,
        pids_refused=counts,
        own_group=st.booleans(),
        own_pids_group=st.booleans(),
        memory_limit_bytes=counts,
        memory_peak_bytes=counts,
        host_budget_bytes=counts,
        pids_limit=counts,
        slurm_state=texts,
        kind=texts,
        message=texts,
        found=st.sampled_from(["", "partial", "stalled", "nonsense", "output_empty"]),
        log_tail=texts,
        device_budget_bytes=counts,
        neighbour_bytes=counts,
        stall=stalls,
        participants=st.dictionaries(st.text(max_size=5), states, max_size=4),
    )
)
def test_any_evidence_has_a_class_a_sentence_and_plain_json(evidence: Evidence) -> None:
    failure, facts = classify(evidence)
    assert all(isinstance(key, str) for key in facts)
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert tell(failure, facts, evidence.phase)
    if failure is Failure.HOST_OOM:
        assert evidence.oom_kills or evidence.slurm_state
