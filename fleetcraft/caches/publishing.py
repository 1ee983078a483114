"""Giving a staged snapshot its names in a hub cache: blobs, then links, then refs.

For whoever holds the repository's lock. A repository that is new appears by one rename; in one that
is there, blobs come before the links that lead to them, and refs last. Invariant: a name that this
puts into a hub leads only to bytes that were read back from there and proved.
"""

from __future__ import annotations

import contextlib
import os

from fleetcraft.caches.blobs import SourceError
from fleetcraft.caches.hub import HubFiles, cannot_write, remove_tree
from fleetcraft.caches.snapshots import Snapshot, read_snapshot
from fleetcraft.caches.staging import Progress, Published, Stager
from fleetcraft.errors import DataError
from fleetcraft.layout.caches import HubPaths, RepoPaths
from fleetcraft.locks import Held

_INDEX = ".index.json"


class Publisher:
    """Brings one snapshot into one hub.

    Args:
        snapshot: What is to be brought; it must be complete.
        hub: The hub that is written.
        held: The lock of the repository there.
        own: The snapshot lies in a hub of our own on the same mount, so that its blobs get a second
            name in place of a copy.
        fs: The seam.
        progress: Is told of bytes that are done, and of all.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        hub: str,
        *,
        held: Held,
        own: bool = False,
        fs: HubFiles | None = None,
        progress: Progress = lambda done, total: None,
    ) -> None:
        self._snapshot = snapshot
        self._hub = HubPaths(hub)
        self._held = held
        self._fs = fs or HubFiles()
        self._to = self._hub.repo(snapshot.repo.folder)
        self._staging = self._hub.staging(snapshot.repo.folder)
        self._source = HubPaths(snapshot.hub).repo(snapshot.repo.folder)
        self._nonce = held.holder.nonce
        self._stager = Stager(
            snapshot, self._hub, nonce=self._nonce, own=own, fs=self._fs, progress=progress
        )
        self._names: dict[str, str] = {}

    def run(self) -> Published:
        """Stages, proves and publishes.

        Raises:
            DataError: The source or the hub holds other bytes than a name promises.
            StorageError: The hub cannot be written.
            LockLostError: Another has followed; nothing was published.
        """
        try:
            done = self._stager.stage()
            self._names = self._stager.names
            self._held.check()
            self._publish_or_look()
        except SourceError as error:
            raise DataError(
                f"cannot read {error.path}: {error.reason}; nothing was published",
                hint="look at the mount, and at permissions", path=error.path,
            ) from error  # fmt: skip
        except OSError as error:
            what = f"{self._snapshot.repo} into the hub cache {self._hub.root}"
            raise cannot_write(error, what, done=self._what_is_left()) from error
        with contextlib.suppress(OSError):
            remove_tree(self._fs, os.path.dirname(self._staging.folder))
        return done

    def _what_is_left(self) -> str:
        done = "a reader finds it whole or as it was before"
        with contextlib.suppress(OSError):
            if not self._fs.listdir(self._staging.blobs):
                return done
            done += f"; what was copied waits for the next call in {self._staging.folder}"
        return done

    def _make(self, folder: str) -> None:
        self._fs.make_shared_folder(folder)

    def _publish_or_look(self) -> None:
        """Publishes; what a server reported as failed may have happened, so that is looked at."""
        try:
            self._publish()
        except OSError:
            if self._lacks():
                raise
        if why := self._lacks():
            raise DataError(
                f"{self._snapshot.repo} is not whole in {self._hub.root} after it was published: "
                f"{why}",
                hint="call again; somebody else may be writing there",
                repo=self._snapshot.repo.name, hub=self._hub.root,
            )  # fmt: skip

    def _publish(self) -> None:
        if not self._fs.exists(self._to.folder) and self._publish_whole():
            return
        self._publish_blobs()
        self._publish_snapshot()
        self._write_listing(self._to)
        self._write_refs(self._to)

    def _publish_whole(self) -> bool:
        """A new repository, by one rename; False when somebody else has made it meanwhile."""
        self._clear_staging()
        self._build_snapshot(self._staging)
        self._write_listing(self._staging)
        self._write_refs(self._staging)
        self._fs.sync_folder(self._staging.folder)
        try:
            self._fs.rename_new(self._staging.folder, self._to.folder)
        except FileExistsError:
            return False
        self._fs.sync_folder(self._hub.root)
        return True

    def _clear_staging(self) -> None:
        """Removes what an earlier call has staged of another commit."""
        wanted = set(self._names.values())
        for name in self._fs.listdir(self._staging.blobs):
            if name not in wanted:
                self._fs.unlink(self._staging.blob(name))
        for folder in (self._staging.snapshots, self._staging.refs, self._staging.trees):
            remove_tree(self._fs, folder)

    def _publish_blobs(self) -> None:
        self._make(self._to.blobs)
        for name in dict.fromkeys(self._names.values()):
            if not self._fs.exists(self._staging.blob(name)):
                continue
            try:
                self._fs.rename_new(self._staging.blob(name), self._to.blob(name))
            except FileExistsError:  # a dangling link of the library, or a download meanwhile
                if os.path.exists(self._to.blob(name)):
                    continue
                self._fs.replace(self._staging.blob(name), self._to.blob(name))
        self._fs.sync_folder(self._to.blobs)

    def _publish_snapshot(self) -> None:
        folder = self._to.snapshot(self._snapshot.commit)
        if self._fs.exists(folder):
            self._add_links(folder)
            return
        remove_tree(self._fs, self._staging.snapshots)
        self._build_snapshot(self._staging)
        self._make(self._to.snapshots)
        try:
            self._fs.rename_new(self._staging.snapshot(self._snapshot.commit), folder)
        except FileExistsError:
            self._add_links(folder)
        self._fs.sync_folder(self._to.snapshots)

    def _build_snapshot(self, place: RepoPaths) -> None:
        folder = place.snapshot(self._snapshot.commit)
        for path in self._names:
            self._make(os.path.dirname(f"{folder}/{path}"))
            self._fs.make_link(self._target(path), f"{folder}/{path}")

    def _add_links(self, folder: str) -> None:
        # Indexes last: until then a reader that goes by the index finds none.
        for path in sorted(self._names, key=lambda path: (path.endswith(_INDEX), path)):
            link, target = f"{folder}/{path}", self._target(path)
            self._make(os.path.dirname(link))
            with contextlib.suppress(OSError):
                if self._fs.read_link(link) == target:
                    continue
            temporary = self._temporary()
            self._fs.make_link(target, temporary)
            self._fs.replace(temporary, link)
        self._fs.sync_folder(folder)

    def _target(self, path: str) -> str:
        up = "../" * (path.count("/") + 2)
        return f"{up}blobs/{self._names[path]}"

    def _write_listing(self, place: RepoPaths) -> None:
        commit = self._snapshot.commit
        if self._snapshot.listed and not self._fs.exists(place.tree(commit)):
            data = self._fs.read(self._source.tree(commit))
            self._write(place.trees, place.tree(commit), data)

    def _write_refs(self, place: RepoPaths) -> None:
        for ref in self._snapshot.refs:
            path = place.ref(ref)
            data = self._snapshot.commit.encode()
            with contextlib.suppress(OSError):
                if self._fs.read(path) == data:
                    continue
            self._write(os.path.dirname(path), path, data)

    def _write(self, folder: str, path: str, data: bytes) -> None:
        self._make(folder)
        temporary = self._temporary()
        self._fs.create(temporary, data, mode=0o644, durable=True)
        self._fs.replace(temporary, path)
        self._fs.sync_folder(folder)

    def _temporary(self) -> str:
        """A free name, beside what is staged.

        Not where the file is going: the library takes every file there for a ref or a snapshot's.
        """
        folder = os.path.dirname(self._staging.folder)
        self._make(folder)
        path = f"{folder}/{self._nonce}.tmp"
        with contextlib.suppress(FileNotFoundError):
            self._fs.unlink(path)
        return path

    def _lacks(self) -> str:
        """What the hub lacks of the snapshot as a reader sees it; empty if nothing."""
        try:
            now = read_snapshot(self._hub.root, self._snapshot.repo, self._snapshot.commit)
        except DataError as error:
            return error.message
        here = {file.path: file.blob for file in now.files}
        wrong = [path for path, name in self._names.items() if here.get(path) != name]
        refs = sorted(set(self._snapshot.refs) - set(now.refs))
        wrong += [f"ref {ref}" for ref in refs]
        if self._snapshot.listed and not now.listed:
            wrong.append("the listing of the commit")
        return f"{wrong[0]} is not as it was put there" if wrong else "".join(now.troubles[:1])
