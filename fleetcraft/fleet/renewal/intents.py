"""Intents: what a controller is about to submit, on disk before it does, and how that ended.

``<lane>.<window>.json`` is published before sbatch is called, ``<lane>.<window>.end.json`` when it
is known what came of it; both once and for ever. A lane's next window can be recorded only when
the last one has ended, so two controllers that saw the same state want the same name and one gets
it. Invariant: at most one submission per lane and window is ever meant, whoever decides, and
however long it was paused in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from fleetcraft.errors import DataError
from fleetcraft.files import FileSystem
from fleetcraft.fleet.shapes import Shape, parse_shape
from fleetcraft.locks import put_if_absent

T = TypeVar("T")
_FILE = re.compile(r"(?P<lane>.+)\.(?P<window>[1-9]\d*)(?P<end>\.end)?\.json")


class How(StrEnum):
    """How an intent ended.

    ``submitted``: there is a job. ``refused``: Slurm said no. ``abandoned``: no job with its nonce
    exists, and sbatch can no longer be at work.
    """

    SUBMITTED = "submitted"
    REFUSED = "refused"
    ABANDONED = "abandoned"


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """One submission that is meant.

    Attributes:
        schema: ``fleetcraft.intent/1``.
        lane: The shape as text.
        window: Counts the lane's submissions from 1; with the lane it names what may happen once.
        nonce: In the job's comment and at the end of its name.
        job_name: What the job is called.
        generation: Of the lock under which this was decided.
        by: Who decided, for people.
        cluster: Slurm's name of the cluster; empty if it did not say.
        cost_h: What the job may cost at most, in hours of ``tres``; None when that is not known.
        tres: What the cost counts.
        recorded_at: Wall clock, for people; never compared.
        observed: What the decision rests on, with ages in seconds.
        sbatch: The command line.
    """

    schema: str
    lane: str
    window: int
    nonce: str
    job_name: str
    generation: int
    by: str
    cluster: str
    cost_h: float | None
    tres: str
    recorded_at: str
    observed: dict[str, Any]
    sbatch: tuple[str, ...]

    @property
    def shape(self) -> Shape:
        """The lane."""
        return parse_shape(self.lane)


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one intent ended, as whoever found out first has written it.

    Attributes:
        schema: ``fleetcraft.intent_end/1``.
        nonce: Of the intent.
        how: What came of it.
        generation: Of the lock under which this was found out.
        writer: Tells this ending from one that another controller wrote.
        at: Wall clock, for people.
        job: Slurm's job id, if there is one.
        found_by: ``sbatch``, ``squeue`` or ``sacct``.
        reason: In words.
    """

    schema: str
    nonce: str
    how: How
    generation: int
    writer: str
    at: str
    job: str = ""
    found_by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """An intent with its ending; without one it is open."""

    intent: Intent
    ending: Ending | None

    @property
    def is_open(self) -> bool:
        """Whether nobody has found out yet what came of it."""
        return self.ending is None


_encode = msgspec.json.Encoder().encode
_read_intent = msgspec.json.Decoder(Intent).decode
_read_ending = msgspec.json.Decoder(Ending).decode


class Intents:
    """The intents of one scratch tree.

    Args:
        folder: Where they lie; private to this user.
        fs: The seam.
    """

    def __init__(self, folder: str, fs: FileSystem | None = None) -> None:
        self.folder = folder
        self._fs = fs or FileSystem()

    def latest(self) -> dict[str, Entry | DataError]:
        """The newest intent of every lane, by the lane's key.

        A lane whose newest file cannot be understood has the error instead: it can decide nothing.
        Without the folder there are none: it is made before the first is recorded.

        Raises:
            OSError: The folder or a file cannot be read.
        """
        newest: dict[str, int] = {}
        ended: set[tuple[str, int]] = set()
        try:
            names = self._fs.listdir(self.folder)
        except FileNotFoundError:
            return {}
        for name in names:
            match = _FILE.fullmatch(name)
            if match is None:
                continue
            lane, window = match["lane"], int(match["window"])
            newest[lane] = max(newest.get(lane, 0), window)
            if match["end"]:
                ended.add((lane, window))
        return {
            lane: self._entry(lane, window, ended=(lane, window) in ended)
            for lane, window in sorted(newest.items())
        }

    def record(self, intent: Intent) -> bool:
        """Records an intent durably; False when another controller has this window.

        Raises:
            OSError: Whether it is recorded is not known; it must not be acted on.
        """
        path = self._path(intent.shape.key, intent.window)
        return put_if_absent(self._fs, path, _encode(intent) + b"\n")

    def end(self, intent: Intent, ending: Ending) -> Ending:
        """Says how an intent ended; returns the ending that stands, which may be another's.

        Raises:
            OSError: Neither is known.
        """
        path = self._path(intent.shape.key, intent.window, end=True)
        if put_if_absent(self._fs, path, _encode(ending) + b"\n"):
            return ending
        return self._decode(path, _read_ending)

    def ending_of(self, intent: Intent) -> Ending | None:
        """How it ended, as far as anybody has written.

        Raises:
            OSError: That cannot be read.
        """
        try:
            path = self._path(intent.shape.key, intent.window, end=True)
            return self._decode(path, _read_ending)
        except FileNotFoundError:
            return None

    def _entry(self, lane: str, window: int, *, ended: bool) -> Entry | DataError:
        try:
            intent = self._decode(self._path(lane, window), _read_intent)
            end = self._path(lane, window, end=True)
            return Entry(intent, self._decode(end, _read_ending) if ended else None)
        except DataError as error:
            return error
        except FileNotFoundError as error:
            return DataError(
                f"cannot find {error.filename or self._path(lane, window)}, of which there was a "
                "name a moment ago or is an ending; nothing was submitted",
                hint=f"if it stays so and no renew is at work, remove "
                f"{self._path(lane, window, end=True)} too",
                path=self._path(lane, window),
            )

    def _path(self, lane: str, window: int, *, end: bool = False) -> str:
        return f"{self.folder}/{lane}.{window}{'.end' if end else ''}.json"

    def _decode(self, path: str, decode: Callable[[bytes], T]) -> T:
        try:
            return decode(self._fs.read(path))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(
                f"cannot read the intent {path}: {error}; nothing was submitted",
                hint="look whether its job exists (squeue --me, sacct); if it does not, and no "
                "renew is at work, remove the file",
                path=path,
            ) from error
