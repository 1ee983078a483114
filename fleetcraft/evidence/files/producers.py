"""Who made the files of a folder, by the records that name them: origins and results.

Invariant: a record speaks only for content with the digest that it names, and what cannot be read
says nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from fleetcraft.evidence.files.policy import Listed
from fleetcraft.evidence.records import ORIGIN_SCHEMA, Kind, Origin, Producer
from fleetcraft.evidence.sealed import unseal
from fleetcraft.files import FileSystem
from fleetcraft.layout.evidence import EvidencePaths, is_origin_file, origin_file

_RESULT_SCHEMA = "fleetcraft.result/1"
_RESULTS_SUFFIX = ".jsonl"
_MOST_RESULT_BYTES = 256 << 20

Made = Mapping[tuple[str, str], tuple[Kind | None, Producer]]
"""By path and digest: what a record says that the file is, and who made it."""


class _Output(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    sha256: str = ""


class _Result(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = ""
    outputs: tuple[_Output, ...] = ()
    producer: Producer = Producer()


def find_producers(
    fs: FileSystem, folder: str, files: Sequence[Listed], *, records: Sequence[str] = ()
) -> Made:
    """What is known of who made a folder's files.

    Args:
        fs: The seam.
        folder: The folder, without links on the way to it.
        files: What is in it. Origins among them speak of the file beside them, and result records
            of their outputs.
        records: Files of result records elsewhere, see `files_of_results`.
    """
    made: dict[tuple[str, str], tuple[Kind | None, Producer]] = {}
    inside = [
        f"{folder}/{each.path}"
        for each in files
        if each.path.endswith(_RESULTS_SUFFIX) and each.size_bytes <= _MOST_RESULT_BYTES
    ]
    for path in (*records, *inside):
        made.update(_by_results(fs, folder, path))
    for each in files:
        if is_origin_file(each.path):
            made.update(_by_origin(fs, folder, each.path))
    return made


def files_of_results(paths: EvidencePaths) -> list[str]:
    """Every file of result records in an evidence room; none where there are none."""
    found = []
    for name in _names(paths.results):
        folder = paths.result_set(name)
        found += [f"{folder}/{file}" for file in _names(folder) if file.endswith(_RESULTS_SUFFIX)]
    return found


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _by_origin(fs: FileSystem, folder: str, path: str) -> Made:
    try:
        origin = msgspec.json.decode(fs.read(f"{folder}/{path}"), type=Origin)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if origin.schema != ORIGIN_SCHEMA:
        return {}
    of = path.removesuffix(origin_file(""))
    return {(of, origin.sha256): (origin.kind, origin.producer)}


def _by_results(fs: FileSystem, folder: str, path: str) -> Made:
    try:
        lines = fs.read(path).splitlines()
    except OSError:
        return {}
    start = os.path.realpath(os.path.dirname(path))
    made: dict[tuple[str, str], tuple[Kind | None, Producer]] = {}
    for record in _results(lines):
        for output in record.outputs:
            of = os.path.relpath(os.path.join(start, output.path), folder)
            if not of.startswith("../"):
                made[of, output.sha256] = (None, record.producer)
    return made


def _results(lines: Sequence[bytes]) -> Iterator[_Result]:
    decode: Callable[[bytes], _Result] = msgspec.json.Decoder(_Result).decode
    for line in lines:
        body, _ = unseal(line)
        if _RESULT_SCHEMA.encode() not in body:
            continue
        try:
            record = decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if record.schema == _RESULT_SCHEMA:
            yield record
