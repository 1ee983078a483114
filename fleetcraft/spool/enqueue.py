"""Publishing tasks: write, link the name, rename into place; alone or as a durable batch.

The link into ``names/`` decides who owns a name, atomically across all states. Whoever finds a
name taken tries the holder's own publishing rename, so an enqueue that was cut short is completed
by the next one. Invariant: nothing is ever linked out of ``names/``, and a task becomes visible by
exactly one rename.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from fleetcraft.errors import DataError, NameTakenError, SpoolError, UsageError
from fleetcraft.files import NO_HARD_LINKS
from fleetcraft.identity import new_record_id
from fleetcraft.layout import Lane
from fleetcraft.spool.directives import TaskSpec, check_spec
from fleetcraft.spool.record import Record, compose, parse
from fleetcraft.spool.syntax import refuse_unfinished_commands
from fleetcraft.spool.tree import SpoolTree, unreadable

_RECORD_MODE = 0o700
_LOOKS_AT_MOST = 5_000


class Published(StrEnum):
    """What became of one task of an enqueue."""

    ENQUEUED = "enqueued"
    COMPLETED = "completed"
    """An earlier enqueue of the same task had been cut short; this one made it visible."""
    ALREADY_THERE = "already_there"


class BatchReport(msgspec.Struct, kw_only=True):
    """What a batch enqueue did."""

    enqueued: int = 0
    completed: int = 0
    already_there: int = 0
    taken: list[str] = msgspec.field(default_factory=list)


class _Draft(msgspec.Struct, frozen=True):
    spec: TaskSpec
    record: Record
    data: bytes
    temporary: str


def enqueue(tree: SpoolTree, spec: TaskSpec, *, if_absent: bool = False) -> Published:
    """Publishes one task durably.

    Costs two forced writes and about eight file operations, whatever the size of the spool.

    Args:
        tree: The spool.
        spec: The task; ``project_dir`` must be absolute.
        if_absent: Accept that the very same task is already there.

    Raises:
        UsageError: The task cannot be written as a record.
        NameTakenError: The name belongs to another task, or to the same one without ``if_absent``.
        SpoolError: The spool could not be written, or lane ``last`` is bound to a frozen grid that
            does not declare the task.
    """
    refuse_unfinished_commands([check_spec(spec)])
    _refuse_undeclared(tree, [spec])
    draft = _draft(tree, spec)
    try:
        tree.fs.create(draft.temporary, draft.data, mode=_RECORD_MODE, durable=True)
        taken = not _take_name(tree, draft)
        if not taken:
            tree.fs.sync_folder(tree.paths.names)
            tree.move(draft.temporary, tree.home(draft.record))
            return Published.ENQUEUED
    except OSError as error:
        raise _not_enqueued(spec.name, error) from error
    return _settle_collision(tree, draft, if_absent=if_absent)


def enqueue_batch(
    tree: SpoolTree,
    specs: Sequence[TaskSpec],
    *,
    if_absent: bool = False,
    progress: Callable[[int], None] = lambda count: None,
) -> BatchReport:
    """Publishes many tasks durably: all are written and named before the first becomes visible.

    One ``syncfs`` replaces two forced writes a task. A glob among the dependencies therefore sees
    the whole batch. Cost grows linearly: five file operations a task, one more for each of up to
    5,000 tasks, or else one listing of ``names/``.

    Args:
        tree: The spool.
        specs: The tasks; their names must differ.
        if_absent: Accept tasks that are already there with the same content.
        progress: Told the number of tasks written so far, now and then.

    Raises:
        UsageError: A task cannot be written, or two have one name; nothing was enqueued.
        NameTakenError: A name belongs to another task; nothing was enqueued.
        SpoolError: The spool could not be written, and enqueueing again completes it; or lane
            ``last`` is bound to a frozen grid that does not declare a task.
    """
    _refuse_duplicates(specs)
    refuse_unfinished_commands(check_spec(spec) for spec in specs)
    _refuse_undeclared(tree, specs)
    report = BatchReport()
    drafts, begun = _sorted_out(tree, specs, report, if_absent=if_absent)
    named: list[_Draft] = []
    nameless = list(reversed(drafts))
    try:
        for count, draft in enumerate(drafts, 1):
            tree.fs.create(draft.temporary, draft.data, mode=_RECORD_MODE)
            if count % 1000 == 0:
                progress(count)
        while nameless:
            draft = nameless.pop()  # before its name is tried: a link that fails may be done
            (named if _take_name(tree, draft) else begun).append(draft)
        tree.fs.sync_mount(tree.paths.root)
        for draft in named:
            tree.move(draft.temporary, tree.home(draft.record))
        for draft in begun:
            _settle_or_note(tree, draft, report, if_absent=if_absent)
    except OSError as error:
        _discard(tree, nameless)
        raise _not_enqueued(f"{len(drafts)} tasks", error) from error
    report.enqueued = len(named)
    progress(len(drafts))
    if report.taken:
        raise _lost_names(report)
    return report


def complete_publication(tree: SpoolTree, name: str) -> bool:
    """Tries the publishing rename of whoever holds a name.

    Returns:
        True when this call made the task visible; False when it was visible already.

    Raises:
        DataError: The name's record cannot be read.
        OSError: The spool cannot be read or written.
    """
    record_id = holder_id(tree, name)
    temporary = tree.paths.temporary(record_id)
    try:
        record = tree.read(temporary)
    except FileNotFoundError:
        return False
    return tree.move(temporary, tree.home(record))


def holder_id(tree: SpoolTree, name: str) -> str:
    """The id of the record that holds a name, read from its identity link or folder.

    Raises:
        FileNotFoundError: Nobody holds the name.
        DataError: The link is no record, or the folder does not hold exactly one id.
    """
    path = tree.paths.name(name)
    try:
        return tree.read(path).id
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EISDIR):
            raise
    ids = tree.fs.listdir(path)
    if len(ids) != 1:
        raise DataError(f"the identity folder of {name!r} holds {len(ids)} ids, expected one")
    return ids[0]


def _draft(tree: SpoolTree, spec: TaskSpec) -> _Draft:
    record_id = new_record_id()
    data = compose(spec, record_id)
    return _Draft(spec, parse(data), data, tree.paths.temporary(record_id))


def _discard(tree: SpoolTree, drafts: Iterable[_Draft]) -> None:
    """Removes drafts whose names were not tried: on a full disk they would keep others from it."""
    for draft in drafts:
        with contextlib.suppress(OSError):
            tree.fs.unlink(draft.temporary)


def _take_name(tree: SpoolTree, draft: _Draft) -> bool:
    """Whether the name is now this draft's; says yes too when the system wrongly reported no."""
    path = tree.paths.name(draft.spec.name)
    try:
        tree.fs.link(draft.temporary, path)
    except FileExistsError:
        return holder_id(tree, draft.spec.name) == draft.record.id
    except OSError as error:
        if error.errno in NO_HARD_LINKS:
            return _take_name_by_folder(tree, draft)
        try:
            ours = holder_id(tree, draft.spec.name) == draft.record.id
        except FileNotFoundError:
            raise error from None
        if not ours:
            return False
    return True


