"""What a report says of tasks: attempts, groups of them, failures, pace, and one spool.

Computes nothing but sums. Invariant: what was not measured is None, and every list that was cut
says how many entries it leaves out.
"""

from __future__ import annotations

import msgspec


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One ended attempt, as far as lists of a report show it.

    Attributes:
        log: Its path; empty without one.
        times_median: How many times the median of its group it took; only in the list of the
            slowest.
    """

    task: str
    attempt: int
    outcome: str
    exit_code: int | None = None
    signal: int | None = None
    host: str = ""
    ended_at: str | None = None
    wall_s: float | None = None
    log: str = ""
    times_median: float | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of one family, or tasks whose names differ in their numbers alone.

    Attributes:
        name: The family, or the common start of the names with ``*``.
        is_family: Which of the two it is.
        counts: Tasks by state, now.
        attempts: Ended attempts that the report is about.
        failed_attempts: Those of them that did not complete.
        median_wall_s: Of the completed ones.
        longest_wall_s: Likewise.
        wall_s: Time of all of them together.
    """

    name: str
    is_family: bool
    counts: dict[str, int]
    attempts: int
    failed_attempts: int
    median_wall_s: float | None = None
    longest_wall_s: float | None = None
    wall_s: float = 0.0


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts that ended in the same way.

    Attributes:
        outcome: How.
        exit_code: Of the process; None when it had none.
        signal: That ended it.
        reason: What the record says, and what the log ends with where it says nothing.
        from_log: Whether the reason is a line of the log.
        attempts: How many.
        tasks: How many different tasks.
        failed_tasks: Those of them that lie in ``failed`` now.
        hosts: Host to attempts, the most affected first; at most five.
        other_hosts: Hosts beyond those.
        example: The newest of them.
        log_tail: The end of its log; empty when there is none.
        log_problem: Why there is none.
    """

    outcome: str
    exit_code: int | None
    signal: int | None
    reason: str
    from_log: bool
    attempts: int
    tasks: int
    failed_tasks: int
    hosts: dict[str, int]
    other_hosts: int
    example: Attempt
    log_tail: str = ""
    log_problem: str = ""


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """A task with more than one ended attempt: how these ended, and the log of the last one."""

    task: str
    state: str
    attempts: int
    outcomes: dict[str, int]
    log: str = ""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A claim: who holds it, and for how long by the clock of this machine."""

    task: str
    host: str
    owner: str
    for_s: float | None
    log: str = ""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How quickly tasks end, and when the rest may have ended.

    Attributes:
        start_s: Where the first bin begins, seconds since 1970; None without any bin.
        bin_s: Seconds a bin.
        completed: Attempts that completed, by bin.
        other: Attempts that ended otherwise, by bin.
        per_h: Tasks an hour that left the queue for good, lately; None when too few did.
        lately_s: The span that this rate is of; it ends with the newest end of a task.
        counted: How many tasks ended in it.
        left: Tasks that wait, are pending or run.
        eta_s: Seconds from the report until all have ended, from and to; None when unknown.
        eta_why: How it was estimated, or why it is unknown.
        untimed: Ended attempts whose record names no time; they are in no bin.
    """

    start_s: float | None = None
    bin_s: float = 0.0
    completed: tuple[int, ...] = ()
    other: tuple[int, ...] = ()
    per_h: float | None = None
    lately_s: float | None = None
    counted: int = 0
    left: int = 0
    eta_s: tuple[float, float] | None = None
    eta_why: str = ""
    untimed: int = 0


class SpoolPart(msgspec.Struct, frozen=True, kw_only=True):
    """One spool.

    Attributes:
        spool: ``outer`` or ``gpu``.
        folder: Where it is.
        counts: Tasks by state, now; of a report about jobs, tasks with an attempt of theirs.
        blocked: Waiting tasks behind a task that failed; None when that was not looked at.
        markers: DRAIN and STOP with what they say.
        workers: Workers that have not left: ``alive``, ``gone`` and ``unknown`` to how many.
        outcomes: Ended attempts by outcome.
        wall_s: Outcome to the time of those attempts together.
        unread: Records that could not be read, by reason.
        damaged_lines: History lines that could not be read.
        first_s: The earliest start or end of those attempts, seconds since 1970.
        last_s: The latest.
        groups: Tasks by family or name, the largest first.
        slowest: Attempts that completed, the longest first.
    """

    spool: str
    folder: str
    counts: dict[str, int]
    blocked: int | None = None
    markers: dict[str, str] = {}
    workers: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    wall_s: dict[str, float] = {}
    unread: dict[str, int] = {}
    damaged_lines: int = 0
    first_s: float | None = None
    last_s: float | None = None
    pace: Pace = Pace()
    groups: tuple[Group, ...] = ()
    groups_left_out: int = 0
    failures: tuple[Failure, ...] = ()
    failures_left_out: int = 0
    logs_not_read: int = 0
    slowest: tuple[Attempt, ...] = ()
    retried: tuple[Retried, ...] = ()
    retried_left_out: int = 0
    running: tuple[Running, ...] = ()
    running_left_out: int = 0

    @property
    def tasks(self) -> int:
        """All of its tasks."""
        return sum(self.counts.values())

    @property
    def attempts(self) -> int:
        """All ended attempts that the report is about."""
        return sum(self.outcomes.values())
