"""The logger on the driver rig: CPU of a sample, import, memory, beside the bare binding.

Seen from outside, in its real process, between two of its samples. Invariant: what was started here
is ended here, and its start is in no figure of a sample.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec

from fleetcraft.telemetry.logger.settings import LoggerSettings
from tests.bench.drive_telemetry import memory_mib
from tests.bench.measure import (
    REPO,
    Bench,
    BenchError,
    Cost,
    Row,
    Section,
    clean_environment,
    interleaved,
    median,
    process_cpu_s,
    ratios,
    spread,
    timed,
)
from tests.rig import Rig
from tests.rig.build import NoCompiler
from tests.rig.rig import Value

DRIVE_TELEMETRY = str(REPO / "tests/bench/drive_telemetry.py")
GPUS = 8
FEW_AND_MANY = (1, 16)
FAST_S = 0.1
USUAL_S = 30.0
WARM_SAMPLES = 10
FEW_SAMPLES = 1_000
GROWTH_LIMIT_MIB = 0.5  # allocator noise; a leak of 30 bytes a sample would show at 20,000
SAMPLE_GOAL_S = 0.3e-3
MEMORY_GOAL_MIB = 30
_AT_ONCE = 3  # loggers that are waited for together at the usual pace
_BUFFER_HZ = 6


def busy_gpus(count: int) -> dict[str, Value]:
    """Lines of the rig for so many GPUs at work."""
    lines: dict[str, Value] = {"gpus": count}
    for gpu in range(count):
        lines[f"gpu.{gpu}.util"] = 80
        lines[f"gpu.{gpu}.mem_used_mib"] = 30_000
        lines[f"gpu.{gpu}.samples_hz"] = _BUFFER_HZ
        lines[f"gpu.{gpu}.energy_grows"] = 1
    return lines


def rig_environment(rig: Rig) -> dict[str, str]:
    """A clean environment in which the rig is the driver."""
    env = rig.env(clean_environment())
    env.pop("CUDA_VISIBLE_DEVICES", None)
    return env


def measure(bench: Bench) -> Section:
    """Samples, imports and memory."""
    section = Section(
        name="logger",
        title="one node's telemetry logger",
        how=f"The driver is the test rig, whose own share of a call is below 0.1 us. *Whole "
        f"logger*: `python -m fleetcraft.telemetry.logger` at a sample every {FAST_S} s, threads, "
        "host readings and waits included: its CPU between two samples over their number, so that "
        "its start drops out. Beside: a bare Python loop at the same pace that makes the same "
        "calls through the functions of the binding and writes as many bytes. *In a loop* and "
        "*with pauses*: that loop and the logger's own code for the same in turns, on one thread "
        "of one process; without pauses caches stay warm.",
    )
    try:
        _measure(bench, section)
    except NoCompiler as error:
        section.skipped.append(str(error))
    return section


def _measure(bench: Bench, section: Section) -> None:
    found: dict[int, list[dict[str, float]]] = {}
    # Its bytecode is kept from here on: a process that compiles the binding is twice as large.
    timed([sys.executable, "-c", "import pynvml, fleetcraft.telemetry.logger.loop"])
    for gpus in (GPUS, *FEW_AND_MANY):
        bench.say(f"  whole logger, {gpus} GPUs")
        with Rig(bench.new_folder("rig"), settings=busy_gpus(gpus)) as rig:
            runs = bench.pick(5 if gpus == GPUS else 2, 2)
            found[gpus], bare = interleaved(
                runs, partial(_run_logger, bench, rig, gpus), partial(_run_bare, bench, rig)
            )
            section.rows.append(_whole(gpus, found[gpus], bare))
            if gpus == GPUS:
                memory = [*_memory(found[gpus], bare), _growth(bench, rig)]
                section.rows += [*_parts(bench, rig), _usual(bench, rig)]
    section.rows += [*_imports(bench), *memory]
    cost_us = {
        gpus: 1e6 * median([one["sample_s"] for one in runs]) for gpus, runs in found.items()
    }
    few, many = FEW_AND_MANY
    each_us = (cost_us[many] - cost_us[few]) / (many - few)
    section.growth = (
        f"linear in the GPUs: {each_us:.0f} us of CPU each, beyond {cost_us[few] - each_us:.0f} us "
        "for a sample as such (wake-ups, the driver's thread, the host, the write). Memory with "
        "the number of samples: see the last row."
    )


# ------------------------------------------------------------------------------- whole processes


def _run_logger(bench: Bench, rig: Rig, gpus: int) -> dict[str, float]:
    """CPU of a sample, and memory, of one logger at the fast pace."""
    with _Logger(bench, rig, FAST_S, gpus) as logger:
        first, before_s = logger.wait_for(WARM_SAMPLES)
        last, after_s = logger.wait_for(first + _samples(bench))
        return {"sample_s": (after_s - before_s) / (last - first), **memory_mib(logger.pid)}


def _samples(bench: Bench) -> int:
    return bench.pick(100, 40)


class _Logger:
    """A logger in its own process, ended at the end of the block."""

    def __init__(self, bench: Bench, rig: Rig, interval_s: float, gpus: int) -> None:
        self._folder = bench.new_folder("log")
        self._gpus = gpus
        settings = LoggerSettings(
            folder=str(self._folder), interval_s=interval_s, node="n1", job=str(os.getpid())
        )
        words = msgspec.json.encode(settings).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fleetcraft.telemetry.logger", words],
            cwd=REPO, env=rig_environment(rig), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.pid = self._process.pid

    def __enter__(self) -> _Logger:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_for(self, samples: int, limit_s: float = 60.0) -> tuple[int, float]:
        """Waits for so many; how many are written then, and the CPU seconds up to then."""
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s and self._process.poll() is None:
            if (written := self._written()) >= samples:
                time.sleep(0.01)  # until it waits for its next tick
                return written, process_cpu_s(self.pid)
            time.sleep(0.01)
        raise BenchError(f"the logger wrote no {samples} samples in {limit_s:.0f} s")

    def _written(self) -> int:
        data = b"".join(path.read_bytes() for path in self._folder.glob("*.csv"))
        return (data.count(b"\n") - 1) // self._gpus


def _run_bare(bench: Bench, rig: Rig) -> dict[str, float]:
    words = ["bare", str(bench.new_folder("bare")), str(_samples(bench)), str(FAST_S)]
    found: dict[str, float] = told(words, rig_environment(rig))
    return found


def told(words: list[str], env: dict[str, str]) -> Any:
    """What `drive_telemetry` says."""
    done = subprocess.run(
        [sys.executable, DRIVE_TELEMETRY, *words],
        cwd=REPO, env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"{' '.join(words)[:200]}: {done.stderr[-500:]}")
    return json.loads(done.stdout)


def _whole(gpus: int, ours: list[dict[str, float]], bare: list[dict[str, float]]) -> Row:
    mine, floor = ([one["sample_s"] for one in side] for side in (ours, bare))
    return Row(
        what=f"whole logger, {gpus} GPU{'s' if gpus > 1 else ''}, CPU a sample",
        measured=spread(mine, "ms", 3, 1e3),
        beside=spread(floor, "ms", 3, 1e3),
        ratio=spread(ratios(mine, floor)),
        samples={"logger": ours, "bare": bare},
    )


def _memory(ours: list[dict[str, float]], bare: list[dict[str, float]]) -> list[Row]:
    rows = []
    for key, name in (("rss_mib", "resident size"), ("private_mib", "of it nobody else's")):
        mine, floor = ([one[key] for one in side] for side in (ours, bare))
        goal = key == "rss_mib"
        rows.append(
            Row(
                what=f"memory of the whole logger, {GPUS} GPUs: {name}",
                measured=spread(mine, "MiB", 1),
                beside=spread(floor, "MiB", 1),
                ratio=spread(ratios(mine, floor)),
                goal=f"<= {MEMORY_GOAL_MIB} MiB" if goal else "",
                met=median(mine) <= MEMORY_GOAL_MIB if goal else None,
            )
        )
    return rows


def _growth(bench: Bench, rig: Rig) -> Row:
    few, most = FEW_SAMPLES, bench.pick(20_000, 5_000)
    words = ["many", str(bench.new_folder("many")), str(few), str(most)]
    first, last = told(words, rig_environment(rig))["rss_mib"]
    return Row(
        what=f"in a loop, {GPUS} GPUs: resident size after {most:,} samples",
        measured=f"{last:.2f} MiB",
        beside=f"{first:.2f} MiB after {few:,}",
        ratio=f"{last - first:+.2f} MiB",
        goal=f"<= +{GROWTH_LIMIT_MIB} MiB",
        met=last - first <= GROWTH_LIMIT_MIB,
    )


# ------------------------------------------------------------------------------------ in a loop


def _parts(bench: Bench, rig: Rig) -> list[Row]:
    bench.say("  in a loop")
    env = rig_environment(rig)

    def once(samples: int, pause_s: float) -> Any:
        return told(["parts", str(bench.new_folder("loop")), str(samples), str(pause_s)], env)

    few = bench.pick(50, 20)
    taken, paced = interleaved(
        bench.pick(7, 3), lambda: once(bench.pick(300, 100), 0.0), lambda: once(few, FAST_S)
    )
    return [
        _binding_and_write(f"in a loop, {GPUS} GPUs", taken),
        _part("of that the driver's calls and what becomes of them", [o["binding"] for o in taken]),
        _part("of that rows and write", [one["write"] for one in taken]),
        _part("in a loop: host readings", [one["host"] for one in taken]),
        _part("in a loop: emptying the driver's buffers", [one["drain"] for one in taken]),
        _binding_and_write(f"with pauses of {FAST_S} s, {GPUS} GPUs", paced),
        _part(f"with pauses of {FAST_S} s: host readings", [one["host"] for one in paced]),
    ]


def _binding_and_write(name: str, taken: list[dict[str, float]]) -> Row:
    both = [one["binding"] + one["write"] for one in taken]
    row = _part(f"{name}: binding and write, CPU a sample", both, [one["bare"] for one in taken])
    row.goal = f"<= {SAMPLE_GOAL_S * 1e3:g} ms"
    row.met = median(both) <= SAMPLE_GOAL_S
    return row


def _part(what: str, mine: list[float], floor: list[float] | None = None) -> Row:
    return Row(
        what=what,
        measured=spread(mine, "ms", 3, 1e3),
        beside=spread(floor, "ms", 3, 1e3) if floor else "",
        ratio=spread(ratios(mine, floor)) if floor else "",
        samples={"seconds": mine},
    )


def _usual(bench: Bench, rig: Rig) -> Row:
    """At the pace at which loggers run, when caches are cold and the driver's buffer is full."""
    count = bench.pick(2, 1)
    bench.say(f"  every {USUAL_S:g} s: {count * USUAL_S:.0f} s and more")
    costs = []
    with ExitStack() as stack:
        loggers = [stack.enter_context(_Logger(bench, rig, USUAL_S, GPUS)) for _ in range(_AT_ONCE)]
        began = [logger.wait_for(2, USUAL_S + 30) for logger in loggers]
        for logger, (first, before_s) in zip(loggers, began, strict=True):
            last, after_s = logger.wait_for(first + count, (count + 1) * USUAL_S)
            costs.append((after_s - before_s) / (last - first))
    return Row(
        what=f"whole logger, {GPUS} GPUs, every {USUAL_S:g} s: CPU a sample, with the "
        f"{_BUFFER_HZ * USUAL_S:.0f} samples a GPU that the driver's buffer has by then",
        measured=spread(costs, "ms", 3, 1e3),
        beside=f"{median(costs) / USUAL_S * 100:.4f} % of a core",
        samples={"seconds": costs},
    )


# -------------------------------------------------------------------------------------- imports


def _imports(bench: Bench) -> list[Row]:
    bench.say("  imports")
    texts = ("import pynvml", "import fleetcraft.telemetry.logger.loop", "pass")

    def starter(text: str) -> Callable[[], Cost]:
        return lambda: timed([sys.executable, "-c", text])

    starts = [starter(text) for text in texts]
    for start in starts:
        start()
    results = interleaved(bench.pick(21, 7), *starts)
    binding, ours, idle = ([cost.cpu_s for cost in costs] for costs in results)
    return [
        Row(
            what="`import fleetcraft.telemetry.logger.loop`, CPU of the interpreter",
            measured=spread(ours, "ms", 1, 1e3),
            beside=f"{spread(binding, 'ms', 1, 1e3)} with `import pynvml` alone",
            ratio=spread(ratios(ours, binding)),
            samples={"seconds": ours, "pynvml": binding, "pass": idle},
        ),
        Row(
            what="`python -c pass`",
            measured=spread(idle, "ms", 1, 1e3),
            beside=spread(binding, "ms", 1, 1e3),
            ratio=spread(ratios(idle, binding)),
        ),
    ]
