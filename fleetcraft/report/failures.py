"""Attempts that did not complete, grouped by how they ended, with the ends of their logs.

Reads logs, at most so many and so much of each; nothing else. Invariant: what a log says is quoted,
never interpreted: where the record gives no reason, the reason is a line of the log and marked so.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from fleetcraft.report.task_records import Attempt, Failure

READ_LOGS = 400
_TAIL_BYTES = 16 * 1024
_TAIL_LINES = 20
_LINE = 400
_ERROR = re.compile(
    r"\b(?:error|exception|traceback|fatal|killed|assert\w*|abort\w*|denied|cannot)\b|\w(?:Error|Exception)\b",
    re.IGNORECASE,
)
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
_EMPTY_LOG = "the log is empty"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """An attempt that did not complete, and the reason that its record gives."""

    attempt: Attempt
    reason: str


@dataclass
class _Kind:
    reason: str
    from_log: bool
    members: list[Attempt] = field(default_factory=list)

    def failed(self, gone: set[str]) -> int:
        """How many of its tasks lie in ``failed`` now."""
        return len({attempt.task for attempt in self.members} & gone)


def group_failures(
    ended: Sequence[Ended],
    failed_tasks: Collection[str],
    *,
    limit: int,
    read_logs: int = READ_LOGS,
    quote: bool = True,
    progress: Callable[[int], None] | None = None,
) -> tuple[tuple[Failure, ...], int, int]:
    """Groups attempts by how they ended, those whose tasks failed for good first.

    Args:
        ended: Attempts that did not complete.
        failed_tasks: Names of the tasks that lie in ``failed`` now.
        limit: Groups at most.
        read_logs: Logs that are read at most to find out reasons that records do not give; the
            newest attempts first.
        quote: Whether logs are read and quoted at all.
        progress: Is told how many logs were read.

    Returns:
        The groups; how many are left out; how many logs were not read for want of time.
    """
    kinds: dict[tuple[str, int | None, int | None, str], _Kind] = {}
    read = not_read = 0
    for each in sorted(ended, key=lambda one: one.attempt.ended_at or "", reverse=True):
        reason, from_log = each.reason, False
        if not reason and each.attempt.log and quote:
            if read < read_logs:
                read += 1
                reason, from_log = _reason_in(each.attempt.log)
                if progress:
                    progress(read)
            else:
                not_read += 1
                reason = "its log was not read"
        attempt = each.attempt
        key = (attempt.outcome, attempt.exit_code, attempt.signal, _VARYING.sub("#", reason))
        kinds.setdefault(key, _Kind(reason, from_log)).members.append(attempt)
    gone = set(failed_tasks)
    order = sorted(kinds.values(), key=lambda kind: (-kind.failed(gone), -len(kind.members)))
    shown = tuple(_failure(kind, gone, quote=quote) for kind in order[:limit])
    return shown, max(0, len(order) - limit), not_read


def _failure(kind: _Kind, gone: set[str], *, quote: bool) -> Failure:
    newest = kind.members[0]
    tasks = {attempt.task for attempt in kind.members}
    hosts = Counter(attempt.host or "unknown host" for attempt in kind.members)
    tail, problem = "", "" if newest.log else "no log"
    if newest.log and quote:
        tail, problem = read_tail(newest.log)
    return Failure(
        outcome=newest.outcome,
        exit_code=newest.exit_code,
        signal=newest.signal,
        reason=_cut(kind.reason),
        from_log=kind.from_log,
        attempts=len(kind.members),
        tasks=len(tasks),
        failed_tasks=kind.failed(gone),
        hosts=dict(hosts.most_common(5)),
        other_hosts=max(0, len(hosts) - 5),
        example=newest,
        log_tail=tail,
        log_problem=problem,
    )


def _reason_in(path: str) -> tuple[str, bool]:
    tail, problem = read_tail(path)
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    if problem or not lines:
        return problem or _EMPTY_LOG, False
    found = next((line for line in reversed(lines) if _ERROR.search(line)), lines[-1])
    return found, True


def read_tail(path: str) -> tuple[str, str]:
    """The last lines of a log, each cut to a width, and why there are none.

    A carriage return ends a line, as it is how progress bars draw over what they drew. Only a
    regular file is read, and opening it never blocks.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                return "", "the log is no regular file"
            file.seek(max(0, facts.st_size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except ValueError:  # of a NUL, in a history that somebody else has written
        return "", "the log's name is none that a file can have"
    except OSError as error:
        return "", f"the log cannot be read: {error.strerror or error}"
    text = data.decode("utf-8", "backslashreplace").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.rstrip("\n").split("\n")
    if facts.st_size > _TAIL_BYTES and len(lines) > 1:
        lines = lines[1:]  # the first one is cut somewhere
    kept = [_cut(line) for line in lines[-_TAIL_LINES:]]
    return "\n".join(kept), "" if any(line.strip() for line in kept) else _EMPTY_LOG


def _cut(line: str) -> str:
    return line if len(line) <= _LINE else f"{line[:_LINE]}…"
