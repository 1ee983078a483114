"""What is in telemetry files, as text, and the progress of reading them.

Invariant: every count of the text is in the JSON, too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from fleetcraft.gpu.status import Status
from fleetcraft.telemetry.columns import RowKind
from fleetcraft.telemetry.inspection.records import FileReport, Inspection
from fleetcraft.units import format_seconds
from fleetcraft.view.inspection_shape import at_text, inspection_shape, lacks_header
from fleetcraft.view.text import Paint, joined, left_out, one_line, plural, table

_NAMES = 3  # files named in a sentence
_STATUSES = 8
_FINE = (Status.OK, Status.MIG)
_WITHOUT_GPU = frozenset({Status.NO_NVML, Status.OK})
"""What rows of a host say that has no GPU; any other cause is one that a GPU may be behind."""
_PROGRESS_AFTER_S = 0.7


def render_inspection(done: Inspection, *, limit: int, paint: Paint, width: int | None) -> str:
    """The text of ``telemetry inspect``: what is there, what is wrong, and the files."""
    shape = inspection_shape(done)
    findings = list(_findings(done, shape))
    lines = [f"  {one_line(line)}" for line in findings] or ["  nothing was found"]
    wrong = "\n".join([paint("strong", "what is wrong"), *lines])
    whole = _whole(shape, paint)
    bare = _bare_files(done)
    if bare:
        hosts = plural(len({file.source.node for file in bare}), "host")
        statuses = _statuses_of(bare)
        whole += f"\n  {'no GPU':<12}{hosts} without a GPU: {one_line(', '.join(sorted(statuses)))}"
    return joined([whole, wrong, _files(done, limit, paint, width)])


def _bare_files(done: Inspection) -> list[FileReport]:
    """Files of hosts that have no GPU at all, which is nothing wrong."""
    seen = {file.source.node for file in done.files if file.samples}
    return [
        file
        for file in done.files
        if file.source.node not in seen
        and {kind for kind, rows in file.counts.kinds.items() if rows} == {RowKind.HOST.value}
        and _WITHOUT_GPU.issuperset(file.counts.statuses)
    ]


def _statuses_of(files: list[FileReport]) -> Counter[str]:
    total: Counter[str] = Counter()
    for file in files:
        total.update(file.counts.statuses)
    return total


def _whole(shape: dict[str, Any], paint: Paint) -> str:
    counted = (
        plural(shape["files"], "file"),
        plural(shape["hosts"], "host"),
        plural(shape["gpus"], "GPU"),
        *([plural(shape["slices"], "slice")] if shape["slices"] else []),
        plural(shape["rows"], "sample"),
    )
    lines = [paint("strong", ", ".join(counted))]
    if shape["first_at"]:
        lines.append(f"  {'time':<12}{_span(shape['first_at'], shape['last_at'], shape['zone'])}")
    lines += [f"  {name:<12}{text}" for name, text in _numbers(shape) if text]
    others = {kind: n for kind, n in shape["rows_by_kind"].items() if kind not in ("gpu", "mig")}
    if others:
        rows = ", ".join(f"{kind} {n}" for kind, n in sorted(others.items()))
        lines.append(f"  {'other rows':<12}{one_line(rows)}")
    return "\n".join(lines)


def _span(first: str, last: str, zone: str) -> str:
    words = {"utc": "", "none": ", no time zone in the data", "mixed": ", not all with a time zone"}
    return f"{first} to {last}{words[zone]}".replace("T", " ")


def _numbers(shape: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if shape["mean_util_pct"] is not None:
        active = 100 * shape["active_fraction"]
        yield (
            "utilization",
            f"{shape['mean_util_pct']:.2f} % on average, 5 % and more in {active:.1f} % of samples",
        )
    if shape["mean_memory_fraction"] is not None:
        mean, peak = 100 * shape["mean_memory_fraction"], 100 * shape["peak_memory_fraction"]
        yield "memory", f"{mean:.1f} % used on average, {peak:.1f} % at most"
    if shape["mean_power_w"] is not None:
        yield "power", f"{shape['mean_power_w']:.1f} W on average"
    if shape["energy_kwh"] is not None:
        methods = [name for name in ("counter", "trapezoid") if shape["energy"][name]["kwh"]]
        words = {"counter": "the driver's counter", "trapezoid": "power readings, gaps left out"}
        by = " and ".join(words[name] for name in methods)
        hours = f"{shape['covered_hours']:.1f} GPU hours"
        yield "energy", f"{shape['energy_kwh']:.2f} kWh over {hours}" + (f", by {by}" if by else "")


def _findings(done: Inspection, shape: dict[str, Any]) -> Iterator[str]:
    """Sentences, each about something that is not as it should be, and what it means."""
    bare = _bare_files(done)
    yield from _about_files(done, bare)
    yield from _about_steps(done, shape)
    yield from _about_lines(done, shape)
    yield from _about_cells(shape)
    yield from _about_statuses(Counter(shape["rows_by_status"]) - _statuses_of(bare))
    yield from done.problems


def _about_files(done: Inspection, bare: list[FileReport]) -> Iterator[str]:
    for path, reason in done.refused[:_NAMES]:
        yield f"not read: {path}: {reason}"
    more = max(0, len(done.refused) - _NAMES)
    yield from (line.strip() for line in left_out(more, "files not read"))
    words = {
        "header_only": ("has only a header", "have only a header"),
        "single_row": ("has a single row", "have a single row"),
        "empty": ("is empty", "are empty"),
        "no_samples": ("has rows, but none of a GPU", "have rows, but none of a GPU"),
        "no_rows": ("holds no row at all", "hold no row at all"),
    }
    for kind, (one, many) in words.items():
        such = [file for file in done.files if file.what == kind and file not in bare]
        yield from _named(such, one, many)
    yield from _named(
        [file for file in done.files if lacks_header(file)],
        "has no header; what has the number of cells of a usual row was read as one",
        "have no header; what has the number of cells of a usual row was read as one",
    )
    yield from _named(
        [file for file in done.files if file.unfinished],
        "has no end: its logger still runs, or it died",
        "have no end: their loggers still run, or they died",
    )
    yield from _named(
        [file for file in done.files if file.source.sidecar_problem],
        "has no usable sidecar",
        "have no usable sidecar",
    )
    yield from _named(
        [file for file in done.files if file.shrank],
        "became shorter while it was read",
        "became shorter while they were read",
    )


def _named(files: list[FileReport], one: str, many: str) -> Iterator[str]:
    if files:
        names = [file.source.name for file in files[:_NAMES]]
        if len(files) > _NAMES:
            names.append("...")
        yield f"{plural(len(files), 'file')} {one if len(files) == 1 else many}: {', '.join(names)}"


def _about_steps(done: Inspection, shape: dict[str, Any]) -> Iterator[str]:
    if shape["double_logged_rows"]:
        rows = plural(shape["double_logged_rows"], "row")
        yield f"{rows} less than 1 s after the one before: two loggers wrote one GPU into one file"
    if shape["double_logged_across_files"]:
        rows = plural(shape["double_logged_across_files"], "row")
        yield f"{rows} less than 1 s after one of the same GPU in another file: two loggers at once"
    dedup = shape["dedup"]
    if dedup["rows"] < shape["rows"] and dedup["mean_util_pct"] is not None:
        active = 100 * dedup["active_fraction"]
        yield (
            f"without such rows: {plural(dedup['rows'], 'sample')}, utilization "
            f"{dedup['mean_util_pct']:.2f} %, 5 % and more in {active:.1f} %"
        )
    if shape["back_steps"]:
        yield f"{plural(shape['back_steps'], 'step')} back in time: a clock was set, or two loggers"
    gaps = shape["gaps"]
    if gaps["count"]:
        least_s = min(file.gap_s for file in done.files if file.gaps)
        yield (
            f"{plural(gaps['count'], 'gap')} of {least_s:g} s and more, the biggest "
            f"{format_seconds(gaps['biggest_s'])} in {gaps['file']}: nothing is known of that time"
        )
    if done.energy.counter_resets:
        yield f"{plural(done.energy.counter_resets, 'time')} the energy counter began anew"


def _about_lines(done: Inspection, shape: dict[str, Any]) -> Iterator[str]:
    rejected = shape["rejected_kinds"]
    if not rejected:
        return
    kinds = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in sorted(rejected.items()))
    total = sum(rejected.values())
    yield f"{plural(total, 'line')} {'is' if total == 1 else 'are'} no row: {kinds}"
    for kind in sorted(rejected):
        if kind not in ("torn_tail", "header_again"):
            yield from _first_example(done, kind)


def _first_example(done: Inspection, kind: str) -> Iterator[str]:
    for file in done.files:
        for example in file.counts.examples.get(kind, ())[:1]:
            place = f"{file.source.name} line {example.line}"
            yield f"  {kind.replace('_', ' ')}: {place}: {example.excerpt}"
            return


def _about_cells(shape: dict[str, Any]) -> Iterator[str]:
    for column, texts in sorted(shape["missing"].items()):
        said = ", ".join(f"{text or 'empty'} {n}" for text, n in _most_first(texts)[:4])
        causes = shape["missing_causes"].get(column, {})
        why = ", ".join(f"{cause} {n}" for cause, n in _most_first(causes)[:4])
        rows = plural(sum(texts.values()), "sample")
        yield f"{column} has no value in {rows}: {said}" + (f" (because: {why})" if why else "")


def _about_statuses(statuses: Counter[str]) -> Iterator[str]:
    bad = {status: n for status, n in statuses.items() if status not in _FINE}
    if bad:
        said = ", ".join(f"{status} {n}" for status, n in _most_first(bad)[:_STATUSES])
        yield f"{plural(sum(bad.values()), 'row')} with a status other than ok: {said}"


def _most_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _files(done: Inspection, limit: int, paint: Paint, width: int | None) -> str:
    remarks = {file.source.name: _remark(file) for file in done.files}
    files = sorted(done.files, key=lambda file: (not remarks[file.source.name], file.source.name))
    shown = files[:limit]
    if not shown:
        return ""
    rows = [["file", "samples", "util", "active", "memory", "from", "to", ""]]
    rows += [_row(file, remarks[file.source.name]) for file in shown]
    for column in range(1, 5):
        wide = max(len(row[column]) for row in rows)
        for row in rows:
            row[column] = row[column].rjust(wide)
    title = paint("strong", "the files, those with remarks first")
    more = left_out(len(files) - len(shown), "files")
    return "\n".join([title, table(rows, width=width), *more])


def _row(file: FileReport, remark: str) -> list[str]:
    def percent(total: float, count: int, factor: float) -> str:
        return f"{factor * total / count:.1f} %" if count else "-"

    means = file.means
    return [
        one_line(file.source.name),
        str(file.samples),
        percent(means.util_sum, means.util_rows, 1),
        percent(means.active_rows, means.util_rows, 100),
        percent(means.memory_sum, means.memory_rows, 100),
        *((at_text(us, "") or "-")[:16].replace("T", " ") for us in (file.first_us, file.last_us)),
        remark,
    ]


def _remark(file: FileReport) -> str:
    said = {
        plural(file.double_logged, "double row"): file.double_logged,
        plural(file.back_steps, "step") + " back": file.back_steps,
        plural(file.gaps, "gap"): file.gaps,
        f"{file.counts.rejected_total} rejected": file.counts.rejected_total,
        "no end": file.unfinished,
        file.what.replace("_", " "): file.what != "samples",
    }
    return ", ".join(words for words, wanted in said.items() if wanted)


# ------------------------------------------------------------------------------------- progress


class ReadingProgress:
    """A bar on a terminal for reading that takes longer than a moment.

    Args:
        on: Whether stderr is a terminal.
    """

    def __init__(self, on: bool) -> None:
        self._on = on
        self._since_s = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Shows how far it is."""
        if not self._on or time.monotonic() - self._since_s < _PROGRESS_AFTER_S:
            return
        if self._bar is None:
            self._open()
        self._bar.update(self._task, completed=done_bytes, total=total_bytes)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            console=Console(stderr=True),
            transient=True,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("reading", total=None)
        self._bar.start()

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.stop()
