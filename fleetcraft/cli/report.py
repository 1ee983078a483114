"""``fleetcraft report``: one HTML page about what a fleet did, to keep or to send.

Invariant: a page appears whole or not at all, and no file that is not such a page is replaced.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from fleetcraft.cli.output import PassingLine, note, print_bytes, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import ConfigError, FleetError, SpoolError, UsageError
from fleetcraft.units import format_bytes, parse_duration_s
from fleetcraft.view.text import one_line, printable

if TYPE_CHECKING:
    from fleetcraft.report.gather import Places
    from fleetcraft.report.records import Notice, Report
    from fleetcraft.report.scope import Scope

_NAME = "report.html"
_CACHES = "caches check"
_STDOUT = "-"
_BEGIN_S = datetime.min.replace(tzinfo=UTC).timestamp()
_EXAMPLES = """
fleetcraft report
fleetcraft report -o wan-sweep.html --title 'Wan sweep, July'
fleetcraft report --window 12h
fleetcraft report --since 2026-11-29T20:00:00Z --until 2026-11-30T08:00:00Z
fleetcraft report --job 81234 --job 81290
fleetcraft report --no-logs -o for-a-colleague.html
fleetcraft report --json
"""
_EXITS = """
0 written, also when a part could not be read: the page names it
1 there is nothing to report: no task, no telemetry, no run
2 the span is none, or FILE is something else than such a page; 3 nothing says where the tree is
5 the page cannot be written
"""


@click.command(cls=FleetCommand, name="report", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.option("-o", "--out", metavar="FILE", help="The page (report.html); - for stdout.")
@click.option("--since", metavar="TIME", help="Only what ended, or was sampled, after this.")
@click.option("--until", metavar="TIME", help="And up to this.")
@click.option("--window", metavar="DURATION", help="Only so long before --until, or before now.")
@click.option("--job", "jobs", multiple=True, metavar="ID", help="Only this job; may be repeated.")
@click.option("--doctor", is_flag=True, help="Add what doctor --quick finds on this machine.")
@click.option("--no-logs", is_flag=True, help="Quote no log; links and paths stay.")
@click.option("--title", default="", metavar="TEXT", help="Of the page.")
@pass_session
def report_command(
    session: Session,
    *,
    out: str | None,
    since: str | None,
    until: str | None,
    window: str | None,
    jobs: tuple[str, ...],
    doctor: bool,
    no_logs: bool,
    title: str,
) -> int:
    """Write one HTML page about what a fleet did.

    What ran, what failed and why, throughput and the time that is left, slowest and most retried
    tasks, GPUs beside the queue, energy, calibration, training runs and trajectory queues. The
    page is one file that loads nothing: it can be sent, printed, and read on a phone. It quotes
    the ends of logs, so look at it before you send it, or leave them out with --no-logs. Links
    into logs work where the scratch tree is. Times are UTC unless they name a zone.

    With --json the record behind the page is printed, and a page is written only where -o says.
    """
    from fleetcraft.report.gather import gather
    from fleetcraft.report.tasks import Limits

    scope = _scope(since, until, window, jobs)
    target = out or ("" if session.json else _NAME)
    final = ""
    if session.json and target == _STDOUT:
        raise UsageError("-o - and --json both want stdout", hint="fleetcraft report --json")
    if target and target != _STDOUT:
        final = _check_target(target)
    with _Progress() as progress:
        report = gather(
            _places(session),
            scope,
            title=title,
            limits=Limits(quote_logs=not no_logs),
            notices=_notices(session, doctor=doctor),
            progress=progress,
        )
    if _is_empty(report):
        raise FleetError(
            f"there is nothing to report in {report.root}: no task, no sample of a GPU, no run"
            + (" in this span" if since or until or window or jobs else "")
            + "; nothing was written",
            hint="fleetcraft status shows the spool; fleetcraft telemetry inspect the telemetry",
            root=report.root,
        )
    size_bytes = _write(report, target, final) if target else None
    if session.json:
        _print_record(report, target)
    elif target != _STDOUT:
        print_text(one_line(target))
        print_text(printable(report.sentence))
        note(_about(report, size_bytes or 0))
    return 0


def _print_record(report: Report, target: str) -> None:
    import msgspec

    print_json({**msgspec.to_builtins(report), "page": os.path.abspath(target) if target else None})


def _about(report: Report, size_bytes: int) -> str:
    words = f"{format_bytes(size_bytes)}, one file; open it in any browser"
    missing = len(report.unread) + report.unread_left_out
    if missing:
        words += f"; {missing} thing{'s' * (missing != 1)} could not be read, see its last section"
    return words


def _is_empty(report: Report) -> bool:
    told = (report.spools, report.machines, report.calibration, report.runs, report.queues)
    return not any(told) and not report.unread


# ------------------------------------------------------------------------------------- what of it


def _places(session: Session) -> Places:
    from fleetcraft.layout import Scratch
    from fleetcraft.report.gather import Places

    config = session.config
    scratch = Scratch(config.root)
    if not os.path.isdir(scratch.root):
        raise ConfigError(
            f"no scratch tree at {scratch.root}; nothing was read",
            hint="fleetcraft --root DIR init makes one",
            path=scratch.root,
        )
    return Places(
        root=scratch.root,
        outer=config.spool_dir("outer"),
        inner=config.spool_dir("gpu"),
        telemetry=config.telemetry_dir,
        table=config.text("batch.table") or scratch.batch_table,
    )


def _notices(session: Session, *, doctor: bool) -> tuple[Notice, ...]:
    """What the checks of this machine find; the doctor's are among them if they were asked for."""
    found = _of_doctor(session) if doctor else _of_caches(session)
    order = ("wrong", "unknown", "advice")
    return tuple(sorted(found, key=lambda one: order.index(one.level)))


