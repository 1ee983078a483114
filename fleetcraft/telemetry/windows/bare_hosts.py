"""What is known of a host in a window in which no GPU of it was seen: memory, load, and why.

Reads rows of hosts and heartbeats alone, which are no samples of a GPU and enter no figure of one.
Invariant: a host with a row of a GPU in the window is never here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from fleetcraft.errors import DataError
from fleetcraft.gpu.status import Status
from fleetcraft.telemetry.columns import RowKind
from fleetcraft.telemetry.intervals import DEFAULT_INTERVAL_S, SAME_SAMPLE_S
from fleetcraft.telemetry.reading.reader import Chunk, FileReader
from fleetcraft.telemetry.reading.sources import Source
from fleetcraft.telemetry.windows.series import SourceFacts
from fleetcraft.telemetry.windows.span import Floats, Window, interval_of, iso, kept_rows
from fleetcraft.telemetry.windows.work import Work

KINDS = (RowKind.HOST.value, RowKind.HEARTBEAT.value)
COLUMNS = ("host_mem_used_mib", "host_mem_total_mib", "cgroup_mem_mib", "host_load")
_WHY = {
    Status.OK.value: "the driver lists none",
    Status.NO_NVML.value: "no NVML",
    Status.TIMEOUT.value: "the driver does not answer",
}


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and maximum over the samples that have a value."""

    mean: float
    max: float


class BareHost(msgspec.Struct, frozen=True, kw_only=True):
    """One host without a row of a GPU.

    Attributes:
        samples: Its rows, each once.
        expected_samples: Window over interval.
        statuses: Rows by what they say of the driver.
        memory_used_mib: Of the host; None where no row has it.
        memory_total_mib: Of the host.
        job_memory_mib: What is charged to the job's control group.
        load: Mean number of threads that run or wait for a disk, over a minute.
    """

    host: str
    samples: int
    expected_samples: float
    coverage_fraction: float
    interval_s: float
    statuses: dict[str, int]
    memory_used_mib: Level | None = None
    memory_total_mib: float | None = None
    job_memory_mib: Level | None = None
    load: Level | None = None


@dataclass(kw_only=True)
class BareHosts:
    """Hosts of a window without a row of a GPU, and how far their rows go.

    Attributes:
        newest_s: The time of the newest row of such a host in all files; None if there is none.
    """

    hosts: list[BareHost] = field(default_factory=list)
    newest_s: float | None = None

    @property
    def newest(self) -> str:
        """The same as text, empty if there is none."""
        return "" if self.newest_s is None else iso(self.newest_s, zoned=True)

    def read(
        self,
        host: str,
        sources: Iterable[Source],
        facts: Sequence[SourceFacts],
        window: Window,
        *,
        folder: str,
        interval_s: float | None,
    ) -> None:
        """Reads the files of one host once more, those that have such rows.

        Args:
            host: The node.
            sources: Its files.
            facts: What was found in them.
            window: Of which rows are taken.
            folder: What paths of facts are relative to.
            interval_s: Between samples, for files that do not say.
        """
        known = {one.path: one for one in facts}
        parts: list[tuple[Floats, dict[str, Floats], list[str]]] = []
        said: list[float] = []
        for source in sources:
            one = known.get(os.path.relpath(source.path, folder))
            if one is None or not any(one.kinds.get(kind) for kind in KINDS):
                continue
            reader = FileReader(
                source, columns=COLUMNS, with_status=True, kinds=KINDS,
                prefix_bytes=one.prefix_bytes,
            )  # fmt: skip
            found = list(self._rows(reader, window))
            parts += found
            said += [one.interval_s] if found and one.interval_s is not None else []
        if parts:
            self.hosts.append(_bare(host, parts, window, max(said, default=interval_s)))

    def _rows(
        self, reader: FileReader, window: Window
    ) -> Iterable[tuple[Floats, dict[str, Floats], list[str]]]:
        try:
            for chunk in reader.chunks():
                self.newest_s = max(self.newest_s or 0.0, float(chunk.t_s.max()))
                start_s, end_s = window.bounds_s(zoned=reader.zoned)
                inside = np.flatnonzero((chunk.t_s > start_s) & (chunk.t_s <= end_s))
                if len(inside):
                    values = {name: chunk.values[name][inside] for name in COLUMNS}
                    yield chunk.t_s[inside], values, _words(chunk, inside.tolist())
        except DataError:
            return  # it was there a moment ago, and is named where it was read first


def _words(chunk: Chunk, inside: list[int]) -> list[str]:
    status = chunk.status
    return [""] * len(inside) if status is None else [str(status[at]) for at in inside]


def _bare(
    host: str,
    parts: Sequence[tuple[Floats, dict[str, Floats], list[str]]],
    window: Window,
    interval_s: float | None,
) -> BareHost:
    t_s = np.concatenate([part[0] for part in parts])
    order = np.argsort(t_s, kind="stable")
    t_s = t_s[order]
    interval_s = interval_s or interval_of(t_s) or DEFAULT_INTERVAL_S
    kept = kept_rows(t_s, min(SAME_SAMPLE_S, interval_s / 2))
    values = {
        name: np.concatenate([part[1][name] for part in parts])[order][kept] for name in COLUMNS
    }
    words = [word for part in parts for word in part[2]]
    used, total, job, load = (values[name] for name in COLUMNS)
    expected = window.seconds / interval_s
    whole = _level(total)
    return BareHost(
        host=host,
        samples=len(kept),
        expected_samples=expected,
        coverage_fraction=min(1.0, len(kept) / expected),
        interval_s=interval_s,
        statuses=dict(sorted(Counter(words[order[at]] or "ok" for at in kept.tolist()).items())),
        memory_used_mib=_level(used),
        memory_total_mib=whole.max if whole else None,
        job_memory_mib=_level(job),
        load=_level(load),
    )


def _level(values: Floats) -> Level | None:
    measured = values[~np.isnan(values)]
    return Level(mean=float(measured.mean()), max=float(measured.max())) if len(measured) else None


def why(statuses: Iterable[str]) -> str:
    """Why there is no GPU, in words."""
    return ", ".join(dict.fromkeys(_WHY.get(one, one.replace("_", " ")) for one in statuses))


def sentence_without_gpus(hosts: Sequence[BareHost], work: Work) -> str:
    """Such as "no GPU was seen on 1 host (no NVML); both spools drained"."""
    if not hosts:
        return f"no row of a GPU; {work.words}"
    met = Counter(status for host in hosts for status in host.statuses)
    reasons = why(status for status, _ in sorted(met.items(), key=lambda one: (-one[1], one[0])))
    plural = "" if len(hosts) == 1 else "s"
    return f"no GPU was seen on {len(hosts)} host{plural} ({reasons}); {work.words}"
