"""What every GPU does, as text: once, again and again, or redrawn on a terminal.

One line a node with a letter for each GPU, or one line a GPU while there is room. Invariant: what
needs a look comes first, and nodes that find no room are counted by what their GPUs do.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Sequence

import msgspec

from fleetcraft.gpu.states import GpuState, count_states
from fleetcraft.telemetry.live.journals import eta
from fleetcraft.telemetry.live.spool import Running, SpoolLook
from fleetcraft.telemetry.live.state import GpuNow, NodeNow, Picture
from fleetcraft.units import format_seconds
from fleetcraft.view.text import Paint, left_out, one_line, plural, table
from fleetcraft.view.top_shape import (
    mean_util,
    reporting,
    running_s,
    sentence,
    state_words,
    total,
    word,
)

LIMIT_WITHOUT_TERMINAL = 100
_GPU_LINES_WITHOUT_TERMINAL = 64
_LETTERS = {
    GpuState.WORKING: "W",
    GpuState.RESIDENT_IDLE: "R",
    GpuState.FREE_IDLE: "F",
    GpuState.SILENT: "S",
    GpuState.LOST: "L",
    GpuState.UNKNOWN: "?",
}
_COLOURS = {
    GpuState.WORKING: "good",
    GpuState.RESIDENT_IDLE: "quiet",
    GpuState.FREE_IDLE: "warn",
    GpuState.SILENT: "bad",
    GpuState.LOST: "bad",
    GpuState.UNKNOWN: "warn",
}
_WORST_FIRST = (
    GpuState.LOST, GpuState.SILENT, GpuState.UNKNOWN,
    GpuState.FREE_IDLE, GpuState.RESIDENT_IDLE, GpuState.WORKING,
)  # fmt: skip
_WORTH_A_WORD = _WORST_FIRST[:3]
_LONGEST_STRIP = 16
_NAMED = 5


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """Where the text goes.

    Attributes:
        paint: Colours.
        width: Columns; None where nothing is cut.
        height: Lines; None where there is no end to them.
        limit: Nodes at most; None for as many as there is room for.
    """

    paint: Paint
    width: int | None = None
    height: int | None = None
    limit: int | None = None


def render_top(picture: Picture, frame: Frame, *, root: str, taken_at: str) -> str:
    """The text of ``top``.

    Args:
        picture: What was seen.
        frame: Where the text goes.
        root: The scratch tree.
        taken_at: When the picture was taken, ISO 8601 UTC.
    """
    head = _head(picture, frame, root, taken_at)
    nodes = sorted(picture.nodes, key=_badness)
    states = {state for state, count in picture.states.items() if count}
    legend = ["", _legend(frame.paint, states)] if states else []
    room = None if frame.height is None else max(1, frame.height - len(head) - len(legend) - 3)
    whole = len(nodes) + len(picture.gpus)
    fits = whole <= (_GPU_LINES_WITHOUT_TERMINAL if room is None else room)
    most = LIMIT_WITHOUT_TERMINAL if room is None else room
    shown = nodes[: most if frame.limit is None else frame.limit]
    draw = _gpu_lines if fits else _node_lines
    lines = draw(shown, frame, taken_at) if shown else []
    rest = nodes[len(shown) :]
    return "\n".join([*head, "", *lines, *_rest_lines(rest), *(() if fits else legend)])


# -------------------------------------------------------------------------------- the head


def _head(picture: Picture, frame: Frame, root: str, taken_at: str) -> list[str]:
    paint, width = frame.paint, frame.width
    text = one_line(sentence(picture))
    said = textwrap.wrap(text, width) if width else [text]
    lines = [paint("strong", line) for line in said]
    lines.append(paint("quiet", _about(picture, root, taken_at, width)))
    lines += ["", *_spool_lines(picture.spools, width)]
    return lines + [paint("warn", line) for line in _notes(picture, width)]


def _about(picture: Picture, root: str, taken_at: str, width: int | None) -> str:
    parts = [f"{taken_at[:19]}Z".replace("T", " "), plural(len(picture.nodes), "node")]
    readings = reporting(picture.gpus)
    util_pct, count = mean_util(readings)
    if util_pct is not None:
        parts.append(f"mean {util_pct:.0f} % of {plural(count, 'GPU')} that report")
    power_w = total(one.power_w for one in readings)
    if power_w is not None:
        parts.append(_power(power_w))
    return one_line(", ".join([*parts, root]), width)


def _spool_lines(spools: Sequence[SpoolLook], width: int | None) -> list[str]:
    states = ("waiting", "pending", "running", "done", "failed")
    rows = [["spool", *(f"{state:>7}" for state in states), ""]]
    for spool in spools:
        if not spool.problem:
            counts = [f"{spool.counts.get(state, 0):>7}" for state in states]
            rows.append([spool.name, *counts, _pace(spool)])
    problems = [
        one_line(f"  {spool.name}  {spool.problem}", width) for spool in spools if spool.problem
    ]
    return [*(table(rows, width=width).split("\n") if len(rows) > 1 else []), *problems]


def _pace(spool: SpoolLook) -> str:
    found = spool.rates
    if found is None:
        return "no worker"
    per_min = found.done_per_min + found.failed_per_min
    if not per_min or found.window_s < 60:  # a rate of some seconds would be a guess
        return f"{found.ended or 'none'} ended in {_short(found.window_s)}"
    text = f"{per_min:.3g}/min"
    seconds, _ = eta(spool.counts, found)
    return text if seconds is None else f"{text}, est. {_short(seconds)} left"


def _notes(picture: Picture, width: int | None) -> list[str]:
    look = picture.look
    notes = [look.problem] if look.problem else []
    for what, names in (("logger", picture.silent_loggers), ("worker", picture.silent_workers)):
        if names:
            where = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
            ago = format_seconds(picture.forget_s)
            notes.append(f"no word for over {ago} from the {what}s of {len(names)}: {where}")
    if look.rows_rejected:
        notes.append(f"{plural(look.rows_rejected, 'torn or damaged row')} passed over")
    notes += [f"not read: {why}" for why in look.refused[:3]]
    if len(look.refused) > 3:
        notes.append(f"not read: {len(look.refused) - 3} more")
    damaged = sum(spool.damaged_lines for spool in picture.spools)
    if damaged:
        notes.append(f"{plural(damaged, 'damaged line')} of journals passed over")
    orphans = sum(task.worker_is_silent for task in _all_tasks(picture)) + len(picture.unplaced)
    if orphans:
        notes.append(f"{plural(orphans, 'running task')} of workers that are silent or not known")
    if picture.held is not None and picture.held.problem:
        notes.append(f"Slurm: {picture.held.problem}")
    return [f"  {one_line(note, None if width is None else width - 2)}" for note in notes]


def _all_tasks(picture: Picture) -> list[Running]:
    return [
        task
        for node in picture.nodes
        for task in (*node.tasks, *(one for gpu in node.gpus for one in gpu.tasks))
    ]


def _legend(paint: Paint, states: set[GpuState]) -> str:
    parts = [
        f"{paint(_COLOURS[state], letter)} {word(state)}"
        for state, letter in _LETTERS.items()
        if state in states
    ]
    return "  " + "  ".join(parts)


# -------------------------------------------------------------------------------- the nodes


def _badness(node: NodeNow) -> tuple[object, ...]:
    counts = count_states(gpu.state for gpu in node.gpus)
    return (*(-counts[state] for state in _WORST_FIRST), node.name)


def _node_lines(nodes: Sequence[NodeNow], frame: Frame, taken_at: str) -> list[str]:
    strips = [_strip(node.gpus) for node in nodes]
    rows = [["GPUs", "node", "util/max", " mem", "power", "temp", " age", "running"]]
    rows += [
        [strip, *_node_cells(node, taken_at)] for strip, node in zip(strips, nodes, strict=True)
    ]
    head, *lines = table(rows, width=frame.width).split("\n")
    painted = [
        f"  {_paint_strip(node.gpus, strip, frame.paint)}{line[2 + len(strip) :]}"
        for node, strip, line in zip(nodes, strips, lines, strict=True)
    ]
    return [frame.paint("quiet", head), *painted]


def _strip(gpus: Sequence[GpuNow]) -> str:
    if len(gpus) <= _LONGEST_STRIP:
        return "".join(_LETTERS[gpu.state] for gpu in gpus) or "-"
    counts = count_states(gpu.state for gpu in gpus)
    return " ".join(f"{count}{_LETTERS[state]}" for state, count in counts.items() if count)


def _paint_strip(gpus: Sequence[GpuNow], strip: str, paint: Paint) -> str:
    if len(strip) != len(gpus):
        return strip
    return "".join(paint(_COLOURS[g.state], letter) for g, letter in zip(gpus, strip, strict=True))


def _node_cells(node: NodeNow, taken_at: str) -> list[str]:
    readings = reporting(node.gpus)
    most = max((r.util_max_pct for r in readings if r.util_max_pct is not None), default=None)
    used = total(one.seen.mem_used_mib for one in readings)
    whole = total(one.seen.mem_total_mib for one in readings)
    power_w = total(one.power_w for one in readings)
    return [
        one_line(node.name),
        f"{_pct_pair(mean_util(readings)[0], most):>8}",
        f"{'' if used is None or not whole else f'{100 * used / whole:.0f}%':>4}",
        f"{'' if power_w is None else _power(power_w):>5}",
        f"{_temp(max((r.temp_c for r in readings if r.temp_c is not None), default=None)):>4}",
        f"{'' if node.age_s is None else _short(node.age_s):>4}",
        _node_words(node, taken_at),
    ]


def _node_words(node: NodeNow, taken_at: str) -> str:
    reasons = list(dict.fromkeys(g.reason for g in node.gpus if g.state in _WORTH_A_WORD))
    tasks = [*node.tasks, *(task for gpu in node.gpus for task in gpu.tasks)]
    named = [_task(tasks[0], taken_at)] if tasks else []
    if len(tasks) > 1:
        named.append(f"+{len(tasks) - 1}")
    return "; ".join([*(one_line(r) for r in reasons[:1]), " ".join(named), *node.notes[:1]]).strip(
        "; "
    )


def _gpu_lines(nodes: Sequence[NodeNow], frame: Frame, taken_at: str) -> list[str]:
    rows: list[list[str]] = []
    kinds: list[str] = []
    for node in nodes:
        rows.append([_node_title(node, taken_at)])
        kinds.append("strong")
        for count, gpu in _alike(node.gpus):
            rows.append(_gpu_cells(gpu, count, taken_at))
            kinds.append(_COLOURS[gpu.state])
    cells = table([row for row in rows if len(row) > 1], indent="    ", width=frame.width)
    drawn = iter(cells.split("\n"))
    lines = [next(drawn) if len(row) > 1 else one_line(row[0], frame.width) for row in rows]
    return [frame.paint(kind, line) for kind, line in zip(kinds, lines, strict=True)]


def _node_title(node: NodeNow, taken_at: str) -> str:
    parts = [f"job {', '.join(node.jobs)}"]
    if node.workers:
        parts.append(plural(node.workers, "worker"))
    parts += [_task(task, taken_at) for task in node.tasks[:_NAMED]]
    if len(node.tasks) > _NAMED:
        parts.append(f"+{len(node.tasks) - _NAMED}")
    return one_line(f"  {node.name}  {'; '.join([*parts, *node.notes])}")


def _alike(gpus: Sequence[GpuNow]) -> list[tuple[int, GpuNow]]:
    """GPUs one by one, but those that nobody saw, for one reason, together."""
    found: list[tuple[int, GpuNow]] = []
    for gpu in gpus:
        if found and gpu.reading is None and not gpu.uuid and found[-1][1] == gpu:
            found[-1] = (found[-1][0] + 1, gpu)
        else:
            found.append((1, gpu))
    return found


def _gpu_cells(gpu: GpuNow, count: int, taken_at: str) -> list[str]:
    reading = gpu.reading
    words = [_task(task, taken_at) for task in gpu.tasks]
    if gpu.reason:  # of a silent one, its age says the same
        words.insert(len(words) if gpu.state is GpuState.SILENT else 0, gpu.reason)
    last = one_line("; ".join(words))
    if reading is None:
        name = plural(count, "GPU") if count > 1 else one_line(gpu.uuid[:8]) or "GPU"
        return [name, word(gpu.state), "", "", "", "", "", last]
    seen = reading.seen
    return [
        "GPU" if gpu.index is None else f"GPU {gpu.index}",
        word(gpu.state),
        f"{_pct_pair(seen.util_pct, reading.util_max_pct):>7}",
        f"{_memory(seen.mem_used_mib, seen.mem_total_mib):>6}",
        f"{'' if reading.power_w is None else _power(reading.power_w):>5}",
        f"{_temp(reading.temp_c):>4}",
        f"{_short(seen.age_s):>3}",
        last,
    ]


def _rest_lines(rest: Sequence[NodeNow]) -> list[str]:
    if not rest:
        return []
    states = state_words(count_states(gpu.state for node in rest for gpu in node.gpus))
    return left_out(len(rest), f"more node{'s' if len(rest) > 1 else ''}: {states or 'no GPUs'}")


# -------------------------------------------------------------------------------- cells


def _pct_pair(mean_pct: float | None, most_pct: float | None) -> str:
    if mean_pct is None:
        return "?"
    return f"{mean_pct:.0f}%" if most_pct is None else f"{mean_pct:.0f}/{most_pct:.0f}%"


def _memory(used_mib: float | None, total_mib: float | None) -> str:
    if used_mib is None:
        return "?"
    return f"{used_mib / 1024:.0f}" + ("G" if total_mib is None else f"/{total_mib / 1024:.0f}G")


def _power(watts: float) -> str:
    return f"{watts:.0f}W" if watts < 1000 else f"{watts / 1000:.1f}kW"


def _temp(celsius: float | None) -> str:
    return "" if celsius is None else f"{celsius:.0f}C"


def _short(seconds: float) -> str:
    """A duration in few characters: ``42s``, ``5m``, ``3h07m``, ``2d``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    return f"{whole // 3600}h{whole // 60 % 60:02d}m" if whole < 86400 else f"{whole // 86400}d"


def _task(task: Running, taken_at: str) -> str:
    seconds = running_s(task, taken_at)
    name = one_line(task.task)
    return name if seconds is None else f"{name} {_short(seconds)}"


# -------------------------------------------------------------------------------- redrawing


def show_live(draw: Callable[[int, int], str], interval_s: float) -> None:
    """Draws again and again on the terminal's other screen, until it is interrupted.

    Args:
        draw: Makes the text for a width and a height.
        interval_s: Between two looks.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            began_s = time.monotonic()
            text = Text.from_ansi(draw(console.width, console.height), no_wrap=True)
            live.update(text, refresh=True)
            time.sleep(max(0.0, began_s + interval_s - time.monotonic()))
