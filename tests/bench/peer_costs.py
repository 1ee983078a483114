"""What a sample of 8 GPUs costs: our logger beside nvitop, gpustat and the bare binding on the rig.

Invariant: what is compared ran side by side in the same repetition, and ratios are taken there.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.measure import REPO, BenchError, clean_environment, spread
from tests.bench.peer_views import read_log
from tests.rig import Rig
from tests.rig.rig import Value

REPEATS = 7
SAMPLES = 200
FEW_SAMPLES = 10  # gpustat sleeps a tenth of a second a GPU
GPUS = 8
BUSY: dict[str, Value] = {
    "gpus": GPUS,
    **{f"gpu.{n}.util": 80 for n in range(GPUS)},
    **{f"gpu.{n}.mem_used_mib": 30_000 for n in range(GPUS)},
}

# Prints CPU and time of one sample, and the resident size after them.
_LOOP = """
import json, os, re, sys, time
samples = int(sys.argv[1])
{setup}
def rss_mib():
    with open("/proc/self/status") as file:
        return int(re.search(r"VmRSS:\\s+(\\d+)", file.read())[1]) / 1024
sample()
sample()
began_s, began_wall_s = time.process_time(), time.monotonic()
for _ in range(samples):
    sample()
cost_s = (time.process_time() - began_s) / samples
wall_s = (time.monotonic() - began_wall_s) / samples
print(json.dumps({{"sample_s": cost_s, "wall_s": wall_s, "rss_mib": rss_mib()}}), flush=True)
os._exit(0)
"""
_BARE = """
import pynvml as n
n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
def sample():
    for handle in handles:
        n.nvmlDeviceGetUtilizationRates(handle).gpu
        n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2).used
        n.nvmlDeviceGetPowerUsage(handle)
        n.nvmlDeviceGetTemperature(handle, 0)
"""
_NVITOP = """
from nvitop import Device
devices = Device.all()
def sample():
    for device in devices:
        device.as_snapshot()
"""
_GPUSTAT = """
from gpustat import GPUStatCollection
def sample():
    GPUStatCollection.new_query().jsonify()
"""
_OURS = """
from fleetcraft.gpu.sampling.session import Session
session = Session.open()
devices = session.inventory()
def sample():
    now_s = time.time()
    for device in devices:
        session.sample(device, now_s)
"""
_IMPORTS = {
    "bare": "import pynvml",
    "nvitop": "import nvitop",
    "gpustat": "import gpustat",
    "ours": "import fleetcraft.telemetry.logger",
}


@dataclass(frozen=True)
class _Program:
    name: str
    python: str
    setup: str
    what: str
    samples: int = SAMPLES


def measure(venv: Path, base: Path) -> str:
    """The costs as Markdown.

    Args:
        venv: The environment with nvitop and gpustat.
        base: A folder for files that are removed afterwards.
    """
    theirs = str(venv / "bin/python")
    rows = [
        ("bare", sys.executable, _BARE, "bare binding, 4 readings a GPU"),
        ("ours", sys.executable, _OURS, "fleetcraft, `Session.sample`"),
        ("nvitop", theirs, _NVITOP, "nvitop, `Device.as_snapshot`"),
        ("gpustat", theirs, _GPUSTAT, "gpustat, `new_query().jsonify()`", FEW_SAMPLES),
    ]
    programs = [_Program(*row) for row in rows]
    folder = base / "costs"
    folder.mkdir()
    with Rig(folder, settings=BUSY) as rig:
        env = rig.env(clean_environment() | {"HOME": str(folder)})
        env.pop("CUDA_VISIBLE_DEVICES", None)
        env["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        taken = _repeat(programs, env)
        calls = {one.name: _calls(one, rig, env) for one in programs}
        logs = [_run_logger(rig, folder / f"log-{number}", env) for number in range(3)]
    return "\n".join([*_sample_table(programs, taken, calls, logs), *_start_table(taken)])


def _repeat(programs: list[_Program], env: dict[str, str]) -> dict[str, dict[str, list[float]]]:
    """Everything once a repetition, every other time in reverse order."""
    taken: dict[str, dict[str, list[float]]] = {one.name: {} for one in programs}
    taken["pass"] = {"start_s": []}
    for turn in range(REPEATS + 1):
        for one in programs if turn % 2 == 0 else reversed(programs):
            found = _in_loop(one, env, one.samples)
            found["start_s"] = _start_s(one.python, _IMPORTS[one.name], env)
            if turn:  # the first one compiles the bytecode
                for key, value in found.items():
                    taken[one.name].setdefault(key, []).append(value)
        if turn:
            taken["pass"]["start_s"].append(_start_s(sys.executable, "pass", env))
    return taken


def _in_loop(one: _Program, env: dict[str, str], samples: int) -> dict[str, float]:
    text = _LOOP.format(setup=one.setup)
    done = subprocess.run(
        [one.python, "-c", text, str(samples)],
        cwd=REPO, env=env, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _start_s(python: str, text: str, env: dict[str, str]) -> float:
    """CPU of an interpreter that does only this."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, "-c", text], cwd=REPO, env=env, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _calls(one: _Program, rig: Rig, env: dict[str, str]) -> float:
    """Calls into the driver's library that one more sample makes."""
    counts = []
    for samples in (1, 6):
        rig.forget_calls()
        rig.record_calls()
        _in_loop(one, env, samples)
        counts.append(sum(rig.calls().values()))
        rig.unset("trace")
    return (counts[1] - counts[0]) / 5


