"""The records of calibration runs on disk: written whole, private, and read back with suspicion.

What they hold is in `fleetcraft.calibration.records`. Invariant: a run is whole when its
``calibration.json`` is there; what another user owns or could have written is never read as ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from fleetcraft.calibration.records import MIB, Calibration, OwnerBytes, PhaseRecord, Trial
from fleetcraft.clock import now_at
from fleetcraft.errors import ConfigError, DataError, FleetError
from fleetcraft.files import FileSystem, replace_atomically
from fleetcraft.identity import new_launch_token
from fleetcraft.layout import Scratch, calibration_record, trial_folder
from fleetcraft.trust import require_private_folder

_WRITABLE_BY_OTHERS = 0o022
_MOST_BYTES = 256 << 20  # far above any record; a file that grew beyond it is not one of ours
_Record = TypeVar("_Record", Calibration, Trial)
_fs = FileSystem()


def trial_record(run_folder: str, batch: int) -> str:
    """The record of one trial of a run."""
    return trial_folder(run_folder, f"trial-{batch:03d}.json")


def require_scratch(scratch: Scratch) -> None:
    """Checks that the scratch tree is there.

    Raises:
        ConfigError: It is not.
    """
    if not os.path.isdir(scratch.root):
        raise ConfigError(
            f"no scratch tree at {scratch.root}; nothing was tried",
            hint=f"fleetcraft --root {scratch.root} init",
            path=scratch.root,
        )


def new_run_folder(scratch: Scratch, family: str) -> str:
    """Makes the private folder of a new run; its name begins with the time, so names sort by it.

    Raises:
        ConfigError: There is no scratch tree.
        UnsafeSpoolError: Somebody else owns a folder above it, or can write it.
    """
    require_scratch(scratch)
    require_private_folder(scratch.calibration)
    require_private_folder(scratch.family_folder(family))
    now = now_at()
    moment = f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z"
    folder = scratch.calibration_run(family, f"{moment}-{new_launch_token()}")
    _fs.make_folder(folder)
    return folder


def write_trial(run_folder: str, trial: Trial) -> str:
    """Writes one trial's record, in place of an earlier one of its batch; returns its path."""
    return _write(trial_record(run_folder, trial.batch), trial)


def write_calibration(run_folder: str, calibration: Calibration) -> str:
    """Writes the record of a run, which makes it whole; returns its path."""
    return _write(calibration_record(run_folder), calibration)


def _write(path: str, record: Calibration | Trial) -> str:
    temporary = f"{path}.{os.urandom(6).hex()}.tmp"
    data = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    try:
        _fs.create(temporary, data, durable=True)
        replace_atomically(temporary, path)
    except OSError:
        with suppress(OSError):
            _fs.unlink(temporary)
        raise
    _fs.sync_folder(os.path.dirname(path))
    return path


# ----------------------------------------------------------------------------------- reading


def read_calibration(path: str) -> Calibration:
    """Reads the record of a run.

    Args:
        path: The record, or the run's folder.

    Raises:
        DataError: It is not there, not ours alone, of another schema, or no such record.
    """
    return _read(calibration_record(path) if os.path.isdir(path) else path, Calibration)


def read_trial(path: str) -> Trial:
    """Reads one trial's record; errors as of `read_calibration`."""
    return _read(path, Trial)


class _Head(msgspec.Struct):
    schema: str


def _read(path: str, kind: type[_Record]) -> _Record:
    expected = next(f.default for f in msgspec.structs.fields(kind) if f.name == "schema")
    data = _read_private(path)
    try:
        schema = msgspec.json.decode(data, type=_Head).schema
        if schema != expected:
            raise DataError(
                f"{path} has schema {schema!r}, expected {expected!r}; nothing of it was used",
                hint="it is of another version of fleetcraft, or no record of a calibration",
                path=path,
            )
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(
            f"{path} is no record of a calibration: {error}; nothing of it was used", path=path
        ) from error


