"""Deletion of old checkpoints: only behind an EXACT one that is verified and went on.

One owner at a time deletes, whatever component it is: a generation lock of the folder. Invariant:
at every moment there is an EXACT checkpoint that was verified by its hashes, if there ever was one
from which a later step was reached.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import UsageError
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_record_id
from fleetcraft.layout.checkpoints import record_of
from fleetcraft.locks import GenerationLock, Held, put_if_absent
from fleetcraft.training.checkpoint.listing import read_step
from fleetcraft.training.checkpoint.records import (
    NOTE_SCHEMA,
    Kind,
    Level,
    Manifest,
    Note,
    Pending,
    encode,
)

if TYPE_CHECKING:
    from fleetcraft.training.checkpoint.store import CheckpointStore

_LOCK_INTERVAL_S = 1.0


class Retired(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted, or would be.

    Attributes:
        steps: Steps of the checkpoints, oldest first.
        size_bytes: Of their files, as their manifests say.
        anchor: The EXACT checkpoint that makes it safe; None where there is none.
        why: Why nothing, or not all that was asked for, was deleted.
        abandoned: Unpublished saves that were deleted too.
    """

    steps: tuple[int, ...] = ()
    size_bytes: int = 0
    anchor: int | None = None
    why: str = ""
    abandoned: int = 0


def retire(
    store: CheckpointStore,
    *,
    keep: int,
    held: Held | None = None,
    dry_run: bool = False,
    abandoned_below: int = 0,
) -> Retired:
    """Deletes all but the newest checkpoints, where that is safe.

    Only checkpoints before the *anchor* are deleted: the newest EXACT one whose hashes hold, read
    again for this, and from which a later step was reached. Everything after the anchor stays, and
    so does what cannot be looked at. Unpublished saves that come to nothing go too; see
    `abandoned`.

    Args:
        store: The folder of checkpoints.
        keep: How many of the newest stay in any case, 1 or more.
        held: The lock of the folder, when the caller owns it already; else it is taken.
        dry_run: Delete nothing.
        abandoned_below: Also delete unpublished saves of generations before this one.

    Raises:
        UsageError: ``keep`` is below 1.
        LockHeldError: Another component retires now.
        CheckpointUnknownError: The folder cannot be listed.
        OSError: A deletion failed; the next call completes it.
    """
    if keep < 1:
        raise UsageError(f"keep is {keep}; at least one checkpoint stays")
    if dry_run:
        left = len(abandoned(store, abandoned_below))
        return msgspec.structs.replace(_plan(store, keep)[0], abandoned=left)
    with _owner(store, held) as owner:
        for folder in store.look().retiring:
            owner.check()
            clear(store.fs, folder)
        # Before the checkpoints go that show which saves were overtaken.
        left = clear_abandoned(store, abandoned_below, check=owner.check)
        plan, doomed = _plan(store, keep)
        gone: list[Manifest] = []
        for manifest in doomed:
            owner.check()
            if plan.anchor is None or not _stands(store, plan.anchor):
                break  # taken out of use since it was verified
            _retire_one(store, manifest, plan.anchor, owner.generation)
            gone.append(manifest)
    why = plan.why if gone == doomed else f"step {plan.anchor} was taken out of use meanwhile"
    return _retired(gone, plan.anchor, why=why, left=left)


def abandoned(store: CheckpointStore, below: int = 0) -> tuple[Pending, ...]:
    """Unpublished saves that come to nothing any more.

    Those of generations before one, except whole ones whose step is not committed, which
    `CheckpointStore.complete` publishes; and those whose step has an EXACT checkpoint with hashes
    that hold, since a second one of the same step is never published.
    """
    sight = store.look()
    committed = {manifest.step: manifest for manifest in sight.committed}
    found = []
    for pending in sight.pending:
        there = committed.get(pending.step)
        old = pending.generation < below and (there is not None or not pending.complete)
        if old or (there is not None and _is_sound(store, there)):
            found.append(pending)
    return tuple(found)


def _is_sound(store: CheckpointStore, manifest: Manifest) -> bool:
    return manifest.kind is Kind.EXACT and store.verify(manifest, Level.HASHES).answer is True


