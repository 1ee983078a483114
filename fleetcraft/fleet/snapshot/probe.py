"""The program that looks at the GPUs of one node: ``python -m fleetcraft.fleet.snapshot.probe``.

It runs as one task of a job step (`probe_step` starts it) and prints one line of JSON. Nothing is
started, changed or kept here. Invariant: it ends within its limit also when the driver hangs, and
then says so; what it could not read is None with a reason.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping

import msgspec

from fleetcraft.errors import DeviceError
from fleetcraft.gpu.nvml import Reading, read_gpus
from fleetcraft.identity import this_host

SCHEMA = "fleetcraft.probe/1"
_LIMIT_S = 10.0


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one node says.

    Attributes:
        node: Its name in Slurm.
        step: The step that this ran in, ``JOB.STEP``.
        gpus: Readings of the step's GPUs.
        indexes: Slurm's numbers of them on the node; empty when it does not say.
        reason: Why there are no readings.
    """

    node: str
    step: str = ""
    gpus: tuple[Reading, ...] = ()
    indexes: tuple[int, ...] = ()
    reason: str = ""
    schema: str = SCHEMA


def look(
    environ: Mapping[str, str],
    *,
    read: Callable[[], list[Reading]] = read_gpus,
    limit_s: float = _LIMIT_S,
) -> NodeReport:
    """Reads the GPUs of the step that this process is in.

    Args:
        environ: Its environment, in which Slurm says which ones they are.
        read: Reads every GPU in sight; runs in a thread, since a stuck driver never returns.
        limit_s: How long to wait for it.
    """
    answers: queue.SimpleQueue[list[Reading] | str] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(read())
        except DeviceError as error:
            answers.put(error.message)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=limit_s)
    except queue.Empty:
        answer = f"the driver did not answer within {limit_s:g} s"
    gpus = () if isinstance(answer, str) else _of_this_step(answer, environ)
    reason = answer if isinstance(answer, str) else ""
    if not gpus and not reason:
        reason = "the driver shows no GPU of this job"
    return NodeReport(
        node=this_host().host,
        step=f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}",
        gpus=gpus,
        indexes=_indexes(environ.get("SLURM_STEP_GPUS", "")),
        reason=reason,
    )


def _of_this_step(readings: list[Reading], environ: Mapping[str, str]) -> tuple[Reading, ...]:
    """Those that Slurm names; all in sight where it names none, as on sites without GRES.

    A driver that shows only the step's own GPUs counts them from 0, and so does Slurm then.
    """
    allowed = environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return tuple(readings)
    entries = [entry.strip() for entry in allowed.split(",") if entry.strip()]
    return tuple(
        one
        for one in readings
        if str(one.index) in entries
        or (one.uuid and any(e.startswith("GPU-") and one.uuid.startswith(e) for e in entries))
    )


def _indexes(text: str) -> tuple[int, ...]:
    parts = text.split(",") if text else []
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def main() -> None:
    """Prints the report and ends, whatever a thread in the driver still does."""
    line = msgspec.json.encode(look(os.environ)) + b"\n"
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
