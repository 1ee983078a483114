"""One calibration run as text: its batches, the phases of the one that matters, what failed.

Its JSON is the store's; words are in `calibration_words`. Invariant: a number that was not measured
is an empty cell or is called so, and every failure is told with its numbers and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleetcraft.calibration.records import Calibration, OwnerBytes, PhaseRecord, Trial, Verdict
from fleetcraft.units import format_bytes, format_seconds
from fleetcraft.view.calibration_words import HINTS, finding, rate_words, verdict_words
from fleetcraft.view.text import Paint, joined, one_line, plural, printable, table

_COLORS = {Verdict.OK: "good", Verdict.FAILED: "bad", Verdict.SKIPPED: "warn"}
_OWNERS_SHOWN = 3
_TRIFLE_FRACTION = 0.02


def render_calibration(
    run: Calibration, *, paint: Paint, width: int | None = None, files: Sequence[str] = ()
) -> str:
    """The text of ``calibrate run`` and of one run in ``calibrate show``.

    Args:
        run: What was found.
        paint: Colours.
        width: Of the terminal; None cuts nothing.
        files: Of its figure.
    """
    return joined(
        [
            _head(run, paint),
            _batches(run, paint, width),
            _phases(run, paint),
            "\n".join(_failures(run, paint)),
            "\n".join(_notes(run, paint)),
            "\n".join(_places(run, files)),
        ]
    )


# ------------------------------------------------------------------------------------------ head


def _head(run: Calibration, paint: Paint) -> str:
    lines = [paint("strong", one_line(finding(run)))]
    if run.choice.detail:
        lines.append(f"  {one_line(run.choice.detail)}")
    kind = one_line(run.kind)
    lines.append(f"  {kind} family, {_semantics(run.semantics)}, {_short(run.identity)}")
    lines.append(f"  {one_line(_stack(run))}")
    return "\n".join(lines)


def _semantics(semantics: str) -> str:
    return {
        "independent": "samples independent, with a parity test",
        "claimed_independent": "samples said to be independent, without a parity test",
        "shared": "samples share decisions",
        "unknown": "what a batch does to a sample is not known",
    }.get(semantics, one_line(semantics))


def _short(digest: str) -> str:
    kind, colon, value = one_line(digest).partition(":")
    return f"identity {kind}{colon}{value[:12]}" if colon else f"identity {kind[:19]}"


def _stack(run: Calibration) -> str:
    place = next((t.environment for t in run.trials if t.environment.torch), None)
    parts = [run.device if place is None else place.device or run.device]
    if place is not None:
        if place.device_mem_mib is not None:
            parts[0] += f" of {format_bytes(place.device_mem_mib * (1 << 20))}"
        parts += [f"torch {place.torch}", f"attention {place.sdpa}" if place.sdpa else ""]
        parts += [f"allocator {place.alloc}" if place.alloc else "", place.host]
    if run.device_budget_bytes is not None:
        parts.append(f"device budget {format_bytes(run.device_budget_bytes)}")
    if run.host_budget_bytes is not None:
        parts.append(f"host budget {format_bytes(run.host_budget_bytes)}")
    return ", ".join(part for part in parts if part)


# --------------------------------------------------------------------------------------- batches


def _batches(run: Calibration, paint: Paint, width: int | None) -> str:
    titles = ["batch", "verdict", "samples/s", "peak", "in", "host peak", "largest owner"]
    rows = [titles, *(_batch(run, trial) for trial in run.trials)]
    lines = table(rows, width=width).split("\n")
    coloured = [
        paint(_COLORS[trial.verdict], line) if trial.verdict is not Verdict.OK else line
        for trial, line in zip(run.trials, lines[1:], strict=True)
    ]
    return "\n".join([paint("quiet", lines[0]), *coloured])


def _batch(run: Calibration, trial: Trial) -> list[str]:
    mark = "*" if trial.batch == run.choice.batch else ""
    peak, where, owner = format_bytes(trial.peak_bytes), "", ""
    highest = _highest(trial)
    if highest is not None:
        where = highest.name
        owner = _largest_owner(highest)
    elif trial.predicted_peak_bytes is not None:
        peak = f"~{format_bytes(trial.predicted_peak_bytes)}"
    return [
        f"{trial.batch}{mark}",
        verdict_words(trial, short=True),
        _rate(trial),
        peak,
        one_line(where),
        format_bytes(trial.host_peak_bytes),
        one_line(owner),
    ]


def _rate(trial: Trial) -> str:
    """Samples per second with the slowest and the fastest timed cycle."""
    if trial.samples_per_s is None:
        return ""
    words = rate_words(trial.samples_per_s)
    walls = [wall_s for wall_s in trial.cycle_walls_s if wall_s > 0]
    if len(walls) < 2:
        return words
    low, high = trial.batch / max(walls), trial.batch / min(walls)
    return f"{words} ({rate_words(low)}-{rate_words(high)})"


def _largest_owner(phase: PhaseRecord) -> str:
    largest = max(phase.owners, key=lambda owner: owner.bytes, default=None)
    return "" if largest is None else f"{largest.name} {format_bytes(largest.bytes)}"


def _highest(trial: Trial) -> PhaseRecord | None:
    measured = [phase for phase in trial.phases if phase.peak_bytes is not None]
    return max(measured, key=lambda phase: phase.peak_bytes or 0, default=None)


# ---------------------------------------------------------------------------------------- phases


def _phases(run: Calibration, paint: Paint) -> str:
    trial = _telling_trial(run)
    if trial is None:
        return ""
    cycles = max((len(phase.walls_s) for phase in trial.phases), default=0)
    wall = f"wall: median of {plural(cycles, 'timed cycle')}" if cycles else "not timed"
    title = f"phases of batch {trial.batch} ({wall}; bytes tracked in a cycle apart)"
    titles = ["phase", "wall", "peak", "lives on", "autograd", "host", "owners of the peak"]
    rows = [titles, *(_phase(phase) for phase in trial.phases)]
    lines = table(rows).split("\n")  # not cut: who owns the peak is what people look for
    highest = _highest(trial)
    for place, phase in enumerate(trial.phases):
        if phase is highest:
            lines[place + 1] = paint("strong", lines[place + 1])
    return "\n".join([title, paint("quiet", lines[0]), *lines[1:]])


def _telling_trial(run: Calibration) -> Trial | None:
    """The chosen batch; else the first failure that has phases; else any trial that has."""
    chosen = [trial for trial in run.trials if trial.batch == run.choice.batch and trial.phases]
    failed = [t for t in run.trials if t.verdict is Verdict.FAILED and t.phases]
    others = [trial for trial in run.trials if trial.phases]
    return next(iter(chosen or failed or others), None)


def _phase(phase: PhaseRecord) -> list[str]:
    owners = [owner for owner in phase.owners if owner.bytes]
    words = ", ".join(_owner_words(phase, owner) for owner in owners[:_OWNERS_SHOWN])
    if rest := owners[_OWNERS_SHOWN:]:
        words += f" and {len(rest)} more {format_bytes(sum(owner.bytes for owner in rest))}"
    # Those that are not named may have been small at the peak, and be what stays.
    late = [o for o in phase.owners if o not in owners[:_OWNERS_SHOWN] and _stays(phase, o)]
    if late:
        sizes = (f"{one_line(o.name)} {format_bytes(o.live_end_bytes)}" for o in late)
        words += f" (alive after: {', '.join(sizes)})"
    for name, count in phase.held_bytes.items():
        words += f"; {one_line(name)} had to be gone, {format_bytes(count)} are not"
    if phase.residual_bytes:
        words += f"; allocator {format_bytes(phase.residual_bytes)} beyond that"
    host = phase.cgroup_peak_bytes if phase.cgroup_peak_bytes is not None else phase.rss_peak_bytes
    return [
        one_line(phase.name),
        format_seconds(phase.wall_s),
        format_bytes(phase.peak_bytes),
        format_bytes(phase.live_end_bytes),
        format_bytes(phase.autograd_bytes),
        format_bytes(host),
        words,
    ]


def _owner_words(phase: PhaseRecord, owner: OwnerBytes) -> str:
    late = " (alive after)" if owner.alive_after and owner.born_in == phase.name else ""
    return f"{one_line(owner.name)} {format_bytes(owner.bytes)}{late}"


def _stays(phase: PhaseRecord, owner: OwnerBytes) -> bool:
    """Whether it was born here, lives on, and is no trifle."""
    born_here = owner.alive_after and owner.born_in == phase.name
    least = _TRIFLE_FRACTION * (phase.peak_bytes or 0)
    return born_here and owner.live_end_bytes > least


# -------------------------------------------------------------------------------------- failures


def _failures(run: Calibration, paint: Paint) -> list[str]:
    lines = []
    for trial in run.trials:
        if trial.verdict is Verdict.OK:
            continue
        words = paint(
            _COLORS[trial.verdict], f"batch {trial.batch} {one_line(verdict_words(trial))}"
        )
        lines.append(f"{words}{f': {printable(trial.detail)}' if trial.detail else ''}")
        dead = [
            f"{one_line(name)} {one_line(status)}" for name, status in trial.participants.items()
        ]
        if dead:
            lines.append(f"  participants: {', '.join(dead)}")
        if trial.failure is not None:
            lines.append(f"  hint: {HINTS[trial.failure]}")
        if trial.journal and trial.verdict is Verdict.FAILED:
            lines.append(f"  journal: {one_line(trial.journal)}")
    return lines


def _notes(run: Calibration, paint: Paint) -> list[str]:
    return [
        *_checks(run, paint),
        *_soak(run),
        *_smoke(run, paint),
        *_overhead(run),
        *_flops(run),
        *(f"{paint('warn', 'warning')}: {printable(text)}" for text in run.warnings),
    ]


def _checks(run: Calibration, paint: Paint) -> list[str]:
    passed: dict[str, list[int]] = {}
    lines = []
    for trial in run.trials:
        for check in trial.checks:
            name, detail = one_line(check.name), one_line(check.detail)
            if check.ok:
                passed.setdefault(name, []).append(trial.batch)
            elif check.ok is None:
                word = paint("warn", f"check {name} of batch {trial.batch} could not be run")
                lines.append(f"{word}: {detail or 'no reason was given'}")
            else:
                word = paint("bad", f"check {name} of batch {trial.batch}: no")
                lines.append(f"{word}{f': {detail}' if detail else ''}")
    good = "; ".join(
        f"{name} (batch {', '.join(map(str, batches))})" for name, batches in passed.items()
    )
    return [*([f"checks that hold: {good}"] if good else []), *lines]


def _soak(run: Calibration) -> list[str]:
    return [
        f"soak at batch {trial.batch}: {plural(len(trial.soak_live_bytes), 'cycle')}, "
        f"{format_bytes(trial.soak_live_bytes[0])} live after the first, "
        f"{format_bytes(trial.soak_live_bytes[-1])} after the last"
        for trial in run.trials
        if trial.soak_live_bytes
    ]


def _smoke(run: Calibration, paint: Paint) -> list[str]:
    return [
        f"{paint('warn', f'batch {trial.batch} is only a smoke test')}: it did not run "
        f"{', '.join(map(one_line, trial.missing_phases))}, and cannot be frozen"
        for trial in run.trials
        if trial.smoke and trial.verdict is Verdict.OK
    ]


def _overhead(run: Calibration) -> list[str]:
    return [
        f"tracking costs {100 * trial.tracking_overhead_fraction:+.1f} % CPU time "
        f"(batch {trial.batch})"
        for trial in run.trials
        if trial.tracking_overhead_fraction is not None
    ]


def _flops(run: Calibration) -> list[str]:
    flops = run.flops
    if flops.analytic_flop is None and flops.counted_flop is None:
        return [f"FLOPs: {one_line(flops.detail)}"] if flops.detail else []
    analytic, counted = _flop_words(flops.analytic_flop), _flop_words(flops.counted_flop)
    words = f"FLOPs of one sample's cycle: analytic {analytic}, counted {counted}"
    apart = flops.disagreement_fraction
    if apart is not None:
        words += f" ({100 * apart:+.1f} %)"
    if flops.mfu is not None:
        words += f"; estimated MFU {100 * flops.mfu:.1f} % of {one_line(flops.peak_name)}"
    lines = [words]
    if flops.detail:
        lines.append(f"  {one_line(flops.detail)}")
    return lines


def _flop_words(flop: float | None) -> str:
    if flop is None:
        return "unknown"
    for size, name in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP")):
        if flop >= size:
            return f"{flop / size:.2f} {name}"
    return f"{flop / 1e6:.2f} MFLOP"


def _places(run: Calibration, files: Sequence[str]) -> list[str]:
    lines = [f"folder: {one_line(run.folder)}"] if run.folder else []
    return [*lines, *(f"figure: {one_line(path)}" for path in files)]
