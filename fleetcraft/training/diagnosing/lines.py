"""From a piece of a log to the lines in it that bear a signature.

Candidates come from one pass over bytes; tracebacks are walked to the exception at their end.
Invariant: every find lies inside the piece, once, in its order.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from fleetcraft.diagnosis.device_oom import DeviceOom, parse_device_oom
from fleetcraft.training.diagnosing.hits import EVIDENCE_CHARACTERS
from fleetcraft.training.diagnosing.prefixes import Head, plain, read_head
from fleetcraft.training.diagnosing.signatures import (
    CANDIDATE,
    CANDIDATE_WORDS,
    FOLD,
    LOSS_CANDIDATE,
    Meaning,
    is_exception,
    is_qualified,
    meaning_of_exception,
    meaning_of_line,
)
from fleetcraft.training.records import Crash, Role

_TRACEBACK = re.compile(
    r"^[^A-Za-z0-9]*Traceback \(most recent|Traceback \(most recent call last\):\s*$"
)
_CHAIN = (
    b"During handling of the above exception",
    b"The above exception was the direct cause",
)
# Two ranks that write at once may put a tag in the middle of a line.
_TAG_INSIDE = re.compile(rb"(?<!^)(?=\[(?:rank|default)\d{1,6}\]:)")
# An exception group's lines stand behind bars, those of its exceptions too.
_GROUPED = re.compile(r"^\s*\|[ |]*")
_SUMMARY_RANK = re.compile(r"\brank\s*: (\d{1,6}) \(local_rank")
_MOST_LINE = 4096
_OOM_REACH = 2048
_TRACE_LINES = 600
_STRAY_LINES = 60
_MOST_JSON = 1 << 16
_TRACE_BYTES = 1 << 16
_LOUD = frozenset({"error", "critical", "fatal"})


class Find(NamedTuple):
    """One line of the piece; begin and end are places in it."""

    begin: int
    end: int
    crash: Crash
    role: Role
    text: str
    at: str
    rank: int | None
    chained: bool = False
    oom: DeviceOom | None = None


class Piece(NamedTuple):
    """What was found, and up to where the piece is done with."""

    finds: list[Find]
    used: int


class _Line(NamedTuple):
    """One line, or the part of it that one rank wrote: its place in the bytes, taken apart."""

    data: bytes
    begin: int
    end: int
    head: Head

    def text(self, most: int = _MOST_LINE) -> str:
        """The line without colours."""
        raw = self.data[self.begin : min(self.end, self.begin + most)]
        return plain(raw.decode("utf-8", "replace")).strip()


def read_piece(data: bytes, whole: int, *, start: int = 0, final: bool) -> Piece:
    """Finds the lines with signatures in ``data[start:whole]``, which holds whole lines.

    Args:
        data: Bytes of the log.
        start: What lies before is done with, and says only what stood above.
        whole: Where its last whole line ends.
        final: No more will come; else a traceback whose end is missing is left for the next piece.
    """
    finds: dict[int, Find] = {}
    used, done = whole, 0
    for at in _candidates(data, start, whole):
        if at < done:
            continue
        begin, done = _bounds(data, start, at, whole)
        for line in _parts(data, begin, done):
            if _TRACEBACK.search(line.head.rest):
                found, ended = _end_of_trace(line, whole, final=final)
                if not (ended or final) and whole - line.begin < _TRACE_BYTES:
                    used = min(used, line.begin)
            else:
                found = None if line.begin in finds else _read_line(line, whole)
            if found is not None:
                finds.setdefault(found.begin, found)
    return Piece([finds[key] for key in sorted(finds) if key < used], used)


def _candidates(data: bytes, start: int, whole: int) -> list[int]:
    """Places in lines that may bear a signature, in order; several may lie in one line."""
    places = [found.start() for found in CANDIDATE.finditer(data.translate(FOLD), start, whole)]
    places += [found.start() for found in LOSS_CANDIDATE.finditer(data, start, whole)]
    for word in CANDIDATE_WORDS:
        at = data.find(word, start, whole)
        while at >= 0:
            places.append(at)
            at = data.find(word, at + 1, whole)
    places.sort()
    return places


def _bounds(data: bytes, start: int, at: int, whole: int) -> tuple[int, int]:
    begin = max(start, data.rfind(b"\n", start, at) + 1)
    begin = max(begin, data.rfind(b"\r", begin, at) + 1)
    end = data.find(b"\n", at, whole)
    end = whole if end < 0 else end
    turn = data.find(b"\r", at, end)
    return begin, end if turn < 0 else turn


def _parts(data: bytes, begin: int, end: int) -> Iterator[_Line]:
    places = [begin, end]
    if end - begin <= _MOST_LINE and data.find(b"]:", begin, end) >= 0:
        cuts = (begin + found.start() for found in _TAG_INSIDE.finditer(data[begin:end]))
        places[1:1] = [cut for cut in cuts if cut > begin]
    for first, last in itertools.pairwise(places):
        yield _line(data, first, last)


def _line(data: bytes, begin: int, end: int) -> _Line:
    raw = data[begin : min(end, begin + _MOST_LINE)]
    return _Line(data, begin, end, read_head(raw.decode("utf-8", "replace").rstrip("\r")))


def _line_above(line: _Line) -> _Line | None:
    if line.begin == 0:
        return None
    begin = line.data.rfind(b"\n", 0, line.begin - 1) + 1
    return _line(line.data, begin, line.begin - 1)


def _read_line(line: _Line, whole: int) -> Find | None:
    rest = line.head.rest
    meaning = meaning_of_line(rest)
    if meaning is None and rest.startswith("{"):
        meaning = _meaning_of_json(line.text(_MOST_JSON))
    if meaning is None and is_exception(rest, named=True) and not line.head.level:
        meaning = _without_traceback(line)
    return None if meaning is None else _made(_with_rank_above(line), whole, meaning)


def _without_traceback(line: _Line) -> Meaning | None:
    """An exception whose traceback was not seen.

    A truncated log may begin inside one: then an indented line stands before its end. Otherwise it
    may have been caught and printed, so it decides only where nothing else does.
    """
    above = _line_above(line)
    if above is not None and above.head.rest.startswith("  ") and not above.head.level:
        return meaning_of_exception(line.head.rest)
    return Meaning(Crash.CODE_ERROR, Role.CASCADE) if ": " in line.head.rest else None


def _with_rank_above(line: _Line) -> _Line:
    """In torchrun's summary the rank of an exit code stands one line above it."""
    if line.head.rank is not None or not line.head.rest.lstrip().startswith("exitcode"):
        return line
    above = _line_above(line)
    found = None if above is None else _SUMMARY_RANK.search(above.head.rest)
    return line if found is None else line._replace(head=line.head._replace(rank=int(found[1])))


