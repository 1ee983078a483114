"""Setting a corrupt file of a model aside, and saying who must fetch it again.

The blob moves first and the links to it go after that: a load in between finds nothing, and a
download would fetch anew, while a link to a blob that stays would be taken for good. Not here: the
fetching. Invariant: nothing is deleted but links, and those stand in the record.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
from collections.abc import Iterator

import msgspec

from fleetcraft.caches.blobs import Proof, Verdict, facts_of
from fleetcraft.caches.blobs import prove as prove_file
from fleetcraft.caches.hub import (
    HubFiles,
    Repo,
    cannot_write,
    is_safe,
    list_repos,
    parse_repo,
    require_repo,
)
from fleetcraft.caches.mirror import fetch_command
from fleetcraft.caches.snapshots import FileState, Snapshot, SnapshotFile, read_repo, read_snapshot
from fleetcraft.caches.writing import take_turn
from fleetcraft.clock import timestamp
from fleetcraft.errors import DataError, FleetError, UsageError
from fleetcraft.identity import new_record_id
from fleetcraft.layout.caches import CachePaths, HubPaths
from fleetcraft.locks import put_if_absent
from fleetcraft.trust import require_private_folder

SCHEMA = "fleetcraft.cache_quarantine/1"


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that used the file, and what brings it back.

    Attributes:
        repo: The repository.
        commit: The commit.
        refs: Branches and tags that stand for it here.
        paths: What it calls the file.
        links: What each of these led to.
        fetch: The command that fetches the file again.
    """

    repo: Repo
    commit: str
    refs: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    fetch: str = ""


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one file that was set aside.

    Attributes:
        schema: `SCHEMA`.
        id: Names the record and its folder.
        hub: The hub cache.
        repo: The repository that was named.
        file: The path that was named.
        blob: The blob's name; empty for a file that was no link.
        proof: What its bytes have shown.
        reason: In the words of whoever asked.
        users: Every snapshot that used it, in every repository of the hub.
        owner: Who owned the file, and so probably fetched it.
        aside: Where its bytes are now; empty if there were none.
        at: Wall clock.
    """

    schema: str = SCHEMA
    id: str
    hub: str
    repo: Repo
    file: str
    blob: str
    proof: Proof
    reason: str = ""
    users: tuple[User, ...] = ()
    owner: str = ""
    aside: str = ""
    at: str = ""


class NotCorruptError(FleetError):
    """The file is what its name promises, so it was not moved."""


def quarantine(
    paths: CachePaths,
    hub: str,
    repo: Repo | str,
    file: str,
    reason: str = "",
    *,
    revision: str | None = None,
    anyway: bool = False,
    dry_run: bool = False,
    wait_s: float = 0.0,
    fs: HubFiles | None = None,
) -> Quarantined:
    """Sets one file of a model aside, with every link to it in the hub.

    Args:
        paths: Where it is set aside; beside the hub where that is on another mount.
        hub: The hub cache.
        repo: The repository.
        file: Its path in the snapshot, or the name of a blob.
        reason: Why, in words.
        revision: Which snapshot's file, if several have different ones.
        anyway: Also if it is proved, or nothing proves it.
        dry_run: Say what would be moved, and write nothing.
        wait_s: How long another writer of the repository is waited for, in seconds.
        fs: The seam.

    Returns:
        The record, also where an earlier call was cut short and this one has finished it.

    Raises:
        UsageError: The path cannot be one.
        NotCorruptError: It is proved.
        DataError: It is not there, or several snapshots have different ones.
        StorageError: It cannot be moved.
        LockHeldError: Another writes the repository.
    """
    fs = fs or HubFiles()
    repo = parse_repo(repo) if isinstance(repo, str) else repo
    if not is_safe(file):
        raise UsageError(
            f"not a path in a snapshot: {file!r}; nothing was moved",
            hint="write it as the repository has it, such as text_encoder/model.safetensors",
            file=file,
        )
    require_repo(hub, repo)

    def judged() -> tuple[SnapshotFile, tuple[int, ...], Quarantined]:
        try:
            target = _target(hub, repo, file, revision)
        except DataError as error:
            for earlier in read_quarantine(paths):
                if earlier.repo == repo and file in (earlier.file, earlier.blob) and earlier.users:
                    again = earlier.users[0].fetch
                    error.hint = f"it was set aside before; fetch it again: {again}"
            raise
        facts = facts_of(target.real)  # before it is read
        found = _examined(hub, repo, target, reason, fs)
        if not anyway:
            _require_corrupt(target, found)
        return target, facts, found

    target, facts, found = judged()
    if dry_run:
        return found
    held = take_turn(hub, repo, purpose=f"quarantine of {repo} in {hub}", wait_s=wait_s, fs=fs)
    assert held is not None
    with held:
        if facts_of(target.real) != facts:  # whoever was waited for may have mended it
            target, facts, found = judged()
        held.check()
        try:
            return _set_aside(paths, found, target, fs)
        except OSError as error:
            done = "it may be half done: call again"
            raise cannot_write(error, f"the quarantine of {file}", done=done) from error


def read_quarantine(paths: CachePaths) -> tuple[Quarantined, ...]:
    """Every record, oldest first; what cannot be read is left out."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(paths.quarantine)):
            with contextlib.suppress(OSError, msgspec.MsgspecError, RecursionError):
                data = HubFiles().read(_record_file(paths, name))
                found.append(msgspec.json.decode(data, type=Quarantined))
    return tuple(sorted(found, key=lambda record: record.at))


