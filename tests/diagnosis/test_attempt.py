"""How an attempt died, from the tail of its log and from the kernel's counter."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetcraft.diagnosis import OomCounter, device_ran_out, oom_counter

# The first is the form of a real one: a trainer that resumed on one of eight GPUs.
DEVICE_OOM = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.74 GiB. GPU 5 has a total "
    "capacity of 94.97 GiB of which 4.57 GiB is free. Of the allocated memory 90.29 GiB is "
    "allocated by PyTorch, and 12.5 MiB is reserved by PyTorch but unallocated.",
    "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB",
    "RuntimeError: CUDA error: out of memory",
    "failed with CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation: out of memory",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123 bytes.",
]


@pytest.mark.parametrize("text", DEVICE_OOM)
def test_a_device_that_ran_out_is_recognised_in_its_own_words(tmp_path: Path, text: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"step 690\n[rank5]: {text}\nshutting down\n")
    assert device_ran_out(str(log))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "all 8 stable, no OOM",
        "MemoryError",
        "GPU memory: 90.29 GiB of 94.97 GiB",
        "torch.cuda.memory_allocated() = 4.74 GiB",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_other_words_about_memory_are_no_device_out_of_memory(tmp_path: Path, text: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"{text}\n")
    assert not device_ran_out(str(log))


def test_only_the_tail_of_a_log_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(DEVICE_OOM[0].encode() + b"\n" + b"x" * (64 * 1024))
    assert not device_ran_out(str(log))
    log.write_bytes(b"\xff" * (1024 * 1024) + DEVICE_OOM[0].encode() + b"\n" + b"x" * 60_000)
    assert device_ran_out(str(log))


def test_a_log_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert not device_ran_out(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 9\n", 2),  # cgroup v2
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 41\n", 41),  # cgroup v1
        ("oom_kill_disable 0\nunder_oom 0\n", None),  # v1 before Linux 4.13
        ("", None),
    ],
)
def test_the_kernels_counter_is_read_from_both_kinds_of_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, count: int | None
) -> None:
    path = tmp_path / "counter"
    path.write_text(text)
    monkeypatch.setattr(oom_counter, "_find_counter", lambda: str(path))
    counter = OomCounter()
    assert counter.read() == count
    path.write_text(text.replace("41", "42"))
    assert counter.read() == (42 if count == 41 else count)
    counter.close()
    counter.close()
    assert counter.read() is None


def test_without_a_counter_the_count_is_unknown_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom_counter, "_find_counter", lambda: "")
    counter = OomCounter()
    assert counter.read() is None
    counter.close()
