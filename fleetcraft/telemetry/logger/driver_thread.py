"""Calls that may never return, made on a thread of their own, each with a deadline.

What the calls do is not known here. A thread whose call has not returned in time is left behind
with it, and a fresh one makes the other calls. Invariant: no call is made again under a key whose
last call has not returned, so that there is at most one thread left behind for each key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import msgspec

LEAST_DEADLINE_S = 0.02


class Step(msgspec.Struct, frozen=True):
    """One call, and the thing that it may get stuck on."""

    key: str
    call: Callable[[], object]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a call.

    Attributes:
        value: What it returned.
        error: What it raised.
        timed_out: It has not returned yet.
        at_s: When it was begun, by the wall clock, in seconds since 1970.
        took_s: How long it took, or has taken so far.
    """

    value: object = None
    error: Exception | None = None
    timed_out: bool = False
    at_s: float = 0.0
    took_s: float = 0.0


class _Job:
    """Steps that one thread makes one after the other; shared with whoever waits for them."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.outcomes: list[Outcome] = []
        self.since_s = time.monotonic()  # of the step that is being made
        self.at_s = time.time()
        self.abandoned = False


class DriverThread:
    """Makes calls with deadlines.

    Args:
        wait: Waits at most so many seconds, less when ``wake`` was called; False when the caller is
            to end, so that a call is no longer waited for.
        wake: Ends that wait, from any thread.

    Attributes:
        stuck: The calls that have not returned, by key: when each began, by the monotonic clock.
    """

    def __init__(self, wait: Callable[[float], bool], wake: Callable[[], None]) -> None:
        self._wait = wait
        self._wake = wake
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[_Job | None] | None = None
        self._thread: threading.Thread | None = None
        self._left: list[threading.Thread] = []
        self._late: dict[str, Outcome] = {}
        self.stuck: dict[str, float] = {}

    def run(self, steps: Sequence[Step], deadline_s: float) -> dict[str, Outcome]:
        """Makes the calls in order, each unless the last one of its key is still stuck.

        The first call that is stuck is given the whole deadline, each further one half of the one
        before: all together cannot take twice the deadline, and a driver that answers nothing any
        more is soon known.

        Args:
            steps: The calls; their keys differ.
            deadline_s: For one call.

        Returns:
            The outcome by key; without those that were not begun or finished when ``wait`` said
            that the caller is to end.
        """
        with self._lock:
            stuck = dict(self.stuck)
        outcomes = {
            step.key: Outcome(timed_out=True, took_s=time.monotonic() - stuck[step.key])
            for step in steps
            if step.key in stuck
        }
        rest = [step for step in steps if step.key not in outcomes]
        while rest:
            job = self._begin(rest)
            finished = self._await(job, deadline_s)
            outcomes |= {step.key: done for step, done in zip(rest, job.outcomes, strict=False)}
            if finished is None:
                return outcomes
            if not finished:
                took_s = time.monotonic() - job.since_s
                left = Outcome(timed_out=True, at_s=job.at_s, took_s=took_s)
                outcomes[rest[len(job.outcomes)].key] = left
                deadline_s = max(LEAST_DEADLINE_S, deadline_s / 2)
            rest = rest[len(job.outcomes) + 1 :]
        return outcomes

    def take_late(self) -> dict[str, Outcome]:
        """The outcomes of calls that were stuck and have returned since the last look."""
        with self._lock:
            late, self._late = self._late, {}
        return late

    def close(self, last: Callable[[], object] | None, limit_s: float) -> bool:
        """Ends the thread, as far as it can be ended; orders to end are no reason to hurry.

        Args:
            last: A last call; not made while another one is stuck.
            limit_s: For all of it.

        Returns:
            False when some call has not returned; its thread would hold up the interpreter's end
            for nothing.
        """
        deadline_s = time.monotonic() + limit_s
        if not _have_ended(self._left, deadline_s):
            return False
        if last is not None:
            self._begin([Step("last", last)])
        if self._jobs is None or self._thread is None:
            return True
        self._jobs.put(None)
        return _have_ended([self._thread], deadline_s)

    def _begin(self, steps: Sequence[Step]) -> _Job:
        if self._jobs is None:
            self._jobs = SimpleQueue()
            self._thread = threading.Thread(target=self._work, args=(self._jobs,), daemon=True)
            self._thread.name = "driver"
            self._thread.start()
        job = _Job(steps)
        self._jobs.put(job)
        return job

    def _await(self, job: _Job, deadline_s: float) -> bool | None:
        """True when all is done, False when a call is left behind, None when the caller ends."""
        while True:
            with self._lock:
                if len(job.outcomes) == len(job.steps):
                    return True
                left_s = deadline_s - (time.monotonic() - job.since_s)
                if left_s <= 0:
                    self._leave_behind(job)
                    return False
            if not self._wait(left_s):
                with self._lock:
                    if len(job.outcomes) < len(job.steps):
                        self._leave_behind(job)
                return None

    def _leave_behind(self, job: _Job) -> None:
        job.abandoned = True
        self.stuck[job.steps[len(job.outcomes)].key] = job.since_s
        self._left = [thread for thread in self._left if thread.is_alive()]
        if self._thread is not None:
            self._left.append(self._thread)
        self._jobs = self._thread = None

    def _work(self, jobs: SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            for step in job.steps:
                value, error = None, None
                try:
                    value = step.call()
                except Exception as raised:
                    error = raised
                if not self._note(job, step, value, error):
                    return
            self._wake()

    def _note(self, job: _Job, step: Step, value: object, error: Exception | None) -> bool:
        """Notes what a call brought; False when nobody waits for it any more."""
        now_s = time.monotonic()
        outcome = Outcome(value=value, error=error, at_s=job.at_s, took_s=now_s - job.since_s)
        with self._lock:
            if job.abandoned:
                del self.stuck[step.key]
                self._late[step.key] = outcome
                return False
            job.outcomes.append(outcome)
            job.since_s, job.at_s = now_s, time.time()
        return True


def _have_ended(threads: Sequence[threading.Thread], deadline_s: float) -> bool:
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
