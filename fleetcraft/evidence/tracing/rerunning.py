"""Running a recorded result again: what it was, whether that is still here, and the new task.

What is compared is in `sameness`. Invariant: a rerun is a task of its own under a new name, whose
record says which task it repeats, and if it was enqueued although something differs, why.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

import msgspec

from fleetcraft.errors import DataError, NoSuchTaskError, SpoolError, UsageError
from fleetcraft.evidence.records import RERUN_VARIABLE, Producer
from fleetcraft.evidence.results.sets import Result, read_set, set_names
from fleetcraft.evidence.tracing.resolving import label_of
from fleetcraft.evidence.tracing.sameness import Check, Made, Sameness
from fleetcraft.files import FileSystem
from fleetcraft.layout import Scratch
from fleetcraft.spool.directives import TaskSpec, check_spec
from fleetcraft.spool.enqueue import enqueue
from fleetcraft.spool.names import near
from fleetcraft.spool.record import Record
from fleetcraft.spool.tree import SpoolTree

"""By it a task knows that it repeats another, and which."""
_MOST_RERUNS = 1000


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run again.

    Attributes:
        name: The task's.
        record: Its record.
        tree: The spool in which it lies.
        made: Its results: the one that was asked for, or all of them.
        label: What was asked for, as it is called.
    """

    name: str
    record: Record
    tree: SpoolTree
    made: tuple[Made, ...]
    label: str


def find_subject(
    asked: str, *, scratch: Scratch, trees: Sequence[SpoolTree], fs: FileSystem | None = None
) -> Subject:
    """What a name stands for.

    Args:
        asked: A task; ``SET:CANDIDATE/ARM/SEED``, ``SET:ARM/SEED`` or ``SET:NONCE``; or a nonce.
        scratch: The tree whose result sets count.
        trees: The spools in which the task may be.
        fs: The seam.

    Raises:
        UsageError: More than one record has that name.
        DataError: There is no such result, or no task made it.
        NoSuchTaskError: There is no such task.
    """
    every = _all_made(scratch.evidence, fs)
    set_name, colon, rest = asked.partition(":")
    if colon:
        mine = [
            (name, one)
            for name, one in every
            if name == set_name and rest in (label_of(one.result), one.result.nonce)
        ]
        return _of_result(asked, mine, every, trees)
    located = next((tree for tree in trees if tree.locate(asked) is not None), None)
    if located is not None:
        record = located.read(located.find(asked).path)
        made = tuple(one for _, one in every if _is_of(one.result, asked, record))
        return Subject(name=asked, record=record, tree=located, made=made, label=asked)
    mine = [(name, one) for name, one in every if one.result.nonce == asked]
    if not mine:
        known = [name for tree in trees for name in tree.fs.listdir(tree.paths.names)]
        raise NoSuchTaskError(asked, near(asked, known))
    return _of_result(asked, mine, every, trees)


def _all_made(evidence: str, fs: FileSystem | None) -> list[tuple[str, Made]]:
    found: list[tuple[str, Made]] = []
    for name in set_names(evidence, fs=fs):
        results = read_set(evidence, name, fs=fs)
        found += [(name, Made(row.result, results.folder)) for row in results.rows]
    return found


def _is_of(result: Result, task: str, record: Record) -> bool:
    # Two spools may have tasks of one name; the identity tells them apart where it is recorded.
    known = result.command_identity
    return result.producer.task == task and (not known or known == record.identity)


def _of_result(
    asked: str,
    mine: Sequence[tuple[str, Made]],
    every: Sequence[tuple[str, Made]],
    trees: Sequence[SpoolTree],
) -> Subject:
    if not mine:
        known = [f"{name}:{label_of(one.result)}" for name, one in every]
        close = near(asked, known)
        raise DataError(
            f"no result is called {asked!r}; nothing was run",
            hint=f"did you mean {', '.join(close)}?" if close else "fleetcraft evidence results",
            name=asked,
        )
    if len(mine) > 1:
        originals = [pair for pair in mine if not _is_rerun(pair[1].result.producer, trees)]
        mine = originals or mine
    if len(mine) > 1:
        nonces = ", ".join(f"{name}:{one.result.nonce}" for name, one in mine[:5])
        raise UsageError(
            f"{len(mine)} results are called {asked!r}; nothing was run",
            hint=f"name one by its nonce: {nonces}",
            name=asked,
        )
    one = mine[0][1]
    tree, record = _task_of(one.result.producer, one.result, trees)
    return Subject(
        name=one.result.producer.task, record=record, tree=tree, made=(one,), label=asked
    )


