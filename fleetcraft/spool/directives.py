"""What a task asks for, and the ``#FLEET`` directives that say it in a record.

Directives are to this toolkit what ``#SBATCH`` is to Slurm. The set is closed: an unknown one is
an error at enqueue and a failed launch at claim, never ignored. No file is touched here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import msgspec

from fleetcraft.errors import DataError, FleetError, UsageError
from fleetcraft.layout import Lane
from fleetcraft.spool.names import check_dependency, check_name
from fleetcraft.units import MAX_DURATION_S, format_clock, parse_duration_s

MAX_RETRIES = 1000


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A task as its user describes it.

    Attributes:
        name: Unique in its spool for ever.
        command: Shell text that bash runs in the project directory.
        project_dir: Where it runs, absolute; ``outputs`` and ``after_files`` are relative to it.
        family: Tasks of one workload shape, which share a row of the batch table.
        timed: Its timing will be reported, so it runs alone on its node.
        time_s: Walltime it needs; not claimed when less remains.
        timeout_s: It is stopped after this.
        retries: Failures that are tried again.
        after: Names or globs of tasks that must be done first.
        after_files: Files that must exist first.
        outputs: Files that it must leave behind, newer than its start and not empty.
        lane: ``first`` and ``last`` are claimed before and after the plain lane.
        slot: Kind of slot it needs, such as ``gpu``; empty runs on any.
        env_file: File of ``NAME=value`` lines added to its environment.
        login: Run by a login shell (about twice the start-up cost).
    """

    name: str
    command: str
    project_dir: str = ""
    family: str = ""
    timed: bool = False
    time_s: int | None = None
    timeout_s: int | None = None
    retries: int = 0
    after: tuple[str, ...] = ()
    after_files: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    lane: Lane = Lane.PLAIN
    slot: str = ""
    env_file: str = ""
    login: bool = False


def _read_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise UsageError(f"expected true or false, found {text!r}")
    return text == "true"


def _read_retries(text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) > MAX_RETRIES:
        raise UsageError(f"expected a number of retries from 0 to {MAX_RETRIES}, found {text!r}")
    return int(text)


def _read_lane(text: str) -> Lane:
    if text not in ("first", "last"):
        raise UsageError(f"expected the lane first or last, found {text!r}")
    return Lane(text)


def _read_word(text: str) -> str:
    if not text or text.split() != [text]:
        raise UsageError(f"expected one word without spaces, found {text!r}")
    return text


def _read_paths(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"cannot split {text!r} into paths: {error}") from error


def _read_dependencies(text: str) -> tuple[str, ...]:
    return tuple(check_dependency(word) for word in text.split())


def _read_text(text: str) -> str:
    return text


_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "name": ("name", check_name),
    "family": ("family", _read_word),
    "timed": ("timed", _read_bool),
    "time": ("time_s", parse_duration_s),
    "timeout": ("timeout_s", parse_duration_s),
    "retries": ("retries", _read_retries),
    "after": ("after", _read_dependencies),
    "after-file": ("after_files", _read_paths),
    "outputs": ("outputs", _read_paths),
    "lane": ("lane", _read_lane),
    "slot": ("slot", _read_word),
    "env-file": ("env_file", _read_text),
    "login": ("login", _read_bool),
}
DIRECTIVES = ("name", "id", *(key for key in _READERS if key != "name"))
"""Every directive there is, in the order in which records write them."""


def parse_directives(lines: list[str], *, project_dir: str, command: str) -> tuple[str, TaskSpec]:
    """Reads header lines such as ``timed: true``.

    Args:
        lines: The lines without their ``#FLEET`` mark.
        project_dir: What the body says of where it runs.
        command: What the body runs.

    Returns:
        The record id, and the task.

    Raises:
        DataError: A directive is unknown, repeated, missing or has a bad value.
    """
    if "\0" in project_dir or any("\0" in line for line in lines):
        raise DataError("the header holds a NUL byte, which no path or word can")
    record_id = ""
    fields: dict[str, Any] = {}
    for line in lines:
        key, colon, value = line.partition(":")
        value = value.strip()
        if not colon:
            raise DataError(f"bad directive {line!r}: expected 'key: value'")
        if key == "id":
            if record_id:
                raise DataError("directive 'id' stands twice")
            record_id = value
            continue
        reader = _READERS.get(key)
        if reader is None:
            raise _unknown_directive(key)
        field, read = reader
        if field in fields:
            raise DataError(f"directive {key!r} stands twice")
        try:
            fields[field] = read(value)
        except FleetError as error:
            raise DataError(f"directive {key!r}: {error.message}", hint=error.hint) from error
    if not record_id or "name" not in fields:
        raise DataError("not a task record: it has no #FLEET name or id")
    return record_id, TaskSpec(command=command, project_dir=project_dir, **fields)