def _take_name_by_folder(tree: SpoolTree, draft: _Draft) -> bool:
    """Identity without hard links: a folder holding the id, renamed into place.

    Renaming a folder over one that is not empty fails (ENOTEMPTY), which makes it the same
    atomic test as a link.
    """
    folder = f"{draft.temporary}.d"
    tree.fs.make_folder(folder)
    tree.fs.create(f"{folder}/{draft.record.id}", draft.record.identity.encode(), durable=True)
    try:
        tree.fs.rename_new(folder, tree.paths.name(draft.spec.name))
    except OSError as error:
        if holder_id(tree, draft.spec.name) == draft.record.id:
            return True
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        tree.fs.unlink(f"{folder}/{draft.record.id}")
        tree.fs.remove_folder(folder)
        return False
    return True


def _identity_of_holder(tree: SpoolTree, name: str) -> str:
    path = tree.paths.name(name)
    try:
        return tree.read(path).identity
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EISDIR):
            raise
    return tree.fs.read(f"{path}/{holder_id(tree, name)}").decode()


def _settle_collision(tree: SpoolTree, draft: _Draft, *, if_absent: bool) -> Published:
    name = draft.spec.name
    try:
        same = _identity_of_holder(tree, name) == draft.record.identity
        completed = complete_publication(tree, name)
        with contextlib.suppress(FileNotFoundError):
            tree.fs.unlink(draft.temporary)
        if same and completed:
            return Published.COMPLETED
        if same and if_absent:
            return Published.ALREADY_THERE
        location = tree.locate(name)
    except OSError as error:
        raise _not_enqueued(name, error) from error
    raise NameTakenError(name, location.state.value if location else "", same=same)


