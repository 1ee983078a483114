"""The figure of the page: what a metadata server sees, by nodes and length of tasks.

Lines are the formula, points the simulation, horizontal lines what servers are assumed to answer.
Invariant: the same numbers give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

from tests.scale.model import Server

_COLOURS = ("#c0392b", "#d68910", "#1e8449", "#2471a3")


def draw(
    path: Path,
    nodes: Sequence[int],
    formula: Mapping[float, Sequence[float]],
    simulated: Mapping[float, Mapping[int, float]],
    servers: Sequence[Server],
) -> None:
    """Draws it.

    Args:
        path: The SVG file.
        nodes: Of the lines.
        formula: By length of a task in seconds: looks a second asked for, one for each of nodes.
        simulated: By length of a task: by nodes: looks a second answered.
        servers: What they are assumed to answer.
    """
    with plt.rc_context({"svg.hashsalt": "scale", "svg.fonttype": "none", "font.size": 10}):
        figure, axes = plt.subplots(figsize=(8.0, 5.2), constrained_layout=True)
        for server in servers:
            axes.axhline(server.per_s, color="#888888", linewidth=0.9, linestyle="--")
            axes.text(1.1, server.per_s * 1.06, server.name, fontsize=8, color="#555555")
        for colour, (task_s, rates) in zip(_COLOURS, formula.items(), strict=False):
            axes.plot(nodes, rates, color=colour, label=f"tasks of {task_s:g} s")
            points = simulated.get(task_s, {})
            axes.plot(list(points), list(points.values()), "o", color=colour, markersize=5)
        axes.set(
            xscale="log", yscale="log", xlim=(1, 12_000), ylim=(5, 400_000),
            xlabel="nodes, a worker each", ylabel="metadata operations a second (in looks)",
            title="What one metadata server sees of a busy fleet, 100,000 tasks pending",
        )  # fmt: skip
        axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
        axes.legend(
            loc="lower right", title="line: asked for; point: answered\n(simulated, 50,000/s)"
        )
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)
