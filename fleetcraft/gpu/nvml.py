"""The NVML binding, and the GPUs that this process may use.

The only module that imports ``pynvml``. Invariant: a driver that does not answer is an error or an
empty list with a reason, never a made-up device.
"""

from __future__ import annotations

import os
from itertools import takewhile

from fleetcraft.errors import DeviceError


def visible_gpus() -> list[str]:
    """The GPUs of this process, one entry each, in CUDA's order.

    ``CUDA_VISIBLE_DEVICES``, which Slurm sets for a job's share of the node, limits them. Where
    NVML answers, the entries are UUIDs; where it does not, Slurm's own entries are used.

    Returns:
        UUIDs (``GPU-…``, ``MIG-…``), or the variable's own entries; empty when it is set empty.

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
            return entries
        raise
    if entries is None:
        return uuids
    return [_resolve(entry, uuids) for entry in entries]


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
