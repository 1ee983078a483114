"""The NVML binding, and the GPUs that this process may use.

The only module that imports ``pynvml``. Invariant: a driver that does not answer is an error or an
empty list with a reason, never a made-up device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import msgspec

from fleetcraft.errors import DeviceError

_MIB = 1 << 20
_DRIVER_GPUS = "/proc/driver/nvidia/gpus"


def visible_gpus() -> list[str]:
    """The GPUs of this process, one entry each, in CUDA's order.

    ``CUDA_VISIBLE_DEVICES``, which Slurm sets for a job's share of the node, limits them. Where
    NVML answers, the entries are UUIDs; where it does not, Slurm's own entries are used.

    Returns:
        UUIDs (``GPU-…``, ``MIG-…``), or the variable's own entries, each once; empty when it is
        set empty.

    Raises:
        DeviceError: NVML does not answer and nothing else says what GPUs there are.
    """
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    entries = None if allowed is None else _valid_entries(allowed)
    if entries == []:
        return []
    try:
        uuids = _uuids()
    except DeviceError:
        if entries:
            return list(dict.fromkeys(entries))
        raise
    if entries is None:
        return uuids
    # A GPU that is named twice, by index and by UUID, is still one.
    return list(dict.fromkeys(_resolve(entry, uuids) for entry in entries))


def count_gpus() -> int | None:
    """How many GPUs this process may use, without asking the driver; None when nothing says.

    Source: ``/proc/driver/nvidia/gpus`` has a folder for each GPU of the node (NVIDIA driver
    README, "The /proc filesystem interface").
    """
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return len(set(_valid_entries(allowed)))
    try:
        return len(os.listdir(_DRIVER_GPUS))
    except OSError:
        return None


def _valid_entries(text: str) -> list[str]:
    """The entries before the first invalid one: CUDA sees no device after that.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables". ``NoDevFiles`` is what Slurm
    sets for a job without GPUs.
    """
    entries = (entry.strip() for entry in text.split(","))
    return list(takewhile(lambda entry: entry not in ("", "-1", "NoDevFiles"), entries))


def _resolve(entry: str, uuids: list[str]) -> str:
    if entry.isdecimal():
        if int(entry) < len(uuids):
            return uuids[int(entry)]
        raise DeviceError(
            f"CUDA_VISIBLE_DEVICES names GPU {entry}, but the driver shows {len(uuids)}",
            hint="nvidia-smi -L lists them",
        )
    whole = [uuid for uuid in uuids if uuid.startswith(entry)]
    return whole[0] if len(whole) == 1 else entry


def _uuids() -> list[str]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DeviceError(
            f"the NVIDIA driver does not answer: {error}", hint="nvidia-smi should list the GPUs"
        ) from error
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except pynvml.NVMLError as error:
        raise DeviceError(f"the NVIDIA driver could not list its GPUs: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, read once. What the driver did not say is None, and ``status`` says why.

    Attributes:
        index: The driver's number of it.
        util_pct: Busy share of at most the last second, 0 to 100.
        mem_used_mib: In use, without what the driver keeps for itself.
        status: ``ok``, else the first cause met: ``lost``, ``reset_required``, ``no_permission``,
            ``unsupported`` or ``unknown``.
    """

    index: int
    uuid: str = ""
    util_pct: float | None = None
    mem_used_mib: float | None = None
    mem_total_mib: float | None = None
    status: str = "ok"


def read_gpus() -> list[Reading]:
    """Reads every GPU that the driver shows to this process; one in a bad state hides no other.

    A call into a stuck driver never returns: call this where that can be borne.

    Raises:
        DeviceError: The driver does not answer, or cannot say how many there are.
    """
    import pynvml

    # A binding that is newer than the driver's library raises the second, which is no NVMLError.
    failures = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except failures as error:
        raise DeviceError(f"the NVIDIA driver does not answer: {error}") from error
    return [_read(pynvml, index, failures) for index in range(count)]


def _read(pynvml: Any, index: int, failures: tuple[type[Exception], ...]) -> Reading:
    causes: list[str] = []

    def ask(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except failures as error:
            causes.append(_cause(pynvml, error))
            return None

    handle = ask(lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return Reading(index=index, status=causes[0])
    uuid = ask(lambda: _text(pynvml.nvmlDeviceGetUUID(handle)))
    use = ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    # Version 2 alone leaves out the memory that the driver reserves.
    memory = ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2))
    if memory is not None and not memory.total:
        memory = None
        causes.append("unknown")
    return Reading(
        index=index,
        uuid=uuid or "",
        util_pct=None if use is None else float(use.gpu),
        mem_used_mib=None if memory is None else memory.used / _MIB,
        mem_total_mib=None if memory is None else memory.total / _MIB,
        status=causes[0] if causes else "ok",
    )


def _cause(pynvml: Any, error: Exception) -> str:
    words = {
        pynvml.NVML_ERROR_GPU_IS_LOST: "lost",
        pynvml.NVML_ERROR_RESET_REQUIRED: "reset_required",
        pynvml.NVML_ERROR_NO_PERMISSION: "no_permission",
        pynvml.NVML_ERROR_NOT_SUPPORTED: "unsupported",
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "unsupported",
    }
    return words.get(getattr(error, "value", None), "unknown")
