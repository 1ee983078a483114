"""Charts of the page as SVG text, and the ticks of their time axes.

Numbers in, markup out; nothing that came from a file as text gets into it. A chart is stretched to
the width of the page, so its labels are HTML beside it. Invariant: what is not known is left empty,
never drawn as zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from markupsafe import Markup

from fleetcraft.clock import LAST_S
from fleetcraft.report.machine_records import Machines, Stretch
from fleetcraft.report.task_records import Pace

HEIGHT = 100
STATES = ("working", "resident_idle", "free_idle", "silent", "lost", "unknown")
"""In the order in which they are stacked."""
_STEPS_S = (
    1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
    1209600, 2592000, 7776000, 31536000,
)  # fmt: skip
_TICKS = 6
_DAY_S = 86400
_NARROWEST_PX = 288  # an axis on a page of 320 px
_WIDE_PX = 660  # and on the narrowest page that shows minor ticks, 44rem
_CHARACTER_PX = 8  # of a label, and some room: a digit of DejaVu Sans is 0.64 of its size wide
_LEAST_BINS = 4
_BANDS = (5, 25, 50, 75)


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A label of a time axis: where, in percent from the left, and which side it is written to."""

    at_pct: float
    text: str
    align: str
    minor: bool


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart.

    Attributes:
        svg: What is drawn.
        ticks: Of the time axis.
        top: What its upper edge means.
        cuts: Where time was left out, in percent from the left.
    """

    svg: Markup
    ticks: tuple[Tick, ...]
    top: float
    cuts: tuple[float, ...] = ()


def throughput(pace: Pace) -> Chart | None:
    """Ended attempts over time, those that completed below the others; None for a moment."""
    bins = len(pace.completed)
    if pace.start_s is None or bins < _LEAST_BINS:
        return None
    top = max((a + b for a, b in zip(pace.completed, pace.other, strict=True)), default=0)
    done = [(0.0, float(count)) for count in pace.completed]
    other = [(float(a), float(a + b)) for a, b in zip(pace.completed, pace.other, strict=True)]
    stretch = Stretch(start_s=pace.start_s, first_bin=0, bins=bins)
    svg = _svg(bins, _bars("completed", done, top), _bars("other", other, top))
    return Chart(svg=svg, ticks=tuple(ticks((stretch,), pace.bin_s)), top=top)


def states(machines: Machines) -> Chart | None:
    """GPUs by state over time, stacked; None when there is no course of time."""
    shown = [(state, machines.states[state]) for state in STATES if state in machines.states]
    if not shown or not machines.stretches:
        return None
    bins = len(shown[0][1])
    base = [0.0] * bins
    stacked = []
    for state, values in shown:
        spans: list[tuple[float, float] | None] = []
        for place, value in enumerate(values):
            spans.append(None if value is None else (base[place], base[place] + value))
            base[place] += value or 0.0
        stacked.append((state, spans))
    top = max(base) or 1.0
    parts = [_bars(f"state-{state}", spans, top) for state, spans in stacked]
    return _over_time(machines, _svg(bins, *parts), top)


def queue(machines: Machines) -> Chart | None:
    """Tasks that wait or are pending over time, as an area, and those that run, as another."""
    left = _sum(machines, ("waiting", "pending"))
    if not any(value is not None for value in left) or not machines.stretches:
        return None
    running = _sum(machines, ("running",))
    top = max([v for v in (*left, *running) if v is not None], default=0.0) or 1.0
    areas = [None if value is None else (0.0, value) for value in left]
    svg = _svg(len(left), _bars("queued", areas, top), _line("running", running, top))
    return _over_time(machines, svg, top)


def _sum(machines: Machines, wanted: Sequence[str]) -> list[float | None]:
    bins = sum(stretch.bins for stretch in machines.stretches)
    total: list[float | None] = [None] * bins
    for of_spool in machines.queue.values():
        for state in wanted:
            for place, value in enumerate(of_spool.get(state, ())):
                if value is not None:
                    total[place] = (total[place] or 0.0) + value
    return total


def _over_time(machines: Machines, svg: Markup, top: float) -> Chart:
    bins = sum(stretch.bins for stretch in machines.stretches)
    return Chart(
        svg=svg,
        ticks=tuple(ticks(machines.stretches, machines.bin_s)),
        top=top,
        cuts=tuple(100 * stretch.first_bin / bins for stretch in machines.stretches[1:]),
    )


def strip(values: Sequence[int | None]) -> Markup:
    """One host over time: utilization in five bands; what has no sample stays empty."""
    paths: dict[int, str] = {}
    place = 0
    for band, run in groupby(values, _band):
        width = len(list(run))
        if band is not None:
            paths[band] = paths.get(band, "") + f"M{place} 0h{width}v1h-{width}z"
        place += width
    parts = [f'<path class="u{band}" d="{path}"/>' for band, path in sorted(paths.items())]
    return Markup(
        f'<svg class="strip" viewBox="0 0 {max(1, len(values))} 1" preserveAspectRatio="none" '
        f'aria-hidden="true" focusable="false">{"".join(parts)}</svg>'
    )


def _band(value: int | None) -> int | None:
    return None if value is None else sum(value >= least for least in _BANDS)


# ------------------------------------------------------------------------------------------ parts


def _svg(bins: int, *parts: str) -> Markup:
    return Markup(
        f'<svg viewBox="0 0 {max(1, bins)} {HEIGHT}" preserveAspectRatio="none" '
        f'aria-hidden="true" focusable="false">{"".join(parts)}</svg>'
    )


def _bars(name: str, spans: Sequence[tuple[float, float] | None], top: float) -> str:
    """One rectangle for each run of equal bars, from a lower to an upper value."""
    path = ""
    place = 0
    for span, run in groupby(spans):
        width = len(list(run))
        if span is not None and span[1] > span[0] and top > 0:
            low, high = (HEIGHT - HEIGHT * value / top for value in span)
            path += f"M{place} {low:.2f}V{high:.2f}h{width}V{low:.2f}z"
        place += width
    return f'<path class="{name}" d="{path}"/>' if path else ""


def _line(name: str, values: Sequence[float | None], top: float) -> str:
    path, pen_down = "", False
    for place, value in enumerate(values):
        if value is None:
            pen_down = False
            continue
        y = HEIGHT - HEIGHT * value / top
        path += f"{'V' if pen_down else f'M{place} '}{y:.2f}H{place + 1}"
        pen_down = True
    return f'<path class="line {name}" d="{path}"/>' if path else ""


def ticks(stretches: Sequence[Stretch], bin_s: float) -> Iterator[Tick]:
    """Round times along an axis, at most six; minor are those for which narrow pages lack room."""
    bins = sum(stretch.bins for stretch in stretches)
    shown_s = bins * bin_s
    step_s = next((s for s in _STEPS_S if shown_s / s <= _TICKS), _STEPS_S[-1])
    first, last = stretches[0], stretches[-1]
    whole_s = last.start_s + last.bins * bin_s - first.start_s
    with_day = whole_s > _DAY_S or _day(first.start_s) != _day(first.start_s + whole_s - 1)
    wide, narrow = _Room(_WIDE_PX), _Room(_NARROWEST_PX)
    for stretch in stretches:
        at_s = -(-stretch.start_s // step_s) * step_s
        while at_s <= stretch.start_s + stretch.bins * bin_s:
            at_pct = 100 * (stretch.first_bin + (at_s - stretch.start_s) / bin_s) / bins
            text = _label(at_s, step_s, with_day=with_day)
            edge_pct = 50 * len(text) * _CHARACTER_PX / _NARROWEST_PX
            align = "start" if at_pct < edge_pct else "end" if at_pct > 100 - edge_pct else ""
            if wide.take(at_pct, text, align):
                has_room = narrow.take(at_pct, text, align)
                yield Tick(at_pct=round(at_pct, 2), text=text, align=align, minor=not has_room)
            at_s += step_s


class _Room:
    """What is left of an axis of some width, from left to right, in percent."""

    def __init__(self, width_px: float) -> None:
        self._px = width_px
        self._taken_pct = -100.0

    def take(self, at_pct: float, text: str, align: str) -> bool:
        """Takes the room of a label; False when there is none."""
        width_pct = 100 * len(text) * _CHARACTER_PX / self._px
        left_pct = at_pct - width_pct * {"start": 0.0, "": 0.5, "end": 1.0}[align]
        if left_pct < self._taken_pct:
            return False
        self._taken_pct = left_pct + width_pct
        return True


def _day(at_s: float) -> int:
    return int(at_s // _DAY_S)


def _label(at_s: float, step_s: float, *, with_day: bool) -> str:
    at = datetime.fromtimestamp(min(at_s, LAST_S), UTC)
    if step_s >= _DAY_S:
        return f"{at:%d %b}"
    clock = f"{at:%H:%M:%S}" if step_s < 60 else f"{at:%H:%M}"
    return f"{at:%d %b} {clock}" if with_day else clock
