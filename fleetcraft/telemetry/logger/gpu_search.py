"""Which GPUs a session is about, asked one by one, so that one that does not answer hides no other.

Not here: what is read of them. Invariant: no GPU is asked while an earlier call into it has not
returned, also where the driver's number is all that is known of the one that is stuck.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from fleetcraft.gpu.sampling.samples import Device
from fleetcraft.gpu.sampling.selection import Listed
from fleetcraft.gpu.sampling.session import Session
from fleetcraft.telemetry.logger.driver_thread import DriverThread, Outcome, Step
from fleetcraft.telemetry.logger.roll_call import key_of

_FIND = "find "


def found_number(key: str) -> int | None:
    """The driver's number that a call was about; None where it was about something else."""
    number = key.removeprefix(_FIND)
    return int(number) if key != number and number.isdecimal() else None


class GpuSearch:
    """Finds the GPUs of a session, each by calls of its own.

    Args:
        driver: Makes the calls.
        session: The session.
        deadline_s: For the calls of one GPU.

    Attributes:
        unfound: Keys of the GPUs that may be one whose number or name is still being asked for.
    """

    def __init__(self, driver: DriverThread, session: Session, deadline_s: float) -> None:
        self._driver = driver
        self._session = session
        self._deadline_s = deadline_s
        self._listed: dict[int, Listed] = {}
        self._devices: dict[str, Device] = {}
        self._undescribed: set[str] = set()
        self.unfound: frozenset[str] = frozenset()

    @staticmethod
    def is_about(key: str) -> bool:
        """Whether a call was one of these questions."""
        return key.startswith(_FIND)

    def stuck_s(self) -> float:
        """For how long the oldest of the questions has not returned; 0 when all have."""
        since = [at_s for key, at_s in list(self._driver.stuck.items()) if self.is_about(key)]
        return time.monotonic() - min(since) if since else 0.0

    def run(self, *, anew: bool = True) -> list[Device] | None:
        """Asks for the GPUs.

        Args:
            anew: Ask also those whose names are known what they are called.

        Returns:
            Every GPU of the session, with what is known of it; None when an order to end came.
        """
        outcomes = self._find()
        if outcomes is None:
            return None
        is_stuck = any(outcome.timed_out for outcome in outcomes.values())
        chosen = self._session.choose(self._all_listed(), self._parents(outcomes))
        self._devices = {key_of(device): device for device in chosen}
        self.unfound = frozenset(
            key for key, device in self._devices.items() if is_stuck and not self._is_told(device)
        )
        return self._describe(chosen, anew=anew)

    # ------------------------------------------------------------------------------- finding

    def _find(self) -> dict[str, Outcome] | None:
        session = self._session
        busy = [device for key, device in self._devices.items() if key in self._driver.stuck]
        kept = {
            number: one
            for number, one in self._listed.items()
            if any(_is_of(one, device) for device in busy)
        }
        steps = [
            Step(f"{_FIND}{number}", partial(session.find, number))
            for number in range(session.count)
            if number not in kept
        ]
        steps += [
            Step(f"{_FIND}{entry}", partial(session.find_parent, entry))
            for entry in session.wanted_slices
            if _of_slice(entry, busy) is None
        ]
        outcomes = self._driver.run(steps, self._deadline_s)
        if len(outcomes) < len(steps):
            return None
        self._listed = kept
        for number in range(session.count):
            found = outcomes.get(f"{_FIND}{number}", Outcome()).value
            unknown = kept.get(number, Listed(number, None, ""))
            self._listed[number] = found if isinstance(found, Listed) else unknown
        return outcomes

    def _all_listed(self) -> list[Listed]:
        return [self._listed[number] for number in range(self._session.count)]

    def _parents(self, outcomes: dict[str, Outcome]) -> dict[str, str]:
        told = {}
        for entry in self._session.wanted_slices:
            value = outcomes.get(f"{_FIND}{entry}", Outcome()).value
            before = _of_slice(entry, self._devices.values())
            told[entry] = value if isinstance(value, str) else before.uuid if before else ""
        return told

    def _is_told(self, device: Device) -> bool:
        """Whether it surely is none of those whose calls are stuck."""
        return any(_is_of(one, device) for one in self._listed.values() if one.handle is not None)

    # ---------------------------------------------------------------------------- describing

    def _describe(self, chosen: list[Device], *, anew: bool) -> list[Device] | None:
        keys = [key_of(device) for device in chosen]
        steps = [
            Step(key, partial(self._session.describe, device))
            for key, device in zip(keys, chosen, strict=True)
            if key not in self.unfound and (anew or key in self._undescribed or not device.name)
        ]
        outcomes = self._driver.run(steps, self._deadline_s)
        if len(outcomes) < len(steps):
            return None
        self._undescribed = {key for key, outcome in outcomes.items() if outcome.timed_out}
        self._undescribed |= self.unfound
        values = [outcomes.get(key, Outcome()).value for key in keys]
        devices = [
            value if isinstance(value, Device) else device
            for value, device in zip(values, chosen, strict=True)
        ]
        self._devices = {key_of(device): device for device in devices}
        return devices


def _is_of(one: Listed, device: Device) -> bool:
    """Whether what was found is this GPU, by its UUID, else by its number."""
    return one.uuid == device.uuid if one.uuid and device.uuid else one.number == device.index


def _of_slice(entry: str, devices: Iterable[Device]) -> Device | None:
    return next((device for device in devices if device.uuid and entry in device.mig), None)
