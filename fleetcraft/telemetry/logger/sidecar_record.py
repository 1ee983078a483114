"""The sidecar as the logger writes it: which process, of which place, saw which GPUs.

Not here: reading it (`sources`), putting it on disk (`csv_file`). Invariant: what is not known is
null, and ``ended_at`` is set by nothing but an end in order.
"""

from __future__ import annotations

import os

import msgspec

from fleetcraft.gpu.nvml import Versions, count_gpus
from fleetcraft.gpu.sampling.samples import Device
from fleetcraft.identity import process_id, this_host
from fleetcraft.telemetry.columns import COLUMNS, SIDECAR_SCHEMA
from fleetcraft.telemetry.logger.row_writer import stamp
from fleetcraft.telemetry.logger.settings import LoggerSettings


class GpuRecord(msgspec.Struct, kw_only=True):
    """One GPU that was ever seen."""

    index: int | None
    uuid: str
    name: str
    pci_bus_id: str
    mem_total_mib: float | None
    mig: tuple[str, ...]


class SidecarRecord(msgspec.Struct, kw_only=True):
    """The sidecar's fields; what they mean is on the format page.

    ``rows_written`` and ``rows_lost`` are of all files of this logger, and null until its end.
    """

    schema: str = SIDECAR_SCHEMA
    node: str
    job_id: str
    step_id: str
    cluster: str
    boot_id: str
    pid: int
    start_ticks: int | None
    interval_s: float
    started_at: str
    ended_at: str | None = None
    end_reason: str = ""
    driver: Versions | None = None
    gpus: list[GpuRecord] = []
    expected_gpus: int | None
    columns: tuple[str, ...] = COLUMNS
    rows_written: int | None = None
    rows_lost: int | None = None


def gpu_record(device: Device) -> GpuRecord:
    """A GPU as the sidecar names it."""
    return GpuRecord(
        index=device.index,
        uuid=device.uuid,
        name=device.name,
        pci_bus_id=device.pci_bus_id,
        mem_total_mib=device.mem_total_mib,
        mig=device.mig,
    )


def first_record(settings: LoggerSettings, now_s: float) -> SidecarRecord:
    """The sidecar of a logger that begins, GPUs and driver not known yet."""
    me = process_id(os.getpid())
    return SidecarRecord(
        node=settings.node,
        job_id=settings.job,
        step_id=settings.step,
        cluster=settings.cluster,
        boot_id=this_host().boot_id,
        pid=os.getpid(),
        start_ticks=me.start_ticks if me else None,
        interval_s=settings.interval_s,
        started_at=stamp(now_s),
        expected_gpus=expected_gpus(),
    )


def expected_gpus() -> int | None:
    """How many GPUs this node gives the job, by Slurm's word or the visible devices; else None.

    Source: srun(1), "OUTPUT ENVIRONMENT VARIABLES", SLURM_GPUS_ON_NODE.
    """
    said = os.environ.get("SLURM_GPUS_ON_NODE", "")
    return int(said) if said.isdecimal() else count_gpus()