# -- which file


def _target(hub: str, repo: Repo, file: str, revision: str | None) -> SnapshotFile:
    """The file that is meant.

    Raises:
        DataError: No snapshot has it, or several have different ones.
    """
    snapshots = read_repo(hub, repo) if revision is None else (read_snapshot(hub, repo, revision),)
    meant = {f.real: f for s in snapshots for f in s.files if file in (f.path, f.blob)}
    if len(meant) == 1:
        return next(iter(meant.values()))
    if meant:
        names = ", ".join(sorted(f.blob[:12] for f in meant.values()))
        raise DataError(
            f"{len(meant)} snapshots of {repo} have different files {file} ({names}); "
            "nothing was moved",
            hint="name one with --revision, or give the name of its blob", file=file,
        )  # fmt: skip
    import difflib

    every = sorted({f.path for s in snapshots for f in s.files})
    near = difflib.get_close_matches(file, every, 3, 0.5)
    raise DataError(
        f"{repo} has no file {file} in {hub}; nothing was moved",
        hint=f"did you mean {', '.join(near)}?" if near else "a snapshot's folder lists its files",
        file=file, near=near,
    )  # fmt: skip


def _examined(hub: str, repo: Repo, target: SnapshotFile, reason: str, fs: HubFiles) -> Quarantined:
    if target.state is FileState.FOREIGN:
        proof = Proof(verdict=Verdict.CORRUPT, detail=target.detail)
    elif target.state is FileState.MISLINKED:
        proof = Proof(
            verdict=Verdict.CORRUPT, expected=target.expected, found=target.blob,
            detail=target.detail,
        )  # fmt: skip
    else:
        proof = prove_file(
            target.real, target.expected, size_bytes=target.listed_bytes, fresh=True, fs=fs
        )
    users = tuple(_users(hub, target))
    return Quarantined(
        id=f"{repo.folder}-{(target.blob or 'file')[:12]}-{new_record_id()}",
        hub=os.path.abspath(hub),
        repo=repo,
        file=target.path,
        blob=target.blob,
        proof=proof,
        reason=reason,
        users=users,
        owner=_owner(target.real),
        at=timestamp(),
    )


def _users(hub: str, target: SnapshotFile) -> Iterator[User]:
    """Every snapshot of the hub that has a link to the same bytes.

    Repositories can share bytes: the library's own store, or links that someone made.
    """
    real = os.path.realpath(target.real)
    for repo in list_repos(hub):
        for snapshot in read_repo(hub, repo):
            mine = [f for f in snapshot.files if f.real and os.path.realpath(f.real) == real]
            if target.state is FileState.MISLINKED:
                mine = [f for f in mine if f.path == target.path]
            if mine:
                yield _user(snapshot, mine)


def _user(snapshot: Snapshot, files: list[SnapshotFile]) -> User:
    paths = tuple(file.path for file in files)
    return User(
        repo=snapshot.repo,
        commit=snapshot.commit,
        refs=snapshot.refs,
        paths=paths,
        links=tuple(_link_text(f"{snapshot.folder}/{path}") for path in paths),
        fetch=fetch_command(snapshot, *paths),
    )


