"""The figure of a fleet: a heat map of hosts over one time axis with everything else below it.

Bins and numbers come computed; the panels are `panels`'. Invariant: a panel without data is left
out and the figure says why, and every number in a text is one of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from fleetcraft.plots import panels
from fleetcraft.plots.fleet_text import fleet_text
from fleetcraft.plots.page import Page
from fleetcraft.plots.style import QUIET, house_style, save_both
from fleetcraft.plots.time_scale import TimeScale
from fleetcraft.telemetry.figures.time_axis import Floats
from fleetcraft.telemetry.figures.timeline import Timeline
from fleetcraft.telemetry.figures.traces import Facts, Traces
from fleetcraft.telemetry.queue import Queue

NAME = "fleet"
_ROW_IN = 0.125
_HEAT_IN = (0.5, 7.2)
_LEAST_ROW_IN = 0.0125  # two pixels


@dataclass(frozen=True, kw_only=True)
class Made:
    """What was written.

    Attributes:
        files: Paths.
        panels: Names of the panels, from the top.
        left_out: Panel to the reason why it is not there.
        title: The headline.
    """

    files: tuple[str, ...]
    panels: tuple[str, ...]
    left_out: Mapping[str, str]
    title: str


@dataclass(frozen=True, kw_only=True)
class _Panel:
    name: str
    title: str
    height_in: float
    draw: Callable[[Axes], None]
    reverse: bool = False


def plot_fleet(
    found: Traces,
    queue: Queue,
    timeline: Timeline,
    facts: Facts,
    folder: str | Path,
    *,
    no_queue: str = "no queue journals",
    title: str = "",
) -> Made:
    """Draws ``fleet.png`` and ``fleet.svg``.

    Args:
        found: What was read.
        queue: What the journals say.
        timeline: The same in bins.
        facts: Numbers for the texts.
        folder: Where the files go; it must exist.
        no_queue: Why there are no journals, if there are none.
        title: Headline; the main finding if empty, which otherwise stands below it.
    """
    with house_style():
        return _Fleet(found, queue, timeline, facts, no_queue).draw(folder, title)


class _Fleet:
    def __init__(
        self, found: Traces, queue: Queue, timeline: Timeline, facts: Facts, no_queue: str
    ) -> None:
        self._no_queue = no_queue
        self._found = found
        self._queue = queue
        self._timeline = timeline
        self._facts = facts
        self._left_out: dict[str, str] = {}
        self._scale: TimeScale | None = None

    @property
    def scale(self) -> TimeScale:
        assert self._scale is not None
        return self._scale

    def draw(self, folder: str | Path, title: str) -> Made:
        chosen = self._panels()
        text = fleet_text(
            self._found,
            self._queue,
            self._timeline,
            self._facts,
            left_out=self._left_out,
            title=title,
        )
        page = Page([panel.height_in for panel in chosen], text, left_in=self._left_in())
        self._scale = TimeScale(self._timeline.axis, page.panel_in)
        for number, panel in enumerate(chosen):
            axes = page.panel(panel.height_in, panel.title)
            panel.draw(axes)
            is_heat = panel.name == "heat_map"
            self.scale.dress(
                axes, labels=number == len(chosen) - 1, lengths=number == 0, grid=not is_heat
            )
            if is_heat:
                self._color_bar(page, axes)
            page.legend(axes, reverse=panel.reverse)
        files = save_both(page.figure, folder, NAME)
        return Made(
            files=files,
            panels=tuple(panel.name for panel in chosen),
            left_out=self._left_out,
            title=text.title,
        )

    # -- panels

    def _panels(self) -> list[_Panel]:
        line, found = self._timeline, []
        if line.util.has_data:
            found += [self._heat(), self._spread("utilization", "Utilization, %", self._draw_util)]
        else:
            self._left_out["utilization"] = self._no_reading("utilization")
        if np.isfinite(line.states).any():
            found.append(self._states())
        else:
            self._left_out["states"] = "no sample of a GPU"
        found += self._queue_panels()
        if line.memory.has_data:
            found.append(self._spread("memory", "Memory used, % of the GPU's", self._draw_memory))
        else:
            self._left_out["memory"] = self._no_reading("memory")
        if line.power.has_data:
            found.append(self._power_total())
            if len(line.power.series) > 1:
                found.append(self._spread("power", "Power of a GPU, W", self._draw_power))
        else:
            self._left_out["power"] = self._no_reading("power")
        return found + self._host_panels()

    def _host_panels(self) -> list[_Panel]:
        """Hosts themselves, where there is no GPU to show."""
        line = self._timeline
        found = []
        if line.host_memory.has_data:
            title = "Memory used, % of the host's"
            found.append(self._spread("host_memory", title, self._draw_host_memory))
        if line.host_load.has_data:
            title = "Load of a host, runnable threads"
            found.append(self._spread("host_load", title, self._draw_host_load))
        return found

    def _no_reading(self, what: str) -> str:
        if not self._found.samples:
            hosts = self._found.kinds.get("host", 0)
            return "no sample of a GPU" + (f", only {hosts:,} rows of hosts" if hosts else "")
        return f"no reading of {what} in any row"

    def _heat(self) -> _Panel:
        rows = self._timeline.rows
        least, most = _HEAT_IN
        height_in = max(min(max(least, _ROW_IN * len(rows)), most), _LEAST_ROW_IN * len(rows))
        what = "GPU" if self._timeline.per_gpu else "host"

        def draw(axes: Axes) -> None:
            panels.draw_heat(axes, self.scale, rows, height_in)

        return _Panel(
            name="heat_map",
            title=f"Utilization of each {what}",
            height_in=height_in,
            draw=draw,
        )

    def _color_bar(self, page: Page, axes: Axes) -> None:
        beside = page.beside(axes, 0.12, 1.6)
        bar = page.figure.colorbar(axes.images[0], cax=beside)
        bar.set_ticks([0, 25, 50, 75, 100], labels=["0 %", "25", "50", "75", "100 %"], fontsize=7.5)
        bar.outline.set_visible(False)
        beside.tick_params(length=0.0)
        box = beside.get_position()
        page.figure.text(
            box.x0, box.y0 - 0.06 / page.height_in, "white: no sample", fontsize=7.5, va="top",
            color=QUIET,
        )  # fmt: skip

    def _spread(self, name: str, title: str, draw: Callable[[Axes], None]) -> _Panel:
        return _Panel(name=name, title=title, height_in=1.15, draw=draw)

    def _draw_util(self, axes: Axes) -> None:
        panels.draw_bands(axes, self.scale, self._timeline.util)
        if len(self._timeline.util.series) > 1:
            panels.draw_active(axes, self.scale, self._timeline.active_fraction)
        panels.percent(axes)

    def _draw_memory(self, axes: Axes) -> None:
        panels.draw_bands(axes, self.scale, self._timeline.memory, percent=True)
        panels.percent(axes)

    def _draw_host_memory(self, axes: Axes) -> None:
        memory = self._timeline.host_memory
        panels.draw_bands(axes, self.scale, memory, percent=True, of="hosts")
        panels.percent(axes)

    def _draw_host_load(self, axes: Axes) -> None:
        load = self._timeline.host_load
        panels.draw_bands(axes, self.scale, load, of="hosts")
        panels.limit(axes, float(np.nanmax(load.series)))

    def _draw_power(self, axes: Axes) -> None:
        power = self._timeline.power
        panels.draw_bands(axes, self.scale, power)
        panels.limit(axes, float(np.nanmax(power.series)))

    def _power_total(self) -> _Panel:
        power = self._timeline.power
        peak_w = float(np.nanmax(power.total))
        divisor, unit = (1000.0, "kW") if peak_w >= 2000.0 else (1.0, "W")

        def draw(axes: Axes) -> None:
            label = "sum of readings" if len(power.series) > 1 else ""
            panels.draw_line(axes, self.scale, power.total / divisor, label)
            panels.limit(axes, peak_w / divisor)

        most = int(power.gpus.max())
        of = f"of up to {most} GPUs that report it" if most > 1 else "of the one GPU"
        return _Panel(name="power_total", title=f"Power {of}, {unit}", height_in=0.9, draw=draw)

    def _states(self) -> _Panel:
        states = self._timeline.states

        def draw(axes: Axes) -> None:
            panels.draw_states(axes, self.scale, states)
            panels.limit(axes, float(np.nanmax(states.sum(axis=0))), counts=True)

        known = self._timeline.allocation_known
        title = f"GPUs by state, of {'all that workers hold' if known else 'those seen'}"
        return _Panel(name="states", title=title, height_in=1.25, draw=draw, reverse=True)

    def _queue_panels(self) -> list[_Panel]:
        found = []
        for spool, depth in self._timeline.depths.items():
            found.append(self._depth(spool, depth))
        if not found:
            self._left_out["queue"] = self._no_queue
        workers = self._timeline.workers
        if workers:

            def draw(axes: Axes) -> None:
                panels.draw_workers(axes, self.scale, workers)
                panels.limit(axes, max(float(w.max()) for w in workers.values()), counts=True)

            found.append(_Panel(name="workers", title="Workers present", height_in=0.7, draw=draw))
        else:
            self._left_out["workers"] = self._no_queue
        return found

    def _depth(self, spool: str, depth: Mapping[str, Floats]) -> _Panel:
        words = {"outer": "Outer spool (node tasks)", "inner": "Inner spool (single-GPU tasks)"}[
            spool
        ]
        log = panels.differ_much(depth)

        def draw(axes: Axes) -> None:
            panels.draw_depth(axes, self.scale, depth)
            panels.scale_counts(axes, depth)

        title = f"{words}: number of tasks" + (", logarithmic above 1" if log else "")
        return _Panel(name=f"queue_{spool}", title=title, height_in=0.95, draw=draw)

    def _left_in(self) -> float:
        """Room for the longest row label."""
        rows = self._timeline.rows if self._timeline.util.has_data else ()
        chars = max((len(panels.label_of(row)) for row in rows), default=0)
        return min(max(0.62, 0.2 + 0.064 * chars), 2.0)
