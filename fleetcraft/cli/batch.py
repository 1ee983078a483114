"""The batch part of ``fleetcraft enqueue``: where rows come from, progress, and the dry run.

Reading rows is `spool.sweep`'s, publishing them `spool.enqueue`'s. Invariant: an input is read to
its end before the first task is published.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from fleetcraft.cli.family import hold_to_the_batch_table
from fleetcraft.cli.grid import configured_grid, freeze_and_say, hold_to_the_grid
from fleetcraft.cli.output import note, print_json, print_text
from fleetcraft.cli.session import Session
from fleetcraft.errors import DataError, NameTakenError, UsageError
from fleetcraft.spool.dependencies import refuse_cycles
from fleetcraft.spool.directives import TaskSpec, check_spec
from fleetcraft.spool.enqueue import BatchReport, enqueue_batch
from fleetcraft.spool.grid import refuse_undeclared
from fleetcraft.spool.syntax import refuse_unfinished_commands
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.view.text import one_line, plural

_SHOWN = 10
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
_BOM = b"\xef\xbb\xbf"


def enqueue_many(
    session: Session, given: dict[str, Any], base: TaskSpec, command: str | None
) -> None:
    """Publishes the tasks of a file or of stdin.

    Raises:
        UsageError: The input, a template or a row is wrong; nothing was enqueued.
        BatchRefusedError: A family has no frozen row, and the project requires one.
        SpoolError: The spool refuses.
    """
    specs = list(_specs(given, base, command))
    if not specs:
        raise UsageError("the input holds no task; nothing was enqueued")
    if given["freeze_grid"]:
        freeze_and_say(session, specs)
        return
    if given["dry_run"]:
        say_what_would_be(session, specs, if_absent=given["if_absent"])
        return
    hold_to_the_batch_table(session, specs)
    tree = session.tree()
    hold_to_the_grid(session, tree, specs)
    if any(spec.after for spec in specs):
        refuse_cycles(tree, [check_spec(spec) for spec in specs])
    with _Progress(len(specs)) as progress:
        report = enqueue_batch(tree, specs, if_absent=given["if_absent"], progress=progress.show)
    _say_what_was(session, tree, specs, report)


def _specs(given: dict[str, Any], base: TaskSpec, command: str | None) -> Iterator[TaskSpec]:
    from fleetcraft.spool import sweep

    source, form = _source_and_format(given)
    name: str | None = given["name"]
    data = _open_input(source)
    if form == "jsonl":
        return sweep.from_jsonl(_without_bom(data), name=name, command=command, base=base)
    if name is None:
        raise UsageError(
            "no name template was given; nothing was enqueued",
            hint="-n 't-{n:06d}' numbers the rows, -n 'gen-{seed:05d}' takes a column",
        )
    if form == "lines":
        if command is not None:
            raise UsageError("a command was given, but the commands come one a line")
        return sweep.from_lines(_text(data, newline=None), name=name, base=base)
    if command is None:
        hint = "fleetcraft enqueue --from sweep.csv -n 'gen-{seed}' 'python gen.py --seed {seed}'"
        raise UsageError("a table needs a command template; nothing was enqueued", hint=hint)
    return sweep.from_csv(_text(data, newline=""), name=name, command=command, base=base)


def _source_and_format(given: dict[str, Any]) -> tuple[str, str]:
    if given["stdin_"]:
        if given["from_"] not in (None, "-"):
            raise UsageError("--stdin and --from name two inputs: give one")
        return "-", given["format_"] or "lines"
    source: str = given["from_"]
    form = given["format_"] or next(
        (form for suffix, form in _FORMATS.items() if source.lower().endswith(suffix)), None
    )
    if form is None:
        raise UsageError(
            f"cannot tell what {source!r} holds", hint="add --format jsonl, csv or lines"
        )
    return source, form


def _open_input(source: str) -> BinaryIO:
    try:
        if source == "-":
            return io.BytesIO(sys.stdin.buffer.read())
        with open(source, "rb") as file:
            return io.BytesIO(file.read())
    except OSError as error:
        message = f"cannot read {source}: {error.strerror}; nothing was enqueued"
        raise UsageError(message, path=source) from error


def _text(data: BinaryIO, *, newline: str | None) -> Iterable[str]:
    # Spreadsheets write a byte order mark; bytes that are no UTF-8 go through unchanged.
    content = data.read().removeprefix(_BOM)
    return io.TextIOWrapper(io.BytesIO(content), "utf-8", "surrogateescape", newline)


def _without_bom(data: BinaryIO) -> Iterable[bytes]:
    return io.BytesIO(data.read().removeprefix(_BOM))


class _Progress:
    """A line on stderr that counts, where somebody watches."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._shown = False
        self._watched = sys.stderr.isatty()

    def __enter__(self) -> _Progress:
        return self

    def show(self, count: int) -> None:
        if self._watched:
            self._shown = True
            sys.stderr.write(f"\rwritten {count} of {self._total} tasks")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\n")


