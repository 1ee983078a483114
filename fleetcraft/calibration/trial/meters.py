"""What measures the phases of a cycle: nothing, a clock, or the tracker of every byte.

Where phases begin and end is the context's affair; counting bytes is `tracking`'s. Invariant: a
clock never runs while the harness itself works, and no wall time is taken while bytes are tracked.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

from fleetcraft.calibration import host
from fleetcraft.calibration.tracking import device as devices
from fleetcraft.calibration.tracking.autograd import SavedTensors
from fleetcraft.calibration.tracking.ledger import Ledger
from fleetcraft.calibration.trial import cgroup


class Meter:
    """Measures nothing; the others say what they do."""

    def __init__(self) -> None:
        self._owners: set[str] = set()

    def cycle(self) -> AbstractContextManager[None]:
        """Surrounds one cycle."""
        return nullcontext()

    def pause(self) -> None:
        """The cycle's own work rests: the harness works."""

    def begin(self, name: str) -> None:
        """The phase begins at the end of this call."""

    def end(self, name: str, releases: Sequence[str] = ()) -> dict[str, Any]:
        """The phase has ended at the beginning of this call.

        Args:
            name: As `begin` was told.
            releases: Owners that must be gone by now.

        Returns:
            What was measured, by the names of its line in the journal.
        """
        return {}

    def interrupted(self, name: str) -> dict[str, Any]:
        """The phase ends by an exception on its way; returns what is known. Never raises."""
        return {}

    def resume(self) -> None:
        """The cycle's own work goes on."""

    def own(self, name: str, obj: object) -> None:
        """Takes note of an owner."""
        self._owners.add(name)

    def owners(self) -> frozenset[str]:
        """Names of all owners so far."""
        return frozenset(self._owners)

    def scope(self, name: str) -> AbstractContextManager[None]:
        """Names what is made inside."""
        return nullcontext()

    def summary(self) -> dict[str, Any]:
        """What was measured of the last cycle as a whole, after it has ended."""
        return {}


class ClockMeter(Meter):
    """Wall and CPU time of phases and cycles, with the harness's own left out.

    Args:
        device: What to wait for at the end of a phase.
        tidy: Whether a phase begins, like a tracked one, without garbage and free heap; then
            first touches of memory cost both the same.

    Attributes:
        phases_s: Wall time of each phase of the last cycle.
        between_s: Of what runs between them.
        cpu_s: CPU time of the last cycle, phases and between.
    """

    def __init__(self, device: str, *, tidy: bool = False) -> None:
        super().__init__()
        self.phases_s: dict[str, float] = {}
        self.between_s = 0.0
        self.cpu_s = 0.0
        self._device = device
        self._tidy = tidy
        self._running: tuple[float, float] | None = None

    @contextmanager
    def cycle(self) -> Iterator[None]:
        """Runs the clock from here to the end, but for what is left out."""
        self.phases_s, self.between_s, self.cpu_s = {}, 0.0, 0.0
        tidy_up()
        devices.synchronize(self._device)
        self._start()
        try:
            yield
            self.pause()
        finally:
            self._running = None

    def pause(self) -> None:
        """Stops the clock between phases, once the device has done what was begun there."""
        devices.synchronize(self._device)
        self.between_s += self._stop()

    def begin(self, name: str) -> None:
        """Starts the clock, last of all."""
        if self._tidy:
            tidy_up()
        devices.synchronize(self._device)
        self._start()

    def end(self, name: str, releases: Sequence[str] = ()) -> dict[str, Any]:
        """Stops the clock, first of all; returns the wall time in seconds."""
        devices.synchronize(self._device)
        wall_s = self._stop()
        self.phases_s[name] = self.phases_s.get(name, 0.0) + wall_s
        return {"wall_s": wall_s}

    def resume(self) -> None:
        """Starts the clock between phases."""
        self._start()

    def interrupted(self, name: str) -> dict[str, Any]:
        """Drops the time: half a phase means nothing."""
        self._running = None
        return {}

    def summary(self) -> dict[str, Any]:
        """The wall time, in seconds."""
        return {"wall_s": self.wall_s, "cpu_s": self.cpu_s}

    @property
    def wall_s(self) -> float:
        """Wall time of the last cycle without the phase that loads."""
        return self.between_s + sum(s for name, s in self.phases_s.items() if name != "load")

    def _start(self) -> None:
        self._running = (time.process_time(), time.perf_counter())

    def _stop(self) -> float:
        now = time.perf_counter()
        if self._running is None:
            return 0.0
        cpu, wall = self._running
        self.cpu_s += time.process_time() - cpu
        self._running = None
        return now - wall


