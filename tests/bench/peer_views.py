"""What nvitop, gpustat and our logger show of each GPU, in one form.

Not here: how they are started. Invariant: a cell that a program leaves out or fills with a word is
None here, and never 0.
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

FRESH_S = 2.5
"""The logger takes a sample a second."""
_MIB = {"B": 2.0**-20, "KiB": 2.0**-10, "MiB": 1.0, "GiB": 2.0**10, "TiB": 2.0**20}
_MEMORY = re.compile(r"([\d.]+)([KMGT]?i?B) / +([\d.]+)([KMGT]?i?B)")
_INDEX = re.compile(r"\s*(\d+)\s+(\S.*)")
_SLICE = re.compile(r"\s*(\d+):(\d+)\s")


@dataclass(kw_only=True)
class Shown:
    """One GPU as a program shows it: percent, MiB, W, and its words where something is amiss."""

    util_pct: float | None = None
    used_mib: float | None = None
    total_mib: float | None = None
    power_w: float | None = None
    words: str = ""
    slices: int = 0

    def __str__(self) -> str:
        parts = [f"`{self.words}`"] if self.words else []
        numbers = (self.util_pct, self.used_mib, self.total_mib, self.power_w)
        if all(number is None for number in numbers):
            parts.append("no numbers")
        else:
            memory = f"{_plain(self.used_mib)} of {_plain(self.total_mib)} MiB"
            parts.append(f"{_plain(self.util_pct)} %, {memory}, {_plain(self.power_w)} W")
        if self.slices:
            parts.append(f"{self.slices} slices")
        return "; ".join(parts)


def _plain(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}"


def read_nvitop(text: str) -> dict[int, Shown]:
    """The table of ``nvitop -1 --ascii``: two lines a GPU, one a slice; by index."""
    gpus: dict[int, Shown] = {}
    lines = [line for line in text.splitlines() if line.startswith("|") and line.count("|") == 4]
    for line, below in pairwise([*lines, ""]):
        cell = line.split("|")[1]
        if part := _SLICE.match(cell):
            gpus[int(part[1])].slices += 1
        elif (named := _INDEX.match(cell)) and below:
            gpus[int(named[1])] = _nvitop_gpu(named[2], below.split("|"))
    return gpus


def _nvitop_gpu(name: str, below: list[str]) -> Shown:
    power = re.search(r"(\d+)W /", below[1])
    util = re.match(r"\s*(\d+)%", below[3])
    memory = _MEMORY.search(below[2])
    words = name.removesuffix("N/A").strip() if name.startswith("ERROR") else ""
    return Shown(
        util_pct=float(util[1]) if util else None,
        used_mib=float(memory[1]) * _MIB[memory[2]] if memory else None,
        total_mib=float(memory[3]) * _MIB[memory[4]] if memory else None,
        power_w=float(power[1]) if power else None,
        words=words,
    )


def read_gpustat(text: str) -> dict[int, Shown]:
    """The JSON of ``gpustat --json``, by index; empty where it is none."""
    try:
        found = json.loads(text)["gpus"]
    except (ValueError, KeyError):
        return {}
    return {
        gpu["index"]: Shown(
            util_pct=gpu.get("utilization.gpu"),
            used_mib=gpu.get("memory.used"),
            total_mib=gpu.get("memory.total"),
            power_w=gpu.get("power.draw"),
            words=gpu["name"] if gpu["name"].startswith("((") else "",
        )
        for gpu in found
    }


def _seconds(row: dict[str, str]) -> float:
    return datetime.fromisoformat(row["timestamp"]).timestamp()


@dataclass(kw_only=True)
class Log:
    """What stands in the logger's files: rows in order, as dictionaries."""

    rows: list[dict[str, str]]

    @property
    def times(self) -> list[str]:
        """When samples were written, each once."""
        return list(dict.fromkeys(row["timestamp"] for row in self.rows))

    def gpus(self) -> dict[int, Shown]:
        """Each GPU that is still reported on, by index: its newest row of the last moments."""
        shown: dict[int, Shown] = {}
        last = max((_seconds(row) for row in self.rows), default=0.0)
        fresh = [row for row in self.rows if _seconds(row) > last - FRESH_S]
        for row in fresh:
            if row["kind"] == "gpu" and row["gpu_index"]:
                shown[int(row["gpu_index"])] = _logged(row)
        for index, gpu in shown.items():
            slices = (r for r in fresh if r["kind"] == "mig" and r["gpu_index"] == str(index))
            gpu.slices = len({row["mig_uuid"] for row in slices})
        return shown

    def others(self) -> list[str]:
        """What else it said, each once: host rows, heartbeats, events."""
        said: dict[str, list[str]] = {}
        for row in self.rows:
            if row["kind"] in ("host", "heartbeat", "event"):
                kinds = said.setdefault(f"`status={row['status']}` {row['detail']}".strip(), [])
                kinds += [row["kind"]] if row["kind"] not in kinds else []
        return [f"{' and '.join(kinds)} row {what}" for what, kinds in said.items()]

    def energy_fell(self, index: int) -> str:
        """Where a GPU's energy counter went back, from what to what in J; else empty."""
        mine = [row for row in self.rows if row["gpu_index"] == str(index) and row["energy_j"]]
        for one, other in pairwise([float(row["energy_j"]) for row in mine]):
            if other < one:
                return f"`energy_j` from {one:.0f} to {other:.0f}"
        return ""


def _logged(row: dict[str, str]) -> Shown:
    def number(name: str) -> float | None:
        return float(row[name]) if row[name] else None

    status = row["status"]
    words = [f"status={status}"] if status != "ok" else []
    # What the status says already is not said again for every cell.
    words += [one for one in row["missing"].split() if not one.endswith(f"={status}")]
    words += [f"mem_source={row['mem_source']}"] if row["mem_source"] == "v1" else []
    return Shown(
        util_pct=number("util_pct"),
        used_mib=number("mem_used_mib"),
        total_mib=number("mem_total_mib"),
        power_w=number("power_w"),
        words="; ".join(filter(None, [" ".join(words), row["detail"]])),
    )


def read_log(folder: Path) -> Log:
    """The logger's files in the order of their names; an unterminated last line is left out."""
    rows: list[dict[str, str]] = []
    for path in sorted(folder.glob("*.csv")):
        whole = path.read_text().rpartition("\n")[0]
        rows += csv.DictReader(whole.splitlines())
    return Log(rows=rows)
