"""Frozen grids: the list of tasks that alone may enter and leave lane ``last`` of a spool.

A grid is a file named by the sha256 of its bytes, so it says itself whether it is what was frozen;
``LAST_GRID`` in the spool holds the digest that binds the lane, where every enqueuer and worker
sees it, whatever their own environment says. Nothing here starts or moves a task. Invariant: what
cannot be verified admits nothing.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from fleetcraft.errors import ConfigError, DataError, FleetError, SpoolError, UsageError
from fleetcraft.identity import new_record_id, sha256_hex
from fleetcraft.layout import Lane
from fleetcraft.spool.directives import TaskSpec, check_spec, write_directives
from fleetcraft.spool.record import Record, compose, parse
from fleetcraft.spool.syntax import refuse_unfinished_commands
from fleetcraft.spool.tree import SpoolTree, unreadable

SCHEMA = "fleetcraft.grid/1"
SETTING = "pack.last_grid"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHOWN = 12
_LOOK_EVERY_S = 1.0


class GridTask(msgspec.Struct, frozen=True, kw_only=True):
    """One declared task.

    ``identity`` is the record's identity hash and alone decides; the other fields are there to
    say in which of them a task that is refused differs.
    """

    name: str
    identity: str
    command_sha256: str
    project_dir: str
    directives: tuple[str, ...] = ()


class _GridFile(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    tasks: tuple[GridTask, ...]


class FrozenGrid:
    """The tasks of one grid.

    Args:
        digest: The sha256 of its file.
        tasks: What it declares.
    """

    def __init__(self, digest: str, tasks: Iterable[GridTask]) -> None:
        self.digest = digest
        self.tasks = {task.name: task for task in tasks}

    def objection(self, record: Record) -> tuple[str, str]:
        """Why a task is not one of these.

        Returns:
            The field that differs and a sentence; both empty when the task is declared.
        """
        declared = self.tasks.get(record.spec.name)
        grid = f"the frozen grid {self.digest[:_SHOWN]}"
        if declared is None:
            return "name", f"{grid} declares no task of this name"
        found = describe(record)
        if found.identity == declared.identity:
            return "", ""
        field = _first_difference(declared, found)
        return field, f"its {field} is not the one that {grid} declares"


def describe(record: Record) -> GridTask:
    """A task as a grid lists it."""
    spec = record.spec
    return GridTask(
        name=spec.name,
        identity=record.identity,
        command_sha256=sha256_hex(spec.command.encode("utf-8", "surrogateescape")),
        project_dir=_as_text(spec.project_dir),
        directives=tuple(_as_text(line) for line in write_directives(spec, "")[2:]),
    )


def _as_text(value: str) -> str:
    # A path may be any bytes; the grid is JSON, and the identity hash has the bytes themselves.
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _first_difference(declared: GridTask, found: GridTask) -> str:
    if declared.command_sha256 != found.command_sha256:
        return "command"
    if declared.project_dir != found.project_dir:
        return "project directory"
    ours, theirs = (dict(line.split(": ", 1) for line in t.directives) for t in (declared, found))
    changed = [key for key in (*ours, *theirs) if ours.get(key) != theirs.get(key)]
    return f"directive {changed[0]!r}" if changed else "text"


# -- freezing and binding


def freeze(tree: SpoolTree, specs: Sequence[TaskSpec]) -> FrozenGrid:
    """Writes down exactly these tasks as a grid; the same tasks always give the same digest.

    Args:
        tree: The spool that keeps it.
        specs: Tasks of lane ``last``, as they would be enqueued.

    Raises:
        UsageError: A task is wrong, is of another lane, or two have one name.
        SpoolError: The grid could not be written.
    """
    refuse_unfinished_commands(check_spec(spec) for spec in specs)
    for spec in specs:
        if spec.lane is not Lane.LAST:
            raise UsageError(
                f"a grid holds tasks of lane last, and {spec.name!r} is of lane "
                f"{spec.lane.value or 'plain'}; nothing was frozen",
                hint="add --lane last",
                name=spec.name,
            )
    tasks = sorted((describe(_record(spec)) for spec in specs), key=lambda task: task.name)
    for one, other in pairwise(tasks):
        if one.name == other.name:
            raise UsageError(
                f"two tasks are called {one.name!r}; nothing was frozen", name=one.name
            )
    # A line a task, so that two grids can be compared with diff.
    lines = b",\n".join(map(msgspec.json.encode, tasks))
    data = b'{"schema":"' + SCHEMA.encode() + b'","tasks":[\n' + lines + b"\n]}\n"
    digest = sha256_hex(data)
    _publish(tree, digest, data)
    return FrozenGrid(digest, tasks)


def _record(spec: TaskSpec) -> Record:
    return parse(compose(spec, "0" * 12))


def _publish(tree: SpoolTree, digest: str, data: bytes) -> None:
    from fleetcraft.locks import put_if_absent  # a worker, which only reads grids, starts without

    path = tree.paths.grid(digest)
    try:
        with contextlib.suppress(FileExistsError):
            tree.fs.make_folder(tree.paths.grids)
        put_if_absent(tree.fs, path, data)
    except OSError as error:
        raise unreadable(path, error) from error
    read_grid(tree, digest)


def read_grid(tree: SpoolTree, digest: str) -> FrozenGrid:
    """A grid, after its bytes were compared with its digest.

    Raises:
        SpoolError: The spool does not have it, or somebody else could have written it.
        DataError: It is not what was frozen.
    """
    path = tree.paths.grid(digest)
    try:
        data = tree.read_bytes(path)
    except FileNotFoundError:
        raise SpoolError(
            f"this spool has no frozen grid {digest}",
            hint="fleetcraft enqueue --freeze-grid --lane last --from TASKS.jsonl freezes one",
            digest=digest,
        ) from None
    except OSError as error:
        raise unreadable(path, error) from error
    found = sha256_hex(data)
    if found != digest:
        raise DataError(
            f"the frozen grid {path} was changed: its sha256 is {found}", path=path, found=found
        )
    try:
        grid = msgspec.json.decode(data, type=_GridFile)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"{path} is no frozen grid: {error}", path=path) from error
    if grid.schema != SCHEMA:
        raise DataError(f"{path} is {grid.schema!r}, expected {SCHEMA!r}", path=path)
    return FrozenGrid(digest, grid.tasks)


def check_digest(text: str, where: str) -> str:
    """A digest as it was given.

    Raises:
        ConfigError: It is no sha256 in hex.
    """
    if not _DIGEST.fullmatch(text):
        raise ConfigError(
            f"{where} is {text!r}, expected the sha256 of a frozen grid (64 hex digits)",
            hint="fleetcraft enqueue --freeze-grid --lane last --from TASKS.jsonl prints one",
            key=where,
        )
    return text


def bound_digest(tree: SpoolTree) -> str:
    """The digest that binds lane ``last`` of this spool; empty when it is open to any task.

    Raises:
        DataError: The binding cannot be read as one.
        UnsafeSpoolError: Somebody else could have written it.
        OSError: It cannot be seen.
    """
    path = tree.paths.last_grid
    try:
        text = tree.read_bytes(path).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""
    if not _DIGEST.fullmatch(text):
        raise DataError(f"{path} does not hold the sha256 of a grid, so it admits nothing")
    return text


def bind(tree: SpoolTree, digest: str, *, instead_of: str = "") -> bool:
    """Binds lane ``last`` to a grid that the spool has.

    Args:
        tree: The spool.
        digest: The grid.
        instead_of: The digest that binds it now, to be replaced; empty when it must be open.

    Returns:
        False when it was bound to this very grid already.

    Raises:
        SpoolError: There is no such grid, or the lane is bound to another one.
        DataError: The grid, or the present binding, cannot be verified.
    """
    from fleetcraft.locks import put_if_absent

    read_grid(tree, digest)
    path, data = tree.paths.last_grid, f"{digest}\n".encode()
    try:
        bound = bound_digest(tree)
        if bound == digest:
            return False
        if instead_of and bound == instead_of:
            temporary = tree.paths.temporary(f"grid-{new_record_id()}")
            tree.fs.create(temporary, data, durable=True)
            tree.fs.replace(temporary, path)
            tree.fs.sync_folder(tree.paths.root)
        elif not put_if_absent(tree.fs, path, data):
            raise _bound_otherwise(bound_digest(tree), digest)
    except OSError as error:
        raise unreadable(path, error) from error
    return True


def _bound_otherwise(bound: str, wanted: str) -> SpoolError:
    return SpoolError(
        f"lane last of this spool is bound to the frozen grid {bound}, and {wanted} was asked for; "
        "nothing was changed",
        hint=f"fleetcraft grid bind {wanted} --instead-of {bound}",
        bound=bound,
        wanted=wanted,
    )


# -- the two doors


def law_of(tree: SpoolTree, configured: str = "") -> str:
    """The digest that governs lane ``last``: the spool's binding, or the project's setting.

    Args:
        tree: The spool.
        configured: The project's ``pack.last_grid``; empty when it has none.

    Raises:
        SpoolError: The two differ, or the binding cannot be used.
        DataError: The binding is none.
    """
    try:
        bound = bound_digest(tree)
    except OSError as error:
        raise unreadable(tree.paths.last_grid, error) from error
    if configured and bound and configured != bound:
        raise SpoolError(
            f"{SETTING} is {configured}, but lane last of {tree.paths.root} is bound to {bound}",
            hint=f"fleetcraft grid bind {configured} --instead-of {bound}, or correct {SETTING}",
            setting=SETTING,
            found=bound,
            expected=configured,
        )
    return bound or configured


def refuse_undeclared(tree: SpoolTree, specs: Iterable[TaskSpec], *, configured: str = "") -> None:
    """Refuses tasks of lane ``last`` that the grid which governs it does not declare.

    Costs nothing for tasks of other lanes, and one look at the spool where the lane is open.

    Raises:
        SpoolError: A task is not declared; the message names the field that differs.
        DataError: The grid cannot be verified.
    """
    last = [spec for spec in specs if spec.lane is Lane.LAST]
    digest = law_of(tree, configured) if last else ""
    if not digest:
        return
    grid = read_grid(tree, digest)
    refused = [(spec, *grid.objection(_record(check_spec(spec)))) for spec in last]
    refused = [(spec, field, why) for spec, field, why in refused if why]
    if not refused:
        return
    spec, field, why = refused[0]
    more = f" ({len(refused) - 1} more are refused)" if len(refused) > 1 else ""
    raise SpoolError(
        f"cannot enqueue {spec.name!r} in lane last: {why}{more}; nothing was enqueued",
        hint="enqueue exactly what was declared, choose another lane, or freeze a new grid and "
        "bind it",
        name=spec.name,
        field=field,
        setting=SETTING,
        digest=digest,
        refused=len(refused),
    )


class LastLane:
    """What a worker asks before it claims from lane ``last``.

    The binding is read each time, since it may be made, or made anew, while the worker lives; a
    grid is read once, since it cannot change.

    Args:
        tree: The spool.
    """

    def __init__(self, tree: SpoolTree) -> None:
        self._tree = tree
        self._grid: FrozenGrid | None = None
        self._kept_out: dict[str, str] = {}
        self._look_at = 0.0

    def objection(self, record: Record) -> str:
        """Why a task may not be run from there; empty when it may.

        Raises:
            OSError: The spool cannot be looked at now.
        """
        grid, law = self._law()
        if grid is None:
            why = f"what may run from lane last is not known: {law}" if law else ""
        else:
            problem = grid.objection(record)[1]
            why = f"it is in lane last, but {problem}" if problem else ""
        if why:
            self._kept_out[record.spec.name] = law
        return why

    def released(self) -> list[str]:
        """Tasks that were objected to by another law than today's; looks once a second at most.

        Raises:
            OSError: The spool cannot be looked at now.
        """
        now = time.monotonic()
        if not self._kept_out or now < self._look_at:
            return []
        self._look_at = now + _LOOK_EVERY_S
        law = self._law()[1]
        names = [name for name, kept_by in self._kept_out.items() if kept_by != law]
        for name in names:
            del self._kept_out[name]
        return names

    def _law(self) -> tuple[FrozenGrid | None, str]:
        """The grid that binds the lane, if any, and its digest; or why that is not known."""
        try:
            digest = bound_digest(self._tree)
            if not digest:
                return None, ""
            if self._grid is None or self._grid.digest != digest:
                self._grid = read_grid(self._tree, digest)
        except FleetError as error:
            return None, error.message
        return self._grid, digest
