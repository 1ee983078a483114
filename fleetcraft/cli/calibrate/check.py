"""``fleetcraft calibrate check``: whether table, device, stack, masks and noise are right here.

Everything that needs torch or a user's file is asked of a child. Invariant: what could not be
checked is said, and is never counted as good.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fleetcraft.cli.calibrate.places import check_device, is_file, table_path
from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.batch_table import Table
    from fleetcraft.calibration.records import Check
    from fleetcraft.cli.calibrate.answers import Answers
    from fleetcraft.view.calibration_check import Line

PARTS = ("table", "sdpa", "noise", "family")
_EXAMPLES = """
fleetcraft calibrate check
fleetcraft calibrate check demo
fleetcraft calibrate check my_family.py:cycle --device cuda
fleetcraft calibrate check --only sdpa --only noise --json
"""
_EXITS = """
0 everything that was checked is as it must be
1 the answer to a check is no
2 there is no such file or family; 3 torch is not installed; 6 the device does not answer
7 the table was edited, or a check could not be run
"""


@click.command(cls=FleetCommand, name="check", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("families", metavar="[FAMILY|FILE.py:NAME]...", nargs=-1)
@click.option(
    "--only", type=click.Choice(PARTS), multiple=True, help="This part alone; can be repeated."
)
@click.option("--device", default="auto", metavar="auto|cpu|cuda[:N]", help="Where (auto).")
@click.option("--batch", type=click.IntRange(2, 4096), default=2, help="Of noise and family (2).")
@pass_session
def check_command(
    session: Session, *, families: tuple[str, ...], only: tuple[str, ...], device: str, batch: int
) -> int:
    """Check table, device, stack, masks and noise of this machine.

    table: the frozen table is what its hash says, and each row (or those of the families named) was
    frozen for this device and stack; identity too where the family itself is at hand. sdpa: with
    every attention backend that can run here, poisoned padding changes the output by exactly 0.
    noise: a sample draws in a batch, bit for bit, what it draws alone. family: the checks that
    demo or FILE.py:NAME declares. Without a table the others still run.
    """
    from fleetcraft.cli.calibrate.answers import Answers
    from fleetcraft.cli.calibrate.asking import ask
    from fleetcraft.view.calibration_check import check_shape, exit_code, render_check

    check_device(device)
    parts = set(only or PARTS)
    files = [word for word in families if is_file(word) or _is_built_in(word)]
    path = table_path(session)
    found, problem = _read(path) if "table" in parts else (None, None)
    asked = _torch_parts(parts, has_files=bool(files), has_rows=found is not None)
    answers = Answers()
    if asked or files:
        answers = ask(
            families=files or _known_families(families),
            parts=asked,
            device=device,
            python=session.config.text("batch.python"),
            batch=batch,
        )
    for family in answers.families:
        if family.error and family.is_usage:
            raise UsageError(family.error, hint=family.hint, family=family.name)
    lines: list[Line] = []
    if problem is not None:
        lines.append(problem)
    elif "table" in parts:
        lines += _table_lines(path, found, families, answers)
    lines += _torch_lines(parts, answers, files)
    if session.json:
        print_json(check_shape(lines, answers.device, answers.environment, answers.not_usable))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(
            render_check(
                lines, answers.environment, answers.not_usable, paint=paint, width=columns()
            )
        )
    return exit_code(lines)


def _is_built_in(word: str) -> bool:
    from fleetcraft.calibration.family import BUILT_IN

    return word in BUILT_IN


def _known_families(named: tuple[str, ...]) -> list[str]:
    """Families whose identity can be learnt without being told a file."""
    from fleetcraft.calibration.family import BUILT_IN

    return [] if named else list(BUILT_IN)


def _torch_parts(parts: set[str], *, has_files: bool, has_rows: bool) -> list[str]:
    """What the child is asked: nothing that loads torch unless a check needs it."""
    asked: list[str] = sorted(parts & {"sdpa", "noise"})
    if has_rows:
        asked += ["stack", "identity"]
    if "family" in parts and has_files:
        asked.append("family")
    return asked


# ----------------------------------------------------------------------------------------- table


def _read(path: str) -> tuple[Table | None, Line | None]:
    """The table, and the answer where it can no longer be trusted."""
    from fleetcraft.cli.calibrate.places import read_table_if_any
    from fleetcraft.errors import DataError
    from fleetcraft.view.calibration_check import Answer, Line

    try:
        return read_table_if_any(path), None
    except DataError as error:
        field = str(error.facts.get("field", ""))
        return None, Line(part="table", subject=path, answer=Answer.NO, field=field,
                          detail=error.message, is_bad_data=True)  # fmt: skip


def _table_lines(
    path: str, found: Table | None, families: tuple[str, ...], answers: Answers
) -> list[Line]:
    from fleetcraft.view.calibration_check import Answer, Line

    if found is None:
        # A bare key can only mean a row; a family at hand may be checked before it has one.
        keys = [word for word in families if not is_file(word) and not _is_built_in(word)]
        none = Line(part="table", subject=path, answer=Answer.NONE,
                    detail="there is no frozen table: no task gets a batch from it")  # fmt: skip
        return [none, *(_row_line(None, key, answers) for key in keys)]
    whole = Line(part="table", subject=path, answer=Answer.OK, detail=f"unedited, {found.hash}")
    broken = {family.name for family in answers.families if family.error}
    keys = [_key(word, answers) for word in families if word not in broken]
    keys = keys if families else list(found.families)
    return [whole, *(_row_line(found, key, answers) for key in keys)]


def _key(word: str, answers: Answers) -> str:
    """The key of a family as typed, from what the child says of it."""
    known = {family.name: family.key for family in answers.families if family.key}
    return known.get(word) or word


def _row_line(found: Table | None, key: str, answers: Answers) -> Line:
    """Whether one row may be used here: the first field that differs is named."""
    from fleetcraft.batch_table import require
    from fleetcraft.batch_table.judging import no_row
    from fleetcraft.calibration.frozen import found_in
    from fleetcraft.errors import BatchRefusedError
    from fleetcraft.view.calibration_check import Answer, Line

    place = answers.environment
    if found is not None and place is None:
        return Line(part="row", subject=key, answer=Answer.NOT_RUN,
                    detail=f"device and stack are not known: {answers.no_stack}")  # fmt: skip
    identity = next((f.identity for f in answers.families if f.key == key and f.identity), None)
    try:
        if found is None or place is None:
            raise no_row(key, None)
        here = found_in(place, identity=identity)
        row = require(found, key, here, left_out=() if identity else ("identity",))
    except BatchRefusedError as error:
        return Line(part="row", subject=key, answer=Answer.NO,
                    field=str(error.facts.get("field", "")), detail=error.message)  # fmt: skip
    unseen = "" if identity else "; identity not compared: name its FILE.py:NAME"
    detail = f"batch {row.batch}, timed {row.timed_batch}, frozen for this device and stack{unseen}"
    return Line(part="row", subject=key, answer=Answer.OK, detail=detail)


# ----------------------------------------------------------------------------------------- torch


def _torch_lines(parts: set[str], answers: Answers, files: list[str]) -> list[Line]:
    from fleetcraft.view.calibration_check import Answer, Line

    lines = []
    if "sdpa" in parts:
        lines += [_line("sdpa", name, check) for name, check in answers.sdpa.items()]
    if "noise" in parts and answers.noise is not None:
        lines.append(_line("noise", "one generator a sample", answers.noise))
    for family in answers.families:
        if family.name not in files:
            continue
        if family.error:  # whatever part was asked for: nothing of it could be compared
            lines.append(Line(part="family", subject=family.name, answer=Answer.NOT_RUN,
                              detail=family.error))  # fmt: skip
        lines += [_line("family", f"{family.key} {check.name}", check) for check in family.checks]
    return lines


def _line(part: str, subject: str, check: Check) -> Line:
    from fleetcraft.view.calibration_check import Answer, Line

    answer = {True: Answer.OK, False: Answer.NO, None: Answer.NOT_RUN}[check.ok]
    return Line(
        part=part, subject=subject, answer=answer, detail=check.detail,
        failure=check.failure.value if check.failure else "", measured=check.measured,
    )  # fmt: skip
