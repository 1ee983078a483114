"""Predicates of a gate over work: tasks of a spool, and jobs by Slurm's accounting.

Invariant: what has not come to its end yet, and what nobody answers for, is unknown.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from typing import Any

from fleetcraft.errors import DataError, FleetError, SchedulerError
from fleetcraft.evidence.release.accounts import JobUse, look_up
from fleetcraft.evidence.release.finding import Finding, Input, InputKind, Surroundings, some, worst
from fleetcraft.evidence.release.grid import read_standing
from fleetcraft.evidence.release.result_checks import read_whole
from fleetcraft.evidence.results.sets import digest_over
from fleetcraft.identity import sha256_hex
from fleetcraft.layout import State
from fleetcraft.spool.grid import FrozenGrid, read_grid
from fleetcraft.spool.record import Outcome, Record, closing_lines, parse
from fleetcraft.spool.tree import SpoolTree

_ALL = ("*",)
_GRID = "grid="


# -- tasks


def check_tasks_done(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """Tasks are done, completed, with their declared outputs."""
    asked = f"{_GRID}{given['grid']}" if "grid" in given else ",".join(given["tasks"])
    which = f"{given.get('spool', 'outer')}:{asked}"
    tree, names, frozen = _tasks(around, which)
    verdicts: list[bool | None] = []
    wrong, digests = [], []
    for name in names:
        verdict, why, digest = _one_task(tree, name, frozen)
        verdicts.append(verdict)
        digests.append(digest)
        if why:
            wrong.append(f"{name} {why}")
    return Finding(
        verdict=worst(verdicts),
        found=some(wrong) or f"{len(names)} done",
        expected=f"{len(names)} tasks done and completed, outputs as they were declared",
        inputs=(Input(kind=InputKind.TASKS, name=which, sha256=digest_over(digests)),),
    )


def _tasks(around: Surroundings, which: str) -> tuple[SpoolTree, list[str], FrozenGrid | None]:
    """The tasks that ``spool:globs`` or ``spool:grid=NAME`` names, sorted.

    Raises:
        DataError: There is none.
    """
    spool, _, asked = which.partition(":")
    tree = SpoolTree(around.spool(spool)).check_safe()
    if asked.startswith(_GRID):
        name = asked.removeprefix(_GRID)
        digest = read_standing(around.room, name).grid.tasks
        if not digest:
            raise DataError(f"grid {name!r} declares no tasks")
        frozen = read_grid(tree, digest)
        return tree, sorted(frozen.tasks), frozen
    globs = asked.split(",")
    there = tree.fs.listdir(tree.paths.names)
    names = [name for name in there if any(fnmatch.fnmatchcase(name, glob) for glob in globs)]
    if not names:
        raise DataError(f"no task of the {spool} spool is called {asked}")
    return tree, sorted(names), None


def _one_task(
    tree: SpoolTree, name: str, frozen: FrozenGrid | None
) -> tuple[bool | None, str, str]:
    """Verdict, what is wrong, and the digest of the task's record."""
    try:
        location = tree.find(name)
        data = tree.read_bytes(location.path)
        record = parse(data)
    except (FleetError, OSError) as error:
        why = error.message if isinstance(error, FleetError) else error.strerror or str(error)
        return None, f"cannot be read: {why}", ""
    digest = sha256_hex(name.encode() + b"\0" + data)
    why = frozen.objection(record)[1] if frozen else ""
    if why:
        return False, f"is not the declared one: {why}", digest
    if location.state is State.FAILED:
        return False, "failed", digest
    if location.state is not State.DONE:
        return None, f"is {location.state}", digest
    verdict, why = _outputs(record)
    return verdict, why, digest


def _outputs(record: Record) -> tuple[bool | None, str]:
    lines = closing_lines(record)
    if not lines or lines[-1].outcome is not Outcome.COMPLETED:
        return False, f"ended as {lines[-1].outcome if lines else 'nothing'}"
    for output in lines[-1].outputs:
        if output.problem:
            return False, f"has an output with a problem: {output.path}: {output.problem}"
        try:
            size_bytes = os.stat(os.path.join(record.spec.project_dir, output.path)).st_size
        except OSError as error:
            return None, f"has an output that cannot be seen: {output.path}: {error.strerror}"
        if output.size_bytes not in (None, size_bytes):
            return False, f"has an output of another size now: {output.path}"
    return True, ""


