"""Which GPUs are expected on a node, how each was when last seen, and what changed since.

Nothing here calls a driver. Invariant: a change is told once, and a GPU that cannot be read keeps
its name.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fleetcraft.gpu.sampling.samples import Device, Event, Sample
from fleetcraft.gpu.status import Status

_IN_WORDS = {
    Status.LOST: "is lost",
    Status.RESET_REQUIRED: "needs a reset",
    Status.ABSENT: "is not listed by the driver",
    Status.TIMEOUT: "does not answer: a call has not returned",
}
"""The conditions whose beginning and end are events."""


def key_of(device: Device) -> str:
    """What tells a GPU from others: its UUID, or its number where the driver does not say that.

    Of a GPU of which nothing is known but that a slice of it is wanted, that is the slice.
    """
    if device.uuid:
        return device.uuid
    if device.index is not None:
        return f"#{device.index}"
    return device.mig[0] if device.mig else f"@{device.position}"


def called(device: Device) -> str:
    """A GPU in words."""
    if device.index is not None:
        return f"GPU {device.index}"
    return f"GPU {device.uuid}" if device.uuid or not device.mig else f"GPU of {device.mig[0]}"


class RollCall:
    """The GPUs of this node.

    Attributes:
        devices: Those that were ever seen, by key, as they were listed last.
    """

    def __init__(self) -> None:
        self.devices: dict[str, Device] = {}
        self._condition: dict[str, Status] = {}

    def enroll(self, devices: Iterable[Device]) -> bool:
        """Takes the session's list, which holds every GPU of the one before.

        Returns:
            Whether it says anything of them that was not known.
        """
        before = [_identity(device) for device in self.devices.values()]
        self.devices = {key_of(device): device for device in devices}
        for key, device in self.devices.items():
            # One that was listed without its UUID before is the same GPU, not another one.
            if key not in self._condition and f"#{device.index}" not in self.devices:
                self._condition[key] = self._condition.pop(f"#{device.index}", Status.OK)
        return [_identity(device) for device in self.devices.values()] != before

    def note(self, key: str, status: Status) -> list[Event]:
        """Notes how a GPU is; the event that this makes, if it makes one."""
        before = self._condition.get(key, Status.OK)
        if status is before:
            return []
        after = status if status in _IN_WORDS else Status.OK
        self._condition[key] = after
        if after == before:
            return []
        device = self.devices[key]
        if after == Status.OK:
            text = f"{called(device)} is back; before that it {_IN_WORDS[before]}"
        else:
            text = f"{called(device)} {_IN_WORDS[after]}"
        return [Event(uuid=device.uuid, index=device.index, text=text, status=after)]

    def blank(self, key: str, status: Status, detail: str = "") -> list[Sample]:
        """Rows of a GPU and of its slices with no value in them, for one that was not read."""
        device = self.devices[key]
        own = Sample(
            index=device.index,
            uuid=device.uuid,
            pci_bus_id=device.pci_bus_id,
            name=device.name,
            status=status,
            detail=detail,
        )
        slices = [
            msgspec.structs.replace(own, mig_uuid=uuid, is_slice=True, detail="")
            for uuid in device.mig
        ]
        is_named = bool(device.uuid) or device.index is not None
        return [own, *slices] if is_named or not slices else slices

    def has_changed(self, key: str, rows: list[Sample]) -> bool:
        """Whether rows that were read tell of names or slices that the list does not."""
        device = self.devices[key]
        if len(rows) == 1 and not device.mig and not rows[0].is_slice:
            return rows[0].uuid != device.uuid or rows[0].name != device.name
        own = [row for row in rows if not row.is_slice]  # a slice's name is its own
        if any(row.uuid != device.uuid or row.name != device.name for row in own):
            return True
        slices = {row.mig_uuid for row in rows if row.is_slice}
        return rows[0].status in (Status.OK, Status.MIG) and slices != set(device.mig)


def _identity(device: Device) -> Device:
    return msgspec.structs.replace(device, position=0, status=Status.OK)
