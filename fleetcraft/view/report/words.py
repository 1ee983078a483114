"""The words and numbers of the page: how a value is written, and what stands where there is none.

Invariant: text that came from a file is made plain here, whatever it holds: control characters,
terminal escapes and characters that turn the direction of writing are spelled out.
"""

from __future__ import annotations

import os
import re
from datetime import datetime
from urllib.parse import quote

from markupsafe import Markup

from fleetcraft.clock import parse_timestamp
from fleetcraft.units import format_seconds
from fleetcraft.view.text import how_it_ended, printable

_NBSP = "\u00a0"
DASH = Markup('<span class="none" title="not known">&ndash;</span>')
_TURNING = re.compile(
    "[\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_LEAST_KWH = 0.01


def plain(text: str) -> str:
    """A text that is inert in a page: nothing of it is hidden or turns the writing around."""
    shown = _TURNING.sub(lambda found: f"\\u{ord(found[0]):04x}", printable(text))
    return _SURROGATE.sub(_spelled, shown)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def finalize(value: object) -> object:
    """What Jinja writes for a value: plain text, and a dash for None."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return DASH
    return plain(value) if isinstance(value, str) else value


def count(number: int | None) -> str | None:
    """``12,345``."""
    return None if number is None else f"{number:,}"


def pct(value: float | None) -> str | None:
    """A percentage, ``48.3 %``."""
    return None if value is None else f"{value:.1f}{_NBSP}%"


def share(value: float | None) -> str | None:
    """A fraction as a percentage."""
    return None if value is None else pct(100 * value)


def number(value: float | None) -> str | None:
    """Four digits, or whole where it is large."""
    if value is None:
        return None
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def times(value: float | None) -> str | None:
    """A multiple, ``3.4``."""
    return None if value is None else f"{value:,.1f}"


def hours(value: float | None) -> str | None:
    """Hours, ``12.4 h``; below one in minutes or seconds."""
    if value is None:
        return None
    return f"{value:,.1f}{_NBSP}h" if value >= 1 else seconds(value * 3600)


def seconds(value: float | None) -> str | None:
    """A duration, which is not broken over lines."""
    if value is None:
        return None
    if value >= 2 * 86400:
        words = f"{int(value) // 86400} d {int(value) // 3600 % 24} h"
    else:
        words = format_seconds(value)
    return words.replace(" ", _NBSP)


def step(value: float) -> str:
    """The width of a bin, without the zeros of `seconds`: ``10 min``, ``1 h``, ``30 s``."""
    for size_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if value >= size_s and value % size_s == 0:
            return f"{value / size_s:.0f}{_NBSP}{unit}"
    return f"{value:g}{_NBSP}s"


def energy(kwh: float | None) -> str | None:
    """``12.3 kWh``, or watt hours where it is little."""
    if kwh is None:
        return None
    if kwh < _LEAST_KWH:
        return f"{1000 * kwh:.2f}{_NBSP}Wh"
    return f"{kwh:,.1f}{_NBSP}kWh" if kwh >= 10 else f"{kwh:.3f}{_NBSP}kWh"


def top(value: float) -> str:
    """What the upper edge of a chart means: whole, or with one digit where it is small."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def watts(value: float | None) -> str | None:
    """Whole watts."""
    return None if value is None else f"{value:,.0f}{_NBSP}W"


def when(text: str | None) -> str | None:
    """A timestamp for people, ``17 Jul 2026, 06:00 UTC``; the text itself where it is none."""
    if not text:
        return None
    at = parse_timestamp(text)
    return text if at is None else f"{_date(at)}, {at:%H:%M}{_zone(at)}"


def _date(at: datetime) -> str:
    return f"{at.day} {at:%b %Y}"


def _zone(at: datetime) -> str:
    return " UTC" if at.tzinfo is not None and not at.utcoffset() else ""


def span(start: str, end: str) -> str:
    """Two timestamps, without saying the same day twice."""
    first, last = parse_timestamp(start), parse_timestamp(end)
    if first is None or last is None:
        return f"{start} to {end}"
    if first.date() == last.date():
        return f"{_date(first)}, {first:%H:%M} to {last:%H:%M}{_zone(last)}"
    return f"{_date(first)}, {first:%H:%M} to {_date(last)}, {last:%H:%M}{_zone(last)}"


def between(pair: tuple[float, float] | None) -> str | None:
    """An interval of durations."""
    if pair is None:
        return None
    low, high = seconds(pair[0]), seconds(pair[1])
    return low if low == high else f"{low} to {high}"


def ended(outcome: str, exit_code: int | None, signal: int | None) -> str:
    """``failed, exit code 3``."""
    return how_it_ended(outcome, exit_code, signal)


def name_of(word: str) -> str:
    """A state or outcome in words."""
    return word.replace("_", " ")


def begun(text: str) -> str:
    """A text that begins a sentence."""
    return text[:1].upper() + text[1:]


def counted(found: dict[str, int]) -> str:
    """``12 failed, 3 lost``."""
    return ", ".join(f"{n:,} {name_of(word)}" for word, n in found.items())


class Links:
    """How the page points at files.

    Args:
        folder: Where the page will lie; None when that is not known, and links are absolute.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder

    def __call__(self, path: str) -> str:
        """A link to an absolute path, such that it works beside the tree."""
        if self._folder is None:
            return f"file://{quote(os.fsencode(path))}"
        # Percent signs leave no colon that a browser could take for the end of a scheme.
        return quote(os.fsencode(os.path.relpath(path, self._folder)))
