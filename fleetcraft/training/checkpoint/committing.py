"""The commit of a save: all ranks agree, every file has its size, one rename publishes the whole.

Rank 0 alone does this; a save whose manifest stands may be published by anybody later. Invariant:
a checkpoint that is there is never replaced by one that is worth no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fleetcraft.clock import timestamp
from fleetcraft.layout.checkpoints import MANIFEST, parse_rank_done, rank_done
from fleetcraft.locks import put_if_absent
from fleetcraft.training.checkpoint.kinds import kind_of
from fleetcraft.training.checkpoint.listing import read_record, read_step
from fleetcraft.training.checkpoint.records import (
    MANIFEST_SCHEMA,
    CheckpointError,
    CheckpointUnknownError,
    Kind,
    Level,
    Manifest,
    Origin,
    RankDone,
    SaveTakenError,
    read_manifest,
    read_rank,
    write_manifest,
)
from fleetcraft.training.checkpoint.verification import check_size

if TYPE_CHECKING:
    from fleetcraft.training.checkpoint.saving import Saving
    from fleetcraft.training.checkpoint.store import CheckpointStore


class Committing:
    """What rank 0 does after its own part is done."""

    def __init__(self, store: CheckpointStore, saving: Saving) -> None:
        self._store = store
        self._saving = saving
        self._ranks: dict[int, RankDone] = {}

    def absent(self) -> str:
        """The ranks that are not done yet, as text."""
        absent = [rank for rank in range(self._saving.world_size) if rank not in self._ranks]
        more = f" and {len(absent) - 8} more" if len(absent) > 8 else ""
        return ", ".join(map(str, absent[:8])) + more

    def all_done(self) -> bool:
        """Whether every rank's record is there; reads those that are new.

        Raises:
            CheckpointError: A record is of another save, or of a rank that this save has not.
        """
        saving = self._saving
        if saving.manifest is not None:
            return True
        fs = self._store.fs
        for name in fs.listdir(self._place()):
            rank = parse_rank_done(name)
            if rank is not None and rank not in self._ranks:
                self._ranks[rank] = self._read(f"{self._place()}/{name}", rank)
        return len(self._ranks) == saving.world_size

    def publish(self, check: Callable[[], object]) -> Manifest:
        """Writes the manifest and renames the folder to ``step-N``.

        Raises:
            CheckpointError: A file has another size, or there are no weights.
            CheckpointUnknownError: A file cannot be looked at.
            SaveTakenError: Another checkpoint of this step is there and was kept.
            SaveFencedError: A later launch saves here.
            OSError: Whether it is published durably is not known.
        """
        saving, store = self._saving, self._store
        if self._place() == saving.folder:
            self._refuse_wrong_sizes()
            data = write_manifest(self._manifest())
            self._refuse_unreadable(data)
            path = f"{saving.folder}/{MANIFEST}"
            if not put_if_absent(store.fs, path, data):
                data = store.fs.read(path)  # an earlier call of this very save wrote it
            store.fs.sync_folder(saving.folder)
            manifest = read_manifest(data, saving.folder)
            store.fence.check(saving.step, saving.generation)
            check()
            return publish(store, manifest)
        published = read_step(store.fs, store.paths.step(saving.step), saving.step)
        store.fs.sync_folder(store.paths.folder)
        return published

    def _place(self) -> str:
        """Where the save lies now: an earlier call may have renamed it."""
        store, saving = self._store, self._saving
        if store.fs.exists(saving.folder):
            return saving.folder
        final = store.paths.step(saving.step)
        if _is_of(store, final, saving.step, saving.nonce):
            return final
        raise CheckpointError(
            f"the save of step {saving.step} is gone: {saving.folder} is not there; "
            "nothing was committed",
            hint="another owner may have cleared it away: fleetcraft train checkpoints "
            f"{store.paths.folder}",
            step=saving.step,
            folder=saving.folder,
        )

    def _read(self, path: str, rank: int) -> RankDone:
        saving = self._saving
        try:
            done = read_rank(read_record(self._store.fs, path))
        except ValueError as error:
            raise self._refused(f"{rank_done(rank)}: {error}") from error
        expected = (saving.step, saving.generation, saving.nonce, saving.world_size, rank)
        found = (done.step, done.generation, done.nonce, done.world_size, done.rank)
        words = ("step", "generation", "nonce", "world size", "rank")
        for word, have, want in zip(words, found, expected, strict=True):
            if have != want:
                raise self._refused(f"rank {rank} has {word} {have}, expected {want}")
        if rank >= saving.world_size:
            raise self._refused(f"rank {rank} wrote, and the world has {saving.world_size}")
        if done.topology != saving.topology:
            raise self._refused(f"rank {rank} declares another topology than rank 0")
        return done

    def _refuse_wrong_sizes(self) -> None:
        broken: list[str] = []
        unknown: list[str] = []
        for done in self._ranks.values():
            for file in done.files:
                check_size(self._store.fs, self._saving.folder, file, broken, unknown)
        if broken:
            raise self._refused("; ".join(broken[:5]))
        if unknown:
            raise CheckpointUnknownError(
                f"step {self._saving.step} was not committed: {'; '.join(unknown[:5])}",
                hint="commit again when the mount answers",
                step=self._saving.step,
                folder=self._saving.folder,
            )

    def _manifest(self) -> Manifest:
        saving, store = self._saving, self._store
        ranks = tuple(self._ranks[rank] for rank in sorted(self._ranks))
        try:
            kind, missing = kind_of(saving.topology, ranks)
        except ValueError as error:
            raise self._refused(str(error)) from error
        before = store.previous
        return Manifest(
            schema=MANIFEST_SCHEMA,
            step=saving.step,
            generation=saving.generation,
            nonce=saving.nonce,
            world_size=saving.world_size,
            kind=kind,
            missing=missing,
            topology=saving.topology,
            ranks=ranks,
            continued_from=None
            if before is None
            else Origin(step=before.step, manifest_sha256=before.sha256),
            at=timestamp(),
        )

    def _refuse_unreadable(self, data: bytes) -> None:
        """What no reader would take is not written: two ranks may name one file."""
        try:
            read_manifest(data, self._saving.folder)
        except ValueError as error:
            raise self._refused(str(error)) from error

    def _refused(self, why: str) -> CheckpointError:
        return CheckpointError(
            f"step {self._saving.step} is no checkpoint: {why}; it was not committed",
            hint=f"what was written is kept in {self._saving.folder}",
            step=self._saving.step,
            folder=self._saving.folder,
        )


def publish(store: CheckpointStore, manifest: Manifest) -> Manifest:
    """Renames a whole save to ``step-N`` and forces that to disk.

    A checkpoint of that step that is broken, or is WEIGHTS where this is EXACT, goes to quarantine
    first; any other is kept.

    Returns:
        The manifest, with the folder where it now lies.

    Raises:
        SaveTakenError: Another checkpoint is there and was kept.
        OSError: Whether it is published durably is not known.
    """
    final = store.paths.step(manifest.step)
    try:
        store.fs.rename_new(manifest.folder, final)
    except OSError as error:
        # The server may have done what it reported as failed, and another process may have
        # published this very save.
        if not _is_of(store, final, manifest.step, manifest.nonce):
            if not store.fs.exists(final):
                raise
            _make_way(store, manifest, final, error)
            store.fs.rename_new(manifest.folder, final)
    store.fs.sync_folder(store.paths.folder)
    return read_step(store.fs, final, manifest.step)


def _is_of(store: CheckpointStore, folder: str, step: int, nonce: str) -> bool:
    try:
        return read_step(store.fs, folder, step).nonce == nonce
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False


def _make_way(store: CheckpointStore, manifest: Manifest, final: str, error: OSError) -> None:
    try:
        there = read_step(store.fs, final, manifest.step)
    except (FileNotFoundError, NotADirectoryError, ValueError) as reason:
        store.quarantine_folder(final, manifest.step, why=f"it is no checkpoint: {reason}")
        return
    # By its hashes: one that no trainer can load must not keep its step taken for ever.
    verdict = store.verify(there, Level.HASHES)
    if verdict.broken:
        store.quarantine(there, why=f"saved anew: {'; '.join(verdict.reasons)}")
    elif there.kind is Kind.WEIGHTS and manifest.kind is Kind.EXACT:
        store.quarantine(there, why="it was WEIGHTS, and an exact save of this step came")
    else:
        raise SaveTakenError(
            f"step {manifest.step} is committed already ({there.kind.value}, saved at {there.at}); "
            "it was kept, and this save was not published",
            hint=f"this save lies in {manifest.folder}",
            step=manifest.step,
            folder=manifest.folder,
        ) from error