class ByteMeter(ClockMeter):
    """Bytes of each phase by owner, and the host's side of it.

    Args:
        device: Whose storages are counted.
        budget_bytes: See `Ledger`.
        host_side: Whether the process's own memory is read and tidied; not for fake tensors.

    Attributes:
        ledger: What counts.
        peaks: Highest tracked peak of each phase over all cycles.
        attribution_cpu_s: CPU time of naming owners, over all cycles; in no phase's own time.
    """

    def __init__(
        self, device: str, *, budget_bytes: int | None = None, host_side: bool = True
    ) -> None:
        super().__init__(device)
        self.ledger = Ledger(device, budget_bytes)
        self.peaks: dict[str, int] = {}
        self.attribution_cpu_s = 0.0
        self._host_side = host_side
        self._group = cgroup.own_places() if host_side else {}
        if not cgroup.is_trials_own(self._group):
            self._group = {}
        self._group_before: int | None = None
        self._rss_is_reset = False

    @contextmanager
    def cycle(self) -> Iterator[None]:
        """Tracks what is made inside."""
        self._owners.clear()
        with super().cycle(), self.ledger, SavedTensors(self.ledger):
            yield

    def begin(self, name: str) -> None:
        """Lets every peak begin at what lives now."""
        self.ledger.begin_phase(name)
        if self._host_side:
            self._begin_host_side()
        super().begin(name)

    def _begin_host_side(self) -> None:
        host.trim_heap()  # the ledger has just collected garbage
        self._rss_is_reset = host.reset_rss_peak()
        self._group_before = None
        if not cgroup.reset_memory_peak(self._group):
            self._group_before = cgroup.memory_peak_bytes(self._group)
        devices.reset_peaks(self._device)

    def end(self, name: str, releases: Sequence[str] = ()) -> dict[str, Any]:
        """Reads every peak, and attributes the tracked one to its owners."""
        super().end(name)
        fields = self._host_fields() if self._host_side else {}
        peaks = devices.allocator_peaks(self._device) if self._host_side else None
        began = time.process_time()
        found = self.ledger.end_phase(releases=releases)
        self.attribution_cpu_s += time.process_time() - began
        self.peaks[name] = max(self.peaks.get(name, 0), found.peak_bytes)
        if peaks is not None:
            fields |= {"allocated_peak_bytes": peaks[0], "reserved_peak_bytes": peaks[1]}
            fields["residual_bytes"] = devices.residual_bytes(peaks, found.peak_bytes)
        return {
            "peak_bytes": found.peak_bytes,
            "live_end_bytes": found.live_end_bytes,
            "autograd_bytes": found.autograd_bytes,
            "held_bytes": found.held_bytes,
            "owners": found.owners,
            **fields,
        }

    def _host_fields(self) -> dict[str, Any]:
        peak = cgroup.memory_peak_bytes(self._group)
        if self._group_before is not None and peak == self._group_before:
            peak = None  # no reset here: an unmoved peak is that of some earlier phase
        rss = host.rss_peak_bytes() if self._rss_is_reset else None
        return {"rss_peak_bytes": rss, "cgroup_peak_bytes": peak}

    def interrupted(self, name: str) -> dict[str, Any]:
        """As `end`, as far as it goes."""
        # The exception on its way still pins the frames: what lived at the failure has its owners.
        try:
            return self.end(name)
        except Exception as error:  # a half-made state must not hide the cause
            return {"unmeasured": f"{type(error).__name__}: {error}"}

    def own(self, name: str, obj: object) -> None:
        """Registers an owner, weakly."""
        super().own(name, obj)
        began = time.process_time()
        self.ledger.own(name, obj)
        spent_s = time.process_time() - began
        self.attribution_cpu_s += spent_s
        self.cpu_s -= spent_s  # the walk is the harness's, though the phase waits for it

    def summary(self) -> dict[str, Any]:
        """What lives after the cycle, and what the allocator keeps cached."""
        gc.collect()
        fields: dict[str, Any] = {"live_end_bytes": self.ledger.live_bytes}
        if (live := devices.allocator_live(self._device)) is not None:
            fields["cached_bytes"] = live[1] - live[0]
        return fields

    def scope(self, name: str) -> AbstractContextManager[None]:
        """Names what is made inside and claimed by nobody."""
        return cast(AbstractContextManager[None], self.ledger.scope(name))


def tidy_up() -> None:
    """Collects garbage, and gives free heap back: else one phase hides in the heap of another."""
    gc.collect()
    host.trim_heap()
