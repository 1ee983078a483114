"""The measured side of the telemetry benchmarks, in a process of its own that holds nothing else.

``lines PLACE``: numpy, and the lines of telemetry files counted. ``canvas PLACE``: matplotlib, too,
and nothing drawn. ``frames PLACE``: the files through pandas, no questions asked. ``bare FOLDER
SAMPLES PAUSE_S``: the driver's calls of a sample through the binding, and one write. ``parts FOLDER
SAMPLES PAUSE_S``: where a logger's sample goes, beside that. ``many FOLDER FEW MOST``: its memory
after so many samples. ``looks ROOT LOOKS``: looks of the live view, beside the same file operations
in a bare loop. ``adopt WORDS...``: a command, and whatever it leaves behind, waited for. All but
the last print JSON. Invariant: imports no more than what it measures.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

_PR_SET_CHILD_SUBREAPER = 36  # source: prctl(2)


def _tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


# ---------------------------------------------------------------------------- reading files


def lines(place: str) -> None:
    import numpy

    counted = 0
    for path in sorted(Path(place).glob("*.csv")):
        with path.open("rb") as file:
            while block := file.read(4 << 20):
                counted += int(numpy.count_nonzero(numpy.frombuffer(block, numpy.uint8) == 10))
    _tell(lines=counted)


def canvas(place: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    FigureCanvasAgg(Figure())
    lines(place)


def frames(place: str) -> None:
    import pandas

    four = ["mem_used_mib", "mem_total_mib", "util_pct", "power_w"]
    whole = pandas.concat(
        [
            pandas.read_csv(path, usecols=["timestamp", *four])
            for path in sorted(Path(place).glob("*.csv"))
        ]
    )
    _tell(rows=len(whole), means=[float(value) for value in whole[four].mean()])


# ------------------------------------------------------------------------------- the logger


class _Bare:
    """The driver's calls of one sample through the binding's own functions."""

    def __init__(self) -> None:
        import pynvml

        self._n: Any = pynvml
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self._events = pynvml.nvmlEventSetCreate()
        self._since_us = [0] * count

    def sample(self) -> None:
        n = self._n
        n.nvmlDeviceGetCount()
        for index, handle in enumerate(self._handles):
            n.nvmlDeviceGetMigMode(handle)
            self._buffer(index, handle)
            n.nvmlDeviceGetUtilizationRates(handle)
            n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2)
            n.nvmlDeviceGetFieldValues(handle, [n.NVML_FI_DEV_POWER_AVERAGE])
            n.nvmlDeviceGetTotalEnergyConsumption(handle)
            n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU)
            n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_SM)
            n.nvmlDeviceGetCurrentClocksEventReasons(handle)
        with contextlib.suppress(n.NVMLError_Timeout):
            n.nvmlEventSetWait_v2(self._events, 0)

    def _buffer(self, index: int, handle: Any) -> None:
        n = self._n
        since_us = self._since_us[index]
        with contextlib.suppress(n.NVMLError_NotFound):  # nothing new
            _, found = n.nvmlDeviceGetSamples(handle, n.NVML_GPU_UTILIZATION_SAMPLES, since_us)
            self._since_us[index] = found[-1].timeStamp


class _Rows:
    """One write of as many bytes as the rows of a sample have."""

    def __init__(self, folder: str, gpus: int) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._fd = os.open(f"{folder}/bare.csv", flags, 0o600)
        self._data = (b"x" * 259 + b"\n") * gpus

    def write(self) -> None:
        os.write(self._fd, self._data)


def bare(folder: str, samples: str, pause_s: str) -> None:
    sampler, pause = _Bare(), float(pause_s)
    rows = _Rows(folder, len(sampler._handles))
    warm = 10
    began_s = tick_s = time.monotonic()
    for number in range(int(samples) + warm):
        if number == warm:
            began_s = time.process_time()
        sampler.sample()
        rows.write()
        tick_s += pause
        time.sleep(max(0.0, tick_s - time.monotonic()))
    cost_s = (time.process_time() - began_s) / int(samples)
    _tell(sample_s=cost_s, **memory_mib(os.getpid()))


def memory_mib(pid: int) -> dict[str, float]:
    """Resident size of a process, and the part of it that is nobody else's."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        fields = {line.split(":")[0]: line.split()[1] for line in file if ":" in line.split()[0]}
    private = sum(int(fields[f"Private_{kind}"]) for kind in ("Clean", "Dirty"))
    return {"rss_mib": int(fields["Rss"]) / 1024, "private_mib": private / 1024}


class _Sampler:
    """What a logger does for one sample, without its threads and waits."""

    def __init__(self, folder: str) -> None:
        from fleetcraft.gpu.sampling.session import Session
        from fleetcraft.telemetry.logger.csv_file import CsvFile
        from fleetcraft.telemetry.logger.host import HostReader
        from fleetcraft.telemetry.logger.row_writer import RowWriter

        self._session = Session.open()
        self._writer = RowWriter
        self._file = CsvFile(folder, "n1", "1")
        self._file.open()
        self.devices = self._session.inventory()
        self.host = HostReader()
        self._reading = self.host.read()
        self._found = self.ask()

    def ask(self) -> list[Any]:
        self._session.recount()
        now_s = time.time()
        self._found = [
            one for device in self.devices for one in self._session.sample(device, now_s)
        ]
        self._session.events()
        return self._found

    def write(self) -> None:
        now_s = time.time()
        writer = self._writer(self._reading, "1", "0")
        self._file.append([writer.device(sample, now_s) for sample in self._found])

    def drain(self) -> None:
        now_s = time.time()
        for device in self.devices:
            self._session.drain(device, now_s)


