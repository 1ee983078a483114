"""What a supervised run's own records say for a diagnosis: newest epoch, logs, how it ended.

Reads the run's folder; concludes nothing. Invariant: what cannot be read is named in `trouble` and
is otherwise as if it had not been asked.
"""

from __future__ import annotations

import os
import stat

import msgspec

from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import AttemptPaths, RunPaths
from fleetcraft.training.launching.epochs import Epochs
from fleetcraft.training.launching.fencing import moved_logs
from fleetcraft.training.records import Epoch, LogFence, NodeEnd


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one run.

    Attributes:
        epoch: The newest; None for a run that was never launched.
        healthy: The last that was verified.
        logs: What its commands printed, where it lies now: a later supervisor moves the logs of a
            launch that is over into the archive.
        fences: Where those logs stood when their launch was adopted.
        error_files: What its ranks left.
        ends: How the command ended, by node.
        trouble: What could not be read.
    """

    epoch: Epoch | None = None
    healthy: Epoch | None = None
    logs: tuple[str, ...] = ()
    fences: tuple[LogFence, ...] = ()
    error_files: tuple[str, ...] = ()
    ends: tuple[NodeEnd, ...] = ()
    trouble: tuple[str, ...] = ()


def read_recorded(paths: RunPaths, *, fs: FileSystem | None = None) -> Recorded:
    """Reads what one run has recorded.

    Raises:
        DataError: An epoch's record is damaged.
        OSError: The epochs cannot be read.
    """
    fs = fs or FileSystem()
    epochs = Epochs(paths, fs)
    epoch = epochs.latest()
    if epoch is None:
        return Recorded()
    attempt = paths.attempt(epoch.attempt)
    trouble: list[str] = []
    moved = _moved(paths, attempt, trouble, fs)
    there = (*epoch.log_paths, *_files(attempt.logs, trouble, fs))
    return Recorded(
        epoch=epoch,
        healthy=epochs.last_healthy(),
        logs=tuple(dict.fromkeys((*(moved.get(path, path) for path in there), *moved.values()))),
        fences=tuple(
            msgspec.structs.replace(fence, path=moved.get(fence.path, fence.path))
            for fence in epoch.fences
        ),
        error_files=tuple(_files(attempt.errors, trouble, fs)),
        ends=tuple(_ends(attempt, trouble, fs)),
        trouble=tuple(trouble),
    )


def _moved(
    paths: RunPaths, attempt: AttemptPaths, trouble: list[str], fs: FileSystem
) -> dict[str, str]:
    """Where the logs of an attempt lie that were moved into the archive, by where they lay."""
    try:
        return {one.log: one.archive for one in moved_logs(paths, attempt, fs)}
    except FileNotFoundError:
        return {}
    except OSError as error:
        trouble.append(f"{paths.archive}: {error.strerror}")
        return {}


def _files(folder: str, trouble: list[str], fs: FileSystem) -> list[str]:
    try:
        paths = [os.path.join(folder, name) for name in sorted(fs.listdir(folder))]
        return [path for path in paths if stat.S_ISREG(fs.lstat(path).st_mode)]
    except FileNotFoundError:
        return []
    except OSError as error:
        trouble.append(f"{folder}: {error.strerror}")
        return []


def _ends(attempt: AttemptPaths, trouble: list[str], fs: FileSystem) -> list[NodeEnd]:
    suffix = os.path.basename(attempt.ended(""))
    found = []
    for path in _files(attempt.nodes, trouble, fs):
        if not path.endswith(suffix):
            continue
        try:
            found.append(msgspec.json.decode(fs.read(path), type=NodeEnd))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            trouble.append(f"{path}: {error}")
    return found
