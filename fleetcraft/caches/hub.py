"""The hub cache as huggingface_hub lays it out: names of repositories, and file operations.

``<hub>/models--org--name/{blobs,refs,snapshots/<commit>,trees}``. What fleetcraft keeps of its own
in a hub lies where the library's own listings leave it out. Not here: the paths
(`layout.caches`), and what a snapshot holds. Invariant: no name that comes from a user or a file
leads out of its repository.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import shlex
import stat
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from fleetcraft.errors import DataError, SpoolError, UsageError
from fleetcraft.files import BulkFileSystem, FileSystem
from fleetcraft.layout.caches import HubPaths, RepoPaths
from fleetcraft.trust import make_folders

_PART = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NEAR = 3


class RepoType(StrEnum):
    """What a repository of the hub holds; its folder begins with the plural."""

    MODEL = "model"
    DATASET = "dataset"
    SPACE = "space"
    KERNEL = "kernel"


class Repo(msgspec.Struct, frozen=True, kw_only=True):
    """One repository of the hub.

    Attributes:
        name: ``org/name``, or ``name`` alone.
        type: What it holds.
    """

    name: str
    type: RepoType = RepoType.MODEL

    @property
    def folder(self) -> str:
        """The name of its folder in a hub cache, ``models--org--name``."""
        return "--".join((f"{self.type.value}s", *self.name.split("/")))

    def __str__(self) -> str:
        return self.name if self.type is RepoType.MODEL else f"{self.type.value} {self.name}"


class StorageError(SpoolError):
    """A cache cannot be written: a full disk, a read-only mount, no permission.

    Its code is 5, as wherever the place itself refuses; what was there before is as it was.
    """


def parse_repo(text: str, repo_type: RepoType = RepoType.MODEL) -> Repo:
    """Reads ``org/name``, ``name``, or a folder of a hub cache such as ``datasets--org--name``.

    Raises:
        UsageError: It is no name of a repository.

    Source: the rules of huggingface_hub's ``validate_repo_id`` (2.4).
    """
    for kind in RepoType:
        if text.startswith(f"{kind.value}s--"):
            text, repo_type = text.removeprefix(f"{kind.value}s--").replace("--", "/"), kind
            break
    parts = text.split("/")
    good = len(parts) <= 2 and all(map(_PART.fullmatch, parts)) and not text.endswith(".git")
    if not good or "--" in text or ".." in text:
        raise UsageError(
            f"not the name of a repository: {text!r}; nothing was done",
            hint="write org/name; letters, digits, '_', '.', '-', no '--' and no '..'",
            name=text,
        )
    return Repo(name=text, type=repo_type)


def parse_revision(text: str) -> str:
    """Checks the name of a branch or tag (``refs/pr/1`` too) or a commit.

    Raises:
        UsageError: It is none, or could lead out of the folder of refs.
    """
    if not text or not is_safe(text):
        raise UsageError(
            f"not a revision: {text!r}; nothing was done",
            hint="write a branch, a tag or a commit of 40 hex digits",
            revision=text,
        )
    return text


def is_commit(text: str) -> bool:
    """Whether a text is a whole commit hash."""
    return _COMMIT.fullmatch(text) is not None


def is_safe(path: str) -> bool:
    """Whether a relative path stays where it is: no ``..``, not absolute, nothing strange."""
    return (
        bool(path)
        and not path.startswith("/")
        and not any(ord(char) < 32 or char in "\\\x7f" or is_byte(char) for char in path)
        and all(part not in ("", ".", "..") for part in path.split("/"))
    )


def is_byte(char: str) -> bool:
    """Whether a character stands for a byte of a name that is no text (surrogateescape)."""
    return "\ud800" <= char <= "\udfff"


def list_repos(hub: str) -> tuple[Repo, ...]:
    """The repositories of a hub cache, sorted; none where there is no such folder.

    Raises:
        DataError: The folder cannot be read.
    """
    try:
        names = sorted(os.listdir(hub))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise DataError(f"cannot list the hub cache {hub}: {error.strerror}", hub=hub) from error
    found = []
    for name in names:
        if any(name.startswith(f"{kind.value}s--") for kind in RepoType):
            with contextlib.suppress(UsageError):
                found.append(parse_repo(name))
    return tuple(found)


def require_repo(hub: str, repo: Repo) -> RepoPaths:
    """The paths of a repository that is there.

    Raises:
        DataError: It is not; the hint names near ones.
    """
    paths = HubPaths(hub).repo(repo.folder)
    if os.path.isdir(paths.folder):
        return paths
    names = [str(item.name) for item in list_repos(hub) if item.type is repo.type]
    near = difflib.get_close_matches(repo.name, names, _NEAR, 0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"{len(names)} are there: ls {hub}"
    raise DataError(
        f"no {repo.type.value} {repo.name} in the hub cache {hub}; nothing was done",
        hint=hint, hub=hub, repo=repo.name, near=near,
    )  # fmt: skip


class HubFiles(BulkFileSystem):
    """Copying of large files, with what a hub cache needs besides: links and shared folders."""

    def make_shared_folder(self, path: str) -> None:
        """Makes a folder and those above it, for the user and, if the umask has it, the group."""
        make_folders(path, 0o775)

    def make_link(self, target: str, path: str) -> None:
        """Makes a symbolic link; FileExistsError where that name is taken."""
        os.symlink(target, path)

    def read_link(self, path: str) -> str:
        """Where a symbolic link leads."""
        return os.readlink(path)

    def make_read_only(self, path: str) -> None:
        """Takes everybody's right to write a file."""
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & 0o555 | 0o444)

    def free_bytes(self, folder: str) -> int | None:
        """What this user can still write on the mount; None where it does not say."""
        try:
            facts = os.statvfs(folder)
        except OSError:
            return None
        return facts.f_bavail * facts.f_frsize if facts.f_blocks else None


