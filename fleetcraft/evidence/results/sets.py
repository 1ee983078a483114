"""Result records: what one candidate of one arm gave, and the sets that hold them.

A set is a folder with one file for each writer, one sealed line for each record. How a record is
filled in is in `appending`. Invariant: a file is only appended to, and a line that cannot be
trusted is counted by its reason and never used.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from fleetcraft.errors import DataError, UsageError
from fleetcraft.evidence.records import NAME, Kind, Producer, Source
from fleetcraft.evidence.sealed import digest_of, seal, unseal
from fleetcraft.files import FileSystem
from fleetcraft.identity import sha256_hex
from fleetcraft.layout.evidence import EvidencePaths
from fleetcraft.trust import require_private_folder

SCHEMA = "fleetcraft.result/1"
_SUFFIX = ".jsonl"
_SHOWN = 20


class OutputFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that came of it.

    Attributes:
        path: Relative to the folder of the set.
        size_bytes: When the record was appended.
        sha256: Then.
    """

    path: str
    size_bytes: int
    sha256: str


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one candidate of one arm gave for one seed; empty or None is what is not known.

    Attributes:
        schema: `SCHEMA`.
        arm: What is compared: a method, a policy, a setting.
        seed: Of the run.
        timed: Whether its timing may be reported: it ran alone on its node.
        metrics: What was measured. A metric that was not measured is not there.
        candidate: What it was made for: a prompt, a panel, a sample.
        batch: How many were computed together.
        batch_table_sha256: The frozen batch table that gave the batch.
        family: The workload's shape.
        stack: Versions by library.
        stack_sha256: Of the stack, see `stack_digest`.
        attention_backend: As torch calls it.
        device: The kind of device, as its driver calls it.
        encoder: Codec and settings in short.
        encoder_sha256: Of the encoder record.
        outputs: Files that came of it.
        grid: The grid that declares it.
        grid_sha256: The grid's digest when it was appended.
        producer: Who made it.
        command_identity: Identity hash of the task's record in the spool.
        at: Wall clock, for people.
        nonce: Tells it from every other record.
    """

    schema: str
    arm: str
    seed: int
    timed: bool
    metrics: dict[str, float]
    candidate: str = ""
    batch: int | None = None
    batch_table_sha256: str = ""
    family: str = ""
    stack: dict[str, str] = {}
    stack_sha256: str = ""
    attention_backend: str = ""
    device: str = ""
    encoder: str = ""
    encoder_sha256: str = ""
    outputs: tuple[OutputFile, ...] = ()
    grid: str = ""
    grid_sha256: str = ""
    producer: Producer = Producer()
    command_identity: str = ""
    at: str = ""
    nonce: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Result).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One record as it was read.

    Attributes:
        result: The record.
        sha256: Of its bytes.
        file: The name of its file in the set's folder.
        line: Its line, from 1.
    """

    result: Result
    sha256: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A line or file that was not used.

    Attributes:
        file: Its name in the set's folder.
        line: From 1; 0 for the whole file.
        reason: ``torn`` (a write that was cut short), ``digest`` (changed since), ``schema`` (of
            another version), ``fields`` (no result), ``unreadable`` (the file), ``foreign`` (a file
            that is no writer's).
    """

    file: str
    line: int
    reason: str


@dataclass(kw_only=True)
class ResultSet:
    """Everything in one set.

    Attributes:
        name: The set's.
        folder: Where it lies, absolute.
        rows: Records in the order of files and lines; what says the same counts once.
        rejects: What was not used.
        repeated: Lines that say what one before them says: all but nonce and time are equal.
        files: The writers' files, with the bytes that were read.
    """

    name: str
    folder: str
    rows: list[Row] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    repeated: int = 0
    files: list[Source] = field(default_factory=list)

    @property
    def results(self) -> list[Result]:
        """The records alone."""
        return [row.result for row in self.rows]

    @property
    def current(self) -> list[Row]:
        """Records that count: of the last attempt of a task, where several have appended.

        A task that was killed after it had appended runs again, and the attempt that went on is
        the one whose outputs are there.
        """
        last: dict[tuple[object, ...], int] = {}
        for row in self.rows:
            made = _made(row.result)
            last[made] = max(last.get(made, 0), row.result.producer.attempt)
        return [r for r in self.rows if r.result.producer.attempt == last[_made(r.result)]]

    @property
    def counts(self) -> dict[str, int]:
        """Rejects by reason."""
        return dict(sorted(Counter(reject.reason for reject in self.rejects).items()))

    @property
    def damaged(self) -> bool:
        """Whether something was changed or could not be read; a torn write is no such thing."""
        return any(reject.reason != "torn" for reject in self.rejects)

    @property
    def sha256(self) -> str:
        """Digest over the digests of all records, whatever their order."""
        return digest_over(row.sha256 for row in self.rows)

    def arms(self) -> dict[str, list[Result]]:
        """Records that count, by arm, sorted by name."""
        found: dict[str, list[Result]] = {}
        for row in self.current:
            found.setdefault(row.result.arm, []).append(row.result)
        return dict(sorted(found.items()))


def _made(result: Result) -> tuple[object, ...]:
    """The cell that a record fills, and the task that made it."""
    who = result.producer
    return result.arm, result.candidate, result.seed, who.spool, who.task


def digest_over(digests: Iterable[str]) -> str:
    """One digest for a set of digests."""
    return sha256_hex("\n".join(sorted(digests)).encode())


def stack_digest(stack: Mapping[str, str]) -> str:
    """The sha256 of a stack's canonical JSON; empty for an empty stack."""
    if not stack:
        return ""
    return sha256_hex(json.dumps(dict(stack), sort_keys=True, separators=(",", ":")).encode())


def check_name(text: str, what: str) -> str:
    """A name as it was given.

    Raises:
        UsageError: It is none.
    """
    if not NAME.fullmatch(text):
        raise UsageError(
            f"the {what} is {text!r}, which is no name",
            hint="letters, digits, '.', '_' and '-', at most 64, and a letter or digit first",
            name=text,
        )
    return text


# -- writing


def put(
    folder: str, set_name: str, result: Result, *, writer: str, fs: FileSystem | None = None
) -> str:
    """Appends one record durably, in one write.

    Args:
        folder: The evidence room, see `EvidencePaths`; its parent must be there.
        set_name: The set.
        result: The record.
        writer: Names the file; nobody else may write to it at the same time.
        fs: The seam.

    Returns:
        The path of the file.

    Raises:
        UnsafeSpoolError: Somebody else could write the folder.
        OSError: It is not known to be appended. What a short write left is ignored by readers.
    """
    fs = fs or FileSystem()
    paths = EvidencePaths(folder)
    for place in (paths.folder, paths.results, paths.result_set(set_name)):
        require_private_folder(place)
    path = paths.result_file(set_name, writer)
    _append(fs, path, seal(_encode(result)))
    return path


def _append(fs: FileSystem, path: str, line: bytes) -> None:
    try:
        # Reading needs O_RDWR, which a descriptor of create_log has not.
        fs.close(fs.create_log(path))
        fs.sync_folder(os.path.dirname(path))
    except FileExistsError:
        pass
    fd = fs.open_append(path)
    try:
        start = fs.size(fd)
        begun = line if fs.ends_with_newline(fd) else b"\n" + line
        try:
            fs.append(fd, begun)
        except OSError:
            # The server may have done what it reported as failed.
            if line not in fs.read_from(fd, start):
                raise
        fs.datasync(fd)
    finally:
        fs.close(fd)


# -- reading


def set_names(folder: str, *, fs: FileSystem | None = None) -> list[str]:
    """The sets of an evidence room, sorted; none where there is no room."""
    try:
        names = (fs or FileSystem()).listdir(EvidencePaths(folder).results)
    except FileNotFoundError:
        return []
    return sorted(name for name in names if NAME.fullmatch(name))


def read_set(folder: str, set_name: str, *, fs: FileSystem | None = None) -> ResultSet:
    """Reads a set; what cannot be used is counted.

    Args:
        folder: The evidence room.
        set_name: The set.
        fs: The seam.

    Raises:
        UsageError: The set's name is none.
        DataError: There is no such set, or its folder cannot be read.
    """
    check_name(set_name, "set")
    place = EvidencePaths(folder).result_set(set_name)
    try:
        names = sorted((fs or FileSystem()).listdir(place))
    except OSError as error:
        raise _no_set(folder, set_name, error) from error
    found = ResultSet(name=set_name, folder=place)
    seen: set[str] = set()
    for name in names:
        _read_file(fs or FileSystem(), found, name, seen)
    return found


def read_file(path: str, *, fs: FileSystem | None = None) -> ResultSet:
    """Reads one writer's file, wherever it lies; the set is named after its folder."""
    folder, name = os.path.split(os.path.abspath(path))
    found = ResultSet(name=os.path.basename(folder), folder=folder)
    _read_file(fs or FileSystem(), found, name, set())
    return found


def _no_set(folder: str, name: str, error: OSError) -> DataError:
    known = set_names(folder)
    if isinstance(error, FileNotFoundError):
        said = f"there is no result set {name!r} in {folder}"
    else:
        said = f"cannot read the result set {name!r}: {error.strerror or error}"
    some = ", ".join(known[:_SHOWN])
    return DataError(
        said,
        hint=f"sets there: {some}" if some else "fleetcraft evidence append makes one",
        set=name,
    )


def _read_file(fs: FileSystem, found: ResultSet, name: str, seen: set[str]) -> None:
    if not name.endswith(_SUFFIX):
        found.rejects.append(Reject(file=name, line=0, reason="foreign"))
        return
    try:
        data = fs.read(f"{found.folder}/{name}")
    except OSError:
        found.rejects.append(Reject(file=name, line=0, reason="unreadable"))
        return
    found.files.append(
        Source(path=name, kind=Kind.RESULTS, size_bytes=len(data), sha256=sha256_hex(data))
    )
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line:
            _take(found, name, number, line, seen)


def _take(found: ResultSet, name: str, number: int, line: bytes, seen: set[str]) -> None:
    body, reason = unseal(line)
    result = None if reason else _parse(body)
    if not isinstance(result, Result):
        found.rejects.append(Reject(file=name, line=number, reason=reason or result or "fields"))
    elif (said := _said(result)) in seen:
        found.repeated += 1
    else:
        seen.add(said)
        found.rows.append(Row(result=result, sha256=digest_of(line), file=name, line=number))


def _said(result: Result) -> str:
    """Digest over what a record says, beside when and under which nonce."""
    return sha256_hex(_encode(msgspec.structs.replace(result, nonce="", at="")))


def _parse(body: bytes) -> Result | str:
    try:
        result = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "schema" if _schema(body) not in (SCHEMA, "") else "fields"
    return result if result.schema == SCHEMA else "schema"


def _schema(body: bytes) -> str:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return str(value.get("schema", "")) if isinstance(value, dict) else ""
