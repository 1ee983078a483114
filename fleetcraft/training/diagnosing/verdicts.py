"""Which evidence decides: the rules of `classify`, one function each, in their order.

Invariant: a rule answers only from what its source alone can tell, and None leaves the question to
the next.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from fleetcraft.training.diagnosing.case import Case, signal_of
from fleetcraft.training.records import Crash, Evidence, Role

_HARD = (signal.SIGKILL, signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGBUS)
# Final states of Slurm that name a cause. CANCELLED yields to a log that names one: a person who
# finds a run hung cancels it.
_DECIDED_BY_SCHEDULER = frozenset({Crash.HOST_OOM, Crash.TIME_LIMIT, Crash.PREEMPTED})


def decide(case: Case) -> Evidence | None:
    """The evidence that names the class; None when nothing says that the run died."""
    return next((found for rule in _RULES if (found := rule(case)) is not None), None)


def _killed_for_memory(case: Case) -> Evidence | None:
    return next(
        (one for one in case.waits() if one is not None and one.crash is Crash.HOST_OOM), None
    )


def _scheduler_names_it(case: Case) -> Evidence | None:
    said = case.scheduler()
    return said if said is not None and said.crash in _DECIDED_BY_SCHEDULER else None


def _error_file_names_it(case: Case) -> Evidence | None:
    first = case.errors.first(Role.ROOT)
    # A rank that another one's kill has broken reports what it met: the counter knows better.
    if first is None or (first.crash is Crash.KILLED_UNCONFIRMED and case.kills()):
        return None
    return first


def _kernel_says(case: Case) -> Evidence | None:
    said = case.kernel()
    if said is None or said.crash is not Crash.HOST_OOM:
        return None
    # A full device says so itself, with numbers. The counter is the whole cgroup's: what else died
    # there does not explain that.
    log = case.episode.deciding if case.episode else None
    return None if log is not None and log.crash is Crash.CUDA_OOM and log.oom else said


def _log_names_it(case: Case) -> Evidence | None:
    if case.episode is None or not case.episode.has_root:
        return None
    log, said = case.logs()[0], case.scheduler()
    # Of a step that somebody cancels, srun prints that its tasks were killed.
    cancelled = said is not None and " by " in case.slurm_state
    return said if cancelled and log.crash is Crash.KILLED_UNCONFIRMED else log


def _never_started_or_killed(case: Case) -> Evidence | None:
    for end, said in zip(case.ends, case.waits(), strict=True):
        if said is not None and said.role is Role.ROOT and (end.why or signal_of(end) in _HARD):
            return said
    return None


def _error_file_hints(case: Case) -> Evidence | None:
    return case.errors.first(Role.CASCADE)


def _scheduler_hints(case: Case) -> Evidence | None:
    said = case.scheduler()
    return None if said is None or case.state() == "FAILED" else said


def _log_hints(case: Case) -> Evidence | None:
    return case.logs()[0] if case.episode else None


def _whatever_ended(case: Case) -> Evidence | None:
    bad = [one for one in case.waits() if one is not None and one.crash is not Crash.NONE]
    named = [one for one in bad if one.crash is not Crash.UNKNOWN]
    return next(iter((*named, *bad)), None) or case.scheduler()


def _silence(case: Case) -> Evidence | None:
    return next(iter(case.silence()), None)


_RULES: tuple[Callable[[Case], Evidence | None], ...] = (
    _killed_for_memory,
    _scheduler_names_it,
    _error_file_names_it,
    _kernel_says,
    _log_names_it,
    _never_started_or_killed,
    _error_file_hints,
    _scheduler_hints,
    _log_hints,
    _whatever_ended,
    _silence,
)
