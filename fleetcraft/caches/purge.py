"""Files near the age at which scratch removes them, and which records still refer to them.

Looks at times and sizes, changes none of them, and reads no content but records of evidence.
Invariant: a file whose age could not be found out is counted as that, and never as young.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from fleetcraft.clock import now_at
from fleetcraft.layout.evidence import EvidencePaths, is_origin_file

_DAY_S = 86400.0
_WARN_FRACTION = 0.7
_MOST_KEPT = 1000
_MOST_RECORD_BYTES = 256 << 20
_T = TypeVar("_T")


class IdleFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file that nobody has used for long.

    Attributes:
        path: The file.
        size_bytes: Its size.
        idle_days: Since its newest time.
        left_days: Until it is purged; negative where that is due.
        newest: Which of ``atime``, ``mtime``, ``ctime`` that was.
        referred_by: Records that name it.
    """

    path: str
    size_bytes: int
    idle_days: float
    left_days: float
    newest: str
    referred_by: tuple[str, ...] = ()


class GoneFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file that is not there any more, and the records that name it."""

    path: str
    referred_by: tuple[str, ...]


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is near its purge.

    Attributes:
        purge_days: Idle days after which a file is removed.
        warn_days: Idle days from which on it is listed.
        looked_at: Files whose times were read.
        near: Those that are listed, longest idle first; a bounded list.
        near_files: How many there are.
        near_bytes: Of these.
        gone: Files that a record refers to and that are not there any more.
        unknown: What could not be looked at, one sentence each.
        atime_kept: Whether the mounts note when a file was read; None where nothing was found.
    """

    purge_days: float
    warn_days: float
    looked_at: int = 0
    near: tuple[IdleFile, ...] = ()
    near_files: int = 0
    near_bytes: int = 0
    gone: tuple[GoneFile, ...] = ()
    unknown: tuple[str, ...] = ()
    atime_kept: bool | None = None


def near_purge(
    paths: Iterable[str],
    purge_days: float,
    now_s: float | None = None,
    *,
    warn_days: float | None = None,
    referred: Mapping[str, tuple[str, ...]] | None = None,
    most: int = _MOST_KEPT,
) -> PurgeReport:
    """Finds files that scratch will soon remove.

    The age counts from the newest of a file's times. The time of the last reading is one of them
    only where the mount keeps it.

    Args:
        paths: Files, and folders with all that is in them; links are not followed.
        purge_days: After so many idle days a file is removed.
        now_s: The time, in seconds since 1970; this machine's clock if None.
        warn_days: Idle days from which on a file is listed; seven tenths of that age if None.
        referred: Records that name a file, by its absolute path; see `referred_files`.
        most: How many files the list may have.
    """
    look = _Look(
        purge_days=purge_days,
        warn_days=purge_days * _WARN_FRACTION if warn_days is None else warn_days,
        now_s=now_at().timestamp() if now_s is None else now_s,
        referred=referred or {},
        most=most,
    )
    for path in paths:
        look.at(os.path.abspath(path))
    return look.report()


