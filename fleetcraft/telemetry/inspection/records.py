"""What an inspection of telemetry files found, as records with the arithmetic that they need.

Reads no file. Invariant: a mean is over the samples that have the value, and is absent without any.
"""

from __future__ import annotations

import msgspec
import numpy as np

from fleetcraft.gpu.states import ACTIVE_PCT
from fleetcraft.telemetry.energy import JOULES_PER_KWH
from fleetcraft.telemetry.inspection.steps import TimeOrder
from fleetcraft.telemetry.reading.cells import Floats
from fleetcraft.telemetry.reading.counts import RowCounts
from fleetcraft.telemetry.reading.reader import Chunk, SeriesId
from fleetcraft.telemetry.reading.sources import Source
from fleetcraft.telemetry.reading.times import SECOND_US


class Means(msgspec.Struct, kw_only=True):
    """Sums over samples, each over those that have the value.

    Attributes:
        util_sum, util_rows, active_rows: Percent; how many; how many at 5 percent and above.
        memory_sum, memory_rows, memory_peak: Fractions of used over total memory; the largest.
        power_sum, power_rows: Watts.
    """

    util_sum: float = 0.0
    util_rows: int = 0
    active_rows: int = 0
    memory_sum: float = 0.0
    memory_rows: int = 0
    memory_peak: float | None = None
    power_sum: float = 0.0
    power_rows: int = 0

    def take(self, chunk: Chunk) -> None:
        """Adds samples."""
        util = _there(chunk.values["util_pct"])
        memory = _there(chunk.values["mem_used_mib"] / chunk.values["mem_total_mib"])
        power = _there(chunk.values["power_w"])
        self.util_sum += float(util.sum())
        self.util_rows += len(util)
        self.active_rows += int((util >= ACTIVE_PCT).sum())
        self.memory_sum += float(memory.sum())
        self.memory_rows += len(memory)
        if len(memory):
            self.memory_peak = max(self.memory_peak or 0.0, float(memory.max()))
        self.power_sum += float(power.sum())
        self.power_rows += len(power)

    def add(self, other: Means) -> None:
        """Adds other sums."""
        for name in self.__struct_fields__:
            if name != "memory_peak":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.memory_peak is not None:
            self.memory_peak = max(self.memory_peak or 0.0, other.memory_peak)


class Energy(msgspec.Struct, kw_only=True):
    """Energy in joules over GPU time in seconds, by method; see `TimeOrder`."""

    counter_j: float = 0.0
    counter_s: float = 0.0
    counter_resets: int = 0
    trapezoid_j: float = 0.0
    trapezoid_s: float = 0.0
    power_j: float = 0.0
    power_s: float = 0.0

    def take(self, order: TimeOrder) -> None:
        """Adds one GPU's."""
        self.counter_j += order.counter_j
        self.counter_s += order.counter_us / SECOND_US
        self.counter_resets += order.counter_resets
        self.trapezoid_j += order.trapezoid_j
        self.trapezoid_s += order.trapezoid_us / SECOND_US
        self.power_j += order.power_j
        self.power_s += order.power_us / SECOND_US

    @property
    def kwh(self) -> float | None:
        """Kilowatt hours by counter, else by power; None where nothing could be integrated."""
        return (self.counter_j + self.trapezoid_j) / JOULES_PER_KWH if self.hours else None

    @property
    def hours(self) -> float:
        """GPU hours that the energy is of."""
        return (self.counter_s + self.trapezoid_s) / 3600


class Dedup(msgspec.Struct, kw_only=True):
    """Samples without those that were logged twice, in order of time; see `TimeOrder`."""

    rows: int = 0
    util_sum: float = 0.0
    util_rows: int = 0
    active_rows: int = 0

    def take(self, order: TimeOrder) -> None:
        """Adds one GPU's."""
        self.rows += order.kept
        self.util_sum += order.kept_util_sum
        self.util_rows += order.kept_with_util
        self.active_rows += order.kept_active


