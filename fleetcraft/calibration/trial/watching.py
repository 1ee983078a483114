"""Watching a trial: its journal as it grows, its silence, and who else is on its device.

Starting and judging it is elsewhere. Invariant: only whole lines of the journal count as signs of
life, and time in which the watcher itself did not run is nobody's silence.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psutil

from fleetcraft.calibration import host
from fleetcraft.calibration.trial.orders import Pass
from fleetcraft.calibration.trial.stall import QUIET_S, Stall, silence_limit_s
from fleetcraft.errors import DeviceError
from fleetcraft.gpu.processes import MemoryUse, MemoryWatch, gpu_of

OnEvent = Callable[[dict[str, Any]], None]
LOOK_S = 0.05
_MEMORY_EVERY_S = 0.25
_BASELINE_WAIT_S = 5.0
_READ_BYTES = 1 << 20
_LONGEST_LOOK_S = 10 * LOOK_S
_REAL_CYCLES = frozenset({Pass.MEMORY, Pass.TIME, Pass.OVERHEAD, Pass.SOAK})


class JournalTail:
    """Follows a journal that another process appends to.

    Attributes:
        bad_lines: Whole lines that were no JSON object.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.bad_lines = 0
        self._fd = -1
        self._pending = b""

    def read(self) -> Iterator[dict[str, Any]]:
        """What was written since the last call, line by line."""
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return
        while data := os.read(self._fd, _READ_BYTES):
            *lines, self._pending = (self._pending + data).split(b"\n")
            for line in lines:
                event = _decoded(line)
                if event is None:
                    self.bad_lines += bool(line.strip())
                else:
                    yield event

    def close(self) -> None:
        """Closes the journal."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return value if isinstance(value, dict) else None


class Silence:
    """How long a trial has said nothing, and how long it may.

    Args:
        expected_s: The longest silence to expect; None for the first batch.
        patience_s: The family's own word.
    """

    def __init__(self, expected_s: float | None, patience_s: float) -> None:
        self.expected_s = expected_s
        self.limit_s = silence_limit_s(expected_s, patience_s)
        self.silent_s = 0.0
        self.phase = ""
        self._in_cycles = False
        self._looked_at: float | None = None

    def hear(self, event: dict[str, Any]) -> None:
        """A line came."""
        self.silent_s = 0.0
        match event.get("event"):
            case "pass_begin":
                self._in_cycles = event.get("pass") in _REAL_CYCLES
                self.phase = ""
            case "pass_end":
                self._in_cycles = False
            case "phase_begin":
                self.phase = str(event.get("phase", ""))
            case "phase_end":
                self.phase = ""

    def look(self, now_s: float) -> Stall | None:
        """Adds the time since the last look; says whether it has become a stall.

        A look that comes late counts as one that came in time: who did not listen cannot say that
        nothing was said. So a stopped or starved watcher blames nobody.
        """
        if self._looked_at is not None:
            self.silent_s += min(now_s - self._looked_at, _LONGEST_LOOK_S)
        self._looked_at = now_s
        limit_s = self.limit_s if self._in_cycles else max(self.limit_s, QUIET_S)
        if self.silent_s <= limit_s:
            return None
        return Stall(
            silent_s=self.silent_s,
            limit_s=limit_s,
            expected_s=self.expected_s if self._in_cycles else None,
            phase=self.phase,
        )


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was sampled from outside while a trial ran; None where it could not be.

    Attributes:
        rss_peak_bytes: Highest resident size of its whole process tree.
        with_children_rss_peak_bytes: The same of the moments at which it had children.
        device_before_bytes: What others held on the device before it started.
        neighbour_bytes: What others held at the last sample in which they could be told apart.
        neighbour_peak_bytes: The most that they held.
        device_total_bytes: The device's memory.
        device_detail: Why the device was not watched.
    """

    rss_peak_bytes: int | None = None
    with_children_rss_peak_bytes: int | None = None
    device_before_bytes: int | None = None
    neighbour_bytes: int | None = None
    neighbour_peak_bytes: int | None = None
    device_total_bytes: int | None = None
    device_detail: str = ""


class Sampler:
    """Samples memory on a thread of its own, since a stuck driver never answers.

    Use as a block around the trial; call `follow` once its pid is known.

    Args:
        device: As torch spells it; on ``cpu`` only host memory is sampled.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._pid: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory sampler", daemon=True)
        self.seen = Seen()
        self._first = threading.Event()

    def __enter__(self) -> Sampler:
        self._thread.start()
        if self._device != "cpu":
            self._first.wait(_BASELINE_WAIT_S)  # the baseline must be taken before the trial starts
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=1.0)

    def follow(self, pid: int) -> None:
        """From now on samples this process and its descendants."""
        self._pid = pid

    def _run(self) -> None:
        watch = self._open()
        try:
            if watch is not None:
                before = watch.read()
                self._note(device_total_bytes=before.total_bytes)
                if self._pid is None:  # else a slow driver has counted the trial's own
                    self._note(device_before_bytes=before.used_bytes)
            self._first.set()
            while not self._stop.wait(_MEMORY_EVERY_S):
                if self._pid is not None:
                    self._sample(self._pid, watch)
        finally:
            self._first.set()
            if watch is not None:
                watch.close()

    def _open(self) -> MemoryWatch | None:
        if self._device == "cpu":
            return None
        try:
            return MemoryWatch(gpu_of(self._device))
        except (DeviceError, ImportError, ValueError) as error:
            self._note(device_detail=str(error))
            return None

    def _sample(self, pid: int, watch: MemoryWatch | None) -> None:
        tree = tree_of(pid)
        resident = host.tree_rss_bytes(pid)
        if resident is not None:
            self._note(rss_peak_bytes=max(resident, self.seen.rss_peak_bytes or 0))
            if len(tree) > 1:
                most = max(resident, self.seen.with_children_rss_peak_bytes or 0)
                self._note(with_children_rss_peak_bytes=most)
        if watch is not None:
            use = watch.read()
            # One that the driver has named may be gone by now, and one may have come.
            self._note_others(use, [*tree, *tree_of(pid)])

    def _note_others(self, use: MemoryUse, tree: list[int]) -> None:
        others = use.others_bytes(set(tree))
        if others is not None:
            most = max(others, self.seen.neighbour_peak_bytes or 0)
            self._note(neighbour_bytes=others, neighbour_peak_bytes=most)

    def _note(self, **values: Any) -> None:
        self.seen = msgspec.structs.replace(self.seen, **values)


def tree_of(pid: int) -> list[int]:
    """A process and its living descendants."""
    with contextlib.suppress(psutil.Error):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return []


def listen(tail: JournalTail, silence: Silence, on_event: OnEvent | None) -> Stall | None:
    """Takes what is new in the journal; says whether the trial has stalled."""
    for event in tail.read():
        silence.hear(event)
        if on_event is not None:
            on_event(event)
    return silence.look(time.monotonic())