def check_none_failed(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """No task of a spool failed or is lost."""
    which = f"{given.get('spool', 'outer')}:{','.join(given.get('tasks', _ALL))}"
    tree, names, _ = _tasks(around, which)
    there = Input(kind=InputKind.TASKS, name=which, sha256=tasks_digest(around, which))
    failed = sorted(set(tree.records(tree.paths.failed)) & set(names))
    done = set(tree.records(tree.paths.done))
    lost = sorted(name for name in set(names) - set(failed) - done if not _is_somewhere(tree, name))
    words = [f"failed: {some(failed)}"] * bool(failed)
    words += [f"in no folder: {some(lost)}"] * bool(lost)
    return Finding(
        verdict=False if failed else (None if lost else True),
        found="; ".join(words) or f"{len(names)} tasks, none failed",
        expected="none failed or lost",
        inputs=(there,),
    )


def _is_somewhere(tree: SpoolTree, name: str) -> bool:
    try:
        tree.find(name)
    except FleetError:
        return False
    return True


def tasks_digest(around: Surroundings, which: str) -> str:
    """Digest over the records of tasks; one that cannot be read counts as another one.

    Args:
        around: The surroundings.
        which: The name of an input: ``spool:globs`` or ``spool:grid=NAME``.

    Raises:
        FleetError: There is no such task, or the spool cannot be used.
    """
    tree, names, _ = _tasks(around, which)
    return digest_over(_one_task(tree, name, None)[2] for name in names)


# -- jobs


def check_jobs_ended(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """The accounting says that every job has ended."""
    expected = "the accounting says that every job ended"
    jobs, inputs, nameless = _jobs(given, around)
    uses, problem = _ask(around, jobs)
    if problem:
        return Finding(verdict=None, found=problem, expected=expected, inputs=inputs)
    verdicts: list[bool | None] = [None] * bool(nameless)
    words = [nameless] * bool(nameless)
    for job in jobs:
        use = uses.get(job)
        verdicts.append(True if use and use.ended else None)
        if use is None:
            words.append(f"the accounting does not know job {job}")
        elif not use.ended:
            words.append(f"job {job} is {use.state}")
    states = some([f"{job} {uses[job].state}" for job in jobs if job in uses])
    return Finding(
        verdict=worst(verdicts),
        found="; ".join(words) or states,
        expected=expected,
        inputs=(*inputs, _as_input(uses)),
    )


def check_gpu_hours(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """The accounting states the GPU-hours of the jobs."""
    at_most = given.get("at_most")
    expected = "GPU-hours stated for every job, all ended"
    expected += "" if at_most is None else f", together at most {at_most:g}"
    jobs, inputs, nameless = _jobs(given, around)
    uses, problem = _ask(around, jobs)
    lacking = [job for job in jobs if job not in uses or not uses[job].ended]
    silent = [job for job in jobs if job in uses and uses[job].gpu_h is None]
    if problem or nameless or lacking or silent:
        words = [problem, nameless]
        words += [f"no end of {some(lacking)}"] * bool(lacking and not problem)
        words += [f"no count of GPUs for {some(silent)}"] * bool(silent)
        return Finding(
            verdict=None, found="; ".join(filter(None, words)), expected=expected, inputs=inputs
        )
    total = sum(use.gpu_h or 0.0 for use in uses.values())
    return Finding(
        verdict=at_most is None or total <= at_most,
        found=f"{total:.2f} GPU-hours of {len(jobs)} jobs",
        expected=expected,
        inputs=(*inputs, _as_input(uses)),
    )


def _jobs(
    given: Mapping[str, Any], around: Surroundings
) -> tuple[list[str], tuple[Input, ...], str]:
    """The jobs, what names them, and a sentence if some results name none."""
    jobs, inputs, nameless = set(given.get("jobs", ())), [], 0
    if "set" in given:
        found, there = read_whole(around, given["set"])
        inputs.append(there)
        producers = [result.producer for result in found.results]
        jobs |= {producer.job for producer in producers if producer.job}
        nameless = sum(not producer.job for producer in producers)
    said = f"{nameless} results name no job of Slurm" if nameless else ""
    return sorted(jobs), tuple(inputs), said or ("" if jobs else "no job is named")


def _ask(around: Surroundings, jobs: Sequence[str]) -> tuple[dict[str, JobUse], str]:
    try:
        return look_up(around.polls(), jobs), ""
    except SchedulerError as error:
        return {}, error.message


def _as_input(uses: Mapping[str, JobUse]) -> Input:
    said = [f"{use.job} {use.state} {use.elapsed_s} {use.gpus}" for use in uses.values()]
    return Input(kind=InputKind.JOBS, name=",".join(sorted(uses)), sha256=digest_over(said))
