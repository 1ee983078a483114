"""The step counter that a log shows by itself, for runs that report none.

``step 703``, ``Step: 690``, ``iter 5/100``, ``global_step=…``, ``"step": 703``, and tqdm's
``45/1000 [`` where no other counter was ever seen. Invariant: a line that tells of a failure, a
restart or a plan is no completed step.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_STEP = re.compile(
    rb"(?:(?<![\w-])|(?<=[\d\[]m))(?:(?:global|optimizer|optim|train|trainer|training)[_ .])?"
    rb"(?:[Ss]tep|STEP|[Ii]ter(?:ation)?|ITER)\b[\"']?\s*[:=#]?\s*[\[(]?\s*(\d{1,12})"
    rb"(?![\d]|\.\d|\s?(?:ms|s|sec|seconds)\b)"
)
_BAR = re.compile(rb"(?<![\d.])(\d{1,12})/(\d{1,12}) \[[^\]\r\n]{0,120}(?:it/s|s/it)")
# Counters of well-known loops that say no "step": of torchvision, timm and fairseq.
_OTHER = re.compile(
    rb"(?:Epoch|Train):? \[?\d+\]?\s*\[\s*(\d{1,12})/\d|\bnum_updates[=: ]+(\d{1,12})\b"
)
_NOT_COMPLETED = re.compile(
    rb"(?i)error|fail|abort|skipp|resum|restor|except|eval|valid|traceback"
    rb"|\b(?:(?:re)?load(?:ed|ing)?|(?:re)?start(?:s|ed|ing)?|begin\w*|from|until|next|every"
    rb"|at most|would|will)\b"
)
_FAILED_AFTER = re.compile(rb"(?i)\W{0,3}(?:failed|error|aborted|skipped|did not)")
# Bars of what is not training.
_OTHER_BAR = re.compile(
    rb"(?i)load|download|shard|map|token|filter|generat|eval|valid|sav|fetch|pack|group|sanity|test"
)
_NEEDLES = (b"tep", b"iter", b"Iter")
_UPPER = (b"STEP", b"ITER")
_OTHER_NEEDLES = (b"Epoch", b"Train", b"num_updates")
_BAR_NEEDLES = (b"it/s", b"s/it")
_MOST_TRIES = 512
_AROUND = 96
_Reader = Callable[[bytes, int, int, int], int | None]


class StepReader:
    """Finds the last and the first step in a piece of a log; remembers which kind it shows."""

    def __init__(self) -> None:
        self._named = False

    def last(self, data: bytes, begin: int, end: int) -> int | None:
        """The last completed step in ``data[begin:end]``, whole lines; None when it shows none."""
        for needles, reader in self._kinds():
            step = _search(data, begin, end, needles, reader, backward=True)
            if step is not None:
                self._named = self._named or reader is _named_step
                return step
        return None

    def first(self, data: bytes, begin: int, end: int) -> int | None:
        """The first completed step in ``data[begin:end]``."""
        for needles, reader in self._kinds():
            step = _search(data, begin, end, needles, reader, backward=False)
            if step is not None:
                return step
        return None

    def _kinds(self) -> tuple[tuple[tuple[bytes, ...], _Reader], ...]:
        if self._named:
            return ((_NEEDLES, _named_step),)
        return (
            ((*_NEEDLES, *_UPPER), _named_step),
            (_OTHER_NEEDLES, _other_step),
            (_BAR_NEEDLES, _bar_step),
        )


def _search(
    data: bytes,
    begin: int,
    end: int,
    needles: tuple[bytes, ...],
    reader: _Reader,
    *,
    backward: bool,
) -> int | None:
    """The step of the outermost needle that has one; each needle is passed over once in all."""
    find, choose = (data.rfind, max) if backward else (data.find, min)
    places = {one: at for one in needles if (at := find(one, begin, end)) >= 0}
    for _ in range(_MOST_TRIES):
        if not places:
            return None
        needle = choose(places, key=lambda one: places[one])
        at = places.pop(needle)
        step = reader(data, begin, end, at)
        if step is not None:
            return step
        after = find(needle, begin, at) if backward else find(needle, at + 1, end)
        if after >= 0:
            places[needle] = after
    return None


def _line_around(data: bytes, begin: int, end: int, at: int) -> tuple[int, int]:
    begin = max(begin, at - _AROUND)
    first = max(begin, data.rfind(b"\n", begin, at) + 1, data.rfind(b"\r", begin, at) + 1)
    ends = [one for sign in (b"\n", b"\r") if (one := data.find(sign, at, at + 256)) >= 0]
    return first, min((*ends, at + 256, end))


def _named_step(data: bytes, begin: int, end: int, at: int) -> int | None:
    first, last = _line_around(data, begin, end, at)
    for found in reversed(list(_STEP.finditer(data, first, last))):
        if _NOT_COMPLETED.search(data, first, found.start()) or _FAILED_AFTER.match(
            data, found.end(), last
        ):
            continue
        return int(found[1])
    return None


def _other_step(data: bytes, begin: int, end: int, at: int) -> int | None:
    first, last = _line_around(data, begin, end, at)
    found = _OTHER.search(data, at, last)
    if found is None or _NOT_COMPLETED.search(data, first, found.start()):
        return None
    return int(found[1] or found[2])


def _bar_step(data: bytes, begin: int, end: int, at: int) -> int | None:
    first, last = _line_around(data, begin, end, at)
    found = _BAR.search(data, first, last)
    if found is None or _OTHER_BAR.search(data, first, found.start()):
        return None
    return int(found[1])