def _of_doctor(session: Session) -> list[Notice]:
    from fleetcraft.doctor.examining import examine
    from fleetcraft.doctor.findings import Verdict
    from fleetcraft.report.records import Notice

    return [
        Notice(
            source="doctor",
            level=found.verdict.value,
            text=f"{found.section}, {found.name}: {found.found}"
            + (f"; expected {found.expected}" if found.expected else ""),
            hint=found.hint,
        )
        for found in examine(session.flags, quick=True).findings
        if found.verdict is not Verdict.OK
    ]


def _of_caches(session: Session) -> list[Notice]:
    from fleetcraft.caches.records import Severity
    from fleetcraft.fleet.launch.caches import look_at_caches
    from fleetcraft.report.records import Notice

    levels = {Severity.ERROR: "wrong", Severity.WARNING: "wrong", Severity.ADVICE: "advice"}
    try:
        view = look_at_caches(session.config, os.environ)
    except (FleetError, OSError) as error:
        why = error.message if isinstance(error, FleetError) else str(error)
        return [Notice(source=_CACHES, level="unknown", text=f"caches were not checked: {why}")]
    return [
        Notice(source=_CACHES, level=levels[one.severity], text=one.text, hint=one.hint)
        for one in view.conflicts
    ]


def _scope(
    since: str | None, until: str | None, window: str | None, jobs: tuple[str, ...]
) -> Scope:
    from fleetcraft.report.scope import Scope

    if since and window:
        raise UsageError("--since and --window exclude one another")
    until_s = None if until is None else _time("--until", until)
    since_s = None if since is None else _time("--since", since)
    if window is not None:
        ends_s = time.time() if until_s is None else until_s
        since_s = max(ends_s - parse_duration_s(window), _BEGIN_S)
    if since_s is not None and until_s is not None and since_s >= until_s:
        raise UsageError(
            f"no time lies between --since {since} and --until {until}; nothing was read",
            hint="--since is the earlier one",
        )
    for job in jobs:
        if not job.strip() or job != job.strip():
            raise UsageError(f"no job can have the id {job!r}", hint="--job 81234")
    return Scope(since_s=since_s, until_s=until_s, jobs=frozenset(jobs))


def _time(option: str, text: str) -> float:
    try:
        at = datetime.fromisoformat(text.strip())
        # In UTC, so that one is refused that is within the years 1 to 9999 in its zone alone.
        return (at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{option}: not a time: {text!r}; expected ISO 8601",
            hint=f"{option} 2026-11-30T02:00:00Z",
            text=text,
        ) from error


# ---------------------------------------------------------------------------------------- writing


def _check_target(target: str) -> str:
    """Refuses to replace what is no page of ours, and folders that are not there.

    Returns:
        The page's own path: a link is followed now, and not again when the page is written.

    Raises:
        UsageError: The page could not, or must not, be written there.
    """
    from fleetcraft.files import FileSystem
    from fleetcraft.view.report.page import GENERATOR

    folder = os.path.dirname(os.path.abspath(target))
    if not os.path.isdir(folder):
        raise UsageError(f"no folder {folder}; nothing was read", hint=f"mkdir -p {folder}")
    final = os.path.realpath(target)
    if not os.path.lexists(target):
        return final
    head = b""
    if os.path.isfile(final):
        with open(FileSystem().open_read(final), "rb") as file:
            head = file.read(4096)
    if f'name="generator" content="{GENERATOR}'.encode() not in head:
        raise UsageError(
            f"refusing to replace {target}: it is no page of fleetcraft report; nothing was read",
            hint="name another file with -o",
            path=target,
        )
    return final


def _write(report: Report, target: str, final: str) -> int:
    """Writes the page, for its user alone unless the one before was for others; returns its bytes.

    Raises:
        SpoolError: It cannot be written; what was there before is still there.
    """
    from fleetcraft.files import FileSystem, replace_atomically
    from fleetcraft.identity import new_launch_token
    from fleetcraft.view.report.page import render_report

    folder = None if target == _STDOUT else os.path.dirname(os.path.abspath(target))
    data = render_report(report, folder=folder).encode("utf-8")
    if target == _STDOUT:
        print_bytes(data)
        return len(data)
    temporary = f"{final}.{new_launch_token()}.tmp"
    try:
        FileSystem().create(temporary, data, mode=_mode_of(final))
        replace_atomically(temporary, final)
    except OSError as error:
        _remove(temporary)
        raise SpoolError(
            f"cannot write the page {target}: {error.strerror or error}; nothing was written",
            hint="check free space, quota and permissions, or name another file with -o",
            path=target,
        ) from error
    return len(data)


def _mode_of(page: str) -> int:
    """Who may read it: it quotes commands and logs."""
    try:
        return os.lstat(page).st_mode & 0o644 | 0o600
    except OSError:
        return 0o600


def _remove(path: str) -> None:
    import contextlib

    with contextlib.suppress(OSError):
        os.unlink(path)


class _Progress(PassingLine):
    def __call__(self, what: str, done: int, total: int) -> None:
        self.show(f"reading {what}: {done} of {total}")