class FileReport(msgspec.Struct, kw_only=True):
    """One file.

    Attributes:
        source: Which.
        counts: Its lines.
        series: Whose samples it has.
        means: Over its samples.
        zoned_rows: Rows that name their zone, of any kind.
        first_us, last_us: Its earliest and latest sample; None without.
        gap_s: From which step on there is a gap.
        double_logged, back_steps, gaps, biggest_gap_us: See `FileOrder`, over its series.
        energy: None where its GPUs are in other files at the same time.
        bytes_read: Whole lines.
        shrank: Whether it became shorter while it was read.
    """

    source: Source
    counts: RowCounts
    series: list[SeriesId]
    means: Means
    gap_s: float
    zoned_rows: int = 0
    first_us: int | None = None
    last_us: int | None = None
    double_logged: int = 0
    back_steps: int = 0
    gaps: int = 0
    biggest_gap_us: int = 0
    energy: Energy | None = None
    bytes_read: int = 0
    shrank: bool = False

    @property
    def samples(self) -> int:
        """Rows of GPUs and slices."""
        return sum(self.counts.kinds.get(kind, 0) for kind in ("gpu", "mig"))

    @property
    def what(self) -> str:
        """``samples``, ``single_row``, ``header_only``, ``empty``, ``no_samples`` or ``no_rows``.

        ``no_samples`` has rows, but none of a GPU; ``no_rows`` has lines, but none that is a row.
        """
        counts = self.counts
        if counts.rows:
            single = "single_row" if counts.rows == 1 else "samples"
            return single if self.samples else "no_samples"
        if counts.headers:
            return "header_only"
        return "no_rows" if counts.lines > counts.blank else "empty"

    @property
    def zone(self) -> str:
        """``utc`` when every row names its zone, ``none``, ``mixed``, or empty without rows."""
        if not self.counts.rows:
            return ""
        if self.zoned_rows in (0, self.counts.rows):
            return "utc" if self.zoned_rows else "none"
        return "mixed"

    @property
    def gap_us(self) -> int:
        """From which step on there is a gap, in microseconds."""
        return round(self.gap_s * SECOND_US)

    @property
    def same_us(self) -> int:
        """Samples nearer than this are one that was logged twice: 1 s, or half an interval.

        Half an interval where the sidecar tells it and that is less; as windows count, too.
        """
        sidecar = self.source.sidecar
        if sidecar is None or sidecar.interval_s is None:
            return SECOND_US
        return min(SECOND_US, round(sidecar.interval_s * SECOND_US / 2))

    @property
    def unfinished(self) -> bool:
        """Whether its logger has not said that it stopped: it runs still, or it died."""
        return self.source.sidecar is not None and self.source.sidecar.ended_at is None


class Inspection(msgspec.Struct, kw_only=True):
    """All files of a place.

    Attributes:
        place: Which.
        files: Those that were read, in the order of their names.
        refused: The others, ``(path, reason)``.
        gpus: Different GPUs; a file that names none has one, if it has samples.
        slices: Different slices of GPUs.
        across_files: Samples too near after one of the same GPU in another file; see `TimeOrder`.
        dedup: Over all of them.
        energy: Over all of them.
        problems: What else went wrong.
    """

    place: str
    files: list[FileReport]
    refused: list[tuple[str, str]]
    gpus: int = 0
    slices: int = 0
    across_files: int = 0
    dedup: Dedup = msgspec.field(default_factory=Dedup)
    energy: Energy = msgspec.field(default_factory=Energy)
    problems: list[str] = msgspec.field(default_factory=list)

    @property
    def counts(self) -> RowCounts:
        """The lines of all files."""
        total = RowCounts()
        for file in self.files:
            total.add(file.counts)
        return total

    @property
    def means(self) -> Means:
        """Over the samples of all files."""
        total = Means()
        for file in self.files:
            total.add(file.means)
        return total


def _there(values: Floats) -> Floats:
    """The values that were measured."""
    there: Floats = values[~np.isnan(values)]
    return there
