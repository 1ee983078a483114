"""The words of programs that were refused a process or a thread."""

from __future__ import annotations

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
