"""Timestamps of many rows at once, to the microsecond, and whether they name their zone.

The logger writes ``2026-11-30T02:00:00.000Z``, the archives ``2026/07/10 19:52:46.493``; every
ISO 8601 date and time with seconds is read too. Invariant: what names no zone is counted as if it
were UTC and is said to name none; it is never converted.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import numpy as np

from fleetcraft.telemetry.reading.cells import Bools, Bytes, Ints, Lines

SECOND_US = 1_000_000
NO_TIME = np.iinfo(np.int64).min
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_S, LAST_S = -62_135_596_800, 253_402_300_799
"""The first second of year 1 and the last of year 9999."""
_FIRST_US, _LAST_US = FIRST_S * SECOND_US, (LAST_S + 1) * SECOND_US - 1  # an offset may leave them
_FORM = re.compile(
    r"(\d{4})([-/])(\d\d)\2(\d\d)[ Tt](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
    r"\s?(?:([Zz]|UTC)|([+-])(\d\d):?(\d\d))?"
)
_DIGITS = (0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18)
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_BEFORE_MONTH = np.array([0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334])
_WIDTH = 24


def parse_time_us(text: str) -> tuple[int, bool] | None:
    """One timestamp as microseconds since 1970, and whether it names its zone; None if it is none.

    Digits beyond the microsecond are cut off.
    """
    found = _FORM.fullmatch(text.strip())
    if not found:
        return None
    year, _, month, day, hour, minute, second, fraction, zone, sign, off_h, off_min = found.groups()
    try:
        at = datetime(
            int(year), int(month), int(day), int(hour), int(minute), int(second or 0), tzinfo=UTC
        )
    except ValueError:
        return None
    us = (at - _EPOCH) // timedelta(microseconds=1) + int((fraction or "").ljust(6, "0")[:6])
    if sign:
        offset_us = (int(off_h) * 60 + int(off_min)) * 60 * SECOND_US
        us -= offset_us if sign == "+" else -offset_us
    return (us, bool(zone or sign)) if _FIRST_US <= us <= _LAST_US else None


def date_of(t_s: float) -> datetime:
    """A moment in UTC; beyond the years 1 to 9999 the first or last one that has a date.

    A damaged row can say the last microsecond of year 9999, which rounds up to none.
    """
    return datetime.fromtimestamp(min(max(t_s, FIRST_S), LAST_S + 0.999), UTC)


def parse_times(lines: Lines, start: Ints, end: Ints) -> tuple[Ints, Bools]:
    """The timestamps of cells.

    Returns:
        Microseconds since 1970, `NO_TIME` where there is no time, and which name their zone [N].
    """
    length = end - start
    window = np.ascontiguousarray(lines.window(start, _WIDTH).T)
    t_us = _seconds(window) * SECOND_US
    usual = _is_usual(window)
    with_ms = (window[19] == ord(".")) & (length >= 23)
    for place in (20, 21, 22):
        usual &= ~with_ms | (window[place] - np.uint8(48) <= 9)
    ms = (window[20] - 48.0) * 100 + (window[21] - 48.0) * 10 + (window[22] - 48.0)
    t_us += np.where(with_ms, ms, 0.0).astype(np.int64) * 1000
    behind = np.where(with_ms, 23, 19)
    last = np.where(with_ms, window[23], window[19])
    zoned = (length == behind + 1) & (last == ord("Z"))
    usual &= (length == behind) | zoned
    t_us = np.where(usual, t_us, NO_TIME)
    for row in np.flatnonzero(~usual):
        found = parse_time_us(_text(lines, start[row], end[row]))
        if found:
            t_us[row], zoned[row] = found
    return t_us, zoned


def _text(lines: Lines, start: int, end: int) -> str:
    return lines.data[int(start) : int(min(end, start + 64))].decode("ascii", "replace")


def _is_usual(window: Bytes) -> Bools:
    """Whether the first 19 bytes are a date and a time of the two usual forms."""
    usual: Bools = np.ones(window.shape[1], dtype=bool)
    for place in _DIGITS:
        usual &= window[place] - np.uint8(48) <= 9
    dashes = (window[4] == ord("-")) & (window[7] == ord("-"))
    slashes = (window[4] == ord("/")) & (window[7] == ord("/"))
    usual &= dashes | slashes
    usual &= (window[10] == ord(" ")) | (window[10] == ord("T"))
    usual &= (window[13] == ord(":")) & (window[16] == ord(":"))
    year, month, day, hour, minute, second = _fields(window)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    usual &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1)
    usual &= day <= _MONTH_DAYS[np.clip(month, 0, 12)] + ((month == 2) & leap)
    usual &= (hour < 24) & (minute < 60) & (second < 60)
    return usual


def _fields(window: Bytes) -> tuple[Ints, ...]:
    digit = {place: window[place].astype(np.int64) - 48 for place in _DIGITS}
    year = digit[0] * 1000 + digit[1] * 100 + digit[2] * 10 + digit[3]
    pairs = ((5, 6), (8, 9), (11, 12), (14, 15), (17, 18))
    return (year, *(digit[tens] * 10 + digit[ones] for tens, ones in pairs))


def _seconds(window: Bytes) -> Ints:
    """Seconds since 1970; nonsense where the fields are."""
    year, month, day, hour, minute, second = _fields(window)
    month = np.clip(month, 0, 12)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 - 719162
    days = days + _BEFORE_MONTH[month] + ((month > 2) & leap) + day - 1
    seconds: Ints = ((days * 24 + hour) * 60 + minute) * 60 + second
    return seconds
