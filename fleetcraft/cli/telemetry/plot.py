"""``fleetcraft telemetry plot``: figures of traces, queue, controller logs and estimated MFU.

Invariant: a figure that was asked for is written, or the answer says why it is not.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fleetcraft.cli.output import note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.cli.stamping import Named, files_of, journals_of, stamp_made
from fleetcraft.cli.telemetry.places import FileProgress, folder_of, spools_of, telemetry_place
from fleetcraft.errors import ConfigError, DataError, FleetError, UsageError
from fleetcraft.evidence.records import Kind
from fleetcraft.trust import make_folders
from fleetcraft.view.text import one_line, plural

if TYPE_CHECKING:
    from fleetcraft.telemetry.queue import Queue
    from fleetcraft.telemetry.reading.sources import Found

_EXAMPLES = """
fleetcraft telemetry plot --out figures
fleetcraft telemetry plot traces/ --out figures --since 2026-07-17T06:00 --until 2026-07-18
fleetcraft telemetry plot --out figures --controller-log controller.log --mfu
"""
_EXITS = """
0 all figures are written; 1 there is nothing to draw for one of them; 7 there is nothing to read;
2 there is no such folder; 3 the scratch tree has no telemetry yet
"""


@click.command(cls=FleetCommand, name="plot", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--out", required=True, metavar="DIR", help="Where figures go; made if absent.")
@click.option("--since", metavar="TIME", help="Nothing before; no zone means that of the files.")
@click.option("--until", metavar="TIME", help="Nothing from then on.")
@click.option(
    "--controller-log", "logs", multiple=True, metavar="FILE", help="A controller's log, too."
)
@click.option("--mfu", is_flag=True, help="Estimated MFU of each family, too.")
@click.option("--title", default="", metavar="TEXT", help="Headline instead of the finding.")
@pass_session
def plot_command(
    session: Session,
    *,
    folder: str | None,
    out: str,
    since: str | None,
    until: str | None,
    logs: tuple[str, ...],
    mfu: bool,
    title: str,
) -> int:
    """Draw utilization, memory, power and queue on one time axis.

    Writes fleet.png and fleet.svg; with --controller-log controller.png and .svg, with --mfu
    mfu.png and .svg. DIR is a folder of telemetry files or one file; queue and workers are read
    from the spools of its scratch tree. Gaps stay open, and long ones are cut out and marked. The
    same input gives the same bytes. Beside each file, FILE.origin.json says what it was drawn from,
    for fleetcraft evidence trace.
    """
    drawing = _Drawing(session, folder, out, _span(since, until), title)
    if logs:
        drawing.attempt("controller", lambda: drawing.controller(list(logs)))
    if mfu:
        drawing.attempt("mfu", drawing.mfu)
    drawing.attempt("fleet", drawing.fleet)
    return drawing.report()


Span = tuple[float | None, float | None]


def _span(since: str | None, until: str | None) -> Span:
    start_s, end_s = _time_s("--since", since), _time_s("--until", until)
    if start_s is not None and end_s is not None and start_s >= end_s:
        raise UsageError(f"--since {since} is not before --until {until}; nothing was drawn")
    return start_s, end_s


def _time_s(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    from fleetcraft.telemetry.reading.times import SECOND_US, parse_time_us

    found = parse_time_us(text) or parse_time_us(f"{text} 00:00")
    if found is None:
        raise UsageError(
            f"{option}: not a time: {text!r}; nothing was drawn",
            hint=f"{option} 2026-07-17T06:00 or {option} 2026-07-17T06:00:00Z",
            text=text,
        )
    return found[0] / SECOND_US


class _Drawing:
    """One call: what it reads and writes, and what it tells."""

    def __init__(
        self, session: Session, folder: str | None, out: str, span: Span, title: str
    ) -> None:
        self._session = session
        self._folder = folder
        self._out = out
        self._since_s, self._until_s = span
        self._title = title
        self._files: list[str] = []
        self._lines: list[str] = []
        self._errors: dict[str, FleetError] = {}
        self._facts: dict[str, Any] = {}
        self._left_out: dict[str, str] = {}
        self._origins: list[str] = []

    def attempt(self, figure: str, draw: Any) -> None:
        """Draws one figure, or keeps the reason why there is none."""
        try:
            draw()
        except (ConfigError, DataError, NothingToDrawError) as error:
            self._errors[figure] = error

    def report(self) -> int:
        """Tells what was written, and what was not.

        Raises:
            FleetError: Nothing was.
        """
        if not self._files:
            raise next(iter(self._errors.values()))
        left_out = dict(self._left_out)
        left_out.update({figure: error.message for figure, error in self._errors.items()})
        if self._session.json:
            print_json(
                {
                    "schema": "fleetcraft.telemetry_plot/1",
                    "files": self._files,
                    "origins": self._origins,
                    "left_out": left_out,
                    **self._facts,
                }
            )
        else:
            for path in self._files:
                print_text(one_line(path))
            for line in self._lines:
                print_text(one_line(line))
            for figure, error in self._errors.items():
                note(f"no figure of {figure}: {one_line(error.message)}")
        return 1 if self._missing() else 0

    def _missing(self) -> bool:
        # Who gave no DIR and has none set may want the other figures alone.
        alone = self._folder is None and isinstance(self._errors.get("fleet"), ConfigError)
        return bool(set(self._errors) - ({"fleet"} if alone else set()))

    # -- figures

    def fleet(self) -> None:
        from fleetcraft.telemetry.figures.timeline import build_timeline
        from fleetcraft.telemetry.figures.traces import measure, read_traces

        sources = self._sources()
        with FileProgress() as progress:
            found = read_traces(
                sources.sources, since_s=self._since_s, until_s=self._until_s, progress=progress
            )
        found.unread += [(os.path.basename(path), reason) for path, reason in sources.refused]
        queue, no_queue = self._queue()
        timeline = build_timeline(found, queue)
        if timeline is None:
            raise _nothing(found, self._place)
        from fleetcraft.plots.fleet import plot_fleet
        from fleetcraft.view.telemetry_plot import fleet_line, fleet_shape

        facts = measure(found)
        made = plot_fleet(
            found, queue, timeline, facts, self._made_out(), no_queue=no_queue, title=self._title
        )
        self._wrote(made.files, [(source.path, Kind.TELEMETRY) for source in sources.sources])
        self._left_out = dict(made.left_out)
        self._lines.append(fleet_line(found, made.panels, made.left_out))
        self._facts.update(fleet_shape(found, timeline, facts, made.panels, made.title))

    def controller(self, logs: list[str]) -> None:
        from fleetcraft.telemetry.figures.controller_log import read_controller_logs

        log = read_controller_logs(logs, since_s=self._since_s, until_s=self._until_s)
        if not log.points and not log.summaries:
            raise NothingToDrawError(
                f"nothing to draw of {' and '.join(logs)}: none of {plural(log.lines, 'line')} is "
                "a reading or a summary of a controller in this time",
                rejected=log.rejected,
            )
        from fleetcraft.plots.controller import plot_controller
        from fleetcraft.view.telemetry_plot import controller_line, controller_shape

        made = plot_controller(log, self._made_out(), title=self._title)
        self._wrote(made.files, [(path, Kind.LOG) for path in logs], journals=False)
        self._lines.append(controller_line(log))
        self._facts["controller"] = controller_shape(log, made.panels)

    def mfu(self) -> None:
        from fleetcraft.layout import forwards_folder
        from fleetcraft.telemetry.figures.family_span import families_of
        from fleetcraft.telemetry.forwards import read_forwards

        folder = folder_of(self._place)
        queue, _ = self._queue()
        sources = self._sources().sources
        mfu, span_s = families_of(
            read_forwards(forwards_folder(folder)),
            queue,
            sources,
            since_s=self._since_s,
            until_s=self._until_s,
        )
        if not mfu.families:
            raise NothingToDrawError(
                f"no MFU to draw: no task reported forward calls in {forwards_folder(folder)} that "
                f"belong to a run ({plural(mfu.unmatched_calls, 'call')} of no known run)",
                unmatched_calls=mfu.unmatched_calls,
            )
        from fleetcraft.plots.family_mfu import plot_family_mfu
        from fleetcraft.view.telemetry_plot import mfu_line, mfu_shape

        made = plot_family_mfu(mfu, span_s, self._made_out(), title=self._title)
        reports = files_of(forwards_folder(folder), Kind.OTHER)
        self._wrote(made, [(source.path, Kind.TELEMETRY) for source in sources] + reports)
        self._lines.append(mfu_line(mfu))
        self._facts["mfu"] = mfu_shape(mfu, span_s)

    def _wrote(self, files: Sequence[str], sources: list[Named], *, journals: bool = True) -> None:
        """Takes note of figures, and writes beside them what they were drawn from."""
        if journals:
            sources = sources + journals_of(spools_of(self._session, self._folder))
        made_by = "fleetcraft telemetry plot"
        self._files += files
        self._origins += stamp_made(files, sources, made_by=made_by)

    # -- places

    @property
    def _place(self) -> str:
        return telemetry_place(self._session, self._folder)

    def _sources(self) -> Found:
        from fleetcraft.telemetry.reading.sources import find_sources

        found = find_sources(self._place)
        if not found.sources:
            raise DataError(
                f"no telemetry file in {self._place}; nothing was drawn"
                + "".join(f"; {os.path.basename(path)}: {why}" for path, why in found.refused[:3]),
                hint="fleetcraft telemetry log writes them; files end in .csv",
                place=self._place,
            )
        return found

    def _queue(self) -> tuple[Queue, str]:
        """What the journals say, and why that is nothing if it is."""
        from fleetcraft.telemetry.queue import Queue, read_queue

        named = spools_of(self._session, self._folder) or {}
        spools = {name: path for name, path in named.items() if os.path.isdir(path)}
        if not spools:
            return Queue(), "no spool in the scratch tree of this folder"
        queue = read_queue(spools, since_s=self._since_s, until_s=self._until_s)
        return queue, f"no queue depth in {plural(queue.journals, 'journal')} of the spools"

    def _made_out(self) -> str:
        try:
            make_folders(self._out, 0o755)
        except OSError as error:
            raise UsageError(
                f"cannot make the folder {self._out}: {error.strerror}; nothing was drawn",
                path=self._out,
            ) from error
        return self._out


class NothingToDrawError(FleetError):
    """What was read is well, and holds nothing that a figure could show."""


def _nothing(found: Any, place: str) -> NothingToDrawError:
    words = f"nothing to draw: no sample of a GPU in {plural(found.files, 'file')} of {place}"
    if found.since_s is not None or found.until_s is not None:
        words += " in this span of time"
    if found.header_only:
        words += f", {found.header_only} of them without a row"
    hosts = found.kinds.get("host", 0)
    if hosts:
        words += f"; {plural(hosts, 'row')} of hosts without a GPU"
    if found.unread:
        words += f"; {plural(len(found.unread), 'file')} could not be read"
    return NothingToDrawError(
        words,
        hint="fleetcraft telemetry inspect says what is in the files",
        files=found.files,
        header_only=found.header_only,
        rejected=dict(found.rejected),
    )
