"""Records of snapshots that were verified whole: what a later caller need not read again.

Not here: the verifying. Invariant: a record names files with their blobs and sizes, so that it says
nothing about a snapshot that has changed since.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from fleetcraft.caches.hub import HubFiles, Repo, RepoType, cannot_write
from fleetcraft.caches.snapshots import FileState, Snapshot
from fleetcraft.clock import timestamp
from fleetcraft.identity import new_launch_token, sha256_hex
from fleetcraft.layout.caches import CachePaths
from fleetcraft.locks import put_if_absent
from fleetcraft.trust import require_private_folder

SCHEMA = "fleetcraft.cache_filled/1"


class FilledFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file that was proved: its path in the snapshot, its blob, its size."""

    path: str
    blob: str
    size_bytes: int


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a snapshot that was verified whole; put there once.

    Attributes:
        schema: `SCHEMA`.
        repo: ``org/name``.
        type: model, dataset, space or kernel.
        commit: The commit.
        files: What was proved.
        bytes: Of its distinct blobs.
        absent: Files of the commit that were not asked for.
        command: What fetched it; empty if it was there already.
        host: Where that ran.
        job: Slurm's job, if any.
        at: Wall clock.
        nonce: Tells this record from any other.
    """

    schema: str = SCHEMA
    repo: str
    type: str
    commit: str
    files: tuple[FilledFile, ...]
    bytes: int
    absent: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    host: str = ""
    job: str = ""
    at: str = ""
    nonce: str = ""


def note_filled(
    paths: CachePaths, snapshot: Snapshot, command: tuple[str, ...], fs: HubFiles
) -> None:
    """Puts the record of a verified snapshot there, unless one of the same files stands.

    Raises:
        StorageError: It cannot be written.
    """
    files = tuple(
        FilledFile(path=file.path, blob=file.blob, size_bytes=file.size_bytes or 0)
        for file in snapshot.files
        if file.state is FileState.PRESENT
    )
    record = Filled(
        repo=snapshot.repo.name,
        type=snapshot.repo.type.value,
        commit=snapshot.commit,
        files=files,
        bytes=snapshot.bytes,
        absent=snapshot.absent,
        command=command,
        host=os.uname().nodename,
        job=os.environ.get("SLURM_JOB_ID", ""),
        at=timestamp(),
        nonce=new_launch_token(),
    )
    try:
        fs.make_shared_folder(paths.root)
        require_private_folder(paths.filled)
        path = filled_file(paths, record)
        put_if_absent(fs, path, msgspec.json.encode(record) + b"\n")
    except OSError as error:
        done = "the model is published; the next call proves it once more"
        raise cannot_write(error, f"the record in {paths.filled}", done=done) from error


def filled_file(paths: CachePaths, record: Filled) -> str:
    """Where a record goes: one of other files, or by another command, has another name."""
    lines = [f"{file.blob} {file.size_bytes} {file.path}" for file in record.files]
    digest = sha256_hex("\n".join([*record.command, "", *lines]).encode("utf-8", "surrogateescape"))
    repo = Repo(name=record.repo, type=RepoType(record.type))
    return f"{paths.filled}/{repo.folder}@{record.commit}.{digest[:16]}.json"


def read_filled(paths: CachePaths, repo: Repo, commit: str) -> tuple[Filled, ...]:
    """The records of a snapshot that can be read."""
    begin = f"{repo.folder}@{commit}."
    try:
        names = [name for name in sorted(os.listdir(paths.filled)) if name.startswith(begin)]
    except OSError:
        return ()
    found = []
    for name in names:
        with contextlib.suppress(OSError, msgspec.MsgspecError, RecursionError):
            data = HubFiles().read(f"{paths.filled}/{name}")
            found.append(msgspec.json.decode(data, type=Filled))
    return tuple(found)