def _meaning_of_json(text: str) -> Meaning | None:
    """A structured log's record: its message and exception, when its level is that of an error."""
    try:
        record = json.loads(text[text.index("{") :])
    except (ValueError, RecursionError):
        return None
    levels = (str(record.get(key, "")).lower() for key in ("level", "levelname", "severity"))
    if not any(level in _LOUD for level in levels):
        return None
    texts = (record.get(key) for key in ("exc_info", "exception", "error", "message", "msg"))
    lines = (one.splitlines()[::-1] for one in texts if isinstance(one, str))
    return next((said for line in itertools.chain(*lines) if (said := _said(line))), None)


def _said(line: str) -> Meaning | None:
    meaning = meaning_of_line(line)
    if meaning is None and is_exception(line, named=True):
        return meaning_of_exception(line)
    return meaning


def _end_of_trace(trace: _Line, whole: int, *, final: bool) -> tuple[Find | None, bool]:
    """The exception that ends a traceback, and whether there is nothing more to wait for.

    Lines of other ranks in between are passed over, and a few that nobody tagged. A traceback that
    is cut off at the end of all says that something was raised, and not what.
    """
    strays = 0
    label = _label(trace.head.rest)
    for line in _lines_after(trace, whole):
        rest = line.head.rest.removeprefix(label)
        if line.head.rank != trace.head.rank or not rest.strip():
            continue
        if _GROUPED.match(rest) and is_exception(inner := _GROUPED.sub("", rest), named=True):
            return _raised(trace, line, inner, whole), True
        if rest[0].isspace() or rest[0] in "|+\u2502\u256d\u2570":
            continue
        if is_exception(rest, named=bool(strays)) or is_qualified(rest):
            return _raised(trace, line, rest, whole), True
        strays += 1
        if strays > _STRAY_LINES:
            return None, True
    cut = Meaning(Crash.UNKNOWN, Role.CASCADE)
    return (_made(trace, whole, cut) if final and not strays else None), False


def _lines_after(line: _Line, whole: int) -> Iterator[_Line]:
    data, place = line.data, line.end + 1
    until = min(whole, line.begin + _TRACE_BYTES)
    for _ in range(_TRACE_LINES):
        if place >= until:
            return
        end = data.find(b"\n", place, whole)
        end = whole if end < 0 else end
        yield _line(data, place, end)
        place = end + 1


def _label(rest: str) -> str:
    """What a launcher such as pdsh puts before every line of a node: ``node-03: ``."""
    before = rest[: rest.find("Traceback")]
    return before if before.endswith((": ", "] ", "> ")) else ""


def _raised(trace: _Line, line: _Line, rest: str, whole: int) -> Find | None:
    if rest.startswith("SystemExit: 0"):
        return None
    found = _made(line, whole, meaning_of_exception(rest))
    # A worker process's own traceback follows the one that its parent raised about it.
    chained = trace.head.rest.startswith("Original Traceback") or _after_chain(trace)
    return found._replace(chained=chained)


def _after_chain(trace: _Line) -> bool:
    before = trace.data[max(0, trace.begin - 400) : trace.begin]
    return any(mark in before for mark in _CHAIN)


def _made(line: _Line, whole: int, meaning: Meaning) -> Find:
    oom = _oom_at(line, whole) if meaning.crash is Crash.CUDA_OOM else None
    return Find(
        begin=line.begin,
        end=line.end,
        crash=meaning.crash,
        role=meaning.role,
        text=line.text()[:EVIDENCE_CHARACTERS],
        at=line.head.at,
        rank=line.head.rank,
        oom=oom,
    )


def _oom_at(line: _Line, whole: int) -> DeviceOom | None:
    """The numbers of this error, also when its text is wrapped, and of no other one after it."""
    reach = line.data[line.begin : min(whole, line.begin + _OOM_REACH)]
    begins = [found.start() for found in re.finditer(rb"out of memory\. Tried", reach)]
    if not begins:
        return None
    text = reach[: begins[1]] if len(begins) > 1 else reach
    return parse_device_oom(plain(text.decode("utf-8", "replace")))
