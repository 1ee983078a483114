"""What the GPUs of this process are called, how large they are, and what they may draw: read once.

What changes from second to second is `sampling`'s. Run as a program it prints what it found as
JSON, so that whoever must not wait for a driver can set a limit. Invariant: what the driver did
not say is None or empty; no driver means no GPUs, and a driver that refuses is an error.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from fleetcraft.errors import DeviceError
from fleetcraft.gpu.nvml import DriverError, Library, clean, visible_gpus
from fleetcraft.gpu.status import Status

_MIB = 1 << 20
_NO_DRIVER = frozenset({Status.NO_NVML.value, Status.DRIVER_NOT_LOADED.value})


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU or slice.

    Attributes:
        uuid: ``GPU-…`` or ``MIG-…``.
        name: As the driver calls it.
        mem_mib: Its total memory in MiB.
        power_limit_w: The limit that is in force; None where it has none or does not say.
        driver: The driver's version.
    """

    uuid: str
    name: str = ""
    mem_mib: float | None = None
    power_limit_w: float | None = None
    driver: str = ""


def describe_gpus() -> list[GpuFacts]:
    """The GPUs that this process may use, in CUDA's order; none where there is no driver.

    A call into a stuck driver never returns: call this where that can be borne.

    Raises:
        DeviceError: There is a driver, and it refuses.
    """
    try:
        library = Library()
    except DriverError as error:
        if error.status in _NO_DRIVER:
            return []
        raise
    try:
        driver = library.versions().driver_version
        return [_describe(library, uuid, driver) for uuid in visible_gpus()]
    finally:
        library.close()


def _describe(library: Library, uuid: str, driver: str) -> GpuFacts:
    code, handle = library.ask("nvmlDeviceGetHandleByUUID", uuid)
    if code:
        raise DeviceError(f"the NVIDIA driver does not know {uuid} (NVML code {code})", code=code)
    # Version 2, else the total of version 1: they agree on the total.
    code, memory = library.ask("nvmlDeviceGetMemoryInfo", handle)
    total = 0 if code else int(memory.total)
    return GpuFacts(
        uuid=uuid,
        name=library.text("nvmlDeviceGetName", handle),
        mem_mib=total / _MIB if total else None,
        power_limit_w=_watts(library.ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
        driver=driver,
    )


def _watts(answer: tuple[int, Any]) -> float | None:
    code, milliwatts = answer
    return None if code or not milliwatts else milliwatts / 1000


def main() -> int:
    """Prints one JSON value: the GPUs, or why they cannot be read."""
    try:
        said: dict[str, Any] = {"gpus": describe_gpus()}
    except DeviceError as error:
        said = {"error": clean(error.message)}
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
