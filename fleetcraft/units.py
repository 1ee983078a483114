"""Quantities with units: durations as people and Slurm write them, and byte counts for print.

Numbers carry their unit in their name everywhere else (``_s``, ``_bytes``); this module is where
text becomes such a number and back. It knows no clock and no file.
"""

from __future__ import annotations

import re

from fleetcraft.errors import UsageError

_CLOCK = re.compile(r"(?:(\d{1,9})-)?(\d{1,9}):([0-5]?\d)(?::([0-5]?\d))?")
_SUFFIX = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|m|h|d)")
_SUFFIX_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTE_STEPS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
MAX_DURATION_S = 366 * 86400
LONGEST_WAIT_S = 1_000_000_000
"""What any sleep or wait is given at most: Python's own refuse more than 9.2e9 s."""


def parse_duration_s(text: str) -> int:
    """Reads a duration as Slurm and people write it.

    Args:
        text: ``[D-]HH:MM:SS``, ``MM:SS``, ``D-HH:MM``, or a number with ``s``, ``m``, ``h``, ``d``.

    Returns:
        Whole seconds, 1 up to 366 days.

    Raises:
        UsageError: The text is no duration, is zero, or is beyond 366 days.

    Source: the time formats of sbatch(1); a bare number is refused because Slurm means minutes
    by it and most people mean seconds.
    """
    seconds = _duration_or_none(text.strip())
    if seconds is None or not 1 <= seconds <= MAX_DURATION_S:
        raise UsageError(
            f"not a usable duration: {text!r}",
            hint="write HH:MM:SS, D-HH:MM:SS, or a number with s, m, h or d, such as 90s or 1.5h",
            text=text,
        )
    return seconds


def _duration_or_none(text: str) -> int | None:
    if suffixed := _SUFFIX.fullmatch(text):
        return int(float(suffixed[1]) * _SUFFIX_S[suffixed[2]])
    clock = _CLOCK.fullmatch(text)
    if clock is None:
        return None
    days, first, second, third = (int(part) if part else None for part in clock.groups())
    assert first is not None
    assert second is not None
    if days is not None:
        return days * 86400 + first * 3600 + second * 60 + (third or 0)
    if third is None:
        return first * 60 + second
    return first * 3600 + second * 60 + third


def format_clock(seconds: int) -> str:
    """Writes whole seconds as ``[D-]HH:MM:SS``, the form that records and Slurm share."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def format_seconds(seconds: float | None) -> str:
    """Writes a duration for a table cell: ``0.42 s``, ``4 min 05 s``, ``3 h 07 min``."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) // 60 % 60:02d} min"


def counted(count: int, noun: str, many: str = "") -> str:
    """``1 task``, ``1,200 tasks``; `many` is the plural where an ``s`` does not make it."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def format_bytes(count: float | None) -> str:
    """Writes a byte count with a binary unit, ``1.5 MiB``; empty when it was not measured."""
    if count is None:
        return ""
    value = float(count)
    for step in _BYTE_STEPS:
        if value < 1024 or step == _BYTE_STEPS[-1]:
            return f"{int(value)} B" if step == "B" else f"{value:.1f} {step}"
        value /= 1024
    raise AssertionError("unreachable")