def _read_private(path: str) -> bytes:
    try:
        size = _fs.lstat(path).st_size
        data, facts = _fs.read_with_facts(path) if size <= _MOST_BYTES else (b"", None)
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; nothing was used",
            hint="a run that was interrupted has no calibration.json; fleetcraft calibrate run",
            path=path,
        ) from error
    problem = ""
    if facts is None:
        problem = f"it has {size} bytes, more than any record"
    elif facts.st_uid != os.geteuid():
        problem = f"it belongs to user {facts.st_uid}, and this is user {os.geteuid()}"
    elif facts.st_mode & _WRITABLE_BY_OTHERS:
        problem = f"others can write it (mode {facts.st_mode & 0o777:04o})"
    if problem:
        raise DataError(f"refusing {path}: {problem}; nothing of it was used", path=path)
    return data


def newest(scratch: Scratch, family: str) -> Calibration:
    """The newest whole run of a family that had no fault; of faulty ones only if there is no other.

    Who asks for a fault tries the harness, and has not calibrated anew. A run that is whole but
    cannot be read is an error, never passed over for an older one.

    Args:
        scratch: The scratch tree.
        family: The family's key.

    Raises:
        FleetError: There is none (exit code 1).
        DataError: Its record cannot be trusted or read, or is another family's.
    """
    faulty = None
    for folder in run_folders(scratch, family):
        path = calibration_record(folder)
        if not _is_there(path):
            continue
        found = read_calibration(path)
        if found.family != family:
            raise DataError(
                f"{path} is of family {found.family!r}, expected {family!r}; it was not used",
                path=path,
            )
        if not found.fault:
            return found
        faulty = faulty or found
    if faulty is not None:
        return faulty
    raise FleetError(
        f"no whole calibration of family {family!r} in {scratch.calibration}",
        hint="fleetcraft calibrate run FAMILY",
        family=family,
    )


def _is_there(path: str) -> bool:
    try:
        return _fs.exists(path)
    except NotADirectoryError:  # a file that somebody put among the folders of runs
        return False
    except OSError as error:
        raise DataError(
            f"cannot look for {path}: {error.strerror}; no older run was used", path=path
        ) from error


def run_folders(scratch: Scratch, family: str) -> Iterator[str]:
    """Folders of a family's runs, newest first, whole or not; nothing when there are none.

    Raises:
        DataError: What is there cannot be listed.
    """
    place = scratch.family_folder(family)
    try:
        names = sorted(_fs.listdir(place), reverse=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(f"cannot list {place}: {error.strerror}", path=place) from error
    yield from (f"{place}/{name}" for name in names)


# ---------------------------------------------------------------------------------- printing


def to_json(calibration: Calibration) -> dict[str, Any]:
    """What ``calibrate run --json`` prints: the record, and MiB and medians beside its bytes."""
    value: dict[str, Any] = msgspec.to_builtins(calibration)
    value["trials"] = [trial_to_json(trial) for trial in calibration.trials]
    value["ok"] = calibration.ok
    for prediction in value["predictions"]:
        prediction["peak_mib"] = _mib(prediction["peak_bytes"])
    for name in ("device_budget", "host_budget"):
        value[f"{name}_mib"] = _mib(value[f"{name}_bytes"])
    return value


def trial_to_json(trial: Trial) -> dict[str, Any]:
    """One trial as `to_json` prints it."""
    value: dict[str, Any] = msgspec.to_builtins(trial)
    value["phases"] = [_phase_to_json(phase) for phase in trial.phases]
    value["smoke"] = trial.smoke
    value["peak_mib"] = _mib(trial.peak_bytes)
    value["host_peak_mib"] = _mib(trial.host_peak_bytes)
    value["predicted_peak_mib"] = _mib(trial.predicted_peak_bytes)
    value["soak_live_mib"] = [_mib(size) for size in trial.soak_live_bytes]
    return value


def _phase_to_json(phase: PhaseRecord) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(phase)
    value["wall_s"] = phase.wall_s
    for name in ("peak", "live_end", "autograd", "residual"):
        value[f"{name}_mib"] = _mib(value[f"{name}_bytes"])
    for name in ("allocated", "reserved", "rss", "cgroup"):
        value[f"{name}_peak_mib"] = _mib(value[f"{name}_peak_bytes"])
    value["owners"] = [_owner_to_json(owner) for owner in phase.owners]
    value["held_mib"] = {name: _mib(size) for name, size in phase.held_bytes.items()}
    return value


def _owner_to_json(owner: OwnerBytes) -> Mapping[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(owner)
    return {**value, "mib": _mib(owner.bytes), "live_end_mib": _mib(owner.live_end_bytes)}


def _mib(size: int | None) -> float | None:
    return None if size is None else size / MIB