def _say_what_was(
    session: Session, tree: SpoolTree, specs: list[TaskSpec], report: BatchReport
) -> None:
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.enqueue_batch/1",
                "enqueued": report.enqueued,
                "completed": report.completed,
                "already_there": report.already_there,
                **_names(specs),
                "spool": tree.paths.root,
            }
        )
        return
    print_text(f"enqueued: {plural(report.enqueued, 'task')} ({_first_names(specs)})")
    if report.completed:
        print_text(f"completed: {plural(report.completed, 'task')} of an enqueue cut short earlier")
    if report.already_there:
        print_text(f"already there: {plural(report.already_there, 'task')}")


def _names(specs: list[TaskSpec]) -> dict[str, Any]:
    return {
        "names": [spec.name for spec in specs[:_SHOWN]],
        "names_left_out": max(0, len(specs) - _SHOWN),
    }


def _first_names(specs: list[TaskSpec]) -> str:
    names = [spec.name for spec in specs[:3]]
    return ", ".join(names) + (", ..." if len(specs) > len(names) else "")


def say_what_would_be(session: Session, specs: list[TaskSpec], *, if_absent: bool) -> None:
    """Checks tasks as an enqueue would and says what it would do; nothing is written.

    Raises:
        UsageError: A task is wrong, or two have one name.
        NameTakenError: A name is taken.
        SpoolError: Lane ``last`` is bound to a grid that does not declare a task.
        BatchRefusedError: A family has no frozen row, and the project requires one.
    """
    hold_to_the_batch_table(session, specs)
    tree = session.tree()
    _refuse_duplicates(specs)
    refuse_unfinished_commands(check_spec(spec) for spec in specs)
    refuse_undeclared(tree, specs, configured=configured_grid(session))
    refuse_cycles(tree, specs)
    present = set(tree.fs.listdir(tree.paths.names)) if len(specs) > 1 else None
    fresh = [spec for spec in specs if not _is_there(tree, spec, present, if_absent=if_absent)]
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.enqueue_dry_run/1",
                "would_enqueue": len(fresh),
                "already_there": len(specs) - len(fresh),
                **_names(fresh),
                "spool": tree.paths.root,
            }
        )
        return
    print_text(f"would enqueue {plural(len(fresh), 'task')} in {tree.paths.root}:")
    for spec in fresh[:_SHOWN]:
        waits = f"  (after {' '.join(spec.after)})" if spec.after else ""
        print_text(f"  {spec.name}: {one_line(spec.command, 120)}{waits}")
    if len(fresh) > _SHOWN:
        print_text(f"  ... and {len(fresh) - _SHOWN} more")
    if len(specs) > len(fresh):
        print_text(f"already there: {plural(len(specs) - len(fresh), 'task')}")
    note("nothing was enqueued (--dry-run)")


def _refuse_duplicates(specs: list[TaskSpec]) -> None:
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise UsageError(f"two tasks of this batch are called {spec.name!r}", name=spec.name)
        seen.add(spec.name)


def _is_there(
    tree: SpoolTree, spec: TaskSpec, present: set[str] | None, *, if_absent: bool
) -> bool:
    path = tree.paths.name(spec.name)
    if not (spec.name in present if present is not None else tree.fs.exists(path)):
        return False
    same = _same_task(tree, spec)
    if same and if_absent:
        return True
    location = tree.locate(spec.name)
    raise NameTakenError(spec.name, location.state.value if location else "", same=same)


def _same_task(tree: SpoolTree, spec: TaskSpec) -> bool:
    from fleetcraft.spool.record import compose, parse

    location = tree.locate(spec.name)
    if location is None:
        return False
    try:
        there = tree.read(location.path)
    except (FileNotFoundError, DataError):
        return False
    return parse(compose(spec, "0" * 12)).identity == there.identity
