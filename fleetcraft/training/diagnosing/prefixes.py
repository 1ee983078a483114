"""What stands before a log line's own words: colours, ranks, times, levels, source places.

Text in, the rest of the line and the facts of its head out. Invariant: the indentation of what a
rank printed survives, since it tells a quoted source line from an error.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_RANK = re.compile(
    r"\[(?:rank|default|Rank )(?P<tag>\d{1,6})\]:? ?|(?P<label>\d{1,5}): |\(\S+ pid=\d+[^)]*\) "
)
_TIME = r"\d{4}-\d\d-\d\d[T_ ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|\d\d:\d\d:\d\d"
# Source: the log heads of glog (c10d), of Python's logging, of loguru and of torchrun's agent.
_GLOG = re.compile(
    r"\[?(?P<level>[IWEF])(?P<at>\d{3,4} \d\d:\d\d:\d\d(?:\.\d+)?) (?:\d+ )?\S+:\d+\] ?"
)
_STAMP = re.compile(rf"\[?(?P<at>{_TIME})\]?(?:\s*[|:,-]+)?\s?")
_LEVEL = re.compile(
    r"[\[|<]?\s*(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|SUCCESS)\s*[\]|>]?"
    r"(?::|\s-|\s\||\s|$)\s*"
)
_PLACE = re.compile(r"(?!slurmstepd\b|srun\b)[a-z_][\w.]*(?::[\w.<>]+)*(?::\d+)?\s*(?:-|:|\|)\s+")
_PYTHON_LEVEL = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]+:")
_BRACKET = re.compile(r"\[[^\[\]]{1,160}\]:?\s?")
_BAR = re.compile(r"^[^\[\]]{0,200}?\d+/\d+ \[\d[^\]]{0,120}\]")
_IN_BRACKET_RANK = re.compile(r"\b[Rr]ank[ :]?(\d{1,6})\b")
_MOST_HEADS = 8


class Head(NamedTuple):
    """A line, read.

    Attributes:
        rest: Its own words; the indentation is kept where no logger wrote the line.
        at: The time as written; empty when it has none.
        rank: The rank that printed it.
        level: The logger's level; empty when no logger wrote it.
    """

    rest: str
    at: str = ""
    rank: int | None = None
    level: str = ""


def plain(text: str) -> str:
    """A text without terminal colours and cursor moves."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def read_head(text: str) -> Head:
    """Takes a line apart."""
    rest, at, level = plain(text), "", ""
    rank: int | None = None
    if " [" in rest and "/" in rest:
        rest = _BAR.sub("", rest)
    for _ in range(_MOST_HEADS):
        if found := _RANK.match(rest):
            tag = found["tag"] or found["label"]
            rank = int(tag) if tag and rank is None else rank
        elif found := _GLOG.match(rest):
            at, level = at or found["at"], level or found["level"]
        elif found := _PYTHON_LEVEL.match(rest):
            level = level or found["level"]
        elif found := _STAMP.match(rest):
            at = at or found["at"]
        elif (at or rest[:1] in "[|<" or not rest[:1].isspace()) and (found := _LEVEL.match(rest)):
            level = level or found["level"]
        elif found := _BRACKET.match(rest):
            told = _IN_BRACKET_RANK.search(found[0])
            rank = int(told[1]) if told and rank is None else rank
        elif level and (found := _PLACE.match(rest)):
            pass
        else:
            break
        rest = rest[found.end() :]
    return Head(rest=rest.lstrip() if level else rest, at=at, rank=rank, level=level)
