"""Many tasks from one input: JSON Lines, a CSV table, or commands one a line.

Text in, `TaskSpec` out; no file of the spool is touched. A template's fields come from the row:
in commands their values are shell-quoted, elsewhere they stand raw. Invariant: a bad row names
its line number, and no row is skipped silently.
"""

from __future__ import annotations

import csv
import re
import shlex
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fleetcraft.errors import UsageError
from fleetcraft.layout import Lane
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.units import parse_duration_s

_INTEGER = re.compile(r"[+-]?\d+")
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?")


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """One JSON object: a name, a command, and the directives by their record names."""

    name: str | None = None
    command: str | None = None
    family: str | None = None
    timed: bool | None = None
    time: str | None = None
    timeout: str | None = None
    retries: int | None = None
    after: list[str] | str | None = None
    after_file: list[str] | str | None = None
    outputs: list[str] | str | None = None
    lane: str | None = None
    slot: str | None = None
    env_file: str | None = None
    login: bool | None = None


class _Template(string.Formatter):
    """``str.format`` over one row, with quoting for shell text."""

    def __init__(self, *, quote: bool) -> None:
        self._quote = quote

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        # Plain look-up only: attribute access in a template would reach into Python objects.
        if field_name not in kwargs:
            known = ", ".join(sorted(kwargs))
            raise UsageError(
                f"the template asks for {{{field_name}}}, which no column has",
                hint=f"columns: {known}; write {{{{ and }}}} for literal braces",
                field=field_name,
            )
        return kwargs[field_name], field_name

    def format_field(self, value: Any, format_spec: str) -> Any:
        text = format(_number(value), format_spec) if format_spec else str(value)
        return shlex.quote(text) if self._quote else text


def _number(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if _INTEGER.fullmatch(value):
        return int(value)
    return float(value) if _FLOAT.fullmatch(value) else value


def expand(template: str, row: Mapping[str, Any], *, quote: bool) -> str:
    """Fills a template from a row.

    Args:
        template: Text with ``{column}`` or ``{column:format}``; ``{{`` stands for a brace.
        row: The values; text that looks like a number is one for a format code.
        quote: Whether values are quoted for the shell.

    Raises:
        UsageError: An unknown column, a format that does not fit, or unbalanced braces.
    """
    try:
        return _Template(quote=quote).vformat(template, (), row)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"cannot fill the template {template!r}: {error}",
            hint="write {{ and }} for literal braces",
            template=template,
        ) from error


def from_csv(
    lines: Iterable[str], *, name: str, command: str, base: TaskSpec
) -> Iterator[TaskSpec]:
    """One task a row; the first line names the columns, and ``{n}`` is the row's number from 1.

    Args:
        lines: The table's text.
        name: Template of the names.
        command: Template of the commands.
        base: Everything else; its dependencies, files, outputs and family are templates too.

    Raises:
        UsageError: No header, a row of another length, or a template that does not fit.
    """
    reader = csv.DictReader(lines, strict=True)
    try:
        fields = reader.fieldnames
        if not fields or any(not field.strip() for field in fields):
            raise UsageError("the table has no header line, or a column without a name")
        for number, row in enumerate(reader, 1):
            if None in row or None in row.values():
                raise UsageError(
                    f"line {reader.line_num} of the table has another number of values than the "
                    f"header ({len(fields)}); nothing was enqueued"
                )
            yield _fill(base, name, command, {"n": number, **row})
    except csv.Error as error:
        raise UsageError(f"line {reader.line_num} of the table: {error}") from error


def from_lines(lines: Iterable[str], *, name: str, base: TaskSpec) -> Iterator[TaskSpec]:
    """One task a line that is not empty; ``{n}`` in the name counts them from 1."""
    number = 0
    for line in lines:
        command = line.rstrip("\n").rstrip("\r")
        if command.strip():
            number += 1
            filled = _fill(base, name, "", {"n": number})
            yield msgspec.structs.replace(filled, command=command)


def from_jsonl(
    lines: Iterable[bytes], *, name: str | None, command: str | None, base: TaskSpec
) -> Iterator[TaskSpec]:
    """One task an object with ``name``, ``command`` and directives by their record names.

    Args:
        lines: JSON Lines; empty ones are passed over.
        name: Template for objects, which may then hold any other fields; None reads ``name``.
        command: Template of the commands likewise.
        base: Directives that an object does not set.

    Raises:
        UsageError: A line is no such object; it is named.
    """
    number = 0
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        number += 1
        try:
            if name is None and command is None:
                yield _from_row(msgspec.json.decode(line, type=_Row), base)
            else:
                values = msgspec.json.decode(line, type=dict[str, Any])
                yield _from_template(name, command, {"n": number, **values}, base)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UsageError(
                f"line {line_number} is no task: {error}; nothing was enqueued",
                hint='write {"name": "a", "command": "echo hi", "after": ["b"], "timeout": '
                '"00:10:00"}; the keys are those of the #FLEET directives',
                line=line_number,
            ) from error
        except UsageError as error:
            raise UsageError(
                f"line {line_number}: {error.message}; nothing was enqueued", hint=error.hint
            ) from error


def _from_template(
    name: str | None, command: str | None, values: dict[str, Any], base: TaskSpec
) -> TaskSpec:
    for key, template in (("name", name), ("command", command)):
        if template is None and not isinstance(values.get(key), str):
            raise UsageError(f"the object has no text {key!r}")
    filled = _fill(base, name or "x", command or "", values)
    return msgspec.structs.replace(
        filled,
        name=filled.name if name is not None else values["name"],
        command=filled.command if command is not None else values["command"],
    )


def _from_row(row: _Row, base: TaskSpec) -> TaskSpec:
    if row.name is None or row.command is None:
        missing = "name" if row.name is None else "command"
        raise UsageError(f"the object has no {missing!r}")
    changes: dict[str, Any] = {"name": row.name, "command": row.command}
    for key in ("family", "timed", "retries", "slot", "env_file", "login"):
        value = getattr(row, key)
        if value is not None:
            changes[key] = value
    if row.time is not None:
        changes["time_s"] = parse_duration_s(row.time)
    if row.timeout is not None:
        changes["timeout_s"] = parse_duration_s(row.timeout)
    if row.lane is not None:
        changes["lane"] = read_lane(row.lane)
    for key, value in (
        ("after", row.after),
        ("after_files", row.after_file),
        ("outputs", row.outputs),
    ):
        if value is not None:
            changes[key] = (value,) if isinstance(value, str) else tuple(value)
    return msgspec.structs.replace(base, **changes)


def read_lane(text: str) -> Lane:
    """The lane that a user named; the plain one is the empty text.

    Raises:
        UsageError: There is no such lane.
    """
    if text not in ("", "first", "last"):
        raise UsageError(f"unknown lane {text!r}: expected first or last")
    return Lane(text)


def _fill(base: TaskSpec, name: str, command: str, row: Mapping[str, Any]) -> TaskSpec:
    def raw(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(expand(text, row, quote=False) for text in texts)

    return msgspec.structs.replace(
        base,
        name=expand(name, row, quote=False),
        command=expand(command, row, quote=True),
        after=raw(base.after),
        after_files=raw(base.after_files),
        outputs=raw(base.outputs),
        family=expand(base.family, row, quote=False),
    )
