"""What is seen of a node's GPUs from sample to sample, whatever becomes of the driver.

Holds the one session with the driver, opens it again when it breaks, and keeps expecting every GPU
that it ever saw. Not here: deadlines of calls, and what a row looks like. Invariant: nothing calls
into a GPU, by whatever way, while an earlier call into it has not returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import msgspec

from fleetcraft.gpu.nvml import DriverError, Versions
from fleetcraft.gpu.sampling.samples import Device, Event, Sample
from fleetcraft.gpu.sampling.session import Session
from fleetcraft.gpu.status import Status
from fleetcraft.telemetry.logger.driver_thread import DriverThread, Outcome, Step
from fleetcraft.telemetry.logger.gpu_search import GpuSearch, found_number
from fleetcraft.telemetry.logger.roll_call import RollCall, called

_OPEN = "open"
_CLOSE = "close"
_COUNT = "count"
_EVENTS = "events"
DRAIN_S = 15.0
"""The driver's buffer of utilization samples holds so much. Source: `Session.drain`."""
_LEAST_OPEN_S = 1.0  # a driver without persistence initializes its GPUs first
_MOST_BACK_OFF_S = 600.0
_CLOSE_S = 0.3
_BROKEN = frozenset(
    {
        Status.UNKNOWN,
        Status.LOST,
        Status.DRIVER_NOT_LOADED,
        Status.VERSION_MISMATCH,
        Status.NO_NVML,
        Status.NO_PERMISSION,
        Status.RESET_REQUIRED,
    }
)
"""When each GPU has one of these and no value, a new session may help."""
_SAME_MOMENT_S = 0.5


class Look(msgspec.Struct, kw_only=True):
    """What one look at the GPUs showed.

    Attributes:
        rows: What was read, or stands for it, with the moment in seconds since 1970.
        events: What changed.
        status: Of the driver as a whole.
        detail: Words about that.
        inventory_changed: Whether GPUs or versions are known now that were not before.
    """

    rows: list[tuple[float, Sample]] = msgspec.field(default_factory=list)
    events: list[Event] = msgspec.field(default_factory=list)
    status: Status = Status.OK
    detail: str = ""
    inventory_changed: bool = False


class _Opened(msgspec.Struct):
    session: Session
    versions: Versions


