"""The other rooms of a scratch tree: the frozen batch table, training runs, trajectory queues.

Each is looked at as its own command does. Invariant: what cannot be read is a row with its trouble
or an entry of what could not be read, never a missing row.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import msgspec

from fleetcraft.batch_table import Row, read_table
from fleetcraft.errors import DataError, FleetError
from fleetcraft.files import FileSystem
from fleetcraft.identity import sha256_hex
from fleetcraft.layout import Scratch, calibration_record
from fleetcraft.report.records import (
    CalibrationPart,
    QueueRow,
    RunRow,
    TableRow,
    Unread,
)

_ROWS = 60
_RUNS = 40
_QUEUES = 20
_FOLDERS = 400


@dataclass(kw_only=True)
class Rooms:
    """What was found."""

    calibration: CalibrationPart | None = None
    runs: tuple[RunRow, ...] = ()
    runs_left_out: int = 0
    queues: tuple[QueueRow, ...] = ()
    queues_left_out: int = 0
    unread: list[Unread] = field(default_factory=list)


def gather_calibration(table: str, scratch: Scratch) -> CalibrationPart | None:
    """The frozen batch table; None where there is no file.

    Args:
        table: Its path.
        scratch: Where the evidence of its rows is looked for.
    """
    if not os.path.lexists(table):
        return None
    try:
        found = read_table(table)
    except DataError as error:
        return CalibrationPart(path=table, holds=False, problem=error.message)
    rows = [_row(key, row, scratch) for key, row in list(found.families.items())[:_ROWS]]
    return CalibrationPart(
        path=table,
        holds=True,
        hash=found.hash,
        rows=tuple(rows),
        rows_left_out=max(0, len(found.families) - _ROWS),
    )


def _row(key: str, row: Row, scratch: Scratch) -> TableRow:
    peak = [word for word in (row.peak.phase, row.peak.owner) if word]
    if row.peak.device_mib is not None:
        peak.append(f"{row.peak.device_mib} MiB device")
    if row.peak.host_mib is not None:
        peak.append(f"{row.peak.host_mib} MiB host")
    following = "" if row.next is None else f"{row.next.batch}: {row.next.verdict}"
    return TableRow(
        family=key,
        batch=row.batch,
        timed_batch=row.timed_batch,
        device=row.device.name,
        mem_mib=row.device.mem_mib,
        torch=row.stack.torch,
        sdpa=row.stack.sdpa,
        reason=row.reason,
        peak=", ".join(peak),
        next=following.removesuffix(": "),
        evidence_holds=_evidence_holds(key, row, scratch),
    )


def _evidence_holds(key: str, row: Row, scratch: Scratch) -> bool | None:
    """Whether a calibration record of the family has a hash that the row names."""
    if not row.evidence:
        return None
    folder = scratch.family_folder(key)
    fs = FileSystem()
    try:
        runs = sorted(fs.listdir(folder), reverse=True)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    for run in runs[:_FOLDERS]:
        try:
            data = fs.read(calibration_record(f"{folder}/{run}"))
        except OSError:
            continue
        if f"sha256:{sha256_hex(data)}" in row.evidence:
            return True
    return False if len(runs) <= _FOLDERS else None


def gather_runs(scratch: Scratch, rooms: Rooms) -> None:
    """Every training run, by name."""
    from fleetcraft.layout.runs import RunPaths
    from fleetcraft.training.records import TERMINAL
    from fleetcraft.training.supervision.overview import list_runs, look_at_run

    try:
        names = list_runs(scratch.root)
    except DataError as error:
        rooms.unread.append(Unread(what="training runs", why=error.message))
        return
    looks = [look_at_run(RunPaths(scratch.run_folder(name))) for name in names[:_RUNS]]
    rooms.runs_left_out = max(0, len(names) - _RUNS)
    rows = []
    for look in looks:
        status = look.status
        row = RunRow(
            run=look.run, folder=look.folder, supervised=look.supervised, trouble=look.trouble
        )
        if status is not None:
            row = msgspec.structs.replace(
                row,
                state=status.state.value,
                why=status.why,
                step=status.step,
                end_step=status.end_step,
                loss=status.loss,
                tokens_per_s=status.tokens_per_s,
                eta_s=None if status.state in TERMINAL else status.eta_s,
                provisional=status.provisional,
                rung=msgspec.to_builtins(status.rung),
                restarts=status.restarts,
                checkpoint_step=status.checkpoint_step,
                crash=str(status.diagnosis.crash.value) if status.diagnosis else "",
                written_at=status.at,
                trouble="; ".join(part for part in (status.trouble, look.trouble) if part),
            )
        rows.append(row)
    rooms.runs = tuple(rows)


def gather_queues(scratch: Scratch, rooms: Rooms) -> None:
    """Every trajectory queue, by name."""
    from fleetcraft.rollouts.queue import RolloutQueue
    from fleetcraft.rollouts.status import Watcher

    try:
        names = sorted(FileSystem().listdir(scratch.rollouts))
    except FileNotFoundError:
        return
    except OSError as error:
        rooms.unread.append(Unread(what=scratch.rollouts, why=error.strerror or str(error)))
        return
    rooms.queues_left_out = max(0, len(names) - _QUEUES)
    rows = []
    for name in names[:_QUEUES]:
        folder = scratch.rollout_queue(name)
        try:
            status = Watcher(RolloutQueue.open(folder)).watch(0)
        except (FleetError, OSError) as error:
            why = error.message if isinstance(error, FleetError) else str(error.strerror)
            rooms.unread.append(Unread(what=folder, why=why))
            continue
        rows.append(
            QueueRow(
                name=name,
                folder=folder,
                run=status.settings.run,
                waiting=status.waiting,
                high_water=status.settings.high_water,
                pending=status.counts.pending,
                claimed=status.counts.claimed,
                committed=status.counts.consumed,
                version=status.counts.version,
                quarantined=status.counts.quarantined,
                refused=status.refused,
                trainer=status.trainer.alive,
                abort=status.abort.reason if status.abort else "",
            )
        )
    rooms.queues = tuple(rows)
