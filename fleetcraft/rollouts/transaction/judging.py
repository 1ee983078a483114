"""Whether a record is training data: schema, run, digest, numbers, lag, and that it is the first.

Reads and judges; nothing is moved here. Invariant: a file system that does not answer judges
nobody: that is an OSError, never a refusal.
"""

from __future__ import annotations

import math
import os
import stat
from typing import NamedTuple

import msgspec

from fleetcraft.rollouts.attachments import check_file
from fleetcraft.rollouts.lag import lag_of
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.queue import RolloutQueue, strangers
from fleetcraft.rollouts.records import (
    MOST_BYTES,
    NO_RECORD,
    RECORD_SCHEMA,
    Identity,
    Record,
    Refusal,
    digest_of,
)

_decode = msgspec.json.Decoder(Record).decode


class _Head(msgspec.Struct):
    schema: str = ""


_decode_head = msgspec.json.Decoder(_Head).decode


class Verdict(NamedTuple):
    """What was found of one record; ``refusal`` is None where it is training data."""

    file: str
    record: Record | None
    refusal: Refusal | None = None
    why: str = ""


def read_record(file: str, data: bytes) -> Verdict:
    """Reads one record's bytes; says why where they are none.

    Args:
        file: What it is called.
        data: Its bytes.
    """
    try:
        head = _decode_head(data)
    except NO_RECORD as error:
        return Verdict(file, None, Refusal.UNREADABLE, f"it is no record: {error}")
    if head.schema != RECORD_SCHEMA:
        why = f"schema {head.schema!r}, expected {RECORD_SCHEMA!r}"
        same_kind = head.schema.rpartition("/")[0] == RECORD_SCHEMA.rpartition("/")[0]
        return Verdict(file, None, Refusal.FUTURE_SCHEMA if same_kind else Refusal.UNREADABLE, why)
    try:
        return Verdict(file, _decode(data))
    except NO_RECORD as error:
        # JSON has no word for a number that is not finite; writers put null, which is no number.
        refusal = Refusal.NOT_FINITE if _has_null(data) else Refusal.UNREADABLE
        return Verdict(file, None, refusal, f"it is no whole record: {error}")


def load_record(queue: RolloutQueue, path: str, *, file: str = "") -> Verdict:
    """Reads the record at a path.

    What is no file of this user alone is no record, whatever is in it: a link, a folder, a pipe,
    one that another user owns or can write, one that is too long.

    Args:
        queue: The queue.
        path: Where it lies.
        file: What it is called, where that is not the path's last part.

    Raises:
        FileNotFoundError: It is not there (any more).
        OSError: It cannot be read, which says nothing about it.
    """
    file = file or os.path.basename(path)
    try:
        data, facts = queue.fs.read_with_facts(path)
        why = strangers(facts) or _too_long(facts)
    except FileNotFoundError:
        raise
    except OSError:
        # Only what is seen to be no file is judged; whatever else failed is a fault of the mount.
        why = _what_instead(queue.fs.lstat(path))
        if not why:
            raise
    return Verdict(file, None, Refusal.UNREADABLE, why) if why else read_record(file, data)


def _what_instead(facts: os.stat_result) -> str:
    if not stat.S_ISREG(facts.st_mode):
        return f"it is no file (mode {stat.filemode(facts.st_mode)})"
    return _too_long(facts)


def _too_long(facts: os.stat_result) -> str:
    found = f"it has {facts.st_size} bytes, at most {MOST_BYTES} are allowed"
    return found if facts.st_size > MOST_BYTES else ""


def _has_null(data: bytes) -> bool:
    try:
        whole = msgspec.json.decode(data)
    except NO_RECORD:
        return False
    if not isinstance(whole, dict):
        return False
    numbers = [*_items(whole.get("scalars")), whole.get("gpu_s", 0.0)]
    for series in _items(whole.get("values")):
        numbers += series if isinstance(series, list) else []
    return any(number is None for number in numbers)


def _items(mapping: object) -> list[object]:
    return list(mapping.values()) if isinstance(mapping, dict) else []