def _is_rerun(producer: Producer, trees: Sequence[SpoolTree]) -> bool:
    for tree in trees:
        location = tree.locate(producer.task) if producer.task else None
        if location is not None:
            lines = tree.read(location.path).spec.command.split("\n")
            return any(line.startswith(f"export {RERUN_VARIABLE}=") for line in lines)
    return False


def _task_of(
    producer: Producer, result: Result, trees: Sequence[SpoolTree]
) -> tuple[SpoolTree, Record]:
    if not producer.task:
        raise DataError(
            f"no task made the result {label_of(result)!r}, so there is nothing to run again",
            hint="results that are appended inside a task say which",
        )
    first: tuple[SpoolTree, Record] | None = None
    for tree in trees:
        location = tree.locate(producer.task)
        if location is None:
            continue
        record = tree.read(location.path)
        if _is_of(result, producer.task, record):
            return tree, record
        first = first or (tree, record)
    if first is None:
        raise NoSuchTaskError(producer.task, [])
    return first


# ------------------------------------------------------------------------------------- deciding


def standing(checks: Sequence[Check]) -> Sameness:
    """What the checks come to; without recorded versions it is unknown."""
    verdicts = {check.verdict for check in checks}
    if Sameness.DIFFERS in verdicts:
        return Sameness.DIFFERS
    no_stack = any(
        check.what == "stack" and check.verdict is Sameness.UNRECORDED for check in checks
    )
    return Sameness.UNKNOWN if no_stack or Sameness.UNKNOWN in verdicts else Sameness.SAME


def task_again(
    subject: Subject, checks: Sequence[Check], *, name: str = "", reason: str = ""
) -> TaskSpec:
    """The task that repeats another.

    Args:
        subject: What is repeated.
        checks: What was compared.
        name: Of the new task; the old one's with ``.rerun-1`` or the next free number if empty.
        reason: Why it is run although something differs or is unknown; empty where nothing is.

    Raises:
        UsageError: The name or the reason cannot stand in a record.
    """
    old = subject.record.spec
    lines = [f"# a rerun of {subject.name}"]
    if reason:
        if not reason.isprintable() or not reason.strip():
            raise UsageError(f"the reason {reason!r} is no printable line; nothing was enqueued")
        lines.append(f"# although {_what_differs(checks)}: {reason.strip()}")
    lines += [f"export {RERUN_VARIABLE}={shlex.quote(subject.name)}", old.command]
    return check_spec(
        msgspec.structs.replace(
            old,
            name=name or _free_name(subject),
            command="\n".join(lines),
            after=(),
            after_files=(),
        )
    )


def _what_differs(checks: Sequence[Check]) -> str:
    odd = [
        f"{check.what} {check.verdict.value}"
        for check in checks
        if check.verdict in (Sameness.DIFFERS, Sameness.UNKNOWN)
        or (check.what == "stack" and check.verdict is Sameness.UNRECORDED)
    ]
    return "".join(c for c in ", ".join(odd) if c.isprintable()) or "nothing differs"


def _free_name(subject: Subject) -> str:
    taken = set(subject.tree.fs.listdir(subject.tree.paths.names))
    for number in range(1, _MOST_RERUNS):
        name = f"{subject.name}.rerun-{number}"
        if name not in taken:
            return name
    raise SpoolError(
        f"{subject.name!r} was run again {_MOST_RERUNS - 1} times; nothing was enqueued",
        hint="name the next one with --as",
    )


def writes_over(subject: Subject) -> list[str]:
    """Outputs that stand and that running it again would write over, as the record names them."""
    folder = subject.record.spec.project_dir
    declared = [os.path.join(folder, path) for path in subject.record.spec.outputs]
    named = [
        os.path.join(one.folder, out.path) for one in subject.made for out in one.result.outputs
    ]
    there = {os.path.realpath(path) for path in (*declared, *named) if os.path.exists(path)}
    return sorted(os.path.relpath(path, os.path.realpath(folder)) for path in there)


def run_again(subject: Subject, spec: TaskSpec) -> None:
    """Enqueues the task that repeats another.

    Raises:
        NameTakenError: Another task has its name.
        SpoolError: The spool cannot be written.
    """
    enqueue(subject.tree, spec)