def walk(folder: str, under: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything below a folder that is no folder, with its relative path; links stay links."""
    try:
        entries = sorted(os.scandir(f"{folder}/{under}"), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        path = f"{under}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from walk(folder, f"{path}/")
        else:
            yield path, entry


def remove_tree(fs: FileSystem, folder: str) -> None:
    """Removes a folder of our own with all that is in it, never following a link.

    Raises:
        OSError: Something of it stays.
    """
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(fs, entry.path)
        else:
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(entry.path)
    with contextlib.suppress(FileNotFoundError):
        fs.remove_folder(folder)


def set_aside_command(hub: str, repo: Repo, file: str) -> str:
    """The command that sets a corrupt file aside, for hints."""
    words = ["fleetcraft", "caches", "quarantine", repo.name, file, "--hub", hub]
    if repo.type is not RepoType.MODEL:
        words += ["--repo-type", repo.type.value]
    return shlex.join(words)


def cannot_write(error: OSError, what: str, *, done: str) -> StorageError:
    """The error for a cache that cannot be written.

    Args:
        error: What the system said.
        what: The thing that was to be written.
        done: What was not done, and what is as it was.
    """
    hints = {
        errno.ENOSPC: "free some room or name another hub: df -h, and the quota",
        errno.EDQUOT: "the quota is used up: name a hub on scratch",
        errno.EXDEV: "the repository's folder is a link to another mount: name the hub there",
        errno.EROFS: "the mount is read-only here: name another hub, or write from another node",
    }
    where = error.filename or what
    said = error.strerror or str(error)
    if error.errno == errno.ENOSPC and said != os.strerror(errno.ENOSPC):
        said = f"{os.strerror(errno.ENOSPC)}: {said}"
    return StorageError(
        f"cannot write {what}: {said} ({where}); {done}",
        hint=hints.get(error.errno or 0, "look at the mount and the folder's permissions"),
        path=str(where),
        errno=error.errno,
    )
