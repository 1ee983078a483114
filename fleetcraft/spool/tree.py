"""One spool on disk: its safety check, reading records, finding tasks, and the one move.

Every protocol module works through a `SpoolTree`, which joins the paths with the file system.
Invariant: a transition is one rename of a unique source to a new name. Nothing is ever copied,
and no folder scan decides that a task is missing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from itertools import chain

import msgspec

from fleetcraft.errors import (
    FleetError,
    IntegrityError,
    NoSuchTaskError,
    SpoolError,
    UnsafeSpoolError,
)
from fleetcraft.files import FileSystem
from fleetcraft.identity import Owner
from fleetcraft.layout import LANES, Lane, SpoolPaths, State, parse_claim, tasks_of
from fleetcraft.spool.names import near
from fleetcraft.spool.record import Record, parse

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """Where a task was seen: its state, the record's path, and the lane or owner it has there."""

    state: State
    path: str
    lane: Lane = Lane.PLAIN
    owner: Owner | None = None


class SpoolTree:
    """A spool's paths and the file system under them.

    Args:
        root: The spool's folder.
        fs: The seam through which everything is touched.
    """

    def __init__(self, root: str, fs: FileSystem | None = None) -> None:
        self.paths = SpoolPaths(root)
        self.fs = fs or FileSystem()
        self.uid = os.geteuid()

    # -- safety

    def check_safe(self) -> SpoolTree:
        """Refuses a spool that is not there or that someone else could write.

        Raises:
            SpoolError: A folder is missing or is no folder.
            UnsafeSpoolError: A folder belongs to someone else, or others can write it.
        """
        for folder in self.paths.folders():
            try:
                facts = self.fs.lstat(folder)
            except FileNotFoundError:
                raise SpoolError(
                    f"no spool at {self.paths.root}: {folder} is missing",
                    hint="fleetcraft --root DIR init makes what is missing",
                    path=folder,
                ) from None
            except OSError as error:
                raise unreadable(folder, error) from error
            if not stat.S_ISDIR(facts.st_mode):
                raise UnsafeSpoolError(folder, "it is no folder")
            self._refuse_strangers(folder, facts)
        self.refuse_open_parent()
        return self

    def refuse_open_parent(self) -> None:
        """Refuses a spool in or below a folder that everybody can write, if anybody may move it.

        Looked at are the folder of the scratch tree and the one that holds it.

        Raises:
            UnsafeSpoolError: Anybody could put another spool in its place.
        """
        parent = os.path.dirname(self.paths.root)
        for folder in (parent, os.path.dirname(parent)):
            try:
                mode = self.fs.lstat(folder).st_mode
            except OSError as error:
                raise unreadable(folder, error) from error
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                reason = f"everybody can write it (mode {stat.filemode(mode)})"
                raise UnsafeSpoolError(folder, f"{reason} and so put another spool in its place")

    def _refuse_strangers(self, path: str, facts: os.stat_result) -> None:
        if facts.st_uid != self.uid:
            raise UnsafeSpoolError(
                path, f"it belongs to user {facts.st_uid}, and this is user {self.uid}"
            )
        if facts.st_mode & _WRITABLE_BY_OTHERS:
            mode = stat.filemode(facts.st_mode)
            raise UnsafeSpoolError(path, f"others can write it (mode {mode})")

    # -- reading

    def read_bytes(self, path: str) -> bytes:
        """The bytes of a record, refused when another user owns or can write it.

        Raises:
            FileNotFoundError: It is not there (any more).
            UnsafeSpoolError: Somebody else could have written what would be run.
        """
        return self.read_with_facts(path)[0]

    def read_with_facts(self, path: str) -> tuple[bytes, os.stat_result]:
        """Like `read_bytes`, with the facts of exactly the file that was read."""
        data, facts = self.fs.read_with_facts(path)
        if facts.st_uid != self.uid or facts.st_mode & _WRITABLE_BY_OTHERS:
            self._refuse_strangers(path, facts)
        return data, facts

    def read(self, path: str) -> Record:
        """One record, parsed.

        Raises:
            FileNotFoundError: It is not there (any more).
            UnsafeSpoolError: Somebody else could have written it.
            DataError: It is no record.
        """
        return parse(self.read_bytes(path))

    def each(self, folder: str) -> Iterator[str]:
        """The names of files in a folder, one by one, of which there may be any number."""
        return chain.from_iterable(self.fs.scan(folder))

    def records(self, folder: str) -> list[str]:
        """Task names of the ``NAME.sh`` files in a folder, unsorted; others are passed over."""
        return tasks_of(self.fs.listdir(folder))

    def scan_records(self, folder: str) -> Iterator[list[str]]:
        """Like `records`, some thousand at a time: for folders that may hold any number."""
        return map(tasks_of, self.fs.scan(folder))

    def claims(self) -> list[tuple[str, Owner]]:
        """Every claim in ``running/``, unsorted."""
        return [
            claim for file in self.fs.listdir(self.paths.running) if (claim := parse_claim(file))
        ]

    # -- finding

    def locate(self, name: str) -> Location | None:
        """Where a task is right now; None when this look did not see it.

        None does not mean that it is missing: it may have moved from a folder not yet looked at
        into one already seen. `find` looks again.
        """
        for lane in LANES:
            path = self.paths.pending_record(name, lane)
            if self.fs.exists(path):
                return Location(state=State.PENDING, path=path, lane=lane)
        path = self.paths.waiting_record(name)
        if self.fs.exists(path):
            return Location(state=State.WAITING, path=path)
        # Before `running` is listed, which costs as much as there are workers, and once more after
        # it, since the task may have ended meanwhile.
        return self._locate_ended(name) or self._locate_claim(name) or self._locate_ended(name)

    def _locate_claim(self, name: str) -> Location | None:
        for claimed, owner in self.claims():
            if claimed == name:
                path = self.paths.claim(name, owner)
                return Location(state=State.RUNNING, path=path, owner=owner)
        return None

    def _locate_ended(self, name: str) -> Location | None:
        for state in (State.DONE, State.FAILED):
            path = self.paths.finished_record(name, state)
            if self.fs.exists(path):
                return Location(state=state, path=path)
        return None

    def find(self, name: str) -> Location:
        """Where a task is, looked for several times since it may be moving.

        Raises:
            NoSuchTaskError: No task has this name.
            SpoolError: The name is taken, but its record was not seen in any folder.
        """
        for _ in range(8):
            location = self.locate(name)
            if location is not None:
                return location
        if not self.fs.exists(self.paths.name(name)):
            raise NoSuchTaskError(name, near(name, self.each(self.paths.names)))
        raise SpoolError(
            f"task {name!r} has its name but its record is in no folder: its enqueue was cut short",
            hint="enqueue it again, or fleetcraft check --repair",
            name=name,
        )

    def find_or_complete(self, name: str, complete: Callable[[SpoolTree, str], bool]) -> Location:
        """Like `find`, but first makes a task visible whose enqueue was cut short.

        Args:
            name: The task.
            complete: Tries the publishing rename of whoever holds the name.
        """
        location = self.locate(name)
        if location is None and self.fs.exists(self.paths.name(name)):
            complete(self, name)
        return location or self.find(name)

    # -- moving

    def home(self, record: Record) -> str:
        """Where a fresh record is published: ``waiting`` with dependencies, else its lane."""
        spec = record.spec
        if spec.after or spec.after_files:
            return self.paths.waiting_record(spec.name)
        return self.paths.pending_record(spec.name, spec.lane)

    def move(self, source: str, destination: str) -> bool:
        """Renames a record to a name that must be free.

        Returns:
            True when the record is now at the destination by this call, also when the system
            reported a failure; False when the source is gone, moved by someone else or by an
            earlier try.

        Raises:
            IntegrityError: Another file is at the destination; both are kept.
            OSError: The rename failed and the source is still there.
        """
        try:
            self.fs.rename_new(source, destination)
        except FileNotFoundError:
            return False
        except FileExistsError:
            return self._resolve_existing(source, destination)
        except OSError:
            # EIO and friends may come after the server has done it: the source tells.
            if self.fs.exists(source):
                raise
        return True

    def _resolve_existing(self, source: str, destination: str) -> bool:
        try:
            ours = self.fs.lstat(source)
            theirs = self.fs.lstat(destination)
        except FileNotFoundError:
            return not self.fs.exists(source)
        if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
            raise IntegrityError(source, destination)
        # POSIX rename between two links of one inode does nothing, so the stray one is unlinked.
        self.fs.unlink(source)
        return True


def unreadable(path: str, error: OSError) -> SpoolError:
    """The error for a path of the spool that the system will not let us use."""
    return SpoolError(
        f"cannot use {path}: {error.strerror or error}",
        hint="check the mount, its quota and the folder's permissions",
        path=path,
    )


def describe_problem(error: Exception) -> str:
    """One line about an error met in the middle of a pass over many tasks."""
    if isinstance(error, FleetError):
        return error.message
    if isinstance(error, OSError):
        return f"{error.strerror or type(error).__name__} ({error.filename or 'no path'})"
    return f"{type(error).__name__}: {error}"