def _run_logger(rig: Rig, folder: Path, env: dict[str, str]) -> dict[str, float]:
    """The whole logger as a process, looked at from outside between two of its samples."""
    argv = [sys.executable, "-m", "fleetcraft", "telemetry", "log", str(folder), "0.1"]
    process = subprocess.Popen(
        argv, cwd=REPO, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        first = _wait_for_samples(process, folder, 10)
        before_s = _threads_s(process.pid)
        last = _wait_for_samples(process, folder, first + 100)
        cost_s = (_threads_s(process.pid) - before_s) / (last - first)
        found = {"sample_s": cost_s, "rss_mib": _rss_mib(process.pid)}
        rig.forget_calls()
        rig.record_calls()
        first = _wait_for_samples(process, folder, last + 2)
        before = sum(rig.calls().values())
        last = _wait_for_samples(process, folder, first + 10)
        found["calls"] = (sum(rig.calls().values()) - before) / (last - first)
        rig.unset("trace")
        return found
    finally:
        process.terminate()
        process.wait(30)


def _wait_for_samples(process: subprocess.Popen[bytes], folder: Path, count: int) -> int:
    """Waits until so many are written, and says how many are; right after one."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s and process.poll() is None:
        time.sleep(0.02)
        if (written := len(read_log(folder).times)) >= count:
            return written
    raise BenchError(f"the logger wrote no {count} samples in a minute")


def _threads_s(pid: int) -> float:
    """CPU of its threads. Source: Linux, Documentation/scheduler/sched-stats.rst, in ns."""
    stats = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in stats) * 1e-9


def _rss_mib(pid: int) -> float:
    with open(f"/proc/{pid}/status") as file:
        found = [line.split() for line in file if line.startswith("VmRSS")]
    return int(found[0][1]) / 1024


_HOW = f"""\
## What a sample of {GPUS} GPUs costs

CPU of one sample, in one process with one session where the program's interface allows that
(gpustat begins and ends one for each), mean of {SAMPLES} samples ({FEW_SAMPLES} of gpustat);
medians of {REPEATS} interleaved repetitions, with the smallest and the largest. Ratios to the bare
binding are taken within a repetition. A real driver's calls cost more than the rig's, so their
number stands beside. The last row is the whole logger as it runs at ten samples a second, threads,
host readings, formatting and write included, seen from outside in three runs; its ratio is one of
medians."""


def _sample_table(
    programs: list[_Program],
    taken: dict[str, dict[str, list[float]]],
    calls: dict[str, float],
    logs: list[dict[str, float]],
) -> list[str]:
    bare = taken["bare"]["sample_s"]
    lines = [
        *(_HOW, "", "| | CPU a sample | ratio | takes | calls of the driver | resident size |"),
        "|---|---:|---:|---:|---:|---:|",
    ]
    for one in programs:
        mine = taken[one.name]
        over = [cost / floor for cost, floor in zip(mine["sample_s"], bare, strict=True)]
        lines.append(
            f"| {one.what} | {spread(mine['sample_s'], 'ms', 3, 1e3)} | {spread(over, '', 1)} "
            f"| {median(mine['wall_s']) * 1e3:.2f} ms "
            f"| {calls[one.name]:.0f} | {spread(mine['rss_mib'], 'MiB', 1)} |"
        )
    whole = [one["sample_s"] for one in logs]
    lines.append(
        f"| fleetcraft, the whole logger | {spread(whole, 'ms', 3, 1e3)} "
        f"| {median(whole) / median(bare):.1f} | | {median([one['calls'] for one in logs]):.0f} "
        f"| {spread([one['rss_mib'] for one in logs], 'MiB', 1)} |"
    )
    return [*lines, ""]


def _start_table(taken: dict[str, dict[str, list[float]]]) -> list[str]:
    lines = [
        *("## What the import costs", ""),
        "CPU of an interpreter that imports this and ends, bytecode kept; in the same repetitions.",
        *("", "| | CPU | over `pass` |", "|---|---:|---:|"),
    ]
    idle = taken["pass"]["start_s"]
    lines.append(f"| `pass` | {spread(idle, 'ms', 0, 1e3)} | |")
    for name, text in _IMPORTS.items():
        mine = taken[name]["start_s"]
        over = [cost - floor for cost, floor in zip(mine, idle, strict=True)]
        lines.append(f"| `{text}` | {spread(mine, 'ms', 0, 1e3)} | {spread(over, 'ms', 0, 1e3)} |")
    return lines