def referred_files(
    evidence: EvidencePaths, *, beside: Iterable[str] = (), unread: list[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Files that records of evidence still refer to, by absolute path, with the records' own paths.

    Manifests name the files of their folder, result records the outputs of a set, and origin files
    what a figure or summary was made from. Content of which an archive was proved is left out: a
    receipt with the root digest of a manifest that names it stands in the evidence room. A record
    that is damaged refers to nothing here; ``fleetcraft evidence verify`` and ``results`` say
    what is wrong with it.

    Args:
        evidence: The evidence room.
        beside: Further folders in which figures lie, with their origin files.
        unread: Gets a sentence for each folder or record that is there and could not be read, so
            that what it refers to is not known.
    """
    unread = [] if unread is None else unread
    found: dict[str, list[str]] = {}
    archived = _archived(evidence, unread)
    for record, folder, files in _records(evidence, tuple(beside), unread):
        for file in files:
            path = os.path.normpath(os.path.join(folder, file.path))
            if not file.sha256 or (path, file.sha256) not in archived:
                found.setdefault(path, []).append(record)
    return {path: tuple(dict.fromkeys(records)) for path, records in found.items()}


# -- ages


class _Look:
    """One look at some folders."""

    def __init__(
        self,
        *,
        purge_days: float,
        warn_days: float,
        now_s: float,
        referred: Mapping[str, tuple[str, ...]],
        most: int,
    ) -> None:
        self._purge_days = purge_days
        self._warn_days = warn_days
        self._now_s = now_s
        self._referred = referred
        self._most = most
        self._near: list[tuple[float, str, IdleFile]] = []
        self._files = self._near_files = self._near_bytes = 0
        self._gone: list[GoneFile] = []
        self._unknown: list[str] = []
        self._keeps: dict[int, bool] = {}

    def at(self, path: str) -> None:
        """Looks at a file, or at everything in a folder."""
        try:
            facts = os.lstat(path)
        except FileNotFoundError:
            if records := self._referred.get(path):
                self._gone.append(GoneFile(path=path, referred_by=records))
            return
        except OSError as error:
            self._unknown.append(f"{path}: {error.strerror}")
            return
        if stat.S_ISDIR(facts.st_mode):
            self._in_folder(path)
        elif stat.S_ISREG(facts.st_mode):
            self._file(path, facts)

    def _in_folder(self, folder: str) -> None:
        waiting = [folder]
        while waiting:
            here = waiting.pop()
            try:
                with os.scandir(here) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                        elif entry.is_file(follow_symlinks=False):
                            self._entry(entry)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._unknown.append(f"{here}: {error.strerror}")

    def _entry(self, entry: os.DirEntry[str]) -> None:
        """One file of a folder: that it vanishes meanwhile says nothing about the others."""
        try:
            facts = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError as error:
            self._unknown.append(f"{entry.path}: {error.strerror}")
            return
        self._file(entry.path, facts)

    def _file(self, path: str, facts: os.stat_result) -> None:
        self._files += 1
        times = {"mtime": facts.st_mtime, "ctime": facts.st_ctime}
        if self._keeps_atime(path, facts.st_dev):
            times["atime"] = facts.st_atime
        newest = max(times, key=lambda name: times[name])
        idle = max(0.0, (self._now_s - times[newest]) / _DAY_S)
        if idle < self._warn_days:
            return
        self._near_files += 1
        self._near_bytes += facts.st_size
        item = IdleFile(
            path=path,
            size_bytes=facts.st_size,
            idle_days=round(idle, 2),
            left_days=round(self._purge_days - idle, 2),
            newest=newest,
            referred_by=self._referred.get(path, ()),
        )
        # What a record refers to is kept before anything else.
        rank = idle + (1e9 if item.referred_by else 0.0)
        heapq.heappush(self._near, (rank, path, item))
        if len(self._near) > self._most:
            heapq.heappop(self._near)

    def _keeps_atime(self, path: str, device: int) -> bool:
        if device not in self._keeps:
            try:
                self._keeps[device] = not os.statvfs(path).f_flag & os.ST_NOATIME
            except OSError:
                self._keeps[device] = False
        return self._keeps[device]

    def report(self) -> PurgeReport:
        """What was found."""
        near = sorted(self._near, reverse=True)
        return PurgeReport(
            purge_days=self._purge_days,
            warn_days=self._warn_days,
            looked_at=self._files,
            near=tuple(item for _, _, item in near),
            near_files=self._near_files,
            near_bytes=self._near_bytes,
            gone=tuple(self._gone),
            unknown=tuple(self._unknown),
            atime_kept=all(self._keeps.values()) if self._keeps else None,
        )


# -- records


class _Named(msgspec.Struct, frozen=True):
    path: str
    sha256: str = ""


class _Receipt(msgspec.Struct, frozen=True):
    root_sha256: str


class _Manifest(msgspec.Struct, frozen=True):
    folder: str = ""
    root_sha256: str = ""
    files: tuple[_Named, ...] = ()


class _Outputs(msgspec.Struct, frozen=True):
    outputs: tuple[_Named, ...] = ()


class _ResultLine(msgspec.Struct, frozen=True):
    record: _Outputs = _Outputs()


class _Sources(msgspec.Struct, frozen=True):
    sources: tuple[_Named, ...] = ()


_Record = tuple[str, str, Sequence[_Named]]


def _archived(evidence: EvidencePaths, unread: list[str]) -> set[tuple[str, str]]:
    """Path and digest of everything that a proved archive holds."""
    roots = {
        receipt.root_sha256
        for path in _files_below(evidence.receipts, unread)
        if (receipt := _decoded(path, _Receipt, unread)) is not None
    }
    return {
        (os.path.normpath(os.path.join(folder, file.path)), file.sha256)
        for _, folder, manifest in _manifests(evidence, [])  # told when they are gone through
        if manifest.root_sha256 in roots
        for file in manifest.files
    }


def _manifests(evidence: EvidencePaths, unread: list[str]) -> Iterator[tuple[str, str, _Manifest]]:
    """The manifests that say which folder they are of: their path, that folder, and they."""
    for path in _files_below(evidence.manifests, unread):
        manifest = _decoded(path, _Manifest, unread)
        if manifest is not None and manifest.folder:
            yield path, os.path.join(_folder_of(path), manifest.folder), manifest


def _records(
    evidence: EvidencePaths, beside: tuple[str, ...], unread: list[str]
) -> Iterator[_Record]:
    """The path of a record, the folder that its names start from, and what it names."""
    for path, folder, manifest in _manifests(evidence, unread):
        yield path, folder, manifest.files
    for path in _files_below(evidence.results, unread):
        if path.endswith(".jsonl"):
            yield path, _folder_of(path), _outputs(path, unread)
    for folder in (evidence.folder, *beside):
        for path in _files_below(folder, unread):
            if is_origin_file(path):
                origin = _decoded(path, _Sources, unread)
                if origin is not None:
                    yield path, _folder_of(path), origin.sources


def _folder_of(path: str) -> str:
    """The folder that a record's names start from.

    Without links on the way to it, as it was for whoever wrote them: ".." is taken off in words.
    """
    return os.path.realpath(os.path.dirname(path))


def _outputs(path: str, unread: list[str]) -> list[_Named]:
    found: list[_Named] = []
    try:
        with open(path, "rb") as file:
            for line in file:
                with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                    found += msgspec.json.decode(line, type=_ResultLine).record.outputs
    except OSError as error:
        _note_unread(error, path, unread)
    return found


def _files_below(folder: str, unread: list[str]) -> Iterator[str]:
    for here, _, names in os.walk(
        folder, onerror=lambda error: _note_unread(error, folder, unread)
    ):
        for name in sorted(names):
            yield f"{here}/{name}"


def _decoded(path: str, kind: type[_T], unread: list[str]) -> _T | None:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(_MOST_RECORD_BYTES), type=kind)
    except OSError as error:
        _note_unread(error, path, unread)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    return None


def _note_unread(error: OSError, path: str, unread: list[str]) -> None:
    said = f"{error.filename or path}: {error.strerror}; what it refers to is not known"
    if not isinstance(error, FileNotFoundError) and said not in unread:
        unread.append(said)
