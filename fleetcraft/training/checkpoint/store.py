"""`CheckpointStore`: one folder of checkpoints, saved, listed, verified, retired, quarantined.

    store = CheckpointStore("runs/distill/checkpoints")
    with store.save(step, rank=rank, world_size=world_size) as saving:
        save_state(saving, model=model, optimizer=optimizer)

It ties the other modules together and loads no torch. Invariant: what is newest is computed from
commits, and a folder that cannot be read has an unknown newest, not none.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping

from fleetcraft.clock import timestamp
from fleetcraft.errors import UsageError
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_record_id
from fleetcraft.layout.checkpoints import (
    CONTINUED,
    LOADED,
    NONCE,
    StorePaths,
    record_of,
)
from fleetcraft.locks import Held, put_if_absent
from fleetcraft.training.checkpoint import listing, verification
from fleetcraft.training.checkpoint.agreement import Agreement
from fleetcraft.training.checkpoint.committing import publish
from fleetcraft.training.checkpoint.fencing import Fence, generation_of
from fleetcraft.training.checkpoint.records import (
    NOTE_SCHEMA,
    CheckpointError,
    How,
    Kind,
    Level,
    Manifest,
    Note,
    SaveTakenError,
    Sight,
    Topology,
    Verdict,
    encode,
    read_note,
)
from fleetcraft.training.checkpoint.retention import Retired, clear_abandoned, retire
from fleetcraft.training.checkpoint.saving import Saving, topology_of


class CheckpointStore:
    """One folder of checkpoints.

    Args:
        folder: Made when the first save is; a folder that is not there holds no checkpoint.
        fs: The seam.
        digest: Size and SHA-256 of a file; another may show progress.
        clock: This process's own monotonic clock, in seconds.
        sleep: Waits by that clock.

    Attributes:
        previous: The checkpoint from which this process trains: loaded, or saved by it last.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        fs: FileSystem | None = None,
        digest: verification.Digest = verification.digest_file,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.paths = StorePaths(os.fspath(folder))
        self.fs = fs or FileSystem()
        self.digest = digest
        self.clock = clock
        self.sleep = sleep
        self.previous: Manifest | None = None
        self._how = How.KEPT_TRAINING
        self.fence = Fence(self.fs, self.paths)
        self._agreement = Agreement(self)

    # -- saving

    def save(
        self,
        step: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        generation: int | None = None,
        topology: Topology | Mapping[str, object] | None = None,
        protocol: Mapping[str, bool | str] | None = None,
        nonce: str = "",
        wait_s: float = 600.0,
    ) -> Saving:
        """Begins a save; every rank calls this with the same step.

        Ranks agree on a nonce: rank 0 draws it and publishes it for this step, generation and
        launch, and the others wait for that. The launch is known by `FLEET_LAUNCH_NONCE`, by
        torchrun's run id or by the Slurm job; without any of them the caller passes ``nonce``,
        such as one that was broadcast.

        Args:
            step: Completed optimizer steps.
            rank: This process's rank.
            world_size: Of how many.
            generation: Of the lock under which this run was launched; None takes what the
                supervisor says in `FLEET_GENERATION`, and 0 is none. Once a later generation has
                begun to save here, this one's saves are not committed.
            topology: How the run is laid out; see `Topology`.
            protocol: For ledger, critic, reward_norm, branch and probe: False or a reason where
                this run has none, True where it has. `kinds.PLAIN_RUN` says none of all.
            nonce: 4 to 64 letters and digits that all ranks of this save have, and no other save.
            wait_s: How long to wait for other ranks, here and in `Saving.commit`.

        Raises:
            UsageError: A bad rank, generation, nonce, topology or protocol, or nothing names the
                launch.
            SaveTimeoutError: Rank 0 did not begin in time.
            OSError: The folder cannot be made.
        """
        if generation is None:
            generation = generation_of(os.environ)
        if not 0 <= rank < world_size or step < 0 or generation < 0:
            raise UsageError(
                f"no such save: step {step}, generation {generation}, rank {rank} of {world_size}"
            )
        if nonce and NONCE.fullmatch(nonce) is None:
            raise UsageError(f"bad nonce {nonce!r}: expected 4 to 64 letters and digits")
        for folder in self.paths.folders():
            self.make(folder)
        self.fence.begin()
        saving = Saving(
            self,
            step=step,
            rank=rank,
            world_size=world_size,
            generation=generation,
            nonce=nonce or self._agreement.nonce(step, rank, world_size, generation, wait_s),
            topology=topology_of(topology),
            wait_s=wait_s,
        )
        self.make(saving.folder)
        saving.declare(protocol or {})
        return saving

    def saved(self, saving: Saving, manifest: Manifest) -> None:
        """Notes what follows from a commit of this process; rank 0 calls it."""
        self.followed(manifest)
        self._agreement.forget(saving.step, saving.world_size, saving.generation)

    def complete(self, *, check: Callable[[], object] = lambda: None) -> tuple[Manifest, ...]:
        """Publishes saves that were whole, with their manifest, when their rank 0 was killed.

        Call it before training goes on, under the lock that decides for this folder. A save that
        is broken, or whose step was committed meanwhile, is left where it is.

        Args:
            check: Called before each publication; `Held.check` of that lock.
        """
        published = []
        for pending in self.look().pending:
            if not pending.complete:
                continue
            with contextlib.suppress(ValueError, FileNotFoundError, SaveTakenError):
                manifest = listing.read_step(self.fs, pending.path, pending.step)
                if self.verify(manifest, Level.HASHES).answer:
                    check()
                    published.append(publish(self, manifest))
        return tuple(published)

    def followed(self, manifest: Manifest) -> None:
        """Notes that this process trains on from a checkpoint that it saved just now.

        The one before thereby is CONTINUED: steps after it were completed and saved.
        """
        before, how = self.previous, self._how
        self.previous, self._how = manifest, How.KEPT_TRAINING
        if before is not None and before.step < manifest.step:
            # The new checkpoint stands whatever becomes of a note about the one before.
            with contextlib.suppress(OSError, CheckpointError):
                self.continued(before, manifest.step, f"save {manifest.nonce}", how=how)

    # -- looking

    def look(self) -> Sight:
        """Everything in the folder, with faults and what could not be looked at.

        Raises:
            CheckpointUnknownError: The folder itself cannot be listed.
        """
        try:
            self.fence.begin()
        except OSError as error:
            raise listing.unknown(self.paths.folder, error) from error
        return listing.look(self.fs, self.paths)

    def committed(self) -> tuple[Manifest, ...]:
        """Every committed checkpoint, oldest first. What has a broken marker is none; see `look`.

        Raises:
            CheckpointUnknownError: Whether something is a checkpoint cannot be told.
        """
        sight = self.look()
        if sight.unknown:
            fault = sight.unknown[0]
            raise listing.unknown(fault.path, OSError(0, fault.why))
        return sight.committed

    def newest(self, kind: Kind | None = None, level: Level = Level.SIZES) -> Manifest | None:
        """The newest checkpoint that holds up to a level; broken ones are passed over.

        Args:
            kind: EXACT, WEIGHTS, or any; one that is EXACT is none of WEIGHTS.
            level: How far it must be verified.

        Raises:
            CheckpointUnknownError: A newer one could be it, and that cannot be told now.
        """
        for manifest in reversed(self.committed()):
            if kind is not None and manifest.kind is not kind:
                continue
            verdict = self.verify(manifest, level)
            if verdict.answer is None:
                raise listing.unknown(manifest.folder, OSError(0, "; ".join(verdict.reasons)))
            if verdict.answer:
                return manifest
        return None

    def newest_validated_step(self, level: Level = Level.SIZES) -> int | None:
        """The step of the newest checkpoint that holds up to a level; None where there is none.

        Raises:
            CheckpointUnknownError: It cannot be told now.
        """
        manifest = self.newest(level=level)
        return None if manifest is None else manifest.step

    def verify(
        self, manifest: Manifest, level: Level, *, loads: verification.Loads | None = None
    ) -> Verdict:
        """Verifies a checkpoint up to a level; see `verification.verify`."""
        return verification.verify(self.fs, manifest, level, digest=self.digest, loads=loads)

    # -- saying

    def loaded(self, manifest: Manifest, by: str) -> Note:
        """Notes that a process has loaded a checkpoint whole, and trains on from it.

        Raises:
            OSError: The note cannot be written.
        """
        self.previous, self._how = manifest, How.LOADED
        return self._note(manifest, LOADED, by, None, None)

    def continued(
        self, manifest: Manifest, step: int, by: str, *, how: How = How.KEPT_TRAINING
    ) -> Note:
        """Notes that a later step was completed from a checkpoint; the first note stands.

        Args:
            manifest: The checkpoint.
            step: The later step.
            by: Who says so.
            how: Whether it was loaded meanwhile.

        Raises:
            UsageError: The step is not later.
            OSError: The note cannot be written.
        """
        if step <= manifest.step:
            raise UsageError(f"step {step} is not after the checkpoint of step {manifest.step}")
        return self._note(manifest, CONTINUED, by, step, how)

    def _note(
        self, manifest: Manifest, name: str, by: str, step: int | None, how: How | None
    ) -> Note:
        note = Note(
            schema=NOTE_SCHEMA,
            manifest_sha256=manifest.sha256,
            by=by,
            at=timestamp(),
            step=step,
            how=how,
        )
        path = f"{manifest.folder}/{name}"
        if put_if_absent(self.fs, path, encode(note)):
            return note
        try:
            return read_note(listing.read_record(self.fs, path))
        except ValueError as error:
            raise CheckpointError(f"{path} is no note: {error}; it was kept", path=path) from error

    # -- taking out of use

    def retire(
        self, *, keep: int, held: Held | None = None, dry_run: bool = False,
        abandoned_below: int = 0,
    ) -> Retired:  # fmt: skip
        """Deletes old checkpoints where that is safe; see `retention.retire`."""
        return retire(self, keep=keep, held=held, dry_run=dry_run, abandoned_below=abandoned_below)

    def quarantine(self, manifest: Manifest, *, why: str) -> str:
        """Takes a checkpoint out of use, keeps it, and says why; returns where it lies now.

        Raises:
            OSError: Whether it was moved is not known.
        """
        return self.quarantine_folder(
            manifest.folder, manifest.step, why=why, nonce=manifest.nonce, sha256=manifest.sha256
        )

    def quarantine_folder(
        self, folder: str, step: int, *, why: str, nonce: str = "", sha256: str = ""
    ) -> str:
        """The same for a folder that is called a checkpoint and has no readable marker."""
        self.make(self.paths.quarantine)
        target = self.paths.quarantined_step(step, f"{nonce or 'unknown'}-{new_record_id()}")
        note = Note(
            schema=NOTE_SCHEMA,
            manifest_sha256=sha256,
            by=f"process {os.getpid()}",
            at=timestamp(),
            why=why,
            folder=folder,
        )
        put_if_absent(self.fs, record_of(target), encode(note))
        self.move(folder, target)
        return target

    # -- what the other modules do to files

    def move(self, source: str, target: str) -> None:
        """Renames a folder to a name that only this call uses, and forces both folders to disk.

        Raises:
            OSError: Whether it was moved is not known.
        """
        try:
            self.fs.rename_new(source, target)
        except OSError:
            if not self.fs.exists(target):  # nobody else uses that name: it was this call
                raise
        self.fs.sync_folder(os.path.dirname(target))
        self.fs.sync_folder(os.path.dirname(source))

    def make(self, folder: str) -> None:
        """Makes a folder, and forces its name to disk, unless it is there."""
        if self.fs.exists(folder):
            return
        parent = os.path.dirname(folder)
        if not self.fs.exists(parent):
            self.make(parent)
        with contextlib.suppress(FileExistsError):
            self.fs.make_folder(folder)
        self.fs.sync_folder(parent)

    def sync_file(self, path: str) -> None:
        """Forces a file that somebody wrote to disk.

        Raises:
            OSError: It is not there, or the system reports now what writing it did not: ENOSPC,
                EDQUOT, EIO.
        """
        fd = self.fs.open_append(path)
        try:
            self.fs.datasync(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                self.fs.close(fd)
            raise
        self.fs.close(fd)

    def clear_abandoned(self, below: int = 0, *, check: Callable[[], object] = lambda: None) -> int:
        """Deletes unpublished saves that come to nothing; see `retention.clear_abandoned`."""
        return clear_abandoned(self, below, check=check)
