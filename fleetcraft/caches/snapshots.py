"""Snapshots of a hub cache: which files a commit has here, and what is missing or strange.

Looks at names, links and sizes, and reads indexes and listings; content is proved by `prove`. No
network, and nothing is changed. Invariant: a link is a file of the snapshot only if it leads to a
blob of the same repository.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from enum import StrEnum

import msgspec

from fleetcraft.caches.blobs import Proof, Verdict, scheme_of
from fleetcraft.caches.blobs import prove as prove_file
from fleetcraft.caches.hub import (
    HubFiles,
    Repo,
    is_safe,
    list_repos,
    parse_repo,
    require_repo,
    walk,
)
from fleetcraft.caches.indexes import Index, read_indexes
from fleetcraft.caches.refs import commits_of, read_refs, resolve_commit
from fleetcraft.errors import DataError
from fleetcraft.layout.caches import HubPaths, RepoPaths

_MOST_LISTING_BYTES = 256 << 20


class FileState(StrEnum):
    """What a name in a snapshot leads to."""

    PRESENT = "present"
    DANGLING = "dangling"
    """A link to a blob that is not there."""
    FOREIGN = "foreign"
    """A link that leads out of the repository, or no file at all."""
    MISLINKED = "mislinked"
    """The commit's listing names another blob for it."""
    WRONG_SIZE = "wrong size"
    """The commit's listing names another size."""


class SnapshotFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a snapshot.

    Attributes:
        path: Relative to the snapshot's folder.
        blob: The name of its blob; empty for a file that is no link.
        real: The path at which its bytes are read.
        expected: The digest that its content should have; empty where nothing says it.
        size_bytes: Its size; None when it is not there.
        listed_bytes: Its size by the commit's listing, if there is one.
        state: What the name leads to.
        detail: Where a strange link leads.
    """

    path: str
    blob: str = ""
    real: str = ""
    expected: str = ""
    size_bytes: int | None = None
    listed_bytes: int | None = None
    state: FileState = FileState.PRESENT
    detail: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One commit of one repository, as a hub cache has it.

    Attributes:
        hub: The cache.
        repo: The repository.
        commit: The commit.
        refs: Branches and tags that stand for it here.
        files: Sorted by path.
        indexes: Files that say which shards there must be.
        listed: Whether the commit's own listing is here, so that it is known what it has.
        absent: Files of that listing that are not here.
        incomplete: Temporary files of downloads that have not ended, in the folder of blobs.
        bytes: Of its distinct blobs.
    """

    hub: str
    repo: Repo
    commit: str
    refs: tuple[str, ...] = ()
    files: tuple[SnapshotFile, ...] = ()
    indexes: tuple[Index, ...] = ()
    listed: bool = False
    absent: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    bytes: int = 0

    @property
    def folder(self) -> str:
        """The snapshot's folder."""
        return HubPaths(self.hub).repo(self.repo.folder).snapshot(self.commit)

    def in_state(self, state: FileState) -> tuple[SnapshotFile, ...]:
        """The files of one state."""
        return tuple(file for file in self.files if file.state is state)

    @property
    def missing_shards(self) -> tuple[str, ...]:
        """Files that an index names and that are not here."""
        return tuple(path for index in self.indexes for path in index.missing)

    @property
    def unproved(self) -> tuple[str, ...]:
        """Files whose content nothing names a digest for."""
        return tuple(file.path for file in self.files if not file.expected)

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why it cannot be loaded whole, one sentence a reason; none where nothing speaks for it.

        Files that a listing names and that were never fetched are no trouble: a download may have
        asked for some files only. Whoever wants all of them looks at `absent`.
        """
        found = [] if self.files else ["it has no files"]
        for state in FileState:
            if state is not FileState.PRESENT and (files := self.in_state(state)):
                found.append(f"{state.value}: {named(file.path for file in files)}")
        if self.missing_shards:
            found.append(f"an index names absent shards: {named(self.missing_shards)}")
        found += [f"{index.path}: {index.fault}" for index in self.indexes if index.fault]
        return tuple(found)

    @property
    def complete(self) -> bool:
        """Whether everything that it is known to need is here."""
        return not self.troubles


def named(names: Iterator[str] | tuple[str, ...], most: int = 3) -> str:
    """The first few of some names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def read_snapshot(hub: str, repo: Repo | str, revision: str | None = None) -> Snapshot:
    """Reads what a hub cache has of one commit.

    Args:
        hub: The cache, as HF_HUB_CACHE names it.
        repo: The repository.
        revision: A branch, tag or commit (or its beginning); ``main``, or else the only snapshot
            there is, if None.

    Raises:
        UsageError: The name or revision cannot be one.
        DataError: It is not there, or cannot be read.
    """
    repo = parse_repo(repo) if isinstance(repo, str) else repo
    paths = require_repo(hub, repo)
    try:
        commit = resolve_commit(paths, repo, revision)
        return _read(hub, repo, paths, commit)
    except OSError as error:
        raise _unread(hub, repo, error) from error


