"""The epochs of a run: what was launched or adopted, each published once under its number.

Not here: what an epoch should try. Invariant: a number names one epoch for ever, and a record that
cannot be read is an error, never an epoch that is not there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import DataError
from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import RunPaths
from fleetcraft.locks import put_if_absent
from fleetcraft.training.records import Epoch

_LEADING_NUMBER = re.compile(r"\d+")
_T = TypeVar("_T")


class Healthy(msgspec.Struct, frozen=True, kw_only=True):
    """What stands beside an epoch that was verified.

    Attributes:
        number: The epoch.
        generation: Of the lock under which it was verified.
        at: Wall clock, for people.
        facts: What was seen: throughput, memory, steps, by name.
    """

    number: int
    generation: int
    at: str
    facts: dict[str, str | int | float] = {}


class Epochs:
    """The epochs of one run.

    Args:
        paths: The run; its folder of epochs must be there.
        fs: The seam.
    """

    def __init__(self, paths: RunPaths, fs: FileSystem | None = None) -> None:
        self._paths = paths
        self._fs = fs or FileSystem()

    def publish(self, epoch: Epoch) -> bool:
        """Publishes an epoch under its number.

        Returns:
            True when the number now holds this very epoch; False when another has it.

        Raises:
            OSError: Which of the two is not known.
        """
        return put_if_absent(self._fs, self._paths.epoch(epoch.number), _encode(epoch))

    def numbers(self) -> tuple[int, ...]:
        """The numbers that are taken, in order.

        Raises:
            OSError: They cannot be listed.
        """
        return self._numbers(self._paths.epoch)

    def next_number(self) -> int:
        """The number after the highest that is taken, whatever its record holds."""
        return max(self.numbers(), default=0) + 1

    def get(self, number: int) -> Epoch | None:
        """One epoch; None when nobody has published that number.

        Raises:
            DataError: Its record is torn or foreign.
            OSError: It cannot be read.
        """
        return self._read(self._paths.epoch(number), Epoch)

    def all(self) -> tuple[Epoch, ...]:
        """Every epoch, the first first; errors are those of `get`."""
        found = (self.get(number) for number in self.numbers())
        return tuple(epoch for epoch in found if epoch is not None)

    def latest(self) -> Epoch | None:
        """The epoch with the highest number; None before the first. Errors are those of `get`."""
        number = max(self.numbers(), default=0)
        return self.get(number) if number else None

    def mark_healthy(
        self, number: int, *, generation: int, facts: dict[str, str | int | float] | None = None
    ) -> bool:
        """Notes that an epoch was verified; the first note stays.

        Returns:
            True when this call made the note.

        Raises:
            OSError: Whether it was made is not known.
        """
        note = Healthy(number=number, generation=generation, at=timestamp(), facts=facts or {})
        return put_if_absent(self._fs, self._paths.healthy(number), _encode(note))

    def healthy(self, number: int) -> Healthy | None:
        """What was noted of a verified epoch; None for one that was not. Errors as of `get`."""
        return self._read(self._paths.healthy(number), Healthy)

    def last_healthy(self) -> Epoch | None:
        """The verified epoch with the highest number; None when there is none."""
        number = max(self._numbers(self._paths.healthy), default=0)
        return self.get(number) if number else None

    def _numbers(self, path_of: Callable[[int], str]) -> tuple[int, ...]:
        found = set()
        for name in self._fs.listdir(self._paths.epochs):
            digits = _LEADING_NUMBER.match(name)
            # A name counts when the layout would write that very name for its number.
            if digits and os.path.basename(path_of(int(digits[0]))) == name:
                found.add(int(digits[0]))
        return tuple(sorted(found))

    def _read(self, path: str, kind: type[_T]) -> _T | None:
        try:
            data = self._fs.read(path)
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(
                f"cannot read {path}: {error}; nothing was launched or adopted",
                hint="look at that file; an epoch is never written a second time",
                path=path,
            ) from error


def _encode(record: object) -> bytes:
    return msgspec.json.encode(record) + b"\n"