def _settle_or_note(
    tree: SpoolTree, draft: _Draft, report: BatchReport, *, if_absent: bool
) -> None:
    try:
        _count(report, _settle_collision(tree, draft, if_absent=if_absent))
    except NameTakenError:
        report.taken.append(draft.spec.name)


def _sorted_out(
    tree: SpoolTree, specs: Sequence[TaskSpec], report: BatchReport, *, if_absent: bool
) -> tuple[list[_Draft], list[_Draft]]:
    """Drafts of the tasks whose names are free, and of those that an enqueue began and left.

    A plain collision raises here, before anything is published. What was begun becomes visible
    only after every name of this batch is taken: a glob must see the whole batch this time too.
    """
    try:
        present = _present(tree, specs)
        free: list[_Draft] = []
        begun: list[_Draft] = []
        for spec in specs:
            draft = _draft(tree, spec)
            if spec.name not in present:
                free.append(draft)
            elif _was_cut_short(tree, draft):
                begun.append(draft)
            else:
                _count(report, _settle_collision(tree, draft, if_absent=if_absent))
    except OSError as error:
        raise unreadable(tree.paths.names, error) from error
    return free, begun


def _present(tree: SpoolTree, specs: Sequence[TaskSpec]) -> set[str]:
    """Which of the names are taken: looked at one by one, or listed for a large batch.

    So a small batch costs the same however many names there are, and a large one keeps no names
    but its own.
    """
    names = {spec.name for spec in specs}
    if len(names) <= _LOOKS_AT_MOST:
        return {name for name in names if tree.fs.exists(tree.paths.name(name))}
    return {name for batch in tree.fs.scan(tree.paths.names) for name in names.intersection(batch)}


def _was_cut_short(tree: SpoolTree, draft: _Draft) -> bool:
    name = draft.spec.name
    return _identity_of_holder(tree, name) == draft.record.identity and tree.fs.exists(
        tree.paths.temporary(holder_id(tree, name))
    )


def _count(report: BatchReport, outcome: Published) -> None:
    if outcome is Published.COMPLETED:
        report.completed += 1
    else:
        report.already_there += 1


def _refuse_undeclared(tree: SpoolTree, specs: Sequence[TaskSpec]) -> None:
    if any(spec.lane is Lane.LAST for spec in specs):
        from fleetcraft.spool.grid import refuse_undeclared

        refuse_undeclared(tree, specs)


def _refuse_duplicates(specs: Iterable[TaskSpec]) -> None:
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise UsageError(
                f"two tasks of this batch are called {spec.name!r}; nothing was enqueued",
                hint="use a column that differs in every row, or {n}, in the name template",
                name=spec.name,
            )
        seen.add(spec.name)


def _lost_names(report: BatchReport) -> SpoolError:
    shown = ", ".join(repr(name) for name in report.taken[:5])
    return SpoolError(
        f"{len(report.taken)} of the names were taken by another enqueue meanwhile ({shown}); "
        f"the other {report.enqueued} tasks were enqueued",
        hint="fleetcraft show NAME tells what has them",
        taken=report.taken,
    )


def _not_enqueued(what: str, error: OSError) -> SpoolError:
    return SpoolError(
        f"cannot enqueue {what}: {error.strerror or error}; nothing that was reported as enqueued "
        "is affected",
        hint="free space or quota, then enqueue the same again: it completes what was begun",
        what=what,
    )