def clear_abandoned(
    store: CheckpointStore, below: int = 0, *, check: Callable[[], object] = lambda: None
) -> int:
    """Deletes what is `abandoned`; returns how many saves.

    Raises:
        CheckpointUnknownError: The folder cannot be listed.
        OSError: A deletion failed; the next call completes it.
    """
    count = 0
    for pending in abandoned(store, below):
        check()
        store.make(store.paths.retired)
        target = store.paths.retired_step(pending.step, f"{pending.nonce}-{new_record_id()}")
        try:
            store.move(pending.path, target)
        except FileNotFoundError:
            continue  # somebody else published or deleted it meanwhile
        clear(store.fs, target)
        count += 1
    return count


def clear(fs: FileSystem, folder: str) -> None:
    """Deletes a folder with all that is in it; follows no link.

    Raises:
        OSError: Something could not be deleted.
    """
    try:
        if not stat.S_ISDIR(fs.lstat(folder).st_mode):
            fs.unlink(folder)
            return
        names = fs.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        path = f"{folder}/{name}"
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(fs.lstat(path).st_mode):
                clear(fs, path)
            else:
                fs.unlink(path)
    with contextlib.suppress(FileNotFoundError):
        fs.remove_folder(folder)


@contextlib.contextmanager
def _owner(store: CheckpointStore, held: Held | None) -> Iterator[Held]:
    if held is not None:
        yield held
        return
    if not store.fs.exists(store.paths.folder):
        raise UsageError(f"no folder of checkpoints at {store.paths.folder}")
    for folder in (store.paths.owner, store.paths.retired):
        store.make(folder)
    lock = GenerationLock(
        store.paths.owner,
        purpose=f"retention of {store.paths.folder}",
        interval_s=_LOCK_INTERVAL_S,
        fs=store.fs,
    )
    with lock.acquire() as mine:
        yield mine


def _plan(store: CheckpointStore, keep: int) -> tuple[Retired, list[Manifest]]:
    committed = store.look().committed
    old = committed[:-keep]
    if not old:
        return Retired(why=f"there are {len(committed)}, and {keep} stay"), []
    anchor = _anchor(store, committed, oldest=old[0].step)
    if anchor is None:
        why = "no later EXACT checkpoint has hashes that hold and a step that went on from it"
        return Retired(why=why), []
    doomed = [manifest for manifest in old if manifest.step < anchor.step]
    left = len(old) - len(doomed)
    why = f"{left} more stay: they are not before step {anchor.step}" if left else ""
    return _retired(doomed, anchor.step, why=why), doomed


def _anchor(
    store: CheckpointStore, committed: tuple[Manifest, ...], *, oldest: int
) -> Manifest | None:
    """The newest EXACT checkpoint that is verified and went on, after the oldest."""
    for manifest in reversed(committed):
        if manifest.step <= oldest:
            return None
        # The cheap half first: most candidates fail for want of the note.
        if manifest.kind is Kind.EXACT and _went_on(store, manifest):
            return manifest
    return None


def _retired(gone: list[Manifest], anchor: int | None, *, why: str, left: int = 0) -> Retired:
    return Retired(
        steps=tuple(manifest.step for manifest in gone),
        size_bytes=sum(manifest.size_bytes for manifest in gone),
        anchor=anchor,
        why=why,
        abandoned=left,
    )


def _stands(store: CheckpointStore, anchor: int) -> bool:
    try:
        manifest = read_step(store.fs, store.paths.step(anchor), anchor)
    except (OSError, ValueError):
        return False
    return store.verify(manifest, Level.SIZES).answer is True


def _went_on(store: CheckpointStore, manifest: Manifest) -> bool:
    from fleetcraft.training.checkpoint.verification import went_on

    if not went_on(store.fs, manifest):
        return False
    return store.verify(manifest, Level.CONTINUED).answer is True


def _retire_one(
    store: CheckpointStore, manifest: Manifest, anchor: int | None, generation: int
) -> None:
    target = store.paths.retired_step(manifest.step, f"{manifest.nonce}-{new_record_id()}")
    note = Note(
        schema=NOTE_SCHEMA,
        manifest_sha256=manifest.sha256,
        by=f"generation {generation} of {store.paths.owner}",
        at=timestamp(),
        why="retired",
        folder=manifest.folder,
        anchor=anchor,
    )
    put_if_absent(store.fs, record_of(target), encode(note))
    try:
        store.move(manifest.folder, target)
    except OSError as error:
        if error.errno == errno.ENOENT and not store.fs.exists(manifest.folder):
            return  # somebody took it out of use meanwhile
        raise
    clear(store.fs, target)
    store.fs.sync_folder(os.path.dirname(target))
