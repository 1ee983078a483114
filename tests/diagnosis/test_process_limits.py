"""The words of programs that were refused a process or a thread."""

from __future__ import annotations

import time

import pytest

from fleetcraft.diagnosis import process_limit_words

# Each was printed under a pids cgroup or RLIMIT_NPROC; the last three by other builds of the same.
SIGNATURES = [
    "libgomp: Thread creation failed: Resource temporarily unavailable",
    "RuntimeError: can't start new thread",
    "BlockingIOError: [Errno 11] Resource temporarily unavailable",
    "OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2: Resource temporarily "
    "unavailable",
    "av.error.BlockingIOError: [Errno 11] Resource temporarily unavailable: 'avcodec_open2'",
    "bash: fork: retry: Resource temporarily unavailable",
    "OMP: Error #34: System unable to allocate necessary resources for OMP thread:",
    "terminate called after throwing an instance of 'std::system_error'\n  what():  Resource "
    "temporarily unavailable",
]


@pytest.mark.parametrize("text", SIGNATURES)
def test_a_refused_process_is_recognised_in_the_programs_own_words(text: str) -> None:
    words = process_limit_words(f"step 3\n{text}\nSegmentation fault\n")
    assert words
    assert words in text


@pytest.mark.parametrize(
    "text",
    ["", "thread pool of 8", "BlockingIOError: [Errno 115] Operation now in progress",
     "Resource temporarily unavailable", "fork me on a site"],
)  # fmt: skip
def test_other_words_are_not(text: str) -> None:
    assert process_limit_words(text) == ""


def test_a_long_line_without_such_words_is_looked_through_once() -> None:
    def cost_s(count: int) -> float:
        before = time.process_time()
        process_limit_words(" " * count)
        return time.process_time() - before

    once = max(cost_s(50_000), 0.002)
    assert cost_s(100_000) < 12 * once + 0.05
