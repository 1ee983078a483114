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
    r"|\bfork: (?:retry: )?Resource temporarily unavailable"
    r"|OMP: Error #34[^\n]*"
    r"|pthread_create(?:\(\))? failed[^\n]*"
    r"|what\(\):\s+Resource temporarily unavailable"
)
_MOST_CHARACTERS = 200


def process_limit_words(text: str) -> str:
    """The first line of a text that tells of a refused process or thread; empty when none does."""
    found = _WORDS.search(text)
    if found is None:
        return ""
    # The shell's name stands before it. A pattern that began with all that could stand there would
    # look through a long line once for each of its characters.
    is_shell = found[0].startswith("fork")
    begin = text.rfind("\n", 0, found.start()) + 1 if is_shell else found.start()
    return text[begin : found.end()].strip()[:_MOST_CHARACTERS]
