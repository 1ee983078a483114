"""What the numbers were measured on: hardware, kernel, file system, versions, and the load.

Invariant: what cannot be found out is said to be unknown.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.bench.measure import REPO

_LIBRARIES = ("click", "msgspec", "numpy", "pandas", "matplotlib", "nvidia-ml-py")


def describe(folder: Path, command: str) -> dict[str, str]:
    """Facts in the order in which they are printed.

    Args:
        folder: Where the benchmarks keep their files.
        command: The command line of this run.
    """
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": f"`{command}`",
        "CPU": f"{len(os.sched_getaffinity(0))} cores, {_cpu_model()}",
        "memory": _memory(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "file system": _file_system(folder),
        "making an empty file": _creation(folder),
        "load when it began": load(),
        "fleetcraft": _commit(),
        "Python": f"{platform.python_version()}, {platform.python_compiler()}; {_speed()}",
        "libraries": ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES),
        "programs": "; ".join(_first_line(name) for name in ("bash", "gcc", "strace")),
    }


def load() -> str:
    """How busy the machine is."""
    return "{:.2f} {:.2f} {:.2f} (1, 5, 15 min)".format(*os.getloadavg())


def _cpu_model() -> str:
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return f"unknown {platform.machine()}"


def _memory() -> str:
    with open("/proc/meminfo") as file:
        kib = int(file.readline().split()[1])
    return f"{kib / 1024**2:.1f} GiB"


def _file_system(folder: Path) -> str:
    best = ("", "unknown", "")
    with open("/proc/mounts") as file:
        for line in file:
            _, mount, kind, options, *_ = line.split()
            below = mount == "/" or f"{folder}/".startswith(f"{mount}/")
            if below and len(mount) >= len(best[0]):
                best = (mount, kind, options)
    return f"{best[1]} ({best[2]})"


def _creation(folder: Path) -> str:
    """Tells a tired disk: ext4 avoids inodes deleted within minutes, one by one."""
    times = []
    for number in range(500):
        started = time.perf_counter()
        os.close(os.open(folder / f"probe-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        times.append((time.perf_counter() - started) * 1e6)
    middle = statistics.median(times)
    warning = "; SLOW: were many files deleted on it a few minutes ago?" if middle > 60 else ""
    return f"{middle:.0f} us (median of {len(times)}){warning}"


def _speed() -> str:
    """Tells interpreters built without optimizations, which no build option says reliably."""
    best = 1.0
    for _ in range(40):
        started = time.thread_time()
        kept = {}
        for number in range(20_000):
            kept[number & 63] = (number, str(number))
        best = min(best, time.thread_time() - started)
    return f"a fixed loop of 20,000 steps takes it {best * 1000:.1f} ms"


def _commit() -> str:
    def git(*words: str) -> str:
        argv = ["git", *words]
        done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    from fleetcraft import __version__

    changed = ", with uncommitted changes" if git("status", "--porcelain", "fleetcraft") else ""
    return f"{__version__}, commit {git('rev-parse', '--short=12', 'HEAD') or 'unknown'}{changed}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _first_line(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        return f"no {name}"
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or [f"{name} unknown"])[0].strip()


def command_line() -> str:
    """This run's command line, from the repository's folder."""
    module = sys.modules["__main__"].__spec__
    if module is not None:  # started by its name, with -m
        return " ".join(["python -m", module.name.removesuffix(".__main__"), *sys.argv[1:]])
    script = Path(sys.argv[0]).resolve()
    shown = script.relative_to(REPO) if script.is_relative_to(REPO) else script
    return " ".join(["python", str(shown), *sys.argv[1:]])