def parts(folder: str, samples_text: str, pause_text: str) -> None:
    ours = _Sampler(folder)
    floor, floor_rows = _Bare(), _Rows(folder, len(ours.devices))

    def bare_sample() -> None:
        floor.sample()
        floor_rows.write()

    work: dict[str, Callable[[], object]] = {
        "bare": bare_sample,
        "host": ours.host.read,
        "binding": ours.ask,
        "write": ours.write,
        "drain": ours.drain,
    }
    taken = dict.fromkeys(work, 0.0)
    count, pause_s = int(samples_text), float(pause_text)
    for number in range(-10, count):  # side by side, so that all meet the same machine
        for name, call in work.items():
            if pause_s and name in ("bare", "host"):  # where a sample begins
                time.sleep(pause_s)
            began_s = time.process_time()
            call()
            if number >= 0:
                taken[name] += (time.process_time() - began_s) / count
    _tell(**taken)
    os._exit(0)


def many(folder: str, few: str, most: str) -> None:
    ours = _Sampler(folder)
    sizes = []
    for count in (int(few), int(most) - int(few)):
        for _ in range(count):
            ours.host.read()
            ours.ask()
            ours.write()
        sizes.append(memory_mib(os.getpid())["rss_mib"])
    _tell(rss_mib=sizes)
    os._exit(0)


# ----------------------------------------------------------------------------- the live view


def looks(root: str, looks_text: str) -> None:
    from tests.bench.live_tree import watched_files

    began_s = time.process_time()
    import msgspec

    from fleetcraft.clock import timestamp
    from fleetcraft.telemetry.live.files import LiveTelemetry
    from fleetcraft.telemetry.live.spool import LiveSpool
    from fleetcraft.telemetry.live.state import compose
    from fleetcraft.view.text import Paint
    from fleetcraft.view.top import Frame, render_top
    from fleetcraft.view.top_shape import top_shape

    import_s = time.process_time() - began_s
    forget_s = 3600.0
    files = watched_files(Path(root))
    telemetry = LiveTelemetry(f"{root}/telemetry", forget_s)
    spools = [
        LiveSpool("outer", f"{root}/taskq", forget_s),
        LiveSpool("inner", f"{root}/taskq_gpu", forget_s),
    ]
    frame = Frame(paint=Paint(True), width=120, height=len(files.hosts) + 20)
    floor = _BareLook(root)

    def look() -> dict[str, Any]:
        marks = [time.process_time()]
        seen = telemetry.look()
        marks.append(time.process_time())
        spool_looks = [spool.look() for spool in spools]
        marks.append(time.process_time())
        picture = compose(seen, spool_looks, forget_s=forget_s)
        marks.append(time.process_time())
        render_top(picture, frame, root=root, taken_at=timestamp())
        marks.append(time.process_time())
        msgspec.json.encode(top_shape(picture, root="", telemetry_dir="", taken_at=timestamp()))
        marks.append(time.process_time())
        names = ("telemetry", "spools", "compose", "text", "json")
        taken = [end - begin for begin, end in pairwise(marks)]
        gpus, bytes_read = len(picture.gpus), seen.bytes_read
        bytes_read += sum(one.bytes_read for one in spool_looks)
        return {**dict(zip(names, taken, strict=True)), "gpus": gpus, "bytes": bytes_read}

    def beside() -> float:
        before_s = time.process_time()
        floor.look()
        return time.process_time() - before_s

    taken: dict[str, list[dict[str, Any]]] = {"first": [], "quiet": [], "grown": []}
    for number in range(int(looks_text) + 1):
        kinds = ("grown", "quiet") if number else ("first", "quiet")
        for kind in kinds:
            if kind == "grown":
                files.grow()
            if number % 2:
                found = look()
                found["bare"] = beside()
            else:
                bare_s = beside()
                found = {**look(), "bare": bare_s}
            taken[kind].append(found)
    _tell(import_s=import_s, **taken)


class _BareLook:
    """The same folders listed, the same files looked at and their new bytes read; no more."""

    def __init__(self, root: str) -> None:
        self._folders = [f"{root}/telemetry"]
        for spool in ("taskq", "taskq_gpu"):
            at = f"{root}/{spool}"
            self._folders += [f"{at}/workers", f"{at}/running"]
        self._read: dict[str, int] = {}
        self.cells = 0

    def look(self) -> None:
        for folder in self._folders:
            for name in os.listdir(folder):
                if name.endswith((".csv", ".jsonl")):
                    self._tail(f"{folder}/{name}")
                elif name.endswith(".json"):
                    os.lstat(f"{folder}/{name}")

    def _tail(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            start = self._read.get(path, max(0, size - (1 << 13)))
            for line in os.pread(fd, size - start, start).split(b"\n"):
                self.cells += len(line.split(b","))
            self._read[path] = size
        finally:
            os.close(fd)


# ------------------------------------------------------------------------------ left behind


def adopt(*words: str) -> int:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.posix_spawn(words[0], list(words), os.environ)
    code = 0
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    calls: dict[str, Callable[..., int | None]] = {
        call.__name__: call for call in (lines, canvas, frames, bare, parts, many, looks, adopt)
    }
    sys.exit(calls[sys.argv[1]](*sys.argv[2:]))