def _unknown_directive(key: str) -> DataError:
    import difflib

    close = difflib.get_close_matches(key, DIRECTIVES, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(DIRECTIVES)}"
    return DataError(f"unknown directive {key!r}", hint=hint, directive=key)


def write_directives(spec: TaskSpec, record_id: str) -> list[str]:
    """Writes the header lines of a record, without their ``#FLEET`` mark."""
    lines = [f"name: {spec.name}", f"id: {record_id}"]
    if spec.family:
        lines.append(f"family: {spec.family}")
    if spec.timed:
        lines.append("timed: true")
    if spec.time_s is not None:
        lines.append(f"time: {format_clock(spec.time_s)}")
    if spec.timeout_s is not None:
        lines.append(f"timeout: {format_clock(spec.timeout_s)}")
    if spec.retries:
        lines.append(f"retries: {spec.retries}")
    if spec.after:
        lines.append(f"after: {' '.join(spec.after)}")
    if spec.after_files:
        lines.append(f"after-file: {shlex.join(spec.after_files)}")
    if spec.outputs:
        lines.append(f"outputs: {shlex.join(spec.outputs)}")
    if spec.lane:
        lines.append(f"lane: {spec.lane.value}")
    if spec.slot:
        lines.append(f"slot: {spec.slot}")
    if spec.env_file:
        lines.append(f"env-file: {spec.env_file}")
    if spec.login:
        lines.append("login: true")
    return lines


def check_spec(spec: TaskSpec) -> TaskSpec:
    """Returns the task when a record can carry it.

    Raises:
        UsageError: A value that no record could hold or that would break one.
    """
    check_name(spec.name)
    for dependency in spec.after:
        if check_dependency(dependency) == spec.name:
            raise UsageError(f"task {spec.name!r} cannot wait for itself", name=spec.name)
    if not 0 <= spec.retries <= MAX_RETRIES:
        raise UsageError(f"retries must be 0 to {MAX_RETRIES}, found {spec.retries}")
    for label, value in (("family", spec.family), ("slot", spec.slot)):
        if value:
            _labelled(label, value)
    for label, seconds in (("time", spec.time_s), ("timeout", spec.timeout_s)):
        if seconds is not None and not 1 <= seconds <= MAX_DURATION_S:
            raise UsageError(f"{label} of {spec.name!r} must be 1 s to 366 days, found {seconds} s")
    _check_texts(spec)
    _check_command(spec)
    return spec


def _check_texts(spec: TaskSpec) -> None:
    for label, values in (
        ("family", (spec.family,)),
        ("slot", (spec.slot,)),
        ("outputs", spec.outputs),
        ("after-file", spec.after_files),
        ("env-file", (spec.env_file,)),
        ("project directory", (spec.project_dir,)),
    ):
        for value in values:
            if "\n" in value or "\0" in value:
                raise UsageError(f"{label} of {spec.name!r} holds a newline or NUL: {value!r}")
            # Outputs are named in history lines, which are JSON; the rest may be any bytes.
            if not _encodes(value, "strict" if label == "outputs" else "surrogateescape"):
                raise UsageError(f"{label} of {spec.name!r} is no UTF-8: {value!r}")
    if spec.env_file != spec.env_file.strip():
        raise UsageError(f"env-file of {spec.name!r} has spaces around it: {spec.env_file!r}")


def _encodes(text: str, errors: str) -> bool:
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError:
        return False
    return True


def _labelled(label: str, value: str) -> None:
    try:
        _read_word(value)
    except UsageError as error:
        raise UsageError(f"{label}: {error.message}") from error


def _check_command(spec: TaskSpec) -> None:
    command = spec.command
    if not command.strip():
        raise UsageError(f"the command of {spec.name!r} is empty; nothing was enqueued")
    if "\0" in command:
        raise UsageError(f"the command of {spec.name!r} holds a NUL byte; nothing was enqueued")
    if not _encodes(command, "surrogateescape"):
        raise UsageError(f"the command of {spec.name!r} is no UTF-8; nothing was enqueued")
    if any(line.startswith("#FLEET-RUN") for line in command.split("\n")):
        raise UsageError(
            f"the command of {spec.name!r} has a line that starts with #FLEET-RUN, which is how "
            "records mark their history; nothing was enqueued",
            hint="indent that line or put it into a script file",
        )
    if (len(command) - len(command.rstrip("\\"))) % 2:
        raise UsageError(
            f"the command of {spec.name!r} ends in a backslash and would swallow the line after "
            "it; nothing was enqueued",
        )
