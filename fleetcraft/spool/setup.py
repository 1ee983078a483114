"""Making a spool, and proving that its file system keeps the promises that the protocol needs.

The probe moves a file through every folder: a project quota can answer EXDEV between two folders
of one mount, and a spool there would strand its first task. Invariant: nothing outside the
spool's own folder is made, and an existing spool is never changed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass

from fleetcraft.errors import SpoolError
from fleetcraft.files import NO_HARD_LINKS
from fleetcraft.identity import new_record_id
from fleetcraft.spool.tree import SpoolTree, unreadable
from fleetcraft.trust import make_folders


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupReport:
    """What `set_up` found and made.

    ``hard_links`` is False on mounts without them, where identities are folders instead.
    """

    root: str
    made: tuple[str, ...]
    hard_links: bool


def set_up(tree: SpoolTree) -> SetupReport:
    """Makes what is missing of a spool, private to this user, and probes the file system.

    Raises:
        SpoolError: A folder cannot be made, or rename does not work between two folders.
        UnsafeSpoolError: A folder is there, but others own or can write it.
    """
    made = []
    for folder in tree.paths.folders():
        try:
            if folder == tree.paths.root:
                _make_parent(folder)
                tree.refuse_open_parent()
            tree.fs.make_folder(folder)
            made.append(folder)
        except FileExistsError:
            continue
        except OSError as error:
            raise unreadable(folder, error) from error
    tree.check_safe()
    return SetupReport(root=tree.paths.root, made=tuple(made), hard_links=_probe(tree))


def _make_parent(folder: str) -> None:
    parent = os.path.dirname(folder)
    try:
        make_folders(parent)
    except FileExistsError:  # a file is in the way
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), parent) from None


def _probe(tree: SpoolTree) -> bool:
    folders = [
        tree.paths.tmp, tree.paths.pending, f"{tree.paths.pending}/first",
        f"{tree.paths.pending}/last", tree.paths.waiting, tree.paths.running,
        tree.paths.done, tree.paths.failed,
    ]  # fmt: skip
    file = f".probe-{new_record_id()}"
    here = there = f"{folders[0]}/{file}"
    try:
        tree.fs.create(here, b"probe\n")
        hard_links = _probe_link(tree, here, f"{tree.paths.names}/{file}")
        for folder in [*folders[1:], folders[0]]:
            there = f"{folder}/{file}"
            _probe_move(tree, here, there)
            here = there
    except OSError as error:
        raise SpoolError(
            f"the file system cannot hold a spool: {_attempted(error, there)} failed "
            f"({error.strerror or error}); no task can be enqueued here",
            hint=_hint(error),
            path=tree.paths.root,
        ) from error
    finally:
        # Both: a move that was reported as failed may have been done.
        for path in {here, there}:
            with contextlib.suppress(OSError):
                tree.fs.unlink(path)
    return hard_links


def _probe_link(tree: SpoolTree, source: str, name: str) -> bool:
    """Whether there are hard links; an error that says something else is raised."""
    try:
        tree.fs.link(source, name)
    except OSError as error:
        if error.errno in NO_HARD_LINKS:
            return False
        # The server may have done what it reported as failed.
        if not tree.fs.exists(name):
            raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            tree.fs.unlink(name)
    return True


def _probe_move(tree: SpoolTree, here: str, there: str) -> None:
    if not tree.move(here, there) and not tree.fs.exists(there):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), here, None, there)


def _attempted(error: OSError, there: str) -> str:
    if error.filename2 is None:
        return f"making a file at {error.filename or there}"
    return f"moving a file to {error.filename2}"


def _hint(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space or quota, or inodes (df -h, df -i), then init again"
    if error.errno == errno.EXDEV:
        return "choose a folder on one mount without a quota boundary between its folders"
    return "choose another mount; fleetcraft doctor tries what this one can do"