def _link_text(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _owner(path: str) -> str:
    try:
        uid = os.stat(path).st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _require_corrupt(target: SnapshotFile, found: Quarantined) -> None:
    verdict = found.proof.verdict
    # What is there and cannot be read just now may be as good as ever; what is gone is not.
    unread = verdict is Verdict.UNREADABLE and target.state is not FileState.DANGLING
    if unread or verdict in (Verdict.PROVED, Verdict.UNPROVABLE):
        raise _not_corrupt(found)


def _not_corrupt(found: Quarantined) -> NotCorruptError:
    if found.proof.verdict is Verdict.PROVED:
        why = f"is not corrupt: its bytes give {found.proof.found[:12]}, as its name promises"
    elif found.proof.verdict is Verdict.UNREADABLE:
        why = f"cannot be proved or refuted: it cannot be read here ({found.proof.detail})"
    else:
        why = "cannot be proved or refuted: nothing names its digest"
    return NotCorruptError(
        f"{found.file} of {found.repo} {why}; nothing was moved",
        hint="--anyway --reason TEXT sets it aside all the same",
        file=found.file, blob=found.blob, verdict=found.proof.verdict.value,
    )  # fmt: skip


# -- moving it


def _record_file(paths: CachePaths, name: str) -> str:
    return f"{paths.quarantine}/{name}/record.json"


def _set_aside(
    paths: CachePaths, found: Quarantined, target: SnapshotFile, fs: HubFiles
) -> Quarantined:
    """Record, blob, links, in this order.

    Raises:
        OSError: One of these failed; a further call goes on from there.
    """
    real = os.path.realpath(target.real)
    if target.state in (FileState.FOREIGN, FileState.MISLINKED):
        return _drop_links(found, _recorded(paths, found, fs), fs, blobs=False)
    if not real.startswith(os.path.realpath(found.hub) + "/"):
        # Somebody else's file: this hub forgets it, and nothing more.
        return _drop_links(found, _recorded(paths, found, fs), fs)
    if not fs.exists(real):
        earlier = [r for r in read_quarantine(paths) if r.blob == found.blob and r.aside]
        return _drop_links(found, earlier[-1] if earlier else _recorded(paths, found, fs), fs)
    # Where the bytes go is part of the record, so the mount is tried before.
    aside = f"{paths.quarantine}/{found.id}/content"
    if not _same_mount(real, _room(paths, found, fs)):
        folder = HubPaths(found.hub).aside(found.id)
        fs.make_shared_folder(folder)
        aside = f"{folder}/content"
    record = _recorded(paths, msgspec.structs.replace(found, aside=aside), fs)
    fs.rename_new(real, aside)
    fs.sync_folder(os.path.dirname(aside))
    fs.sync_folder(os.path.dirname(real))
    return _drop_links(found, record, fs)


def _room(paths: CachePaths, found: Quarantined, fs: HubFiles) -> str:
    fs.make_shared_folder(paths.root)
    require_private_folder(paths.quarantine)
    folder = f"{paths.quarantine}/{found.id}"
    with contextlib.suppress(FileExistsError):
        fs.make_folder(folder)
    return folder


def _same_mount(path: str, folder: str) -> bool:
    return os.lstat(path).st_dev == os.lstat(folder).st_dev


def _recorded(paths: CachePaths, found: Quarantined, fs: HubFiles) -> Quarantined:
    _room(paths, found, fs)
    data = msgspec.json.encode(found) + b"\n"
    if not put_if_absent(fs, _record_file(paths, found.id), data):
        raise OSError(errno.EEXIST, "another record has this name", _record_file(paths, found.id))
    return found


def _drop_links(
    found: Quarantined, record: Quarantined, fs: HubFiles, *, blobs: bool = True
) -> Quarantined:
    """Removes the names by which loaders would look for the bytes.

    Args:
        found: The users as they are now.
        record: What is returned.
        fs: The seam.
        blobs: Also blobs that are links themselves, into a store that repositories share.
    """
    for user in found.users:
        folder = HubPaths(found.hub).repo(user.repo.folder)
        for path in user.paths:
            link = f"{folder.snapshot(user.commit)}/{path}"
            blob = os.path.normpath(os.path.join(os.path.dirname(link), _link_text(link) or "."))
            if os.path.islink(link):
                _drop(link, fs)
            if blobs and os.path.dirname(blob) == folder.blobs and os.path.islink(blob):
                _drop(blob, fs)
        with contextlib.suppress(FileNotFoundError):
            fs.sync_folder(folder.snapshot(user.commit))
    return record


def _drop(link: str, fs: HubFiles) -> None:
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(link)
