"""What an earlier logger of this node and job has said of its GPUs, in the sidecars that it left.

A GPU that is lost does not tell its name to whoever asks first thereafter. Invariant: nothing is
taken from another boot, in which numbers may mean other GPUs, and nothing here raises.
"""

from __future__ import annotations

import os

import msgspec

from fleetcraft.gpu.sampling.samples import Device
from fleetcraft.identity import this_host
from fleetcraft.layout import parse_telemetry_file, sidecar
from fleetcraft.telemetry.columns import SIDECAR_SCHEMA
from fleetcraft.telemetry.logger.csv_file import safe_name
from fleetcraft.telemetry.logger.sidecar_record import GpuRecord

_MOST_FILES = 8
_MOST_BYTES = 1 << 20


class _Sidecar(msgspec.Struct):
    schema: str
    node: str
    job_id: str
    boot_id: str
    gpus: list[GpuRecord]


def gpus_before(folder: str, node: str, job: str) -> list[Device]:
    """The GPUs that the newest sidecars of a node and job name, one for each number.

    Args:
        folder: Where the files lie.
        node: As the sidecar has it.
        job: Of Slurm, or that of this boot.
    """
    boot_id = this_host().boot_id
    found: dict[int, Device] = {}
    for path in _newest(folder, node):
        one = _read(path)
        if (
            one is None
            or not boot_id
            or (one.node, one.job_id, one.boot_id) != (node, job, boot_id)
        ):
            continue
        for gpu in one.gpus:
            if gpu.uuid and gpu.index is not None:
                found.setdefault(gpu.index, _device(gpu))
    return list(found.values())


def _newest(folder: str, node: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    dated = []
    for name in names:
        parsed = parse_telemetry_file(name)
        if parsed is not None and parsed.node == safe_name(node):
            dated.append((parsed.started, name))
    newest = sorted(dated, reverse=True)[:_MOST_FILES]
    return [sidecar(os.path.join(folder, name)) for _, name in newest]


def _read(path: str) -> _Sidecar | None:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            found = msgspec.json.decode(file.read(_MOST_BYTES), type=_Sidecar)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.schema == SIDECAR_SCHEMA else None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _device(gpu: GpuRecord) -> Device:
    return Device(
        position=0,
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        pci_bus_id=gpu.pci_bus_id,
        mem_total_mib=gpu.mem_total_mib,
        mig=gpu.mig,
    )