def read_repo(hub: str, repo: Repo) -> tuple[Snapshot, ...]:
    """Every snapshot of one repository, by commit.

    Raises:
        DataError: The repository is not there, or cannot be read.
    """
    paths = require_repo(hub, repo)
    try:
        return tuple(_read(hub, repo, paths, commit) for commit in commits_of(paths))
    except OSError as error:
        raise _unread(hub, repo, error) from error


def _unread(hub: str, repo: Repo, error: OSError) -> DataError:
    return DataError(
        f"cannot read {repo} in the hub cache {hub}: {error.strerror} ({error.filename})",
        hint="look at the mount and at permissions", hub=hub, repo=repo.name,
    )  # fmt: skip


def read_hub(hub: str) -> tuple[tuple[Snapshot, ...], tuple[str, ...]]:
    """Every snapshot of a hub cache, and a sentence for each repository that could not be read."""
    found: list[Snapshot] = []
    unread = []
    for repo in list_repos(hub):
        try:
            found += read_repo(hub, repo)
        except DataError as error:
            unread.append(error.message)
    return tuple(found), tuple(unread)


def prove(
    snapshot: Snapshot,
    *,
    fresh: bool = False,
    fs: HubFiles | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Proof]:
    """Reads every file of a snapshot and compares it with the digest that names it.

    A blob that several files share is read once.

    Args:
        snapshot: What `read_snapshot` has found.
        fresh: Tells the kernel to forget what it holds of each file first.
        fs: The seam.
        progress: Is told of bytes that are done, and of all.

    Returns:
        A proof for each path.
    """
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, snapshot.bytes)

    proofs: dict[str, Proof] = {}
    read: dict[tuple[str, str], Proof] = {}
    for file in snapshot.files:
        key = file.real, file.expected
        if file.state is FileState.MISLINKED:
            key = file.real, file.expected + "/mislinked"
            read[key] = Proof(
                verdict=Verdict.CORRUPT, expected=file.expected, found=file.blob,
                size_bytes=file.size_bytes, detail=file.detail,
            )  # fmt: skip
        elif file.state in (FileState.DANGLING, FileState.FOREIGN):
            read[key] = Proof(
                verdict=Verdict.UNREADABLE, expected=file.expected,
                detail=file.detail or file.state.value,
            )  # fmt: skip
        elif key not in read:
            read[key] = prove_file(
                file.real, file.expected, size_bytes=file.listed_bytes, fresh=fresh, fs=fs,
                advance=advance,
            )  # fmt: skip
        proofs[file.path] = read[key]
    return proofs


# -- what it has


class _Listed(msgspec.Struct, frozen=True):
    """A file of a commit's listing.

    Source: huggingface_hub 2.4, ``_tree_cache.TreeCacheEntry``.
    """

    size: int
    blob_id: str
    lfs_sha256: str | None = None
    lfs_size: int | None = None

    @property
    def expected(self) -> str:
        return self.lfs_sha256 or self.blob_id

    @property
    def size_bytes(self) -> int:
        return self.size if self.lfs_size is None else self.lfs_size


class _Listing(msgspec.Struct, frozen=True):
    format_version: int
    files: dict[str, _Listed]


