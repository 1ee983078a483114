"""The logger of one node: a sample every interval, written down until it is told to end.

``python -m fleetcraft.telemetry.logger SETTINGS`` is how workers start it. Not here: what is read
of GPUs (`gpu_watch`), the file (`csv_file`), the cadence. Invariant: nothing that a driver or a
disk does ends it; it ends by an order, in order, and says so in the sidecar.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec

from fleetcraft.errors import FleetError, UsageError
from fleetcraft.gpu.nvml import valid_entries
from fleetcraft.gpu.sampling.samples import Device, Event
from fleetcraft.gpu.sampling.session import Session
from fleetcraft.gpu.status import Status
from fleetcraft.telemetry.logger.cadence import next_tick_s, realigned_s
from fleetcraft.telemetry.logger.csv_file import CsvFile, Place, prepare_folder
from fleetcraft.telemetry.logger.driver_thread import DriverThread
from fleetcraft.telemetry.logger.earlier import gpus_before
from fleetcraft.telemetry.logger.gpu_watch import DRAIN_S, GpuWatch, Look
from fleetcraft.telemetry.logger.host import HostReader
from fleetcraft.telemetry.logger.row_writer import RowWriter, stamp
from fleetcraft.telemetry.logger.settings import (
    Ended,
    LoggerSettings,
    Started,
    ended_line,
    started_line,
)
from fleetcraft.telemetry.logger.sidecar_record import first_record, gpu_record
from fleetcraft.telemetry.logger.waiting import Waiting

_LEAST_DEADLINE_S = 0.5  # a driver that is merely slow is not stuck
_MOST_DEADLINE_S = 5.0


class Logger:
    """One logger, from its first row to its last.

    Args:
        settings: What it is told.
        waiting: Its waits.
        file: Where its rows go.
        watch: What it sees of GPUs.
        tell: Told the path of each file that it begins.
        wall_s: The wall clock.
        monotonic_s: The clock that is never set.
    """

    def __init__(
        self,
        settings: LoggerSettings,
        waiting: Waiting,
        file: CsvFile,
        watch: GpuWatch,
        *,
        tell: Callable[[str], None] = lambda _: None,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._waiting = waiting
        self._file = file
        self._watch = watch
        self._tell = tell
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._host = HostReader()
        self._samples = 0
        self._sidecar_is_stale = True
        self._trouble = ""
        self._rows_lost_told = 0
        self._facts = first_record(settings, wall_s())

    def run(self, on_start: Callable[[Started], None]) -> Ended:
        """Logs until it is told to end.

        Args:
            on_start: Called once, when the first sample has been taken.
        """
        if not self._waiting.ended_by:
            self._open_file()
        while not self._waiting.ended_by:
            now_s = self._wall_s()
            self._sample(now_s)
            if self._samples == 1:
                with contextlib.suppress(OSError):  # nobody listens
                    on_start(self._started())
            if self._samples == self._settings.samples:
                self._waiting.end("took the samples it was asked for")
            self._wait_for(next_tick_s(now_s, self._settings.interval_s, self._wall_s()))
        return self._end()

    def _wait_for(self, tick_s: float) -> None:
        """Waits for a tick of the wall clock, and empties the driver's buffers on the way."""
        interval_s = self._settings.interval_s
        pause_s = interval_s / math.ceil(interval_s / DRAIN_S)
        drain_s = self._monotonic_s() + pause_s if pause_s < interval_s else math.inf
        while (now_s := self._wall_s()) < tick_s:
            tick_s = realigned_s(tick_s, now_s, interval_s)
            if not self._waiting.wait(min(tick_s - now_s, max(0.0, drain_s - self._monotonic_s()))):
                return
            if self._monotonic_s() >= drain_s:
                drain_s = self._monotonic_s() + pause_s
                if tick_s - self._wall_s() > pause_s / 2:
                    self._watch.drain()

    # ----------------------------------------------------------------------------- one sample

    def _sample(self, now_s: float) -> None:
        host = self._host.read()
        look = self._watch.look(now_s)
        self._samples += 1
        self._tell_of_lost(look.events)
        if look.inventory_changed:
            self._sidecar_is_stale = True
        if not self._file.is_open:
            self._open_file()
        if self._sidecar_is_stale:
            self._write_sidecar()
        writer = RowWriter(host, self._settings.job, self._settings.step)
        if lost := self._file.rows_lost - self._rows_lost_told:
            text = f"{lost} rows were not written: {self._trouble}"
            look.events.insert(0, Event(uuid="", index=None, text=text, status=Status.OK))
        lines = _lines(writer, look, now_s, is_ending=bool(self._waiting.ended_by))
        if not lines:
            return
        if self._file.append(lines):
            self._rows_lost_told = self._file.rows_lost
        else:
            self._trouble = self._file.trouble or self._trouble

    def _tell_of_lost(self, events: list[Event]) -> None:
        """Tells whoever started the logger, who may give the node up; never waits for that."""
        fd = self._settings.done_fd
        lost = [event for event in events if event.status == Status.LOST]
        if fd is None or not lost:
            return
        one = lost[0]
        who = one.uuid or ("without a name" if one.index is None else one.index)
        line = f"lost GPU {who}: {one.text}\n"
        room = select.poll()
        room.register(fd, select.POLLOUT)
        with contextlib.suppress(OSError):  # it has gone, which its other pipe tells
            if room.poll(0):
                os.write(fd, line.encode(errors="replace"))

    def _open_file(self) -> None:
        try:
            self._file.open()
        except OSError as error:
            self._trouble = error.strerror or type(error).__name__
            return
        self._tell(self._file.path)
        self._facts.started_at = stamp(self._wall_s())
        self._write_sidecar()

    def _write_sidecar(self) -> None:
        self._facts.driver = self._watch.versions
        self._facts.gpus = [gpu_record(device) for device in self._watch.devices]
        if not self._file.path:
            return
        try:
            self._file.write_sidecar(self._facts)
            self._sidecar_is_stale = False
        except OSError as error:
            self._sidecar_is_stale = True
            self._trouble = error.strerror or type(error).__name__

    def _started(self) -> Started:
        versions = self._watch.versions
        return Started(
            path=self._file.path,
            pid=os.getpid(),
            interval_s=self._settings.interval_s,
            gpus=len(self._watch.devices),
            driver=versions.driver_version if versions else "",
        )

    def _end(self) -> Ended:
        self._facts.ended_at = stamp(self._wall_s())
        self._facts.end_reason = self._waiting.ended_by
        self._facts.rows_written = self._file.rows_written
        self._facts.rows_lost = self._file.rows_lost
        self._write_sidecar()
        self._file.close()
        self._host.close()
        return Ended(
            path=self._file.path,
            reason=self._waiting.ended_by,
            samples=self._samples,
            rows_written=self._file.rows_written,
            rows_lost=self._file.rows_lost,
        )


