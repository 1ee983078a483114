"""How runs stand, for whoever asks from outside: status file, lock and ABORT marker together.

Also the marker itself: put, and cleared by a rename to a dated name. Reads and tells; decides
nothing about a run. Invariant: what a file system does not tell is unknown, never "nobody".
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import msgspec

from fleetcraft.clock import now_at, timestamp
from fleetcraft.errors import DataError, FleetError, UsageError
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_launch_token, this_host
from fleetcraft.layout import Scratch
from fleetcraft.layout.runs import RunPaths
from fleetcraft.locks import GenerationLock, lives_here, put_if_absent, read_holder
from fleetcraft.locks.generation import highest
from fleetcraft.training.supervision.status_file import Status, read_status

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ABORT_SCHEMA = "fleetcraft.train-abort/1"


class RunLook(msgspec.Struct, frozen=True, kw_only=True):
    """One run as seen from outside.

    Attributes:
        run: Its name.
        folder: Its folder.
        status: What its supervisor wrote last; None when it never did, or it cannot be read.
        supervised: Whether a supervisor lives; None when that cannot be told from here.
        supervisor: Who that is, or was.
        abort: Whether the ABORT marker stands; None when that is not known.
        trouble: What could not be read.
    """

    run: str
    folder: str
    status: Status | None = None
    supervised: bool | None = False
    supervisor: str = ""
    abort: bool | None = False
    trouble: str = ""


class AbortMarker(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run was asked to finish its step, save and leave."""

    schema: str = ABORT_SCHEMA
    reason: str = ""
    requester: str = ""
    at: str = ""
    nonce: str = ""


def list_runs(root: str, *, fs: FileSystem | None = None) -> list[str]:
    """Names of the runs of a scratch tree, in order; none when it has no such folder.

    Raises:
        DataError: It cannot be listed.
    """
    fs = fs or FileSystem()
    folder = Scratch(root).runs
    try:
        return sorted(name for name in fs.listdir(folder) if _NAME.fullmatch(name))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(
            f"cannot list the runs in {folder}: {error.strerror or error}",
            hint="check the mount and the folder's permissions",
            path=folder,
        ) from error


def find_run(root: str, run: str, *, fs: FileSystem | None = None) -> RunPaths:
    """The paths of a run that is given by its name, or by its folder.

    Raises:
        UsageError: There is no such run.
        DataError: Whether there is one is not known.
    """
    fs = fs or FileSystem()
    folder = run if os.sep in run else Scratch(root).run_folder(run)
    try:
        there = fs.exists(folder)
    except OSError as error:
        raise DataError(f"cannot look at {folder}: {error.strerror or error}") from error
    if not there:
        raise _no_such_run(root, run, fs)
    return RunPaths(folder)


def _no_such_run(root: str, run: str, fs: FileSystem) -> UsageError:
    from difflib import get_close_matches

    names = list_runs(root, fs=fs)
    near = get_close_matches(run, names, n=3)
    known = f"did you mean {', '.join(near)}?" if near else "fleetcraft train status lists them"
    return UsageError(f"no run named {run!r} in {Scratch(root).runs}", hint=known, run=run)


def look_at_run(paths: RunPaths, *, fs: FileSystem | None = None) -> RunLook:
    """One run as seen from outside; never raises for a file that cannot be read."""
    fs = fs or FileSystem()
    troubles: list[str] = []
    try:
        status = read_status(paths.status, fs=fs)
    except DataError as error:
        status = None
        troubles.append(error.message)
    supervised, who = _supervisor(paths, fs, troubles)
    return RunLook(
        run=paths.name,
        folder=paths.folder,
        status=status,
        supervised=supervised,
        supervisor=who,
        abort=abort_stands(paths, fs=fs),
        trouble="; ".join(troubles),
    )


def _supervisor(paths: RunPaths, fs: FileSystem, troubles: list[str]) -> tuple[bool | None, str]:
    lock = GenerationLock(paths.lock, purpose="", fs=fs)
    try:
        names = fs.listdir(paths.lock)
        generation = highest(names)
        if generation == 0:
            return False, ""
        holder = read_holder(fs.read(lock.path("gen", generation)))
    except FileNotFoundError:
        return False, ""
    except OSError as error:
        troubles.append(f"who supervises it is not known: {error.strerror or error}")
        return None, ""
    if os.path.basename(lock.path("released", generation)) in names:
        return False, str(holder or "")
    return (None, "") if holder is None else (lives_here(holder), str(holder))


# --------------------------------------------------------------------------------------- ABORT


def abort_stands(paths: RunPaths, *, fs: FileSystem | None = None) -> bool | None:
    """Whether the ABORT marker stands; None when the file system does not tell."""
    try:
        return (fs or FileSystem()).exists(paths.abort_marker)
    except OSError:
        return None


def put_abort(paths: RunPaths, reason: str, *, fs: FileSystem | None = None) -> bool:
    """Asks a run to finish its step, save and leave.

    Returns:
        False when it was asked already; that marker stays as it is.

    Raises:
        FleetError: Whether it was asked is not known.
    """
    fs = fs or FileSystem()
    marker = AbortMarker(
        reason=reason,
        requester=f"uid {os.geteuid()} on {this_host().host}, process {os.getpid()}",
        at=timestamp(),
        nonce=new_launch_token(),
    )
    try:
        return put_if_absent(fs, paths.abort_marker, msgspec.json.encode(marker) + b"\n")
    except OSError as error:
        raise _abort_error(paths, "put", error) from error


def clear_abort(paths: RunPaths, *, fs: FileSystem | None = None) -> str | None:
    """Takes the ABORT marker away: it is renamed to a dated name and kept.

    Returns:
        That name; None when no marker stood.

    Raises:
        FleetError: Whether it was taken away is not known.
    """
    fs = fs or FileSystem()
    dated = f"{paths.abort_marker}.{now_at():%Y%m%dT%H%M%SZ}.{new_launch_token()}"
    try:
        fs.rename_new(paths.abort_marker, dated)
    except FileNotFoundError:
        # The rename may have happened although it was reported as failed.
        return dated if _there(fs, dated) else None
    except OSError as error:
        raise _abort_error(paths, "clear", error) from error
    return dated


def _there(fs: FileSystem, path: str) -> bool:
    try:
        return fs.exists(path)
    except OSError:
        return False


def _abort_error(paths: RunPaths, verb: str, error: OSError) -> FleetError:
    return FleetError(
        f"cannot {verb} the ABORT marker of run {paths.name!r}: {error.strerror or error}; "
        "whether it stands is not known",
        hint=f"check the mount, then look: fleetcraft train status {paths.name}",
        path=paths.abort_marker,
    )


def chosen_runs(root: str, names: Sequence[str]) -> list[RunPaths]:
    """The runs of these names, or all of the tree.

    Raises:
        UsageError: One of them is not there.
        DataError: The tree cannot be listed.
    """
    return [find_run(root, name) for name in (names or list_runs(root))]
