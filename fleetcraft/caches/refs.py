"""Which commit a branch, a tag or the beginning of a hash stands for in a hub cache.

No network: only what was fetched here is known. Invariant: a commit is one only if its snapshot is
here.
"""

from __future__ import annotations

import os

from fleetcraft.caches.hub import Repo, is_safe, parse_revision, walk
from fleetcraft.errors import DataError
from fleetcraft.layout.caches import RepoPaths

_MOST_REF_BYTES = 4096
_SHORTEST_COMMIT = 7
MAIN = "main"


def resolve_commit(paths: RepoPaths, repo: Repo, revision: str | None) -> str:
    """The commit that a revision stands for in this cache.

    Raises:
        UsageError: The revision cannot be one.
        DataError: It stands for none here.
        OSError: The folders cannot be read.
    """
    commits = commits_of(paths)
    if revision is None:
        found = read_ref(paths, MAIN) or (commits[0] if len(commits) == 1 else "")
    elif parse_revision(revision) in commits:
        found = revision
    else:
        begun = [c for c in commits if len(revision) >= _SHORTEST_COMMIT and c.startswith(revision)]
        found = read_ref(paths, revision) or (begun[0] if len(begun) == 1 else "")
    if found in commits:
        return found
    here = ", ".join([*sorted(read_refs(paths)), *commits][:6]) or "nothing"
    asked = revision or MAIN
    raise DataError(
        f"{repo} has no snapshot of {asked} here{f' (commit {found})' if found else ''}; "
        f"there is {here}",
        hint="name one of these with --revision" if commits else "it was never fetched completely",
        repo=repo.name, revision=asked, folder=paths.folder,
    )  # fmt: skip


def commits_of(paths: RepoPaths) -> list[str]:
    """Commits that have a folder in a repository, sorted."""
    try:
        with os.scandir(paths.snapshots) as entries:
            return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def read_ref(paths: RepoPaths, revision: str) -> str:
    """The commit that a branch or tag stands for; empty where it stands for none."""
    try:
        with open(paths.ref(revision), "rb") as file:
            text = file.read(_MOST_REF_BYTES).decode("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""
    return text if is_safe(text) and "/" not in text else ""


def read_refs(paths: RepoPaths) -> dict[str, str]:
    """Every branch and tag with its commit."""
    names = [name for name, entry in walk(paths.refs) if entry.is_file()]
    return {name: commit for name in names if (commit := read_ref(paths, name))}
