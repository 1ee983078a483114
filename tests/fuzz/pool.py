"""Targets side by side, each in a process of its own that may hang, grow or die by a signal.

Invariant: however a target's process ends, its end is an outcome; one that dies is a finding.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from hypothesis import strategies as st

from tests.fuzz import folders
from tests.fuzz.engine import Outcome, check, explore, explore_machine
from tests.fuzz.machines import MACHINES, STEPS, machine
from tests.fuzz.target import Target
from tests.fuzz.targets import named

PATIENCE_S = 120.0
"""How long past its time a target may take before its process is ended: one value may be slow, and
a finding is made smaller."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One target for some time."""

    name: str
    seed: int
    budget_s: float


@dataclass(kw_only=True)
class _Running:
    job: Job
    process: Any
    heard: Connection
    until_s: float


def run_all(jobs: Sequence[Job], at_a_time: int, told: Callable[[Outcome], None]) -> list[Outcome]:
    """Runs all of them; outcomes come in the order of the jobs."""
    # What all need is loaded once; a child starts as a copy.
    for job in jobs:
        machine(job.name) if job.name in MACHINES else named(job.name)
    # Hypothesis reads the sources of all that is imported, once a process, before its first value.
    warm = st.one_of(st.text(), st.binary(), st.integers(), st.floats())
    check(Target(name="warm", values=warm, act=repr), 10)
    todo, running = list(reversed(jobs)), list[_Running]()
    outcomes: dict[str, Outcome] = {}
    while todo or running:
        while todo and len(running) < at_a_time:
            running.append(_start(todo.pop()))
        ready = wait([one.heard for one in running], timeout=1.0)
        for one in list(running):
            if one.heard in ready or time.monotonic() > one.until_s:
                running.remove(one)
                outcome = outcomes[one.job.name] = _end(one)
                told(outcome)
    return [outcomes[job.name] for job in jobs]


def _start(job: Job) -> _Running:
    context = multiprocessing.get_context("fork")
    heard, says = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(job, says), daemon=True)
    process.start()
    says.close()
    until_s = time.monotonic() + job.budget_s + PATIENCE_S
    return _Running(job=job, process=process, heard=heard, until_s=until_s)


def _work(job: Job, says: Connection) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        if job.name in MACHINES:
            kind = machine(job.name)
            says.send(explore_machine(kind, job.name, job.seed, job.budget_s, STEPS))
        else:
            says.send(explore(named(job.name), job.seed, job.budget_s))
    finally:
        folders.remove()
        says.close()
    os._exit(0)


def _end(one: _Running) -> Outcome:
    outcome = None
    with contextlib.suppress(EOFError, OSError):
        if one.heard.poll():
            outcome = one.heard.recv()
    if outcome is None and one.process.is_alive() and time.monotonic() > one.until_s:
        os.kill(one.process.pid, signal.SIGKILL)
    one.process.join()
    one.heard.close()
    if isinstance(outcome, Outcome):
        return outcome
    code = one.process.exitcode
    how = f"its process ended with {code}" if code != -signal.SIGKILL else "it did not end"
    return Outcome(name=one.job.name, findings={how: "run it alone: --only NAME --jobs 1"})
