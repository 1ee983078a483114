"""What ranks leave where ``TORCHELASTIC_ERROR_FILE`` points: the exception of each, with its time.

Reads a few small files; the earliest time is the root. Invariant: a file that cannot be read or is
no such record is evidence of nothing, and is named.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fleetcraft.diagnosis.device_oom import DeviceOom, parse_device_oom
from fleetcraft.files import FileSystem
from fleetcraft.training.diagnosing.hits import EVIDENCE_CHARACTERS
from fleetcraft.training.diagnosing.signatures import meaning_of_exception
from fleetcraft.training.records import Crash, Evidence, Role, Source

_MOST_BYTES = 1 << 22


class ErrorFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What some error files say.

    Attributes:
        evidence: One for each, the earliest first; those that say nothing are last.
        oom: The numbers of the first device out-of-memory error among them.
    """

    evidence: tuple[Evidence, ...] = ()
    oom: DeviceOom | None = None

    def first(self, role: Role) -> Evidence | None:
        """The earliest one with a role."""
        told = (one for one in self.evidence if one.crash is not Crash.NONE)
        return next((one for one in told if one.role is role), None)


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float | None
    evidence: Evidence
    oom: DeviceOom | None = None


def read_error_files(
    paths: Sequence[str | os.PathLike[str]], *, fs: FileSystem | None = None
) -> ErrorFiles:
    """Reads them all.

    A rank's own file lies in a folder of its number, as torchrun makes it
    (``attempt_0/3/error.json``); otherwise its rank is not known. A file that is not there says
    nothing: ranks that are killed leave none.

    Source: torch/distributed/elastic/multiprocessing/errors/error_handler.py.
    """
    seam = fs or FileSystem()
    reads = [one for path in paths if (one := _read(os.fspath(path), seam)) is not None]
    reads.sort(key=lambda one: (one.at_s is None, one.at_s or 0.0))
    return ErrorFiles(
        evidence=tuple(one.evidence for one in reads),
        oom=next((one.oom for one in reads if one.oom is not None), None),
    )


def _read(path: str, fs: FileSystem) -> _Read | None:
    try:
        data = _bytes(path, fs)
    except FileNotFoundError:
        return None
    except OSError as error:
        return _nothing(path, f"cannot be read: {error.strerror}")
    if not data.strip():
        return None  # torchrun makes it before the rank starts
    try:
        record = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _nothing(path, "is no JSON, or was cut off")
    if not isinstance(record, dict) or "message" not in record:
        return _nothing(path, "has no message")
    return _said(path, record)


def _bytes(path: str, fs: FileSystem) -> bytes:
    fd = fs.open_read(path)
    try:
        return fs.read_at(fd, _MOST_BYTES, 0)
    finally:
        fs.close(fd)


def _said(path: str, record: Mapping[str, Any]) -> _Read:
    message, at_s = _message(record["message"])
    meaning = meaning_of_exception(message)
    evidence = Evidence(
        source=Source.ERROR_FILE,
        crash=meaning.crash,
        role=meaning.role,
        text=message[:EVIDENCE_CHARACTERS],
        path=path,
        at="" if at_s is None else f"{at_s:g}" if at_s % 1 else str(int(at_s)),
        rank=_rank(path),
    )
    oom = parse_device_oom(message) if meaning.crash is Crash.CUDA_OOM else None
    return _Read(at_s=at_s, evidence=evidence, oom=oom)


def _message(value: Any) -> tuple[str, float | None]:
    """Text and time; torch nests them, other writers put a bare text."""
    if not isinstance(value, dict):
        return str(value), None
    extra = value.get("extraInfo")
    stamp = extra.get("timestamp") if isinstance(extra, dict) else None
    try:
        at_s = None if stamp is None else float(stamp)
    except (TypeError, ValueError, OverflowError):
        at_s = None
    return str(value.get("message", "")), at_s


def _rank(path: str) -> int | None:
    folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return int(folder) if folder.isascii() and folder.isdigit() and len(folder) <= 6 else None


def _nothing(path: str, why: str) -> _Read:
    evidence = Evidence(
        source=Source.ERROR_FILE, crash=Crash.NONE, role=Role.TEARDOWN, text=why, path=path
    )
    return _Read(at_s=None, evidence=evidence)
