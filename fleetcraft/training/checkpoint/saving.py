"""One save as one rank sees it: write, say that it is done, and on rank 0 commit.

WRITING is the folder ``step-N.tmp.<generation>.<nonce>``; each rank's record is RANK_DONE; rank 0
that saw all of them agree has ALL_DONE; the rename to ``step-N`` is COMMITTED. Invariant: what is
called ``step-N`` was forced to disk whole, with the marker inside, before it had that name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import UsageError
from fleetcraft.identity import this_host
from fleetcraft.layout.checkpoints import SHARED, rank_done, rank_folder
from fleetcraft.locks import put_if_absent
from fleetcraft.training.checkpoint.agreement import wait_until
from fleetcraft.training.checkpoint.committing import Committing
from fleetcraft.training.checkpoint.kinds import PROTOCOL
from fleetcraft.training.checkpoint.records import (
    DONE_SCHEMA,
    FileEntry,
    Manifest,
    Part,
    PartEntry,
    RankDone,
    Topology,
    encode,
    is_below,
)

if TYPE_CHECKING:
    from fleetcraft.training.checkpoint.store import CheckpointStore


class Saving:
    """One rank's part of one save; made by `CheckpointStore.save`.

    As a context manager it says that it is done at the end, and rank 0 commits, unless that was
    done before. An error inside leaves everything where it is, unpublished.

    Args:
        store: The folder of checkpoints.
        step: Completed optimizer steps.
        rank: This rank.
        world_size: Of how many.
        generation: Of the lock under which the run was launched.
        nonce: Of the save; all its ranks have the same.
        topology: As the run declares it.
        wait_s: How long it waits for other ranks.

    Attributes:
        manifest: What rank 0 committed; None before, and on other ranks.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        step: int,
        rank: int,
        world_size: int,
        generation: int,
        nonce: str,
        topology: Topology,
        wait_s: float,
    ) -> None:
        self.step = step
        self.rank = rank
        self.world_size = world_size
        self.generation = generation
        self.nonce = nonce
        self.topology = topology
        self.wait_s = wait_s
        self.store = store
        self.manifest: Manifest | None = None
        self.folder = store.paths.unfinished(step, generation, nonce)
        self._own = rank_folder(rank)
        self._parts: dict[Part, PartEntry] = {}
        self._facts: dict[str, str | int | float] = {}
        self._folders: set[str] = set()
        self._record: RankDone | None = None
        self._done = False

    # -- writing

    def path(self, name: str) -> str:
        """Where this rank writes one file; its folder is made.

        Args:
            name: A file name, or a relative path of them.

        Raises:
            UsageError: The name leaves this rank's folder.
            OSError: The folder cannot be made.
        """
        return self._place(f"{self._own}/{name}")

    def shared(self, name: str) -> str:
        """A folder that ranks share, for writers that name their files themselves.

        Each rank declares its own files of it with `part`, as ``name/file`` and ``shared=True``.
        """
        self._place(f"{SHARED}/{name}/x")
        return f"{self.folder}/{SHARED}/{name}"

    def part(self, part: Part, *names: str, shared: bool = False) -> None:
        """Says which files hold a part; they must be there, closed, when `done` is called.

        Args:
            part: Which part.
            names: As they were given to `path`, or below `shared`.
            shared: The names are below a shared folder.
        """
        if not names:
            raise UsageError(f"no file was named for {part.value}; say none() if there is none")
        files = tuple(self._relative(f"{SHARED if shared else self._own}/{n}") for n in names)
        before = self._parts.get(part, PartEntry()).files
        self._parts[part] = PartEntry(files=tuple(dict.fromkeys((*before, *files))))

    def value(self, part: Part, text: str) -> None:
        """Says a part that is one short text, such as the digest of the data set."""
        if not text:
            raise UsageError(f"the value of {part.value} is empty; say none() if there is none")
        self._parts[part] = PartEntry(value=text)

    def none(self, part: Part, reason: str) -> None:
        """Declares that this run has none of a part, and why."""
        if not reason:
            raise UsageError(f"no reason was given why there is no {part.value}")
        self._parts[part] = PartEntry(none=reason)

    def declare(self, protocol: Mapping[str, bool | str]) -> None:
        """Says of parts of the protocol's state that this run has none: False, or the reason.

        Raises:
            UsageError: A name is none of such a part.
        """
        for name, given in protocol.items():
            if name not in [part.value for part in PROTOCOL]:
                known = ", ".join(part.value for part in PROTOCOL)
                raise UsageError(f"no protocol state is called {name!r}", hint=f"there are {known}")
            if given is False:
                self.none(Part(name), "the run declares that it has none")
            elif isinstance(given, str):
                self.none(Part(name), given)

    def fact(self, name: str, value: str | int | float) -> None:
        """Notes a fact beside the files, such as ``sampler_frontier``."""
        self._facts[name] = value

    def said(self, part: Part) -> bool:
        """Whether anything was said of a part."""
        return part in self._parts

    # -- ending

    def done(self) -> RankDone:
        """Forces this rank's files to disk, hashes them, and publishes that it is done.

        Raises:
            UsageError: A file in this rank's folder belongs to no part.
            OSError: A file is missing, or could not be forced to disk; nothing was published.
        """
        done = self._record or self._finish()
        if self._done:
            return done
        self._record = done  # a second call publishes the very same bytes
        path = f"{self.folder}/{rank_done(self.rank)}"
        if not put_if_absent(self.store.fs, path, encode(done)):
            raise UsageError(
                f"two processes save as rank {self.rank} of step {self.step}; "
                "this one published nothing",
                hint="give every process its own rank",
                path=path,
            )
        self._done = True
        return done

    def commit(
        self, wait_s: float | None = None, *, check: Callable[[], object] = lambda: None
    ) -> Manifest:
        """Waits for all ranks, and publishes the checkpoint. Rank 0 alone; may be called again.

        Args:
            wait_s: How long it waits for the other ranks; as given to `CheckpointStore.save`.
            check: Called right before publishing; `Held.check` of the lock that decides this run.

        Raises:
            SaveTimeoutError: A rank did not come in time.
            CheckpointError: The ranks do not belong together, or a file has another size.
            SaveTakenError: Another checkpoint of this step is there and was kept.
            SaveFencedError: A later launch saves here.
            OSError: Whether it was published durably is not known; calling again finds out.
        """
        if self.rank != 0:
            raise UsageError(f"rank {self.rank} cannot commit; rank 0 does")
        if self.manifest is None:
            committing = Committing(self.store, self)
            wait_until(
                self.store,
                committing.all_done,
                self.wait_s if wait_s is None else wait_s,
                lambda: f"of step {self.step}, rank {committing.absent()} is not done",
                folder=self.folder,
            )
            self.manifest = committing.publish(check)
            self.store.saved(self, self.manifest)
        return self.manifest

    def __enter__(self) -> Saving:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            return
        self.done()
        if self.rank == 0:
            self.commit()

    # -- inside

    def _finish(self) -> RankDone:
        """Forces this rank's files to disk, and says what they are."""
        self._refuse_strays()
        entries = tuple(self._finish_file(name) for name in self._all_files())
        for folder in sorted(self._folders, key=len, reverse=True):
            self.store.fs.sync_folder(folder)
        return RankDone(
            schema=DONE_SCHEMA,
            step=self.step,
            generation=self.generation,
            nonce=self.nonce,
            rank=self.rank,
            world_size=self.world_size,
            topology=self.topology,
            parts=self._parts,
            files=entries,
            facts=self._facts,
            host=this_host().host,
            pid=os.getpid(),
            at=timestamp(),
        )

    def _place(self, relative: str) -> str:
        parts = self._relative(relative).split("/")
        folder = self.folder
        for name in parts[:-1]:
            folder = f"{folder}/{name}"
            self.store.make(folder)
            self._folders.add(folder)
        return f"{folder}/{parts[-1]}"

    def _relative(self, relative: str) -> str:
        if not is_below(relative):
            raise UsageError(f"{relative!r} is no plain path below the checkpoint's folder")
        return relative

    def _all_files(self) -> list[str]:
        return sorted({name for entry in self._parts.values() for name in entry.files})

    def _refuse_strays(self) -> None:
        known = set(self._all_files())
        strays = [name for name in self._walk(self._own) if name not in known]
        if strays:
            raise UsageError(
                f"{', '.join(strays[:5])} of step {self.step} belongs to no part; "
                "nothing was published",
                hint="say what it is with part()",
                strays=strays,
            )

    def _walk(self, relative: str) -> list[str]:
        folder = f"{self.folder}/{relative}"
        if folder not in self._folders:
            return []
        found = []
        for name in sorted(self.store.fs.listdir(folder)):
            below = f"{relative}/{name}"
            found += self._walk(below) if f"{self.folder}/{below}" in self._folders else [below]
        return found

    def _finish_file(self, name: str) -> FileEntry:
        path = f"{self.folder}/{name}"
        self.store.sync_file(path)
        size_bytes, sha256 = self.store.digest(path)
        self._folders.add(os.path.dirname(path))
        return FileEntry(path=name, size_bytes=size_bytes, sha256=sha256)


def topology_of(given: Topology | Mapping[str, object] | None) -> Topology:
    """A topology from what a caller gave.

    Raises:
        UsageError: A key or value is none of a topology.
    """
    if given is None or isinstance(given, Topology):
        return given or Topology()
    try:
        return msgspec.convert(given, Topology)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"the topology cannot be read: {error}",
            hint=f"it has {', '.join(Topology.__struct_fields__)}",
        ) from error