class Judge:
    """Judges the records of one batch, one after another.

    Of two records with one identity the first to be judged good stays; the other is a duplicate.

    Args:
        queue: The queue.
        ledger: What was trained on, up to the policy that is to be moved.
    """

    def __init__(self, queue: RolloutQueue, ledger: Ledger) -> None:
        self._queue = queue
        self._ledger = ledger
        self._seen: dict[Identity, str] = {}

    def judge(self, file: str, data: bytes, *, expected_digest: str = "") -> Verdict:
        """Judges one record.

        Args:
            file: What it is called.
            data: Its bytes.
            expected_digest: What an intent says of it; empty where nothing does.

        Raises:
            OSError: A file of it cannot be looked at, which says nothing about the record.
        """
        return self.judge_read(read_record(file, data), expected_digest=expected_digest)

    def judge_at(self, path: str, *, file: str = "", expected_digest: str = "") -> Verdict:
        """Judges the record at a path; see `load_record` and `judge`.

        Raises:
            FileNotFoundError: It is not there (any more).
            OSError: It, or a file of it, cannot be looked at.
        """
        verdict = load_record(self._queue, path, file=file)
        return self.judge_read(verdict, expected_digest=expected_digest)

    def judge_read(self, verdict: Verdict, *, expected_digest: str = "") -> Verdict:
        """Judges a record that was read; see `judge`."""
        record, file = verdict.record, verdict.file
        if record is None:
            return verdict
        found = self._broken(record, expected_digest)
        found = found or self._duplicate(file, record)
        found = found or self._unfit(file, record)
        found = found or self._files(record)
        if found is not None:
            return Verdict(file, record, *found)
        self._seen[record.identity] = file
        return verdict

    def _broken(self, record: Record, expected_digest: str) -> tuple[Refusal, str] | None:
        run = self._queue.settings.run
        if record.run != run:
            return Refusal.WRONG_RUN, f"it was sampled for run {record.run!r}, this is {run!r}"
        actual = digest_of(record)
        if record.digest != actual:
            return Refusal.WRONG_DIGEST, f"it says {record.digest[:12]!r}, it has {actual[:12]!r}"
        if expected_digest and expected_digest != actual:
            told = expected_digest[:12]
            return Refusal.WRONG_DIGEST, f"it was {told!r} when it was chosen, now {actual[:12]!r}"
        return None

    def _duplicate(self, file: str, record: Record) -> tuple[Refusal, str] | None:
        identity = record.identity
        if self._ledger.contains(identity):
            why = f"{identity} was trained on already, by version {self._ledger.version} or before"
            return Refusal.DUPLICATE_OF_CONSUMED, why
        first = self._seen.get(identity)
        if first is not None and first != file:
            return Refusal.DUPLICATE_IN_BATCH, f"{identity} is in the batch already, as {first}"
        return None

    def _unfit(self, file: str, record: Record) -> tuple[Refusal, str] | None:
        if str(record.name) != file:
            return Refusal.WRONG_NAME, f"it is called {file}, its identity says {record.name}"
        lag, allowed = lag_of(record.version, self._ledger.version), self._queue.settings.max_lag
        if lag < 0:
            why = f"begun under version {record.version}; the newest is {self._ledger.version}"
            return Refusal.FUTURE_VERSION, why
        if lag > allowed:
            return Refusal.LAG, f"{lag} versions behind, at most {allowed} are allowed"
        required = self._queue.settings.required_values
        missing = [name for name in required if not record.values.get(name)]
        if missing:
            return Refusal.MISSING_VALUES, f"without {', '.join(missing)}"
        return _not_finite(record)

    def _files(self, record: Record) -> tuple[Refusal, str] | None:
        for file in record.files:
            found = check_file(self._queue.fs, self._queue.paths.folder, file)
            if found is not None:
                return found
        return None


def _not_finite(record: Record) -> tuple[Refusal, str] | None:
    for name, series in record.values.items():
        if not all(map(math.isfinite, series)):
            return Refusal.NOT_FINITE, f"values {name!r} has a number that is not finite"
    for name, number in (*record.scalars.items(), ("gpu_s", record.gpu_s)):
        if not math.isfinite(number):
            return Refusal.NOT_FINITE, f"{name!r} is not finite"
    return None


def judge_shapes(verdicts: list[Verdict]) -> list[Verdict]:
    """Refuses whoever differs in shape from the first of its group; the others stand as they are.

    Args:
        verdicts: Of one batch, in the order of the batch.
    """
    shapes: dict[str, str] = {}
    return [_same_shape(verdict, shapes) for verdict in verdicts]


def _same_shape(verdict: Verdict, shapes: dict[str, str]) -> Verdict:
    record = verdict.record
    if record is None or verdict.refusal is not None:
        return verdict
    first = shapes.setdefault(record.group, record.shape)
    if record.shape == first:
        return verdict
    why = f"shape {record.shape!r}, its group {record.group!r} began with {first!r}"
    return verdict._replace(refusal=Refusal.SHAPE, why=why)
