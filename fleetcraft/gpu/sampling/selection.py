"""Which GPUs a session is about: those that are wanted or known, found among those listed.

Invariant: one that is wanted or known and not listed is in the result all the same, so that its
absence is written down; and no number is taken for a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fleetcraft.gpu.nvml import Library
from fleetcraft.gpu.sampling.samples import Device


class Listed(NamedTuple):
    """A GPU that the driver lists; no handle or UUID where it refuses that."""

    number: int
    handle: Any
    uuid: str


class Choice(NamedTuple):
    """A GPU of the session, its handle where there is one, and which slices; None for all."""

    device: Device
    handle: Any
    slices: tuple[str, ...] | None


def count_listed(library: Library) -> int:
    """How many GPUs the driver lists; looks into none of them.

    Raises:
        DriverError: It cannot say how many there are.
    """
    try:
        return int(library.binding.nvmlDeviceGetCount())
    except library.failures as error:
        raise library.refusal("cannot say how many GPUs there are", error) from error


def look_at(library: Library, number: int) -> Listed:
    """One of them, by the driver's number."""
    code, handle = library.ask("nvmlDeviceGetHandleByIndex", number)
    return Listed(number, handle, "" if code else library.text("nvmlDeviceGetUUID", handle))


def find_parent(library: Library, entry: str) -> str:
    """The UUID of the GPU that a slice is cut from; empty when that cannot be told."""
    code, handle = library.ask("nvmlDeviceGetHandleByUUID", entry)
    if code == 0:
        code, handle = library.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
    return "" if code else library.text("nvmlDeviceGetUUID", handle)


def choose(
    listed: Sequence[Listed],
    parents: Mapping[str, str],
    wanted: Sequence[str] | None,
    known: Sequence[Device],
    earlier: Sequence[Device] = (),
) -> list[Choice]:
    """The GPUs of the session, by the driver's number, unlisted ones last.

    Args:
        listed: What the driver lists.
        parents: The GPU of each wanted slice, as `find_parent` tells it.
        wanted: UUIDs, or their beginnings, of GPUs and slices, or the driver's numbers; None for
            everything that is listed or known.
        known: Devices of an earlier session.
        earlier: Devices of an earlier process; none of them is expected.
    """
    chosen = _all(listed, known) if wanted is None else _those(listed, parents, wanted, known)
    named = {one.uuid for one in listed} | {choice.device.uuid for choice in chosen}
    before = {d.index: d for d in (*earlier, *known) if d.uuid and d.uuid not in named}
    return [_with_name(choice, before) for choice in chosen]


def _with_name(choice: Choice, before: Mapping[int | None, Device]) -> Choice:
    """A GPU that tells no name, lost ones do not, is taken for the one that had its number."""
    device = choice.device
    same = None if device.uuid or device.index is None else before.get(device.index)
    return choice if same is None else choice._replace(device=same)


def _those(
    listed: Sequence[Listed],
    parents: Mapping[str, str],
    wanted: Sequence[str],
    known: Sequence[Device],
) -> list[Choice]:
    chosen: dict[str, Choice] = {}
    for entry in wanted:
        if entry.startswith("MIG-"):
            parent = _parent(listed, entry, parents.get(entry, ""), known)
            key = parent.device.uuid or entry
            slices = chosen[key].slices if key in chosen else ()
            chosen[key] = parent._replace(slices=None if slices is None else (*slices, entry))
        else:
            choice = _named(listed, entry, known)
            chosen[choice.device.uuid or entry] = choice
    return sorted(
        chosen.values(), key=lambda one: (one.device.index is None, one.device.index or 0)
    )


def _all(listed: Sequence[Listed], known: Sequence[Device]) -> list[Choice]:
    told = {one.uuid for one in listed}
    numbers = {one.number for one in listed}
    missed = [
        device
        for device in known
        if (device.uuid not in told if device.uuid else device.index not in numbers)
    ]
    choices = []
    for one in listed:
        choice = _listed(one, known)
        # A GPU without a name is taken for the one that had its number.
        before = next((device for device in missed if device.index == one.number), None)
        if not one.uuid and before is not None:
            missed.remove(before)
            choice = choice._replace(device=before)
        choices.append(choice)
    return choices + [Choice(device, None, None) for device in missed]


def _listed(one: Listed, known: Sequence[Device]) -> Choice:
    before = next((device for device in known if one.uuid and device.uuid == one.uuid), None)
    device = before or Device(position=0, uuid=one.uuid)
    return Choice(msgspec.structs.replace(device, index=one.number), one.handle, None)


def _named(listed: Sequence[Listed], entry: str, known: Sequence[Device]) -> Choice:
    if entry.isdecimal():
        found = [one for one in listed if one.number == int(entry)]
        return (
            _listed(found[0], known)
            if found
            else Choice(Device(position=0, index=int(entry)), None, None)
        )
    found = [one for one in listed if one.uuid and one.uuid.startswith(entry)]
    if len(found) == 1:
        return _listed(found[0], known)
    before = next((device for device in known if device.uuid.startswith(entry)), None)
    # The session will ask for it by its UUID, which tells why it is not listed.
    return Choice(before or Device(position=0, uuid=entry), None, None)


def _parent(listed: Sequence[Listed], entry: str, uuid: str, known: Sequence[Device]) -> Choice:
    """The GPU that a slice is cut from; one without a name where that is not known."""
    for one in listed:
        if uuid and one.uuid == uuid:
            return _listed(one, known)
    before = next((device for device in known if entry in device.mig), None)
    return Choice(before or Device(position=0, mig=(entry,)), None, None)
