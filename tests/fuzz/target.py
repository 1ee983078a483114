"""What a fuzzed thing is: values to try, what is done with one, and the errors that it may raise.

Here: the record of one target, and one bounded trial of it. Not here: how values are drawn
(`strategies`), how many are tried (`engine`), which targets there are (`targets/`). Invariant: a
trial ends with a value, with an error that the target documents, or with a finding; nothing else.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

HANG_S = 20
"""CPU seconds in Python after which a trial counts as one that does not end. The largest value of
any target is read in well under one."""
ROOM_BYTES = 1 << 30
"""How much more address space a trial may take than the process had."""
_REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OURS = os.path.join(_REPO, "fleetcraft")


class HangError(Exception):
    """A trial did not end within its CPU time."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One thing that reads what others wrote.

    Attributes:
        name: ``part: what is read``, as in ``spool: record``.
        values: What is tried.
        act: Reads one value. An AssertionError is a finding with a sentence.
        raises: The documented errors. Any other exception is a finding.
    """

    name: str
    values: st.SearchStrategy[Any]
    act: Callable[[Any], object]
    raises: tuple[type[Exception], ...] = ()

    def __str__(self) -> str:
        return self.name


def attempt(target: Target, value: object) -> str:
    """Tries one value, bounded in time and memory.

    Returns:
        Empty when it was read; else class and place of the documented error, such as
        ``DataError at spool/record.py:262``.

    Raises:
        Exception: Whatever else came of it, which is a finding.
    """
    try:
        with bounded():
            target.act(value)
    except target.raises as error:
        return f"{type(error).__name__} at {where(error)}"
    return ""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Turns an endless loop into a HangError, and endless growth into a MemoryError."""

    def too_long(*_: object) -> None:
        raise HangError(f"it did not end within {HANG_S} s of CPU time")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGVTALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (_size_bytes() + ROOM_BYTES, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)


def _size_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def where(error: BaseException) -> str:
    """The innermost line of ours that an error came through, as ``slurm/tables.py:156``."""
    frames = traceback.extract_tb(error.__traceback__, limit=-60)
    ours = [frame for frame in frames if frame.filename.startswith(_OURS)]
    if not ours:
        return "the test itself"
    return f"{os.path.relpath(ours[-1].filename, _OURS)}:{ours[-1].lineno}"
