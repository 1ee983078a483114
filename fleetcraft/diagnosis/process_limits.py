"""The words of programs that were refused a process or a thread.

Each was seen under a limit of processes. Invariant: the line is given as it stands, so that a
person can judge it too.
"""

from __future__ import annotations

import re

# OpenBLAS ends with exit code 130 and libgomp with a segmentation fault; imageio-ffmpeg says
# nothing at all, so the kernel's own counter is the better witness where there is one.
_WORDS = re.compile(
    r"libgomp: Thread creation failed[^\n]*"
    r"|can't start new thread"
    r"|OpenBLAS blas_thread_init: pthread_create failed[^\n]*"
    r"|av\.error\.BlockingIOError[^\n]*"
    r"|BlockingIOError: \[Errno 11\] [^\n]*"
    r"|[^\n]*\bfork: (?:retry: )?Resource temporarily unavailable"
    r"|OMP: Error #34[^\n]*"
    r"|pthread_create(?:\(\))? failed[^\n]*"
    r"|what\(\):\s+Resource temporarily unavailable"
)
_MOST_CHARACTERS = 200


def process_limit_words(text: str) -> str:
    """The first line of a text that tells of a refused process or thread; empty when none does."""
    found = _WORDS.search(text)
    return found[0].strip()[:_MOST_CHARACTERS] if found else ""