def _lines(writer: RowWriter, look: Look, now_s: float, *, is_ending: bool) -> list[str]:
    """All rows of one sample; at least one, so that the logger's life shows.

    A look that an order to end cut short does not say that there is no GPU.
    """
    lines = [writer.device(row, at_s) for at_s, row in look.rows]
    if not lines and not is_ending:
        row = writer.heartbeat if look.status == Status.TIMEOUT else writer.host
        lines = [row(now_s, look.status, look.detail)]
    at_s = max([now_s, *(at_s for at_s, _ in look.rows)])
    return lines + [writer.event(at_s, event) for event in look.events]


def run_logger(
    settings: LoggerSettings,
    on_start: Callable[[Started], None],
    on_end: Callable[[Ended], None],
) -> int:
    """Logs this node until TERM, INT, HUP, or until whoever started the logger has gone.

    Does not return while a call into the driver is stuck: then it ends the process, after
    ``on_end``, since nothing else could.

    Args:
        settings: What it is told.
        on_start: Called once, when the first sample has been taken.
        on_end: Called when the file is closed.

    Returns:
        0; any such end is in order.

    Raises:
        TryAgainLaterError: Another logger writes for this node and job.
        SpoolError: Somebody else can write the folder.
        OSError: The folder cannot be made.
    """
    waiting = Waiting(settings.watch_fd)
    waiting.catch_signals()
    prepare_folder(settings.folder)
    place = Place(settings.folder, settings.node, settings.job)
    if not place.take(settings.wait_s, pause=waiting.wait):
        return 0
    driver = DriverThread(waiting.wait, waiting.wake)
    usual_s = max(_LEAST_DEADLINE_S, min(settings.interval_s / 2, _MOST_DEADLINE_S))
    watch = GpuWatch(
        driver,
        partial(_open_session, settings),
        interval_s=settings.interval_s,
        deadline_s=settings.deadline_s or usual_s,
    )
    file = CsvFile(settings.folder, settings.node, settings.job)
    ended = Logger(settings, waiting, file, watch, tell=place.tell).run(on_start)
    place.leave()
    with contextlib.suppress(OSError):
        on_end(ended)
    if not watch.close():
        _leave_stuck_threads()
    return 0


def _open_session(settings: LoggerSettings, known: list[Device]) -> Session:
    allowed = None if settings.all_gpus else os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if allowed is None else valid_entries(allowed)
    earlier = gpus_before(settings.folder, settings.node, settings.job)
    return Session.open(wanted, known=known, earlier=earlier, interval_s=settings.interval_s)


def _leave_stuck_threads() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def main() -> int:
    """Logs as the one argument says, which is a `LoggerSettings` as JSON."""
    try:
        settings = msgspec.json.decode(sys.argv[1], type=LoggerSettings)
        return run_logger(settings, lambda one: _say(started_line(one)), _say_end)
    except (IndexError, msgspec.MsgspecError) as error:
        _say(f"error: expected the settings as one JSON object: {error}")
        return UsageError.exit_code
    except FleetError as error:
        _say(f"error: {error.message} (hint: {error.hint})")
        return error.exit_code
    except OSError as error:
        _say(f"error: cannot log to {error.filename}: {error.strerror}")
        return 5


def _say_end(ended: Ended) -> None:
    _say(ended_line(ended))


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        sys.stderr.write(text.replace("\n", " ") + "\n")
        sys.stderr.flush()
