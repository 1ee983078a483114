"""From a calibration's record to a row of the batch table, if it may be one.

What chose the batch is `sweep.choose`; what obeys the row is elsewhere. Invariant: a row's evidence
are hashes of files that lay on disk when it was made, and said then what the row says.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence

import msgspec

from fleetcraft.batch_table import (
    Change,
    Device,
    Next,
    Peak,
    Row,
    Stack,
    Table,
    diff,
    make_table,
    read_table,
    write_table,
)
from fleetcraft.calibration.records import MIB, Calibration, Trial, Verdict
from fleetcraft.calibration.sweep.choose import Limits, device_need_bytes
from fleetcraft.errors import BatchRefusedError
from fleetcraft.files import FileSystem
from fleetcraft.identity import sha256_hex
from fleetcraft.layout import calibration_record

SOAK_CYCLES = 4
"""Cycles in one process without which a batch is not known to last. Source: the third of three
equal videos failed where two had run."""
_fs = FileSystem()


def freeze(
    calibrations: Sequence[Calibration], table_path: str, *, emulated: bool = False
) -> tuple[Table, list[Change]]:
    """Writes the rows of these calibrations into the table; rows of other families stay.

    Args:
        calibrations: As read from disk; of two of one family the later in the list counts.
        table_path: The table; made where there is none.
        emulated: See `row_of`.

    Returns:
        The table as it is now, and what changed.

    Raises:
        BatchRefusedError: One of them cannot be frozen; nothing was written.
        DataError: The table that is there was edited.
        TryAgainLaterError: Somebody else wrote the table meanwhile.
        OSError: It cannot be written.
    """
    before = read_table(table_path) if os.path.lexists(table_path) else None
    rows = dict(before.families) if before else {}
    for calibration in calibrations:
        rows[calibration.family] = row_of(calibration, emulated=emulated)
    after = make_table(rows)
    write_table(table_path, after, replaces=before.hash if before else "")
    return after, diff(before or make_table({}), after)


def row_of(calibration: Calibration, *, emulated: bool = False) -> Row:
    """The row that this calibration gives.

    Args:
        calibration: As read from disk.
        emulated: Whether it may have run under a device or host budget that the machine does not
            have. Such a batch is safe on the device of the row, but was chosen for a smaller one.

    Raises:
        BatchRefusedError: It cannot be frozen; its ``field`` is ``fault``, ``choice``, ``smoke``,
            ``verdict``, ``soak``, ``budget``, ``environment`` or ``evidence``.
    """
    trial = _chosen(calibration, emulated=emulated)
    there = trial.environment
    choice = calibration.choice
    following = None
    if choice.next_batch is not None:
        following = Next(
            batch=choice.next_batch,
            verdict=choice.next_verdict.value if choice.next_verdict else "",
            throughput_gain=_rounded(choice.throughput_gain),
        )
    return Row(
        identity=calibration.identity,
        device=Device(name=there.device, mem_mib=_whole_mib(there.device_mem_mib)),
        stack=Stack(torch=there.torch, sdpa=there.sdpa, alloc=there.alloc),
        batch=trial.batch,
        timed_batch=choice.timed_batch,
        reason=choice.reason,
        peak=Peak(
            phase=trial.phase,
            owner=trial.owner,
            device_mib=_mib_up(device_need_bytes(trial, Limits())),
            host_mib=_mib_up(trial.host_peak_bytes),
        ),
        next=following,
        evidence=_evidence(calibration),
    )


def _chosen(calibration: Calibration, *, emulated: bool) -> Trial:
    choice = calibration.choice
    if calibration.fault:
        raise _refused(calibration, "fault", f"it ran with the fault {calibration.fault!r}")
    trial = next((t for t in calibration.trials if t.batch == choice.batch), None)
    if trial is None:
        detail = f": {choice.detail}" if choice.detail else ""
        raise _refused(calibration, "choice", f"no batch was chosen ({choice.reason}){detail}")
    if trial.smoke:
        missing = ", ".join(trial.missing_phases)
        raise _refused(
            calibration, "smoke", f"batch {trial.batch} is a smoke test without {missing}"
        )
    if trial.verdict is not Verdict.OK:
        how = trial.failure.value if trial.failure else trial.verdict.value
        raise _refused(calibration, "verdict", f"batch {trial.batch} did not run well: {how}")
    cycles = len(trial.soak_live_bytes)
    if cycles < SOAK_CYCLES:
        reason = f"batch {trial.batch} ran {cycles} soak cycles, expected at least {SOAK_CYCLES}"
        raise _refused(calibration, "soak", reason)
    budgets = (calibration.device_budget_bytes, calibration.host_budget_bytes)
    if any(budgets) and not emulated:
        reason = "it ran under a budget that is not this machine's, and nobody said that it may"
        raise _refused(calibration, "budget", reason)
    there = trial.environment
    unknown = [name for name in ("device", "torch", "sdpa") if not getattr(there, name)]
    if unknown:
        raise _refused(calibration, "environment", f"it does not say its {', '.join(unknown)}")
    return trial


def _evidence(calibration: Calibration) -> tuple[str, ...]:
    path = calibration_record(calibration.folder)
    data = _read(calibration, path)
    try:
        lies_there = msgspec.json.decode(data, type=Calibration)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(calibration, "evidence", f"{path} is no record: {error}") from error
    if msgspec.json.encode(lies_there) != msgspec.json.encode(calibration):
        raise _refused(calibration, "evidence", f"{path} says something else by now")
    found = [f"sha256:{sha256_hex(data)}"]
    for journal, recorded in (pair for trial in calibration.trials for pair in _journals(trial)):
        right = f"sha256:{sha256_hex(_read(calibration, journal))}"
        if right != recorded:
            reason = f"{journal} has {right}, recorded is {recorded}"
            raise _refused(calibration, "evidence", reason)
        found.append(right)
    return tuple(dict.fromkeys(found))


def _journals(trial: Trial) -> Iterator[tuple[str, str]]:
    """Its own journal and that of its soak, each with the hash that was recorded."""
    if trial.journal_sha256:
        yield trial.journal, trial.journal_sha256
    if soak := trial.evidence.get("soak_journal_sha256"):
        yield str(trial.evidence.get("soak_journal")), str(soak)


def _read(calibration: Calibration, path: str) -> bytes:
    try:
        return _fs.read(path)
    except OSError as error:
        reason = f"cannot read {path}: {error.strerror or error}"
        raise _refused(calibration, "evidence", reason) from error


def _refused(calibration: Calibration, field: str, reason: str) -> BatchRefusedError:
    return BatchRefusedError(
        field,
        f"cannot freeze family {calibration.family!r}, {field}: {reason}; nothing was written",
        hint="fleetcraft calibrate run FAMILY, whole and without a fault",
        family=calibration.family,
        folder=calibration.folder,
    )


def _mib_up(size: int | None) -> int | None:
    return None if size is None else math.ceil(size / MIB)


def _whole_mib(mem_mib: float | None) -> int | None:
    return None if mem_mib is None else int(mem_mib)


def _rounded(gain: float | None) -> float | None:
    return None if gain is None or not math.isfinite(gain) else round(gain, 4)
