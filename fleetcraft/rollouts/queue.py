"""A trajectory queue on disk: made once, opened by all, counted by names.

Not here: who may put something in (`streams`, `admission`, `publishing`) and who takes it out
(`transaction`). Invariant: what a queue was made with never changes, and counting reads no record.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator

import msgspec

from fleetcraft.errors import ConfigError, DataError, SpoolError, UsageError
from fleetcraft.files import FileSystem
from fleetcraft.layout.rollouts import (
    RolloutName,
    RolloutPaths,
    parse_commit,
    parse_refused_name,
    parse_reservation,
    parse_rollout,
)
from fleetcraft.locks import put_if_absent
from fleetcraft.rollouts.records import NO_RECORD, SETTINGS_SCHEMA, Settings, encode
from fleetcraft.trust import make_folders

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class UnsafeQueueError(SpoolError):
    """A folder of a queue that someone else owns or can write: it could steer what is trained."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"refusing {path}: {reason}; nothing was done",
            hint="records steer training: use a queue that only you own and can write (chmod go-w)",
            path=path,
        )


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many records are where, by their names alone.

    Attributes:
        pending: Published, and not claimed.
        reserved: Identities that a producer has room for and has not published.
        claimed: In the folders of transactions, whatever became of those.
        quarantined: Refused, and kept.
        consumed: Members of commits: each has exactly the batch.
        version: The newest version that was committed; 0 before the first.
    """

    pending: int
    reserved: int
    claimed: int
    quarantined: int
    consumed: int
    version: int


class RolloutQueue:
    """One queue, as one process has it open. Made by `create` or `open`.

    Attributes:
        paths: Where everything of it lies.
        settings: What it was made with.
        fs: The seam.
    """

    def __init__(self, paths: RolloutPaths, settings: Settings, fs: FileSystem) -> None:
        self.paths = paths
        self.settings = settings
        self.fs = fs

    @classmethod
    def create(
        cls, folder: str, settings: Settings, *, fs: FileSystem | None = None
    ) -> RolloutQueue:
        """Makes a queue, parents included, or opens the one that was made with the same settings.

        Raises:
            ConfigError: The settings contradict one another, or the queue there has others.
            DataError: What is there cannot be read.
            SpoolError: The folder cannot be written, or is not this user's alone.
        """
        check_settings(settings)
        fs = fs or FileSystem()
        paths = RolloutPaths(folder)
        try:
            make_folders(os.path.dirname(paths.folder))
            for path in paths.folders():
                with contextlib.suppress(FileExistsError):
                    fs.make_folder(path)
            made = put_if_absent(fs, paths.settings, encode(settings))
        except OSError as error:
            raise cannot(f"make a trajectory queue in {paths.folder}", error) from error
        queue = cls.open(folder, fs=fs)
        if not made and queue.settings != settings:
            raise _other_settings(queue, settings)
        return queue

    @classmethod
    def open(cls, folder: str, *, fs: FileSystem | None = None) -> RolloutQueue:
        """Opens a queue that is there.

        Raises:
            UsageError: There is none.
            DataError: Its settings cannot be read, or a later fleetcraft wrote them.
            UnsafeQueueError: Somebody else owns a folder of it or can write there.
        """
        fs = fs or FileSystem()
        paths = RolloutPaths(folder)
        settings = _read_settings(fs, paths)
        _refuse_strangers(fs, paths)
        return cls(paths, settings, fs)

    # -- looking

    def names(self, folder: str) -> list[RolloutName]:
        """The records of one folder; a folder that is not there has none.

        Raises:
            OSError: The folder cannot be listed.
        """
        found = (parse_rollout(name) for name in self.listing(folder))
        return [name for name in found if name is not None]

    def listing(self, folder: str) -> list[str]:
        """File names of one folder; a folder that is not there has none.

        Raises:
            OSError: The folder cannot be listed.
        """
        try:
            return self.fs.listdir(folder)
        except FileNotFoundError:
            return []

    def claims(self) -> Iterator[tuple[str, list[RolloutName]]]:
        """Each transaction that has a claim folder, with the records that lie in it.

        Raises:
            OSError: A folder cannot be listed.
        """
        for transaction in sorted(self.listing(self.paths.claimed)):
            yield transaction, self.names(self.paths.claim_folder(transaction))

    def version(self) -> int:
        """The newest version that was committed, by the names of the commits; 0 before the first.

        Raises:
            OSError: The commits cannot be listed.
        """
        return max(self._versions(), default=0)

    def counts(self) -> Counts:
        """How many records are where; folders are listed one after another, so this is no snapshot.

        Raises:
            OSError: A folder cannot be listed.
        """
        # What is only asked for is no room that anybody has.
        asked = map(parse_reservation, self.listing(self.paths.reserved))
        reserved = sum(name is not None and not name.asked for name in asked)
        pending = len(self.names(self.paths.pending))
        claimed = sum(len(names) for _, names in self.claims())
        versions = self._versions()
        return Counts(
            pending=pending,
            reserved=reserved,
            claimed=claimed,
            quarantined=len(self.quarantined()),
            consumed=len(versions) * self.settings.batch,
            version=max(versions, default=0),
        )

    def quarantined(self) -> list[str]:
        """File names of the refused records, without the reasons beside them.

        Raises:
            OSError: The folder cannot be listed.
        """
        return [name for name in self.listing(self.paths.quarantine) if parse_refused_name(name)]

    def _versions(self) -> list[int]:
        found = map(parse_commit, self.listing(self.paths.commits))
        return [version for version in found if version is not None]


def require_stream(stream: str) -> str:
    """The name of a stream, checked.

    Raises:
        UsageError: It cannot be part of a file name here.
    """
    if not _NAME.fullmatch(stream):
        raise UsageError(
            f"bad stream name {stream!r}",
            hint="1 to 64 letters, digits, '_' and '-', such as seed6",
            stream=stream,
        )
    return stream


def check_settings(settings: Settings) -> None:
    """Refuses settings under which a queue would stand still or hold nothing.

    Raises:
        ConfigError: Two of them contradict one another; the message names both.
    """
    said = faults_of(settings)
    if said:
        raise ConfigError(
            f"these settings make no trajectory queue: {'; '.join(said)}; nothing was made",
            hint="batch is a multiple of group, and batch <= low_water <= high_water",
            wrong=said,
        )


def faults_of(settings: Settings) -> list[str]:
    """What contradicts what in the settings of a queue, each as a few words."""
    low, high, batch = settings.low_water, settings.high_water, settings.batch
    wrong = (
        (not _NAME.fullmatch(settings.run), f"run {settings.run!r} is no name"),
        (batch < 1, f"batch is {batch}"),
        (settings.group < 1, f"group is {settings.group}"),
        (
            settings.group >= 1 and batch % settings.group != 0,
            f"batch {batch} is no multiple of group {settings.group}",
        ),
        # Else all could wait: producers for fewer records, the trainer for more.
        (low < batch, f"low_water {low} is below batch {batch}"),
        (high < low, f"high_water {high} is below low_water {low}"),
        (settings.max_lag < 0, f"max_lag is {settings.max_lag}"),
        (settings.beat_s <= 0, f"beat_s is {settings.beat_s}"),
        (
            settings.fresh_s <= settings.beat_s,
            f"fresh_s {settings.fresh_s} is not above beat_s {settings.beat_s}",
        ),
        (settings.lock_interval_s <= 0, f"lock_interval_s is {settings.lock_interval_s}"),
    )
    return [text for is_wrong, text in wrong if is_wrong]


def _read_settings(fs: FileSystem, paths: RolloutPaths) -> Settings:
    try:
        data = fs.read(paths.settings)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"no trajectory queue in {paths.folder}: it has no {paths.settings.rpartition('/')[2]}",
            hint="name the folder that RolloutQueue.create made",
            folder=paths.folder,
        ) from error
    except OSError as error:
        raise _unreadable(paths, error.strerror or str(error)) from error
    try:
        settings = msgspec.json.decode(data, type=Settings)
    except NO_RECORD as error:
        raise _unreadable(paths, str(error)) from error
    if settings.schema != SETTINGS_SCHEMA:
        raise _unreadable(paths, f"found schema {settings.schema!r}, expected {SETTINGS_SCHEMA!r}")
    if wrong := faults_of(settings):
        raise _unreadable(paths, "; ".join(wrong))
    return settings


def strangers(facts: os.stat_result) -> str:
    """Who else could have written a file; empty when nobody could."""
    if facts.st_uid != os.geteuid():
        return f"it belongs to user {facts.st_uid}, and this is user {os.geteuid()}"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write it (mode {stat.filemode(facts.st_mode)})"
    return ""


def _refuse_strangers(fs: FileSystem, paths: RolloutPaths) -> None:
    for path in (*paths.folders(), paths.settings):
        try:
            facts = fs.lstat(path)
        except FileNotFoundError:
            continue  # nobody put anything there; who needs it says so
        except OSError as error:
            raise cannot(f"look at {path}", error) from error
        if path != paths.settings and not stat.S_ISDIR(facts.st_mode):
            raise UnsafeQueueError(path, "it is no folder")
        if why := strangers(facts):
            raise UnsafeQueueError(path, why)
    parent = os.path.dirname(paths.folder)
    try:
        mode = fs.lstat(parent).st_mode
    except OSError as error:
        raise cannot(f"look at {parent}", error) from error
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise UnsafeQueueError(parent, "everybody can put another queue in its place")


def _unreadable(paths: RolloutPaths, why: str) -> DataError:
    return DataError(
        f"cannot read what the trajectory queue {paths.folder} was made with: {why}; "
        "nothing was done",
        hint=f"look at {paths.settings}",
        folder=paths.folder,
    )


def _other_settings(queue: RolloutQueue, asked: Settings) -> ConfigError:
    found = msgspec.structs.asdict(queue.settings)
    wanted = msgspec.structs.asdict(asked)
    said = ", ".join(
        f"{key} {found[key]!r} against {wanted[key]!r}"
        for key in found
        if found[key] != wanted[key]
    )
    return ConfigError(
        f"the trajectory queue {queue.paths.folder} was made with other settings "
        f"(there against asked): {said}; it was left as it is",
        hint="ask for the same settings, or make a queue in another folder",
        folder=queue.paths.folder,
    )


def cannot(what: str, error: OSError) -> SpoolError:
    """The error for a queue that the file system does not let be read or written."""
    return SpoolError(
        f"cannot {what}: {error.strerror or error}",
        hint="check the mount, its quota and the folder's permissions, then call again",
        errno=error.errno,
    )