def _read(hub: str, repo: Repo, paths: RepoPaths, commit: str) -> Snapshot:
    listing = _read_listing(paths, commit)
    folder = paths.snapshot(commit)
    files = [_look_at(paths, folder, path, entry, listing) for path, entry in walk(folder)]
    files.sort(key=lambda file: file.path)
    here = {file.path: file for file in files}
    present = {path: f for path, f in here.items() if f.state is not FileState.DANGLING}
    sizes = {file.real: file.size_bytes or 0 for file in files}
    return Snapshot(
        hub=os.path.abspath(hub),
        repo=repo,
        commit=commit,
        refs=tuple(sorted(name for name, at in read_refs(paths).items() if at == commit)),
        files=tuple(files),
        indexes=read_indexes({path: file.real for path, file in present.items()}, set(here)),
        listed=listing is not None,
        absent=tuple(sorted(set(listing or {}) - set(here))),
        incomplete=_incomplete(paths),
        bytes=sum(sizes.values()),
    )


def _look_at(
    paths: RepoPaths,
    folder: str,
    path: str,
    entry: os.DirEntry[str],
    listing: dict[str, _Listed] | None,
) -> SnapshotFile:
    real, blob = entry.path, ""
    if not is_safe(path):
        detail = "no repository of the hub has such a name"
        return SnapshotFile(path=path, real=real, state=FileState.FOREIGN, detail=detail)
    if entry.is_symlink():
        target = os.readlink(entry.path)
        real = os.path.normpath(os.path.join(os.path.dirname(entry.path), target))
        if not _is_blob_of(paths, real):
            detail = f"it leads to {target}"
            return SnapshotFile(path=path, real=real, state=FileState.FOREIGN, detail=detail)
        blob = os.path.basename(real)
    told = (listing or {}).get(path)
    expected = blob if scheme_of(blob) else told.expected if told else ""
    seen = SnapshotFile(
        path=path,
        blob=blob,
        real=real,
        expected=expected if scheme_of(expected) else "",
        listed_bytes=told.size_bytes if told else None,
    )
    return _with_state(seen, told)


def _with_state(seen: SnapshotFile, told: _Listed | None) -> SnapshotFile:
    replace = msgspec.structs.replace
    try:
        facts = os.stat(seen.real)
    except FileNotFoundError:
        detail = f"blob {seen.blob[:12]} is not there"
        return replace(seen, state=FileState.DANGLING, detail=detail)
    if not stat.S_ISREG(facts.st_mode):
        return replace(seen, state=FileState.FOREIGN, detail="it is no regular file")
    seen = replace(seen, size_bytes=facts.st_size)
    if told and scheme_of(seen.blob) and seen.blob != told.expected:
        detail = f"it leads to blob {seen.blob[:12]}, the commit has {told.expected[:12]}"
        return replace(seen, state=FileState.MISLINKED, expected=told.expected, detail=detail)
    if seen.listed_bytes not in (None, facts.st_size):
        detail = f"{facts.st_size} bytes, expected {seen.listed_bytes}"
        return replace(seen, state=FileState.WRONG_SIZE, detail=detail)
    return seen


def _is_blob_of(paths: RepoPaths, target: str) -> bool:
    folder = os.path.dirname(target)
    # Absolute links are what the library makes across mounts; the same folder can be spelled twice.
    return folder == paths.blobs or os.path.realpath(folder) == os.path.realpath(paths.blobs)


def _read_listing(paths: RepoPaths, commit: str) -> dict[str, _Listed] | None:
    """The commit's listing; None where there is none, or none that can be read.

    A listing that is torn says nothing, and the library itself ignores it too.
    """
    try:
        with open(paths.tree(commit), "rb") as file:
            listing = msgspec.json.decode(file.read(_MOST_LISTING_BYTES), type=_Listing)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if listing.format_version != 1 or not all(map(is_safe, listing.files)):
        return None
    return listing.files


def _incomplete(paths: RepoPaths) -> tuple[str, ...]:
    try:
        names = os.listdir(paths.blobs)
    except FileNotFoundError:
        return ()
    return tuple(sorted(name for name in names if name.endswith(".incomplete")))