class GpuWatch:
    """Looks at the GPUs, and after the driver.

    Args:
        driver: Makes the calls.
        open_session: Opens a session, given the GPUs that are known; called like any call, with a
            deadline.
        interval_s: Between looks.
        deadline_s: For the calls of one GPU.
        wall_s: The wall clock.
        monotonic_s: The clock for pauses.
    """

    def __init__(
        self,
        driver: DriverThread,
        open_session: Callable[[list[Device]], Session],
        *,
        interval_s: float,
        deadline_s: float,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._open_session = open_session
        self._interval_s = interval_s
        self._deadline_s = deadline_s
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._session: Session | None = None
        self._search: GpuSearch | None = None
        self._roll = RollCall()
        self._steps: list[Step] = []
        self._drains: list[Step] = []
        self._most = 0
        self._list_is_stale = False
        self._tries = 0
        self._next_try_s = 0.0
        self._trouble = Status.OK
        self._detail = ""
        self.versions: Versions | None = None

    @property
    def devices(self) -> list[Device]:
        """Every GPU that was ever seen."""
        return list(self._roll.devices.values())

    def look(self, now_s: float) -> Look:
        """Reads every GPU.

        Args:
            now_s: The wall clock.
        """
        look = Look()
        self._hear_late(look)
        if self._is_due():
            self._reopen(look)
        if self._session is not None and self._search is not None:
            self._read(look, self._session, self._search, now_s)
        else:
            for key in self._roll.devices:
                rows = self._roll.blank(key, self._trouble, self._detail)
                look.rows += [(now_s, row) for row in rows]
        # That a host has no driver needs no words in every row.
        look.status = self._trouble
        look.detail = "" if self._trouble == Status.NO_NVML else self._detail
        return look

    def drain(self) -> None:
        """Collects what the driver's buffers hold, for the next look; due every `DRAIN_S`."""
        if self._session is not None:
            self._driver.run(self._drains, self._deadline_s)

    def close(self) -> bool:
        """Ends the session.

        Returns:
            Whether every call has returned; otherwise threads are left that nothing can end.
        """
        session, self._session = self._session, None
        return self._driver.close(session.close if session else None, _CLOSE_S)

    # ---------------------------------------------------------------------------- the session

    def _is_due(self) -> bool:
        if self._session is not None and not self._tries:
            return False  # it works
        # Opening it would call into each GPU, also into one whose last call has not returned.
        return not self._driver.stuck and self._monotonic_s() >= self._next_try_s

    def _reopen(self, look: Look) -> None:
        if self._session is not None:
            done = self._driver.run([Step(_CLOSE, self._session.close)], self._deadline_s)
            self._session = self._search = None
            if _CLOSE not in done or done[_CLOSE].timed_out:
                self._fail(look, Status.TIMEOUT, "the driver does not answer: ending the session")
                return
        self._back_off()
        deadline_s = max(self._deadline_s, _LEAST_OPEN_S)
        outcome = self._driver.run([Step(_OPEN, self._open)], deadline_s).get(_OPEN)
        if outcome is not None:
            self._take(look, outcome)

    def _back_off(self) -> None:
        most_s = max(_MOST_BACK_OFF_S, self._interval_s)
        pause_s = min(self._interval_s * 2 ** min(self._tries, 40), most_s)
        # A quarter sooner: looks are not exactly one interval apart.
        self._next_try_s = self._monotonic_s() + pause_s - self._interval_s / 4
        self._tries += 1

    def _open(self) -> _Opened:
        session = self._open_session(self.devices)
        try:
            return _Opened(session, session.versions())
        except BaseException:
            session.close()
            raise

    def _take(self, look: Look, outcome: Outcome) -> None:
        """What came of opening a session."""
        error = outcome.error
        if isinstance(outcome.value, _Opened):
            self._adopt(look, outcome.value)
        elif outcome.timed_out:
            self._fail(look, Status.TIMEOUT, "the driver does not answer: its initialization")
        elif isinstance(error, DriverError):
            if error.versions != self.versions and any(msgspec.structs.astuple(error.versions)):
                self.versions, look.inventory_changed = error.versions, True
            self._fail(look, error.status, error.message)
        else:
            self._fail(look, Status.UNKNOWN, f"{type(error).__name__}: {error}")

    def _fail(self, look: Look, status: Status, detail: str) -> None:
        changed = status != self._trouble
        self._trouble, self._detail = status, detail
        # That a host has no driver at all is nothing that happened.
        if changed and (status != Status.NO_NVML or self._roll.devices):
            look.events.append(Event(uuid="", index=None, text=detail, status=status))

    def _adopt(self, look: Look, opened: _Opened) -> None:
        self._session = opened.session
        deadline_s = max(self._deadline_s, _LEAST_OPEN_S)
        self._search = GpuSearch(self._driver, opened.session, deadline_s)
        self._most = max(self._most, opened.session.count)
        if self._trouble != Status.OK:
            text = f"the driver answers again; before that: {self._trouble}"
            look.events.append(Event(uuid="", index=None, text=text, status=Status.OK))
        self._trouble, self._detail = Status.OK, ""
        if opened.versions != self.versions:
            self.versions, look.inventory_changed = opened.versions, True
        self._enroll(look, opened.session, self._search)

    def _enroll(
        self, look: Look, session: Session, search: GpuSearch, *, anew: bool = True
    ) -> None:
        """Looks which GPUs there are, and what is to be called for each at every look."""
        devices = search.run(anew=anew)
        if devices is None:  # an order to end; nothing more is called
            self._steps, self._drains = [], []
            return
        look.inventory_changed |= self._roll.enroll(devices)
        self._list_is_stale = False
        gpus = [one for one in self._roll.devices.items() if one[0] not in search.unfound]
        self._steps = [
            Step(_COUNT, session.recount),
            *(Step(key, partial(self._sample, session, device)) for key, device in gpus),
            Step(_EVENTS, partial(self._events, session)),
        ]
        self._drains = [Step(key, partial(self._drain, session, device)) for key, device in gpus]

    def _sample(self, session: Session, device: Device) -> list[Sample]:
        # Where the list has changed, it is asked for first: a GPU that is gone is not a lost one.
        return [] if session.is_doubtful else session.sample(device, self._wall_s())

    def _events(self, session: Session) -> list[Event]:
        return [] if session.is_doubtful else session.events()

    def _drain(self, session: Session, device: Device) -> None:
        session.drain(device, self._wall_s())

    # ---------------------------------------------------------------------------- the reading

    def _read(self, look: Look, session: Session, search: GpuSearch, now_s: float) -> None:
        if self._list_is_stale:
            self._enroll(look, session, search)
        # Numbers may not mean the same any more once the count has changed, so that no GPU could be
        # asked by its number for fear that it is the one that is stuck.
        steps = self._steps[1:] if self._driver.stuck else self._steps
        outcomes = self._driver.run(steps, self._deadline_s)
        if session.is_doubtful:
            self._enroll(look, session, search, anew=False)
            outcomes |= self._driver.run(self._steps[1:], self._deadline_s)
        events = outcomes.get(_EVENTS, Outcome()).value
        look.events += events if isinstance(events, list) else []
        for key in self._roll.devices:
            if key in search.unfound:
                self._hear(look, key, Outcome(timed_out=True, took_s=search.stuck_s()), now_s)
            elif (outcome := outcomes.get(key)) is not None:  # else the logger is ending
                self._hear(look, key, outcome, now_s)
        count = outcomes.get(_COUNT, Outcome()).value
        self._judge(look, session, count if isinstance(count, int) else 0)

    def _hear(self, look: Look, key: str, outcome: Outcome, now_s: float) -> None:
        """Rows of one GPU."""
        at_s = now_s
        if outcome.timed_out:
            detail = f"a call has not returned for {outcome.took_s:.1f} s"
            rows = self._roll.blank(key, Status.TIMEOUT, detail)
        elif isinstance(outcome.value, list) and outcome.value:
            rows = outcome.value
            self._list_is_stale |= self._roll.has_changed(key, rows)
            at_s = outcome.at_s if outcome.at_s - now_s > _SAME_MOMENT_S else now_s
        else:
            detail = f"{type(outcome.error).__name__}: {outcome.error}"
            rows = self._roll.blank(key, Status.UNKNOWN, detail)
        look.rows += [(at_s, row) for row in rows]
        look.events += self._roll.note(key, rows[0].status)

    def _judge(self, look: Look, session: Session, count: int) -> None:
        """Whether only a new session can help: a driver was reloaded, or a GPU was added."""
        read = [row for _, row in look.rows if not row.is_slice and row.status != Status.ABSENT]
        broken = bool(read) and all(row.status in _BROKEN and not _has_values(row) for row in read)
        if not broken and session.gone is None and count <= self._most:
            self._tries = 0
        elif not self._tries:
            self._tries, self._next_try_s = 1, 0.0
        self._most = max(self._most, count)

    def _hear_late(self, look: Look) -> None:
        """Calls that were given up and have returned."""
        for key, outcome in self._driver.take_late().items():
            if key == _OPEN and self._session is None:
                self._take(look, outcome)
                continue
            # What was asked for may be a name that is not known yet.
            self._list_is_stale |= GpuSearch.is_about(key) or isinstance(outcome.value, Device)
            if (device := self._named(key)) is not None:
                text = f"{called(device)}: a call returned after {outcome.took_s:.1f} s"
                event = Event(uuid=device.uuid, index=device.index, text=text, status=Status.OK)
                look.events.append(event)

    def _named(self, key: str) -> Device | None:
        """The GPU that a call was about, where that is known."""
        number = found_number(key)
        if number is None:
            return self._roll.devices.get(key)
        return next((one for one in self._roll.devices.values() if one.index == number), None)


def _has_values(row: Sample) -> bool:
    return any(value is not None for value in (row.util_pct, row.mem_used_mib, row.power_w))
