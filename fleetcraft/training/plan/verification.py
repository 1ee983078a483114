"""When a new epoch counts as healthy, and what it costs against the one before.

Pure: observations in, a verdict out. Invariant: what was not measured is said to be so; a quality
effect never is, since nothing here measures it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.records import Knob, Rung, RungKind
from fleetcraft.units import format_bytes, format_seconds

PLATEAU_FRACTION = 0.05
"""A trend across the samples beyond this share of their median is no plateau yet. The second seed
rose from 13.8 to 16.4 thousand tokens a second within a few minutes and was called recovered."""
LEAST_STEPS = 2
"""An optimizer has its state only after the first step, and the second is the first that must fit
beside it. Source: the first seed, where a run completed its first update and died in the next."""
_LEAST_SAMPLES = 4
_MOST_SAMPLES = 64


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """How fast, with its spread over the samples.

    Attributes:
        median: The middle one.
        low: A tenth of the samples lies below.
        high: A tenth lies above.
        samples: How many.
        unit: ``tokens/s`` or ``steps/s``.
    """

    median: float
    low: float
    high: float
    samples: int
    unit: str

    def text(self) -> str:
        """``16.4k tokens/s (15.9k to 16.8k, 12 samples)``."""
        spread = f"{_short(self.low)} to {_short(self.high)}, {self.samples} samples"
        return f"{_short(self.median)} {self.unit} ({spread})"


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """It is not verified yet: what is missing first."""

    why: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """It is: what was seen.

    Attributes:
        why: One sentence.
        step: The step at which it was.
        steps: Steps completed in this epoch.
        saved_step: The checkpoint that was committed in it, when one was asked for.
        throughput: On the plateau.
        memory_bytes: Peak device memory by rank, as far as told.
    """

    why: str
    step: int
    steps: int
    saved_step: int | None = None
    throughput: Throughput | None = None
    memory_bytes: dict[int, int] = {}


class Verification:
    """Follows one epoch from its first step until it is verified.

    Needs, in this order: the end of the warm-up; ``verify_steps`` steps, at least `LEAST_STEPS`; a
    committed checkpoint of this epoch if the run declares ``verify_save``; and a plateau of the
    throughput, of which samples count only after the warm-up.

    Args:
        plan: What the run declares.
        began_s: When the epoch began, on the clock of ``now_s``.
        first_step: The step that it resumed from; taken from the first observation if None.
    """

    def __init__(self, plan: RunPlan, *, began_s: float, first_step: int | None = None) -> None:
        self._plan = plan
        self._warm_at_s = began_s + plan.warmup_s
        self._first = first_step
        self._last: tuple[int, float] | None = None
        self._steps = 0
        self._samples: dict[str, deque[tuple[float, float]]] = {}
        self._memory: dict[int, int] = {}

    def observe(
        self,
        now_s: float,
        *,
        step: int | None,
        tokens_per_s: float | None = None,
        saved_step: int | None = None,
        memory_bytes: Mapping[int, int | None] | None = None,
        in_phase: bool = False,
    ) -> Verified | Pending:
        """Takes one look.

        Args:
            now_s: The observer's clock.
            step: The run's last completed step; None before the first.
            tokens_per_s: Throughput as measured; None takes the time between steps.
            saved_step: Step of the newest committed checkpoint of this epoch; None without one.
            memory_bytes: Device memory by rank, as far as told.
            in_phase: Whether the run is in a declared phase: its time is no step's.
        """
        for rank, used in (memory_bytes or {}).items():
            if used is not None:
                self._memory[rank] = max(used, self._memory.get(rank, 0))
        self._take(now_s, step, tokens_per_s, in_phase)
        missing = self._missing(now_s, saved_step)
        if missing:
            return Pending(why=missing)
        assert self._last is not None
        return Verified(
            why=f"{self._steps} steps since the start, and throughput is level",
            step=self._last[0],
            steps=self._steps,
            saved_step=saved_step,
            throughput=self.throughput(),
            memory_bytes=dict(self._memory),
        )

    def throughput(self) -> Throughput | None:
        """What was measured since the warm-up; tokens where they were told, else steps."""
        for unit in ("tokens/s", "steps/s"):
            values = [value for _, value in self._samples.get(unit, ())]
            if values:
                return spread_of(values, unit)
        return None

    def _take(self, now_s: float, step: int | None, rate: float | None, in_phase: bool) -> None:
        if step is None:
            return
        if self._first is None:
            self._first = step
        if self._last is None or step < self._last[0]:  # it went back to a checkpoint
            self._first = min(self._first, step)
            self._last = (step, now_s)
        self._steps = step - self._first
        before, at_s = self._last
        if step == before:
            if in_phase:
                self._last = (step, now_s)
            return
        self._last = (step, now_s)
        if at_s < self._warm_at_s or in_phase or now_s <= at_s:
            return
        self._sample("steps/s", now_s, (step - before) / (now_s - at_s))
        if rate is not None and math.isfinite(rate):
            self._sample("tokens/s", now_s, rate)

    def _sample(self, unit: str, now_s: float, value: float) -> None:
        kept = self._samples.setdefault(unit, deque(maxlen=_MOST_SAMPLES))
        kept.append((now_s, value))

    def _missing(self, now_s: float, saved_step: int | None) -> str:
        if now_s < self._warm_at_s:
            return f"warming up for another {format_seconds(self._warm_at_s - now_s)}"
        steps = max(self._plan.verify_steps, LEAST_STEPS)
        if self._last is None or self._steps < steps:
            return f"{self._steps} of {steps} steps since the start"
        if self._plan.verify_save and (saved_step is None or saved_step <= (self._first or 0)):
            return "no checkpoint was committed since the start"
        return self._no_plateau()

    def _no_plateau(self) -> str:
        measured = self._samples.get("tokens/s") or self._samples.get("steps/s") or ()
        wanted = max(_LEAST_SAMPLES, self._plan.verify_steps)
        if len(measured) < wanted:
            return f"throughput was measured {len(measured)} of {wanted} times since the warm-up"
        # Twice as many where they are there: over few steps a slow rise is hardly any.
        drift = drift_fraction(list(measured)[-2 * wanted :])
        if drift is None or abs(drift) <= PLATEAU_FRACTION:
            return ""
        return f"throughput is still {'rising' if drift > 0 else 'falling'} ({drift:+.0%})"


def drift_fraction(samples: Sequence[tuple[float, float]]) -> float | None:
    """By which share of their median samples drift from the first to the last; None: no trend.

    The slope is the median of those of all pairs (Theil and Sen), so one odd step moves it little.
    A drift that is no larger than what the samples scatter around it is no trend.

    Args:
        samples: Time in seconds and value.
    """
    slopes = [
        (later - value) / (then_s - at_s)
        for i, (at_s, value) in enumerate(samples)
        for then_s, later in samples[i + 1 :]
        if then_s > at_s
    ]
    middle = median(value for _, value in samples) if samples else 0.0
    if not slopes or middle <= 0:
        return None
    slope = median(slopes)
    begin_s = samples[0][0]
    drift = slope * (samples[-1][0] - begin_s)
    rest = [value - slope * (at_s - begin_s) for at_s, value in samples]
    center = median(rest)
    scatter = 2 * median(abs(value - center) for value in rest)
    return None if abs(drift) <= scatter else drift / middle


def spread_of(values: Sequence[float], unit: str) -> Throughput:
    """The middle and the tenths of some measurements, of which there is at least one."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return Throughput(
        median=median(ordered),
        low=ordered[math.floor(0.1 * last)],
        high=ordered[math.ceil(0.9 * last)],
        samples=len(ordered),
        unit=unit,
    )


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch beside the healthy one before it.

    Attributes:
        epoch: The new epoch's number.
        against: The number of the healthy one before; None when there was none.
        rung: What was changed.
        knobs: Every knob with its value now.
        before: Throughput of the one before.
        after: Throughput now.
        memory_before_bytes: Its peak device memory, of the fullest rank.
        memory_after_bytes: That now.
        memory_bytes: What a device has; None when it is not known.
        quality_effect: Always said, so that no reader takes silence for "none".
    """

    epoch: int
    rung: Rung
    against: int | None = None
    knobs: tuple[Knob, ...] = ()
    before: Throughput | None = None
    after: Throughput | None = None
    memory_before_bytes: int | None = None
    memory_after_bytes: int | None = None
    memory_bytes: int | None = None
    quality_effect: str = "not measured"

    @property
    def confounded(self) -> bool:
        """Whether more than one thing was changed."""
        return self.rung.confounded

    @property
    def throughput_ratio(self) -> float | None:
        """Throughput after over before; None unless both were measured in the same unit."""
        if self.before is None or self.after is None or self.before.median <= 0:
            return None
        if self.before.unit != self.after.unit:
            return None
        return self.after.median / self.before.median

    @property
    def headroom_bytes(self) -> int | None:
        """What the fullest device has left now."""
        if self.memory_bytes is None or self.memory_after_bytes is None:
            return None
        return self.memory_bytes - self.memory_after_bytes

    def text(self) -> str:
        """The report for people, some lines."""
        lines = [f"epoch {self.epoch}: {describe_rung(self.rung)}"]
        if self.against is not None:
            lines[0] += f", against epoch {self.against}"
        lines += [
            f"throughput before: {self.before.text() if self.before else 'not measured'}",
            f"throughput after:  {self.after.text() if self.after else 'not measured'}"
            + (f", {self.throughput_ratio - 1:+.0%}" if self.throughput_ratio else ""),
            f"memory: {self._memory_text()}",
        ]
        lines += [f"knob {knob.name}: {knob.value} (floor {knob.floor})" for knob in self.knobs]
        lines.append(f"quality effect: {self.quality_effect}")
        if self.confounded:
            lines.append("confounded: two things were changed, so neither is shown to be the cure")
        return "\n".join(lines)

    def _memory_text(self) -> str:
        if self.memory_after_bytes is None:
            return "not measured"
        before = format_bytes(self.memory_before_bytes) or "not measured"
        room = format_bytes(self.headroom_bytes) or "not known"
        return f"peak {before} before, {format_bytes(self.memory_after_bytes)} now; headroom {room}"


def describe_rung(rung: Rung) -> str:
    """A rung in a few words: ``max_anchors 1024 -> 768``."""
    knob = f"{rung.knob} {rung.before} -> {rung.after}"
    return {
        RungKind.FIRST: "as declared",
        RungKind.UNCHANGED: "unchanged",
        RungKind.EXPANDABLE_SEGMENTS: "expandable_segments on",
        RungKind.KNOB: knob,
        RungKind.COMBINED: f"expandable_segments on and {knob}, together as declared",
    }[rung.kind]


def _short(value: float) -> str:
    return f"{value / 1000:.1f}k" if abs(value) >= 1000 else f"{value:.3g}"
